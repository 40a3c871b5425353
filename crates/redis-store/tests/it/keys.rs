//! What is on the server.

use botmesh_core::error::Cas;
use botmesh_core::kv::{Expect, Op, Outcome};
use botmesh_core::store::{Direction, LogEntry, Store as _};
use botmesh_core::time::Timestamp;
use botmesh_redis_store::{RedisConfig, RedisStore};
use botmesh_test_servers::{Redis, Reply};
use serde_json::json;

use crate::tools::{checkpoint, conversation, create, open, put, server, turn};

fn names(redis: &Redis) -> Vec<String> {
    let Reply::Array(keys) = redis.command(&["KEYS", "*"]).unwrap() else { panic!("no list") };
    let mut keys: Vec<_> = keys.into_iter().map(|key| key.text().unwrap()).collect();
    keys.sort();
    keys
}

fn entry(text: &str) -> LogEntry {
    LogEntry {
        chat: "ana".into(),
        direction: Direction::Out,
        at: Timestamp::from_millis(1),
        message: "m".into(),
        text: text.into(),
    }
}

#[tokio::test]
async fn the_keys_are_those_of_the_readme_and_never_expire() {
    let redis = server();
    let store = open(&redis).await;
    create(&store.durability().scoped("S"), "k").await;
    let store = store.scoped(&botmesh_core::scope::Scope::bot("{b}"));
    store.set_chat(&"ana".into(), &Default::default()).await.unwrap();
    store.set_user_value(&"ana".into(), "k", Some(&json!(1))).await.unwrap();
    let written = store.set_checkpoint(&turn(7), &conversation("ana"), None, &checkpoint(5)).await.unwrap();
    assert!(matches!(written, Cas::Applied(_)));
    store.append_log(&[entry("hi")]).await.unwrap();
    let scope = "{botmesh:s/default/default/%7Bb%7D/default}";
    let mut expected: Vec<String> = ["journal", "journal:due", "journal:lists", "clock"]
        .iter()
        .map(|name| format!("{{botmesh:S}}:{name}"))
        .chain(
            [
                "chats",
                "user:ana",
                "checkpoint:c/ana",
                "checkpoints:due",
                "checkpoints:bounds",
                "log:ana",
                "clock",
            ]
            .iter()
            .map(|name| format!("{scope}:{name}")),
        )
        .chain(["{botmesh}:layout".to_owned()])
        .collect();
    expected.sort();
    assert_eq!(names(&redis), expected);
    for key in expected {
        assert_eq!(redis.command(&["TTL", &key]).unwrap(), Reply::Int(-1), "{key}");
    }
}

#[tokio::test]
async fn what_is_removed_leaves_nothing_behind() {
    let redis = server();
    let store = open(&redis).await;
    let kv = store.durability();
    let version = create(&kv, "k").await;
    let outcomes = kv.commit(vec![Op::Delete { key: "k".into(), expect: version }]).await.unwrap();
    assert_eq!(outcomes, [Outcome::Applied(version)]);
    for chat in ["ana", "bea", "eva"] {
        let key = conversation(chat);
        let written = store.set_checkpoint(&turn(7), &key, None, &checkpoint(5)).await.unwrap();
        let Cas::Applied(revision) = written else { panic!("lost") };
        assert_eq!(store.clear_checkpoint(&turn(7), &key, revision).await.unwrap(), Cas::Applied(()));
    }
    let scope = "{botmesh:s/default/default/bot/default}";
    let expected =
        [format!("{scope}:checkpoints:bounds"), "{botmesh:}:clock".into(), "{botmesh}:layout".into()];
    let mut found = names(&redis);
    found.sort_by_key(|name| expected.iter().position(|expected| expected == name));
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_log_keeps_its_last_entries() {
    let redis = server();
    let config = RedisConfig::default().with_log_length(Some(10));
    let store = RedisStore::open_with(redis.url(), config).await.unwrap();
    for part in 0..20 {
        let entries: Vec<_> = (0..50).map(|n| entry(&format!("{}", part * 50 + n))).collect();
        store.append_log(&entries).await.unwrap();
    }
    let log = store.log(&"ana".into(), None, 10_000).await.unwrap();
    assert!((10..1_000).contains(&log.len()), "{} entries are left", log.len());
    for (n, (_, entry)) in log.iter().enumerate() {
        assert_eq!(entry.text, (999 - n).to_string());
    }
}

#[tokio::test]
async fn a_batch_is_one_call() {
    let redis = server();
    let kv = open(&redis).await.durability();
    create(&kv, "first").await;
    let calls = || {
        let stats = redis.command(&["INFO", "commandstats"]).unwrap().text().unwrap();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap().to_owned();
        line.split_once("calls=").unwrap().1.split_once(',').unwrap().0.parse::<u32>().unwrap()
    };
    let before = calls();
    let batch = (0..500).map(|n| put(&n.to_string(), Expect::Absent, "v")).collect();
    let outcomes = kv.commit(batch).await.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Applied(_))));
    assert_eq!(calls(), before + 1);
}
