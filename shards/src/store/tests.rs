use std::fs;
use std::io::Write;

use super::*;
use crate::manifest::{Blob, Manifest};

const GROUP: usize = GROUP_BYTES as usize;
const SIZES: [usize; 5] = [100, 40 * GROUP + 7, GROUP, 9 * GROUP, 3 * GROUP - 1];

fn empty() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    (dir, store)
}

fn with_model() -> (tempfile::TempDir, Store, ModelId) {
    let (dir, store) = empty();
    let id = fixture::import(&store, "model", 1, &SIZES);
    (dir, store, id)
}

fn reopen(store: Store) -> Store {
    let dir = store.dir().to_owned();
    drop(store);
    Store::open(dir).unwrap()
}

/// Everything of `from` into `to`, segment by segment.
fn copy(from: &Store, to: &Store, id: ModelId) {
    to.put_manifest(&from.manifest(id).unwrap().encode())
        .unwrap();
    for (segment, size) in SIZES.iter().enumerate() {
        let groups = 0..group_count(*size as u64);
        let encoded = from.encode_groups(id, segment, groups.clone()).unwrap();
        let accepted = to.write_groups(id, segment, groups, &encoded).unwrap();
        assert_eq!(
            accepted,
            Accepted {
                bytes: *size as u64,
                intact: true
            }
        );
    }
    to.sync(id).unwrap();
}

#[test]
fn an_imported_model_is_there_whole_also_after_reopening() {
    let (_dir, store, id) = with_model();
    let mut store = store;
    for _ in 0..2 {
        store = reopen(store);
        let model = &store.models()[0];
        assert_eq!((model.id, &model.held), (id, &vec![true; 5]));
        assert_eq!(model.held_bytes, SIZES.iter().sum::<usize>() as u64);
        assert!(model.blobs);
        assert_eq!(store.graph(id).unwrap(), fixture::GRAPH);
        assert_eq!(store.tokenizer(id).unwrap(), fixture::TOKENIZER);
        for (segment, size) in SIZES.iter().enumerate() {
            assert_eq!(
                fixture::on_disk(&store, id, segment),
                fixture::data(1, segment, *size)
            );
            let verified = store.verify(id, segment).unwrap();
            assert_eq!((verified.good, verified.damaged), (*size as u64, 0));
        }
        assert_eq!(store.missing_bytes(id, &[0, 1, 2, 3, 4]).unwrap(), 0);
        assert!(store.notes().is_empty());
    }
}

#[test]
fn segments_start_at_page_boundaries_and_can_be_aligned_inside() {
    let (_dir, store) = empty();
    let mut import = store.begin_import().unwrap();
    import.segment().unwrap().finish().unwrap();
    let mut segment = import.segment().unwrap();
    segment.write_all(&[1; 5000]).unwrap();
    segment.align(64).unwrap();
    assert_eq!((segment.offset(), segment.position()), (0, 5056));
    segment.append(&[2]).unwrap();
    assert_eq!(segment.finish().unwrap().size, 5057);
    assert_eq!(import.segment().unwrap().offset(), 8192);
}

#[test]
fn an_import_that_does_not_finish_leaves_nothing() {
    let (dir, store) = empty();
    let mut import = store.begin_import().unwrap();
    let mut segment = import.segment().unwrap();
    segment.append(&[1; 3 * GROUP]).unwrap();
    segment.finish().unwrap();
    assert!(store.used_bytes() > 3 * GROUP_BYTES);
    assert!(store.models().is_empty());
    // As a killed process would leave it.
    let killed = dir.path().join("import/77");
    fs::create_dir(&killed).unwrap();
    fs::write(killed.join("weights.bin"), b"half").unwrap();
    drop(import);
    assert_eq!(store.used_bytes(), 0);
    let store = reopen(store);
    assert!(store.models().is_empty());
    assert_eq!(fs::read_dir(dir.path().join("import")).unwrap().count(), 0);
}

#[test]
fn a_manifest_that_does_not_fit_what_was_written_is_refused() {
    let (_dir, store) = empty();
    let finish = |change: fn(&mut Manifest)| {
        let mut import = store.begin_import().unwrap();
        for size in SIZES {
            let mut segment = import.segment().unwrap();
            segment.append(&vec![7; size]).unwrap();
            segment.finish().unwrap();
        }
        let graph = import.graph(b"g").unwrap();
        let tokenizer = import.tokenizer(b"t").unwrap();
        let mut manifest = fixture::manifest("m", &import, graph, tokenizer);
        change(&mut manifest);
        import.finish(&manifest)
    };
    for change in [
        (|m| m.segments[1].hash = m.segments[2].hash) as fn(&mut Manifest),
        |m| m.segments[4].size += 1,
        |m| m.graph = Blob::of(b"h"),
    ] {
        assert!(matches!(finish(change), Err(StoreError::Mismatch { .. })));
    }
    assert!(store.models().is_empty());
    finish(|_| ()).unwrap();
    let again = finish(|_| ()).unwrap();
    assert_eq!(store.models().len(), 1);
    assert_eq!(store.held(again).unwrap(), [true; 5]);
}

