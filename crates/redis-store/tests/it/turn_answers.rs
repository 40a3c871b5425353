//! What a turn says of the one before, and what a replica says of itself.

use std::time::Duration;

use botmesh_core::coordinator::Coordinator;
use botmesh_redis_store::RedisCoordinator;
use botmesh_test_servers::{Direction, Flow, Proxy, Redis};

use crate::tools::server;
use crate::turns::{LEASE, enter, replica, replica_at, short, take, tickets, until};

/// A replica whose lease nobody would wait for, and that sends no heartbeat meanwhile.
async fn lasting(redis: &Redis) -> RedisCoordinator {
    replica_at(redis.url(), short().with_lease(Duration::from_secs(600))).await
}

/// How many scripts the server has run.
fn scripts(redis: &Redis) -> u64 {
    let stats = redis.command(&["INFO", "commandstats"]).unwrap().text().unwrap();
    let calls = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
    calls.map(|line| line.split(['=', ',']).nth(1).unwrap().parse::<u64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_was_given_back_says_so_to_the_next_holder() {
    let redis = server();
    let (a, b) = (lasting(&redis).await, lasting(&redis).await);
    let held = take(&a, "lead").await;
    assert!(held.was_given_back(), "nobody had it");
    let (mut pushed, mut answered) = (enter(&b, "lead").await, enter(&b, "lead").await);
    held.release();
    let turn = pushed.granted().await.unwrap();
    assert_eq!((turn.previous_holder(), turn.was_given_back()), (Some(&a.session()), true));
    turn.release();
    let turn = answered.granted().await.unwrap();
    assert_eq!((turn.previous_holder(), turn.was_given_back()), (Some(&b.session()), true));
    turn.release();
    until("nobody has it", || tickets(&redis, "lead").is_empty()).await;
    let turn = take(&a, "lead").await;
    assert_eq!((turn.previous_holder(), turn.was_given_back()), (Some(&b.session()), true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_is_abandoned_or_dropped_or_closed_was_not_given_back() {
    let redis = server();
    let (a, b) = (lasting(&redis).await, lasting(&redis).await);
    take(&a, "lead").await.abandon();
    until("nobody has it", || tickets(&redis, "lead").is_empty()).await;
    let turn = take(&b, "lead").await;
    assert_eq!((turn.previous_holder(), turn.was_given_back()), (Some(&a.session()), false));
    let mut waiting = enter(&a, "lead").await;
    drop(turn);
    let turn = waiting.granted().await.unwrap();
    assert_eq!((turn.previous_holder(), turn.was_given_back()), (Some(&b.session()), false));
    let mut waiting = enter(&b, "lead").await;
    a.close().await;
    let turn = waiting.granted().await.unwrap();
    assert_eq!((turn.previous_holder(), turn.was_given_back()), (Some(&a.session()), false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_whose_holder_died_was_not_given_back() {
    let redis = server();
    let (a, b) = (replica(&redis).await, lasting(&redis).await);
    let _held = take(&a, "lead").await;
    let mut waiting = enter(&b, "lead").await;
    a.crash();
    let turn = waiting.granted().await.unwrap();
    assert_eq!((turn.previous_holder(), turn.was_given_back()), (Some(&a.session()), false));
    assert_eq!(b.margin(), Duration::from_secs(60), "a tenth of the lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_was_lost_was_not_given_back_though_its_replica_tells_the_server() {
    let redis = server();
    let proxy = Proxy::start(redis.address()).unwrap();
    let a = replica_at(&redis.url_at(proxy.address()), short()).await;
    let b = lasting(&redis).await;
    let (before, held) = (a.session(), take(&a, "lead").await);
    proxy.set(Direction::ToServer, Flow::Hold);
    held.lost().await;
    // Before the server finds out by itself, or after.
    proxy.set(Direction::ToServer, Flow::Pass);
    let turn = take(&b, "lead").await;
    assert_eq!((turn.previous_holder(), turn.was_given_back()), (Some(&before), false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_tries_takes_one_command_and_leaves_nothing_behind() {
    let redis = server();
    let (a, b) = (lasting(&redis).await, lasting(&redis).await);
    take(&a, "warm").await.release();
    take(&b, "warm").await.release();
    until("the server has run all", || tickets(&redis, "warm").is_empty()).await;
    let before = scripts(&redis);
    let held = a.try_enter("job").await.unwrap().expect("it is free");
    assert_eq!(scripts(&redis), before + 1);
    for _ in 0..3 {
        assert!(b.try_enter("job").await.unwrap().is_none());
        assert!(a.try_enter("job").await.unwrap().is_none());
    }
    assert_eq!(scripts(&redis), before + 7);
    assert_eq!(tickets(&redis, "job").len(), 1);
    assert_eq!(held.check(), Ok(()));
    held.release();
    until("it is free", || tickets(&redis, "job").is_empty()).await;
    let turn = b.try_enter("job").await.unwrap().expect("it was given back");
    assert_eq!(turn.previous_holder(), Some(&a.session()));
    assert!(turn.fence() > held.fence());
    b.close().await;
    assert!(b.try_enter("job").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_tries_finds_a_ticket_that_its_replica_does_not_know_of() {
    let redis = server();
    let (a, b) = (lasting(&redis).await, lasting(&redis).await);
    let ghost = format!("{}:99", a.session());
    redis.command(&["SET", "{botmesh:turns:0}:queue:job", &format!("0 7 {ghost} ")]).unwrap();
    assert!(b.try_enter("job").await.unwrap().is_none());
    until("its replica has left it", || tickets(&redis, "job").is_empty()).await;
    assert!(b.try_enter("job").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_age_of_the_last_heartbeat_tells_a_replica_that_is_cut_off() {
    let redis = server();
    let a = replica(&redis).await;
    let age = || a.last_beat().expect("a session on a server needs heartbeats");
    assert!(age() < LEASE);
    redis.freeze().unwrap();
    until("nobody has heard of it for longer than a lease", || age() > LEASE * 2).await;
    redis.thaw().unwrap();
    until("it was heard again", || age() < LEASE).await;
}
