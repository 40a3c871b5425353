//! Turns over a server that starts, pauses, is full of clients, loses some of its data, or whose clock is set.

use botmesh_core::coordinator::{Coordinator, Fence};
use botmesh_core::error::{Cas, CoordinationUnavailableReason as Reason, LeaseLostReason};
use botmesh_core::store::Store;
use botmesh_redis_store::{RedisConfig, RedisCoordinator};
use botmesh_test_servers::{Cluster, Connection, Options, Persistence, Proxy, Redis};

use crate::tools::{checkpoint, conversation, open, server, soon};
use crate::turn_losses::take_in_the_end;
use crate::turns::{LEASE, STATE, enter, lease_end, replica, replica_at, short, take, tickets, until};

async fn impatient(redis: &Redis) -> RedisCoordinator {
    replica_at(redis.url(), short().with_turn_wait(std::time::Duration::from_millis(400))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_server_that_loads_its_data_for_longer_than_a_lease_is_waited_for() {
    // Each command of its log takes a while.
    let options = Options::new().with_persistence(Persistence::Always).with_setting("key-load-delay", "200");
    let redis = Redis::start(&options).unwrap();
    let (a, b, c) = (replica(&redis).await, replica(&redis).await, impatient(&redis).await);
    let held = take(&a, "ana").await;
    let mut next = enter(&b, "ana").await;
    redis.command(&["EVAL", "for i = 1, 15000 do redis.call('INCR', 'n') end", "0"]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| redis.restart().unwrap());
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| {
            runtime.block_on(async {
                assert_eq!(held.lost().await.reason, LeaseLostReason::CoordinatorLost);
                assert_eq!(c.enter("bea").await.unwrap_err().reason, Reason::Down);
                let refused = redis.command(&["GET", "n"]).unwrap_err().to_string();
                assert!(refused.starts_with("LOADING"), "it served before anything was seen: {refused}");
            });
        });
    });
    // Its log had the tickets; who held the turn is over.
    assert!(held.check().is_err());
    match next.granted().await {
        Ok(turn) => assert_eq!(turn.check(), Ok(())),
        Err(error) => assert_eq!(error.reason, Reason::Down),
    }
    drop(next);
    let again = take_in_the_end(&a, "ana").await;
    assert!(again.fence() > held.fence());
    assert_ne!(again.session(), held.session(), "a session that ended is never opened again");
    take_in_the_end(&c, "bea").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_lost_its_majority_ends_the_turns_and_serves_again_afterwards() {
    let cluster = Cluster::start(&Options::new(), 3, 0).unwrap();
    let a = replica_at(&cluster.url(), short()).await;
    let impatient = short().with_turn_wait(std::time::Duration::from_millis(400));
    let b = replica_at(&cluster.url(), impatient).await;
    let held = take(&a, "ana").await;
    // The node that has the turn goes on, and may not.
    let has = |node: &&Redis| !node.command(&["KEYS", "*queue:ana"]).unwrap().items().is_empty();
    let owner = cluster.nodes().iter().find(has).unwrap().address();
    let others = || cluster.nodes().iter().filter(move |node| node.address() != owner);
    others().for_each(|node| node.freeze().unwrap());
    cluster.wait_until_down().unwrap();
    assert_eq!(held.lost().await.reason, LeaseLostReason::CoordinatorLost);
    assert_eq!(b.enter("ana").await.unwrap_err().reason, Reason::Down);
    others().for_each(|node| node.thaw().unwrap());
    cluster.wait_until_serving().unwrap();
    let again = take_in_the_end(&b, "ana").await;
    assert!(again.fence() > held.fence());
    again.release();
    let last = take_in_the_end(&a, "ana").await;
    assert_ne!(last.session(), held.session(), "a session that ended is never opened again");
}

