//! What is there when the files are opened again, and how large they become.

use std::sync::Arc;

use botmesh::core::error::{Effect, StoreErrorKind};
use botmesh::core::journal::KvDurability;
use botmesh::core::kv::{Durable, DurableKv, Expect, Op, Outcome};
use botmesh::core::time::Timestamp;
use botmesh::{FileDurability, FileOptions};

use crate::tools::{EMPTY_LOG, Place, applied, block_on, close, commit, create, get, put};

#[test]
fn a_leftover_log_is_read_whatever_the_options_say() {
    let place = Place::new();
    let file = place.open_with(FileOptions::default().with_compact_every(0)).unwrap();
    for n in 0..50 {
        commit(&file, create(format!("k{n}"), "value"));
    }
    // As a crash leaves it: the log beside no snapshot, or beside the one it goes on from.
    drop(file);
    for (options, kept) in
        [(FileOptions::default().with_compact_every(1), 50), (FileOptions::default().with_fsync(false), 51)]
    {
        let file = reopened(&place, &options);
        let found = (0..50).filter(|n| get(&file, format!("k{n}")).is_some()).count();
        assert_eq!(found, 50);
        commit(&file, create(format!("more {kept}"), "value"));
        drop(file);
    }
    let file = reopened(&place, &FileOptions::default());
    assert!(get(&file, "more 50").is_some() && get(&file, "more 51").is_some());
}

