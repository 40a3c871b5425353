//! Several processes with one file.

use std::collections::HashSet;
use std::time::Duration;

use botmesh_core::error::{Effect, StoreErrorKind};
use botmesh_core::kv::{DurableKv, Expect, Index, Outcome};
use botmesh_sqlite_store::{SqliteConfig, SqliteStore};

use crate::tools::{block_on, child, create, for_child, get, put_at, spawn, version};

const COUNTERS: [&str; 3] = ["1", "01", "1.0"];
const TASKS: usize = 4;
const EACH: usize = 60;

async fn increment(kv: &dyn DurableKv, counter: &str) -> u64 {
    loop {
        let (expect, count) = match get(kv, counter).await {
            Some(entry) => {
                (Expect::Version(entry.version), u64::from_be_bytes(entry.value[..].try_into().unwrap()))
            }
            None => (Expect::Absent, 0),
        };
        let op = put_at(counter, expect, (count + 1).to_be_bytes(), Index::default());
        if let Outcome::Applied(version) = kv.commit(vec![op]).await.unwrap()[0] {
            return version.0;
        }
    }
}

/// Increments the counters and prints the version of each increment.
#[test]
fn child_that_increments() {
    let Some(path) = for_child() else { return };
    block_on(async {
        let config = SqliteConfig::default().with_busy_timeout(Duration::from_secs(60));
        let store = SqliteStore::open_with(path, config).await.unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let kv = store.durability();
                spawn(async move {
                    for n in 0..EACH {
                        println!("version {}", increment(&*kv, COUNTERS[n % COUNTERS.len()]).await);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn two_processes_lose_and_double_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    let spawn = || child("processes::child_that_increments", &path).spawn().unwrap();
    let outputs = [spawn(), spawn()].map(|process| process.wait_with_output().unwrap());
    let mut versions = HashSet::new();
    for output in &outputs {
        assert!(output.status.success());
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((_, version)) = line.split_once("version ") {
                assert!(versions.insert(version.trim().to_owned()), "version {version} was given twice");
            }
        }
    }
    assert_eq!(versions.len(), 2 * TASKS * EACH);
    block_on(async {
        let kv = SqliteStore::open(&path).await.unwrap().durability();
        for counter in COUNTERS {
            let entry = get(&*kv, counter).await.unwrap();
            let count = u64::from_be_bytes(entry.value[..].try_into().unwrap());
            assert_eq!(count, (2 * TASKS * EACH / COUNTERS.len()) as u64, "{counter}");
        }
    });
}

#[test]
fn a_neighbour_that_holds_the_lock_makes_writes_fail_and_not_hang() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let config = SqliteConfig::default().with_busy_timeout(Duration::from_millis(30));
        let store = SqliteStore::open_with(&path, config.clone()).await.unwrap();
        let kv = store.durability();
        let neighbour = rusqlite::Connection::open(&path).unwrap();
        neighbour.execute_batch("BEGIN IMMEDIATE").unwrap();

        let error = kv.commit(vec![create("k", "v")]).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Unavailable, Effect::None));
        assert!(error.retry());
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(get(&*kv, "k").await.is_none(), "reading goes on");
        let error = SqliteStore::open_with(&path, config).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);

        neighbour.execute_batch("ROLLBACK").unwrap();
        version(&kv.commit(vec![create("k", "v")]).await.unwrap()[0]);
    });
}

#[test]
fn a_neighbour_that_goes_in_time_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let config = SqliteConfig::default().with_busy_timeout(Duration::from_secs(60));
        let store = SqliteStore::open_with(&path, config).await.unwrap();
        let kv = store.durability();
        let neighbour = rusqlite::Connection::open(&path).unwrap();
        neighbour.execute_batch("BEGIN IMMEDIATE").unwrap();
        let waiting = spawn({
            let kv = kv.scoped("");
            async move { kv.commit(vec![create("k", "v")]).await }
        });
        for _ in 0..20 {
            assert!(get(&*kv, "k").await.is_none());
        }
        neighbour.execute_batch("COMMIT").unwrap();
        version(&waiting.await.unwrap().unwrap()[0]);
    });
}
