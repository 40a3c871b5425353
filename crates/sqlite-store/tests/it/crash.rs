//! A process that is killed in the middle of its work.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};

use botmesh_core::kv::{Expect, Index, Range};
use botmesh_core::time::Timestamp;
use botmesh_sqlite_store::SqliteStore;

use crate::tools::{block_on, child, for_child, get, put_at, spawn, version};

const LIVES: usize = 6;
const ACKNOWLEDGED: usize = 200;
const TASKS: usize = 8;

fn value(key: &str) -> Vec<u8> {
    key.bytes().cycle().take(900).collect()
}

/// Commits for ever, and prints each key after its commit returned.
#[test]
fn child_that_commits() {
    let Some(path) = for_child() else { return };
    let life = std::process::id();
    block_on(async {
        let store = SqliteStore::open(path).await.unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let kv = store.durability();
                spawn(async move {
                    for n in 0.. {
                        let keys = [format!("{life}/{task}/{n}/a"), format!("{life}/{task}/{n}/b")];
                        let index = Index { due: Some(Timestamp::from_millis(n)), list: Some((1, n)) };
                        let ops = keys.iter().map(|key| put_at(key, Expect::Absent, value(key), index));
                        let outcomes = kv.commit(ops.collect()).await.unwrap();
                        for (key, outcome) in keys.iter().zip(&outcomes) {
                            println!("ack {key} {}", version(outcome).0);
                        }
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
fn a_killed_process_loses_nothing_that_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    let mut acknowledged = Vec::new();
    for life in 1..=LIVES {
        let highest = acknowledged.iter().map(|(_, version)| *version).max().unwrap_or(0);
        let mut process = child("crash::child_that_commits", &path).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok).filter_map(|line| {
            let (key, version) = line.split_once("ack ")?.1.split_once(' ')?;
            Some((key.to_owned(), version.parse::<u64>().ok()?))
        });
        let first: Vec<_> = lines.by_ref().take(ACKNOWLEDGED).collect();
        assert_eq!(first.len(), ACKNOWLEDGED, "the child ended by itself");
        process.kill().unwrap();
        let new: Vec<_> = first.into_iter().chain(lines).collect();
        process.wait().unwrap();
        assert!(new.iter().all(|(_, version)| *version > highest), "a version was given twice");
        acknowledged.extend(new);
        block_on(check(&path, &acknowledged, life));
    }
}

async fn check(path: &std::path::Path, acknowledged: &[(String, u64)], life: usize) {
    let store = SqliteStore::open(path).await.unwrap();
    let kv = store.durability();
    for (key, version) in acknowledged {
        let entry = get(&*kv, key).await.unwrap_or_else(|| panic!("{key} is lost after life {life}"));
        assert_eq!(entry.version.0, *version, "{key}");
        assert_eq!(entry.value, value(key), "{key}");
    }
    let range = Range::Due { until: Timestamp::MAX };
    let entries = kv.scan(range, None, usize::MAX).await.unwrap();
    let keys: HashSet<_> = entries.iter().map(|entry| entry.key.clone()).collect();
    assert_eq!(keys.len(), entries.len());
    assert!(entries.len() >= acknowledged.len());
    let versions: HashSet<_> = entries.iter().map(|entry| entry.version).collect();
    assert_eq!(versions.len(), entries.len(), "two entries have one version");
    store_is_sound(path);
}

/// SQLite's own check of the file, with every index compared with its table.
fn store_is_sound(path: &std::path::Path) {
    let conn = rusqlite::Connection::open(path).unwrap();
    let said: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(said, "ok");
}