/// Opens once the thread of handles that were dropped has given the files back.
fn reopened(place: &Place, options: &FileOptions) -> FileDurability {
    for _ in 0..12_000 {
        match place.open_with(options.clone()) {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                std::thread::park_timeout(std::time::Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
    panic!("the files were not given back in a minute");
}

#[test]
fn closing_folds_the_log_into_the_snapshot() {
    let place = Place::new();
    let file = place.open().unwrap();
    let scoped = file.scoped("bot");
    commit(&*scoped, create("k", "value"));
    assert!(place.length(".log") > EMPTY_LOG);
    close(&file);
    assert_eq!(place.length(".log"), EMPTY_LOG);
    for error in [
        block_on(file.commit(vec![create("late", "value")])).unwrap_err(),
        block_on(scoped.get(&["k".into()])).unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Misuse, Effect::None), "{error}");
    }
    close(&file);
    let file = place.open().unwrap();
    assert!(get(&*file.scoped("bot"), "k").is_some() && get(&file, "k").is_none());
}

#[test]
fn closing_finishes_what_was_called_before() {
    let place = Place::new();
    let file = place.open().unwrap();
    block_on(async {
        let commits = (0..200).map(|n| file.commit(vec![create(format!("k{n}"), "value")]));
        // Unconstrained, so that all of them are called before the file is closed.
        let commits = tokio::task::unconstrained(futures_util::future::join_all(commits));
        let (outcomes, closed) = tokio::join!(commits, file.close());
        closed.unwrap();
        for outcome in outcomes {
            applied(outcome.unwrap()[0]);
        }
    });
    let file = place.open().unwrap();
    assert_eq!((0..200).filter(|n| get(&file, format!("k{n}")).is_some()).count(), 200);
}

#[test]
fn versions_never_restart_after_deletes_snapshots_and_reopenings() {
    let place = Place::new();
    let mut last = 0;
    for life in 0..6 {
        // Every other life leaves a log, the others a snapshot in which nothing is left of the version.
        let file = reopened(&place, &FileOptions::default().with_compact_every(3));
        for _ in 0..5 {
            let version = commit(&file, create("k", "value"));
            assert!(version.0 > last, "life {life}: {version:?} after {last}");
            last = version.0;
            commit(&file, Op::Delete { key: "k".into(), expect: version });
        }
        let stale = put("k", Expect::Version(botmesh::core::kv::Version(last)), "stale");
        assert_eq!(block_on(file.commit(vec![stale])).unwrap(), [Outcome::Conflict(None)]);
        if life % 2 == 0 {
            close(&file);
        }
    }
}

#[test]
fn the_log_is_folded_as_often_as_asked() {
    let place = Place::new();
    let file = place.open_with(FileOptions::default().with_compact_every(10).with_compact_bytes(0)).unwrap();
    let mut version = commit(&file, create("k", vec![1; 1000]));
    let (mut folds, mut before) = (0, 0);
    for _ in 0..200 {
        version = commit(&file, put("k", Expect::Version(version), vec![1; 1000]));
        let length = place.length(".log");
        folds += u32::from(length < before);
        before = length;
        assert!(place.length("") < 2000 && length < 12_000, "{length}");
    }
    assert_eq!(folds, 20);
    let by_bytes = FileOptions::default().with_compact_every(0).with_compact_bytes(5000);
    close(&file);
    let file = place.open_with(by_bytes).unwrap();
    for _ in 0..50 {
        version = commit(&file, put("k", Expect::Version(version), vec![1; 1000]));
        assert!(place.length(".log") < 6500);
    }
}

/// Rewriting a large snapshot for each thousand small commits would make a commit cost as much as the store holds.
#[test]
fn a_log_shorter_than_its_snapshot_is_not_folded() {
    let place = Place::new();
    let file = place.open_with(FileOptions::default().with_compact_every(10)).unwrap();
    for n in 0..30 {
        commit(&file, create(format!("large {n}"), vec![1; 10_000]));
    }
    close(&file);
    let file = place.open_with(FileOptions::default().with_compact_every(10)).unwrap();
    let snapshot = place.length("");
    let (mut folds, mut before) = (0, place.length(".log"));
    let mut version = commit(&file, create("small", vec![1; 1000]));
    let mut written = 0;
    while written < 4 * snapshot {
        version = commit(&file, put("small", Expect::Version(version), vec![1; 1000]));
        let length = place.length(".log");
        folds += u64::from(length < before);
        written += length.saturating_sub(before);
        before = length;
        assert!(length <= snapshot + 4096, "the log has {length} bytes beside a snapshot of {snapshot}");
    }
    assert!((3..=4).contains(&folds), "{folds} snapshots for 4 times their size");
}

#[test]
fn what_is_claimed_follows_the_options() {
    let place = Place::new();
    let file = place.open().unwrap();
    let caps = KvDurability::from(file.clone()).caps();
    assert_eq!((caps.durable, caps.shared, caps.groups_commits), (Durable::PowerLoss, false, true));
    close(&file);
    let file = place.open_with(FileOptions::default().with_fsync(false)).unwrap();
    assert_eq!(file.caps().durable, Durable::ProcessCrash);
}

#[test]
fn options_are_read_from_configuration_and_refused_when_they_cannot_work() {
    let options: FileOptions =
        serde_json::from_str(r#"{"compact_every": 500, "compact_bytes": 1048576, "fsync": false}"#).unwrap();
    assert_eq!(options.with_fsync(true), {
        FileOptions::default().with_compact_every(500).with_compact_bytes(1 << 20)
    });
    assert_eq!(FileOptions::default(), serde_json::from_str("{}").unwrap());
    assert_eq!((FileOptions::default().compact_every, FileOptions::default().compact_bytes), (1000, 4 << 20));
    assert!(serde_json::from_str::<FileOptions>(r#"{"fsnyc": true}"#).is_err());
    let never = FileOptions::default().with_compact_every(0).with_compact_bytes(0);
    let error = Place::new().open_with(never).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misuse);
    assert!(botmesh::describe(&error).contains("compact_every"), "{}", botmesh::describe(&error));
}

#[test]
fn a_commit_too_large_for_an_entry_is_refused_whole() {
    let place = Place::new();
    let file = place.open().unwrap();
    let value = botmesh::core::Bytes::from(vec![1; 16 << 20]);
    let ops = |count: u8| (0..count).map(|n| create(vec![n], value.clone())).collect();
    let error = block_on(file.commit(ops(3))).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (StoreErrorKind::TooLarge, Effect::None), "{error}");
    assert!(get(&file, vec![0]).is_none());
    assert_eq!(block_on(file.commit(ops(2))).unwrap().len(), 2);
}

/// Readers see a commit only when the disk has it, and go on while a snapshot is written.
#[test]
fn reads_go_on_while_snapshots_are_written() {
    let place = Place::new();
    let file = Arc::new(place.open_with(FileOptions::default().with_compact_every(1)).unwrap());
    block_on(async {
        for n in 0..300_i64 {
            let due = Timestamp::from_millis(n);
            let index = botmesh::core::kv::Index { due: Some(due), list: Some((1, n)) };
            let op =
                Op::Put { key: format!("{n:03}").into(), expect: Expect::Absent, value: "v".into(), index };
            let (outcome, page) = tokio::join!(
                file.commit(vec![op]),
                file.scan(botmesh::core::kv::Range::Due { until: due }, None, 1000)
            );
            applied(outcome.unwrap()[0]);
            let seen = page.unwrap().len() as i64;
            assert!((n..=n + 1).contains(&seen), "{seen} of {n} or {}", n + 1);
        }
    });
}
