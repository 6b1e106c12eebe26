//! Two stores with an in-memory stream between them, and scripted sources that misbehave on cue.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use proptest::prelude::*;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};

use super::wire::{Answer, Header, Request, read_header, write_header};
use super::*;
use crate::hash::{Hash, ModelId};
use crate::store::{GROUP_BYTES, Store, fixture, group_count};

const GROUP: usize = GROUP_BYTES as usize;
const SIZES: [usize; 6] = [
    9,
    300 * GROUP + 11,
    130 * GROUP,
    70 * GROUP + 1,
    GROUP - 1,
    5 * GROUP,
];
const ALL: [usize; 6] = [0, 1, 2, 3, 4, 5];
const TOTAL: u64 = 506 * GROUP_BYTES + 20;
const HASTY: Patience = Patience {
    open: Duration::from_millis(500),
    byte: Duration::from_millis(500),
    answer: Duration::from_secs(20),
};

struct Place {
    _dir: tempfile::TempDir,
    store: Store,
}

fn empty() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    Place { _dir: dir, store }
}

fn full() -> (Place, ModelId) {
    let place = empty();
    let id = fixture::import(&place.store, "model", 1, &SIZES);
    (place, id)
}

/// A place that knows the model and holds `groups` of each segment.
fn partial(from: &Store, id: ModelId, part: impl Fn(u64) -> std::ops::Range<u64>) -> Place {
    let place = empty();
    described(&place.store, from, id);
    for (segment, size) in SIZES.iter().enumerate() {
        let groups = part(group_count(*size as u64));
        if groups.is_empty() {
            continue;
        }
        let encoded = from.encode_groups(id, segment, groups.clone()).unwrap();
        let accepted = place.store.write_groups(id, segment, groups, &encoded);
        assert!(accepted.unwrap().intact);
    }
    place.store.sync(id).unwrap();
    place
}

fn described(store: &Store, from: &Store, id: ModelId) {
    store
        .put_manifest(&from.manifest(id).unwrap().encode())
        .unwrap();
}

/// A stream to `store` being served.
fn served(store: &Store) -> DuplexStream {
    let (ours, theirs) = duplex(64 << 10);
    let store = store.clone();
    tokio::spawn(async move { serve(store, theirs).await });
    ours
}

/// Sources by name: each either a store or a script that runs on the other end of the stream.
#[derive(Default)]
struct Sources {
    stores: BTreeMap<&'static str, Store>,
    scripts: BTreeMap<&'static str, fn(Store, DuplexStream) -> Script>,
    opened: AtomicUsize,
}

