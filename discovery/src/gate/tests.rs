//! Strangers at the gate, over TCP and over QUIC, against a real swarm on loopback.

use super::{log::LOG_BURST, *};
use crate::{
    Event, Events, Handle, Identity, Membership, Swarm, SwarmConfig, fleet::InviteTerms, transport,
};
use futures::StreamExt;
use libp2p::core::transport::{DialOpts, PortUse};
use std::{
    collections::BTreeSet,
    sync::{LazyLock, OnceLock},
};
use tracing::field::{Field, Visit};
use tracing_subscriber::{Layer, layer::SubscriberExt};

const TCP: &str = "/ip4/127.0.0.1/tcp/0";
const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";

/// A line of the target `skein::gate`: whom it is about, and why.
#[derive(Debug, Clone, Default)]
struct Line {
    peer: String,
    address: String,
    reason: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "peer" => self.peer = text,
            "address" => self.address = text,
            "reason" => self.reason = text,
            _ => {}
        }
    }
}

static LINES: LazyLock<Mutex<Vec<Line>>> = LazyLock::new(Mutex::default);

struct Capture;

impl<S: tracing::Subscriber> Layer<S> for Capture {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if event.metadata().target() == "skein::gate" {
            let mut line = Line::default();
            event.record(&mut line);
            LINES.lock().unwrap().push(line);
        }
    }
}

/// Lines so far about a machine. One subscriber serves all tests of this process; each has its own machines.
fn lines_about(peer: PeerId) -> Vec<Line> {
    let lines = LINES.lock().unwrap();
    let about = |line: &&Line| line.peer == peer.to_string();
    lines.iter().filter(about).cloned().collect()
}

struct Machine {
    handle: Handle,
    events: Events,
    identity: Identity,
    address: Multiaddr,
    _folder: tempfile::TempDir,
}

async fn machine(listen: &str, prepare: impl FnOnce(&mut Membership)) -> Machine {
    static CAPTURE: OnceLock<()> = OnceLock::new();
    CAPTURE.get_or_init(|| {
        let subscriber = tracing_subscriber::registry().with(Capture);
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
    let folder = tempfile::tempdir().unwrap();
    let identity = Identity::generate();
    let mut membership = Membership::open(folder.path(), identity.peer()).unwrap();
    prepare(&mut membership);
    let config = SwarmConfig {
        listen: vec![listen.parse().unwrap()],
        mdns: false,
        ..SwarmConfig::default()
    };
    let membership = SharedMembership::new(membership);
    let (handle, events) = Swarm::spawn(identity.clone(), membership, config)
        .await
        .unwrap();
    let address = handle.addresses().remove(0);
    Machine {
        handle,
        events,
        identity,
        address,
        _folder: folder,
    }
}

async fn root(listen: &str) -> Machine {
    machine(listen, |membership| {
        membership.found("home", "root", unix_now()).unwrap();
    })
    .await
}

impl Machine {
    fn invite(&self, uses: u32, expires: u64) -> Invite {
        let terms = InviteTerms {
            expires,
            uses,
            addresses: vec![self.address.clone()],
        };
        // A moment before it expires, whenever that was.
        self.handle
            .membership()
            .change(|membership| membership.invite(&terms, expires - 1))
            .unwrap()
    }

    /// A valid certificate of this machine's fleet for `peer`.
    fn certify(&self, peer: PeerId) -> Certificate {
        let invite = self.invite(1, unix_now() + 60);
        self.handle
            .membership()
            .change(|membership| membership.redeem(&invite, peer, "x", unix_now()))
            .unwrap()
    }

    /// Nothing above the gate heard of anybody.
    fn saw_nobody(&mut self) {
        assert_eq!(self.handle.peers(), []);
        while let Some(event) = self.events.try_next() {
            assert!(matches!(event, Event::Listening(_)), "{event:?}");
        }
    }
}

/// Connects like anybody could: authenticated and multiplexed, nothing proved.
async fn connect(identity: &Identity, address: &Multiaddr) -> Connection {
    let mut transport = transport::direct(identity).unwrap();
    let mut bare = address.clone();
    bare.pop();
    let options = DialOpts {
        role: Endpoint::Dialer,
        port_use: PortUse::New,
    };
    let dial = libp2p::Transport::dial(&mut transport, bare, options).unwrap();
    tokio::spawn(transport.for_each(|_| async {}));
    dial.await.unwrap()
}

/// Sends `bytes` as they are on the first substream and reads what comes back.
async fn utter(identity: &Identity, address: &Multiaddr, bytes: &[u8]) -> Result<Message, Cause> {
    let Connection { mut muxer, .. } = connect(identity, address).await;
    // More patient than the other side, whose verdict is what a test is about.
    let patience = TIMEOUT + Duration::from_secs(10);
    on_substream_within(patience, &mut muxer, true, async |exchange| {
        let substream = &mut exchange.substream;
        driven(exchange.muxer, async {
            substream.write_all(bytes).await?;
            substream.flush().await
        })
        .await?;
        exchange.receive().await
    })
    .await
}

/// What a machine is told that says `message` first.
async fn told_to(identity: &Identity, address: &Multiaddr, message: &Message) -> Option<Refusal> {
    let mut bytes = PREFACE.to_vec();
    let body = crate::wire::encode(message);
    bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&body);
    match utter(identity, address, &bytes).await {
        Ok(Message::Refuse(code)) => Refusal::from_code(&code),
        other => panic!("not refused: {other:?}"),
    }
}

fn invite_message(invite: &Invite) -> Message {
    Message::Invite {
        name: "stranger".into(),
        token: ByteBuf::from(invite.encode()),
    }
}

async fn refused_once(machine: &mut Machine, stranger: &Identity, reason: Refusal) {
    for _ in 0..50 {
        if !lines_about(stranger.peer()).is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A second line would follow soon.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let lines = lines_about(stranger.peer());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0].reason, reason.code());
    assert!(lines[0].address.starts_with("/ip4/127.0.0.1/"), "{lines:?}");
    machine.saw_nobody();
}

