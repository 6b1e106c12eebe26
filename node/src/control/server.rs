//! The agent's end of the control channel.

use std::{future::Future, io, path::PathBuf, sync::Arc, time::Duration};

use interprocess::local_socket::{
    ListenerOptions,
    tokio::{Listener as LocalListener, Stream, prelude::*},
};
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt, BufReader},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use super::{
    line,
    protocol::{Command, MAX_LINE, Reply, Request},
    service::{AgentService, EventSink},
};
use crate::{
    error::{Code, Context, Error, Result},
    paths::{Home, HomeLock},
    platform,
};

/// Clients served at once: a person's terminals and scripts, not a service. More are turned away.
const MAX_CLIENTS: usize = 64;

/// Events that wait for a slow client before a sender has to wait.
const EVENT_QUEUE: usize = 256;

/// How long a client may take to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the last replies may take once the agent ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A bound control socket, with its home's lock.
#[derive(Debug)]
pub struct Listener {
    listener: LocalListener,
    path: PathBuf,
    _lock: HomeLock,
}

impl Listener {
    /// Binds the home's socket. The lock proves that a socket which is already there was left by a
    /// dead agent.
    pub fn bind(home: &Home, lock: HomeLock) -> Result<Self> {
        let path = home.socket_path();
        let doing = format!("cannot listen on {}", path.display());
        platform::prepare_control_path(&path).context(&doing)?;
        let name = platform::control_name(&path).context(&doing)?;
        let listener = ListenerOptions::new()
            .name(name)
            .create_tokio()
            .context(&doing)?;
        Ok(Self {
            listener,
            path,
            _lock: lock,
        })
    }

    /// What `ready` events call the control socket.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }
}

/// Answers clients until `shutdown` resolves, then lets the last replies out and frees the home.
pub async fn serve<S: AgentService>(
    listener: Listener,
    service: Arc<S>,
    shutdown: impl Future<Output = ()>,
) {
    let room = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut clients = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let stream = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.listener.accept() => match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a control connection could not be accepted");
                    // Out of file descriptors, most likely: a loop without a pause would burn a core.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        while clients.try_join_next().is_some() {}
        match Arc::clone(&room).try_acquire_owned() {
            Ok(permit) => {
                let service = Arc::clone(&service);
                clients.spawn(async move {
                    if let Err(error) = client(stream, &*service).await {
                        tracing::debug!(%error, "a control connection broke");
                    }
                    drop(permit);
                });
            }
            Err(_) => {
                let busy =
                    Error::failed(format_args!("{MAX_CLIENTS} commands are already running"))
                        .hint("wait for one to end");
                let _ = timeout(
                    REQUEST_TIMEOUT,
                    line::write(&mut &stream, &Reply::Error(busy), MAX_LINE),
                )
                .await;
            }
        }
    }
    let drained = timeout(DRAIN_TIMEOUT, async {
        while clients.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        clients.shutdown().await;
    }
}

/// Serves one connection: one request, its events, its end.
async fn client<S: AgentService>(stream: Stream, service: &S) -> io::Result<()> {
    let mut reader = BufReader::new(&stream);
    let mut writer = &stream;
    let request = match timeout(
        REQUEST_TIMEOUT,
        line::read::<Request>(&mut reader, MAX_LINE),
    )
    .await
    {
        Ok(Ok(Some(request))) => request,
        Ok(Ok(None)) => return Ok(()),
        Ok(Err(error)) => {
            let reply = Error::new(Code::Usage, format_args!("not a request: {error}"));
            return line::write(&mut writer, &Reply::Error(reply), MAX_LINE).await;
        }
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    };
    tracing::debug!(id = request.id, command = ?std::mem::discriminant(&request.command), "control request");

    let (sink, mut events) = EventSink::channel(EVENT_QUEUE);
    let answer = dispatch(service, request.command, sink);
    let mut surplus = [0];
    tokio::select! {
        // A client that has asked has nothing more to say: what comes is its end.
        _ = reader.read(&mut surplus) => Ok(()),
        done = async {
            tokio::pin!(answer);
            let reply = loop {
                tokio::select! {
                    biased;
                    Some(event) = events.recv() => {
                        line::write(&mut writer, &Reply::Event(event), MAX_LINE).await?;
                    }
                    answer = &mut answer => break answer,
                }
            };
            while let Ok(event) = events.try_recv() {
                line::write(&mut writer, &Reply::Event(event), MAX_LINE).await?;
            }
            let reply = reply.map_or_else(Reply::Error, Reply::Result);
            line::write(&mut writer, &reply, MAX_LINE).await
        } => done,
    }
}

async fn dispatch<S: AgentService>(
    service: &S,
    command: Command,
    events: EventSink,
) -> Result<serde_json::Value> {
    match command {
        Command::Status => json(service.status().await?),
        Command::Peers => json(service.peers().await?),
        Command::Stop => {
            service.stop().await?;
            json(crate::objects::Stopped { stopped: true })
        }
        Command::Plan(request) => json(service.plan(request).await?),
        Command::Ask(request) => json(service.ask(request, events).await?),
        Command::Logits(request) => json(service.logits(request, events).await?),
        Command::Stage(request) => json(service.stage(request, events).await?),
        Command::ModelAdd(request) => json(service.model_add(request, events).await?),
        Command::ModelList => json(service.model_list().await?),
        Command::ModelShow { model } => json(service.model_show(model).await?),
        Command::ModelRemove { model } => json(service.model_remove(model).await?),
        Command::Tokenize(request) => json(service.tokenize(request).await?),
        Command::FleetNew { name } => json(service.fleet_new(name).await?),
        Command::FleetInvite { expires_s, uses } => {
            json(service.fleet_invite(expires_s, uses).await?)
        }
        Command::Join { invite } => json(service.join(invite).await?),
        Command::Runtime => json(service.runtime().await?),
    }
}

fn json(object: impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(object).map_err(Error::failed)
}
