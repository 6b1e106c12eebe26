//! What an agent answers, as a trait, and how it tells its asker about the way there.

use std::{future::Future, sync::Arc};

use tokio::sync::mpsc;

use super::protocol::{
    AddModel, AskRequest, Event, LogitsRequest, LogitsSummary, PlanRequest, RuntimeReport,
    StageRequest, TokenizeRequest,
};
use crate::{
    error::{Error, Result},
    objects,
};

/// What an agent can be asked. The control server calls it; the agent implements it.
///
/// A future that is dropped was cancelled by its asker: it must leave nothing running. Work that
/// goes on elsewhere (a blocking import, a request in a line) watches its [`EventSink`] instead:
/// the sink closes at the same moment.
pub trait AgentService: Send + Sync + 'static {
    /// This agent as it is now.
    fn status(&self) -> impl Future<Output = Result<objects::Status>> + Send;
    /// The other members it sees.
    fn peers(&self) -> impl Future<Output = Result<Vec<objects::Peer>>> + Send;
    /// Begins to end the agent and returns at once; the reply is sent before the agent is gone.
    fn stop(&self) -> impl Future<Output = Result<()>> + Send;
    /// Who would carry what.
    fn plan(&self, request: PlanRequest) -> impl Future<Output = Result<objects::Plan>> + Send;
    /// Answers a prompt; sends [`Event::Line`] once the line stands, then [`Event::Text`].
    fn ask(
        &self,
        request: AskRequest,
        events: EventSink,
    ) -> impl Future<Output = Result<objects::Ask>> + Send;
    /// Sends every row with [`EventSink::logits`], in order.
    fn logits(
        &self,
        request: LogitsRequest,
        events: EventSink,
    ) -> impl Future<Output = Result<LogitsSummary>> + Send;
    /// Prepares one stage outside any line and gives it back.
    fn stage(
        &self,
        request: StageRequest,
        events: EventSink,
    ) -> impl Future<Output = Result<objects::Stage>> + Send;
    /// Imports a model: [`local::models::add`](crate::local::models::add).
    fn model_add(
        &self,
        request: AddModel,
        events: EventSink,
    ) -> impl Future<Output = Result<objects::Model>> + Send;
    /// [`local::models::list`](crate::local::models::list).
    fn model_list(&self) -> impl Future<Output = Result<Vec<objects::Model>>> + Send;
    /// [`local::models::show`](crate::local::models::show).
    fn model_show(&self, model: String) -> impl Future<Output = Result<objects::Model>> + Send;
    /// [`local::models::remove`](crate::local::models::remove).
    fn model_remove(&self, model: String) -> impl Future<Output = Result<objects::Removed>> + Send;
    /// [`local::models::tokenize`](crate::local::models::tokenize).
    fn tokenize(
        &self,
        request: TokenizeRequest,
    ) -> impl Future<Output = Result<objects::Tokenized>> + Send;
    /// Founds a fleet with this machine at its root.
    fn fleet_new(
        &self,
        name: Option<String>,
    ) -> impl Future<Output = Result<objects::FleetId>> + Send;
    /// Signs an invite; refused where this machine is not the root.
    fn fleet_invite(
        &self,
        expires_s: u64,
        uses: u32,
    ) -> impl Future<Output = Result<objects::Invite>> + Send;
    /// Redeems an invite.
    fn join(&self, invite: String) -> impl Future<Output = Result<objects::Joined>> + Send;
    /// The agent's part of the check-up.
    fn runtime(&self) -> impl Future<Output = Result<RuntimeReport>> + Send;
}

/// The asker is no longer there; whoever sees this stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the asker went away")]
pub struct AskerGone;

impl From<AskerGone> for Error {
    fn from(_: AskerGone) -> Self {
        Self::interrupted()
    }
}

/// Where a service tells its asker what happens on the way. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventSink {
    sender: Option<Arc<mpsc::Sender<Event>>>,
}

impl EventSink {
    /// A sink and its other end, with room for `capacity` events.
    pub fn channel(capacity: usize) -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (
            Self {
                sender: Some(Arc::new(sender)),
            },
            receiver,
        )
    }

    /// A sink that nobody listens to and that never closes.
    pub fn ignored() -> Self {
        Self { sender: None }
    }

    /// Sends an event that must arrive, waiting for room.
    pub async fn send(&self, event: Event) -> Result<(), AskerGone> {
        match &self.sender {
            Some(sender) => sender.send(event).await.map_err(|_| AskerGone),
            None => Ok(()),
        }
    }

    /// Sends an event that must arrive, from a thread outside the runtime.
    pub fn blocking_send(&self, event: Event) -> Result<(), AskerGone> {
        match &self.sender {
            Some(sender) => sender.blocking_send(event).map_err(|_| AskerGone),
            None => Ok(()),
        }
    }

    /// Says how far a task is, from anywhere; left out when the asker is slow.
    pub fn progress(
        &self,
        task: &str,
        done: u64,
        total: u64,
        bytes: bool,
    ) -> Result<(), AskerGone> {
        self.try_send(Event::Progress {
            task: task.into(),
            done,
            total,
            bytes,
        })
    }

    /// Tells something in words; left out when the asker is slow.
    pub fn note(&self, message: impl Into<String>) -> Result<(), AskerGone> {
        self.try_send(Event::Note {
            message: message.into(),
        })
    }

    /// Sends one row of logits.
    pub async fn logits(&self, row: u32, values: &[f32]) -> Result<(), AskerGone> {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let values = data_encoding::BASE64.encode(&bytes);
        self.send(Event::Logits { row, values }).await
    }

    /// Whether the asker went away.
    pub fn is_closed(&self) -> bool {
        self.sender
            .as_ref()
            .is_some_and(|sender| sender.is_closed())
    }

    /// Waits until the asker goes away.
    pub async fn closed(&self) {
        match &self.sender {
            Some(sender) => sender.closed().await,
            None => std::future::pending().await,
        }
    }

    fn try_send(&self, event: Event) -> Result<(), AskerGone> {
        match self.sender.as_ref().map(|sender| sender.try_send(event)) {
            Some(Err(mpsc::error::TrySendError::Closed(_))) => Err(AskerGone),
            _ => Ok(()),
        }
    }
}
