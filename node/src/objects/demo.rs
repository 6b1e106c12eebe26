//! What the demo saw.

use serde::{Deserialize, Serialize};

use super::{Numerics, Stage};

/// `skein demo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Demo {
    /// The model it ran.
    pub model: DemoModel,
    /// The prompt.
    pub prompt: String,
    /// The answer across the line.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Always `exact`.
    pub numerics: Numerics,
    /// Milliseconds to the first token.
    pub ttft_ms: Option<f64>,
    /// Tokens per second after the first.
    pub tokens_per_s: Option<f64>,
    /// The line that answered.
    pub nodes: Vec<Stage>,
    /// The agent that pulled from a member after the root had stopped.
    pub late_joiner: Stage,
    /// The same prompt answered by one fresh process.
    pub single_node_tokens: Vec<u32>,
    /// Whether the two agree.
    pub identical_to_single_node: bool,
    /// Worker processes of the line that took steps.
    pub workers_that_stepped: usize,
}

/// The demo's model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemoModel {
    /// Model id.
    pub id: String,
    /// Model name.
    pub name: String,
}
