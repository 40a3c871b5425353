//! A node of a Cluster that is gone: what the other nodes have goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use botmesh_core::coordinator::{Coordinator, Turn};
use botmesh_core::error::{Effect, LeaseLostReason, StoreErrorKind as Kind};
use botmesh_core::kv::Expect;
use botmesh_core::store::Store as _;
use botmesh_redis_store::fred;
use botmesh_redis_store::fred::interfaces::ClientLike as _;
use botmesh_redis_store::fred::prelude::{Config, ConnectionConfig, ReconnectPolicy};
use botmesh_redis_store::fred::types::config::UnresponsiveConfig;
use botmesh_redis_store::{RedisConfig, RedisCoordinator, RedisCoordinatorConfig, RedisStore};
use botmesh_test_servers::{Cluster, Options, Redis};

use crate::cluster_turns::{has, slot_of, take_some};
use crate::tools::{Kv, create, put, soon, until_served};
use crate::turns::{LEASE, enter, replica_at, short, take, until};

/// Three masters, each with so many replicas. Two go on without the third, as far as they have the slots.
fn cluster(replicas: usize) -> Cluster {
    Cluster::start(&Options::new().with_setting("cluster-require-full-coverage", "no"), 3, replicas).unwrap()
}

/// A ticket that does not have its turn within a lease fails.
fn hasty() -> RedisCoordinatorConfig {
    short().with_turn_wait(LEASE)
}

type Held = Vec<(String, Turn)>;

/// Turns of chats on this node, and of others.
async fn take_apart(replica: &RedisCoordinator, node: &Redis) -> (Held, Held) {
    let held = take_some(replica).await;
    let (there, elsewhere): (Held, Held) = held.into_iter().partition(|(key, _)| has(node, key));
    assert!(there.len() >= 5 && elsewhere.len() >= 10);
    (there, elsewhere)
}

/// One set of journals on this node, and one elsewhere.
fn journals(cluster: &Cluster, store: &RedisStore, node: &Redis) -> (Kv, Kv) {
    let find = |there: bool| {
        let is_right = |scope: &String| {
            let slot = cluster.slot_of(&format!("{{botmesh:{scope}}}:journal")).unwrap();
            (cluster.owner_of(slot).unwrap().address() == node.address()) == there
        };
        let scope = (0..).map(|number| number.to_string()).find(is_right).unwrap();
        store.durability().scoped(&scope)
    };
    (find(true), find(false))
}