async fn strangers_are_refused(listen: &str) {
    let mut root = root(listen).await;
    let other = self::root(listen).await;
    let now = unix_now();
    let used_up = root.invite(1, now + 60);
    root.handle
        .membership()
        .change(|membership| membership.redeem(&used_up, PeerId::random(), "first", now))
        .unwrap();
    let impostor = Identity::generate();
    let cases = [
        (Message::None, Refusal::NoCertificate),
        (
            invite_message(&root.invite(1, now - 10)),
            Refusal::ExpiredInvite,
        ),
        (invite_message(&used_up), Refusal::UsedUp),
        (
            invite_message(&other.invite(1, now + 60)),
            Refusal::ForeignFleet,
        ),
        (Message::Accept, Refusal::Malformed),
        (
            Message::Certificate(ByteBuf::from(vec![0; 100])),
            Refusal::Malformed,
        ),
    ];
    for (message, refusal) in cases {
        let stranger = Identity::generate();
        let told = told_to(&stranger, &root.address, &message).await;
        assert_eq!(told, Some(refusal));
        refused_once(&mut root, &stranger, refusal).await;
    }
    let stranger = Identity::generate();
    let foreign = other.certify(stranger.peer()).encode();
    let message = Message::Certificate(ByteBuf::from(foreign));
    let told = told_to(&stranger, &root.address, &message).await;
    assert_eq!(told, Some(Refusal::ForeignFleet));
    refused_once(&mut root, &stranger, Refusal::ForeignFleet).await;

    let stolen = root.certify(Identity::generate().peer()).encode();
    let message = Message::Certificate(ByteBuf::from(stolen));
    let told = told_to(&impostor, &root.address, &message).await;
    assert_eq!(told, Some(Refusal::Malformed), "it need not know that much");
    refused_once(&mut root, &impostor, Refusal::WrongPeer).await;

    let stranger = Identity::generate();
    let mut forged = root.certify(stranger.peer()).encode();
    *forged.last_mut().unwrap() ^= 1;
    // The last byte belongs to the signature or to the body; both are covered.
    let message = Message::Certificate(ByteBuf::from(forged));
    told_to(&stranger, &root.address, &message).await;
    refused_once(&mut root, &stranger, Refusal::BadSignature).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_over_tcp() {
    strangers_are_refused(TCP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_over_quic() {
    strangers_are_refused(QUIC).await;
}

async fn garbage_is_refused(listen: &str) {
    let mut root = root(listen).await;
    let mut endless = PREFACE.to_vec();
    endless.extend_from_slice(&u16::MAX.to_le_bytes());
    endless.extend_from_slice(&[0; 1000]);
    let mut deep = PREFACE.to_vec();
    deep.extend_from_slice(&1000u16.to_le_bytes());
    deep.extend_from_slice(&[0x81; 1000]);
    for garbage in [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0; 4096],
        endless,
        deep,
    ] {
        let stranger = Identity::generate();
        let answer = utter(&stranger, &root.address, &garbage).await;
        assert!(
            matches!(&answer, Ok(Message::Refuse(code)) if code == "malformed"),
            "{answer:?}"
        );
        refused_once(&mut root, &stranger, Refusal::Malformed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_refused_over_tcp() {
    garbage_is_refused(TCP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_refused_over_quic() {
    garbage_is_refused(QUIC).await;
}

async fn silence_ends(listen: &str) {
    let mut root = root(listen).await;
    // One opens no substream, one opens it and stops in the middle of a message.
    let [mute, hesitant] = [(); 2].map(|()| Identity::generate());
    let Connection { mut muxer, .. } = connect(&mute, &root.address).await;
    let silent = async {
        let closed = poll_fn(|cx| {
            let _ = muxer.poll_unpin(cx);
            muxer.poll_inbound_unpin(cx)
        });
        assert!(closed.await.is_err(), "the connection is cut");
    };
    let mut half = PREFACE.to_vec();
    half.extend_from_slice(&[200, 0, 1, 2, 3]);
    let stopping = utter(&hesitant, &root.address, &half);
    let patience = TIMEOUT + Duration::from_secs(8);
    let ((), answer) = tokio::time::timeout(patience, async { tokio::join!(silent, stopping) })
        .await
        .unwrap();
    assert!(answer.is_err(), "{answer:?}");
    refused_once(&mut root, &mute, Refusal::TooSlow).await;
    refused_once(&mut root, &hesitant, Refusal::TooSlow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_ends_over_tcp() {
    silence_ends(TCP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_ends_over_quic() {
    silence_ends(QUIC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_not_root_refuses_invites_and_says_why() {
    let root = root(TCP).await;
    let mut member = machine(TCP, |membership| {
        let invite = root.invite(1, unix_now() + 60);
        let certificate = root
            .handle
            .membership()
            .change(|m| m.redeem(&invite, membership.peer(), "member", unix_now()))
            .unwrap();
        membership.adopt(&invite, &certificate).unwrap();
    })
    .await;
    let invite = root.invite(1, unix_now() + 60);
    let stranger = Identity::generate();
    let told = told_to(&stranger, &member.address, &invite_message(&invite)).await;
    assert_eq!(told, Some(Refusal::NotRoot));
    refused_once(&mut member, &stranger, Refusal::NotRoot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_without_a_fleet_lets_nobody_in() {
    let root = root(TCP).await;
    let mut loner = machine(TCP, |_| {}).await;
    let stranger = Identity::generate();
    let certificate = root.certify(stranger.peer()).encode();
    let message = Message::Certificate(ByteBuf::from(certificate));
    let told = told_to(&stranger, &loner.address, &message).await;
    assert_eq!(told, Some(Refusal::NoFleet));
    refused_once(&mut loner, &stranger, Refusal::NoFleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dialling_side_refuses_too_and_the_token_is_shown_to_its_issuer_only() {
    let root = root(TCP).await;
    let mut other = self::root(TCP).await;
    let error = other.handle.dial(root.address.clone()).await.unwrap_err();
    assert!(
        matches!(
            error,
            crate::swarm::DialError::RefusedByPeer(Refusal::ForeignFleet)
        ),
        "{error:?}"
    );
    other.saw_nobody();
    let invite = root.invite(1, unix_now() + 60);
    let joiner = Identity::generate();
    let connection = connect(&joiner, &other.address).await;
    let outcome = redeem(connection, &invite, joiner.peer(), "x").await;
    assert!(matches!(outcome, Err(Cause::Refused(Refusal::WrongPeer))));
    let connection = connect(&joiner, &root.address).await;
    let certificate = redeem(connection, &invite, joiner.peer(), "x")
        .await
        .unwrap();
    assert_eq!(certificate.peer, joiner.peer());
    let connection = connect(&joiner, &root.address).await;
    let again = redeem(connection, &invite, joiner.peer(), "x")
        .await
        .unwrap();
    assert_eq!(again, certificate, "it counts once");
    let second = Identity::generate();
    let connection = connect(&second, &root.address).await;
    let outcome = redeem(connection, &invite, second.peer(), "y").await;
    assert!(
        matches!(outcome, Err(Cause::RefusedByPeer(Refusal::UsedUp))),
        "{outcome:?}"
    );
}

async fn a_flood_stays_bounded(listen: &str) {
    const STRANGERS: usize = 200;
    let mut root = root(listen).await;
    let member = machine(listen, |membership| {
        let invite = root.invite(1, unix_now() + 60);
        let certificate = root
            .handle
            .membership()
            .change(|m| m.redeem(&invite, membership.peer(), "member", unix_now()))
            .unwrap();
        membership.adopt(&invite, &certificate).unwrap();
    })
    .await;
    let strangers: Vec<_> = (0..STRANGERS).map(|_| Identity::generate()).collect();
    let peers: BTreeSet<String> = strangers.iter().map(|s| s.peer().to_string()).collect();
    let mut flood = tokio::task::JoinSet::new();
    for (number, stranger) in strangers.into_iter().enumerate() {
        let address = root.address.clone();
        flood.spawn(async move {
            let mut transport = transport::direct(&stranger).unwrap();
            let mut bare = address.clone();
            bare.pop();
            let options = DialOpts {
                role: Endpoint::Dialer,
                port_use: PortUse::New,
            };
            let dial = libp2p::Transport::dial(&mut transport, bare, options).unwrap();
            let background = tokio::spawn(transport.for_each(|_| async {}));
            // Whoever finds the door full fails here already.
            if let Ok(Connection { mut muxer, .. }) = dial.await {
                let _ = on_substream(&mut muxer, true, async |exchange| {
                    match number % 3 {
                        0 => exchange.send(&Message::None).await?,
                        1 => exchange.send(&Message::Accept).await?,
                        _ => {}
                    }
                    exchange.receive().await
                })
                .await;
            }
            background.abort();
        });
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut connected = false;
    for _ in 0..20 {
        if member.handle.dial(root.address.clone()).await.is_ok() {
            connected = true;
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(connected, "a member gets through");
    let patience = Duration::from_secs(60);
    tokio::time::timeout(patience, async {
        while flood.join_next().await.is_some() {}
    })
    .await
    .unwrap();
    let lines = LINES.lock().unwrap();
    let about = lines.iter().filter(|line| peers.contains(&line.peer));
    // The flood lasts for some windows at most.
    let count = about.count();
    assert!(count >= 1 && count <= 4 * LOG_BURST as usize, "{count}");
    drop(lines);
    let known: Vec<_> = root.handle.peers().iter().map(|p| p.peer).collect();
    assert_eq!(known, [member.identity.peer()]);
    while let Some(event) = root.events.try_next() {
        if let Event::Connected { peer, .. } = event {
            assert_eq!(peer, member.identity.peer());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_stays_bounded_over_tcp() {
    a_flood_stays_bounded(TCP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_stays_bounded_over_quic() {
    a_flood_stays_bounded(QUIC).await;
}