#[test]
fn an_import_completes_a_model_of_which_only_a_part_was_pulled() {
    let (_dir, source, id) = with_model();
    let (_dir2, store) = empty();
    store
        .put_manifest(&source.manifest(id).unwrap().encode())
        .unwrap();
    assert_eq!(store.held(id).unwrap(), [false; 5]);
    assert_eq!(fixture::import(&store, "model", 1, &SIZES), id);
    assert_eq!(store.held(id).unwrap(), [true; 5]);
    assert_eq!(store.graph(id).unwrap(), fixture::GRAPH);
    let store = reopen(store);
    assert_eq!(store.held(id).unwrap(), [true; 5]);
}

#[test]
fn a_second_opener_is_told_who_has_the_store() {
    let (dir, store) = empty();
    match Store::open(dir.path()) {
        Err(StoreError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{:?}", other.map(|_| ())),
    }
    drop(store);
    Store::open(dir.path()).unwrap();
}

#[test]
fn models_are_found_by_name_and_by_the_start_of_their_id() {
    let (_dir, store, id) = with_model();
    assert_eq!(store.find("model").unwrap(), id);
    assert_eq!(store.find(&id.to_string()).unwrap(), id);
    assert_eq!(store.find(&id.to_string()[..6].to_uppercase()).unwrap(), id);
    assert!(matches!(
        store.find(&id.to_string()[..3]),
        Err(StoreError::NotFound(_))
    ));
    assert!(matches!(store.find("mode"), Err(StoreError::NotFound(_))));
    fixture::import(&store, "model", 2, &SIZES);
    assert!(matches!(
        store.find("model"),
        Err(StoreError::Ambiguous { matches, .. }) if matches.len() == 2
    ));
}

#[test]
fn groups_travel_verified_and_any_range_alone() {
    let (_dir, source, id) = with_model();
    let (_dir2, store) = empty();
    store
        .put_manifest(&source.manifest(id).unwrap().encode())
        .unwrap();
    for groups in [3..5, 40..41, 0..1, 4..20] {
        let encoded = source.encode_groups(id, 1, groups.clone()).unwrap();
        assert!(store.write_groups(id, 1, groups, &encoded).unwrap().intact);
    }
    assert!(
        store.held_groups(id).unwrap()[1].is_empty(),
        "held before synced"
    );
    store.sync(id).unwrap();
    let store = reopen(store);
    let held: Vec<_> = store.held_groups(id).unwrap()[1].iter().collect();
    assert_eq!(held, [0..1, 3..20, 40..41]);
    let missing = SIZES[1] as u64 - 18 * GROUP_BYTES - 7;
    assert_eq!(store.missing_bytes(id, &[1]).unwrap(), missing);
    // What is held of a part is served on.
    let (_dir3, third) = empty();
    third
        .put_manifest(&source.manifest(id).unwrap().encode())
        .unwrap();
    let encoded = store.encode_groups(id, 1, 5..9).unwrap();
    assert!(third.write_groups(id, 1, 5..9, &encoded).unwrap().intact);
    assert!(matches!(
        store.encode_groups(id, 1, 1..4),
        Err(StoreError::NotHeld { .. })
    ));
}

#[test]
fn bytes_count_once_however_often_they_come() {
    let (_dir, source, id) = with_model();
    let (_dir2, store) = empty();
    store
        .put_manifest(&source.manifest(id).unwrap().encode())
        .unwrap();
    let write = |groups: std::ops::Range<u64>| {
        let encoded = source.encode_groups(id, 1, groups.clone()).unwrap();
        store.write_groups(id, 1, groups, &encoded).unwrap().bytes
    };
    assert_eq!(write(0..4), 4 * GROUP_BYTES);
    assert_eq!(write(2..6), 2 * GROUP_BYTES);
    store.sync(id).unwrap();
    assert_eq!(write(5..7), GROUP_BYTES);
    assert_eq!(write(0..7), 0);
}

#[test]
fn an_answer_changed_anywhere_is_noticed_and_the_good_part_before_it_kept() {
    let (_dir, source, id) = with_model();
    let good = source.encode_groups(id, 1, 8..16).unwrap();
    for position in (0..good.len()).step_by(4999).chain([good.len() - 1]) {
        let (_dir2, store) = empty();
        store
            .put_manifest(&source.manifest(id).unwrap().encode())
            .unwrap();
        let mut bad = good.clone();
        bad[position] ^= 1;
        let accepted = store.write_groups(id, 1, 8..16, &bad).unwrap();
        assert!(!accepted.intact, "byte {position}");
        store.sync(id).unwrap();
        assert_eq!(
            store.missing_bytes(id, &[1]).unwrap(),
            SIZES[1] as u64 - accepted.bytes
        );
        assert_eq!(store.verify(id, 1).unwrap().damaged, 0);
    }
    let (_dir2, store) = empty();
    store
        .put_manifest(&source.manifest(id).unwrap().encode())
        .unwrap();
    let longer = [&good[..], b"x"].concat();
    assert!(!store.write_groups(id, 1, 8..16, &longer).unwrap().intact);
    assert!(
        !store
            .write_groups(id, 1, 8..16, &good[..good.len() - 1])
            .unwrap()
            .intact
    );
    assert!(!store.write_groups(id, 1, 0..8, &good).unwrap().intact);
    assert!(!store.write_groups(id, 1, 8..16, &[]).unwrap().intact);
}

#[test]
fn ranges_outside_a_model_are_refused() {
    let (_dir, store, id) = with_model();
    let refused = |segment, groups| {
        let served = store.encode_groups(id, segment, groups);
        assert!(matches!(served, Err(StoreError::OutOfRange { .. })));
    };
    refused(5, 0..1);
    refused(1, 0..42);
    refused(1, 2..2);
    #[expect(clippy::reversed_empty_ranges, reason = "what a peer may send")]
    refused(1, 3..2);
    refused(1, u64::MAX - 1..u64::MAX);
    assert!(matches!(
        store.verify(id, 5),
        Err(StoreError::OutOfRange { .. })
    ));
}

#[test]
fn damage_on_disk_is_found_when_verifying_and_given_up() {
    let (_dir, store, id) = with_model();
    fixture::flip(&store, id, 1, 10 * GROUP_BYTES + 5);
    let verified = store.verify(id, 1).unwrap();
    assert_eq!(verified.damaged, GROUP_BYTES);
    assert_eq!(verified.good, SIZES[1] as u64 - GROUP_BYTES);
    assert!(!store.held(id).unwrap()[1]);
    let store = reopen(store);
    assert_eq!(store.missing_bytes(id, &[1]).unwrap(), GROUP_BYTES);
}

#[test]
fn damage_on_disk_is_found_when_serving_and_can_be_fetched_again() {
    let (_dir, source, id) = with_model();
    let (_dir2, store) = empty();
    copy(&source, &store, id);
    for (segment, position) in [(0, 3), (1, 40 * GROUP_BYTES + 6), (2, 0), (1, 7)] {
        fixture::flip(&store, id, segment, position);
        let groups = 0..group_count(SIZES[segment] as u64);
        let served = store.encode_groups(id, segment, groups.clone());
        assert!(matches!(served, Err(StoreError::Damaged { .. })));
        let missing: Vec<_> = store.missing_groups(id, segment).unwrap().iter().collect();
        let group = position / GROUP_BYTES;
        assert_eq!((missing.len(), missing[0].clone()), (1, group..group + 1));
        let cure = source.encode_groups(id, segment, group..group + 1).unwrap();
        store
            .write_groups(id, segment, group..group + 1, &cure)
            .unwrap();
        store.sync(id).unwrap();
        assert!(store.encode_groups(id, segment, groups).is_ok());
    }
}

#[test]
fn a_damaged_outboard_is_noticed_and_cured() {
    let (_dir, source, id) = with_model();
    let (_dir2, store) = empty();
    copy(&source, &store, id);
    let path = store
        .weights_path(id)
        .unwrap()
        .with_file_name("outboard.bin");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 70;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let damaged: u64 = (0..5)
        .map(|segment| store.verify(id, segment).unwrap().damaged)
        .sum();
    assert!(damaged > 0);
    for segment in 0..5 {
        for run in store.missing_groups(id, segment).unwrap().iter() {
            let encoded = source.encode_groups(id, segment, run.clone()).unwrap();
            assert!(
                store
                    .write_groups(id, segment, run, &encoded)
                    .unwrap()
                    .intact
            );
        }
    }
    store.sync(id).unwrap();
    for segment in 0..5 {
        assert_eq!(store.verify(id, segment).unwrap().damaged, 0);
    }
}

#[test]
fn a_damaged_blob_is_given_up_and_can_be_put_again() {
    let (dir, store, id) = with_model();
    fs::write(
        dir.path().join(format!("models/{id}/graph.bin")),
        b"a graqh",
    )
    .unwrap();
    assert!(matches!(store.graph(id), Err(StoreError::Damaged { .. })));
    assert!(matches!(store.graph(id), Err(StoreError::NotHeld { .. })));
    assert!(!store.models()[0].blobs);
    assert!(matches!(
        store.put_blob(id, BlobKind::Graph, b"another"),
        Err(StoreError::Mismatch { .. })
    ));
    store.put_blob(id, BlobKind::Graph, fixture::GRAPH).unwrap();
    assert_eq!(store.graph(id).unwrap(), fixture::GRAPH);
}

#[test]
fn a_removed_model_is_gone_and_its_space_free() {
    let (dir, store, id) = with_model();
    let other = fixture::import(&store, "other", 2, &SIZES);
    let used = store.used_bytes();
    let freed = store.remove(id).unwrap();
    assert_eq!(store.used_bytes(), used - freed);
    assert!(freed > SIZES.iter().sum::<usize>() as u64);
    assert!(matches!(store.manifest(id), Err(StoreError::NotFound(_))));
    assert!(matches!(store.remove(id), Err(StoreError::NotFound(_))));
    assert_eq!(fs::read_dir(dir.path().join("models")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(dir.path().join("trash")).unwrap().count(), 0);
    let store = reopen(store);
    assert_eq!(store.models().len(), 1);
    assert_eq!(store.models()[0].id, other);
}

#[test]
fn a_removal_that_was_killed_is_finished_at_the_next_open() {
    let (dir, store, id) = with_model();
    let models = dir.path().join("models");
    let trash = dir.path().join("trash/0");
    fs::create_dir(&trash).unwrap();
    fs::rename(models.join(id.to_string()), trash.join("model")).unwrap();
    let store = reopen(store);
    assert!(store.models().is_empty());
    assert_eq!(store.used_bytes(), 0);
    assert!(!trash.exists());
}

#[test]
fn the_capacity_bounds_imports_and_pulls() {
    let (_dir, source, id) = with_model();
    let (_dir2, store) = empty();
    store
        .put_manifest(&source.manifest(id).unwrap().encode())
        .unwrap();
    store.set_capacity(Some(store.used_bytes() + 5 * GROUP_BYTES));
    let write = |groups: std::ops::Range<u64>| {
        let encoded = source.encode_groups(id, 1, groups.clone()).unwrap();
        store.write_groups(id, 1, groups, &encoded)
    };
    write(0..4).unwrap();
    write(2..4).unwrap();
    match write(4..6) {
        Err(StoreError::NoSpace { needed, available }) => assert!(needed > available),
        other => panic!("{other:?}"),
    }
    let mut import = store.begin_import().unwrap();
    let mut segment = import.segment().unwrap();
    assert!(matches!(
        segment.append(&[0; 2 * GROUP]),
        Err(StoreError::NoSpace { .. })
    ));
    let error = segment.write_all(&[0; 2 * GROUP]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    store.set_capacity(None);
    assert!(write(4..6).is_ok());
}

#[test]
fn a_lost_or_damaged_state_file_is_made_anew_from_the_data() {
    let (dir, source, id) = with_model();
    let (dir2, store) = empty();
    store
        .put_manifest(&source.manifest(id).unwrap().encode())
        .unwrap();
    let encoded = source.encode_groups(id, 1, 3..17).unwrap();
    store.write_groups(id, 1, 3..17, &encoded).unwrap();
    store.sync(id).unwrap();
    let expected = store.held_groups(id).unwrap();
    let state = dir2.path().join("state.redb");
    let whole = fs::read(&state).unwrap();
    drop(store);
    let mut flipped = whole.clone();
    for byte in flipped.iter_mut().step_by(100) {
        *byte ^= 0xFF;
    }
    let broken: [Option<&[u8]>; 4] = [
        None,
        Some(b"not a database"),
        Some(&whole[..whole.len() / 2]),
        Some(&flipped),
    ];
    for bytes in broken {
        match bytes {
            None => fs::remove_file(&state).unwrap(),
            Some(bytes) => fs::write(&state, bytes).unwrap(),
        }
        let store = Store::open(dir2.path()).unwrap();
        assert_eq!(store.held_groups(id).unwrap(), expected);
        assert!(!store.notes().is_empty());
        drop(store);
        let store = Store::open(dir2.path()).unwrap();
        assert!(store.notes().is_empty());
        assert_eq!(store.held_groups(id).unwrap(), expected);
    }
    drop(source);
    fs::remove_file(dir.path().join("state.redb")).unwrap();
    let source = Store::open(dir.path()).unwrap();
    assert_eq!(source.held(id).unwrap(), [true; 5]);
}

#[test]
fn a_model_that_finished_importing_but_not_in_the_state_file_is_found() {
    let (dir, store, id) = with_model();
    store.0.state.remove(id).unwrap();
    let store = reopen(store);
    assert_eq!(store.held(id).unwrap(), [true; 5]);
    assert_eq!(store.notes().len(), 1);
    drop(store);
    drop(dir);
}

#[test]
fn lost_weights_are_noticed_when_opening() {
    let (dir, store, id) = with_model();
    let path = store.weights_path(id).unwrap();
    drop(store);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(GROUP_BYTES * 20).unwrap();
    let store = Store::open(dir.path()).unwrap();
    let held = store.held(id).unwrap();
    assert!(held[0] && !held[1] && !held[4]);
    assert!(store.held_groups(id).unwrap()[1].contains(&(0..10)));
    drop(store);
    fs::remove_file(&path).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.held(id).unwrap(), [false; 5]);
}

#[test]
fn a_folder_without_its_manifest_keeps_its_data_until_the_manifest_is_back() {
    let (dir, store, id) = with_model();
    let manifest = dir.path().join(format!("models/{id}/manifest.cbor"));
    let bytes = fs::read(&manifest).unwrap();
    fs::write(&manifest, b"garbage").unwrap();
    fs::create_dir(dir.path().join("models/lost+found")).unwrap();
    let store = reopen(store);
    assert!(store.models().is_empty());
    assert_eq!(store.notes().len(), 2);
    assert_eq!(store.put_manifest(&bytes).unwrap(), id);
    assert_eq!(store.held(id).unwrap(), [true; 5]);
    assert!(store.models()[0].blobs);
}

#[test]
fn a_model_too_large_for_the_file_system_is_refused_and_leaves_nothing() {
    let (_dir, source, id) = with_model();
    let mut manifest = Manifest::clone(&source.manifest(id).unwrap());
    for segment in &mut manifest.segments[1..] {
        segment.offset += 1 << 49;
    }
    let (dir, store) = empty();
    match store.put_manifest(&manifest.encode()) {
        // A file system may well have room for the hole.
        Ok(huge) => assert_eq!(store.held(huge).unwrap(), [false; 5]),
        Err(error) => {
            assert!(matches!(error, StoreError::Io { .. }), "{error}");
            for folder in ["models", "import"] {
                assert_eq!(fs::read_dir(dir.path().join(folder)).unwrap().count(), 0);
            }
        }
    }
    reopen(store);
}

#[test]
fn many_threads_may_write_and_read_at_once() {
    let (_dir, source, id) = with_model();
    let (_dir2, store) = empty();
    store
        .put_manifest(&source.manifest(id).unwrap().encode())
        .unwrap();
    let bytes: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let (source, store) = (source.clone(), store.clone());
                scope.spawn(move || {
                    let mut bytes = 0;
                    for group in 0..41 {
                        // Every group twice, by different threads.
                        if group % 4 != thread && (group + 1) % 4 != thread {
                            continue;
                        }
                        let groups = group..group + 1;
                        let encoded = source.encode_groups(id, 1, groups.clone()).unwrap();
                        bytes += store.write_groups(id, 1, groups, &encoded).unwrap().bytes;
                        if group % 8 == 0 {
                            store.sync(id).unwrap();
                        }
                    }
                    bytes
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    store.sync(id).unwrap();
    assert_eq!(bytes, SIZES[1] as u64);
    assert!(store.held(id).unwrap()[1]);
    assert_eq!(
        fixture::on_disk(&store, id, 1),
        fixture::data(1, 1, SIZES[1])
    );
}

#[test]
fn writes_to_a_model_removed_meanwhile_do_not_count_for_its_successor() {
    let (_dir, source, id) = with_model();
    let (_dir2, store) = empty();
    let manifest = source.manifest(id).unwrap().encode();
    store.put_manifest(&manifest).unwrap();
    let encoded = source.encode_groups(id, 1, 0..8).unwrap();
    store.write_groups(id, 1, 0..8, &encoded).unwrap();
    store.remove(id).unwrap();
    assert!(matches!(store.sync(id), Err(StoreError::NotFound(_))));
    store.put_manifest(&manifest).unwrap();
    store.sync(id).unwrap();
    assert!(store.held_groups(id).unwrap()[1].is_empty());
}
