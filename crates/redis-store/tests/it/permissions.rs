//! Users that may not do everything.

use botmesh_core::error::StoreErrorKind as Kind;
use botmesh_core::store::Store as _;
use botmesh_redis_store::RedisConfig;
use botmesh_test_servers::{Options, Redis};

use crate::tools::{create, open, put, refused};

/// The rules that the README recommends, in one line.
fn recommended() -> String {
    let readme = include_str!("../../README.md");
    let rules = readme.split_once("ACL SETUSER bot on >secret ").unwrap().1.split_once("```").unwrap().0;
    rules.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn with_rules(rules: &str) -> Redis {
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