/// Serves chats with two replicas until it is told to end, while turns of others stay. How often.
async fn go_on(replicas: [&RedisCoordinator; 2], chats: &Held, kv: &Kv, end: &AtomicBool) -> usize {
    let (kept, served) = chats.split_at(chats.len() / 2);
    let mut rounds = 0;
    while !end.load(Ordering::Relaxed) {
        let (key, turn) = &kept[rounds % kept.len()];
        assert_eq!(turn.confirm().await, Ok(()), "{key} after {rounds} rounds");
        let (key, turn) = &served[rounds % served.len()];
        turn.release();
        let first = take(replicas[0], key).await;
        let mut next = enter(replicas[1], key).await;
        first.release();
        let next = next.granted().await.unwrap();
        assert_eq!(next.previous_holder(), Some(first.session()));
        create(kv, &rounds.to_string()).await;
        rounds += 1;
    }
    for (key, turn) in kept {
        assert_eq!(turn.check(), Ok(()), "{key}");
    }
    rounds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_ends_the_turns_of_its_own_buckets_alone() {
    let cluster = cluster(0);
    let (a, b) = (replica_at(&cluster.url(), hasty()).await, replica_at(&cluster.url(), hasty()).await);
    let store = RedisStore::open(&cluster.url()).await.unwrap();
    let node = &cluster.nodes()[1];
    let (lost, others) = take_apart(&a, node).await;
    let (there, elsewhere) = journals(&cluster, &store, node);
    create(&there, "before").await;
    node.freeze().unwrap();
    let end = AtomicBool::new(false);
    let outage = async {
        for (key, turn) in &lost {
            let reason = soon("the loss of a turn", turn.lost()).await.reason;
            assert_eq!(reason, LeaseLostReason::CoordinatorLost, "{key}");
        }
        // A lease passes for each that asks in vain.
        for (key, _) in lost.iter().take(3) {
            assert!(b.enter(key).await.is_err(), "a ticket of {key} from a server that stands still");
        }
        end.store(true, Ordering::Relaxed);
    };
    let (rounds, ()) = tokio::join!(go_on([&a, &b], &others, &elsewhere, &end), outage);
    assert!(rounds > 10, "{rounds} rounds");
    node.thaw().unwrap();
    cluster.wait_until_serving().unwrap();
    for (key, turn) in &lost {
        let again = soon("a turn at the node", take_at_last(&a, key)).await;
        assert!(again.fence() > turn.fence(), "{key}");
    }
    create(&there, "after").await;
}

/// A client that notices what stands still, and connects to it again.
async fn attentive(url: &str) -> fred::clients::Client {
    let (mut connection, noticed) = (ConnectionConfig::default(), Duration::from_millis(300));
    connection.unresponsive = UnresponsiveConfig { max_timeout: Some(noticed), interval: noticed / 3 };
    let client = fred::clients::Client::new(
        Config::from_url(url).unwrap(),
        None,
        Some(connection),
        Some(ReconnectPolicy::new_constant(0, 10)),
    );
    client.init().await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_over_an_injected_client_goes_on_without_a_node_that_stands_still() {
    let cluster = cluster(0);
    let client = attentive(&cluster.url()).await;
    let config = RedisConfig::default().with_command_timeout(Duration::from_secs(2));
    let store = RedisStore::with_client(client.clone(), config).await.unwrap();
    let coordinator = store.coordinator_with(hasty()).await.unwrap();
    let node = &cluster.nodes()[1];
    let (there, elsewhere) = journals(&cluster, &store, node);
    let (lost, kept) = take_apart(&coordinator, node).await;
    create(&there, "before").await;
    node.freeze().unwrap();
    let end = AtomicBool::new(false);
    let outage = async {
        for at in 0..2 {
            let refused = there.commit(vec![put(&at.to_string(), Expect::Absent, "v")]).await.unwrap_err();
            assert_eq!(refused.kind(), Kind::Unavailable, "{refused}");
        }
        end.store(true, Ordering::Relaxed);
    };
    let others = async {
        let mut written = 0;
        while !end.load(Ordering::Relaxed) {
            create(&elsewhere, &written.to_string()).await;
            written += 1;
        }
        written
    };
    let (written, ()) = tokio::join!(others, outage);
    assert!(written > 100, "{written} writes");
    for (key, turn) in &kept {
        assert_eq!(turn.confirm().await, Ok(()), "{key}");
    }
    for (key, turn) in &lost {
        assert!(turn.check().is_err(), "{key}");
    }
    node.thaw().unwrap();
    until_served(&there).await;
    store.close().await.unwrap();
    client.ping::<()>(None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_nobody_has_ends_the_turns_of_its_bucket_alone() {
    let cluster = cluster(0);
    let a = replica_at(&cluster.url(), hasty()).await;
    let node = &cluster.nodes()[1];
    let (mut held, _) = take_apart(&a, node).await;
    let (key, lost) = held.remove(0);
    let slot = slot_of(&cluster, &key);
    let (_, kept): (Held, Held) = held.into_iter().partition(|(key, _)| slot_of(&cluster, key) == slot);
    let everywhere = |command| {
        for node in cluster.nodes() {
            node.command(&["CLUSTER", command, &slot.to_string()]).unwrap();
        }
    };
    everywhere("DELSLOTS");
    assert_eq!(soon("the loss of a turn", lost.lost()).await.reason, LeaseLostReason::CoordinatorLost);
    let connections = || node.info("total_connections_received").unwrap().unwrap().parse::<u64>().unwrap();
    let before = connections();
    for _ in 0..2 {
        assert!(a.enter(&key).await.is_err(), "a ticket in a slot that nobody has");
    }
    // Each question is a connection, too.
    assert!(connections() - before < 6, "{} connections", connections() - before);
    for (key, turn) in &kept {
        assert_eq!(turn.confirm().await, Ok(()), "{key}");
    }
}

/// A turn, however many tickets expire before.
async fn take_at_last(replica: &RedisCoordinator, key: &str) -> Turn {
    loop {
        if let Ok(mut ticket) = replica.enter(key).await
            && let Ok(turn) = ticket.granted().await
        {
            return turn;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_nodes_go_on_while_a_replica_takes_the_place_of_a_killed_master() {
    let cluster = cluster(1);
    let (a, b) = (replica_at(&cluster.url(), hasty()).await, replica_at(&cluster.url(), hasty()).await);
    let store = RedisStore::open(&cluster.url()).await.unwrap();
    let node = &cluster.nodes()[1];
    let (gone, others) = take_apart(&a, node).await;
    let (there, elsewhere) = journals(&cluster, &store, node);
    create(&there, "before").await;
    let end = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let failing = scope.spawn(|| cluster.fail_over(node).map(drop).unwrap());
        let outage = async {
            until("a replica takes the place of its master", || failing.is_finished()).await;
            for (key, turn) in &gone {
                turn.release();
                let again = soon("a turn at the successor", take_at_last(&b, key)).await;
                assert!(again.fence() > turn.fence(), "{key}");
            }
            end.store(true, Ordering::Relaxed);
        };
        let both = async { tokio::join!(go_on([&a, &b], &others, &elsewhere, &end), outage).0 };
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| runtime.block_on(both))
    });
    assert!(rounds > 10, "{rounds} rounds");
    create(&there, "after").await;
    soon("the end of a replica", a.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_forgot_the_cluster_makes_nobody_forget_the_others() {
    let cluster = cluster(0);
    let store = RedisStore::open(&cluster.url()).await.unwrap();
    let [one, forgetful, other] = cluster.nodes() else { unreachable!() };
    let (kept, _) = journals(&cluster, &store, one);
    let (gone, _) = journals(&cluster, &store, other);
    create(&kept, "before").await;
    create(&gone, "before").await;
    create(&journals(&cluster, &store, forgetful).0, "before").await;
    let scope = |number: &u32| cluster.slot_of(&format!("{{botmesh:{number}}}:journal")).unwrap();
    let is_there = |slot: &u16| cluster.owner_of(*slot).unwrap().address() == other.address();
    let slot = (0..).map(|number| scope(&number)).find(is_there).unwrap();
    for node in [one, other] {
        node.command(&["CLUSTER", "DELSLOTS", &slot.to_string()]).unwrap();
    }
    forgetful.command(&["FLUSHALL"]).unwrap();
    forgetful.command(&["CLUSTER", "RESET", "HARD"]).unwrap();
    let connections = || one.info("total_connections_received").unwrap().unwrap().parse::<u64>().unwrap();
    let before = connections();
    // Each call asks all nodes who has the slot.
    for _ in 0..5 {
        let error = gone.commit(vec![put("after", Expect::Absent, "v")]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    }
    create(&kept, "after").await;
    assert_eq!(connections() - before, 1, "the connection that asks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_node_is_killed_waits_for_no_other_node_that_stands_still() {
    let cluster = cluster(0);
    let config = RedisConfig::default().with_command_timeout(Duration::from_secs(300));
    let store = RedisStore::open_with(&cluster.url(), config).await.unwrap();
    let [_, killed, still] = cluster.nodes() else { unreachable!() };
    let (there, _) = journals(&cluster, &store, killed);
    create(&there, "before").await;
    create(&journals(&cluster, &store, still).0, "before").await;
    killed.command(&["CLIENT", "PAUSE", "300000", "WRITE"]).unwrap();
    still.freeze().unwrap();
    let call = there.commit(vec![put("k", Expect::Absent, "v")]);
    let kill = async {
        let clients = || killed.command(&["CLIENT", "LIST"]).unwrap().text().unwrap();
        until("the call waits at the node", || clients().contains(" flags=b ")).await;
        killed.kill().unwrap();
    };
    let (failed, ()) = soon("the failure of the call", async { tokio::join!(call, kill) }).await;
    let error = failed.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{error}");
}
