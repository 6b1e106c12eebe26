//! Measurements for the tables in docs/performance.md, each a Markdown table on stdout.
//!
//! They take minutes to an hour, judge nothing and run nowhere by themselves. Figures that depend on the machine's
//! peace come with its load average.
//!
//! - [`loss`]: what weights, precision, KV type and quantised activations cost in quality, and what a step takes
//! - [`hop`]: what a step takes outside compute
//! - [`agent`]: agents on loopback
//! - [`npy`]: the files that `skein debug logits` writes
//! - [`score`]: KL divergence, agreement and perplexity

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

mod agent;
pub mod hop;
pub mod loss;
mod npy;
mod score;

/// The program under test: as told, or beside this one.
fn program(told: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match told {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("skein"),
    };
    ensure!(
        path.is_file(),
        "{path:?} is no program: build `skein`, or say where it is with --skein"
    );
    path.canonicalize().context("the program has no path")
}

/// A folder to work in: a temporary one, or one that keeps imported models for the next run.
fn folder(told: Option<&Path>) -> anyhow::Result<(PathBuf, Option<tempfile::TempDir>)> {
    match told {
        Some(path) => {
            std::fs::create_dir_all(path).with_context(|| format!("cannot make {path:?}"))?;
            Ok((path.canonicalize()?, None))
        }
        None => {
            let temporary = tempfile::tempdir().context("cannot make a folder")?;
            Ok((temporary.path().to_owned(), Some(temporary)))
        }
    }
}

/// The system's load over the last minute, in words.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().filter(|first| !first.is_empty());
    first.unwrap_or("unknown").to_owned()
}
