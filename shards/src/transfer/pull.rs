//! Pulling segments from several sources at once.
//!
//! The missing groups are handed out in pieces of a mebibyte, in order, each to a source that says
//! it holds it; a source keeps a few requests under way so that the link does not idle for a round
//! trip. When a source fails, its unanswered pieces go back to the others. Dropping the future
//! leaves at most the pieces since the last sync to be fetched again.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Display};
use std::future::Future;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

use super::client::{Got, Link};
use super::wire::{Reason, Request};
use super::{Blame, Patience, PullError, PullReport, blocking};
use crate::hash::ModelId;
use crate::manifest::Manifest;
use crate::store::{Runs, Store, StoreError, byte_count};

/// Groups of one request: a mebibyte, small enough to notice a bad source early.
const PIECE_GROUPS: u64 = 64;
/// Requests under way to one source: enough for 40 MB/s at a round trip of 100 ms.
const PIPELINE: usize = 4;
/// Sources used at once; more would only compete for our own link.
const MAX_SOURCES: usize = 8;
/// Written data that may be lost to a crash. Each sync waits for the disk a few times.
const SYNC_BYTES: u64 = 32 << 20;
/// Hashes that may come with a piece: the way down the tree and the nodes inside.
const MAX_PROOF_BYTES: u64 = 64 * (2 * PIECE_GROUPS + 128);

/// How far a pull is.
#[derive(Clone, Copy, Debug)]
pub struct PullProgress<'a, P> {
    /// Who sent the latest piece.
    pub source: &'a P,
    /// Segment bytes that arrived.
    pub done: u64,
    /// Segment bytes that were missing when the pull began.
    pub total: u64,
}

