//! The end of connections.

use botmesh_core::error::StoreErrorKind as Kind;
use botmesh_core::kv::Expect;
use botmesh_core::store::Store as _;
use botmesh_redis_store::RedisStore;
use botmesh_test_servers::Redis;

use crate::tools::{create, get, impatient, open, put, server, until};

/// Without the one that asks.
fn connections(redis: &Redis) -> usize {
    let list = redis.command(&["CLIENT", "LIST"]).unwrap().text().unwrap();
    list.lines().filter(|line| !line.contains("cmd=client")).count()
}

async fn until_there_are(count: usize, redis: &Redis) {
    until("the end of connections", async || connections(redis) == count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_journals_refuse_and_leave_the_store_open() {
    let redis = server();
    let store = open(&redis).await;
    let kv = store.durability();
    create(&kv, "k").await;
    kv.close().await.unwrap();
    kv.close().await.unwrap();
    let late = kv.commit(vec![put("l", Expect::Absent, "v")]).await.unwrap_err();
    assert_eq!(late.kind(), Kind::Misuse, "{late}");
    assert_eq!(kv.scoped("s").get(&[]).await.unwrap_err().kind(), Kind::Misuse);
    let again = store.durability();
    assert!(get(&again, "k").await.is_some());
    store.close().await.unwrap();
    store.close().await.unwrap();
    let late = again.get(&["k".into()]).await.unwrap_err();
    assert_eq!(late.kind(), Kind::Misuse, "{late}");
    assert!(late.to_string().contains("closed"), "{late}");
    until_there_are(0, &redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_ends_with_its_last_handle() {
    let redis = server();
    let store = open(&redis).await;
    let kv = store.durability();
    let own = kv.dedicated().await.unwrap().unwrap();
    drop(store);
    create(&kv, "k").await;
    assert_eq!(connections(&redis), 2);
    drop(kv);
    until_there_are(1, &redis).await;
    assert!(get(&own, "k").await.is_some());
    drop(own);
    until_there_are(0, &redis).await;
}

#[tokio::test]
async fn closing_does_not_wait_for_a_server_that_is_gone() {
    let redis = server();
    let store = RedisStore::open_with(redis.url(), impatient()).await.unwrap();
    redis.kill().unwrap();
    store.durability().close().await.unwrap();
    store.close().await.unwrap();
}
