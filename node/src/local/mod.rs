//! What can be done with or without a running agent: models, membership, the machine's check-up.
//!
//! The agent calls the functions of [`models`] and [`fleet`] on the store and the membership that
//! it holds; without an agent, [`answer`] opens them itself, which fails while anybody else has them
//! open. Nothing here starts an agent or speaks to one.

pub mod doctor;
pub mod models;

use serde::Serialize;
use skein_shards::store::Store;

use crate::{
    control::{Command, Event, EventSink},
    error::{Error, Result},
    paths::Home,
};

/// Events that wait for the terminal.
const EVENT_QUEUE: usize = 256;

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

async fn dispatch(home: &Home, command: Command, _events: EventSink) -> Result<serde_json::Value> {
    match command {
        Command::ModelList => json(models::list(&store(home).await?)),
        Command::ModelShow { model } => json(models::show(&store(home).await?, &model)?),
        Command::ModelRemove { model } => json(models::remove(store(home).await?, model).await?),
        _ => Err(crate::control::no_agent(home)),
    }
}

/// Opens the home's store, alone.
async fn store(home: &Home) -> Result<Store> {
    home.create()?;
    let folder = home.store_dir();
    blocking(move || Store::open(folder).map_err(models::store_error)).await
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
