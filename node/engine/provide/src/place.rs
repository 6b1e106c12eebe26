//! Where downloads go, and what the environment says about it.

use std::ffi::OsString;
use std::path::PathBuf;

use super::error::ProvideError;

/// Environment variables that decide where things are provided from. A build script that uses this
/// crate reruns when one of them changes.
pub const VARIABLES: [&str; 2] = ["OPENVINO_DIR", "SKEIN_CACHE"];

/// What the process's surroundings say; a value, so that tests can make their own.
#[derive(Clone, Debug)]
pub struct Env {
    /// `OPENVINO_DIR`, unless unset or empty.
    pub openvino_dir: Option<PathBuf>,
    /// `SKEIN_CACHE`, else the platform's cache folder; `None` when neither exists.
    pub cache: Option<PathBuf>,
    /// The interpreter that is asked for an installed OpenVINO and fetches with its pip.
    pub python: OsString,
}

impl Env {
    /// What this process's environment says.
    pub fn of_process() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            openvino_dir: set("OPENVINO_DIR").map(PathBuf::from),
            cache: set("SKEIN_CACHE").map(PathBuf::from).or_else(|| {
                directories::ProjectDirs::from("", "", "skein")
                    .map(|places| places.cache_dir().to_path_buf())
            }),
            python: "python3".into(),
        }
    }

    /// The cache folder, made absolute; it need not exist yet.
    pub fn cache_dir(&self) -> Result<PathBuf, ProvideError> {
        let cache = self.cache.as_ref().ok_or(ProvideError::NoCache)?;
        std::path::absolute(cache).map_err(|source| ProvideError::Io {
            path: cache.clone(),
            verb: "read",
            source,
        })
    }
}

/// The folder for downloads that every agent of this machine may share: `SKEIN_CACHE`, else the
/// platform's cache folder.
pub fn cache_dir() -> Result<PathBuf, ProvideError> {
    Env::of_process().cache_dir()
}
