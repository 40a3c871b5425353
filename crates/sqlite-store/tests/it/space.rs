//! A disk that is full for a while.

use botmesh_core::error::{Effect, StoreErrorKind};
use botmesh_core::kv::Op;
use botmesh_core::store::Store;
use botmesh_sqlite_store::SqliteStore;

use crate::tools::{Mount, all_applied, block_on, create, get, spawn, version};

const TASKS: usize = 6;
const VALUE: usize = 20 << 10;

fn ops(task: usize, n: usize) -> Vec<Op> {
    (0..5).map(|part| create(format!("{task}/{n}/{part}"), vec![task as u8; VALUE])).collect()
}

#[test]
fn a_full_disk_fails_commits_as_a_whole_and_the_store_goes_on_when_there_is_room() {
    let test = "a_full_disk_fails_commits_as_a_whole_and_the_store_goes_on_when_there_is_room";
    let Some(mount) = Mount::tmpfs(test, "24m") else { return };
    let ballast = mount.path().join("ballast");
    std::fs::write(&ballast, vec![1; 16 << 20]).unwrap();
    let path = mount.path().join("bot.db");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let kv = store.durability();
                spawn(async move {
                    for n in 0.. {
                        match kv.commit(ops(task, n)).await {
                            Ok(outcomes) => all_applied(&outcomes),
                            Err(error) => return (n, error),
                        }
                    }
                    unreachable!("the disk is never full")
                })
            })
            .collect();
        let mut full = Vec::new();
        for task in tasks {
            full.push(task.await.unwrap());
        }
        let kv = store.durability();
        for (task, (failed, error)) in full.iter().enumerate() {
            println!("{error}");
            assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Full, Effect::None), "{error}");
            assert!(error.retry());
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
            for n in 0..=*failed {
                for part in 0..5 {
                    let found = get(&*kv, format!("{task}/{n}/{part}")).await;
                    assert_eq!(found.is_some(), n < *failed, "{task}/{n}/{part}");
                }
            }
        }
        std::fs::remove_file(&ballast).unwrap();
        for (task, (failed, _)) in full.iter().enumerate() {
            all_applied(&kv.commit(ops(task, *failed)).await.unwrap());
        }
        store.close().await.unwrap();
    });
    block_on(async {
        let kv = SqliteStore::open(&path).await.unwrap().durability();
        for task in 0..TASKS {
            assert_eq!(get(&*kv, format!("{task}/0/4")).await.unwrap().value.len(), VALUE);
        }
    });
}

#[test]
fn a_disk_that_is_full_from_the_start_is_told_at_open() {
    let Some(mount) = Mount::tmpfs("a_disk_that_is_full_from_the_start_is_told_at_open", "1m") else {
        return;
    };
    let ballast = mount.path().join("ballast");
    // As much as there is.
    std::fs::write(&ballast, vec![1; 2 << 20]).unwrap_err();
    let path = mount.path().join("bot.db");
    let error = block_on(SqliteStore::open(&path)).unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    std::fs::remove_file(&ballast).unwrap();
    block_on(async {
        let kv = SqliteStore::open(&path).await.unwrap().durability();
        version(&kv.commit(vec![create("k", "v")]).await.unwrap()[0]);
    });
}
