//! Models in the store, and text as their tokens.

use serde::{Deserialize, Serialize};

/// One entry of `skein model ls`, or `skein model show` and `add`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Hash of the manifest.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Architecture, such as `llama` or `qwen2`.
    pub family: String,
    /// Number of layers.
    pub layers: u32,
    /// Width of the hidden state.
    pub hidden: u32,
    /// Number of tokens in the vocabulary.
    pub vocab: u32,
    /// Longest context it was made for, in tokens.
    pub context: u32,
    /// How the weights are stored.
    pub weights: String,
    /// Bytes of all segments.
    pub bytes: u64,
    /// Its parts, in canonical order.
    pub segments: Vec<Segment>,
    /// Tokens that end an answer.
    pub stop_ids: Vec<u32>,
    /// Licence as the file names it.
    pub license: Option<String>,
    /// Where it came from.
    pub source: Option<String>,
}

/// One part of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// `common`, `embedding`, `layer.N` or `head`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 of its bytes.
    pub hash: String,
    /// Whether this machine has all of it.
    pub held: bool,
}

/// `skein model rm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Model id.
    pub id: String,
    /// Model name.
    pub name: String,
    /// Bytes of disk given back.
    pub freed_bytes: u64,
}

/// `skein model tokenize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokenized {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Each token as text; a byte sequence that is not text shows U+FFFD.
    pub tokens: Vec<String>,
    /// What was encoded; with a chat, the rendered prompt.
    pub text: String,
}

/// How weights are stored.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// `int8` for models under a billion parameters, `int4` above.
    #[default]
    Auto,
    /// Four bits in groups.
    Int4,
    /// Eight bits, one scale a row.
    Int8,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}
