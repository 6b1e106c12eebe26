//! Whether this machine has what a check needs; if not, the reason that is printed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::Setup;
use crate::platform::tap;

/// Where the default model lies in the cache for downloads.
const DEFAULT_MODEL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// `Err` is the reason why namespaces cannot be made here.
pub fn namespaces() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("it needs root".to_owned());
    }
    let ip = Command::new("ip")
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !ip.is_ok_and(|status| status.success()) {
        return Err("it needs `ip` (package iproute2)".to_owned());
    }
    if !Path::new(tap::CONTROL).exists() {
        return Err(format!("it needs {}", tap::CONTROL));
    }
    Ok(())
}

/// The program under test. It is built along with this one, so its absence is a failure.
pub fn skein(setup: &Setup) -> anyhow::Result<PathBuf> {
    let path = match &setup.skein {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .context("cannot tell where this program is")?
            .with_file_name("skein"),
    };
    ensure!(
        path.is_file(),
        "there is no program {}; build it with `cargo build --release -p skein` or name it with --skein",
        path.display()
    );
    Ok(std::path::absolute(path)?)
}

/// A model file; `Err` is the reason why there is none.
pub fn model(setup: &Setup) -> Result<PathBuf, String> {
    if let Some(path) = &setup.model {
        let absolute = std::path::absolute(path).map_err(|error| error.to_string())?;
        return match absolute.is_file() {
            true => Ok(absolute),
            false => Err(format!("there is no file {}", path.display())),
        };
    }
    let cached = cache().map(|cache| cache.join(DEFAULT_MODEL));
    cached.filter(|path| path.is_file()).ok_or_else(|| {
        "the default model is not in the cache (`skein demo` and the tests put it there), and no --model is named".to_owned()
    })
}

/// The cache for downloads, as the contract of the command line has it.
fn cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("SKEIN_CACHE")
        .map(PathBuf::from)
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| PathBuf::from(cache).join("skein")))
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache/skein")))
        .and_then(|path| std::path::absolute(path).ok())
}
