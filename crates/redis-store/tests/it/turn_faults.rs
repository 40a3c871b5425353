//! Turns over a server or a network that does something wrong, and nobody loses anything.

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use botmesh_core::coordinator::Coordinator;
use botmesh_core::error::{Cas, CoordinationUnavailableReason as Reason, StoreErrorKind};
use botmesh_core::store::Store;
use botmesh_redis_store::RedisCoordinator;
use botmesh_test_servers::Proxy;

use crate::tools::{checkpoint, conversation, open, server};
use crate::turns::{LEASE, channel_of, enter, lease_end, replica, replica_at, short, take, tickets, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_sent_again() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    for _ in 0..3 {
        redis.command(&["SCRIPT", "FLUSH"]).unwrap();
        let held = take(&a, "ana").await;
        redis.command(&["SCRIPT", "FLUSH"]).unwrap();
        let mut next = enter(&b, "ana").await;
        redis.command(&["SCRIPT", "FLUSH"]).unwrap();
        held.release();
        next.granted().await.unwrap().release();
    }
    let end = lease_end(&redis, &a);
    redis.command(&["SCRIPT", "FLUSH"]).unwrap();
    until("the lease is prolonged", || lease_end(&redis, &a) > end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_memory_refuses_tickets_and_takes_no_lease_away() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let impatient = replica_at(redis.url(), short().with_turn_wait(Duration::from_millis(300))).await;
    let held = take(&a, "ana").await;
    let mut next = enter(&b, "ana").await;
    let end = lease_end(&redis, &a);
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    assert_eq!(impatient.enter("bea").await.unwrap_err().reason, Reason::Overloaded);
    assert_eq!(tickets(&redis, "bea"), Vec::<String>::new());
    until("the lease outlives three of its ends", || lease_end(&redis, &a) > end + 4_500_000).await;
    assert_eq!(held.check(), Ok(()));
    held.release();
    next.granted().await.unwrap().release();
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    take(&impatient, "bea").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_answer_is_lost_takes_one_ticket() {
    let redis = server();
    let proxy = Proxy::start(redis.address()).unwrap();
    let a = replica_at(&redis.url_at(proxy.address()), short()).await;
    take(&a, "warm").await.release();
    proxy.lose_replies("queue:ana", 2);
    let turn = take(&a, "ana").await;
    assert_eq!(proxy.traffic().replies_lost, 2);
    assert_eq!(tickets(&redis, "ana").len(), 1);
    assert_eq!(turn.check(), Ok(()));
    // And so it is with giving it back.
    proxy.lose_replies("queue:ana", 2);
    turn.release();
    until("the release is there", || tickets(&redis, "ana").is_empty()).await;
    take(&a, "ana").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_pushes_are_made_up_for() {
    let redis = server();
    let proxy = Proxy::start_for_redis(redis.address()).unwrap();
    let (a, b) = (replica(&redis).await, replica_at(&redis.url_at(proxy.address()), short()).await);
    proxy.drop_pushes(true).unwrap();
    let held = take(&a, "ana").await;
    let mut tickets = [enter(&b, "ana").await, enter(&b, "ana").await];
    held.release();
    for ticket in &mut tickets {
        let turn = ticket.granted().await.unwrap();
        assert_eq!(turn.check(), Ok(()));
    }
    assert!(proxy.traffic().pushes_lost > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_is_thrown_out_comes_back_and_asks() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    for _ in 0..5 {
        let held = take(&a, "ana").await;
        let mut next = enter(&b, "ana").await;
        redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
        held.release();
        let turn = next.granted().await.unwrap();
        assert_eq!(turn.check(), Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_pushes_give_no_turn() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let held = take(&a, "ana").await;
    let mut ticket = enter(&b, "ana").await;
    let session = b.session().as_str().to_owned();
    let channel = channel_of(&b);
    let epoch = redis.command(&["HGET", "{botmesh:turns:0}:state", "e"]).unwrap().text().unwrap();
    let texts = [
        format!("g|other|{session}|1|7||ana"),
        format!("g|{epoch}|{session}x|1|7||ana"),
        format!("g|{epoch}|{session}|77|7||ana"),
        format!("n|{epoch}|{session}|1|7||ana"),
        "g".to_owned(),
        "nonsense|||||||".to_owned(),
    ];
    for text in &texts {
        assert_eq!(redis.command(&["PUBLISH", &channel, text]).unwrap().int(), Some(1));
    }
    take(&b, "bea").await;
    assert!(futures_util::poll!(Box::pin(ticket.granted())).is_pending());
    assert_eq!(tickets(&redis, "ana").len(), 2);
    held.release();
    ticket.granted().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_its_replica_does_not_know_is_given_back_when_others_wait() {
    let redis = server();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    // What a request leaves that was carried out after its caller had given up.
    let ghost = format!("{}:77", a.session());
    redis.command(&["SET", "{botmesh:turns:0}:queue:ana", &format!("0 7 {ghost} ")]).unwrap();
    take(&b, "ana").await;
    assert_eq!(a.session().as_str().split('.').nth(1), Some("0"), "nothing else is lost");
}

/// Nothing but the threads of the coordinators runs meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "as handlers that block each thread of the runtime")]
async fn handlers_that_block_their_runtime_do_not_end_the_lease() {
    let redis = server();
    let store = open(&redis).await;
    let (a, b) = (store.coordinator_with(short()).await.unwrap(), replica(&redis).await);
    let (held, mut next) = (take(&a, "ana").await, enter(&b, "ana").await);
    let (gate, begun) = (Arc::new(Mutex::new(())), Arc::new(Barrier::new(3)));
    let closed = gate.lock().unwrap();
    let handlers = [(); 2].map(|()| {
        let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
        tokio::spawn(async move {
            begun.wait();
            drop(gate.lock());
        })
    });
    begun.wait();
    let end = lease_end(&redis, &a);
    // Without the runtime, whose threads are all blocked.
    #[expect(clippy::disallowed_methods, reason = "a real lease is prolonged in real time")]
    while lease_end(&redis, &a) < end + 4_500_000 {
        std::thread::sleep(Duration::from_millis(3));
    }
    assert_eq!(held.check(), Ok(()));
    drop(closed);
    futures_util::future::join_all(handlers).await;
    let written = store.set_checkpoint(&held, &conversation("ana"), None, &checkpoint(5)).await.unwrap();
    assert!(matches!(written, Cas::Applied(_)), "{written:?}");
    assert!(futures_util::poll!(Box::pin(next.granted())).is_pending());
    held.release();
    next.granted().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_is_told_and_left_as_it_is() {
    let redis = server();
    let a = replica(&redis).await;
    let foreign = |key: &str| {
        redis.command(&["SET", &format!("{{botmesh:turns:0}}:{key}"), "foreign"]).unwrap();
    };
    foreign("queue:ana");
    let error = a.enter("ana").await.unwrap_err();
    assert_eq!(error.reason, Reason::Down);
    assert!(error.source.unwrap().to_string().contains("damaged"));
    redis.command(&["RPUSH", "{botmesh:turns:0}:queue:eva", "foreign"]).unwrap();
    foreign("behind:bea");
    let held = take(&a, "bea").await;
    for key in ["eva", "bea"] {
        let error = a.enter(key).await.unwrap_err();
        assert!(error.source.unwrap().to_string().contains("belongs to another program"));
    }
    held.release();
    foreign("lock:job");
    let error = a.acquire_lock_fenced("job", "t", LEASE).await.unwrap_err();
    assert!(error.source.unwrap().to_string().contains("damaged"));
    take(&a, "bea").await;
    a.close().await;
    foreign("state");
    let error = RedisCoordinator::connect(redis.url(), "botmesh").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert!(error.to_string().contains("belongs to another program"), "{error}");
    for key in ["queue:ana", "behind:bea", "lock:job", "state"] {
        let found = redis.command(&["GET", &format!("{{botmesh:turns:0}}:{key}")]).unwrap();
        assert_eq!(found.text().unwrap(), "foreign", "{key} is left as it is");
    }
}
