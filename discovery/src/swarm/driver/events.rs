//! What libp2p reports, one method per kind.

use super::{
    Driver, Listener, MAX_UNANSWERED, MAX_UNANSWERED_PINGS, STRANGER_WAIT, give_up, is_loopback,
    is_unspecified, without_peer,
};
use crate::{
    Advert,
    directory::Heard,
    gate::Cause,
    swarm::{
        behaviour::BehaviourEvent,
        handle::{DialError, Event, RequestError, Responder, SwarmError, with_peer},
    },
};
use libp2p::{
    Multiaddr, PeerId, autonat,
    core::{ConnectedPoint, transport::ListenerId},
    gossipsub, identify, kad, mdns, ping,
    request_response::{self, OutboundFailure},
    swarm::{self, SwarmEvent},
};
use std::time::Instant;
use tokio::sync::oneshot;

impl Driver {
    pub(super) fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event),
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                num_established,
                ..
            } => {
                if let Some(reply) = self.dials.remove(&connection_id) {
                    let _ = reply.send(Ok(peer_id));
                }
                self.on_connected(peer_id, &endpoint, num_established.get() == 1);
            }
            SwarmEvent::ConnectionClosed {
                peer_id,
                connection_id,
                num_established,
                cause,
                ..
            } => {
                self.unanswered_pings.remove(&connection_id);
                if num_established > 0 {
                    return;
                }
                tracing::debug!(peer = %peer_id, ?cause, "disconnected");
                let now = Instant::now();
                self.shared.directory().disconnected(peer_id, now);
                self.book.disconnected(peer_id, now);
                self.nearby.disconnected(peer_id, now);
                self.notify_change();
                self.emit(Event::Disconnected { peer: peer_id });
            }
            SwarmEvent::OutgoingConnectionError {
                connection_id,
                peer_id,
                error,
            } => {
                let failure = dial_error(&error);
                tracing::debug!(peer = ?peer_id, error = %failure, "could not connect");
                if let Some(reply) = self.dials.remove(&connection_id) {
                    let _ = reply.send(Err(failure.clone()));
                }
                if let Some(peer) = peer_id {
                    self.on_unreachable(peer, &failure);
                }
            }
            SwarmEvent::IncomingConnectionError {
                send_back_addr,
                error,
                ..
            } => {
                // Refusals have their line from the gate; the rest is noise of open ports.
                tracing::debug!(address = %send_back_addr, %error, "an inbound connection failed");
            }
            SwarmEvent::NewListenAddr {
                listener_id,
                address,
            } => self.on_listening(listener_id, address),
            SwarmEvent::ListenerClosed {
                listener_id,
                reason,
                ..
            } => {
                self.relays.remove(&listener_id);
                let listener = self.listeners.remove(&listener_id);
                if let Some(Listener { asked, reply }) = listener {
                    let why = match reason {
                        Ok(()) => "the listener closed".to_owned(),
                        Err(error) => innermost(&error),
                    };
                    match reply {
                        Some(reply) => {
                            let _ = reply.send(Err(SwarmError::Listen {
                                address: asked,
                                why,
                            }));
                        }
                        None => tracing::debug!(address = %asked, why, "no longer listening"),
                    }
                }
                self.refresh_addresses();
            }
            SwarmEvent::ListenerError { error, .. } => {
                tracing::debug!(%error, "a listener reports an error");
            }
            SwarmEvent::ExpiredListenAddr { .. }
            | SwarmEvent::ExternalAddrConfirmed { .. }
            | SwarmEvent::ExternalAddrExpired { .. } => self.refresh_addresses(),
            _ => {}
        }
    }

    fn on_connected(&mut self, peer: PeerId, endpoint: &ConnectedPoint, first: bool) {
        let now = Instant::now();
        let name = self
            .admitted
            .lock()
            .unwrap_or_else(|p| p.into_inner())
            .get(&peer)
            .map(|certificate| certificate.name.clone())
            .unwrap_or_default();
        let address = without_peer(endpoint.get_remote_address().clone());
        // Where an inbound connection comes from is not where that peer listens.
        let dialled = endpoint.is_dialer().then(|| address.clone());
        self.book.connected(peer, dialled.clone());
        self.nearby.connected(peer, None);
        if let (Some(address), Some(kad)) = (dialled, self.swarm.behaviour_mut().kad.as_mut()) {
            kad.add_address(&peer, address);
        }
        self.shared
            .directory()
            .connected(peer, &name, address.clone(), endpoint.is_dialer(), now);
        if endpoint.is_dialer() {
            self.send_advert(peer);
        }
        if first {
            tracing::debug!(%peer, name, %address, "connected");
            self.notify_change();
            self.emit(Event::Connected {
                peer,
                name,
                address,
            });
        }
        for waiting in self.waiting.remove(&peer).unwrap_or_default() {
            self.proceed(peer, waiting);
        }
    }

    fn on_unreachable(&mut self, peer: PeerId, failure: &DialError) {
        let now = Instant::now();
        self.book.failed(peer, now);
        match failure {
            DialError::Refused(_) => {
                // Whoever it is, it is not of this fleet.
                self.book.forget(peer);
                self.nearby.put_off(peer, now + STRANGER_WAIT);
            }
            DialError::RefusedByPeer(_) => self.nearby.put_off(peer, now + STRANGER_WAIT),
            _ => self.nearby.failed(peer, now),
        }
        if !self.swarm.is_connected(&peer) {
            let why = failure.to_string();
            for waiting in self.waiting.remove(&peer).unwrap_or_default() {
                give_up(peer, waiting, &why);
            }
        }
    }

    fn on_listening(&mut self, id: ListenerId, address: Multiaddr) {
        self.refresh_addresses();
        let address = with_peer(address.clone(), self.shared.identity.peer()).unwrap_or(address);
        if let Some(Listener { reply, .. }) = self.listeners.get_mut(&id)
            && let Some(reply) = reply.take()
        {
            let _ = reply.send(Ok(address.clone()));
        }
        self.emit(Event::Listening(address));
    }

    fn refresh_addresses(&mut self) {
        let own = self.shared.identity.peer();
        let mut addresses: Vec<Multiaddr> = self.swarm.external_addresses().cloned().collect();
        let mut listening: Vec<Multiaddr> = self.swarm.listeners().cloned().collect();
        listening.sort_by_key(is_loopback);
        addresses.extend(listening);
        let mut named: Vec<Multiaddr> = Vec::new();
        for address in addresses {
            if let Some(address) = with_peer(address, own)
                && !named.contains(&address)
            {
                named.push(address);
            }
        }
        let mut shared = self
            .shared
            .addresses
            .lock()
            .unwrap_or_else(|p| p.into_inner());
        if *shared != named {
            *shared = named;
            self.publisher.again();
        }
    }

    fn on_behaviour_event(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => {
                for address in info.listen_addrs {
                    self.on_claimed_address(peer_id, peer_id, without_peer(address));
                }
            }
            BehaviourEvent::Ping(event) => self.on_ping(event),
            BehaviourEvent::Kad(kad::Event::RoutingUpdated {
                peer, addresses, ..
            }) => {
                for address in addresses.iter() {
                    self.nearby.learn(peer, without_peer(address.clone()));
                }
                self.nearby_if_connected(peer);
            }
            BehaviourEvent::Gossip(gossipsub::Event::Message {
                propagation_source,
                message_id,
                message,
            }) => self.on_gossip(propagation_source, &message_id, message),
            BehaviourEvent::Adverts(event) => self.on_advert_exchange(event),
            BehaviourEvent::Rpc(event) => self.on_rpc(event),
            BehaviourEvent::Mdns(mdns::Event::Discovered(found)) => {
                for (peer, address) in found {
                    if peer != self.shared.identity.peer() {
                        self.nearby.learn(peer, without_peer(address));
                        self.nearby_if_connected(peer);
                    }
                }
                self.dial_due();
            }
            BehaviourEvent::Mdns(mdns::Event::Expired(gone)) => {
                for (peer, _) in gone {
                    self.nearby.forget(peer);
                }
            }
            BehaviourEvent::Autonat(autonat::Event::StatusChanged { new, .. }) => {
                tracing::info!(?new, "reachability from outside");
                self.behind_nat = new == autonat::NatStatus::Private;
            }
            _ => {}
        }
    }

    /// Connections that went dead with the network are closed, so that the peer is dialled afresh.
    fn on_ping(&mut self, event: ping::Event) {
        let ping::Event {
            peer,
            connection,
            result,
        } = event;
        match result {
            Ok(rtt) => {
                self.unanswered_pings.remove(&connection);
                let now = Instant::now();
                self.shared.directory().round_trip(peer, rtt, now);
            }
            Err(failure) => {
                let count = self.unanswered_pings.entry(connection).or_default();
                *count += 1;
                if *count >= MAX_UNANSWERED_PINGS {
                    tracing::debug!(%peer, %failure, "closing a dead connection");
                    self.swarm.close_connection(connection);
                }
            }
        }
    }

    fn nearby_if_connected(&mut self, peer: PeerId) {
        if self.swarm.is_connected(&peer) {
            self.nearby.connected(peer, None);
        }
    }

    /// `teller` says that `peer` is at `address`.
    fn on_claimed_address(&mut self, teller: PeerId, peer: PeerId, address: Multiaddr) {
        if is_unspecified(&address) || peer == self.shared.identity.peer() {
            return;
        }
        // Another machine's loopback is of no use here.
        if is_loopback(&address) && !self.is_on_this_machine(teller) {
            return;
        }
        if let Some(kad) = self.swarm.behaviour_mut().kad.as_mut() {
            kad.add_address(&peer, address.clone());
        }
        self.shared.directory().reachable_at(peer, address.clone());
        self.book.learn(peer, address);
        if self.swarm.is_connected(&peer) {
            self.book.connected(peer, None);
        }
    }

    fn is_on_this_machine(&self, peer: PeerId) -> bool {
        self.shared
            .directory()
            .remote(peer)
            .is_some_and(is_loopback)
    }

    fn on_gossip(
        &mut self,
        source: PeerId,
        id: &gossipsub::MessageId,
        message: gossipsub::Message,
    ) {
        let verdict = match self.on_advert(source, message.source, &message.data) {
            Some(Heard::News | Heard::Refresh) => gossipsub::MessageAcceptance::Accept,
            Some(Heard::Stale) => gossipsub::MessageAcceptance::Ignore,
            None => gossipsub::MessageAcceptance::Reject,
        };
        self.swarm
            .behaviour_mut()
            .gossip
            .report_message_validation_result(id, &source, verdict);
    }

    fn on_advert_exchange(&mut self, event: request_response::Event<Vec<u8>, Vec<u8>>) {
        let request_response::Event::Message { peer, message, .. } = event else {
            // Gossip brings it again.
            return;
        };
        let advert = match message {
            request_response::Message::Request {
                request, channel, ..
            } => {
                let own = self.publisher.sealed().to_vec();
                let adverts = &mut self.swarm.behaviour_mut().adverts;
                let _ = adverts.send_response(channel, own);
                request
            }
            request_response::Message::Response { response, .. } => response,
        };
        if !advert.is_empty() {
            self.on_advert(peer, Some(peer), &advert);
        }
    }

    /// Takes in an advert that `teller` passed on and `source` signed for; `None` if it is not genuine.
    fn on_advert(&mut self, teller: PeerId, source: Option<PeerId>, bytes: &[u8]) -> Option<Heard> {
        let opened = Advert::open(bytes, &self.shared.membership.read());
        let verified = match opened {
            Ok(verified) if source == Some(verified.author.peer) => verified,
            Ok(_) => {
                tracing::warn!(target: "skein::adverts", %teller, "an advert came in another member's name");
                return None;
            }
            Err(refusal) => {
                tracing::warn!(target: "skein::adverts", %teller, reason = refusal.code(), "a bad advert");
                return None;
            }
        };
        let author = verified.author.peer;
        if author == self.shared.identity.peer() {
            return Some(Heard::Stale);
        }
        let addresses: Vec<Multiaddr> = verified.advert.addresses().collect();
        let heard = self
            .shared
            .directory()
            .heard(verified, teller == author, Instant::now());
        if heard != Heard::Stale {
            for address in addresses {
                self.on_claimed_address(teller, author, without_peer(address));
            }
        }
        if heard == Heard::News {
            self.notify_change();
        }
        Some(heard)
    }

    fn on_rpc(&mut self, event: request_response::Event<Vec<u8>, Vec<u8>>) {
        match event {
            request_response::Event::Message { peer, message, .. } => match message {
                request_response::Message::Request {
                    request, channel, ..
                } => {
                    if self.answers.len() >= MAX_UNANSWERED {
                        tracing::warn!(target: "skein::rpc", %peer, "dropped a request: too many are unanswered");
                        return;
                    }
                    let (responder, answer) = oneshot::channel();
                    let delivered = self.emit(Event::Request {
                        peer,
                        body: request,
                        responder: Responder(responder),
                    });
                    if delivered {
                        self.answers
                            .push(Box::pin(async move { (peer, channel, answer.await.ok()) }));
                    }
                }
                request_response::Message::Response {
                    request_id,
                    response,
                } => {
                    if let Some(reply) = self.requests.remove(&request_id) {
                        let _ = reply.send(Ok(response));
                    }
                }
            },
            request_response::Event::OutboundFailure {
                peer,
                request_id,
                error,
                ..
            } => {
                if let Some(reply) = self.requests.remove(&request_id) {
                    let _ = reply.send(Err(match error {
                        OutboundFailure::DialFailure | OutboundFailure::ConnectionClosed => {
                            RequestError::NotConnected(peer, error.to_string())
                        }
                        OutboundFailure::Timeout => RequestError::TimedOut(peer),
                        other => RequestError::Failed(peer, other.to_string()),
                    }));
                }
            }
            request_response::Event::InboundFailure { peer, error, .. } => {
                tracing::debug!(%peer, %error, "a request of another member failed");
            }
            request_response::Event::ResponseSent { .. } => {}
        }
    }
}

