//! Tickets of the dead in chats where nobody comes again.

use std::time::Duration;

use botmesh_core::coordinator::{Coordinator, Ticket, Turn};
use botmesh_redis_store::{RedisCoordinator, RedisCoordinatorConfig};
use botmesh_test_servers::{Cluster, Options, Redis};
use futures_util::future::join_all;

use crate::cluster_turns::slot_of;
use crate::permissions::{recommended_for_turns, with_rules};
use crate::tools::{server, soon};
use crate::turns::{calls, enter, replica_at, short, take, tickets, until};

/// It is soon forgotten who had a chat.
fn forgetful() -> RedisCoordinatorConfig {
    short().with_idle_ttl(Duration::from_secs(1))
}

/// The chats of this name that a server knows.
fn chats(redis: &Redis, name: &str) -> usize {
    redis.command(&["KEYS", &format!("{{botmesh:turns:*}}:queue:{name}*")]).unwrap().items().len()
}

async fn enter_all(replica: &RedisCoordinator, name: &str, count: usize) -> Vec<Ticket> {
    let keys: Vec<_> = (0..count).map(|chat| format!("{name}{chat}")).collect();
    join_all(keys.iter().map(|key| enter(replica, key))).await
}

async fn turns(tickets: &mut [Ticket]) -> Vec<Turn> {
    let turns = join_all(tickets.iter_mut().map(|ticket| ticket.granted()));
    soon("the turns", turns).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_replica_left_in_a_thousand_chats_goes_though_nobody_comes_there() {
    let redis = server();
    let (a, b) = (replica_at(redis.url(), forgetful()).await, replica_at(redis.url(), forgetful()).await);
    let _left = [enter_all(&a, "left", 1000).await, enter_all(&a, "left", 1000).await];
    // Chats of the living: the dead one holds some, waits in others, and has some to itself for a while.
    let _held = enter_all(&a, "next", 20).await;
    let mut next = enter_all(&b, "next", 20).await;
    let held = turns(&mut enter_all(&b, "held", 20).await).await;
    let _behind = enter_all(&a, "held", 20).await;
    let waiting = enter_all(&b, "held", 20).await;
    assert_eq!(chats(&redis, "left"), 1000);
    a.crash();
    until("the chats of the dead are gone", || chats(&redis, "left") == 0).await;
    let next = turns(&mut next).await;
    for turn in held.iter().chain(&next) {
        assert_eq!(turn.confirm().await, Ok(()));
    }
    for chat in 0..20 {
        assert_eq!(tickets(&redis, &format!("held{chat}")).len(), 3, "those behind a living one stay");
        assert_eq!(tickets(&redis, &format!("next{chat}")).len(), 1);
    }
    held.into_iter().for_each(|turn| turn.release());
    let mut waiting = waiting;
    for turn in turns(&mut waiting).await {
        assert_eq!(turn.previous_holder(), Some(&a.session()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_starts_after_all_have_died_removes_what_they_left() {
    let redis = server();
    let a = replica_at(redis.url(), forgetful()).await;
    let _left = enter_all(&a, "left", 300).await;
    a.crash();
    let b = replica_at(redis.url(), forgetful()).await;
    until("the chats of the dead are gone", || chats(&redis, "left") == 0).await;
    take(&b, "ana").await.release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_goes_from_every_node_of_a_cluster() {
    let cluster = Cluster::start(&Options::new(), 3, 0).unwrap();
    let all = |name| cluster.nodes().iter().map(|node| chats(node, name)).sum::<usize>();
    let url = cluster.url();
    let (a, b) = (replica_at(&url, forgetful()).await, replica_at(&url, forgetful()).await);
    let _left = enter_all(&a, "left", 500).await;
    let held = turns(&mut enter_all(&b, "held", 100).await).await;
    assert!(cluster.nodes().iter().all(|node| chats(node, "left") > 50));
    a.crash();
    until("the chats of the dead are gone", || all("left") == 0).await;
    assert_eq!(all("held"), 100);
    for turn in &held {
        assert_eq!(turn.confirm().await, Ok(()));
    }
    b.close().await;
}

/// A Cluster whose last master has no slot yet.
fn with_a_new_master() -> Cluster {
    let options = Options::new().with_setting("cluster-allow-replica-migration", "no");
    let cluster = Cluster::start(&options, 4, 0).unwrap();
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTSRANGE", "12288", "16383"]).unwrap();
    }
    cluster.nodes()[0].command(&["CLUSTER", "ADDSLOTSRANGE", "12288", "16383"]).unwrap();
    cluster.wait_until_serving().unwrap();
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_goes_from_a_master_that_joined_while_the_replicas_ran() {
    let cluster = with_a_new_master();
    let new = &cluster.nodes()[3];
    let (a, b) =
        (replica_at(&cluster.url(), forgetful()).await, replica_at(&cluster.url(), forgetful()).await);
    let _left = enter_all(&a, "left", 20).await;
    let held = turns(&mut enter_all(&b, "held", 100).await).await;
    let slot = slot_of(&cluster, "left0");
    tokio::task::block_in_place(|| cluster.move_slot(slot, new).unwrap());
    assert!(chats(new, "left") > 0 && chats(new, "held") > 0);
    a.crash();
    until("the chats of the dead are gone", || chats(new, "left") == 0).await;
    for turn in &held {
        assert_eq!(turn.confirm().await, Ok(()));
    }
}

/// The chats of this name that the nodes know, as keys.
fn chats_at(nodes: &[Redis], name: &str) -> Vec<String> {
    let pattern = format!("{{botmesh:turns:*}}:queue:{name}*");
    let found = nodes.iter().map(|node| node.command(&["KEYS", &pattern]).unwrap());
    found.flat_map(|keys| keys.items().iter().map(|key| key.text().unwrap()).collect::<Vec<_>>()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_that_move_keep_it_from_going_in_no_other_one_and_are_not_forgotten() {
    let cluster = Cluster::start(&Options::new(), 2, 0).unwrap();
    let (a, b) =
        (replica_at(&cluster.url(), forgetful()).await, replica_at(&cluster.url(), forgetful()).await);
    let _left = enter_all(&a, "left", 1000).await;
    let held = turns(&mut enter_all(&b, "held", 100).await).await;
    let (from, to) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let mut slots: Vec<_> =
        chats_at(&cluster.nodes()[..1], "left").iter().map(|key| cluster.slot_of(key).unwrap()).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(cluster.owner_of(slots[1]).unwrap().address(), from.address());
    // The keys of one are where they were, those of the other one where they will be.
    let begun = cluster.begin_slot_move(slots[0], to).unwrap();
    let moved = cluster.begin_slot_move(slots[1], to).unwrap();
    moved.move_keys().unwrap();
    a.crash();
    let is_moving = |key: &String| slots[..2].contains(&cluster.slot_of(key).unwrap());
    until("what is in other buckets is gone", || chats_at(cluster.nodes(), "left").iter().all(is_moving))
        .await;
    assert!(!chats_at(cluster.nodes(), "left").is_empty());
    tokio::task::block_in_place(|| {
        begun.finish().unwrap();
        moved.finish().unwrap();
    });
    until("the chats of the dead are gone", || chats_at(cluster.nodes(), "left").is_empty()).await;
    for turn in &held {
        assert_eq!(turn.confirm().await, Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_may_not_look_for_it_does_not_try_again_and_again() {
    let redis = with_rules(&recommended_for_turns());
    let (a, b) = (replica_at(redis.url(), forgetful()).await, replica_at(redis.url(), forgetful()).await);
    let _left = enter_all(&a, "left", 20).await;
    a.crash();
    let refused = || {
        let stats = redis.command(&["INFO", "commandstats"]).unwrap().text().unwrap();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_scan:"));
        let count = line
            .and_then(|line| line.split_once("rejected_calls=")?.1.split(',').next()?.parse::<u64>().ok());
        count.unwrap_or(0)
    };
    until("it may not look for it", || refused() > 0).await;
    // Three heartbeats in a lease, each of which tells that something is left.
    let before = calls(&redis, "evalsha");
    until("four leases pass", || calls(&redis, "evalsha") >= before + 12).await;
    assert_eq!(refused(), 1);
    take(&b, "ana").await.release();
}
