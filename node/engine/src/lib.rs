//! One stage of a model on one device: the only crate that knows OpenVINO.
//!
//! A worker process opens the [`Runtime`], loads one [`Stage`] and drives it through
//! [`skein_pipeline::engine::Engine`]. The stage's graph becomes a paged one here, its KV cache
//! lives here, and every input list is checked here, because OpenVINO does not.
//!
//! Not in here: block tables, scheduling, sampling (the pipeline's), where graphs and weights come
//! from (the shards'), processes and sockets (the node's).
//!
//! - [`runtime`]: opening OpenVINO and the bridge, devices, loading
//! - [`spec`]: what a stage is and the numerics it runs with
//! - [`stage`]: a loaded stage as the pipeline's engine
//! - [`check`]: the inputs of a step, checked
//! - [`report`]: what the compiled graph became
//! - [`devices`]: what this machine has, and which machines compute alike
//! - [`calibrate`]: how fast a device is, in a second
//! - `library`, `bridge`: the shared libraries and the C interface of the bridge

mod bridge;
pub mod calibrate;
pub mod check;
pub mod devices;
mod error;
mod library;
pub mod report;
pub mod runtime;
pub mod spec;
pub mod stage;

pub use calibrate::Calibration;
pub use check::InputError;
pub use devices::Device;
pub use error::EngineError;
pub use report::StageReport;
pub use runtime::Runtime;
pub use spec::{KvType, Numerics, StageSpec};
pub use stage::Stage;
