//! A server that dies in the middle of writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use botmesh_core::error::{Effect, StoreErrorKind as Kind};
use botmesh_core::kv::{Expect, Outcome, Version};
use botmesh_redis_store::{RedisConfig, RedisStore};
use botmesh_test_servers::{Options, Persistence, Redis};

use crate::tools::{Kv, create, get, impatient, put, until, until_served};

/// Creates entries one after the other until told to end. Answers with those that were acknowledged.
async fn write(kv: Kv, task: usize, end: Arc<AtomicBool>) -> Vec<(String, Version)> {
    let mut written = Vec::new();
    let mut number = 0;
    while !end.load(Ordering::Relaxed) {
        let key = format!("{task}-{number}");
        match kv.commit(vec![put(&key, Expect::Absent, &key)]).await {
            Ok(outcomes) => {
                let [Outcome::Applied(version)] = outcomes[..] else { panic!("{key}: {outcomes:?}") };
                written.push((key, version));
            }
            Err(error) => assert_eq!(error.kind(), Kind::Unavailable, "{error}"),
        }
        number += 1;
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "a real server is killed while tasks write")]
async fn what_was_acknowledged_survives_a_killed_server() {
    const TASKS: usize = 4;
    let redis = Redis::start(&Options::new().with_persistence(Persistence::Always)).unwrap();
    let store = RedisStore::open(redis.url()).await.unwrap();
    let kv = store.durability();
    let end = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        (0..TASKS).map(|task| tokio::spawn(write(Arc::clone(&kv), task, Arc::clone(&end)))).collect();
    for _ in 0..3 {
        let before = create_more(&redis, &kv).await;
        redis.kill().unwrap();
        redis.restart().unwrap();
        until_served(&kv).await;
        assert!(get(&kv, &before).await.is_some(), "{before} is lost");
    }
    create_more(&redis, &kv).await;
    end.store(true, Ordering::Relaxed);
    let mut count = 0;
    for writer in writers {
        for (key, version) in writer.await.unwrap() {
            assert_eq!(get(&kv, &key).await.map(|entry| entry.version), Some(version), "{key}");
            count += 1;
        }
    }
    assert!(count > TASKS, "only {count} writes were acknowledged");
}

/// Waits until the writers got further. Answers with an entry of its own.
async fn create_more(redis: &Redis, kv: &Kv) -> String {
    const MORE: i64 = 40;
    let size = || match redis.command(&["HLEN", "{botmesh:}:journal"]).unwrap() {
        botmesh_test_servers::Reply::Int(size) => size,
        other => panic!("{other:?}"),
    };
    let before = size();
    until("more writes", async || size() >= before + MORE).await;
    let key = format!("own {before}");
    create(kv, &key).await;
    key
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let redis = Redis::start(&Options::new().with_persistence(Persistence::Always)).unwrap();
    let store = RedisStore::open_with(redis.url(), RedisConfig::default()).await.unwrap();
    let kv = store.durability();
    let version = create(&kv, "k").await;
    redis.kill().unwrap();
    redis.restart().unwrap();
    // One of the first may be lost with the old connection; it then says so.
    until_served(&kv).await;
    assert_eq!(get(&kv, "k").await.map(|entry| entry.version), Some(version));
}

#[tokio::test]
async fn a_write_that_is_not_sent_has_no_effect() {
    let redis = Redis::start(&Options::new()).unwrap();
    let store = RedisStore::open_with(redis.url(), impatient()).await.unwrap();
    let kv = store.durability();
    create(&kv, "k").await;
    redis.kill().unwrap();
    // At the latest the second one knows that there is no connection.
    let mut last = None;
    for _ in 0..3 {
        last = kv.commit(vec![put("l", Expect::Absent, "v")]).await.err();
    }
    let error = last.unwrap();
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::None), "{error}");
}
