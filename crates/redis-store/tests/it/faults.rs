//! A server that forgets its scripts, fills up, holds foreign keys, stands still or loses answers.

use botmesh_core::error::{Cas, Effect, StoreErrorKind as Kind};
use botmesh_core::id::{ChatId, MessageId};
use botmesh_core::kv::{Expect, Op, Outcome, Range};
use botmesh_core::store::{Direction, LogEntry, Store as _};
use botmesh_core::time::Timestamp;
use botmesh_redis_store::RedisStore;
use botmesh_test_servers::{Options, Redis};

use crate::tools::{checkpoint, conversation, create, get, impatient, open, put, server, turn, until_served};

fn message(chat: &str) -> LogEntry {
    LogEntry {
        chat: ChatId::from(chat),
        direction: Direction::In,
        at: Timestamp::from_millis(1),
        message: MessageId::from("1"),
        text: "hi".into(),
    }
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    let redis = server();
    let store = open(&redis).await;
    let kv = store.durability();
    for round in 0..3 {
        redis.command(&["SCRIPT", "FLUSH"]).unwrap();
        create(&kv, &format!("k{round}")).await;
        assert!(kv.now().await.unwrap().is_some());
        let due = kv.scan(Range::Due { until: Timestamp::MAX }, None, 10).await.unwrap();
        assert_eq!(due.len(), round + 1);
    }
    let calls = redis.command(&["INFO", "commandstats"]).unwrap().text().unwrap();
    let evals = calls.lines().find(|line| line.starts_with("cmdstat_eval:")).unwrap();
    // The probe and the layout; then three scripts after each flush, and no more.
    assert!(evals.starts_with("cmdstat_eval:calls=11,"), "{evals}");
}

#[tokio::test]
async fn a_full_memory_refuses_writes_whole_and_takes_removals() {
    let redis = Redis::start(&Options::new().with_max_memory(0, "noeviction")).unwrap();
    let store = open(&redis).await;
    let kv = store.durability();
    let version = create(&kv, "k").await;
    let key = conversation("ana");
    let written = store.set_checkpoint(&turn(7), &key, None, &checkpoint(5)).await.unwrap();
    let Cas::Applied(revision) = written else { panic!("the checkpoint is lost") };
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();

    let delete = |key: &str, expect| Op::Delete { key: key.to_owned().into(), expect };
    let error = kv.commit(vec![delete("k", version), put("new", Expect::Absent, "v")]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Full, Effect::None), "{error}");
    assert!(error.retry());
    assert_eq!(get(&kv, "k").await.unwrap().version, version);
    let refused = store.set_checkpoint(&turn(8), &key, Some(revision), &checkpoint(9)).await.unwrap_err();
    assert_eq!((refused.kind(), refused.effect()), (Kind::Full, Effect::None), "{refused}");
    let refused = store.append_log(&[message("ana"), message("bea")]).await.unwrap_err();
    assert_eq!((refused.kind(), refused.effect()), (Kind::Full, Effect::None), "{refused}");

    let removed = kv.commit(vec![delete("k", version)]).await.unwrap();
    assert_eq!(removed, [Outcome::Applied(version)]);
    assert_eq!(store.clear_checkpoint(&turn(7), &key, revision).await.unwrap(), Cas::Applied(()));
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    assert!(get(&kv, "new").await.is_none());
    assert!(store.due_checkpoints(Timestamp::MAX, 10).await.unwrap().is_empty());
    assert!(store.log(&ChatId::from("ana"), None, 10).await.unwrap().is_empty());
    create(&kv, "k").await;
}

/// Whichever key is another program's, nothing of a write is half there.
#[tokio::test]
async fn a_foreign_key_refuses_a_write_whole() {
    for foreign in ["journal", "journal:due", "journal:lists", "clock"] {
        let redis = server();
        let kv = open(&redis).await.durability().scoped("s");
        let name = format!("{{botmesh:s}}:{foreign}");
        redis.command(&["RPUSH", &name, "foreign"]).unwrap();
        let error = kv.commit(vec![put("k", Expect::Absent, "v")]).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (Kind::Incompatible, Effect::None), "{foreign}: {error}");
        assert!(error.to_string().contains("prefix"), "{error}");
        let keys = redis.command(&["DBSIZE"]).unwrap();
        redis.command(&["DEL", &name]).unwrap();
        assert!(get(&kv, "k").await.is_none(), "{foreign}: the write is there; {keys:?}");
        create(&kv, "k").await;
    }
}

