//! Users that may not do everything.

use botmesh_core::coordinator::Coordinator as _;
use botmesh_core::error::StoreErrorKind as Kind;
use botmesh_core::store::Store as _;
use botmesh_redis_store::{RedisConfig, RedisCoordinator};
use botmesh_test_servers::{Options, Redis};

use crate::tools::{create, open, put, refused};
use crate::turns::{enter, replica, take};

/// The rules that the README recommends, in one line.
fn recommended() -> String {
    let readme = include_str!("../../README.md");
    let rules = readme.split_once("ACL SETUSER bot on >secret ").unwrap().1.split_once("```").unwrap().0;
    rules.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn with_rules(rules: &str) -> Redis {
    Redis::start(&Options::new().with_user("bot", "secret", rules)).unwrap()
}

#[tokio::test]
async fn the_recommended_permissions_suffice() {
    let redis = with_rules(&recommended());
    let store = open(&redis).await;
    let kv = store.durability();
    create(&kv, "k").await;
    assert!(kv.now().await.unwrap().is_some());
    assert!(kv.dedicated().await.unwrap().is_some());
    store.close().await.unwrap();
}

#[tokio::test]
async fn each_recommended_permission_is_missed_when_the_store_is_opened() {
    let rules = recommended();
    let optional =
        ["+@connection", "+info", "+config|get", "+eval", "+evalsha", "~{botmesh}:*", "~{botmesh:*"];
    let needed: Vec<_> = rules.split(' ').filter(|rule| !optional.contains(rule)).collect();
    assert!(needed.len() > 15, "{needed:?}");
    let redis = with_rules(&rules);
    for rule in needed {
        let name = rule.trim_start_matches('+');
        redis.command(&["ACL", "SETUSER", "bot", &format!("-{name}")]).unwrap();
        let error = refused(redis.url(), RedisConfig::default()).await;
        assert_eq!(error.kind(), Kind::Denied, "{name}: {error}");
        assert!(error.to_string().to_lowercase().contains(name), "{name}: {error}");
        redis.command(&["ACL", "SETUSER", "bot", rule]).unwrap();
    }
    for keys in ["~{botmesh:*", "~{botmesh}:*"] {
        redis.command(&["ACL", "SETUSER", "bot", "resetkeys", keys]).unwrap();
        let error = refused(redis.url(), RedisConfig::default()).await;
        assert_eq!(error.kind(), Kind::Denied, "{keys} alone: {error}");
    }
}

#[tokio::test]
async fn a_store_opens_without_info_and_config() {
    let rules = recommended().replace("+info ", "").replace("+config|get ", "");
    open(&with_rules(&rules)).await;
}

#[tokio::test]
async fn permissions_that_are_taken_away_are_denied() {
    let redis = with_rules(&recommended());
    let kv = open(&redis).await.durability();
    create(&kv, "k").await;
    redis.command(&["ACL", "SETUSER", "bot", "-evalsha"]).unwrap();
    let error = kv.commit(vec![put("l", botmesh_core::kv::Expect::Absent, "v")]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(!error.retry());
}

/// The rules that the README recommends for turns.
pub(crate) fn recommended_for_turns() -> String {
    let readme = include_str!("../../README.md");
    let rules = readme.split_once("ACL SETUSER bot &").unwrap().1.split_once("```").unwrap().0;
    format!("{} &{}", recommended(), rules.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_permissions_recommended_for_turns_suffice_and_are_missed() {
    let rules = recommended_for_turns();
    let redis = with_rules(&rules);
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let held = take(&a, "ana").await;
    let mut next = enter(&b, "ana").await;
    held.release();
    next.granted().await.unwrap();
    let ttl = std::time::Duration::from_secs(9);
    a.acquire_lock_fenced("job", "t", ttl).await.unwrap().unwrap();
    assert!(a.renew_lock("job", "t", ttl).await.unwrap().is_some());
    assert!(a.release_lock("job", "t").await.unwrap());
    let own = rules.split_once('&').unwrap().1;
    let own: Vec<_> = own.split(' ').skip(1).collect();
    assert_eq!(own.len(), 10);
    for rule in own {
        let name = rule.trim_start_matches('+');
        redis.command(&["ACL", "SETUSER", "bot", &format!("-{name}")]).unwrap();
        let error = RedisCoordinator::connect(redis.url(), "botmesh").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{name}: {error}");
        assert!(error.to_string().to_lowercase().contains(name), "{name}: {error}");
        redis.command(&["ACL", "SETUSER", "bot", rule]).unwrap();
    }
    redis.command(&["ACL", "SETUSER", "bot", "resetchannels"]).unwrap();
    let error = RedisCoordinator::connect(redis.url(), "botmesh").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
}
