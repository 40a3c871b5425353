//! Turns on a Cluster: each bucket of keys is on one node, and what becomes of one node is of no interest to the others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use botmesh_core::coordinator::{Coordinator, Fence, Turn};
use botmesh_core::error::{LeaseLostReason, StoreErrorKind as Kind};
use botmesh_redis_store::{RedisCoordinator, RedisCoordinatorConfig};
use botmesh_test_servers::{Cluster, Options, Redis};

use crate::turns::{enter, replica_at, short, take, until};

fn cluster() -> Cluster {
    Cluster::start(&Options::new(), 3, 0).unwrap()
}

/// A lease that nobody waits for, nor for the repair of a push that was lost.
fn endless() -> RedisCoordinatorConfig {
    RedisCoordinatorConfig::default().with_lease(Duration::from_secs(600))
}

/// Whether a node has the tickets of a key.
pub(crate) fn has(node: &Redis, key: &str) -> bool {
    let pattern = format!("{{botmesh:turns:*}}:queue:{key}");
    !node.command(&["KEYS", &pattern]).unwrap().items().is_empty()
}

/// The slot of a key that somebody has a ticket of.
pub(crate) fn slot_of(cluster: &Cluster, key: &str) -> u16 {
    let pattern = format!("{{botmesh:turns:*}}:queue:{key}");
    let found = cluster.nodes().iter().map(|node| node.command(&["KEYS", &pattern]).unwrap());
    let queue = found.flat_map(|found| found.items().first().and_then(|queue| queue.text())).next();
    cluster.slot_of(&queue.unwrap()).unwrap()
}

/// The master that has not this slot.
fn other(cluster: &Cluster, slot: u16) -> &Redis {
    let owner = cluster.owner_of(slot).unwrap().address();
    cluster.nodes().iter().find(|node| node.address() != owner).unwrap()
}

