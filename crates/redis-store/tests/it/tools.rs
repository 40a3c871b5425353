//! Words for the tests.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::coordinator::{Fence, Turn, TurnHandle};
use botmesh_core::error::{Effect, LeaseLost, StoreError, StoreErrorKind as Kind};
use botmesh_core::id::{ConversationKey, SessionId};
use botmesh_core::kv::{DurableKv, Entry, Expect, Index, Op, Outcome, Version};
use botmesh_core::store::{Checkpoint, CheckpointPhase};
use botmesh_core::time::Timestamp;
use botmesh_redis_store::{RedisConfig, RedisStore};
use botmesh_test_servers::{Options, Redis};
use serde_json::json;

pub(crate) type Kv = Arc<dyn DurableKv>;

pub(crate) fn server() -> Redis {
    Redis::start(&Options::new()).unwrap()
}

pub(crate) async fn open(redis: &Redis) -> RedisStore {
    RedisStore::open(redis.url()).await.unwrap()
}

/// How opening fails.
pub(crate) async fn refused(url: &str, config: RedisConfig) -> StoreError {
    RedisStore::open_with(url, config).await.err().unwrap()
}

/// For tests that wait until a call gives up.
pub(crate) fn impatient() -> RedisConfig {
    let short = Duration::from_millis(300);
    RedisConfig::default().with_command_timeout(short).with_connect_timeout(short)
}

pub(crate) fn put(key: &str, expect: Expect, value: &str) -> Op {
    let index = Index { due: Some(Timestamp::from_millis(7)), list: Some((1, 7)) };
    Op::Put { key: key.to_owned().into(), expect, value: value.to_owned().into(), index }
}

pub(crate) async fn create(kv: &Kv, key: &str) -> Version {
    let outcomes = kv.commit(vec![put(key, Expect::Absent, "value")]).await.unwrap();
    let [Outcome::Applied(version)] = outcomes[..] else { panic!("{key} is there: {outcomes:?}") };
    version
}

pub(crate) async fn get(kv: &Kv, key: &str) -> Option<Entry> {
    kv.get(&[key.to_owned().into()]).await.unwrap().remove(0)
}

/// Before a condition is looked at again. Whoever looks all the time takes the processor from what is waited for.
#[expect(clippy::disallowed_methods, reason = "a real server is waited for")]
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(3)).await;
}

/// Waits for something that the server or the driver does on its own; 30 s at most.
#[expect(clippy::disallowed_methods, reason = "a real server is waited for")]
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(std::time::Instant::now() < limit, "{what}: not within 30 s");
        pause().await;
    }
}

/// What comes within 30 s.
#[expect(clippy::disallowed_methods, reason = "a real server answers in real time")]
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let Ok(done) = tokio::time::timeout(Duration::from_secs(30), work).await else {
        panic!("{what}: not within 30 s")
    };
    done
}

/// Waits until the server answers again.
pub(crate) async fn until_served(kv: &Kv) {
    until("a call that is served", async || match kv.get(&["any".into()]).await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::None), "{error}");
            false
        }
    })
    .await;
}

struct Steady;

#[async_trait]
impl TurnHandle for Steady {
    fn check(&self) -> Result<(), LeaseLost> {
        Ok(())
    }

    async fn lost(&self) -> LeaseLost {
        pending().await
    }

    fn release(&self) {}
}

pub(crate) fn turn(fence: u64) -> Turn {
    Turn::new(Fence(fence), SessionId::from("s1"), None, Arc::new(Steady))
}

pub(crate) fn conversation(chat: &str) -> ConversationKey {
    ConversationKey::private(chat)
}

pub(crate) fn checkpoint(due: i64) -> Checkpoint {
    Checkpoint {
        flow: "signup".into(),
        version: 1,
        fingerprint: "f1".into(),
        step: "name".into(),
        phase: CheckpointPhase::Waiting,
        state: json!({}),
        input: None,
        sends: 0,
        begun_with: None,
        input_order: None,
        earlier: Vec::new(),
        answer: None,
        midway: None,
        callers: Vec::new(),
        deadline: None,
        expires: None,
        due: Some(Timestamp::from_millis(due)),
        revision: Checkpoint::unwritten_revision(),
        fence: Fence(0),
        session: Checkpoint::unwritten_session(),
    }
}