type Script = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Sources {
    fn of(stores: impl IntoIterator<Item = (&'static str, Store)>) -> Self {
        Self {
            stores: stores.into_iter().collect(),
            ..Self::default()
        }
    }

    fn bad(mut self, name: &'static str, script: fn(Store, DuplexStream) -> Script) -> Self {
        self.scripts.insert(name, script);
        self
    }

    async fn open(&self, name: &'static str) -> Result<DuplexStream, String> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let store = self.stores.get(name).ok_or("no such machine")?;
        match self.scripts.get(name) {
            None => Ok(served(store)),
            Some(script) => {
                let (ours, theirs) = duplex(64 << 10);
                tokio::spawn(script(store.clone(), theirs));
                Ok(ours)
            }
        }
    }

    async fn pull(
        &self,
        store: &Store,
        id: ModelId,
        segments: &[usize],
        names: &[&'static str],
    ) -> Result<PullReport<&'static str>, PullError<&'static str>> {
        let open = |name| self.open(name);
        pull_with(HASTY, store, id, segments, names, open, |_| ()).await
    }
}

fn same(a: &Store, b: &Store, id: ModelId) {
    for segment in ALL {
        assert!(fixture::on_disk(a, id, segment) == fixture::on_disk(b, id, segment));
        assert_eq!(b.verify(id, segment).unwrap().damaged, 0);
    }
    assert_eq!(b.held(id).unwrap(), [true; 6]);
}

#[tokio::test]
async fn a_model_is_learned_of_and_pulled_whole() {
    let (source, id) = full();
    let target = empty();
    let sources = Sources::of([("a", source.store.clone())]);
    assert!(!has_description(&target.store, id).unwrap());
    let open = |name| sources.open(name);
    let (manifest, report) = pull_description(&target.store, id, &["gone", "a"], open)
        .await
        .unwrap();
    assert_eq!(manifest.id(), id);
    assert!(has_description(&target.store, id).unwrap());
    assert!(matches!(
        &report.blamed[..],
        [("gone", Blame::Unreachable(_))]
    ));

    let mut told = Vec::new();
    let report = pull(&target.store, id, &ALL, &["a"], open, |step| {
        told.push((step.done, step.total));
    })
    .await
    .unwrap();
    assert_eq!(report.bytes, BTreeMap::from([("a", TOTAL)]));
    assert!(report.blamed.is_empty());
    assert_eq!(told.last(), Some(&(TOTAL, TOTAL)));
    assert!(told.is_sorted());
    same(&source.store, &target.store, id);

    let again = pull(&target.store, id, &ALL, &["a"], open, |_| ()).await;
    assert_eq!(again.unwrap().total(), 0);
}

#[tokio::test]
async fn only_the_asked_segments_are_pulled_to_the_byte() {
    let (source, id) = full();
    let target = empty();
    described(&target.store, &source.store, id);
    let sources = Sources::of([("a", source.store.clone())]);
    let report = sources
        .pull(&target.store, id, &[0, 3], &["a"])
        .await
        .unwrap();
    assert_eq!(report.total(), (SIZES[0] + SIZES[3]) as u64);
    let held = target.store.held(id).unwrap();
    assert_eq!(held, [true, false, false, true, false, false]);
}

#[tokio::test]
async fn two_sources_with_different_parts_make_a_whole() {
    let (source, id) = full();
    let a = partial(&source.store, id, |groups| 0..groups / 2);
    let b = partial(&source.store, id, |groups| groups / 2..groups);
    let target = empty();
    described(&target.store, &source.store, id);
    let sources = Sources::of([("a", a.store.clone()), ("b", b.store.clone())]);
    let report = sources
        .pull(&target.store, id, &ALL, &["a", "b"])
        .await
        .unwrap();
    let gave = |store: &Store| store.models()[0].held_bytes;
    assert_eq!(report.bytes["a"], gave(&a.store));
    assert_eq!(report.bytes["b"], gave(&b.store));
    assert_eq!(report.total(), TOTAL);
    assert!(report.blamed.is_empty());
    same(&source.store, &target.store, id);
}

#[tokio::test]
async fn two_whole_sources_share_the_work() {
    let (a, id) = full();
    let (b, _) = full();
    let target = empty();
    described(&target.store, &a.store, id);
    let sources = Sources::of([("a", a.store.clone()), ("b", b.store.clone())]);
    let report = sources
        .pull(&target.store, id, &ALL, &["a", "b"])
        .await
        .unwrap();
    assert_eq!(report.bytes.len(), 2);
    assert_eq!(report.total(), TOTAL);
    same(&a.store, &target.store, id);
}

#[tokio::test]
async fn what_no_source_has_is_named_and_the_rest_kept() {
    let (source, id) = full();
    let a = partial(&source.store, id, |groups| 0..groups.saturating_sub(1));
    let target = empty();
    described(&target.store, &source.store, id);
    let sources = Sources::of([("a", a.store.clone())]);
    match sources.pull(&target.store, id, &ALL, &["a"]).await {
        Err(PullError::Incomplete { missing, report }) => {
            let lacking = TOTAL - report.total();
            assert_eq!(missing, format!("{lacking} bytes of the model's weights"));
            assert_eq!(target.store.missing_bytes(id, &ALL).unwrap(), lacking);
        }
        other => panic!("{other:?}"),
    }
    let sources = Sources::of([("b", source.store.clone())]);
    let report = sources.pull(&target.store, id, &ALL, &["b"]).await.unwrap();
    assert!(report.total() < 4 * GROUP_BYTES + 20);
    same(&source.store, &target.store, id);
}

#[tokio::test]
async fn two_pulls_of_one_model_do_not_fetch_anything_twice() {
    let (source, id) = full();
    let target = empty();
    described(&target.store, &source.store, id);
    let sources = Sources::of([("a", source.store.clone())]);
    let (one, two) = tokio::join!(
        sources.pull(&target.store, id, &[0, 1, 2], &["a"]),
        sources.pull(&target.store, id, &ALL, &["a"]),
    );
    assert_eq!(one.unwrap().total() + two.unwrap().total(), TOTAL);
}

/// Passes bytes on both ways, changing the `at`th that the source sends.
async fn meddle(store: Store, stream: DuplexStream, at: usize) {
    let inner = served(&store);
    let (mut from_source, mut to_source) = tokio::io::split(inner);
    let (mut from_target, mut to_target) = tokio::io::split(stream);
    let back = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_target, &mut to_source).await;
    });
    let mut seen = 0;
    let mut buffer = vec![0; 8192];
    while let Ok(read) = from_source.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        if (seen..seen + read).contains(&at) {
            buffer[at - seen] ^= 4;
        }
        seen += read;
        if to_target.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    back.abort();
}

