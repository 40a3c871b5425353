//! What a replica does after its connection was lost, until it knows again what the server knows.

use botmesh_core::coordinator::{Coordinator, Trouble};
use botmesh_core::error::{LeaseLostReason, StoreErrorKind as Kind};
use botmesh_redis_store::RedisCoordinator;
use botmesh_test_servers::{Direction, Flow, Options, Proxy, Redis};

use crate::cluster_turns::scripts;
use crate::tools::server;
use crate::turns::{enter, replica, replica_at, short, take, tickets, until};

/// A replica whose questions about the turn of `ana` are not answered yet.
async fn in_doubt(redis: &Redis) -> (Proxy, RedisCoordinator) {
    let proxy = Proxy::start_for_redis(redis.address()).unwrap();
    let config = short().with_lease(std::time::Duration::from_secs(60));
    let replica = replica_at(&redis.url_at(proxy.address()), config).await;
    (proxy, replica)
}

fn reconnect(proxy: &Proxy) {
    proxy.answer("queue:ana", "-LOADING it starts\r\n", usize::MAX).unwrap();
    proxy.cut();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_the_server_forgot_is_not_confirmed_after_a_new_connection() {
    let redis = server();
    let (proxy, a) = in_doubt(&redis).await;
    let turn = take(&a, "ana").await;
    assert_eq!(turn.confirm().await, Ok(()));
    // As a failover does that loses what was acknowledged last.
    redis.command(&["DEL", "{botmesh:turns:0}:queue:ana"]).unwrap();
    reconnect(&proxy);
    until("the replica asks", || proxy.traffic().answered > 0).await;
    let mut confirmed = Box::pin(turn.confirm());
    assert!(futures_util::poll!(&mut confirmed).is_pending(), "confirmed before the server said so");
    proxy.heal();
    assert_eq!(confirmed.await.unwrap_err().reason, LeaseLostReason::DataLoss);
    assert_eq!(turn.check().unwrap_err().reason, LeaseLostReason::DataLoss);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_the_server_knows_is_confirmed_after_a_new_connection() {
    let redis = server();
    let (proxy, a) = in_doubt(&redis).await;
    let turn = take(&a, "ana").await;
    reconnect(&proxy);
    until("the replica asks", || proxy.traffic().answered > 0).await;
    let mut confirmed = Box::pin(turn.confirm());
    assert!(futures_util::poll!(&mut confirmed).is_pending(), "confirmed before the server said so");
    proxy.heal();
    assert_eq!(confirmed.await, Ok(()));
    let mut last = Box::pin(turn.confirm());
    assert!(futures_util::poll!(&mut last).is_ready(), "it is in doubt for no reason");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_behind_one_that_was_given_back_before_a_failover_waits_to_be_confirmed() {
    let redis = server();
    let (proxy, a) = in_doubt(&redis).await;
    let (far, other) = in_doubt(&redis).await;
    let first = take(&other, "ana").await;
    let mut ticket = enter(&a, "ana").await;
    let ghost = tickets(&redis, "ana").remove(0);
    let fence = first.fence().0.to_string();
    first.release();
    let turn = ticket.granted().await.unwrap();
    // What the new master has forgotten is that the first one left, and that one cannot be asked.
    far.set(Direction::ToServer, Flow::Hold);
    let [queue, behind] = ["queue", "behind"].map(|name| format!("{{botmesh:turns:0}}:{name}:ana"));
    let (second, own) = (turn.fence().0.to_string(), tickets(&redis, "ana").remove(0));
    redis.command(&["ZADD", &behind, &second, &own]).unwrap();
    redis.command(&["SET", &queue, &format!("1 {fence} {ghost} ")]).unwrap();
    let before = scripts(&redis);
    reconnect(&proxy);
    until("the replica asks", || proxy.traffic().answered > 0).await;
    proxy.heal();
    until("it is answered", || scripts(&redis) > before + 3).await;
    let mut confirmed = Box::pin(turn.confirm());
    assert!(futures_util::poll!(&mut confirmed).is_pending(), "confirmed although it is not the head");
    far.heal();
    assert_eq!(confirmed.await, Ok(()));
    assert_eq!(tickets(&redis, "ana").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_that_do_not_arrive_after_a_new_connection_are_told() {
    let redis = server();
    let proxy = Proxy::start_for_redis(redis.address()).unwrap();
    let a = replica_at(&redis.url_at(proxy.address()), short()).await;
    proxy.drop_pushes(true).unwrap();
    proxy.cut();
    until("the trouble is known", || a.trouble(Trouble::Pushes).is_some()).await;
    assert_eq!(a.trouble(Trouble::Pushes).unwrap().kind(), Kind::Denied);
    proxy.drop_pushes(false).unwrap();
    until("the trouble is over", || a.trouble(Trouble::Pushes).is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_is_refused_later_is_told_until_it_is_permitted_again() {
    let rules = "~* &* +@all";
    let redis = Redis::start(&Options::new().with_user("bot", "secret", rules)).unwrap();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    assert!(a.trouble(Trouble::Pushes).is_none());
    let acl = |rule: &str| redis.command(&["ACL", "SETUSER", "bot", rule]).unwrap();
    acl("-subscribe");
    redis.command(&["CLIENT", "KILL", "USER", "bot"]).unwrap();
    until("the trouble is known", || {
        a.trouble(Trouble::Pushes).is_some() && b.trouble(Trouble::Pushes).is_some()
    })
    .await;
    assert_eq!(a.trouble(Trouble::Pushes).unwrap().kind(), Kind::Denied);
    let held = take(&a, "ana").await;
    let mut next = enter(&b, "ana").await;
    held.release();
    assert_eq!(next.granted().await.unwrap().previous_holder(), Some(held.session()));
    acl("+subscribe");
    until("the trouble is over", || {
        a.trouble(Trouble::Pushes).is_none() && b.trouble(Trouble::Pushes).is_none()
    })
    .await;
}
