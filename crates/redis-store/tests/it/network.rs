//! A network that loses answers, cuts connections and goes silent.

use botmesh_core::error::{Cas, Effect, StoreErrorKind as Kind};
use botmesh_core::kv::{Expect, Outcome};
use botmesh_core::store::{Direction as By, LogEntry, Store as _};
use botmesh_core::time::Timestamp;
use botmesh_redis_store::fred::interfaces::ClientLike as _;
use botmesh_redis_store::fred::prelude::{Builder, Config, ReconnectPolicy};
use botmesh_redis_store::{RedisConfig, RedisStore};
use botmesh_test_servers::{Accept, Direction, End, Flow, Proxy, Redis};

use crate::tools::{checkpoint, conversation, create, get, impatient, put, server, turn, until_served};

fn proxied(redis: &Redis) -> (Proxy, String) {
    let proxy = Proxy::start(redis.address()).unwrap();
    let url = format!("redis://{}", proxy.address());
    (proxy, url)
}

/// A client as it comes, which sends a command up to three times.
async fn eager(url: &str) -> RedisStore {
    let policy = ReconnectPolicy::new_constant(0, 10);
    let client = Builder::from_config(Config::from_url(url).unwrap()).set_policy(policy).build().unwrap();
    client.init().await.unwrap();
    assert_eq!(client.connection_config().max_command_attempts, 3);
    RedisStore::with_client(client, RedisConfig::default()).await.unwrap()
}

async fn is_written_once_and_unknown(redis: &Redis, proxy: &Proxy, store: &RedisStore) {
    let kv = store.durability();
    create(&kv, "before").await;
    proxy.lose_replies("EVALSHA", 1);
    let error = kv.commit(vec![put("k", Expect::Absent, "v")]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{error}");
    assert!(error.retry());
    until_served(&kv).await;
    let found = get(&kv, "k").await.unwrap();
    let again = kv.commit(vec![put("k", Expect::Absent, "v")]).await.unwrap();
    assert_eq!(again, [Outcome::Conflict(Some(found.version))]);

    let entry = LogEntry {
        chat: "ana".into(),
        direction: By::In,
        at: Timestamp::from_millis(1),
        message: "m".into(),
        text: "hi".into(),
    };
    store.append_log(std::slice::from_ref(&entry)).await.unwrap();
    proxy.lose_replies("EVALSHA", 1);
    let error = store.append_log(&[entry]).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    until_served(&kv).await;
    assert_eq!(store.log(&"ana".into(), None, 10).await.unwrap().len(), 2);

    let key = conversation("ana");
    let written = store.set_checkpoint(&turn(7), &key, None, &checkpoint(5)).await.unwrap();
    let row = store.checkpoint(&key).await.unwrap().unwrap();
    assert_eq!(written, Cas::Applied(row.revision));
    proxy.lose_replies("EVALSHA", 1);
    // Never "lost against another": it may be this write that is there.
    let error = store.set_checkpoint(&turn(7), &key, Some(row.revision), &checkpoint(6)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    until_served(&kv).await;
    assert!(store.checkpoint(&key).await.unwrap().unwrap().revision > row.revision);
    assert_eq!(proxy.traffic().replies_lost, 3);
    assert!(redis.command(&["PING"]).is_ok());
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_nothing_is_sent_twice() {
    let redis = server();
    let (proxy, url) = proxied(&redis);
    let store = RedisStore::open(&url).await.unwrap();
    is_written_once_and_unknown(&redis, &proxy, &store).await;
}

#[tokio::test]
async fn an_injected_client_is_told_not_to_send_twice() {
    let redis = server();
    let (proxy, url) = proxied(&redis);
    let store = eager(&url).await;
    is_written_once_and_unknown(&redis, &proxy, &store).await;
}

#[tokio::test]
async fn a_lost_answer_of_a_value_is_unknown() {
    let redis = server();
    let (proxy, url) = proxied(&redis);
    let store = RedisStore::open(&url).await.unwrap();
    proxy.lose_replies("HSET", 1);
    let error = store.set_user_value(&"ana".into(), "k", Some(&1.into())).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{error}");
    until_served(&store.durability()).await;
    assert_eq!(store.user_value(&"ana".into(), "k").await.unwrap(), Some(1.into()));
}

#[tokio::test]
async fn a_cut_connection_is_made_again() {
    let redis = server();
    let (proxy, url) = proxied(&redis);
    let kv = RedisStore::open(&url).await.unwrap().durability();
    let own = kv.dedicated().await.unwrap().unwrap();
    for round in 0..3 {
        proxy.cut();
        until_served(&kv).await;
        until_served(&own).await;
        create(&kv, &round.to_string()).await;
        assert!(get(&own, &round.to_string()).await.is_some());
    }
}

#[tokio::test]
async fn a_connection_whose_other_end_is_gone_is_given_up() {
    let redis = server();
    let (proxy, url) = proxied(&redis);
    let kv = RedisStore::open_with(&url, impatient()).await.unwrap().durability();
    create(&kv, "k").await;
    proxy.half_open(End::Server);
    let error = kv.commit(vec![put("l", Expect::Absent, "v")]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{error}");
    until_served(&kv).await;
    assert!(get(&kv, "l").await.is_none());
    create(&kv, "l").await;
}

#[tokio::test]
async fn a_network_that_takes_no_connection_leaves_nothing_unknown() {
    let redis = server();
    let (proxy, url) = proxied(&redis);
    let kv = RedisStore::open_with(&url, impatient()).await.unwrap().durability();
    create(&kv, "k").await;
    for accept in [Accept::Close, Accept::Silent] {
        proxy.set_accept(accept);
        proxy.cut();
        // The first ones may have met the connection in its last moment, or the driver before it knew of its end.
        let mut effects = Vec::new();
        while effects.len() < 5 {
            let error = kv.commit(vec![put("l", Expect::Absent, "v")]).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable, "{accept:?}: {error}");
            effects.push(error.effect());
        }
        assert_eq!(effects[2..], [Effect::None; 3], "{accept:?}: {effects:?}");
        proxy.heal();
        proxy.cut();
        until_served(&kv).await;
    }
    create(&kv, "l").await;
}

#[tokio::test]
async fn answers_that_come_late_are_waited_for() {
    let redis = server();
    let (proxy, url) = proxied(&redis);
    let kv = RedisStore::open(&url).await.unwrap().durability();
    proxy.set(Direction::ToClient, Flow::Delay(std::time::Duration::from_millis(50)));
    let version = create(&kv, "k").await;
    assert_eq!(get(&kv, "k").await.unwrap().version, version);
}