/// What a failed dial means to people: the gate's verdict where there is one.
pub(super) fn dial_error(error: &swarm::DialError) -> DialError {
    let swarm::DialError::Transport(attempts) = error else {
        return DialError::Unreachable(match error {
            swarm::DialError::WrongPeerId { obtained, .. } => {
                format!("another machine answers there: {obtained}")
            }
            swarm::DialError::LocalPeerId { .. } => "that is this machine itself".to_owned(),
            swarm::DialError::NoAddresses => "no address is known".to_owned(),
            other => other.to_string(),
        });
    };
    let mut reasons = Vec::new();
    for (address, error) in attempts {
        match Cause::inside(error) {
            Some(Cause::Refused(refusal)) => return DialError::Refused(*refusal),
            Some(Cause::RefusedByPeer(refusal)) => return DialError::RefusedByPeer(*refusal),
            _ => reasons.push(format!("{address}: {}", innermost(error))),
        }
    }
    DialError::Unreachable(reasons.join("; "))
}

/// The last error of a chain says what happened; those around it only say where.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    loop {
        let inner = match last
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
        {
            Some(inner) => Some(inner as &(dyn std::error::Error + 'static)),
            None => last.source(),
        };
        match inner {
            Some(inner) => last = inner,
            None => return last.to_string(),
        }
    }
}
