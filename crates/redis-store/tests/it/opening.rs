//! What is looked at when a store is opened.

use std::time::Duration;

use botmesh_core::error::StoreErrorKind as Kind;
use botmesh_core::kv::Durable;
use botmesh_redis_store::{Persistence as Kept, RedisConfig, RedisStore};
use botmesh_test_servers::{Options, Persistence, Redis};

use crate::tools::{impatient, open, refused, server};

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let redis = server();
    redis.kill().unwrap();
    let error = refused(redis.url(), impatient()).await;
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains(&redis.address().to_string()), "{error}");
    assert!(error.retry());
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let redis = server();
    redis.freeze().unwrap();
    let error = refused(redis.url(), impatient()).await;
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_bad_url_is_refused_without_its_password() {
    for url in
        ["localhost", "http://:secret@localhost", "redis://:secret@localhost:port", "redis://:secret@host/x"]
    {
        let error = refused(url, impatient()).await;
        let told =
            format!("{error} {:?} {error:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(!told.contains("secret"), "{told}");
    }
    let error = refused("localhost", impatient()).await;
    assert_eq!(error.kind(), Kind::Misuse);
    assert!(error.to_string().contains("redis://"), "{error}");
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused() {
    let config = RedisConfig::default().with_prefix("a{b");
    let error = refused(server().url(), config).await;
    assert_eq!(error.kind(), Kind::Misuse);
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("redis.prefix"), "{source}");
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_denied() {
    let redis = Redis::start(&Options::new().with_password("right")).unwrap();
    RedisStore::open(redis.url()).await.unwrap();
    let address = redis.address();
    for url in [
        format!("redis://{address}"),
        format!("redis://:wrong@{address}"),
        format!("redis://x:right@{address}"),
    ] {
        let error = refused(&url, impatient()).await;
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(!error.retry());
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
}

#[tokio::test]
async fn keys_that_may_be_evicted_are_refused() {
    let redis = Redis::start(&Options::new().with_max_memory(64 << 20, "allkeys-lru")).unwrap();
    let error = refused(redis.url(), RedisConfig::default()).await;
    assert_eq!(error.kind(), Kind::Misuse);
    assert!(error.to_string().contains("allkeys-lru") && error.to_string().contains("noeviction"), "{error}");
    RedisStore::open_with(redis.url(), RedisConfig::default().with_allow_eviction(true)).await.unwrap();
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).unwrap();
    open(&redis).await;
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    open(&redis).await;
}

#[tokio::test]
async fn what_is_claimed_is_what_the_server_keeps() {
    let table = [
        (Persistence::None, Kept::None, Durable::ProcessCrash),
        (Persistence::EverySecond, Kept::EverySecond, Durable::ProcessCrash),
        (Persistence::Always, Kept::Always, Durable::PowerLoss),
    ];
    for (server, kept, durable) in table {
        let redis = Redis::start(&Options::new().with_persistence(server)).unwrap();
        for least in [Kept::None, Kept::EverySecond, Kept::Always] {
            let config = RedisConfig::default().with_least_persistence(least);
            if least <= kept {
                let store = RedisStore::open_with(redis.url(), config).await.unwrap();
                assert_eq!(store.durability().caps().durable, durable);
            } else {
                let error = refused(redis.url(), config).await;
                assert_eq!(error.kind(), Kind::Misuse);
                assert!(error.to_string().contains("appendonly yes"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_managed_service_that_forbids_config_is_taken_at_its_word() {
    let options =
        Options::new().with_persistence(Persistence::Always).with_setting("rename-command", "CONFIG \"\"");
    let redis = Redis::start(&options).unwrap();
    let durable = |store: RedisStore| store.durability().caps().durable;
    assert_eq!(durable(open(&redis).await), Durable::ProcessCrash);
    let always = RedisConfig::default().with_least_persistence(Kept::Always);
    let error = refused(redis.url(), always.clone()).await;
    assert!(error.to_string().contains("CONFIG is not permitted"), "{error}");
    let assumed = always.with_assumed_persistence(Kept::Always);
    assert_eq!(durable(RedisStore::open_with(redis.url(), assumed).await.unwrap()), Durable::PowerLoss);
}

#[tokio::test]
async fn a_replica_is_refused() {
    let (master, replica) = (server(), server());
    let port = master.address().port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let error = refused(replica.url(), impatient()).await;
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("master"), "{error}");
}

#[tokio::test]
async fn another_layout_under_the_prefix_is_refused() {
    let redis = server();
    open(&redis).await;
    open(&redis).await;
    redis.command(&["HSET", "{botmesh}:layout", "tags", "chat"]).unwrap();
    let error = refused(redis.url(), RedisConfig::default()).await;
    assert_eq!(error.kind(), Kind::Incompatible);
    let told = error.to_string();
    assert!(told.contains("tags is chat there and scope here") && told.contains("prefix"), "{told}");
    RedisStore::open_with(redis.url(), RedisConfig::default().with_prefix("other")).await.unwrap();
    redis.command(&["DEL", "{botmesh}:layout"]).unwrap();
    redis.command(&["SET", "{botmesh}:layout", "foreign"]).unwrap();
    assert_eq!(refused(redis.url(), RedisConfig::default()).await.kind(), Kind::Incompatible);
}

#[tokio::test]
async fn an_injected_client_works_and_stays_open() {
    use botmesh_core::store::Store as _;
    use botmesh_redis_store::fred::interfaces::ClientLike as _;
    use botmesh_redis_store::fred::prelude::{Builder, Config};

    let redis = server();
    let client = Builder::from_config(Config::from_url(redis.url()).unwrap()).build().unwrap();
    let task = client.init().await.unwrap();
    let config = RedisConfig::default().with_command_timeout(Duration::from_secs(10));
    let store = RedisStore::with_client(client.clone(), config).await.unwrap();
    let kv = store.durability();
    crate::tools::create(&kv, "k").await;
    let own = kv.dedicated().await.unwrap().unwrap();
    assert!(crate::tools::get(&own, "k").await.is_some());
    own.close().await.unwrap();
    store.close().await.unwrap();
    assert_eq!(store.last_fence().await.unwrap_err().kind(), Kind::Misuse);
    client.ping::<()>(None).await.unwrap();
    client.quit().await.unwrap();
    task.await.unwrap().unwrap();
}