#[tokio::test]
async fn a_foreign_key_refuses_a_checkpoint_and_a_log_whole() {
    for foreign in ["checkpoint:c/ana", "checkpoints:due", "checkpoints:bounds"] {
        let redis = server();
        let store = open(&redis).await;
        let name = format!("{{botmesh:s/default/default/bot/default}}:{foreign}");
        redis.command(&["RPUSH", &name, "foreign"]).unwrap();
        let key = conversation("ana");
        let error = store.set_checkpoint(&turn(7), &key, None, &checkpoint(5)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (Kind::Incompatible, Effect::None), "{foreign}: {error}");
        redis.command(&["DEL", &name]).unwrap();
        assert_eq!(store.checkpoint(&key).await.unwrap(), None, "{foreign}");
        assert!(store.due_checkpoints(Timestamp::MAX, 10).await.unwrap().is_empty(), "{foreign}");
    }
    let redis = server();
    let store = open(&redis).await;
    redis.command(&["SET", "{botmesh:s/default/default/bot/default}:log:bea", "foreign"]).unwrap();
    let error = store.append_log(&[message("ana"), message("bea")]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Incompatible, Effect::None), "{error}");
    assert!(store.log(&ChatId::from("ana"), None, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn damaged_data_is_named_and_left_as_it_is() {
    let redis = server();
    let store = open(&redis).await;
    let kv = store.durability();
    redis.command(&["HSET", "{botmesh:}:journal", "k", "damaged"]).unwrap();
    let error = kv.get(&["k".into()]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    let error =
        kv.commit(vec![put("other", Expect::Absent, "v"), put("k", Expect::Absent, "v")]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Corrupt, Effect::None), "{error}");
    assert!(get(&kv, "other").await.is_none());
    let scope = "{botmesh:s/default/default/bot/default}";
    redis.command(&["HSET", &format!("{scope}:user:ana"), "k", "{"]).unwrap();
    let error = store.user_values(&"ana".into()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    let row = format!("{scope}:checkpoint:c/ana");
    let fields = ["HSET", &row, "revision", "7", "fence", "7", "session", "s", "format", "2", "body", "{}"];
    redis.command(&fields).unwrap();
    let error = store.checkpoint(&conversation("ana")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Incompatible, "{error}");
}

#[tokio::test]
async fn a_server_that_stands_still_leaves_a_write_of_unknown_effect() {
    let redis = server();
    let store = RedisStore::open_with(redis.url(), impatient()).await.unwrap();
    let kv = store.durability();
    create(&kv, "before").await;
    redis.freeze().unwrap();
    let error = kv.commit(vec![put("k", Expect::Absent, "v")]).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{error}");
    assert!(error.retry());
    redis.thaw().unwrap();
    // It had been sent, once; and a later write sees it.
    until_served(&kv).await;
    let outcome = kv.commit(vec![put("k", Expect::Absent, "v")]).await.unwrap().remove(0);
    let found = get(&kv, "k").await.unwrap().version;
    assert!(matches!(outcome, Outcome::Conflict(Some(version)) if version == found), "{outcome:?}");
}

#[tokio::test]
async fn numbers_grow_when_the_data_is_lost() {
    let redis = server();
    let kv = open(&redis).await.durability();
    let before = create(&kv, "k").await;
    redis.command(&["FLUSHALL"]).unwrap();
    assert!(get(&kv, "k").await.is_none());
    assert!(create(&kv, "k").await > before);
}

#[tokio::test]
async fn a_master_that_becomes_a_replica_takes_no_writes_until_it_is_master_again() {
    let (redis, other) = (server(), server());
    let kv = open(&redis).await.durability();
    create(&kv, "k").await;
    redis.command(&["REPLICAOF", "127.0.0.1", &other.address().port().to_string()]).unwrap();
    let error = kv.commit(vec![put("l", Expect::Absent, "v")]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("master") && error.retry(), "{error}");
    redis.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    until_served(&kv).await;
    create(&kv, "l").await;
}
