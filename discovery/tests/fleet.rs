//! Fleets of a few members on loopback: finding each other, adverts, streams, requests, restarts.

use skein_discovery::{
    AdvertBody, Event, Events, Handle, Identity, Invite, Membership, Multiaddr, PeerEntry, PeerId,
    Refusal, SharedMembership, StreamError, Swarm, SwarmConfig,
    join::JoinError,
    rpc,
    streams::INCOMING_QUEUE,
    swarm::{DialError, RequestError, SwarmError},
};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};

const TCP: &str = "/ip4/127.0.0.1/tcp/0";
const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";
/// For what takes milliseconds on an idle machine.
const SOON: Duration = Duration::from_secs(20);

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// An address without the peer at its end.
fn plain(address: &Multiaddr) -> Multiaddr {
    let text = address.to_string();
    text.split("/p2p/").next().unwrap().parse().unwrap()
}

struct Member {
    handle: Handle,
    events: Events,
    home: tempfile::TempDir,
}

/// An agent's network in `home`, as it is or was.
async fn start(home: tempfile::TempDir, listen: &str) -> Member {
    start_with(home, |config| config.listen = vec![listen.parse().unwrap()]).await
}

async fn start_with(home: tempfile::TempDir, adjust: impl FnOnce(&mut SwarmConfig)) -> Member {
    let identity = Identity::load_or_create(&home.path().join("key")).unwrap();
    let membership = Membership::open(home.path(), identity.peer()).unwrap();
    let mut config = SwarmConfig {
        mdns: false,
        home: Some(home.path().to_owned()),
        advert_every: Duration::from_secs(1),
        advert_lifetime: Duration::from_secs(4),
        ..SwarmConfig::default()
    };
    adjust(&mut config);
    let membership = SharedMembership::new(membership);
    let (handle, events) = Swarm::spawn(identity, membership, config).await.unwrap();
    Member {
        handle,
        events,
        home,
    }
}

async fn loner(listen: &str) -> Member {
    start(tempfile::tempdir().unwrap(), listen).await
}

/// The first member. It founds its fleet while its network runs already.
async fn root(listen: &str) -> Member {
    let member = loner(listen).await;
    member
        .handle
        .membership()
        .change(|membership| membership.found("home", "root", now()))
        .unwrap();
    member
}

/// One more member, who joins by invite while its network runs already.
async fn joined(root: &Member, listen: &str, name: &str) -> Member {
    let invite = root.handle.invite(now() + 60, 1).await.unwrap();
    let member = loner(listen).await;
    member.join(&invite, name).await;
    member
}

impl Member {
    async fn join(&self, invite: &Invite, name: &str) {
        let certificate = self.handle.redeem(invite, name).await.unwrap();
        self.handle
            .membership()
            .change(|membership| membership.adopt(invite, &certificate))
            .unwrap();
        self.handle.learn(invite.addresses.clone()).await;
    }

    fn peer(&self) -> PeerId {
        self.handle.peer()
    }

    fn address(&self) -> Multiaddr {
        self.handle.addresses().remove(0)
    }

    async fn say(&self, state: &str) {
        let body = AdvertBody {
            name: format!("machine {state}"),
            state: state.to_owned(),
            ..AdvertBody::default()
        };
        self.handle.publish(body).await;
    }

