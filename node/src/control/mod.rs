//! The local channel between the command line and a running agent.
//!
//! One connection carries one request: a line of JSON `{"id"?, "command", "args"?}` from the
//! client, then lines `{"event": …}` from the agent, then one `{"result": …}` or `{"error": …}`.
//! Closing the connection cancels. Lines, queues and clients are bounded. What a command means is
//! not decided here: the server calls an [`AgentService`].

mod client;
mod line;
mod protocol;
mod server;
mod service;

pub use client::{Client, call, no_agent};
pub use protocol::{
    AddModel, AskRequest, ChatMessage, Command, Event, LogitsRequest, LogitsSummary, MAX_LINE,
    PlanRequest, Prompt, Reply, Request, RuntimeReport, StageRequest, TokenizeInput,
    TokenizeRequest,
};
pub use server::{Listener, serve};
pub use service::{AgentService, AskerGone, EventSink};
