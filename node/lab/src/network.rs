//! Machines in namespaces around one switch.

use std::net::Ipv4Addr;

use anyhow::Context;

use crate::namespace::Namespace;
use crate::platform::tap;
use crate::switch::cable::Running;
use crate::switch::{Counters, Link, Switch};

/// Losses and jitter are the same in every run.
const SEED: u64 = 0x5ce1_4e57;
/// The machines' interface.
const INTERFACE: &str = "eth0";

/// Fields are dropped in order: the switch stops before the namespaces go.
#[derive(Debug)]
pub struct Network {
    switch: Running,
    pub machines: Vec<Machine>,
}

/// A namespace with an address on the switch.
#[derive(Debug)]
pub struct Machine {
    pub namespace: Namespace,
    pub address: Ipv4Addr,
}

impl Network {
    /// One machine per name, all with the same kind of link.
    pub fn build(names: &[&str], link: Link) -> anyhow::Result<Self> {
        let mut machines = Vec::with_capacity(names.len());
        let mut devices = Vec::with_capacity(names.len());
        for (name, host) in names.iter().zip(1u8..) {
            let namespace = Namespace::create(name)?;
            devices.push(namespace.enter(|| {
                plain_congestion_control()?;
                tap::create(INTERFACE)
            })?);
            let address = Ipv4Addr::new(10, 77, 0, host);
            namespace.ip(&["addr", "add", &format!("{address}/24"), "dev", INTERFACE])?;
            namespace.ip(&["link", "set", INTERFACE, "up"])?;
            namespace.ip(&["route", "add", "224.0.0.0/4", "dev", INTERFACE])?;
            machines.push(Machine { namespace, address });
        }
        let switch = Switch::new(&vec![link; names.len()], SEED);
        Ok(Network {
            switch: Running::start(switch, devices),
            machines,
        })
    }

    /// Takes the network down and says what passed over it.
    pub fn stop(self) -> Counters {
        self.switch.stop()
    }
}

/// BBR's pacing, a common default, adds tens of milliseconds to a message that follows a pause;
/// reno shows the link as it is.
fn plain_congestion_control() -> anyhow::Result<()> {
    // What is under /proc/sys/net depends on the thread that opens it.
    std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")
        .context("cannot set a namespace's congestion control")
}
