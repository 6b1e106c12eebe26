//! When this machine's advert goes out.

use super::{Driver, behaviour};
use crate::{Advert, AdvertBody, swarm::SwarmConfig};
use libp2p::{PeerId, gossipsub};
use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::Instant;

/// Changes that follow each other faster than this go out together.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) struct Publisher {
    every: Duration,
    lifetime_s: u32,
    sequence: u64,
    body: Option<AdvertBody>,
    /// Something changed since the advert last went out.
    changed: bool,
    last: Option<Instant>,
    /// The advert that last went out, for members that connect.
    sealed: Vec<u8>,
}

impl Publisher {
    pub(super) fn new(config: &SwarmConfig) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            every: config.advert_every,
            lifetime_s: config
                .advert_lifetime
                .as_secs()
                .try_into()
                .unwrap_or(u32::MAX),
            sequence: since.map_or(0, |since| since.as_millis() as u64),
            body: None,
            changed: false,
            last: None,
            sealed: Vec::new(),
        }
    }

    pub(super) fn say(&mut self, body: AdvertBody) {
        if self.body.as_ref() != Some(&body) {
            self.body = Some(body);
            self.changed = true;
        }
    }

    /// Something besides the body changed: addresses, the fleet.
    pub(super) fn again(&mut self) {
        self.changed = true;
    }

    /// When to publish next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.body.as_ref()?;
        let wait = if self.changed { SETTLE } else { self.every };
        Some(self.last.map_or_else(Instant::now, |last| last + wait))
    }

    pub(super) fn sealed(&self) -> &[u8] {
        &self.sealed
    }
}

impl Driver {
    pub(super) fn publish(&mut self) {
        let publisher = &mut self.publisher;
        publisher.last = Some(Instant::now());
        let changed = std::mem::take(&mut publisher.changed);
        let Some(body) = publisher.body.clone() else {
            return;
        };
        publisher.sequence += 1;
        let addresses = self
            .shared
            .addresses
            .lock()
            .unwrap_or_else(|p| p.into_inner());
        let advert = Advert::new(body, publisher.sequence, publisher.lifetime_s, &addresses);
        drop(addresses);
        let membership = self.shared.membership.read();
        let (Some(fleet), Some(certificate)) = (self.fleet, membership.certificate()) else {
            return;
        };
        let Some(sealed) = advert.seal(&self.shared.identity, certificate) else {
            tracing::error!("this machine's advert is too large and was not sent");
            return;
        };
        drop(membership);
        publisher.sealed.clone_from(&sealed);
        let topic = behaviour::topic(fleet);
        let gossip = &mut self.swarm.behaviour_mut().gossip;
        match gossip.publish(topic.clone(), sealed) {
            Ok(_) | Err(gossipsub::PublishError::NoPeersSubscribedToTopic) => {}
            Err(error) => tracing::debug!(%error, "an advert was not gossiped"),
        }
        if changed {
            self.tell_newcomers(&topic);
        }
    }

    /// Members whose subscription has not arrived yet miss what is gossiped; they are told directly.
    fn tell_newcomers(&mut self, topic: &gossipsub::IdentTopic) {
        let hash = topic.hash();
        let gossip = &self.swarm.behaviour().gossip;
        let subscribed: BTreeSet<PeerId> = gossip
            .all_peers()
            .filter(|(_, topics)| topics.contains(&&hash))
            .map(|(peer, _)| *peer)
            .collect();
        let newcomers: Vec<PeerId> = self
            .swarm
            .connected_peers()
            .filter(|peer| !subscribed.contains(peer))
            .copied()
            .collect();
        for peer in newcomers {
            self.send_advert(peer);
        }
    }

    /// Exchanges adverts with a connected member.
    pub(super) fn send_advert(&mut self, peer: PeerId) {
        let advert = self.publisher.sealed.clone();
        self.swarm
            .behaviour_mut()
            .adverts
            .send_request(&peer, advert);
    }
}
