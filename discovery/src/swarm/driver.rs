//! The event loop: everything that waits is in [`Driver::run`], everything that changes is in the synchronous methods
//! below it and in [`events`].

mod events;
mod publisher;

use super::{
    COMMAND_QUEUE, EVENT_QUEUE, SwarmConfig,
    behaviour::{self, Behaviour},
    handle::{
        Command, DialError, Event, Events, Handle, RequestError, Shared, SwarmError, with_peer,
    },
};
use crate::{
    Identity,
    book::AddressBook,
    directory::Directory,
    fleet::{FleetId, SharedMembership, peer_of},
    gate::{Admitted, Gate},
    streams::{Stream, StreamError},
    transport,
};
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use libp2p::{
    Multiaddr, PeerId,
    core::transport::ListenerId,
    multiaddr::Protocol,
    relay, request_response,
    swarm::{
        self, ConnectionId,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use publisher::Publisher;
use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{IpAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{MissedTickBehavior, interval, sleep_until, timeout},
};

/// How often the loop looks for members to dial, adverts to expire, addresses to save.
const TICK: Duration = Duration::from_secs(1);
/// Up to this many connections the agent dials every member it hears of; beyond, gossip and Kademlia reach the rest.
const MESH: usize = 64;
/// Streams and requests that may wait for a connection to be made.
const MAX_WAITING: usize = 256;
/// Requests of other members that may wait for the agent's answer.
const MAX_UNANSWERED: usize = 1_024;
/// Connections are closed properly for so long, then cut.
const GOODBYE: Duration = Duration::from_secs(1);
/// Before a machine nearby that is no member of ours is tried again.
const STRANGER_WAIT: Duration = Duration::from_secs(300);
/// Pings in a row without an answer, after which a connection is dead: some forty seconds, which a busy machine is not
/// mute for.
const MAX_UNANSWERED_PINGS: u32 = 2;
/// Relays that are asked for a reservation behind a NAT.
const RELAYS: usize = 2;
const BOOK_FILE: &str = "peers.cbor";

/// What waits for a connection to one peer.
enum Waiting {
    Stream {
        protocol: String,
        reply: oneshot::Sender<Result<Stream, StreamError>>,
    },
    Request {
        body: Vec<u8>,
        reply: oneshot::Sender<Result<Vec<u8>, RequestError>>,
    },
}

struct Listener {
    asked: Multiaddr,
    reply: Option<oneshot::Sender<Result<Multiaddr, SwarmError>>>,
}

type Answer = (
    PeerId,
    request_response::ResponseChannel<Vec<u8>>,
    Option<Vec<u8>>,
);

pub(super) struct Driver {
    swarm: swarm::Swarm<Behaviour>,
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    admitted: Admitted,
    fleet: Option<FleetId>,
    publisher: Publisher,
    /// Members, kept over restarts.
    book: AddressBook,
    book_path: Option<PathBuf>,
    /// Machines that mDNS or Kademlia named and that may be no members.
    nearby: AddressBook,
    listeners: HashMap<ListenerId, Listener>,
    dials: BTreeMap<ConnectionId, oneshot::Sender<Result<PeerId, DialError>>>,
    waiting: BTreeMap<PeerId, Vec<Waiting>>,
    requests: BTreeMap<
        request_response::OutboundRequestId,
        oneshot::Sender<Result<Vec<u8>, RequestError>>,
    >,
    answers: FuturesUnordered<BoxFuture<'static, Answer>>,
    unanswered_pings: BTreeMap<ConnectionId, u32>,
    behind_nat: bool,
    relays: HashMap<ListenerId, PeerId>,
}

pub(super) async fn spawn(
    identity: Identity,
    membership: SharedMembership,
    config: SwarmConfig,
) -> Result<(Handle, Events), SwarmError> {
    let (circuit_transport, circuits) = if config.wide_area {
        let (transport, behaviour) = relay::client::new(identity.peer());
        (Some(transport), Some(behaviour))
    } else {
        (None, None)
    };
    let publisher = Publisher::new(&config);
    let gate = Gate::new(membership.clone());
    let admitted = gate.admitted();
    let transport = transport::gated(&identity, circuit_transport, gate)?;
    let behaviour = Behaviour::new(&identity, &config, circuits)?;
    let mut swarm = swarm::Swarm::new(
        transport,
        behaviour,
        identity.peer(),
        swarm::Config::with_tokio_executor()
            .with_smart_dial()
            .with_idle_connection_timeout(Duration::from_secs(60)),
    );
    for address in config.external {
        swarm.add_external_address(without_peer(address));
    }
    let (commands, command_queue) = mpsc::channel(COMMAND_QUEUE);
    let (events, event_queue) = mpsc::channel(EVENT_QUEUE);
    let membership_changes = membership.changes();
    let shared = Arc::new(Shared {
        identity,
        membership,
        directory: Mutex::new(Directory::default()),
        addresses: Mutex::new(Vec::new()),
        changed: watch::Sender::new(0),
    });
    let book_path = config.home.as_ref().map(|home| home.join(BOOK_FILE));
    let mut driver = Driver {
        swarm,
        shared: shared.clone(),
        events,
        admitted,
        fleet: None,
        publisher,
        book: book_path
            .as_deref()
            .map(AddressBook::load)
            .unwrap_or_default(),
        book_path,
        nearby: AddressBook::default(),
        listeners: HashMap::new(),
        dials: BTreeMap::new(),
        waiting: BTreeMap::new(),
        requests: BTreeMap::new(),
        answers: FuturesUnordered::new(),
        unanswered_pings: BTreeMap::new(),
        behind_nat: false,
        relays: HashMap::new(),
    };
    driver.on_membership();
    tokio::spawn(driver.run(command_queue, membership_changes));
    let handle = Handle { commands, shared };
    for address in config.listen {
        if let Err(error) = handle.listen(address).await {
            handle.shutdown().await;
            return Err(error);
        }
    }
    Ok((handle, Events(event_queue)))
}

impl Driver {
    async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut membership_changes: watch::Receiver<()>,
    ) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let goodbye = loop {
            let publish_at = self.publisher.due();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::ShutDown(reply)) => break Some(reply),
                    Some(command) => self.on_command(command),
                    None => break None,
                },
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                Some(answer) = self.answers.next() => self.on_answer(answer),
                Ok(()) = membership_changes.changed() => self.on_membership(),
                _ = tick.tick() => self.on_tick(),
                () = sleep_until(publish_at.unwrap_or_else(tokio::time::Instant::now)),
                    if publish_at.is_some() => self.publish(),
            }
        };
        self.say_goodbye().await;
        self.save_book();
        drop(self);
        if let Some(reply) = goodbye {
            let _ = reply.send(());
        }
    }

    async fn say_goodbye(&mut self) {
        let listeners: Vec<_> = self.listeners.keys().copied().collect();
        for listener in listeners {
            self.swarm.remove_listener(listener);
        }
        let peers: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in peers {
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let closed = async {
            while self.swarm.connected_peers().next().is_some() {
                self.swarm.select_next_some().await;
            }
        };
        if timeout(GOODBYE, closed).await.is_err() {
            tracing::debug!("some connections did not close in time and are cut");
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Listen(address, reply) => self.listen(address, reply),
            Command::Dial(address, reply) => self.dial(address, reply),
            Command::Learn(addresses) => {
                for address in addresses {
                    if let Some(peer) = peer_of(&address) {
                        self.learn_member(peer, address);
                    }
                }
                self.dial_due();
            }
            Command::Open {
                peer,
                protocol,
                reply,
            } => self.when_connected(peer, Waiting::Stream { protocol, reply }),
            Command::Accept(protocol, reply) => {
                let incoming = self.swarm.behaviour_mut().streams.accept(&protocol);
                let _ = reply.send(incoming);
            }
            Command::Request { peer, body, reply } => {
                self.when_connected(peer, Waiting::Request { body, reply });
            }
            Command::Publish(body) => self.publisher.say(*body),
            Command::ShutDown(_) => unreachable!("handled by the loop"),
        }
    }

    fn listen(
        &mut self,
        address: Multiaddr,
        reply: oneshot::Sender<Result<Multiaddr, SwarmError>>,
    ) {
        let listening = is_free(&address)
            .map_err(|error| error.to_string())
            .and_then(|()| {
                let listening = self.swarm.listen_on(address.clone());
                listening.map_err(|error| events::innermost(&error))
            });
        match listening {
            Ok(id) => {
                let (asked, reply) = (address, Some(reply));
                self.listeners.insert(id, Listener { asked, reply });
            }
            Err(why) => {
                let _ = reply.send(Err(SwarmError::Listen { address, why }));
            }
        }
    }

    fn dial(&mut self, address: Multiaddr, reply: oneshot::Sender<Result<PeerId, DialError>>) {
        let options = match peer_of(&address) {
            Some(peer) if self.swarm.is_connected(&peer) => {
                let _ = reply.send(Ok(peer));
                return;
            }
            Some(peer) => DialOpts::peer_id(peer)
                .condition(PeerCondition::Disconnected)
                .addresses(vec![address])
                .build(),
            None => DialOpts::unknown_peer_id().address(address).build(),
        };
        let id = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.dials.insert(id, reply);
            }
            Err(error) => {
                let _ = reply.send(Err(events::dial_error(&error)));
            }
        }
    }

    /// Does what waits for a connection, or waits for one.
    fn when_connected(&mut self, peer: PeerId, waiting: Waiting) {
        if self.swarm.is_connected(&peer) {
            return self.proceed(peer, waiting);
        }
        if self.waiting.values().map(Vec::len).sum::<usize>() >= MAX_WAITING {
            return give_up(peer, waiting, "too much is waiting for connections");
        }
        match self.dial_peer(peer, self.known_addresses(peer)) {
            Ok(()) | Err(swarm::DialError::DialPeerConditionFalse(_)) => {
                self.waiting.entry(peer).or_default().push(waiting);
            }
            Err(error) => give_up(peer, waiting, &events::dial_error(&error).to_string()),
        }
    }

    fn proceed(&mut self, peer: PeerId, waiting: Waiting) {
        let behaviour = self.swarm.behaviour_mut();
        match waiting {
            Waiting::Stream { protocol, reply } => behaviour.streams.open(peer, &protocol, reply),
            Waiting::Request { body, reply } => {
                let id = behaviour.rpc.send_request(&peer, body);
                self.requests.insert(id, reply);
            }
        }
    }

    fn known_addresses(&self, peer: PeerId) -> Vec<Multiaddr> {
        let mut addresses = self.book.addresses(peer).to_vec();
        for address in self.nearby.addresses(peer) {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    fn dial_peer(
        &mut self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
    ) -> Result<(), swarm::DialError> {
        self.swarm.dial(
            DialOpts::peer_id(peer)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .addresses(addresses)
                .extend_addresses_through_behaviour()
                .build(),
        )
    }

    fn on_answer(&mut self, (peer, channel, answer): Answer) {
        let Some(body) = answer else {
            // Dropping the channel closes the substream.
            tracing::debug!(%peer, "a request was dropped unanswered");
            return;
        };
        if body.len() > crate::rpc::MAX_MESSAGE_BYTES {
            tracing::warn!(target: "skein::rpc", %peer, bytes = body.len(), "dropped an answer that is too large");
            return;
        }
        // An asker that is gone needs no answer.
        let _ = self.swarm.behaviour_mut().rpc.send_response(channel, body);
    }

    /// The membership changed, or the loop begins.
    fn on_membership(&mut self) {
        let fleet = self.shared.membership.read().fleet().map(|info| info.id);
        if fleet == self.fleet {
            return;
        }
        let peer = self.shared.identity.peer();
        let behaviour = self.swarm.behaviour_mut();
        if let Some(old) = self.fleet {
            behaviour.gossip.unsubscribe(&behaviour::topic(old));
        }
        if let Some(new) = fleet
            && let Err(error) = behaviour.gossip.subscribe(&behaviour::topic(new))
        {
            tracing::error!(%error, "cannot subscribe to adverts");
        }
        // Nobody is connected before there is a fleet, so no connection lives without its Kademlia handler.
        behaviour.kad = fleet.map(|id| behaviour::kademlia(peer, id)).into();
        self.fleet = fleet;
        self.publisher.again();
        self.nearby.retry_all();
        self.dial_due();
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        if self.shared.directory().expire(now) {
            self.notify_change();
        }
        self.dial_due();
        if self.behind_nat {
            self.reserve_relays();
        }
        self.save_book();
    }

    /// Dials members, and machines nearby, that are not connected and whose time has come.
    fn dial_due(&mut self) {
        if self.fleet.is_none() {
            return;
        }
        let now = Instant::now();
        let own = self.shared.identity.peer();
        let mut connected = self.swarm.connected_peers().count();
        let due = [self.book.due(now), self.nearby.due(now)].concat();
        for (peer, addresses) in due {
            if connected >= MESH {
                break;
            }
            if peer == own || self.swarm.is_connected(&peer) {
                continue;
            }
            match self.dial_peer(peer, addresses) {
                Ok(()) => connected += 1,
                // It is being dialled, and that attempt will tell.
                Err(swarm::DialError::DialPeerConditionFalse(_)) => {}
                Err(_) => {
                    self.book.failed(peer, now);
                    self.nearby.failed(peer, now);
                }
            }
        }
    }

    /// Asks members that are reachable from outside to relay for us.
    fn reserve_relays(&mut self) {
        let peers = self.shared.directory().snapshot(Instant::now());
        for entry in peers.into_iter().filter(|entry| entry.connected) {
            if self.relays.len() >= RELAYS {
                return;
            }
            if self.relays.values().any(|relay| *relay == entry.peer) {
                continue;
            }
            let direct = entry.addresses.into_iter().find(|address| {
                !is_loopback(address) && !address.iter().any(|part| part == Protocol::P2pCircuit)
            });
            let Some(address) = direct.and_then(|address| with_peer(address, entry.peer)) else {
                continue;
            };
            if let Ok(id) = self.swarm.listen_on(address.with(Protocol::P2pCircuit)) {
                self.relays.insert(id, entry.peer);
            }
        }
    }

    fn learn_member(&mut self, peer: PeerId, address: Multiaddr) {
        if peer != self.shared.identity.peer() {
            self.book.learn(peer, without_peer(address));
        }
    }

    fn save_book(&mut self) {
        if let Some(path) = &self.book_path
            && let Err(error) = self.book.save(path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot save the address book");
        }
    }

    fn notify_change(&self) {
        self.shared.changed.send_modify(|version| *version += 1);
    }

    fn emit(&self, event: Event) -> bool {
        match self.events.try_send(event) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(event)) => {
                tracing::warn!(target: "skein::swarm", ?event, "the agent does not keep up: dropped an event");
                false
            }
        }
    }
}

