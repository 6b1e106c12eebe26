//! The agent's life: start everything, wait, end everything.

use std::future::Future;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use skein_discovery::{
    Event, Events, Identity, Membership, Multiaddr, SharedMembership, Swarm, SwarmConfig,
};
use skein_shards::store::Store;
use skein_shards::transfer;
use tokio::sync::{Notify, Semaphore, watch};

use super::devices::{self, Machine};
use super::memory::MemoryAccount;
use super::serving::Serving;
use super::{Agent, Shared, announce, content, remote};
use crate::control;
use crate::error::{Context, Error, Result};
use crate::line::head::Lines;
use crate::line::hops::Hops;
use crate::line::{messages, stage};
use crate::objects::AgentEvent;
use crate::paths::Home;
use crate::platform;
use crate::settings::AgentOptions;

/// The port of an agent whose owner names no other.
const PORT: u16 = 4810;
/// Without `--memory`, this part of the machine's memory.
const DEFAULT_MEMORY_PERCENT: u64 = 50;
/// Incoming streams of one protocol that are served at once; more wait in the network's own bounded queue.
const STREAMS_AT_ONCE: usize = 64;
/// Stages get this long to leave their lines when the agent ends.
const LEAVE: Duration = Duration::from_secs(4);

/// Why an agent ends, beside being asked to.
pub struct Until {
    /// Ends with its parent's pipe: for agents that a demo or a test started.
    pub stdin_closes: bool,
}

/// Runs the agent of `options.home` until it is told to stop.
pub async fn run(options: AgentOptions, extra: Extra) -> Result<()> {
    let home = options.home.clone();
    home.create()?;
    let lock = home.lock()?;
    let identity = Identity::load_or_create(&home.identity_file()).map_err(Error::failed)?;
    let membership = SharedMembership::new(
        Membership::open(home.data_dir(), identity.peer()).map_err(Error::failed)?,
    );
    let store = open_store(&home, options.disk).await?;
    let listen = addresses(&options.listen)?;
    let loopback_only = !listen.is_empty() && listen.iter().all(is_loopback);
    let config = SwarmConfig {
        listen,
        mdns: options.mdns,
        wide_area: !loopback_only,
        home: Some(home.data_dir().to_owned()),
        ..SwarmConfig::default()
    };
    let (network, events) = Swarm::spawn(identity, membership, config)
        .await
        .map_err(Error::failed)?;
    let listener = control::Listener::bind(&home, lock)?;
    let control_path = listener.path().display().to_string();

    let cap = options
        .memory
        .unwrap_or_else(|| platform::total_memory() * DEFAULT_MEMORY_PERCENT / 100);
    let shared: Agent = Arc::new(Shared {
        peer: network.peer().to_string(),
        name: options.name.clone(),
        store,
        network,
        memory: MemoryAccount::new(cap),
        hops: Hops::default(),
        serving: Serving::default(),
        lines: Lines::default(),
        building: tokio::sync::Mutex::default(),
        machine: RwLock::new(Machine::Starting),
        tokenizers: content::Tokenizers::default(),
        changed: Notify::new(),
        withdrawal: watch::Sender::new(None),
        stop: watch::Sender::new(false),
        allow_logits: extra.allow_logits,
        options,
    });
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(announce::keep_announcing(shared.clone()));
    serve_protocols(&shared, &mut tasks).await?;
    // Whoever reads the events relies on this one being the first.
    let ready = AgentEvent::Ready {
        peer: shared.peer.clone(),
        addresses: shared
            .network
            .addresses()
            .iter()
            .map(ToString::to_string)
            .collect(),
        control: control_path,
    };
    shared.tell(&ready);
    tasks.spawn(follow_network(shared.clone(), events));
    for address in addresses(&extra.bootstrap)? {
        let network = shared.network.clone();
        tasks.spawn(async move {
            match network.dial(address.clone()).await {
                Ok(peer) => {
                    network
                        .learn(address.with_p2p(peer).into_iter().collect())
                        .await
                }
                Err(error) => tracing::warn!(%address, "cannot be bootstrapped at: {error}"),
            }
        });
    }
    let looking = shared.clone();
    tasks.spawn(async move {
        let machine = devices::look(&looking).await;
        if let Machine::Without { reason } = &machine {
            tracing::warn!("this machine cannot compute: {reason}");
            looking.tell(&AgentEvent::Note {
                message: format!("this machine cannot compute: {reason}"),
            });
        }
        *looking
            .machine
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner()) = machine;
        looking.changed.notify_one();
    });

    tracing::info!(peer = %shared.peer, "the agent is up");

    let mut stopped = shared.stop.subscribe();
    let ask_to_stop = shared.clone();
    tasks.spawn(async move {
        interrupted(extra.until.stdin_closes).await;
        ask_to_stop.stop.send_replace(true);
    });
    let service = Arc::new(super::service::Service(shared.clone()));
    control::serve(listener, service, async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    })
    .await;

    leave(&shared).await;
    tasks.shutdown().await;
    shared.tell(&AgentEvent::Stopped);
    Ok(())
}

/// What only some callers want.
pub struct Extra {
    /// Addresses of members to dial first.
    pub bootstrap: Vec<String>,
    pub allow_logits: bool,
    pub until: Until,
}

/// The home's store; a command that is just using it is waited for.
async fn open_store(home: &Home, capacity: Option<u64>) -> Result<Store> {
    let store = crate::local::open_store(home).await?;
    store.set_capacity(capacity);
    for note in store.notes() {
        tracing::warn!("{note}");
    }
    Ok(store)
}

