//! Turns over a network that loses, refuses or delays some requests: what comes too late has no effect, and nobody holds a
//! turn that the server gives to others.

use std::time::Duration;

use botmesh_core::coordinator::{Coordinator, Ticket, Trouble, Turn};
use botmesh_core::error::{CoordinationUnavailableReason as Reason, LeaseLostReason};
use botmesh_redis_store::{RedisCoordinator, RedisCoordinatorConfig};
use botmesh_test_servers::{Direction, End, Flow, Proxy, Redis};
use futures_util::future::join_all;

use crate::tools::{pause, server, soon};
use crate::turn_losses::take_in_the_end;
use crate::turns::{LEASE, enter, lease_end, replica, replica_at, short, take, tickets, until};

/// What heartbeats, and the opening and closing of sessions, have alone: one key.
const BEAT: &str = "$1\r\n1\r\n$23\r\n{botmesh:turns:0}:state";
/// What a request for a ticket has alone.
const ENTER: &str = "$4\r\nwait\r\n";
/// What every call about the turns of a key has alone: three keys.
const CALLS: &str = "$1\r\n3\r\n$23\r\n{botmesh:turns:0}:state";
const REFUSED: &str = "-ERR not now\r\n";

async fn behind(redis: &Redis, config: RedisCoordinatorConfig) -> (Proxy, RedisCoordinator) {
    let proxy = Proxy::start_for_redis(redis.address()).unwrap();
    let replica = replica_at(&redis.url_at(proxy.address()), config).await;
    (proxy, replica)
}

