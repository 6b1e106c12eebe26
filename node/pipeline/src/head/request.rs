//! What is asked of a head and what it tells back.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sample::{Sampling, SamplingError};

/// Names a request; chosen by whoever submits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// One answer to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Its name; free again once it has finished.
    pub id: RequestId,
    /// Tokens to continue, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to generate; the context may end it earlier. 0 finishes at once.
    pub max_tokens: usize,
    /// Tokens that end the answer and are not part of it; empty to ignore the model's own.
    pub stop_ids: Vec<u32>,
    /// Return the logits of every position that is fed (debug). With `max_tokens` 0 that is the
    /// prompt alone.
    pub collect_logits: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model chose a stop token.
    Stop,
    /// `max_tokens` or the context is used up.
    Length,
    /// Its asker gave it up.
    Cancelled,
    /// The line failed.
    Error,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum HeadEvent {
    /// A token of the answer.
    Token {
        /// The request.
        request: RequestId,
        /// Index in the answer, from 0.
        index: usize,
        /// The token.
        token: u32,
        /// Its log-probability under the softmax of the logits.
        logprob: f32,
        /// Most probable tokens, best first, where asked for.
        top: Vec<(u32, f32)>,
    },
    /// Part of the logits after one position; all of them come before the request finishes.
    Logits {
        /// The request.
        request: RequestId,
        /// Position of the token that was fed.
        position: u32,
        /// Length of a whole row.
        vocab: u32,
        /// Where in that row `values` begin.
        offset: u32,
        /// The values.
        values: Vec<f32>,
    },
    /// The last event of a request.
    Finished {
        /// The request.
        request: RequestId,
        /// Why.
        reason: FinishReason,
    },
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SubmitError {
    /// There is nothing to continue.
    #[error("prompt has no tokens")]
    EmptyPrompt,
    /// The prompt alone fills the context.
    #[error("prompt of {prompt} tokens leaves no room in a context of {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The line's KV cache is too small for it, even with nothing else running.
    #[error("request needs KV cache for {needed} tokens, the line has room for {available}")]
    NeverFits {
        /// Slots that prompt and answer may need.
        needed: usize,
        /// Slots of the line.
        available: usize,
    },
    /// Too many requests are waiting.
    #[error("{waiting} requests are waiting already")]
    QueueFull {
        /// How many wait.
        waiting: usize,
    },
    /// A request of that name has not finished.
    #[error("request {0:?} has not finished")]
    Duplicate(RequestId),
    /// Sampling parameters that cannot be honoured.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}
