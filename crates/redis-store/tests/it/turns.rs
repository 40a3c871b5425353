//! Turns over a server that does nothing wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use botmesh_core::coordinator::{Coordinator, Fence, Ticket, Turn};
use botmesh_core::error::{CoordinationUnavailableReason as Reason, LeaseLostReason, StoreErrorKind as Kind};
use botmesh_redis_store::{RedisConfig, RedisCoordinator, RedisCoordinatorConfig};
use botmesh_test_servers::{Direction, Flow, Proxy, Redis};

use crate::tools::{self, open, pause, server, soon};

pub(crate) const LEASE: Duration = Duration::from_millis(1500);
pub(crate) const STATE: &str = "{botmesh:turns:0}:state";

pub(crate) fn short() -> RedisCoordinatorConfig {
    RedisCoordinatorConfig::default().with_lease(LEASE)
}

pub(crate) async fn replica_at(url: &str, config: RedisCoordinatorConfig) -> RedisCoordinator {
    RedisCoordinator::connect_with(url, RedisConfig::default(), config).await.unwrap()
}

pub(crate) async fn replica(redis: &Redis) -> RedisCoordinator {
    replica_at(redis.url(), short()).await
}

pub(crate) async fn enter(replica: &RedisCoordinator, key: &str) -> Ticket {
    replica.enter(key).await.unwrap()
}

pub(crate) async fn take(replica: &RedisCoordinator, key: &str) -> Turn {
    enter(replica, key).await.granted().await.unwrap()
}

/// Waits for a condition, 30 s at most.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    tools::until(what, async || holds()).await;
}

/// The tickets of a key.
pub(crate) fn tickets(redis: &Redis, key: &str) -> Vec<String> {
    let [queue, behind] = ["queue", "behind"].map(|name| format!("{{botmesh:turns:0}}:{name}:{key}"));
    let turn = redis.command(&["GET", &queue]).unwrap().text().unwrap_or_default();
    let head = turn.split(' ').nth(2).map(str::to_owned);
    let behind = redis.command(&["ZRANGE", &behind, "0", "-1"]).unwrap();
    head.into_iter().chain(behind.items().iter().map(|member| member.text().unwrap())).collect()
}

/// The end of a session's lease, as the server has it, in microseconds.
pub(crate) fn lease_end(redis: &Redis, replica: &RedisCoordinator) -> u64 {
    let field = format!("s:{}", replica.session());
    redis.command(&["HGET", STATE, &field]).unwrap().text().map_or(0, |end| end.parse().unwrap())
}

/// Where a replica listens to pushes.
pub(crate) fn channel_of(replica: &RedisCoordinator) -> String {
    format!("{{botmesh:turns:wake}}:{}", replica.session().as_str().split('.').next().unwrap())
}

/// How often the server has run each command.
fn all_calls(redis: &Redis) -> BTreeMap<String, u64> {
    let stats = redis.command(&["INFO", "commandstats"]).unwrap().text().unwrap();
    let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    lines.map(|(name, calls)| (name.to_owned(), calls.split(',').next().unwrap().parse().unwrap())).collect()
}