/// How many scripts a node has run.
pub(crate) fn scripts(node: &Redis) -> u64 {
    let stats = node.command(&["INFO", "commandstats"]).unwrap().text().unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// How often a node has named another one that will have the slot.
fn sent_away(node: &Redis) -> u64 {
    let stats = node.command(&["INFO", "errorstats"]).unwrap().text().unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("errorstat_ASK:count="));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

/// Takes the turns of some chats; at each node there are some of them.
pub(crate) async fn take_some(replica: &RedisCoordinator) -> Vec<(String, Turn)> {
    let mut turns = Vec::new();
    for chat in 0..40 {
        let key = format!("chat{chat}");
        turns.push((key.clone(), take(replica, &key).await));
    }
    turns
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_are_pushed_from_replica_to_replica_by_every_node() {
    let cluster = cluster();
    let (a, b) = (replica_at(&cluster.url(), endless()).await, replica_at(&cluster.url(), endless()).await);
    let held = take_some(&a).await;
    for node in cluster.nodes() {
        let keys = held.iter().filter(|(key, _)| has(node, key)).count();
        assert!(keys >= 5, "a node has {keys} keys of {}", held.len());
    }
    for (key, turn) in held {
        let mut next = enter(&b, &key).await;
        turn.release();
        let next = next.granted().await.unwrap();
        assert_eq!(next.previous_holder(), Some(turn.session()));
        assert!(next.fence() > turn.fence());
    }
    a.close().await;
    b.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_is_spread_over_the_masters() {
    let cluster = cluster();
    let a = replica_at(&cluster.url(), endless()).await;
    drop(take_some(&a).await);
    let before: Vec<_> = cluster.nodes().iter().map(scripts).collect();
    for chat in 0..300 {
        take(&a, &format!("chat{chat}")).await.release();
    }
    let calls = || cluster.nodes().iter().zip(&before).map(|(node, before)| scripts(node) - before);
    until("every turn is given back", || calls().sum::<u64>() >= 600).await;
    let each: Vec<_> = calls().collect();
    assert!(each.iter().all(|calls| *calls > 100), "the nodes ran {each:?} scripts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_not_used_any_more_costs_nothing() {
    let cluster = cluster();
    let config = short().with_lease(Duration::from_secs(1)).with_idle_ttl(Duration::from_secs(1));
    let a = replica_at(&cluster.url(), config).await;
    let (kept, turns) = (take(&a, "ana").await, take_some(&a).await);
    let sessions: Vec<_> = turns.iter().map(|(_, turn)| turn.session().clone()).collect();
    drop(turns);
    let lives = "
        local _, _, now = struct.unpack('<dddd', redis.call('HGET', KEYS[1], 'clocks'))
        local state = redis.call('HGETALL', KEYS[1])
        for i = 1, #state, 2 do
          if string.sub(state[i], 1, 2) == 's:' and tonumber(state[i + 1]) > now then return 1 end
        end
        return 0";
    let open = || {
        let states = cluster.nodes().iter().flat_map(|node| {
            let states = node.command(&["KEYS", "{botmesh:turns:*}:state"]).unwrap();
            let keys: Vec<_> = states.items().iter().map(|key| key.text().unwrap()).collect();
            keys.into_iter().map(move |key| node.command(&["EVAL", lives, "1", &key]).unwrap().int())
        });
        states.filter(|lives| *lives == Some(1)).count()
    };
    until("the sessions of idle buckets have ended", || open() <= 2).await;
    assert_eq!(kept.check(), Ok(()));
    let again = take(&a, "chat1").await;
    assert!(!sessions.contains(again.session()), "a session that ended never comes back");
    assert_eq!(again.check(), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_data_of_one_node_ends_the_turns_of_its_buckets_alone() {
    let cluster = cluster();
    let a = replica_at(&cluster.url(), short()).await;
    let held = take_some(&a).await;
    let (lost, kept): (Vec<_>, Vec<_>) = held.into_iter().partition(|(key, _)| has(&cluster.nodes()[1], key));
    assert!(!lost.is_empty() && !kept.is_empty());
    cluster.nodes()[1].command(&["FLUSHALL"]).unwrap();
    for (key, turn) in &lost {
        assert_eq!(turn.lost().await.reason, LeaseLostReason::DataLoss, "{key}");
    }
    for (key, turn) in &lost {
        assert!(take(&a, key).await.fence() > turn.fence(), "{key}");
    }
    for (key, turn) in &kept {
        assert_eq!(turn.check(), Ok(()), "{key}");
        turn.release();
        assert_eq!(take(&a, key).await.previous_holder(), Some(turn.session()), "{key}");
    }
}

#[tokio::test]
async fn another_number_of_buckets_is_refused() {
    let cluster = cluster();
    let slot = cluster.slot_of("{botmesh}:layout:turns").unwrap();
    let record =
        ["HSET", "{botmesh}:layout:turns", "format", "2", "buckets", "128", "hash", "fnv1a64-folded"];
    cluster.owner_of(slot).unwrap().command(&record).unwrap();
    let error = RedisCoordinator::connect(&cluster.url(), "botmesh").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Incompatible);
    assert!(error.to_string().contains("buckets is 128 there and 64 here"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_in_the_buckets_of_their_keys() {
    let cluster = cluster();
    let (a, b) = (replica_at(&cluster.url(), short()).await, replica_at(&cluster.url(), short()).await);
    let ttl = Duration::from_secs(60);
    for job in 0..20 {
        let key = format!("job{job}");
        let fence = a.acquire_lock_fenced(&key, "t1", ttl).await.unwrap().unwrap();
        assert_eq!(b.acquire_lock_fenced(&key, "t2", ttl).await.unwrap(), None);
        assert_eq!(a.renew_lock(&key, "t1", ttl).await.unwrap(), Some(fence));
        assert!(b.release_lock(&key, "t1").await.unwrap());
        assert!(b.acquire_lock_fenced(&key, "t2", ttl).await.unwrap() > Some(fence));
    }
    for node in cluster.nodes() {
        assert!(!node.command(&["KEYS", "{botmesh:turns:*}:lock:*"]).unwrap().items().is_empty());
    }
}

/// Takes turns in both replicas by turns, until it is told to end; the fences grow. How many there were.
async fn take_by_turns(replicas: [RedisCoordinator; 2], key: &str, end: &AtomicBool, taken: &AtomicU64) {
    let mut last = Fence(0);
    let mut next = enter(&replicas[0], key).await;
    while !end.load(Ordering::Relaxed) {
        for replica in &replicas {
            let turn = next.granted().await.unwrap();
            next = enter(replica, key).await;
            assert!(turn.fence() > last, "{:?} after {last:?}", turn.fence());
            assert_eq!(turn.confirm().await, Ok(()));
            last = turn.fence();
            taken.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d08_turns_go_on_while_their_bucket_moves_from_node_to_node() {
    let cluster = Cluster::start(&Options::new(), 2, 0).unwrap();
    let config = || RedisCoordinatorConfig::default().with_lease(Duration::from_secs(6));
    let (a, b) = (replica_at(&cluster.url(), config()).await, replica_at(&cluster.url(), config()).await);
    let held = take(&a, "held").await;
    let slot = slot_of(&cluster, "held");
    let same = (0..).map(|at| format!("chat{at}"));
    let mut keys = vec![];
    for key in same {
        let turn = take(&a, &key).await;
        if slot_of(&cluster, &key) == slot {
            keys.push(key);
        }
        turn.release();
        if keys.len() == 3 {
            break;
        }
    }
    let (end, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = keys.iter().map(|key| take_by_turns([a.clone(), b.clone()], key, &end, &taken));
    let moves = async {
        for _ in 0..20 {
            let before = taken.load(Ordering::Relaxed);
            tokio::task::block_in_place(|| cluster.move_slot(slot, other(&cluster, slot)).unwrap());
            until("turns after a move", || taken.load(Ordering::Relaxed) > before + 5).await;
        }
        end.store(true, Ordering::Relaxed);
    };
    tokio::join!(futures_util::future::join_all(load), moves);
    assert_eq!(held.confirm().await, Ok(()), "a turn was lost by a move");
    for key in &keys {
        assert_eq!(take(&b, key).await.check(), Ok(()));
    }
}

/// A chat of this slot that the server does not know.
async fn unknown_chat(replica: &RedisCoordinator, cluster: &Cluster, slot: u16) -> String {
    for chat in 0.. {
        let key = format!("unknown{chat}");
        let turn = take(replica, &key).await;
        let found = slot_of(cluster, &key) == slot;
        turn.release();
        if found {
            let node = cluster.owner_of(slot).unwrap();
            let queue = node.command(&["KEYS", &format!("{{botmesh:turns:*}}:queue:{key}")]).unwrap();
            let queue = queue.items()[0].text().unwrap();
            // It expires only while it has no ticket.
            let rest = || node.command(&["PTTL", &queue]).unwrap().int().unwrap();
            until("it is given back", || rest() > 0).await;
            node.command(&["DEL", &queue]).unwrap();
            return key;
        }
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d08_turns_outlive_a_move_that_lasts_longer_than_a_lease() {
    let cluster = Cluster::start(&Options::new(), 2, 0).unwrap();
    let config = || short().with_turn_wait(Duration::from_secs(60));
    let (a, b) = (replica_at(&cluster.url(), config()).await, replica_at(&cluster.url(), config()).await);
    let held = take(&a, "ana").await;
    let slot = slot_of(&cluster, "ana");
    let unknown = unknown_chat(&b, &cluster, slot).await;
    let mut waiting = enter(&b, "ana").await;
    let from = cluster.owner_of(slot).unwrap();
    let moving = cluster.begin_slot_move(slot, other(&cluster, slot)).unwrap();
    moving.move_keys().unwrap();
    // Three heartbeats of each replica in a lease.
    until("two leases pass", || sent_away(from) > 12).await;
    assert_eq!(held.confirm().await, Ok(()));
    held.release();
    let turn = waiting.granted().await.unwrap();
    assert_eq!(turn.previous_holder(), Some(held.session()));
    let before = sent_away(from);
    let mut entering = Box::pin(b.enter(&unknown));
    tokio::select! {
        _ = &mut entering => panic!("a ticket of a chat that is nowhere"),
        // It is tried again after 100 ms at most.
        () = until("more than two leases pass", || sent_away(from) > before + 50) => {}
    }
    assert_eq!(turn.confirm().await, Ok(()));
    moving.finish().unwrap();
    entering.await.unwrap().granted().await.unwrap();
    assert_eq!(turn.confirm().await, Ok(()));
}
