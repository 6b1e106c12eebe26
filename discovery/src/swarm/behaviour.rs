//! The behaviours of libp2p that run on every connection, and how they are configured.

use super::SwarmConfig;
use crate::{Identity, advert, fleet::FleetId, rpc, streams};
use libp2p::{
    PeerId, StreamProtocol, autonat,
    connection_limits::{self, ConnectionLimits},
    dcutr, gossipsub, identify, kad, mdns, ping, relay,
    swarm::{NetworkBehaviour, behaviour::toggle::Toggle},
};
use std::{io, time::Duration};

/// Connections that may be at the gate at once. A whole fleet coming back after its root restarted fits, and it bounds
/// what a flood of strangers can hold: each costs one handshake and a few KiB until [`TIMEOUT`](crate::gate::TIMEOUT).
pub(super) const MAX_PENDING_INCOMING: u32 = 128;
const MAX_PENDING_OUTGOING: u32 = 128;
/// Connections per peer: both sides may dial at once, over TCP and QUIC, and a relayed one may be on its way out.
const MAX_PER_PEER: u32 = 6;
/// Connections in all.
const MAX_ESTABLISHED: u32 = 1_024;
/// How often round-trip times are measured.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long an answer may take.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// How often identify repeats itself; changes are pushed at once.
const IDENTIFY_EVERY: Duration = Duration::from_secs(60);
/// How often Kademlia looks for members it does not know yet.
const KAD_EVERY: Duration = Duration::from_secs(60);
/// How often mDNS asks, so that a lost first packet costs seconds and not minutes.
const MDNS_EVERY: Duration = Duration::from_secs(10);
/// What a member relays for one circuit. Circuits serve to agree on hole punching; where that fails they carry the
/// traffic of two members, so they are not cut short.
const RELAY_BYTES: u64 = 1 << 32;
const RELAY_TIME: Duration = Duration::from_secs(60 * 60);

#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    pub limits: connection_limits::Behaviour,
    pub identify: identify::Behaviour,
    pub ping: ping::Behaviour,
    pub kad: Toggle<kad::Behaviour<kad::store::MemoryStore>>,
    pub gossip: gossipsub::Behaviour,
    pub adverts: rpc::Behaviour,
    pub rpc: rpc::Behaviour,
    pub streams: streams::Behaviour,
    pub mdns: Toggle<mdns::tokio::Behaviour>,
    pub autonat: Toggle<autonat::Behaviour>,
    pub relay: Toggle<relay::Behaviour>,
    pub circuits: Toggle<relay::client::Behaviour>,
    pub dcutr: Toggle<dcutr::Behaviour>,
}

impl Behaviour {
    pub(super) fn new(
        identity: &Identity,
        config: &SwarmConfig,
        circuits: Option<relay::client::Behaviour>,
    ) -> io::Result<Self> {
        let peer = identity.peer();
        let mdns = match config.mdns {
            true => Some(mdns::tokio::Behaviour::new(
                mdns::Config {
                    query_interval: MDNS_EVERY,
                    ..mdns::Config::default()
                },
                peer,
            )?),
            false => None,
        };
        let wide_area = config.wide_area;
        Ok(Self {
            limits: connection_limits::Behaviour::new(
                ConnectionLimits::default()
                    .with_max_pending_incoming(Some(MAX_PENDING_INCOMING))
                    .with_max_pending_outgoing(Some(MAX_PENDING_OUTGOING))
                    .with_max_established(Some(MAX_ESTABLISHED))
                    .with_max_established_per_peer(Some(MAX_PER_PEER)),
            ),
            identify: identify::Behaviour::new(
                identify::Config::new("skein/1".to_owned(), identity.keypair().public())
                    .with_agent_version(config.agent_version.clone())
                    .with_push_listen_addr_updates(true)
                    .with_interval(IDENTIFY_EVERY),
            ),
            ping: ping::Behaviour::new(
                ping::Config::new()
                    .with_interval(PING_EVERY)
                    .with_timeout(PING_TIMEOUT),
            ),
            kad: None.into(),
            gossip: gossip(identity)?,
            adverts: rpc::behaviour(rpc::ADVERT_PROTOCOL, advert::MAX_ADVERT_BYTES),
            rpc: rpc::behaviour(rpc::PROTOCOL, rpc::MAX_MESSAGE_BYTES),
            streams: streams::Behaviour::default(),
            mdns: mdns.into(),
            autonat: wide_area
                .then(|| autonat::Behaviour::new(peer, autonat::Config::default()))
                .into(),
            relay: wide_area
                .then(|| {
                    relay::Behaviour::new(
                        peer,
                        relay::Config {
                            max_circuit_bytes: RELAY_BYTES,
                            max_circuit_duration: RELAY_TIME,
                            ..relay::Config::default()
                        },
                    )
                })
                .into(),
            dcutr: circuits
                .is_some()
                .then(|| dcutr::Behaviour::new(peer))
                .into(),
            circuits: circuits.into(),
        })
    }
}

fn gossip(identity: &Identity) -> io::Result<gossipsub::Behaviour> {
    let config = gossipsub::ConfigBuilder::default()
        .validation_mode(gossipsub::ValidationMode::Strict)
        // An advert is passed on only after its signature was checked.
        .validate_messages()
        .max_transmit_size(advert::MAX_ADVERT_BYTES + 1024)
        .build()
        .map_err(io::Error::other)?;
    gossipsub::Behaviour::new(
        gossipsub::MessageAuthenticity::Signed(identity.keypair().clone()),
        config,
    )
    .map_err(io::Error::other)
}

/// Kademlia for one fleet: it finds members, and stores nothing.
pub(super) fn kademlia(peer: PeerId, fleet: FleetId) -> kad::Behaviour<kad::store::MemoryStore> {
    let protocol = StreamProtocol::try_from_owned(format!("/skein/kad/1/{fleet}"))
        .expect("it begins with a slash");
    let mut config = kad::Config::new(protocol);
    config
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_periodic_bootstrap_interval(Some(KAD_EVERY))
        .set_replication_interval(None)
        .set_publication_interval(None)
        .set_provider_publication_interval(None);
    let mut kad = kad::Behaviour::with_config(peer, kad::store::MemoryStore::new(peer), config);
    // Members on a local network never learn that they are reachable from outside, and still answer each other.
    kad.set_mode(Some(kad::Mode::Server));
    kad
}

/// The topic adverts are gossiped on.
pub(super) fn topic(fleet: FleetId) -> gossipsub::IdentTopic {
    gossipsub::IdentTopic::new(format!("skein/advert/1/{fleet}"))
}
