//! The answer to one prompt.

use serde::{Deserialize, Serialize};

use super::Stage;

/// `skein ask`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// Model id.
    pub model: String,
    /// The whole answer.
    pub text: String,
    /// Its tokens, without the end token.
    pub tokens: Vec<u32>,
    /// How many tokens the prompt had.
    pub prompt_tokens: u32,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// With `error`: which machine left, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How it was computed.
    pub numerics: Numerics,
    /// Epoch of the line that answered.
    pub epoch: u64,
    /// Milliseconds from the request to the first token.
    pub ttft_ms: Option<f64>,
    /// `(n − 1) / (last − first)` over the tokens' times; `null` with fewer than two tokens.
    pub tokens_per_s: Option<f64>,
    /// The seed that repeats this answer.
    pub seed: u64,
    /// The stages that computed it, first to last.
    pub pipeline: Vec<Stage>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// The token limit or the context was reached.
    Length,
    /// The asker went away.
    Cancelled,
    /// The line failed.
    Error,
}

/// How the arithmetic is done.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Numerics {
    /// The device's own defaults.
    #[default]
    Fast,
    /// The same bits however the model is split and requests are batched.
    Exact,
}

impl FinishReason {
    /// The word of the contract.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }
}

impl Numerics {
    /// `fast` or `exact`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Exact => "exact",
        }
    }
}
