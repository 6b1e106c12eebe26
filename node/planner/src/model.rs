//! The sizes of a model. Not in here: names, hashes, files.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What the planner needs to know about a model. All sizes are bytes of the stored segments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Weight bytes of each layer, in order; its length is the number of layers.
    pub layer_bytes: Vec<u64>,
    /// The token embedding, which the first stage looks rows up in.
    pub embedding_bytes: u64,
    /// Final norm and lm_head, which the tail holds. With a tied embedding only what is not
    /// the embedding itself.
    pub head_bytes: u64,
    /// Whether lm_head is the embedding: the tail then holds (and reads) the embedding too.
    pub tied: bool,
    /// Constants that every stage holds.
    pub common_bytes: u64,
    /// Bytes that one token of context takes in one layer's key and value cache.
    pub kv_bytes_per_token_per_layer: u64,
    /// Width of the hidden state, in values.
    pub hidden: u32,
    /// Number of token ids, the width of the logits.
    pub vocab: u32,
}

impl ModelShape {
    /// Number of layers.
    pub fn layers(&self) -> u32 {
        u32::try_from(self.layer_bytes.len()).unwrap_or(u32::MAX)
    }

    /// Bytes of the segments that a stage over `layers` needs, each counted once.
    pub fn weights_bytes(&self, layers: &Range<u32>) -> u64 {
        let first = layers.start == 0;
        let last = layers.end == self.layers();
        let mut bytes = self.common_bytes.saturating_add(self.body_bytes(layers));
        if first || (last && self.tied) {
            bytes = bytes.saturating_add(self.embedding_bytes);
        }
        if last {
            bytes = bytes.saturating_add(self.head_bytes);
        }
        bytes
    }

    /// Bytes that a stage over `layers` reads to compute one token: its layers, and in the tail
    /// lm_head. An embedding lookup reads one row, which is left out.
    pub fn read_bytes(&self, layers: &Range<u32>) -> u64 {
        let tail = if layers.end == self.layers() {
            self.tail_read_bytes()
        } else {
            0
        };
        self.body_bytes(layers).saturating_add(tail)
    }

    /// What the tail reads for lm_head.
    pub(crate) fn tail_read_bytes(&self) -> u64 {
        let embedding = if self.tied { self.embedding_bytes } else { 0 };
        self.head_bytes.saturating_add(embedding)
    }

    fn body_bytes(&self, layers: &Range<u32>) -> u64 {
        self.layer_bytes[layers.start as usize..layers.end as usize]
            .iter()
            .fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }
}