/// Microseconds of the server's clock.
fn server_time(redis: &Redis) -> u64 {
    let time = redis.command(&["TIME"]).unwrap();
    let part = |number: usize| time.items()[number].text().unwrap().parse::<u64>().unwrap();
    part(0) * 1_000_000 + part(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_that_fail_cost_nothing_unless_none_arrives_in_time() {
    let redis = server();
    let config = || short().with_lease(LEASE * 4);
    let (proxy, a) = behind(&redis, config()).await;
    let b = replica_at(redis.url(), config()).await;
    let (before, held) = (a.session(), take(&a, "ana").await);
    let mut next = enter(&b, "ana").await;
    let end = lease_end(&redis, &a);
    proxy.answer(BEAT, REFUSED, 2).unwrap();
    until("the lease is prolonged after two that were refused", || lease_end(&redis, &a) > end).await;
    assert_eq!(proxy.traffic().answered, 2);
    let end = lease_end(&redis, &a);
    proxy.half_open(End::Server);
    until("the lease is prolonged after one that was lost", || lease_end(&redis, &a) > end).await;
    assert_eq!(held.check(), Ok(()));
    assert!(futures_util::poll!(Box::pin(next.granted())).is_pending());
    proxy.answer(BEAT, REFUSED, usize::MAX).unwrap();
    let turn = next.granted().await.unwrap();
    assert_eq!(held.check().unwrap_err().reason, LeaseLostReason::CoordinatorLost);
    assert_eq!(turn.previous_holder(), Some(&before));
    proxy.heal();
    assert_ne!(*take(&a, "bea").await.session(), before);
    assert_eq!(turn.check(), Ok(()), "it is taken over once");
    assert_eq!(tickets(&redis, "ana").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_go_on_after_a_loss_when_what_was_checked_before_it_has_arrived() {
    let redis = server();
    let config = || short().with_lease(LEASE * 4);
    let (proxy, a) = behind(&redis, config()).await;
    let b = replica_at(redis.url(), config()).await;
    let held = take(&a, "ana").await;
    let mut next = enter(&b, "ana").await;
    let epoch = redis.command(&["HGET", "{botmesh:turns:0}:state", "e"]).unwrap();
    let epoch = epoch.text().unwrap();
    let dead = format!("+{epoch}|dead\r\n");
    proxy.answer(BEAT, dead, 1).unwrap();
    assert_eq!(soon("the loss", held.lost()).await.reason, LeaseLostReason::Expired);
    let lost = server_time(&redis);
    let turn = next.granted().await.unwrap();
    let waited = Duration::from_micros(server_time(&redis) - lost);
    // The margin is 600 ms; the test may have been late to notice.
    assert!(waited > Duration::from_millis(150), "granted {waited:?} after the check of another one");
    assert!(!turn.was_given_back());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_calls_fail_for_a_lease_gives_way_though_its_heartbeats_pass() {
    let redis = server();
    let (proxy, a) = behind(&redis, short().with_turn_wait(LEASE * 4)).await;
    let b = replica(&redis).await;
    let (before, held, kept) = (a.session(), take(&a, "ana").await, take(&a, "bea").await);
    let mut next = enter(&b, "ana").await;
    proxy.answer(CALLS, "-LOADING not now\r\n", usize::MAX).unwrap();
    held.release();
    let turn = soon("the turn", next.granted()).await.unwrap();
    assert_eq!(turn.previous_holder(), Some(&before));
    assert_eq!(kept.lost().await.reason, LeaseLostReason::CoordinatorLost);
    let refused = a.enter("carl").await.unwrap_err();
    assert!(refused.source.unwrap().to_string().contains("loads its data"), "it says why");
    proxy.heal();
    assert_ne!(*take(&a, "bea").await.session(), before);
    assert_eq!(turn.check(), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e07_a_clock_of_the_server_that_stands_still_is_told() {
    let redis = server();
    let (proxy, a) = behind(&redis, short()).await;
    let epoch = redis.command(&["HGET", "{botmesh:turns:0}:state", "e"]).unwrap().text().unwrap();
    let answer = |wall: u64| format!("+{epoch}|alive|{wall}\r\n");
    let held = take(&a, "ana").await;
    proxy.answer(BEAT, answer(1_764_450_000_000_000), usize::MAX).unwrap();
    until("it is told", || a.trouble(Trouble::Clock).is_some()).await;
    assert!(a.trouble(Trouble::Clock).unwrap().to_string().contains("stood still"));
    assert!(a.trouble(Trouble::Pushes).is_none());
    assert_eq!(held.check(), Ok(()), "turns go on");
    // One that is set back goes.
    proxy.answer(BEAT, answer(1_764_440_000_000_000), usize::MAX).unwrap();
    until("it is over", || a.trouble(Trouble::Clock).is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_session_says_why_none_can_be_opened() {
    let redis = server();
    let (proxy, a) = behind(&redis, short().with_turn_wait(LEASE * 2)).await;
    let held = take(&a, "ana").await;
    proxy.answer(BEAT, "-LOADING not now\r\n", usize::MAX).unwrap();
    assert_eq!(held.lost().await.reason, LeaseLostReason::CoordinatorLost);
    let refused = a.enter("ana").await.unwrap_err();
    assert_eq!(refused.reason, Reason::Down);
    assert!(refused.source.unwrap().to_string().contains("loads its data"), "it says why");
    proxy.heal();
    take(&a, "ana").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_ends_before_the_server_gives_it_away_however_late_answers_come() {
    let redis = server();
    let (proxy, a) = behind(&redis, short().with_lease(LEASE * 4)).await;
    let held = take(&a, "ana").await;
    // Then the server knows the script, and it is one request.
    let other = replica(&redis).await;
    take(&other, "bea").await;
    let first = lease_end(&redis, &other);
    until("a heartbeat of another replica", || lease_end(&redis, &other) > first).await;
    // Later than the margin, sooner than a command is given up.
    proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(800)));
    let first = lease_end(&redis, &a);
    until("a heartbeat", || lease_end(&redis, &a) > first).await;
    proxy.answer(BEAT, REFUSED, usize::MAX).unwrap();
    until("a heartbeat that is refused", || proxy.traffic().answered > 0).await;
    let end = lease_end(&redis, &a);
    loop {
        // In this order: what is seen of a turn that is held was so at that time or later.
        let (now, checked) = (server_time(&redis), held.check());
        if let Err(lost) = checked {
            assert_eq!(lost.reason, LeaseLostReason::CoordinatorLost);
            break;
        }
        assert!(now + 100_000 < end, "it does not stop by a margin before the lease is over");
        pause().await;
    }
}

/// Takes `ana`, begins what is to be late, and lets the other replica take `ana` over. Then what is late arrives.
async fn late<F: Future>(redis: &Redis, begin: impl FnOnce(RedisCoordinator, Turn) -> F) -> RedisCoordinator {
    let (proxy, a) = behind(redis, short()).await;
    let b = replica(redis).await;
    // The server knows each script, so that what is late is carried out.
    take(&a, "ana").await.release();
    until("the release", || tickets(redis, "ana").is_empty()).await;
    let (before, held) = (a.session(), take(&a, "ana").await);
    let mut next = enter(&b, "ana").await;
    let field = format!("s:{before}");
    let lease = || redis.command(&["HGET", "{botmesh:turns:0}:state", &field]).unwrap().text().unwrap();
    proxy.set(Direction::ToServer, Flow::Hold);
    let mut work = Box::pin(begin(a.clone(), held));
    let turn = tokio::select! {
        turn = next.granted() => turn.unwrap(),
        _ = &mut work => panic!("something is answered"),
    };
    assert_eq!(turn.previous_holder(), Some(&before));
    let over = lease();
    // The replica itself does nothing any more.
    a.crash();
    drop((work, a));
    proxy.set(Direction::ToServer, Flow::Pass);
    until("what was held is there", || proxy.traffic().open == 0).await;
    assert_eq!(lease(), over, "a late heartbeat prolongs nothing");
    assert_eq!(turn.check(), Ok(()));
    assert_eq!(tickets(redis, "ana").len(), 1);
    b
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_after_the_end_of_its_session_takes_no_ticket() {
    let redis = server();
    let b = late(&redis, async |a, _held| drop(a.enter("late").await)).await;
    let queue = "{botmesh:turns:0}:queue:late";
    assert_eq!(redis.command(&["EXISTS", queue]).unwrap().int(), Some(0), "{:?}", tickets(&redis, "late"));
    assert_eq!(take(&b, "late").await.previous_holder(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_after_the_end_of_its_session_takes_no_turn_from_others() {
    let redis = server();
    late(&redis, async |a, held| {
        held.release();
        drop(a.enter("ana").await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_loss_of_all_data_nobody_is_given_what_a_replica_that_is_cut_off_may_still_have() {
    let redis = server();
    let (proxy, a) = behind(&redis, short()).await;
    let b = replica(&redis).await;
    let held = take(&a, "ana").await;
    let end = lease_end(&redis, &a);
    until("a new lease", || lease_end(&redis, &a) > end).await;
    proxy.set(Direction::ToServer, Flow::Hold);
    redis.command(&["FLUSHALL"]).unwrap();
    let turn = take_in_the_end(&b, "ana").await;
    assert_eq!(held.check().unwrap_err().reason, LeaseLostReason::CoordinatorLost);
    assert!(turn.fence() > held.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_an_answer_that_is_understood_gives_a_turn() {
    let redis = server();
    let (proxy, a) = behind(&redis, short()).await;
    take(&a, "ana").await.release();
    until("the queue is empty", || tickets(&redis, "ana").is_empty()).await;
    for answer in ["$1\r\nx\r\n", "$11\r\ne|granted|x\r\n", ":1\r\n", "*1\r\n$1\r\nx\r\n"] {
        proxy.answer(ENTER, answer, 1).unwrap();
        let error = a.enter("ana").await.unwrap_err();
        assert_eq!(error.reason, Reason::Down, "{answer}");
        until("nothing is left", || tickets(&redis, "ana").is_empty()).await;
    }
    // The server grants it, and nobody knows.
    proxy.set(Direction::ToClient, Flow::Hold);
    let mut entering = a.enter("ana");
    until("the ticket is there", || {
        let mut entering = std::pin::pin!(&mut entering);
        let waker = futures_util::task::noop_waker();
        let polled = entering.as_mut().poll(&mut std::task::Context::from_waker(&waker));
        assert!(polled.is_pending(), "no answer arrived");
        tickets(&redis, "ana").len() == 1
    })
    .await;
    proxy.set(Direction::ToClient, Flow::Pass);
    let turn = entering.await.unwrap().granted().await.unwrap();
    assert_eq!(tickets(&redis, "ana").len(), 1);
    assert_eq!(turn.check(), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_tried_again_is_not_passed_by_the_next_one_of_its_key() {
    let redis = server();
    let (proxy, a) = behind(&redis, short()).await;
    take(&a, "ana").await.release();
    proxy.answer(ENTER, "-LOADING not now\r\n", 1).unwrap();
    let (first, second) = futures_util::join!(enter(&a, "ana"), enter(&a, "ana"));
    assert_eq!(proxy.traffic().answered, 1);
    assert!(first.fence() < second.fence());
}

/// How much later than it must a waiter without pushes may be served: what is promised, and a busy machine.
const LATE: Duration = Duration::from_millis(250 + 1500);

/// The waiters of 20 chats have their turns, each the next one of its chat right after the one before.
#[expect(clippy::disallowed_methods, reason = "how long it takes is what is promised")]
async fn longest(waiting: Vec<Ticket>) -> Duration {
    let began = std::time::Instant::now();
    let served = waiting.into_iter().map(async |mut ticket| {
        ticket.granted().await.unwrap().release();
        began.elapsed()
    });
    join_all(served).await.into_iter().max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c01_without_pushes_everybody_is_served_within_a_third_of_the_lease_or_what_the_head_has_left() {
    let redis = server();
    let lease = Duration::from_secs(9);
    let config = || short().with_lease(lease);
    let a = replica_at(redis.url(), config()).await;
    let (proxy, b) = behind(&redis, config()).await;
    proxy.drop_pushes(true).unwrap();
    // Whoever waits learns of a turn that is given back by asking, a third of the lease after it asked last.
    let keys: Vec<_> = (0..20).map(|chat| format!("chat{chat}")).collect();
    let held = join_all(keys.iter().map(|key| take(&a, key))).await;
    let waiting = join_all(keys.iter().chain(&keys).map(|key| enter(&b, key))).await;
    drop(held);
    let took = longest(waiting).await;
    assert!(took < lease / 3 + LATE, "{took:?}");
    assert!(proxy.traffic().pushes_lost >= 20);
    // If the head has less left than that, it asks when nothing is left.
    let _held = join_all(keys.iter().map(|key| take(&a, key))).await;
    let end = lease_end(&redis, &a);
    a.crash();
    until("the last second of the lease", || server_time(&redis) + 1_000_000 > end).await;
    let waiting = join_all(keys.iter().map(|key| enter(&b, key))).await;
    let left = Duration::from_micros(end.saturating_sub(server_time(&redis)));
    let took = longest(waiting).await;
    assert!(took < left + LATE && left + LATE < lease / 3, "{took:?} with {left:?} left");
}
