//! Processes killed in the middle of an import and of a pull, for real.
//!
//! The victim is this test program again, told by the environment what to do.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};

use super::{pull, serve};
use crate::hash::ModelId;
use crate::store::{GROUP_BYTES, Store, StoreError, fixture};

const TASK: &str = "SKEIN_TEST_VICTIM_TASK";
const DIR: &str = "SKEIN_TEST_VICTIM_DIR";
const SOURCE: &str = "SKEIN_TEST_VICTIM_SOURCE";
const KILLS: u32 = 10;
const GROUP: usize = GROUP_BYTES as usize;
const SIZES: [usize; 5] = [77, 900 * GROUP, 1500 * GROUP + 5, 1500 * GROUP, 200 * GROUP];
const ALL: [usize; 5] = [0, 1, 2, 3, 4];

fn victim(task: &str, dir: &Path, source: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "transfer::kill::the_victim", "--nocapture"])
        .env(TASK, task)
        .env(DIR, dir)
        .env(SOURCE, source)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn the_victim() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let store = Store::open(std::env::var(DIR).unwrap()).unwrap();
    match task.as_str() {
        "import" => {
            fixture::import(&store, "model", 1, &SIZES);
        }
        _ => {
            let id = store.models()[0].id;
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let open = |address: String| TcpStream::connect(address);
            let sources = [std::env::var(SOURCE).unwrap()];
            runtime
                .block_on(pull(&store, id, &ALL, &sources, open, |_| ()))
                .unwrap();
        }
    }
}

/// How long the victim takes when nobody kills it.
fn whole_time(task: &str, dir: &Path, source: &str) -> Duration {
    let begun = Instant::now();
    assert!(victim(task, dir, source).wait().unwrap().success());
    begun.elapsed()
}

fn killed_after(time: Duration, task: &str, dir: &Path, source: &str) {
    let mut child = victim(task, dir, source);
    std::thread::sleep(time);
    // It may have finished.
    let _ = child.kill();
    child.wait().unwrap();
}

#[test]
fn an_import_killed_anywhere_leaves_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let time = whole_time("import", dir.path(), "");
    for kill in 1..=KILLS {
        let dir = tempfile::tempdir().unwrap();
        killed_after(time * kill / KILLS, "import", dir.path(), "");
        let store = Store::open(dir.path()).unwrap();
        match &store.models()[..] {
            [] => assert_eq!(store.used_bytes(), 0),
            models => assert_eq!(models[0].held, [true; 5]),
        }
        let imports = std::fs::read_dir(dir.path().join("import")).unwrap();
        assert_eq!(imports.count(), 0);
        let id = fixture::import(&store, "model", 1, &SIZES);
        for segment in ALL {
            assert_eq!(store.verify(id, segment).unwrap().damaged, 0);
        }
    }
}

#[test]
fn a_pull_killed_anywhere_goes_on_where_it_was() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let source_dir = tempfile::tempdir().unwrap();
    let source = Store::open(source_dir.path()).unwrap();
    let id = fixture::import(&source, "model", 1, &SIZES);
    let address = runtime.block_on(serving(source.clone()));
    let dir = tempfile::tempdir().unwrap();
    described(dir.path(), &source, id);
    let time = whole_time("pull", dir.path(), &address);
    for kill in 1..=KILLS {
        let dir = tempfile::tempdir().unwrap();
        described(dir.path(), &source, id);
        killed_after(time * kill / KILLS, "pull", dir.path(), &address);
        let store = Store::open(dir.path()).unwrap();
        let missing = store.missing_bytes(id, &ALL).unwrap();
        for segment in ALL {
            assert_eq!(store.verify(id, segment).unwrap().damaged, 0);
        }
        let open = |address: String| TcpStream::connect(address);
        let sources = [address.clone()];
        let rest = runtime.block_on(pull(&store, id, &ALL, &sources, open, |_| ()));
        assert_eq!(rest.unwrap().total(), missing);
        for segment in ALL {
            assert!(
                fixture::on_disk(&store, id, segment) == fixture::on_disk(&source, id, segment)
            );
        }
    }
}

fn described(dir: &Path, source: &Store, id: ModelId) {
    let store = Store::open(dir).unwrap();
    let manifest = source.manifest(id).unwrap().encode();
    assert!(matches!(store.put_manifest(&manifest), Ok(found) if found == id));
    assert!(matches!(store.graph(id), Err(StoreError::NotHeld { .. })));
}

async fn serving(store: Store) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(store.clone(), stream));
        }
    });
    address
}
