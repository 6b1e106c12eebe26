//! Why the engine could not do something.

use std::path::PathBuf;

use crate::check::InputError;

/// Why the runtime could not be opened, a stage not be loaded or a step not be run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A shared library could not be opened.
    #[error("{path} cannot be opened: {reason}")]
    Library {
        /// The library.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// The bridge could not be written to the cache.
    #[error("{path} cannot be written: {source}")]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// OpenVINO's own words, or the bridge's about it.
    #[error("OpenVINO: {0}")]
    OpenVino(String),
    /// The stage's description contradicts itself.
    #[error("{0}")]
    Spec(String),
    /// A step's inputs contradict each other or the stage.
    #[error("the step was refused: {0}")]
    Input(#[from] InputError),
}
