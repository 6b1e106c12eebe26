//! Moving models between stores, over any byte stream, checked as they arrive.
//!
//! # The wire
//!
//! One side of a stream asks, the other answers, in order; a side may ask again before it has its
//! answer. Every message starts with a *header*: its length as a little-endian u32 and then that many
//! bytes of CBOR. The asking side ends the conversation by closing its direction.
//!
//! A request's header has at most [`MAX_REQUEST_BYTES`] and is one of these maps, where `model` is a
//! byte string of 32, the model's id:
//!
//! | request | answer |
//! |---|---|
//! | `{"manifest": {"model"}}` | a body: the manifest's canonical CBOR |
//! | `{"blob": {"model", "kind": "graph" or "tokenizer"}}` | a body: the blob's bytes |
//! | `{"have": {"model"}}` | `{"have": {"segments": […]}}` |
//! | `{"groups": {"model", "segment", "first", "count"}}` | a body: the encoded groups |
//!
//! An answer's header has at most [`MAX_ANSWER_BYTES`] and is one of:
//!
//! - `{"body": {"length"}}`: that many raw bytes follow the header.
//! - `{"have": {"segments": [[start, end, start, end, …], …]}}`: for each segment of the manifest, the
//!   runs of chunk groups that are held, half-open and ascending. At most [`MAX_RUNS`] runs in all are
//!   listed; the rest is left out, which only understates what is there.
//! - `{"refused": {"reason", "message"}}`, with a text for people and a reason: `unknown-model`;
//!   `not-held` (some of what was asked for); `damaged` (it was held, and its holder has just found its
//!   bytes on disk to be damaged); `bad-request` (not a request, or out of range; the answering side
//!   then closes the stream); `failed` (the answering side's own trouble).
//!
//! Groups are chunk groups of 16 KiB ([`GROUP_BYTES`](crate::store::GROUP_BYTES)), numbered from 0 in
//! each segment; the last one may be short. A request is for `count` groups from `first` on, at least
//! one and at most [`MAX_GROUPS`]. The encoding is bao's for these ranges, without a length prefix: the
//! segment's BLAKE3 tree in pre-order, where a node above the asked groups gives the two hashes of its
//! children (64 bytes) and a group gives its bytes. The tree's shape follows from the segment's size and
//! its root is the segment's hash, both in the manifest; so each hash and each group is checked against
//! what came before it.
//!
//! Nothing that a peer says is believed: a manifest must hash to the id that was asked for, a blob to
//! the manifest's hash, a group to its segment's.
//!
//! # Not here
//!
//! Finding peers and opening streams to them (`skein-discovery`), and deciding which segments a machine
//! should hold (`skein-planner`).

mod client;
mod describe;
mod pull;
mod serve;
mod wire;

#[cfg(test)]
mod kill;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::time::Duration;

pub use describe::{has_description, pull_description};
pub use pull::{PullProgress, pull, pull_with};
pub use serve::{ServeError, serve};
pub use wire::{MAX_ANSWER_BYTES, MAX_GROUPS, MAX_REQUEST_BYTES, MAX_RUNS};

use crate::store::StoreError;
use std::collections::BTreeMap;

/// How long to wait for a source before it is left for another.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a stream to open.
    pub open: Duration,
    /// For the next byte of an answer.
    pub byte: Duration,
    /// For a whole answer of a mebibyte or less; a source slower than that is better left.
    pub answer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            open: Duration::from_secs(20),
            byte: Duration::from_secs(15),
            answer: Duration::from_secs(60),
        }
    }
}

/// Why a source was left, or what it was found lacking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blame {
    /// No stream could be opened.
    Unreachable(String),
    /// It sent bytes that do not hash to what they should.
    BadData(String),
    /// It broke the protocol.
    Protocol(String),
    /// It would not give what it was asked for, in its own words.
    Refused(String),
    /// It was silent, or too slow, for as long as this.
    Stalled(Duration),
    /// The stream broke off.
    Broken(String),
}

impl Display for Blame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "it could not be reached: {why}"),
            Self::BadData(what) => write!(f, "it sent bad data: {what}"),
            Self::Protocol(what) => write!(f, "it broke the protocol: {what}"),
            Self::Refused(why) => write!(f, "it refused: {why}"),
            Self::Stalled(time) => write!(f, "it stalled for {} s", time.as_secs_f32()),
            Self::Broken(why) => write!(f, "the stream broke: {why}"),
        }
    }
}

/// What a pull came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullReport<P> {
    /// Segment bytes that each source gave and that were not here before; sources that gave none are
    /// left out.
    pub bytes: BTreeMap<P, u64>,
    /// Sources that failed, in the order in which they did; a source may be there twice.
    pub blamed: Vec<(P, Blame)>,
}

impl<P> Default for PullReport<P> {
    fn default() -> Self {
        Self {
            bytes: BTreeMap::new(),
            blamed: Vec::new(),
        }
    }
}

impl<P> PullReport<P> {
    /// Segment bytes from all sources.
    pub fn total(&self) -> u64 {
        self.bytes.values().sum()
    }
}

/// Why a pull ended without everything that was asked for. What did arrive is kept.
#[derive(Debug, thiserror::Error)]
pub enum PullError<P: std::fmt::Debug> {
    /// Every source was used up.
    #[error("{missing} are missing and no source is left{}", reasons(.report))]
    Incomplete {
        /// What is missing, for people.
        missing: String,
        report: PullReport<P>,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn reasons<P: std::fmt::Debug>(report: &PullReport<P>) -> String {
    report
        .blamed
        .iter()
        .map(|(source, blame)| format!("; {source:?}: {blame}"))
        .collect()
}

/// Runs a store's blocking work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(StoreError::State(format!("a task did not finish: {error}"))),
    }
}