fn give_up(peer: PeerId, waiting: Waiting, why: &str) {
    match waiting {
        Waiting::Stream { reply, .. } => {
            let _ = reply.send(Err(StreamError::NotConnected(peer, why.to_owned())));
        }
        Waiting::Request { reply, .. } => {
            let _ = reply.send(Err(RequestError::NotConnected(peer, why.to_owned())));
        }
    }
}

/// libp2p lets its TCP listeners share a port (SO_REUSEPORT), so a second agent of the same user would not fail but
/// take half of the first one's connections. A plain socket tells whether the port is taken.
fn is_free(address: &Multiaddr) -> io::Result<()> {
    if address.iter().any(|part| part == Protocol::P2pCircuit) {
        return Ok(());
    }
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    match parts.next() {
        Some(Protocol::Tcp(port)) if port != 0 => TcpListener::bind((ip, port)).map(drop),
        _ => Ok(()),
    }
}

fn without_peer(mut address: Multiaddr) -> Multiaddr {
    if let Some(Protocol::P2p(_)) = address.iter().last() {
        address.pop();
    }
    address
}

fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback(),
        _ => false,
    }
}

fn is_unspecified(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_unspecified(),
        Some(Protocol::Ip6(ip)) => ip.is_unspecified(),
        _ => false,
    }
}
