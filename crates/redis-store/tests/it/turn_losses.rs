//! Turns over a server or a network that fails for longer than a lease or loses its data: the replica stops in time, says
//! so, and goes on.

use botmesh_core::coordinator::{Coordinator, Turn};
use botmesh_core::error::{CoordinationUnavailableReason as Reason, LeaseLostReason};
use botmesh_redis_store::RedisCoordinator;
use botmesh_test_servers::{Direction, Flow, Options, Persistence, Proxy, Redis, Reply};

use crate::tools::{pause, server, soon};
use crate::turns::{LEASE, enter, replica, replica_at, short, take, tickets, until};

/// Takes a turn, however often the replica has to try.
pub(crate) async fn take_in_the_end(replica: &RedisCoordinator, key: &str) -> Turn {
    loop {
        if let Ok(mut ticket) = replica.enter(key).await
            && let Ok(turn) = ticket.granted().await
        {
            return turn;
        }
        pause().await;
    }
}

async fn behind_a_proxy(redis: &Redis) -> (Proxy, RedisCoordinator) {
    let proxy = Proxy::start(redis.address()).unwrap();
    let replica = replica_at(&redis.url_at(proxy.address()), short()).await;
    (proxy, replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_data_is_told_and_waited_out() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let (before, held) = (a.session(), take(&a, "ana").await);
    let mut waiting = enter(&b, "ana").await;
    redis.command(&["FLUSHALL"]).unwrap();
    assert_eq!(held.lost().await.reason, LeaseLostReason::DataLoss);
    assert_eq!(waiting.granted().await.unwrap_err().reason, Reason::Down);
    let (mine, theirs) = tokio::join!(take_in_the_end(&a, "bea"), async { take_in_the_end(&b, "ana").await });
    assert!(mine.fence() > held.fence() && theirs.fence() > held.fence());
    assert_ne!(a.session(), before, "a session that is lost never comes back");
    assert_eq!(held.check().unwrap_err().reason, LeaseLostReason::DataLoss);
}

/// What the server was called with since its data was lost, the last call first.
fn calls_since_the_loss(redis: &Redis) -> Vec<Vec<String>> {
    let log = redis.command(&["SLOWLOG", "GET", "-1"]).unwrap();
    let words = |entry: &Reply| entry.items()[3].items().iter().filter_map(Reply::text).collect();
    let calls = log.items().iter().map(words);
    calls.take_while(|call: &Vec<String>| call[0] != "FLUSHALL").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a11_the_loss_of_the_data_is_told_by_the_next_heartbeat() {
    let redis = server();
    let a = replica(&redis).await;
    let held = take(&a, "ana").await;
    // All commands are slow.
    redis.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).unwrap();
    redis.command(&["FLUSHALL"]).unwrap();
    assert_eq!(soon("the loss", held.lost()).await.reason, LeaseLostReason::DataLoss);
    let calls = calls_since_the_loss(&redis);
    // The script, one key, and what the coordinator says of itself: the elapsed time, the session, the lease, the beat.
    let session = held.session().as_str();
    let is_beat = |call: &&Vec<String>| call[0] == "EVALSHA" && call.len() == 9 && call[5] == session;
    let beats: Vec<_> = calls.iter().filter(is_beat).collect();
    assert_eq!(beats.len(), 1, "a third of a lease apart: {calls:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_ends_the_turns_before_it_gives_them_away() {
    let redis = server();
    let a = replica(&redis).await;
    let (before, held) = (a.session(), take(&a, "ana").await);
    redis.freeze().unwrap();
    assert_eq!(held.lost().await.reason, LeaseLostReason::CoordinatorLost);
    redis.thaw().unwrap();
    let again = take_in_the_end(&a, "ana").await;
    assert_ne!(*again.session(), before);
    assert_eq!(again.previous_holder(), Some(&before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_started_again_from_its_files_loses_no_ticket() {
    let redis = Redis::start(&Options::new().with_persistence(Persistence::Always)).unwrap();
    let start = || replica_at(redis.url(), short().with_lease(LEASE * 4));
    let (a, b) = (start().await, start().await);
    let held = take(&a, "ana").await;
    let mut next = enter(&b, "ana").await;
    redis.kill().unwrap();
    redis.restart().unwrap();
    assert_eq!(held.check(), Ok(()));
    held.release();
    let turn = next.granted().await.unwrap();
    assert_eq!(turn.previous_holder(), Some(&a.session()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_started_again_empty_has_lost_its_data() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let held = take(&a, "ana").await;
    redis.kill().unwrap();
    redis.restart_empty().unwrap();
    assert_eq!(held.lost().await.reason, LeaseLostReason::DataLoss);
    assert!(take_in_the_end(&b, "ana").await.fence() > held.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_late_revives_nothing() {
    let redis = server();
    let (proxy, a) = behind_a_proxy(&redis).await;
    let b = replica(&redis).await;
    let (before, held) = (a.session(), take(&a, "ana").await);
    let mut next = enter(&b, "ana").await;
    proxy.set(Direction::ToServer, Flow::Hold);
    let late = a.enter("late");
    let taken = async {
        // The waiter asks at the end of the lease, and is granted by the server's clock.
        let turn = next.granted().await.unwrap();
        assert!(held.check().is_err(), "two replicas have the turn");
        proxy.set(Direction::ToServer, Flow::Pass);
        turn
    };
    let (late, turn) = tokio::join!(late, taken);
    assert_eq!(turn.previous_holder(), Some(&before));
    assert_eq!(held.check().unwrap_err().reason, LeaseLostReason::CoordinatorLost);
    assert_eq!(turn.check(), Ok(()));
    // The held request was of a dead session; the call went on under the next one.
    let late = late.unwrap().granted().await.unwrap();
    assert_ne!(*late.session(), before);
    until("one ticket is there", || tickets(&redis, "late").len() == 1).await;
    drop(held);
    assert_eq!(turn.check(), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_heartbeats_ends_the_turns_in_time() {
    let redis = server();
    let a = replica(&redis).await;
    let held = take(&a, "ana").await;
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    assert_eq!(held.lost().await.reason, LeaseLostReason::CoordinatorLost);
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
    take_in_the_end(&a, "ana").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_waiters_and_dead_holders_are_skipped() {
    let redis = server();
    let (proxy, dead) = behind_a_proxy(&redis).await;
    let (a, c) = (replica(&redis).await, replica(&redis).await);
    let held = take(&a, "ana").await;
    let holding = take(&dead, "bea").await;
    let _waits = enter(&dead, "ana").await;
    let (mut next, mut other) = (enter(&c, "ana").await, enter(&c, "bea").await);
    proxy.set(Direction::ToServer, Flow::Drop);
    proxy.set(Direction::ToClient, Flow::Drop);
    held.release();
    let (next, other) = tokio::join!(next.granted(), other.granted());
    assert_eq!(next.unwrap().check(), Ok(()));
    assert_eq!(other.unwrap().previous_holder(), Some(holding.session()));
    assert!(holding.check().is_err(), "two replicas have the turn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_cannot_reach_the_server_says_so() {
    let redis = server();
    let config = short().with_turn_wait(std::time::Duration::from_millis(700));
    let a = replica_at(redis.url(), config).await;
    redis.kill().unwrap();
    assert_eq!(a.enter("ana").await.unwrap_err().reason, Reason::Down);
    redis.restart().unwrap();
    take_in_the_end(&a, "ana").await;
}