    /// Waits until what is known about `peer` satisfies `condition`, and says for how long.
    async fn sees(&self, peer: PeerId, condition: impl Fn(&PeerEntry) -> bool) -> Duration {
        let start = Instant::now();
        loop {
            let peers = self.handle.peers();
            if peers.iter().any(|e| e.peer == peer && condition(e)) {
                return start.elapsed();
            }
            assert!(start.elapsed() < SOON, "still {peers:#?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn sees_state(&self, other: &Member, state: &str) -> Duration {
        self.sees(other.peer(), |entry| {
            entry.fresh
                && entry
                    .advert
                    .as_ref()
                    .is_some_and(|advert| advert.body.state == state)
        })
        .await
    }

    async fn stop(self) -> tempfile::TempDir {
        self.handle.shutdown().await;
        self.home
    }
}

async fn three_members_see_each_other(listen: &str) {
    let root = root(listen).await;
    root.say("one").await;
    let second = joined(&root, listen, "second").await;
    second.say("two").await;
    second.sees_state(&root, "one").await;
    root.sees_state(&second, "two").await;
    let third = joined(&root, listen, "third").await;
    third.say("three").await;
    // The third was told of the root by its invite, and finds the second through it.
    let members = [&root, &second, &third];
    for member in members {
        for (other, state) in members.iter().zip(["one", "two", "three"]) {
            if other.peer() != member.peer() {
                member.sees_state(other, state).await;
                member.sees(other.peer(), |entry| entry.connected).await;
            }
        }
    }
    let entries = third.handle.peers();
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().all(|e| e.name.starts_with("machine")));
    // A change reaches everybody at once, not at the next repetition.
    second.say("changed").await;
    root.sees_state(&second, "changed").await;
    third.sees_state(&second, "changed").await;
    third.sees(root.peer(), |entry| entry.rtt.is_some()).await;

    let mut incoming = third.handle.accept("/skein/test/1").await.unwrap();
    for opener in [&root, &second] {
        let mut out = opener
            .handle
            .open_stream(third.peer(), "/skein/test/1")
            .await
            .unwrap();
        let (from, mut into) = timeout(SOON, incoming.next()).await.unwrap().unwrap();
        assert_eq!(from, opener.peer());
        let data: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7) as u8).collect();
        let sending = async {
            out.write_all(&data).await.unwrap();
            out.shutdown().await.unwrap();
            let mut answer = String::new();
            out.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let receiving = async {
            let mut received = Vec::new();
            into.read_to_end(&mut received).await.unwrap();
            into.write_all(b"thanks").await.unwrap();
            into.shutdown().await.unwrap();
            received
        };
        let (answer, received) = tokio::join!(sending, receiving);
        assert_eq!(answer, "thanks");
        assert!(received == data);
    }
    for member in [root, second, third] {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_see_each_other_over_tcp() {
    three_members_see_each_other(TCP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_see_each_other_over_quic() {
    three_members_see_each_other(QUIC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_sees_the_adverts_of_whom_it_connects_to_within_a_second() {
    let root = root(TCP).await;
    root.say("here").await;
    let invite = root.handle.invite(now() + 60, 1).await.unwrap();
    let newcomer = loner(TCP).await;
    newcomer.say("new").await;
    let certificate = newcomer.handle.redeem(&invite, "new").await.unwrap();
    newcomer
        .handle
        .membership()
        .change(|membership| membership.adopt(&invite, &certificate))
        .unwrap();
    newcomer.handle.dial(root.address()).await.unwrap();
    let waited = newcomer.sees_state(&root, "here").await;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    let waited = root.sees_state(&newcomer, "new").await;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_joiner_bootstraps_at_a_member_while_the_root_goes_away() {
    let root = root(TCP).await;
    let second = joined(&root, TCP, "second").await;
    second.say("two").await;
    root.sees(second.peer(), |e| e.connected && !e.addresses.is_empty())
        .await;
    let invite = root.handle.invite(now() + 60, 1).await.unwrap();
    assert!(invite.addresses.len() >= 2, "a member is named too");
    let fourth = loner(TCP).await;
    let certificate = fourth.handle.redeem(&invite, "fourth").await.unwrap();
    fourth
        .handle
        .membership()
        .change(|membership| membership.adopt(&invite, &certificate))
        .unwrap();
    let root_peer = root.peer();
    root.stop().await;
    second.sees(root_peer, |entry| !entry.connected).await;
    let peer = fourth.handle.dial(second.address()).await.unwrap();
    assert_eq!(peer, second.peer());
    fourth.sees_state(&second, "two").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_fails_clearly_when_the_root_is_away_or_says_no() {
    let root = root(TCP).await;
    let invite = root.handle.invite(now() + 60, 1).await.unwrap();
    let late = root.handle.invite(now() + 1, 1).await.unwrap();
    let first = loner(TCP).await;
    first.join(&invite, "first").await;
    let second = loner(QUIC).await;
    let error = second.handle.redeem(&invite, "second").await.unwrap_err();
    assert!(
        matches!(error, JoinError::Refused(Refusal::UsedUp)),
        "{error}"
    );
    sleep(Duration::from_millis(1100)).await;
    let error = second.handle.redeem(&late, "second").await.unwrap_err();
    assert!(
        matches!(error, JoinError::Refused(Refusal::ExpiredInvite)),
        "{error}"
    );
    let error = second.handle.dial(root.address()).await.unwrap_err();
    assert!(
        matches!(error, DialError::RefusedByPeer(Refusal::NoCertificate)),
        "{error}"
    );
    let fresh = root.handle.invite(now() + 60, 1).await.unwrap();
    root.stop().await;
    let error = second.handle.redeem(&fresh, "second").await.unwrap_err();
    assert!(matches!(error, JoinError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    assert!(error.to_string().contains("/tcp/"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_keeps_its_identity_over_a_restart_and_finds_the_fleet_again() {
    let root = root(TCP).await;
    root.say("here").await;
    let mut second = joined(&root, TCP, "second").await;
    second.say("first life").await;
    root.sees_state(&second, "first life").await;
    second.sees(root.peer(), |entry| entry.connected).await;
    let saw_connection = async {
        loop {
            if let Some(Event::Connected { peer, name, .. }) = second.events.next().await {
                return (peer, name);
            }
        }
    };
    let (peer, name) = timeout(SOON, saw_connection).await.unwrap();
    assert_eq!((peer, name.as_str()), (root.peer(), "root"));
    let peer = second.peer();
    let home = second.stop().await;
    root.sees(peer, |entry| !entry.connected).await;
    root.sees(peer, |entry| !entry.fresh).await;
    // Nobody tells it where the root is: its address book does.
    let second = start(home, TCP).await;
    assert_eq!(second.peer(), peer);
    second.say("second life").await;
    second.sees_state(&root, "here").await;
    root.sees_state(&second, "second life").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_reconnect_by_themselves_when_a_port_comes_back() {
    let root = root(TCP).await;
    let second = joined(&root, TCP, "second").await;
    second.sees(root.peer(), |entry| entry.connected).await;
    let address = root.address();
    let bare = plain(&address);
    let peer = root.peer();
    let home = root.stop().await;
    second.sees(peer, |entry| !entry.connected).await;
    let root = start(home, &bare.to_string()).await;
    let waited = second.sees(peer, |entry| entry.connected).await;
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    drop(root);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_answered_bounded_and_fail_clearly() {
    let root = root(TCP).await;
    let mut second = joined(&root, QUIC, "second").await;
    let (asker, peer) = (root.handle.clone(), second.peer());
    root.sees(peer, |entry| entry.connected).await;
    let answering = tokio::spawn(async move {
        while let Some(event) = second.events.next().await {
            if let Event::Request {
                body, responder, ..
            } = event
            {
                match body.as_slice() {
                    b"drop" => drop(responder),
                    b"large" => responder.reply(vec![0; rpc::MAX_MESSAGE_BYTES + 1]),
                    _ => responder.reply(body.into_iter().rev().collect()),
                }
            }
        }
    });
    assert_eq!(asker.request(peer, b"abc".to_vec()).await.unwrap(), b"cba");
    let largest = vec![7; rpc::MAX_MESSAGE_BYTES];
    assert!(asker.request(peer, largest.clone()).await.unwrap() == largest);
    assert!(matches!(
        asker
            .request(peer, vec![0; rpc::MAX_MESSAGE_BYTES + 1])
            .await,
        Err(RequestError::TooLarge(_))
    ));
    for bad in ["drop", "large"] {
        let outcome = timeout(SOON, asker.request(peer, bad.into()))
            .await
            .unwrap();
        assert!(
            matches!(
                outcome,
                Err(RequestError::Failed(..) | RequestError::NotConnected(..))
            ),
            "{bad}: {outcome:?}"
        );
    }
    let many = (0..50u8).map(|i| asker.request(peer, vec![i, 0]));
    for (i, answer) in futures::future::join_all(many)
        .await
        .into_iter()
        .enumerate()
    {
        assert_eq!(answer.unwrap(), [0, i as u8]);
    }
    let nobody = PeerId::random();
    assert!(matches!(
        asker.request(nobody, Vec::new()).await,
        Err(RequestError::NotConnected(..))
    ));
    answering.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_fail_clearly_and_do_not_pile_up() {
    let root = root(TCP).await;
    let second = joined(&root, TCP, "second").await;
    let peer = second.peer();
    root.sees(peer, |entry| entry.connected).await;
    let open = |protocol: &'static str| root.handle.open_stream(peer, protocol);
    assert!(matches!(
        open("/unknown/1").await,
        Err(StreamError::Unsupported(_))
    ));
    assert!(matches!(open("bad").await, Err(StreamError::NoProtocol(_))));
    let nobody = PeerId::random();
    assert!(matches!(
        root.handle.open_stream(nobody, "/x/1").await,
        Err(StreamError::NotConnected(..))
    ));
    let incoming = second.handle.accept("/slow/1").await.unwrap();
    assert!(matches!(
        second.handle.accept("/slow/1").await,
        Err(StreamError::AlreadyAccepted(_))
    ));
    // Nobody takes them: those beyond the queue are closed.
    let mut streams = Vec::new();
    for _ in 0..INCOMING_QUEUE + 1 {
        streams.push(open("/slow/1").await.unwrap());
    }
    let mut last = streams.pop().unwrap();
    let mut byte = [0];
    let outcome = timeout(SOON, last.read(&mut byte)).await.unwrap();
    assert!(!matches!(outcome, Ok(1)), "{outcome:?}");
    drop(incoming);
    assert!(matches!(
        open("/slow/1").await,
        Err(StreamError::Unsupported(_))
    ));
    second.handle.accept("/slow/1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_stays() {
    let root = root(TCP).await;
    let second = joined(&root, TCP, "second").await;
    second.sees(root.peer(), |entry| entry.connected).await;
    let mut events = root.events;
    let lost = async {
        while let Some(event) = events.next().await {
            assert!(!matches!(event, Event::Disconnected { .. }), "{event:?}");
        }
    };
    assert!(timeout(Duration::from_secs(12), lost).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_shutdown_everything_says_so_and_the_port_is_free() {
    let member = root(TCP).await;
    let (handle, mut events) = (member.handle.clone(), member.events);
    let bare = plain(&handle.addresses().remove(0));
    let busy = loner(TCP).await;
    let error = busy.handle.listen(bare.clone()).await.unwrap_err();
    assert!(matches!(error, SwarmError::Listen { .. }), "{error}");
    handle.shutdown().await;
    handle.shutdown().await;
    assert!(matches!(
        handle.listen(TCP.parse().unwrap()).await,
        Err(SwarmError::ShutDown)
    ));
    assert!(matches!(
        handle.open_stream(busy.peer(), "/x/1").await,
        Err(StreamError::ShutDown)
    ));
    while timeout(SOON, events.next()).await.unwrap().is_some() {}
    busy.handle.listen(bare.clone()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relayed_connection_passes_the_same_gate() {
    let wide_area = |config: &mut SwarmConfig| {
        config.wide_area = true;
        config.listen = vec![TCP.parse().unwrap()];
    };
    let home = || tempfile::tempdir().unwrap();
    // A relay has to know that it can be reached.
    let relay = start_with(home(), wide_area).await;
    let address = relay.address();
    let relay = start_with(relay.stop().await, |config| {
        config.wide_area = true;
        config.listen = vec![plain(&address)];
        config.external = vec![plain(&address)];
    })
    .await;
    relay
        .handle
        .membership()
        .change(|membership| membership.found("home", "relay", now()))
        .unwrap();
    // One that nobody can dial, and one that has never heard of it.
    let hidden = start_with(home(), |config| config.wide_area = true).await;
    let other = start_with(home(), |config| config.wide_area = true).await;
    for (member, name) in [(&hidden, "hidden"), (&other, "other")] {
        let invite = relay.handle.invite(now() + 60, 1).await.unwrap();
        let certificate = member.handle.redeem(&invite, name).await.unwrap();
        member
            .handle
            .membership()
            .change(|membership| membership.adopt(&invite, &certificate))
            .unwrap();
        member.handle.dial(address.clone()).await.unwrap();
    }
    let circuit = address.clone().with(
        "/p2p-circuit"
            .parse::<Multiaddr>()
            .unwrap()
            .iter()
            .next()
            .unwrap(),
    );
    let circuit = hidden.handle.listen(circuit).await.unwrap();
    let mut incoming = hidden.handle.accept("/skein/test/1").await.unwrap();
    let peer = other.handle.dial(circuit).await.unwrap();
    assert_eq!(peer, hidden.peer());
    let mut stream = other
        .handle
        .open_stream(peer, "/skein/test/1")
        .await
        .unwrap();
    stream.write_all(b"far away").await.unwrap();
    stream.shutdown().await.unwrap();
    let (from, mut stream) = timeout(SOON, incoming.next()).await.unwrap().unwrap();
    assert_eq!(from, other.peer());
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "far away");
}
