//! A store on a Cluster: every script finds its keys on one node, and goes on when they move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use botmesh_core::error::{Effect, StoreErrorKind as Kind};
use botmesh_core::kv::{Expect, Outcome};
use botmesh_redis_store::{RedisConfig, RedisStore};
use botmesh_test_servers::{Cluster, Options, Redis};

use crate::tools::{Kv, create, get, put, refused, until};

/// The master that has not this slot.
fn other(cluster: &Cluster, slot: u16) -> &Redis {
    let owner = cluster.owner_of(slot).unwrap().address();
    cluster.nodes().iter().find(|node| node.address() != owner).unwrap()
}

async fn write(kv: Kv, end: Arc<AtomicBool>, written: Arc<std::sync::Mutex<Vec<String>>>) {
    let mut number = 0;
    while !end.load(Ordering::Relaxed) {
        let key = number.to_string();
        match kv.commit(vec![put(&key, Expect::Absent, "v")]).await {
            Ok(outcomes) => {
                assert!(matches!(outcomes[..], [Outcome::Applied(_)]), "{key}: {outcomes:?}");
                written.lock().unwrap().push(key);
                number += 1;
            }
            // The key is tried again: a write that happened all the same would be a conflict.
            Err(error) => {
                assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::None), "{error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "a real Cluster moves slots while a task writes")]
async fn a_scope_that_moves_to_another_node_loses_nothing() {
    let cluster = Cluster::start(&Options::new(), 2, 0).unwrap();
    let kv = RedisStore::open(&cluster.url()).await.unwrap().durability();
    let slot = cluster.slot_of("{botmesh:}:journal").unwrap();
    let (end, written) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let writer = tokio::spawn(write(Arc::clone(&kv), Arc::clone(&end), Arc::clone(&written)));
    let count = || written.lock().unwrap().len();
    for _ in 0..3 {
        let before = count();
        until("writes before the slot moves", async || count() > before + 20).await;
        cluster.move_slot(slot, other(&cluster, slot)).unwrap();
    }
    let before = count();
    until("writes after the last move", async || count() > before + 20).await;
    end.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    let written = written.lock().unwrap().clone();
    for key in written {
        assert!(get(&kv, &key).await.is_some(), "{key} is lost");
    }
}

#[tokio::test]
async fn a_slot_that_is_on_its_way_refuses_new_keys_until_it_is_there() {
    let cluster = Cluster::start(&Options::new(), 2, 0).unwrap();
    let kv = RedisStore::open(&cluster.url()).await.unwrap().durability();
    let slot = cluster.slot_of("{botmesh:}:journal").unwrap();
    let moving = cluster.begin_slot_move(slot, other(&cluster, slot)).unwrap();
    let error = kv.commit(vec![put("k", Expect::Absent, "v")]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::None), "{error}");
    assert!(error.retry());
    moving.finish().unwrap();
    create(&kv, "k").await;
}

#[tokio::test]
async fn scopes_are_spread_over_the_nodes() {
    let cluster = Cluster::start(&Options::new(), 2, 0).unwrap();
    let kv = RedisStore::open(&cluster.url()).await.unwrap().durability();
    for scope in 0..16 {
        create(&kv.scoped(&scope.to_string()), "k").await;
    }
    for node in cluster.nodes() {
        let keys = node.command(&["DBSIZE"]).unwrap().int().unwrap();
        assert!(keys >= 4, "a node has {keys} keys");
    }
}

#[tokio::test]
async fn a_node_of_a_cluster_is_no_single_server() {
    let cluster = Cluster::start(&Options::new(), 1, 0).unwrap();
    let error = refused(cluster.nodes()[0].url(), RedisConfig::default()).await;
    assert_eq!(error.kind(), Kind::Misuse);
    assert!(error.to_string().contains("redis-cluster://"), "{error}");
}
