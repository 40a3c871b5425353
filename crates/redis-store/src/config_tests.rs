use std::time::Duration;

use super::{Persistence, RedisConfig};

#[test]
fn the_documented_defaults_are_the_defaults() {
    let read: RedisConfig = serde_json::from_str(
        r#"{
            "prefix": "botmesh",
            "command_timeout": "5s",
            "connect_timeout": "5s",
            "least_persistence": "none",
            "assumed_persistence": null,
            "allow_eviction": false,
            "log_length": 10000
        }"#,
    )
    .unwrap();
    assert_eq!(read, RedisConfig::default());
    assert_eq!(serde_json::from_str::<RedisConfig>("{}").unwrap(), read);
    assert!(serde_json::from_str::<RedisConfig>(r#"{"perfix": "b"}"#).is_err());
}

#[test]
fn values_that_cannot_work_are_refused_by_name() {
    let default = RedisConfig::default();
    assert!(default.validate().is_ok());
    let refused = [
        ("redis.prefix", default.clone().with_prefix("")),
        ("redis.prefix", default.clone().with_prefix("a{b}")),
        ("redis.prefix", default.clone().with_prefix("a:b")),
        ("redis.prefix", default.clone().with_prefix("b".repeat(65))),
        ("redis.command_timeout", default.clone().with_command_timeout(Duration::ZERO)),
        ("redis.connect_timeout", default.clone().with_connect_timeout(Duration::from_secs(601))),
        ("redis.log_length", default.clone().with_log_length(Some(0))),
    ];
    for (field, config) in refused {
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, field);
        assert!(!error.fix.is_empty());
    }
    assert!(default.with_log_length(None).validate().is_ok());
}

#[test]
fn more_persistence_is_larger() {
    assert!(Persistence::None < Persistence::EverySecond);
    assert!(Persistence::EverySecond < Persistence::Always);
}
