//! What can be done with or without a running agent: models, membership, the machine's check-up.
//!
//! The agent calls the functions of [`models`] and [`fleet`] on the store and the membership that
//! it holds; without an agent, [`answer`] opens them itself, which fails while anybody else has them
//! open. Nothing here starts an agent or speaks to one.

pub mod doctor;
pub mod fleet;
pub mod models;

use std::time::{Duration, Instant};

use serde::Serialize;
use skein_shards::store::{Store, StoreError};

use crate::{
    control::{Command, Event, EventSink},
    error::{Error, Result},
    paths::Home,
};

/// Events that wait for the terminal.
const EVENT_QUEUE: usize = 256;

/// How long a command waits for another one that has the store: looking something up is a matter
/// of moments, and who imports for minutes is better told of.
const STORE_WAIT: Duration = Duration::from_secs(5);

/// How often to look again meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Does a command in this process, on the home's own files.
pub async fn answer(
    home: &Home,
    command: Command,
    mut on_event: impl FnMut(Event) -> Result<()>,
) -> Result<serde_json::Value> {
    let (sink, mut events) = EventSink::channel(EVENT_QUEUE);
    let work = dispatch(home, command, sink);
    tokio::pin!(work);
    let result = loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => on_event(event)?,
            result = &mut work => break result,
        }
    };
    while let Ok(event) = events.try_recv() {
        on_event(event)?;
    }
    result
}

async fn dispatch(home: &Home, command: Command, events: EventSink) -> Result<serde_json::Value> {
    match command {
        Command::ModelAdd(request) => {
            json(models::add(open_store(home).await?, request, events).await?)
        }
        Command::ModelList => json(models::list(&open_store(home).await?)),
        Command::ModelShow { model } => json(models::show(&open_store(home).await?, &model)?),
        Command::ModelRemove { model } => {
            json(models::remove(open_store(home).await?, model).await?)
        }
        Command::Tokenize(request) => {
            json(models::tokenize(open_store(home).await?, request).await?)
        }
        // Membership has no lock of its own: whoever has the store has the home.
        Command::FleetNew { name } => {
            let _alone = open_store(home).await?;
            json(fleet::found_in(home, name).await?)
        }
        Command::Join { invite } => {
            let _alone = open_store(home).await?;
            json(fleet::join_in(home, &invite).await?)
        }
        Command::Status
        | Command::Peers
        | Command::Stop
        | Command::Plan(_)
        | Command::Ask(_)
        | Command::Logits(_)
        | Command::Stage(_)
        | Command::FleetInvite { .. }
        | Command::Runtime => Err(crate::control::no_agent(home)),
    }
}

/// Opens the home's store, alone. Another command that has it is waited for.
pub async fn open_store(home: &Home) -> Result<Store> {
    home.create()?;
    let deadline = Instant::now() + STORE_WAIT;
    loop {
        let folder = home.store_dir();
        match tokio::task::spawn_blocking(move || Store::open(folder)).await {
            Ok(Err(StoreError::Locked { .. })) if Instant::now() < deadline => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Ok(opened) => return opened.map_err(models::store_error),
            Err(error) => return Err(Error::failed(format_args!("a task broke: {error}"))),
        }
    }
}

/// Runs what blocks on the disk where it holds nobody up.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Error::failed(format_args!("a task broke: {error}"))))
}

fn json(object: impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(object).map_err(Error::failed)
}
