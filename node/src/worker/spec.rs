//! What an agent tells its worker to load, and what the worker answers. Both travel as CBOR in one message.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Everything a worker needs to load one stage; it asks nobody for more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// Folder of the OpenVINO shared libraries.
    pub libs_dir: PathBuf,
    /// Folder where the embedded bridge is unpacked, by hash.
    pub cache_dir: PathBuf,
    /// The cut stage graph (IR XML).
    pub graph: PathBuf,
    /// The model-wide sparse weights file that the graph's offsets point into.
    pub weights: PathBuf,
    /// OpenVINO device name, for example `CPU`.
    pub device: String,
    /// `exact` numerics (f32, no dynamic quantisation) instead of `fast`.
    pub exact: bool,
    /// KV pool in blocks of 32 slots, without the stage's own scratch block.
    pub blocks: u32,
    /// The stage embeds token ids.
    pub first: bool,
    /// The stage holds the final norm and lm_head, and samples.
    pub last: bool,
    /// Width of a hidden state.
    pub hidden: u32,
    /// Number of token ids.
    pub vocab: u32,
    /// First layer, and one past the last.
    pub layers: (u32, u32),
    /// Compute threads; `None` leaves the choice to the device.
    pub threads: Option<u32>,
    /// Sliding window of each layer of the stage, 0 where there is none.
    pub sliding_windows: Vec<u32>,
    /// Dynamic quantisation group for `fast`; `None` takes the engine's choice for the weights.
    pub dynamic_quantization_group: Option<u32>,
    /// KV element type: `f16`, `bf16`, `f32` or `u8`; `None` takes the numerics' default.
    pub kv: Option<String>,
    /// Inference precision hint such as `f32`; `None` takes the numerics' default.
    pub inference_precision: Option<String>,
    /// Positions that the model has.
    pub context: u32,
    /// The line this stage belongs to; frames of any other are refused.
    pub line: u64,
    /// Logits may leave this worker in debug chunks.
    pub allow_logits: bool,
    /// The worker writes to stderr how long each step took, after its answer has gone.
    pub report_steps: bool,
}

/// What was loaded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// The worker's process id.
    pub pid: u32,
    /// Time the device took to compile the stage.
    pub compile_ms: u64,
    /// Bytes of the KV tensors.
    pub kv_bytes: u64,
    /// Bytes resident in the worker after loading, where the platform tells.
    pub resident_bytes: u64,
    /// Input names of the compiled graph.
    pub inputs: Vec<String>,
    /// Operations of the runtime graph, by type.
    pub runtime_ops: BTreeMap<String, u32>,
    /// Constants of the model by element type.
    pub weight_types: BTreeMap<String, u32>,
}

/// A device as a worker saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// OpenVINO's name: `CPU`, `GPU.1`, …
    pub id: String,
    /// The marketing name.
    pub name: String,
    /// Memory that the device can use.
    pub memory_bytes: u64,
    /// Devices of one class compute bit-equal results in `exact`.
    pub class: String,
    /// Weight bytes streamed a second in one decode row of a synthetic layer, once measured.
    pub bytes_per_s: Option<f64>,
}

/// What `skein worker --probe` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// OpenVINO's own version string.
    pub version: String,
    pub devices: Vec<DeviceReport>,
}
