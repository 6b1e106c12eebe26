//! What a stage is: its files, its shape, and the numerics it runs with.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// How numbers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numerics {
    /// The device's own precision, quantised activations, a compact KV cache.
    Fast,
    /// f32 throughout. With a fixed number of rows a step and at least two rows a sequence, the same
    /// tokens give the same bits on every device of one class.
    Exact,
}

/// Element type of the KV cache in [`Numerics::Fast`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// Half precision.
    #[default]
    F16,
    /// Half precision with the range of f32.
    Bf16,
    /// Full precision.
    F32,
    /// Quantised; drifts when a partly filled block is written again, and cannot move slots.
    U8,
}

impl KvType {
    fn property(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::U8 => "u8",
        }
    }
}

/// Group size of quantised activations unless a stage says another; as the weights' own groups.
const DYNAMIC_QUANTIZATION_GROUP: u32 = 128;

/// Everything that a stage is loaded from.
#[derive(Clone, Debug)]
pub struct StageSpec<'a> {
    /// The stage's stateful graph.
    pub xml: &'a Path,
    /// The file that the graph's constants lie in.
    pub weights: &'a Path,
    /// A device id, such as `CPU` or `GPU.1`.
    pub device: &'a str,
    /// How numbers are computed.
    pub numerics: Numerics,
    /// Logical blocks of 32 KV slots that sequences may use. One scratch block is added, whose id is
    /// this number.
    pub blocks: usize,
    /// The stage embeds token ids; else it takes hidden states.
    pub first: bool,
    /// The stage returns logits of the sampled rows; else hidden states of all rows.
    pub last: bool,
    /// Width of a hidden state.
    pub hidden: usize,
    /// Width of a row of logits; token ids are below it.
    pub vocab: usize,
    /// The model's layers that the stage has.
    pub layers: Range<u32>,
    /// Element type of the KV cache; [`Numerics::Exact`] uses f32 instead.
    pub kv: KvType,
    /// Threads to compute with; the device decides when `None`.
    pub threads: Option<usize>,
    /// Group size of quantised activations in [`Numerics::Fast`]; 0 turns quantisation off.
    pub dynamic_quantization_group: Option<u32>,
    /// Precision of activations in [`Numerics::Fast`], such as `f32` or `bf16`; the device decides
    /// when `None`.
    pub inference_precision: Option<String>,
    /// Sliding window of each layer of the stage, 0 where a layer attends to everything; empty when
    /// every layer does.
    pub sliding_windows: Vec<u32>,
}

impl StageSpec<'_> {
    /// The device's properties that follow from the numerics.
    pub fn properties(&self) -> Vec<(&'static str, String)> {
        let mut properties = vec![
            ("PERFORMANCE_HINT", "LATENCY".into()),
            ("NUM_STREAMS", "1".into()),
        ];
        match self.numerics {
            Numerics::Exact => {
                properties.push(("INFERENCE_PRECISION_HINT", "f32".into()));
                properties.push(("KV_CACHE_PRECISION", "f32".into()));
                properties.push(("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0".into()));
            }
            Numerics::Fast => {
                if let Some(precision) = &self.inference_precision {
                    properties.push(("INFERENCE_PRECISION_HINT", precision.clone()));
                }
                let group = self
                    .dynamic_quantization_group
                    .unwrap_or(DYNAMIC_QUANTIZATION_GROUP);
                properties.push(("KV_CACHE_PRECISION", self.kv.property().into()));
                properties.push(("DYNAMIC_QUANTIZATION_GROUP_SIZE", group.to_string()));
            }
        }
        if self.device.starts_with("CPU") {
            // A pinned thread cannot step aside for the owner's programs or another worker.
            properties.push(("ENABLE_CPU_PINNING", "NO".into()));
            if let Some(threads) = self.threads {
                properties.push(("INFERENCE_NUM_THREADS", threads.to_string()));
            }
        }
        properties
    }
}