fn addresses(texts: &[String]) -> Result<Vec<Multiaddr>> {
    texts
        .iter()
        .map(|text| {
            text.parse().map_err(|error| {
                Error::usage(format_args!("{text} is not a multiaddr: {error}"))
                    .hint("write it like /ip4/0.0.0.0/tcp/4810")
            })
        })
        .collect()
}

/// The addresses that an agent without any of its own listens on: every interface, TCP and QUIC, at [`PORT`] where
/// that is free, so that invites stay good when the agent starts again.
pub fn default_listen() -> Vec<String> {
    let any = std::net::Ipv4Addr::UNSPECIFIED;
    let tcp = std::net::TcpListener::bind((any, PORT)).map_or(0, |_| PORT);
    let udp = std::net::UdpSocket::bind((any, PORT)).map_or(0, |_| PORT);
    vec![
        format!("/ip4/0.0.0.0/tcp/{tcp}"),
        format!("/ip4/0.0.0.0/udp/{udp}/quic-v1"),
    ]
}

fn is_loopback(address: &Multiaddr) -> bool {
    let text = address.to_string();
    text.starts_with("/ip4/127.") || text.starts_with("/ip6/::1/")
}

async fn serve_protocols(shared: &Agent, tasks: &mut tokio::task::JoinSet<()>) -> Result<()> {
    accept(
        shared,
        tasks,
        content::BLOBS_PROTOCOL,
        |shared, from, stream| async move {
            if let Err(error) = transfer::serve(shared.store.clone(), stream).await {
                tracing::debug!(%from, %error, "a transfer ended early");
            }
        },
    )
    .await?;
    accept(
        shared,
        tasks,
        messages::LINE_PROTOCOL,
        |shared, from, stream| async move {
            stage::serve(shared, from, Box::new(stream)).await;
        },
    )
    .await?;
    accept(
        shared,
        tasks,
        messages::STEP_PROTOCOL,
        |shared, from, stream| async move {
            shared.hops.accept(&from, stream).await;
        },
    )
    .await?;
    accept(
        shared,
        tasks,
        remote::ASK_PROTOCOL,
        |shared, from, stream| async move {
            remote::serve(shared, from, Box::new(stream)).await;
        },
    )
    .await
}

/// Serves every incoming stream of a protocol in a task of its own, a bounded number at once.
async fn accept<F, S>(
    shared: &Agent,
    tasks: &mut tokio::task::JoinSet<()>,
    protocol: &'static str,
    serve: S,
) -> Result<()>
where
    S: Fn(Agent, String, skein_discovery::Stream) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut incoming = shared
        .network
        .accept(protocol)
        .await
        .map_err(Error::failed)
        .context(protocol)?;
    let shared = shared.clone();
    tasks.spawn(async move {
        let room = Arc::new(Semaphore::new(STREAMS_AT_ONCE));
        let mut streams = tokio::task::JoinSet::new();
        while let Some((peer, stream)) = incoming.next().await {
            while streams.try_join_next().is_some() {}
            let Ok(permit) = room.clone().acquire_owned().await else {
                return;
            };
            let served = serve(shared.clone(), peer.to_string(), stream);
            streams.spawn(async move {
                served.await;
                drop(permit);
            });
        }
    });
    Ok(())
}

async fn follow_network(shared: Agent, mut events: Events) {
    let peer_event = |peer: String, name: String, state: &str| AgentEvent::Peer {
        peer,
        name,
        state: state.to_owned(),
    };
    while let Some(event) = events.next().await {
        match event {
            Event::Listening(address) => tracing::info!(%address, "listening"),
            Event::Connected {
                peer,
                name,
                address,
            } => {
                tracing::info!(%peer, %name, %address, "connected");
                shared.changed.notify_one();
                shared.tell(&peer_event(peer.to_string(), name, "connected"));
            }
            Event::Disconnected { peer } => {
                let peer = peer.to_string();
                tracing::info!(%peer, "disconnected");
                let name = shared.name_of(&peer);
                shared.tell(&peer_event(peer, name, "disconnected"));
            }
            // No small questions are asked between members yet; the asker hears that at once.
            Event::Request {
                peer, responder, ..
            } => {
                tracing::debug!(%peer, "a request of a kind that this version does not know");
                drop(responder);
            }
        }
    }
}

/// Resolves when the agent has to end: a signal, or its parent's pipe.
async fn interrupted(stdin_closes: bool) {
    let (closed, parent) = tokio::sync::oneshot::channel();
    let mut kept = None;
    if stdin_closes {
        // Reading stdin cannot be given up, so it gets a thread that the process may end without.
        std::thread::spawn(move || {
            let mut byte = [0];
            while matches!(std::io::Read::read(&mut std::io::stdin(), &mut byte), Ok(1)) {}
            let _ = closed.send(());
        });
    } else {
        kept = Some(closed);
    }
    tokio::select! {
        () = platform::termination() => {}
        _ = parent => {}
    }
    drop(kept);
}

/// Ends the lines, gives the memory back and closes the network.
async fn leave(shared: &Agent) {
    shared
        .withdrawal
        .send_replace(Some("its agent was stopped".into()));
    let closing = async {
        for line in super::lines::serving(shared) {
            line.close("its head was stopped").await;
        }
        while !shared.serving.all().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(LEAVE, closing).await.is_err() {
        tracing::warn!("some stages did not leave in time");
    }
    if tokio::time::timeout(LEAVE, shared.network.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("the network did not close in time");
    }
}