#[tokio::test]
async fn a_byte_flipped_on_the_wire_is_blamed_on_its_source_and_fetched_elsewhere() {
    let (a, id) = full();
    let (b, _) = full();
    let target = empty();
    described(&target.store, &a.store, id);
    let sources = Sources::of([("bad", a.store.clone()), ("good", b.store.clone())])
        .bad("bad", |store, stream| {
            Box::pin(meddle(store, stream, 400_000))
        });
    let report = sources
        .pull(&target.store, id, &ALL, &["bad", "good"])
        .await
        .unwrap();
    assert!(matches!(&report.blamed[..], [("bad", Blame::BadData(_))]));
    assert_eq!(report.total(), TOTAL);
    same(&a.store, &target.store, id);
}

#[tokio::test]
async fn a_byte_flipped_on_the_source_s_disk_never_arrives() {
    let (bad, id) = full();
    let (good, _) = full();
    fixture::flip(&bad.store, id, 1, 100 * GROUP_BYTES);
    let target = empty();
    described(&target.store, &good.store, id);
    let sources = Sources::of([("bad", bad.store.clone())]);
    match sources.pull(&target.store, id, &ALL, &["bad"]).await {
        Err(PullError::Incomplete { report, .. }) => {
            assert!(matches!(&report.blamed[..], [("bad", Blame::Refused(_))]));
            assert!(report.total() < TOTAL && report.total() > TOTAL / 2);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bad.store.missing_bytes(id, &ALL).unwrap(), GROUP_BYTES);
    let sources = Sources::of([("bad", bad.store.clone()), ("good", good.store.clone())]);
    let report = sources
        .pull(&target.store, id, &ALL, &["good"])
        .await
        .unwrap();
    assert!(report.total() > 0);
    same(&good.store, &target.store, id);
    // And the one with the damage gets well from the one it served.
    let sources = Sources::of([("target", target.store.clone())]);
    let report = sources
        .pull(&bad.store, id, &ALL, &["target"])
        .await
        .unwrap();
    assert_eq!(report.total(), GROUP_BYTES);
    same(&good.store, &bad.store, id);
}

/// Answers like an honest source until the `count`th request for groups, then does `next`.
async fn honest_until(
    store: Store,
    mut stream: DuplexStream,
    count: usize,
    next: impl AsyncFnOnce(&mut DuplexStream),
) {
    let mut groups = 0;
    while let Ok(Header::Message(request)) = read_header::<_, Request>(&mut stream, 1024).await {
        if matches!(request, Request::Groups { .. }) {
            groups += 1;
            if groups == count {
                next(&mut stream).await;
                return;
            }
        }
        let mut inner = served(&store);
        write_header(&mut inner, &request).await.unwrap();
        inner.shutdown().await.unwrap();
        if tokio::io::copy(&mut inner, &mut stream).await.is_err() {
            return;
        }
    }
}

async fn takes_over(script: fn(Store, DuplexStream) -> Script, expected: fn(&Blame) -> bool) {
    let (a, id) = full();
    let (b, _) = full();
    let target = empty();
    described(&target.store, &a.store, id);
    let sources =
        Sources::of([("bad", a.store.clone()), ("good", b.store.clone())]).bad("bad", script);
    let report = sources
        .pull(&target.store, id, &ALL, &["bad", "good"])
        .await
        .unwrap();
    let [("bad", blame)] = &report.blamed[..] else {
        panic!("{report:?}");
    };
    assert!(expected(blame), "{blame}");
    assert_eq!(report.total(), TOTAL);
    same(&a.store, &target.store, id);
}

#[tokio::test]
async fn a_source_that_stalls_is_left_for_another() {
    let stall: fn(Store, DuplexStream) -> Script = |store, stream| {
        Box::pin(honest_until(
            store,
            stream,
            2,
            async |_: &mut DuplexStream| {
                tokio::time::sleep(Duration::from_secs(60)).await;
            },
        ))
    };
    takes_over(stall, |blame| matches!(blame, Blame::Stalled(_))).await;
}

#[tokio::test]
async fn a_source_that_hangs_up_is_left_for_another() {
    let hang_up: fn(Store, DuplexStream) -> Script = |store, stream| {
        Box::pin(honest_until(
            store,
            stream,
            3,
            async |stream: &mut DuplexStream| {
                let answer = Answer::Body { length: 1 << 20 };
                let _ = write_header(stream, &answer).await;
                let _ = stream.write_all(&[1; 1000]).await;
            },
        ))
    };
    takes_over(hang_up, |blame| matches!(blame, Blame::Broken(_))).await;
}

#[tokio::test]
async fn a_source_that_announces_too_much_is_left_for_another() {
    let boast: fn(Store, DuplexStream) -> Script = |store, stream| {
        Box::pin(honest_until(
            store,
            stream,
            1,
            async |stream: &mut DuplexStream| {
                let answer = Answer::Body { length: u64::MAX };
                let _ = write_header(stream, &answer).await;
                tokio::time::sleep(Duration::from_secs(5)).await;
            },
        ))
    };
    takes_over(boast, |blame| matches!(blame, Blame::Protocol(_))).await;
}

#[tokio::test]
async fn a_source_that_talks_nonsense_is_left_for_another() {
    let babble: fn(Store, DuplexStream) -> Script = |store, stream| {
        Box::pin(honest_until(
            store,
            stream,
            1,
            async |stream: &mut DuplexStream| {
                let _ = stream.write_all(&[3, 0, 0, 0, 0xFF, 0xFF, 0xFF]).await;
                tokio::time::sleep(Duration::from_secs(5)).await;
            },
        ))
    };
    takes_over(babble, |blame| matches!(blame, Blame::Protocol(_))).await;
}

#[tokio::test]
async fn a_source_that_lies_about_what_it_holds_is_only_passed_over() {
    let lie: fn(Store, DuplexStream) -> Script = |store, stream| {
        Box::pin(async move {
            // The list of what is held says everything; requests go to a store that lacks much.
            let mut stream = stream;
            while let Ok(Header::Message(request)) =
                read_header::<_, Request>(&mut stream, 1024).await
            {
                if let Request::Have { .. } = request {
                    let all = SIZES.map(|size| vec![0, group_count(size as u64)]);
                    let segments = all.to_vec();
                    write_header(&mut stream, &Answer::Have { segments })
                        .await
                        .unwrap();
                    continue;
                }
                let mut inner = served(&store);
                write_header(&mut inner, &request).await.unwrap();
                inner.shutdown().await.unwrap();
                let _ = tokio::io::copy(&mut inner, &mut stream).await;
            }
        })
    };
    let (good, id) = full();
    let liar = partial(&good.store, id, |groups| 0..groups / 2);
    let target = empty();
    described(&target.store, &good.store, id);
    let sources =
        Sources::of([("liar", liar.store.clone()), ("good", good.store.clone())]).bad("liar", lie);
    let report = sources
        .pull(&target.store, id, &ALL, &["liar", "good"])
        .await
        .unwrap();
    assert!(matches!(&report.blamed[..], [("liar", Blame::Refused(_))]));
    assert!(report.bytes["liar"] > 0);
    same(&good.store, &target.store, id);
}

#[tokio::test]
async fn wrong_manifests_and_blobs_are_refused_and_blamed() {
    let (good, id) = full();
    let other = empty();
    let wrong = fixture::import(&other.store, "wrong", 2, &SIZES);
    let bait: fn(Store, DuplexStream) -> Script = |store, stream| {
        Box::pin(async move {
            let mut stream = stream;
            let model = store.models()[0].id;
            while let Ok(Header::Message(_)) = read_header::<_, Request>(&mut stream, 1024).await {
                let mut inner = served(&store);
                write_header(&mut inner, &Request::Manifest { model })
                    .await
                    .unwrap();
                inner.shutdown().await.unwrap();
                let _ = tokio::io::copy(&mut inner, &mut stream).await;
            }
        })
    };
    assert_ne!(wrong, id);
    let target = empty();
    let sources =
        Sources::of([("bad", other.store.clone()), ("good", good.store.clone())]).bad("bad", bait);
    let open = |name| sources.open(name);
    let (_, report) = pull_description(&target.store, id, &["bad", "good"], open)
        .await
        .unwrap();
    assert!(matches!(&report.blamed[..], [("bad", Blame::BadData(_))]));
    assert!(matches!(
        pull_description(&empty().store, id, &["bad"], open).await,
        Err(PullError::Incomplete { .. })
    ));
}

#[tokio::test]
async fn a_full_store_ends_the_pull_with_the_bytes_it_lacks() {
    let (source, id) = full();
    let target = empty();
    described(&target.store, &source.store, id);
    target.store.set_capacity(Some(100 * GROUP_BYTES));
    let sources = Sources::of([("a", source.store.clone())]);
    assert!(matches!(
        sources.pull(&target.store, id, &ALL, &["a"]).await,
        Err(PullError::Store(StoreError::NoSpace { .. }))
    ));
    target.store.set_capacity(None);
    let report = sources.pull(&target.store, id, &ALL, &["a"]).await.unwrap();
    assert!(report.total() < TOTAL, "what had arrived was kept");
    same(&source.store, &target.store, id);
}

#[tokio::test]
async fn an_unknown_model_is_refused_politely() {
    let place = empty();
    let id = ModelId(Hash([9; 32]));
    let mut stream = served(&place.store);
    write_header(&mut stream, &Request::Have { model: id })
        .await
        .unwrap();
    let answer = read_header::<_, Answer>(&mut stream, MAX_ANSWER_BYTES)
        .await
        .unwrap();
    assert!(matches!(answer, Header::Message(Answer::Refused { .. })));
    let sources = Sources::of([("a", place.store.clone())]);
    assert!(matches!(
        pull(
            &empty().store,
            id,
            &[0],
            &["a"],
            |name| sources.open(name),
            |_| ()
        )
        .await,
        Err(PullError::Store(StoreError::NotFound(_)))
    ));
}

/// A stream that ends after `left` bytes written to it, as when a machine loses power.
struct Cut<S> {
    inner: S,
    left: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Cut<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.left == 0 {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buffer);
        self.left = self.left.saturating_sub(buffer.filled().len() - before);
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cut<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Opens a store whose last user may still be letting go of it.
async fn reopened(dir: &std::path::Path) -> Store {
    for _ in 0..500 {
        match Store::open(dir) {
            Ok(store) => return store,
            Err(StoreError::Locked { .. }) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the store stays locked");
}

#[tokio::test]
async fn a_pull_dropped_anywhere_is_taken_up_again_and_fetches_only_the_rest() {
    let (source, id) = full();
    for left in [1, 3000, 200_000, 1_500_000, 3_333_333, 5_000_000, 8_000_000] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        described(&store, &source.store, id);
        let open = |_| {
            let inner = served(&source.store);
            async move { Ok::<_, String>(Cut { inner, left }) }
        };
        let dropped = tokio::time::timeout(
            Duration::from_millis(300),
            pull(&store, id, &ALL, &["a"], open, |_| ()),
        )
        .await;
        assert!(dropped.is_err(), "it finished at {left}");
        drop(store);
        let store = reopened(dir.path()).await;
        let missing = store.missing_bytes(id, &ALL).unwrap();
        for segment in ALL {
            assert_eq!(store.verify(id, segment).unwrap().damaged, 0);
        }
        let sources = Sources::of([("a", source.store.clone())]);
        let report = sources.pull(&store, id, &ALL, &["a"]).await.unwrap();
        assert_eq!(report.total(), missing);
        same(&source.store, &store, id);
    }
}

#[tokio::test]
async fn a_pull_dropped_and_begun_again_in_the_same_process_loses_nothing() {
    let (source, id) = full();
    let target = empty();
    described(&target.store, &source.store, id);
    let open = |_| {
        let inner = served(&source.store);
        async move {
            Ok::<_, String>(Cut {
                inner,
                left: 4_000_000,
            })
        }
    };
    let first = pull(&target.store, id, &ALL, &["a"], open, |_| ());
    assert!(
        tokio::time::timeout(Duration::from_millis(500), first)
            .await
            .is_err()
    );
    let sources = Sources::of([("a", source.store.clone())]);
    let report = sources.pull(&target.store, id, &ALL, &["a"]).await.unwrap();
    assert!(report.total() <= TOTAL - 3_000_000, "{}", report.total());
    same(&source.store, &target.store, id);
}

#[tokio::test]
async fn bad_requests_are_answered_once_and_end_the_stream() {
    let (place, id) = full();
    let far = Request::Groups {
        model: id,
        segment: 1,
        first: u64::MAX,
        count: 2,
    };
    let many = Request::Groups {
        model: id,
        segment: 1,
        first: 0,
        count: MAX_GROUPS + 1,
    };
    let none = Request::Groups {
        model: id,
        segment: 99,
        first: 0,
        count: 1,
    };
    for request in [far, many, none] {
        let (mut ours, theirs) = duplex(4096);
        let serving = tokio::spawn(serve(place.store.clone(), theirs));
        write_header(&mut ours, &request).await.unwrap();
        let mut answer = Vec::new();
        ours.read_to_end(&mut answer).await.unwrap();
        let read = read_header::<_, Answer>(&mut &answer[..], MAX_ANSWER_BYTES).await;
        assert!(matches!(
            read.unwrap(),
            Header::Message(Answer::Refused { .. })
        ));
        assert!(matches!(
            serving.await.unwrap(),
            Err(ServeError::Nonsense(_))
        ));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn garbage_never_panics_a_server(bytes in proptest::collection::vec(any::<u8>(), 0..300), framed in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let place = empty();
        runtime.block_on(async {
            let (mut ours, theirs) = duplex(4096);
            let serving = tokio::spawn(serve(place.store.clone(), theirs));
            if framed {
                ours.write_all(&(bytes.len() as u32).to_le_bytes()).await.unwrap();
            }
            let _ = ours.write_all(&bytes).await;
            let _ = ours.shutdown().await;
            let mut rest = Vec::new();
            let _ = ours.read_to_end(&mut rest).await;
            // It ends by itself, one way or the other.
            let _ = serving.await.expect("the server panicked");
        });
    }

    #[test]
    fn garbage_never_panics_a_client(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (source, id) = full_once();
        let target = empty();
        described(&target.store, source, id);
        runtime.block_on(async {
            let open = |_: &'static str| {
                let bytes = bytes.clone();
                async move {
                    let (ours, mut theirs) = duplex(4096);
                    tokio::spawn(async move {
                        let _ = theirs.write_all(&bytes).await;
                    });
                    Ok::<_, String>(ours)
                }
            };
            let result = pull_with(HASTY, &target.store, id, &[0], &["a"], open, |_| ()).await;
            assert!(matches!(result, Err(PullError::Incomplete { .. })), "{result:?}");
        });
    }
}

/// One source for all cases of a property.
fn full_once() -> (&'static Store, ModelId) {
    static PLACE: std::sync::OnceLock<(Place, ModelId)> = std::sync::OnceLock::new();
    let (place, id) = PLACE.get_or_init(full);
    (&place.store, *id)
}
