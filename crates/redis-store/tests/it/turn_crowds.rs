//! Turns of many chats, many messages and many dead.

use std::sync::Mutex;
use std::time::Duration;

use botmesh_core::coordinator::{Coordinator, Fence};
use botmesh_core::error::{CoordinationUnavailableReason as Reason, LeaseLostReason};
use botmesh_core::id::SessionId;
use botmesh_redis_store::RedisCoordinator;
use botmesh_test_servers::{Cluster, Options, Proxy, Redis, Reply};
use futures_util::future::join_all;

use crate::tools::{server, soon};
use crate::turns::{LEASE, calls, channel_of, enter, replica, replica_at, short, take, tickets, until};

/// Tickets of a session that is gone.
fn dead_tickets(redis: &Redis, key: &str, count: usize) {
    let mut command = vec!["ZADD".to_owned(), format!("{{botmesh:turns:0}}:behind:{key}")];
    for at in 2..=count {
        command.extend([at.to_string(), format!("gone.0:{at}")]);
    }
    redis.command(&command).unwrap();
    let first = format!("{} 1 gone.0:1 ", count - 1);
    redis.command(&["SET", &format!("{{botmesh:turns:0}}:queue:{key}"), &first]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_dead_tickets_never_hold_the_server_up() {
    let redis = server();
    let a = replica(&redis).await;
    for (name, value) in [("slowlog-log-slower-than", "10000"), ("slowlog-max-len", "1000")] {
        redis.command(&["CONFIG", "SET", name, value]).unwrap();
    }
    dead_tickets(&redis, "ana", 10_000);
    redis.command(&["SLOWLOG", "RESET"]).unwrap();
    redis.command(&["CONFIG", "RESETSTAT"]).unwrap();
    let turn = soon("a turn behind the dead", take(&a, "ana")).await;
    assert_eq!(turn.previous_holder().unwrap().as_str(), "gone.0");
    assert_eq!(tickets(&redis, "ana").len(), 1);
    let scripts = calls(&redis, "evalsha");
    // Each removes 256 at most, and none is in vain.
    assert!((40..60).contains(&scripts), "{scripts} scripts removed 10000 tickets");
    // On a busy machine some scripts are slow through no fault of their own.
    let is_script =
        |entry: &&Reply| entry.items()[3].items()[0].text().is_some_and(|name| name.starts_with("EVAL"));
    let slow = redis.command(&["SLOWLOG", "GET", "1000"]).unwrap();
    let slow = slow.items().iter().filter(is_script).count();
    assert!(slow < 20, "{slow} of {scripts} scripts took longer than 10 ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c07_a_subscriber_that_is_thrown_out_for_its_backlog_misses_none_of_ten_thousand_turns() {
    let redis = server();
    redis.command(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 1024 1024 1"]).unwrap();
    let proxy = Proxy::start(redis.address()).unwrap();
    // A lease within which nobody asks for a push that was missed, but because it was thrown out.
    let config = || short().with_lease(Duration::from_secs(600));
    let a = replica_at(redis.url(), config()).await;
    let b = replica_at(&redis.url_at(proxy.address()), config()).await;
    let channel = channel_of(&b);
    let backlog = "for i = 1, 300 do redis.call('PUBLISH', ARGV[1], string.rep('x', 1000)) end";
    for round in 0..40 {
        let keys: Vec<_> = (0..250).map(|chat| format!("chat{round}-{chat}")).collect();
        let (mut held, mut next) = (Vec::new(), Vec::new());
        // So few at once that their answers are no backlog.
        for some in keys.chunks(50) {
            held.extend(join_all(some.iter().map(|key| take(&a, key))).await);
            next.extend(join_all(some.iter().map(|key| enter(&b, key))).await);
        }
        until("the subscription", || {
            let subscribers = redis.command(&["PUBSUB", "NUMSUB", &channel]).unwrap();
            subscribers.items()[1].int() == Some(1)
        })
        .await;
        let connected = proxy.traffic().accepted;
        held.truncate(125);
        redis.command(&["EVAL", backlog, "0", &channel]).unwrap();
        drop(held);
        let served = next.iter_mut().map(async |ticket| {
            let turn = ticket.granted().await.unwrap();
            assert_eq!(turn.check(), Ok(()));
        });
        soon("all turns", join_all(served)).await;
        until("it was thrown out", || proxy.traffic().accepted > connected).await;
    }
    assert!(b.session().as_str().ends_with(".0"), "and no session was lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_forgotten_between_pipelined_calls_change_no_order() {
    let redis = server();
    let a = replica(&redis).await;
    for _ in 0..5 {
        redis.command(&["SCRIPT", "FLUSH"]).unwrap();
        let of_one = (0..20).map(|_| enter(&a, "ana"));
        let of_many: Vec<_> = (0..50).map(|chat| format!("chat{chat}")).collect();
        let others = of_many.iter().map(|key| enter(&a, key));
        let (mut of_one, others) = futures_util::join!(join_all(of_one), join_all(others));
        assert!(of_one.is_sorted_by(|one, other| one.fence() < other.fence()));
        assert_eq!(tickets(&redis, "ana").len(), 20, "each once");
        for ticket in others.into_iter().chain(of_one.drain(..)) {
            let mut ticket = ticket;
            ticket.granted().await.unwrap().release();
        }
        until("all are given back", || tickets(&redis, "ana").is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_not_full_of_the_dead() {
    let redis = server();
    let a = replica_at(redis.url(), short().with_max_waiters(10)).await;
    for key in ["ana", "bea"] {
        dead_tickets(&redis, key, 2000);
    }
    take(&a, "ana").await;
    assert!(a.try_enter("bea").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_died_waiting_behind_a_living_holder_keep_nobody_out() {
    let redis = server();
    let start = || replica_at(redis.url(), short().with_max_waiters(3));
    let (a, b, dies) = (start().await, start().await, start().await);
    let held = take(&a, "ana").await;
    let _left = [enter(&dies, "ana").await, enter(&dies, "ana").await, enter(&dies, "ana").await];
    assert_eq!(b.enter("ana").await.unwrap_err().reason, Reason::Overloaded);
    dies.crash();
    let first = async {
        loop {
            match b.enter("ana").await {
                Ok(ticket) => return ticket,
                Err(error) => assert_eq!(error.reason, Reason::Overloaded),
            }
        }
    };
    let mut waiting = vec![soon("a place", first).await, enter(&b, "ana").await, enter(&b, "ana").await];
    assert_eq!(b.enter("ana").await.unwrap_err().reason, Reason::Overloaded);
    assert_eq!(held.check(), Ok(()));
    held.release();
    let first = waiting.remove(0).granted().await.unwrap();
    assert!(!first.was_given_back(), "what the dead were to handle is left");
}

/// What only one may write to: it takes nothing from the past, and nothing of two at once.
#[derive(Default)]
struct Resource(Mutex<Vec<(Fence, SessionId, usize)>>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_chats_survive_the_loss_of_all_data_in_order() {
    const CHATS: usize = 100;
    let redis = server();
    let replicas = [replica(&redis).await, replica(&redis).await];
    let keys: Vec<_> = (0..CHATS).map(|chat| format!("chat{chat}")).collect();
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for key in &keys {
        held.push(take(&replicas[0], key).await);
        waiting.push(enter(&replicas[1], key).await);
    }
    redis.command(&["FLUSHALL"]).unwrap();
    for turn in &held {
        assert_eq!(turn.lost().await.reason, LeaseLostReason::DataLoss);
    }
    for ticket in &mut waiting {
        assert!(ticket.granted().await.is_err());
    }
    let before = held.iter().map(|turn| turn.fence()).max().unwrap();
    let resources: Vec<Resource> = keys.iter().map(|_| Resource::default()).collect();
    let (owners, replicas) = (Mutex::new(vec![0; CHATS]), &replicas);
    let serve = async |replica: usize, chat: usize, message: usize| {
        let turn = replicas[replica].enter(&keys[chat]).await.unwrap().granted().await.unwrap();
        let enter = |by: i32| {
            let mut owners = owners.lock().unwrap();
            owners[chat] += by;
            assert!(owners[chat] <= 1, "two replicas have one chat");
        };
        enter(1);
        assert!(turn.fence() > before);
        resources[chat].0.lock().unwrap().push((turn.fence(), turn.session().clone(), message));
        tokio::task::yield_now().await;
        enter(-1);
    };
    let again = (0..CHATS * 2).map(|of| {
        join_all(
            (0..3)
                .map(move |message| (of % 2, of / 2, message))
                .map(|(replica, chat, message)| serve(replica, chat, message)),
        )
    });
    soon("all chats", join_all(again)).await;
    for Resource(written) in &resources {
        let written = written.lock().unwrap();
        assert_eq!(written.len(), 6);
        assert!(written.is_sorted_by(|one, other| one.0 < other.0), "fences grow: {written:?}");
        for replica in replicas {
            let own = written.iter().filter(|(_, session, _)| *session == replica.session());
            assert!(own.map(|(.., message)| message).eq(&[0, 1, 2]), "{written:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_are_exact_as_far_as_numbers_of_the_server_go() {
    let redis = server();
    let mut floors = vec![1_u64 << 51, 1 << 52, (1 << 53) - 10, 9_000_000_000_000_001, 4_503_599_627_370_497];
    floors.extend((0..20).map(|at| 1_999_999_999_999_990 + at));
    floors.extend((0..20).map(|at| 2_345_678_901_234_561 + 98_765_432_109_877 * at));
    for floor in floors {
        let other = botmesh_redis_store::RedisConfig::default().with_prefix(floor.to_string());
        let start = |floor| {
            let config = short().with_floor(Fence(floor));
            RedisCoordinator::connect_with(redis.url(), other.clone(), config)
        };
        let (a, b) = (start(floor).await.unwrap(), start(0).await.unwrap());
        let held = take(&a, "ana").await;
        let mut next = enter(&b, "ana").await;
        assert_eq!((held.fence(), next.fence()), (Fence(floor + 1), Fence(floor + 2)));
        held.release();
        assert_eq!(next.granted().await.unwrap().fence(), Fence(floor + 2));
        assert_eq!(a.acquire_lock_fenced("job", "t", LEASE).await.unwrap(), Some(Fence(floor + 3)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_script_finds_its_keys_on_a_cluster() {
    let cluster = Cluster::start(&Options::new(), 3, 0).unwrap();
    let (a, b) = (replica_at(&cluster.url(), short()).await, replica_at(&cluster.url(), short()).await);
    // Names that might be taken for a hash tag of their own.
    let mut keys: Vec<_> = (0..200).map(|chat| format!("chat{chat}")).collect();
    keys.extend(["{x}", "}{", "{", "a{b}c", "a|b:c", "!", "ñ é"].map(str::to_owned));
    for key in &keys {
        let held = take(&a, key).await;
        let mut next = enter(&b, key).await;
        held.release();
        assert_eq!(next.granted().await.unwrap().previous_holder(), Some(held.session()), "{key}");
        drop(enter(&a, key).await);
        let fence = a.acquire_lock_fenced(key, "t", LEASE).await.unwrap().unwrap();
        assert_eq!(b.acquire_lock_fenced(key, "other", LEASE).await.unwrap(), None);
        assert_eq!(a.renew_lock(key, "t", LEASE).await.unwrap(), Some(fence));
        assert!(a.release_lock(key, "t").await.unwrap());
    }
    // Who asks instead of being told, and heartbeats.
    let held: Vec<_> = join_all(keys.iter().map(|key| take(&a, key))).await;
    let mut waiting = join_all(keys.iter().map(|key| enter(&b, key))).await;
    a.crash();
    let taken = waiting.iter_mut().map(async |ticket| ticket.granted().await.unwrap());
    let taken = soon("the turns of the dead", join_all(taken)).await;
    for (held, taken) in held.iter().zip(&taken) {
        assert!(taken.fence() > held.fence() && taken.check().is_ok());
    }
    b.close().await;
    assert!(taken.iter().all(|turn| turn.check().is_err()));
}
