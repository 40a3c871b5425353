//! Tickets that wait for calls under way, and go in one call then.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use botmesh_core::coordinator::{Coordinator, Turn};
use botmesh_core::error::CoordinationUnavailable;
use botmesh_redis_store::RedisCoordinator;
use botmesh_test_servers::{Direction, Flow, Proxy, Redis};
use futures_util::future::join_all;

use crate::tools::server;
use crate::turns::{calls, replica, replica_at, short, take, tickets, until};

/// So many calls are under way before others wait.
const UNDER_WAY: usize = 16;
const WAITING: usize = 40;

type Taken = Result<Turn, CoordinationUnavailable>;

/// A replica that sends no heartbeat meanwhile, and what its calls go through.
async fn held_up(redis: &Redis) -> (Proxy, RedisCoordinator) {
    let proxy = Proxy::start(redis.address()).unwrap();
    let lasting = short().with_lease(Duration::from_secs(600));
    let replica = replica_at(&redis.url_at(proxy.address()), lasting).await;
    // The server has to know the scripts.
    take(&replica, "first").await.release();
    until("it is given back", || tickets(redis, "first").is_empty()).await;
    (proxy, replica)
}

fn chats(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("chat-{number}")).collect()
}

async fn granted(replica: &RedisCoordinator, chat: &str) -> Taken {
    replica.enter(chat).await?.granted().await
}

/// Asks for all chats while nothing reaches the server, does something else, and lets it go.
async fn take_all(
    proxy: &Proxy,
    replica: &RedisCoordinator,
    chats: &[String],
    meanwhile: impl AsyncFnOnce(),
) -> Vec<Taken> {
    proxy.set(Direction::ToServer, Flow::Hold);
    let mut taken = std::pin::pin!(join_all(chats.iter().map(|chat| granted(replica, chat))));
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(taken.as_mut().poll(&mut context), Poll::Pending));
    meanwhile().await;
    proxy.set(Direction::ToServer, Flow::Pass);
    taken.await
}

async fn all_left(redis: &Redis, chats: &[String]) {
    until("all are given back", || chats.iter().all(|chat| tickets(redis, chat).is_empty())).await;
}

// On one thread, so that all are given back before the first one is sent.
#[tokio::test]
async fn tickets_that_wait_for_a_call_go_in_one_in_their_order() {
    let redis = server();
    let (proxy, a) = held_up(&redis).await;
    let (chats, before) = (chats(UNDER_WAY + WAITING), calls(&redis, "evalsha"));
    let taken = take_all(&proxy, &a, &chats, async || {}).await;
    let taken: Vec<_> = taken.into_iter().map(Result::unwrap).collect();
    assert_eq!(calls(&redis, "evalsha") - before, UNDER_WAY as u64 + 1);
    assert!(taken.is_sorted_by(|one, other| one.fence() < other.fence()));
    assert!(taken.iter().all(|turn| turn.check().is_ok() && turn.was_given_back()));
    let before = calls(&redis, "evalsha");
    taken.iter().for_each(Turn::release);
    all_left(&redis, &chats).await;
    assert_eq!(calls(&redis, "evalsha") - before, UNDER_WAY as u64 + 1);
    // Each knows who had it.
    let next = take(&replica(&redis).await, &chats[UNDER_WAY + 1]).await;
    assert_eq!((next.previous_holder(), next.was_given_back()), (Some(&a.session()), true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_is_dropped_while_it_waits_to_go_is_never_taken() {
    let redis = server();
    let (proxy, a) = held_up(&redis).await;
    let chats = chats(UNDER_WAY + WAITING);
    let taken = take_all(&proxy, &a, &chats, async || {
        let mut gone = std::pin::pin!(a.enter("gone"));
        assert!(gone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    })
    .await;
    assert!(taken.iter().all(Result::is_ok));
    let turn = replica(&redis).await.try_enter("gone").await.unwrap().unwrap();
    assert_eq!(turn.previous_holder(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_chat_harms_none_of_those_that_go_with_it() {
    let redis = server();
    let (proxy, a) = held_up(&redis).await;
    let chats = chats(UNDER_WAY + WAITING);
    let damaged = UNDER_WAY + 7;
    redis.command(&["RPUSH", &format!("{{botmesh:turns:0}}:queue:{}", chats[damaged]), "x"]).unwrap();
    let taken = take_all(&proxy, &a, &chats, async || {}).await;
    for (number, taken) in taken.iter().enumerate() {
        assert_eq!(taken.is_err(), number == damaged, "{number}: {taken:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_that_another_replica_has_is_waited_for_while_the_others_go() {
    let redis = server();
    let ((proxy, a), b) = (held_up(&redis).await, replica(&redis).await);
    let chats = chats(UNDER_WAY + WAITING);
    let held = take(&b, &chats[UNDER_WAY + 7]).await;
    let (taken, ()) = tokio::join!(take_all(&proxy, &a, &chats, async || {}), async {
        until("it waits behind", || tickets(&redis, &chats[UNDER_WAY + 7]).len() == 2).await;
        held.release();
    });
    let turn = taken.into_iter().nth(UNDER_WAY + 7).unwrap().unwrap();
    assert_eq!(turn.previous_holder(), Some(&b.session()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_for_many_that_is_lost_leaves_each_with_one_ticket() {
    let redis = server();
    let (proxy, a) = held_up(&redis).await;
    let chats = chats(UNDER_WAY + WAITING);
    proxy.lose_replies("queue:chat-30", 1);
    let taken = take_all(&proxy, &a, &chats, async || {}).await;
    assert_eq!(proxy.traffic().replies_lost, 1);
    let mut fences: Vec<_> = taken.iter().map(|turn| turn.as_ref().unwrap().fence()).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), chats.len());
    assert!(chats.iter().all(|chat| tickets(&redis, chat).len() == 1));
    drop(taken);
    all_left(&redis, &chats).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_turns_are_given_back_to_a_server_without_memory() {
    let redis = server();
    let (proxy, a) = held_up(&redis).await;
    let chats = chats(UNDER_WAY + WAITING);
    let taken = take_all(&proxy, &a, &chats, async || {}).await;
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    for turn in taken {
        turn.unwrap().release();
    }
    all_left(&redis, &chats).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_call_learns_that_the_coordinator_is_closed() {
    let redis = server();
    let (proxy, a) = held_up(&redis).await;
    let chats = chats(UNDER_WAY + WAITING);
    let taken = take_all(&proxy, &a, &chats, async || a.close().await).await;
    assert!(taken.iter().all(Result::is_err));
}