fn number_of(owner: &mut Connection, section: &str, name: &str) -> u64 {
    let text = owner.command(&["INFO", section]).unwrap().text().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_many_clients_is_tried_with_patience_and_then_used_again() {
    let redis = server();
    let (a, b) = (replica(&redis).await, impatient(&redis).await);
    let held = take(&a, "ana").await;
    let mut owner = redis.connection().unwrap();
    owner.command(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    owner.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
    owner.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    assert_eq!(held.lost().await.reason, LeaseLostReason::CoordinatorLost);
    assert_eq!(b.enter("bea").await.unwrap_err().reason, Reason::Down);
    // Two replicas with two connections each, which try again after up to 200 ms, for a bit more than a lease.
    let tries = number_of(&mut owner, "stats", "rejected_connections");
    assert!((4..200).contains(&tries), "they tried {tries} times");
    owner.command(&["CONFIG", "SET", "maxclients", "100"]).unwrap();
    assert!(take_in_the_end(&a, "ana").await.fence() > held.fence());
    take_in_the_end(&b, "bea").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_the_server_ends_the_turns_that_it_outlasts_and_no_others() {
    let redis = Redis::start(&Options::new().with_setting("enable-debug-command", "yes")).unwrap();
    let short_lived = replica(&redis).await;
    let config = short().with_lease(LEASE * 4);
    let other = RedisConfig::default().with_prefix("other");
    let long_lived = RedisCoordinator::connect_with(redis.url(), other, config).await.unwrap();
    let (before, lost, kept) =
        (long_lived.session(), take(&short_lived, "ana").await, take(&long_lived, "ana").await);
    // As a large FLUSHALL, or the fork for a snapshot.
    redis.command(&["DEBUG", "SLEEP", "2"]).unwrap();
    assert_eq!(lost.lost().await.reason, LeaseLostReason::CoordinatorLost);
    assert_eq!(kept.check(), Ok(()));
    kept.release();
    assert_eq!(take(&long_lived, "ana").await.previous_holder(), Some(&before));
    assert_eq!(long_lived.session(), before);
    assert!(take_in_the_end(&short_lived, "ana").await.fence() > lost.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_goes_on_where_its_log_ends() {
    let redis = Redis::start(&Options::new().with_persistence(Persistence::EverySecond)).unwrap();
    let start = || replica_at(redis.url(), short().with_lease(LEASE * 4));
    let (a, b) = (start().await, start().await);
    let held = take(&a, "ana").await;
    let mut next = enter(&b, "ana").await;
    redis.kill().unwrap();
    redis.restart().unwrap();
    // While the disk is busy, the log may lack a second. What it has is as it was.
    let known = tickets(&redis, "ana").len();
    if known == 2 {
        assert_eq!(held.check(), Ok(()));
        held.release();
        let turn = soon("the turn", next.granted()).await.unwrap();
        assert_eq!(turn.previous_holder(), Some(held.session()));
        assert!(turn.fence() > held.fence());
    } else {
        assert_eq!(soon("the loss", next.granted()).await.unwrap_err().reason, Reason::Down);
        held.release();
        assert!(take_in_the_end(&b, "ana").await.fence() > held.fence());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_its_last_second_ends_the_turns_that_it_does_not_know() {
    let redis = Redis::start(&Options::new().with_persistence(Persistence::EverySecond)).unwrap();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let (before, known) = (a.session(), take(&a, "bea").await);
    let files = redis.files().unwrap();
    let forgotten = take(&a, "ana").await;
    let mut next = enter(&b, "bea").await;
    redis.restart_from(&files).unwrap();
    assert_eq!(soon("the loss", forgotten.lost()).await.reason, LeaseLostReason::DataLoss);
    assert_eq!(known.check().unwrap_err().reason, LeaseLostReason::DataLoss, "they have one session");
    // The ticket of the other replica was forgotten too.
    assert_eq!(soon("the loss", next.granted()).await.unwrap_err().reason, Reason::Down);
    for (key, before) in [("ana", &forgotten), ("bea", &known)] {
        let turn = take_in_the_end(&b, key).await;
        assert!(turn.fence() > before.fence());
    }
    assert_ne!(*take_in_the_end(&a, "ana").await.session(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d20_what_two_masters_permit_at_once_is_written_in_the_order_of_the_fences() {
    let (old, new, third) = (server(), server(), server());
    let port = old.address().port().to_string();
    new.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let proxy = Proxy::start(old.address()).unwrap();
    let a = replica_at(&old.url_at(proxy.address()), short()).await;
    let store = open(&third).await;
    let held = take(&a, "ana").await;
    until("the replica has the ticket", || tickets(&new, "ana").len() == 1).await;
    new.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let b = replica(&new).await;
    let theirs = take(&b, "ana").await;
    assert_eq!((held.check(), theirs.check()), (Ok(()), Ok(())), "each has a master of its own");
    let (key, mut written, mut last) = (conversation("ana"), None, Fence(0));
    let mut mine = held;
    for _ in 0..5 {
        for turn in [&theirs, &mine, &theirs] {
            let outcome = store.set_checkpoint(turn, &key, written, &checkpoint(5)).await.unwrap();
            assert_eq!(
                matches!(outcome, Cas::Applied(_)),
                turn.fence() >= last,
                "{:?} after {last:?}",
                turn.fence()
            );
            if let Cas::Applied(revision) = outcome {
                (written, last) = (Some(revision), turn.fence());
            }
        }
        mine.release();
        mine = take(&a, "ana").await;
    }
    // The partition heals: there is one master, and who was at the other one has nothing.
    proxy.set_upstream(new.address());
    proxy.cut();
    assert!(soon("the loss", mine.lost()).await.reason != LeaseLostReason::Released);
    assert_eq!(theirs.check(), Ok(()));
    theirs.release();
    assert_ne!(take_in_the_end(&a, "ana").await.session(), mine.session());
}

/// The largest fence that the server remembers.
fn last_fence(redis: &Redis) -> Fence {
    let script = "
        return string.format('%.0f', (struct.unpack('<d', redis.call('HGET', KEYS[1], 'clocks'))))";
    let last = redis.command(&["EVAL", script, "1", STATE]).unwrap().text().unwrap();
    Fence(last.parse().unwrap())
}

/// Sets the clock of the server back, by so many microseconds, or forward: makes its data what it would be if the clock had
/// been different until now.
fn set_back(redis: &Redis, by: i64) {
    let script = "
        local state = redis.call('HGETALL', KEYS[1])
        for i = 1, #state, 2 do
          local name, value = state[i], state[i + 1]
          if name == 'clocks' then
            local last, wall, lease, grace = struct.unpack('<dddd', value)
            local by = tonumber(ARGV[1])
            redis.call('HSET', KEYS[1], name, struct.pack('<dddd', last + by, wall + by, lease + by, grace))
          elseif name == 'b' or string.sub(name, 1, 2) == 's:' then
            redis.call('HSET', KEYS[1], name, string.format('%.0f', value + ARGV[1]))
          end
        end
        for _, queue in ipairs(redis.call('KEYS', ARGV[2])) do
          local behind, number, rest = string.match(redis.call('GET', queue), '^(%d+) (%d+)( .*)$')
          redis.call('SET', queue, behind .. ' ' .. string.format('%.0f', number + ARGV[1]) .. rest)
        end
        for _, behind in ipairs(redis.call('KEYS', ARGV[3])) do
          for _, ticket in ipairs(redis.call('ZRANGE', behind, 0, -1)) do
            redis.call('ZINCRBY', behind, ARGV[1], ticket)
          end
        end";
    let all = ["queue", "behind"].map(|name| format!("{{botmesh:turns:0}}:{name}:*"));
    redis.command(&["EVAL", script, "1", STATE, &by.to_string(), &all[0], &all[1]]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_lets_fences_grow_and_leases_end_when_they_would() {
    const HOUR: i64 = 3_600_000_000;
    for by in [HOUR, -HOUR] {
        let redis = server();
        let (a, b, dead) = (replica(&redis).await, replica(&redis).await, replica(&redis).await);
        let (held, _dies) = (take(&a, "ana").await, take(&dead, "bea").await);
        let (mut next, mut heir) = (enter(&b, "ana").await, enter(&b, "bea").await);
        let end = lease_end(&redis, &a);
        dead.crash();
        set_back(&redis, by);
        let last = last_fence(&redis);
        assert!(take(&b, "eva").await.fence() > last, "fences go on growing");
        let heir = soon("the turn of a dead replica", heir.granted()).await.unwrap();
        assert_eq!(heir.previous_holder(), Some(&dead.session()));
        let end = end.checked_add_signed(by).unwrap();
        until("the lease is prolonged twice", || lease_end(&redis, &a) > end + 1_500_000).await;
        assert_eq!(held.check(), Ok(()));
        assert!(futures_util::poll!(Box::pin(next.granted())).is_pending(), "nobody else has it");
        assert_eq!(tickets(&redis, "ana").len(), 2);
        held.release();
        soon("the turn", next.granted()).await.unwrap();
    }
}