/// How often the server has run a command.
pub(crate) fn calls(redis: &Redis, command: &str) -> u64 {
    all_calls(redis).get(command).copied().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_nobody_waits_for_is_two_scripts_with_eight_commands() {
    let redis = server();
    let a = replica_at(redis.url(), short().with_lease(Duration::from_secs(600))).await;
    // The first one leaves behind who held it, and scripts that the server knows.
    take(&a, "ana").await.release();
    until("it is given back", || tickets_of(&redis) == 0).await;
    let before = all_calls(&redis);
    for _ in 0..20 {
        let scripts = calls(&redis, "evalsha");
        take(&a, "ana").await.release();
        until("it is given back", || calls(&redis, "evalsha") == scripts + 2).await;
    }
    let more = all_calls(&redis).into_iter().map(|(name, calls)| {
        let before = before.get(&name).copied().unwrap_or(0);
        (name, calls - before)
    });
    let more: Vec<_> = more.filter(|(name, calls)| *calls > 0 && name != "info").collect();
    let expected = [("evalsha", 40), ("get", 40), ("hmget", 40), ("hset", 20), ("set", 40), ("time", 20)];
    assert_eq!(more, expected.map(|(name, calls)| (name.to_owned(), calls)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b11_a_thousand_messages_at_two_replicas_by_turns_are_served_in_their_order() {
    let redis = server();
    let replicas = [replica(&redis).await, replica(&redis).await];
    let mut tickets = Vec::new();
    for message in 1..=1000 {
        // Each as soon as the one before has its ticket, at the other replica.
        tickets.push((message, enter(&replicas[message % 2], "ana").await));
    }
    assert!(tickets.is_sorted_by(|(_, one), (_, other)| one.fence() < other.fence()));
    let served = std::sync::Mutex::new(Vec::new());
    // Those that came last are asked for first.
    let serve = tickets.into_iter().rev().map(|(message, mut ticket)| {
        let served = &served;
        async move {
            let turn = ticket.granted().await.unwrap();
            assert_eq!(turn.check(), Ok(()));
            served.lock().unwrap().push(message);
            turn.release();
        }
    });
    futures_util::future::join_all(serve).await;
    assert!(served.into_inner().unwrap().into_iter().eq(1..=1000));
    until("the queue is empty", || tickets_of(&redis) == 0).await;
}

fn tickets_of(redis: &Redis) -> usize {
    tickets(redis, "ana").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b13_who_releases_and_enters_again_goes_behind_the_one_that_waits() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let (mut mine, mut theirs) = (enter(&a, "ana").await, enter(&b, "ana").await);
    let mut last = None;
    for round in 0..200 {
        let turn = soon("the turn of the other one", mine.granted()).await.unwrap();
        assert_eq!(turn.previous_holder(), last.as_ref());
        let own = if round % 2 == 0 { &a } else { &b };
        assert_eq!(*turn.session(), own.session(), "strictly by turns");
        last = Some(own.session());
        // Whichever of the two is first at the server.
        if round % 4 < 2 {
            turn.release();
            mine = enter(own, "ana").await;
        } else {
            mine = enter(own, "ana").await;
            turn.release();
        }
        std::mem::swap(&mut mine, &mut theirs);
    }
}

#[expect(clippy::disallowed_methods, reason = "a real server answers in real time")]
async fn take_within(limit: Duration, replica: &RedisCoordinator, key: &str) -> bool {
    tokio::time::timeout(limit, take(replica, key)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_waits_leave_no_ticket() {
    let redis = server();
    let a = replica(&redis).await;
    let held = take(&a, "ana").await;
    let calls = (0..100).map(|at| {
        let a = &a;
        async move {
            let mut call = Box::pin(async {
                let mut ticket = a.enter("ana").await?;
                ticket.granted().await
            });
            for _ in 0..at {
                if futures_util::poll!(&mut call).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    });
    futures_util::future::join_all(calls).await;
    until("the queue has the holder alone", || tickets_of(&redis) == 1).await;
    // And over a network that is so slow that requests are under way when their callers give up.
    let proxy = Proxy::start(redis.address()).unwrap();
    let b = replica_at(&redis.url_at(proxy.address()), short()).await;
    proxy.set(Direction::ToServer, Flow::Delay(Duration::from_millis(5)));
    proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(5)));
    let calls = (0..100).map(|_| take_within(Duration::from_millis(10), &b, "ana"));
    assert_eq!(futures_util::future::join_all(calls).await, [false; 100]);
    until("the queue has the holder alone again", || tickets_of(&redis) == 1).await;
    held.release();
    until("the queue is empty", || tickets_of(&redis) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_takes_too_long_fails_and_leaves_no_ticket() {
    let redis = server();
    let (a, c) = (replica(&redis).await, replica(&redis).await);
    let b = replica_at(redis.url(), short().with_turn_wait(Duration::from_millis(100))).await;
    let held = take(&a, "ana").await;
    let mut impatient = enter(&b, "ana").await;
    let mut next = enter(&c, "ana").await;
    let refused = impatient.granted().await.unwrap_err();
    assert_eq!(refused.reason, Reason::Timeout);
    assert!(refused.source.unwrap().to_string().contains("did not come within 100ms"));
    until("the ticket is gone", || tickets_of(&redis) == 2).await;
    assert_eq!(impatient.granted().await.unwrap_err().reason, Reason::Down);
    held.release();
    let turn = next.granted().await.unwrap();
    assert_eq!(turn.previous_holder(), Some(&a.session()), "the one that gave up never held it");
    take(&b, "bea").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_bounded() {
    let redis = server();
    let a = replica_at(redis.url(), short().with_max_waiters(2)).await;
    let (held, mut first, _second) = (take(&a, "ana").await, enter(&a, "ana").await, enter(&a, "ana").await);
    assert_eq!(a.enter("ana").await.unwrap_err().reason, Reason::Overloaded);
    take(&a, "bea").await;
    held.release();
    first.granted().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c03_no_push_is_missed_by_a_replica_that_has_just_started_a_thousand_times() {
    let redis = server();
    let store = open(&redis).await;
    // A lease within which nobody asks for a push that was missed.
    let start = async || store.coordinator_with(short().with_lease(Duration::from_secs(600))).await.unwrap();
    let a = start().await;
    let starts = (0..20).map(async |task| {
        for round in 0..50 {
            let key = format!("chat{task}-{round}");
            let held = take(&a, &key).await;
            let b = start().await;
            let mut ticket = enter(&b, &key).await;
            held.release();
            soon("the push", ticket.granted()).await.unwrap();
            b.close().await;
        }
    });
    futures_util::future::join_all(starts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_nobody_else_waits_for_push_nothing() {
    let redis = server();
    let a = replica(&redis).await;
    let before = calls(&redis, "publish");
    for at in 0..5000 {
        take(&a, &format!("chat{}", at % 7)).await.release();
    }
    let (held, mut next) = (take(&a, "ana").await, enter(&a, "ana").await);
    held.release();
    next.granted().await.unwrap();
    assert_eq!(calls(&redis, "publish"), before, "the next ticket of the same replica is in the answer");
}

/// A million of them: `cargo xtask bench turns -- --part idle`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e03_fifty_thousand_chats_leave_nothing_after_their_time() {
    const CHATS: usize = 50_000;
    let redis = server();
    let a = replica_at(redis.url(), short().with_idle_ttl(Duration::from_secs(1))).await;
    let b = replica_at(redis.url(), short().with_idle_ttl(Duration::from_secs(1))).await;
    let memory = || redis.info("used_memory_dataset").unwrap().unwrap().parse::<u64>().unwrap();
    let (before, held) = (memory(), take(&a, "ana").await);
    let tasks = (0..256).map(async |task| {
        for at in 0..CHATS / 256 {
            let key = format!("chat{task}-{at}");
            let turn = take(&a, &key).await;
            // Some have a waiter, some end by it.
            let waiting = if at % 20 == 0 { Some(enter(&b, &key).await) } else { None };
            turn.release();
            drop(waiting);
        }
    });
    futures_util::future::join_all(tasks).await;
    let size = || redis.command(&["DBSIZE"]).unwrap().int().unwrap();
    // The layouts of store and turns, the sessions, and the one that is held.
    until("the idle keys are gone", || size() == 4).await;
    assert_eq!(held.check(), Ok(()));
    let after = memory();
    assert!(after < before + 256 * 1024, "{before} bytes before, {after} after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_begin_above_what_the_store_has_seen() {
    let redis = server();
    let future = Fence(5_000_000_000_000_000);
    let a = replica_at(redis.url(), short().with_floor(future)).await;
    let first = take(&a, "ana").await.fence();
    assert!(first > future);
    redis.command(&["FLUSHALL"]).unwrap();
    let again = loop {
        if let Ok(mut ticket) = a.enter("ana").await
            && let Ok(turn) = ticket.granted().await
        {
            break turn.fence();
        }
        pause().await;
    };
    assert!(again > first, "{again:?}");
    let store = open(&redis).await;
    let b = store.coordinator_with(short()).await.unwrap();
    assert!(take(&b, "bea").await.fence() > again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_floor_that_is_raised_later_counts_for_the_next_turn_and_outlives_the_data() {
    let redis = server();
    let future = Fence(5_000_000_000_000_000);
    let a = replica(&redis).await;
    let (session, early) = (a.session(), take(&a, "ana").await.fence());
    assert!(early < future);
    a.raise_floor(future);
    a.raise_floor(early);
    let first = take(&a, "ana").await;
    assert!(first.fence() > future);
    assert_eq!(*first.session(), session);
    redis.command(&["FLUSHALL"]).unwrap();
    first.lost().await;
    let again = loop {
        if let Ok(Some(turn)) = a.try_enter("ana").await {
            break turn.fence();
        }
        pause().await;
    };
    assert!(again > first.fence(), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_hands_over_at_once() {
    let redis = server();
    // A lease that nobody would wait for.
    let config = || short().with_lease(Duration::from_secs(600));
    let (a, b) = (replica_at(redis.url(), config()).await, replica_at(redis.url(), config()).await);
    let (mut held, mut own, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..50 {
        let key = format!("chat{at}");
        held.push(take(&a, &key).await);
        own.push(enter(&a, &key).await);
        others.push(enter(&b, &key).await);
    }
    a.close().await;
    a.close().await;
    for turn in &held {
        assert_eq!(turn.check().unwrap_err().reason, LeaseLostReason::Released);
        assert_eq!(turn.lost().await.reason, LeaseLostReason::Released);
    }
    for ticket in &mut others {
        ticket.granted().await.unwrap();
    }
    assert_eq!(own[0].granted().await.unwrap_err().reason, Reason::Down);
    assert_eq!(a.enter("ana").await.unwrap_err().reason, Reason::Down);
    assert!(a.release_lock("job", "t").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_ends_opens_no_other_session() {
    let redis = server();
    let config = || short().with_lease(Duration::from_secs(600));
    let ends = (0..40).map(async |at| {
        let a = replica_at(redis.url(), config()).await;
        if at % 2 == 0 {
            a.crash();
        } else {
            a.close().await;
        }
        drop(a);
    });
    futures_util::future::join_all(ends).await;
    until("all connections are gone", || {
        let list = redis.command(&["CLIENT", "LIST"]).unwrap().text().unwrap();
        list.lines().filter(|line| !line.contains("cmd=client")).count() == 0
    })
    .await;
    let state = redis.command(&["HGETALL", STATE]).unwrap();
    let fields = state.items().iter().step_by(2).map(|field| field.text().unwrap());
    assert_eq!(fields.filter(|field| field.starts_with("s:")).count(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_ends_with_its_last_turn() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let held = take(&a, "ana").await;
    let mut ticket = enter(&b, "ana").await;
    drop(a);
    assert_eq!(held.check(), Ok(()));
    drop(held);
    ticket.granted().await.unwrap();
    until("its connections are gone", || {
        let list = redis.command(&["CLIENT", "LIST"]).unwrap().text().unwrap();
        list.lines().filter(|line| !line.contains("cmd=client")).count() == 2
    })
    .await;
}

#[test]
fn a_coordinator_ends_with_the_runtime_that_serves_it() {
    let redis = server();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let config = || short().with_lease(Duration::from_secs(600));
    let (its, other) = (runtime(), runtime());
    let (a, b) =
        (its.block_on(replica_at(redis.url(), config())), other.block_on(replica_at(redis.url(), config())));
    let held = its.block_on(take(&a, "ana"));
    let mut next = other.block_on(enter(&b, "ana"));
    drop(its);
    other.block_on(soon("the turn", next.granted())).unwrap();
    assert_eq!(held.check().unwrap_err().reason, LeaseLostReason::CoordinatorLost);
    assert_eq!(other.block_on(a.enter("bea")).unwrap_err().reason, Reason::Down);
    other.block_on(a.close());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_released_and_prolonged_by_its_token_alone() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let (ttl, short) = (Duration::from_secs(60), Duration::from_millis(1));
    let fence = a.acquire_lock_fenced("job", "t1", ttl).await.unwrap().unwrap();
    assert_eq!(a.acquire_lock_fenced("job", "t1", ttl).await.unwrap(), Some(fence));
    assert_eq!(b.acquire_lock_fenced("job", "t2", ttl).await.unwrap(), None);
    assert!(!b.release_lock("job", "t2").await.unwrap());
    assert_eq!(b.renew_lock("job", "t2", ttl).await.unwrap(), None);
    assert_eq!(a.renew_lock("job", "t1", short).await.unwrap(), Some(fence));
    let next = loop {
        if let Some(fence) = b.acquire_lock_fenced("job", "t2", ttl).await.unwrap() {
            break fence;
        }
        pause().await;
    };
    assert!(next > fence);
    assert!(!a.release_lock("job", "t1").await.unwrap());
    assert!(b.release_lock("job", "t2").await.unwrap());
}

#[tokio::test]
async fn another_layout_is_refused() {
    let redis = server();
    for (name, value, difference) in
        [("format", "1", "format is 1 there and 2 here"), ("buckets", "64", "buckets is 64 there and 1 here")]
    {
        let record = ["HSET", "{botmesh}:layout:turns", "format", "2", "buckets", "1"];
        redis.command(&record).unwrap();
        redis.command(&["HSET", "{botmesh}:layout:turns", name, value]).unwrap();
        let error = RedisCoordinator::connect(redis.url(), "botmesh").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Incompatible);
        assert!(error.to_string().contains(difference), "{error}");
        let remedy = "stop all replicas and delete {botmesh:turns:*}:* and {botmesh}:layout:turns";
        assert!(error.to_string().contains(remedy), "{error}");
    }
    RedisCoordinator::connect(redis.url(), "other").await.unwrap();
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused() {
    let redis = server();
    let config = short().with_lease(Duration::from_millis(10));
    let refused = RedisCoordinator::connect_with(redis.url(), RedisConfig::default(), config).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), Kind::Misuse);
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("coordinator.lease"), "{error}");
}
