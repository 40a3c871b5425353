//! A copy of a process, such as a restored snapshot of its machine: it has the same names and counters.

use std::sync::Arc;
use std::time::Duration;

use botmesh_core::coordinator::Coordinator;
use botmesh_core::error::LeaseLostReason;
use botmesh_test_servers::{Options, Redis};

use super::{RedisCoordinator, RedisCoordinatorConfig};
use crate::RedisConfig;
use crate::client::Client;

async fn named(redis: &Redis, incarnation: &str) -> RedisCoordinator {
    let client = Arc::new(Client::open(redis.url(), RedisConfig::default()).await.unwrap());
    let config = RedisCoordinatorConfig::default().with_lease(Duration::from_millis(1500));
    RedisCoordinator::start_as(client, config, incarnation.to_owned()).await.unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a real server is waited for")]
async fn pause() {
    tokio::time::sleep(Duration::from_millis(3)).await;
}

fn incarnation(replica: &RedisCoordinator) -> String {
    replica.session().as_str().split('.').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_and_its_copy_both_go_on_under_names_of_their_own() {
    let redis = Redis::start(&Options::new()).unwrap();
    let (a, b) = (named(&redis, "same").await, named(&redis, "same").await);
    assert_eq!(a.session(), b.session());
    let held = a.enter("ana").await.unwrap().granted().await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "without the rule it is never lost")]
    let lost = tokio::time::timeout(Duration::from_secs(20), held.lost()).await;
    assert_eq!(lost.unwrap().reason, LeaseLostReason::Expired);
    // Each waits for its next session.
    let mine = a.enter("mine").await.unwrap().granted().await.unwrap();
    let theirs = loop {
        let turn = b.enter("theirs").await.unwrap().granted().await;
        if let Ok(turn) = turn
            && !turn.session().as_str().starts_with("same")
        {
            break turn;
        }
    };
    let names = [incarnation(&a), incarnation(&b)];
    assert!(names[0] != names[1] && !names.contains(&"same".to_owned()), "{names:?}");
    // They hear what is pushed to their new names, and neither is in the other's way.
    let mut next = b.enter("mine").await.unwrap();
    mine.release();
    let next = next.granted().await.unwrap();
    assert_eq!((next.check(), theirs.check()), (Ok(()), Ok(())));
    let again = a.enter("ana").await.unwrap().granted().await.unwrap();
    assert!(again.fence() > held.fence());
    assert!(!again.was_given_back());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_that_is_sent_twice_is_no_copy() {
    let redis = Redis::start(&Options::new()).unwrap();
    let proxy = botmesh_test_servers::Proxy::start(redis.address()).unwrap();
    let url = redis.url_at(proxy.address());
    let config = RedisCoordinatorConfig::default().with_lease(Duration::from_millis(3000));
    let a = RedisCoordinator::connect_with(&url, RedisConfig::default(), config).await.unwrap();
    let held = a.enter("ana").await.unwrap().granted().await.unwrap();
    let (session, field) = (a.session(), format!("n:{}", a.session()));
    let beats = || redis.command(&["HGET", "{botmesh:turns:0}:state", &field]).unwrap().text();
    // The server has to know the script, so that what is lost is the answer of a heartbeat.
    while beats().is_none() {
        pause().await;
    }
    // Its answer is lost, and it is sent again; then the next one.
    proxy.lose_replies(&*format!("{session}\r\n"), 1);
    let (mut last, mut seen) = (beats(), 0);
    while seen < 3 && held.check().is_ok() {
        let beat = beats();
        seen += usize::from(beat != last);
        last = beat;
        pause().await;
    }
    assert_eq!(proxy.traffic().replies_lost, 1);
    assert_eq!((held.check(), a.session()), (Ok(()), session));
}