/// Fetches what is missing of `segments`, whose model's manifest the store already has.
///
/// A source that cannot be reached, sends bad data, breaks the protocol or stalls is left and named
/// in the report; one that lacks a piece is only passed over for it. Only one pull at a time works
/// on a model; a second waits for the first.
pub async fn pull<P, S, E, F>(
    store: &Store,
    id: ModelId,
    segments: &[usize],
    sources: &[P],
    open: impl Fn(P) -> F,
    progress: impl FnMut(PullProgress<'_, P>),
) -> Result<PullReport<P>, PullError<P>>
where
    P: Clone + Ord + Debug,
    S: AsyncRead + AsyncWrite + Send,
    E: Display,
    F: Future<Output = Result<S, E>>,
{
    pull_with(
        Patience::default(),
        store,
        id,
        segments,
        sources,
        open,
        progress,
    )
    .await
}

/// [`pull`] with other limits to waiting.
pub async fn pull_with<P, S, E, F>(
    patience: Patience,
    store: &Store,
    id: ModelId,
    segments: &[usize],
    sources: &[P],
    open: impl Fn(P) -> F,
    progress: impl FnMut(PullProgress<'_, P>),
) -> Result<PullReport<P>, PullError<P>>
where
    P: Clone + Ord + Debug,
    S: AsyncRead + AsyncWrite + Send,
    E: Display,
    F: Future<Output = Result<S, E>>,
{
    let turn = store.pulling(id)?;
    let _turn = turn.lock().await;
    // What an abandoned pull wrote counts too.
    sync(store, id).await?;
    let work = Work::new(store, id, segments)?;
    let mut report = PullReport::default();
    if work.total > 0 {
        let outcome = drive(&work, sources, &open, patience, progress, &mut report).await;
        // Whatever happened, keep what arrived.
        sync(store, id).await?;
        outcome?;
    }
    let missing = store.missing_bytes(id, segments)?;
    if missing > 0 {
        return Err(PullError::Incomplete {
            missing: format!("{missing} bytes of the model's weights"),
            report,
        });
    }
    Ok(report)
}

async fn sync(store: &Store, id: ModelId) -> Result<(), StoreError> {
    let store = store.clone();
    blocking(move || store.sync(id)).await
}

async fn drive<P, S, E, F>(
    work: &Work<'_>,
    sources: &[P],
    open: &impl Fn(P) -> F,
    patience: Patience,
    progress: impl FnMut(PullProgress<'_, P>),
    report: &mut PullReport<P>,
) -> Result<(), StoreError>
where
    P: Clone + Ord + Debug,
    S: AsyncRead + AsyncWrite + Send,
    E: Display,
    F: Future<Output = Result<S, E>>,
{
    let arrived = Mutex::new((BTreeMap::<P, u64>::new(), progress));
    let tell = |source: &P, bytes: u64| {
        let mut arrived = lock(&arrived);
        let (from, progress) = &mut *arrived;
        *from.entry(source.clone()).or_default() += bytes;
        progress(PullProgress {
            source,
            done: work.done(),
            total: work.total,
        });
    };
    let tell = &tell;
    let start = |source: P| async move {
        let opening = open(source.clone());
        let end = from_source(work, opening, patience, |bytes| tell(&source, bytes)).await;
        (source, end)
    };
    let mut waiting = sources.iter().cloned();
    let mut running: FuturesUnordered<_> = waiting.by_ref().take(MAX_SOURCES).map(start).collect();
    let mut outcome = Ok(());
    while let Some((source, end)) = running.next().await {
        match end {
            End::Done => {}
            End::Lacking(blame) | End::Left(blame) => report.blamed.push((source, blame)),
            End::Store(error) => {
                outcome = Err(error);
                break;
            }
        }
        if !work.is_done()
            && let Some(source) = waiting.next()
        {
            running.push(start(source));
        }
    }
    drop(running);
    report.bytes = lock(&arrived)
        .0
        .iter()
        .filter(|(_, bytes)| **bytes > 0)
        .map(|(source, bytes)| (source.clone(), *bytes))
        .collect();
    outcome
}

/// How a source's part ended.
enum End {
    /// It has nothing more that is wanted.
    Done,
    /// As `Done`, but it did not give all that it said it had.
    Lacking(Blame),
    /// It was left.
    Left(Blame),
    Store(StoreError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    segment: usize,
    groups: Range<u64>,
}

/// What is left to fetch, shared by all sources of a pull.
struct Work<'a> {
    store: &'a Store,
    id: ModelId,
    manifest: std::sync::Arc<Manifest>,
    total: u64,
    state: Mutex<WorkState>,
    /// Rung when pieces come back or are finished.
    changed: Notify,
}

#[derive(Default)]
struct WorkState {
    wanted: BTreeMap<usize, Runs>,
    in_flight: BTreeMap<usize, Runs>,
    done: u64,
    unsynced: u64,
}

impl<'a> Work<'a> {
    fn new(store: &'a Store, id: ModelId, segments: &[usize]) -> Result<Self, StoreError> {
        let manifest = store.manifest(id)?;
        let mut state = WorkState::default();
        for segment in segments {
            let missing = store.missing_groups(id, *segment)?;
            state.wanted.insert(*segment, missing);
            state.in_flight.insert(*segment, Runs::default());
        }
        let bytes = |(segment, runs): (&usize, &Runs)| -> u64 {
            let size = manifest.segments[*segment].size;
            runs.iter().map(|run| byte_count(size, &run)).sum()
        };
        Ok(Self {
            store,
            id,
            total: state.wanted.iter().map(bytes).sum(),
            manifest,
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    fn done(&self) -> u64 {
        lock(&self.state).done
    }

    fn is_done(&self) -> bool {
        let state = lock(&self.state);
        let none = |runs: &BTreeMap<usize, Runs>| runs.values().all(Runs::is_empty);
        none(&state.wanted) && none(&state.in_flight)
    }

    /// The next piece for a source that holds `have`.
    fn take(&self, have: &[Runs]) -> Option<Piece> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        for (segment, wanted) in &mut state.wanted {
            let part = have[*segment]
                .iter()
                .find_map(|run| wanted.within(&run).iter().next());
            if let Some(part) = part {
                let groups = part.start..part.end.min(part.start + PIECE_GROUPS);
                wanted.remove(&groups);
                state
                    .in_flight
                    .entry(*segment)
                    .or_default()
                    .insert(groups.clone());
                return Some(Piece {
                    segment: *segment,
                    groups,
                });
            }
        }
        None
    }

    /// Whether another source is fetching what this one could fetch if that one fails.
    fn may_return(&self, have: &[Runs]) -> bool {
        let state = lock(&self.state);
        state.in_flight.iter().any(|(segment, runs)| {
            runs.iter()
                .any(|run| !have[*segment].within(&run).is_empty())
        })
    }

    /// A piece was answered: `written` of it verified, or it goes back for others.
    fn settle(&self, piece: &Piece, whole: bool) {
        let mut state = lock(&self.state);
        if let Some(runs) = state.in_flight.get_mut(&piece.segment) {
            runs.remove(&piece.groups);
        }
        if !whole && let Some(runs) = state.wanted.get_mut(&piece.segment) {
            runs.insert(piece.groups.clone());
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Writes an answer, and everything to disk when it is time.
    async fn write(&self, piece: &Piece, encoded: Vec<u8>) -> Result<(u64, bool), StoreError> {
        let (store, id, write) = (self.store.clone(), self.id, piece.clone());
        let accepted =
            blocking(move || store.write_groups(id, write.segment, write.groups, &encoded)).await?;
        let full = {
            let mut state = lock(&self.state);
            state.done += accepted.bytes;
            state.unsynced += accepted.bytes;
            let full = state.unsynced >= SYNC_BYTES;
            if full {
                state.unsynced = 0;
            }
            full
        };
        if full {
            sync(self.store, self.id).await?;
        }
        Ok((accepted.bytes, accepted.intact))
    }

    fn request(&self, piece: &Piece) -> Request {
        Request::Groups {
            model: self.id,
            segment: piece.segment as u32,
            first: piece.groups.start,
            count: piece.groups.end - piece.groups.start,
        }
    }
}

async fn from_source<S, E, F>(
    work: &Work<'_>,
    opening: F,
    patience: Patience,
    tell: impl Fn(u64),
) -> End
where
    S: AsyncRead + AsyncWrite + Send,
    E: Display,
    F: Future<Output = Result<S, E>>,
{
    let mut link = match Link::open(opening, patience).await {
        Ok(link) => link,
        Err(blame) => return End::Left(blame),
    };
    let mut have = match link.have(work.id, work.manifest.segments.len()).await {
        Ok(have) => have,
        Err(blame) => return End::Left(blame),
    };
    let mut under_way = VecDeque::new();
    let mut lacking = None;
    let end = loop {
        match turn(work, &mut link, &mut have, &mut under_way, &tell).await {
            Ok(Turn::Again) => {}
            Ok(Turn::Lacks(blame)) => lacking = lacking.or(Some(blame)),
            Ok(Turn::Over) => break lacking.map_or(End::Done, End::Lacking),
            Err(end) => break end,
        }
    };
    for piece in under_way {
        work.settle(&piece, false);
    }
    if matches!(end, End::Done | End::Lacking(_)) {
        link.close().await;
    }
    end
}

enum Turn {
    Again,
    /// The source refused a piece that it had listed.
    Lacks(Blame),
    Over,
}

/// Asks for as much as may be under way, and deals with one answer.
async fn turn<S: AsyncRead + AsyncWrite + Send>(
    work: &Work<'_>,
    link: &mut Link<S>,
    have: &mut [Runs],
    under_way: &mut VecDeque<Piece>,
    tell: &impl Fn(u64),
) -> Result<Turn, End> {
    let changed = work.changed.notified();
    tokio::pin!(changed);
    // From here on no change is missed, also one before the first poll.
    changed.as_mut().enable();
    let mut requests = Vec::new();
    while under_way.len() < PIPELINE
        && let Some(piece) = work.take(have)
    {
        requests.push(work.request(&piece));
        under_way.push_back(piece);
    }
    let Some(piece) = under_way.front().cloned() else {
        if work.may_return(have) {
            changed.await;
            return Ok(Turn::Again);
        }
        return Ok(Turn::Over);
    };
    let size = work.manifest.segments[piece.segment].size;
    let limit = byte_count(size, &piece.groups) + MAX_PROOF_BYTES;
    let got = link.exchange(&requests, limit).await.map_err(End::Left)?;
    match got {
        Got::Body(encoded) => {
            let (bytes, intact) = work.write(&piece, encoded).await.map_err(End::Store)?;
            tell(bytes);
            if !intact {
                let name = &work.manifest.segments[piece.segment].name;
                let what = format!("groups {:?} of {name}", piece.groups);
                return Err(End::Left(Blame::BadData(what)));
            }
            under_way.pop_front();
            work.settle(&piece, true);
            Ok(Turn::Again)
        }
        Got::Refused(Reason::NotHeld | Reason::Damaged, message) => {
            have[piece.segment].remove(&piece.groups);
            under_way.pop_front();
            work.settle(&piece, false);
            Ok(Turn::Lacks(Blame::Refused(message)))
        }
        Got::Refused(_, message) => Err(End::Left(Blame::Refused(message))),
        Got::Have(_) => {
            let what = "a list nobody asked for".to_owned();
            Err(End::Left(Blame::Protocol(what)))
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
