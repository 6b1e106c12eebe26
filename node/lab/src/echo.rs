//! Round trips over plain TCP between two machines, to know the network before Skein uses it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::network::Machine;

const PATIENCE: Duration = Duration::from_secs(10);

/// Sends `trips` messages of `bytes` from one machine to another and back, one at a time, and
/// returns the round trips, shortest first.
pub fn round_trips(
    from: &Machine,
    to: &Machine,
    trips: usize,
    bytes: usize,
) -> anyhow::Result<Vec<Duration>> {
    let listener = to.namespace.enter(|| {
        TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).context("cannot listen")
    })?;
    let address = SocketAddr::from((to.address, listener.local_addr()?.port()));
    // Connected first, served after: the kernel completes the handshake for a waiting listener.
    let mut stream = from.namespace.enter(|| {
        TcpStream::connect_timeout(&address, PATIENCE)
            .with_context(|| format!("cannot reach {address}"))
    })?;
    let (mut far, _) = listener.accept()?;
    for end in [&stream, &far] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(PATIENCE))?;
        end.set_write_timeout(Some(PATIENCE))?;
    }
    std::thread::scope(|scope| {
        let server = scope.spawn(move || -> std::io::Result<()> {
            let mut message = vec![0; bytes];
            for _ in 0..trips {
                far.read_exact(&mut message)?;
                far.write_all(&message)?;
            }
            Ok(())
        });
        let mut times = Vec::with_capacity(trips);
        let mut message: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let sent = message.clone();
        for _ in 0..trips {
            let begun = Instant::now();
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            times.push(begun.elapsed());
            if message != sent {
                bail!("a message came back changed");
            }
        }
        match server.join() {
            Ok(served) => served?,
            Err(_) => bail!("the echo server panicked"),
        }
        times.sort_unstable();
        Ok(times)
    })
}
