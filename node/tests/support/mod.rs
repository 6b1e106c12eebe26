//! Real worker processes and real agents, for tests of both.
//!
//! Everything started here is ended by its process id when it is dropped, also while a test fails.
#![allow(dead_code)]

pub mod agents;
pub mod models;
pub mod workers;

use std::path::PathBuf;
use std::sync::OnceLock;

use skein_provide::Env;

/// The folder of OpenVINO's libraries, and the cache; found as the product finds them.
pub fn openvino() -> (PathBuf, PathBuf) {
    static FOUND: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let env = Env::of_process();
        let openvino = skein_provide::find_openvino(&env, &mut |what| eprintln!("{what}")).unwrap();
        (openvino.libs_dir, env.cache_dir().unwrap())
    });
    found.clone()
}

/// The default model's file, fetched where it is missing.
pub fn smollm2() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let env = Env::of_process();
        skein_provide::default_model(&env, &mut |what| eprintln!("{what}")).unwrap()
    });
    found.clone()
}

/// A temporary folder whose path is short enough for a control socket.
pub fn folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("skein-test-")
        .tempdir()
        .unwrap()
}
