//! A store whose process dies at a chosen write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use botmesh::core::coordinator::{Fence, Turn};
use botmesh::core::error::{Cas, StoreError, StoreErrorKind};
use botmesh::core::id::{ChatId, ConversationKey, ParticipantId};
use botmesh::core::scope::Scope;
use botmesh::core::store::{ChatState, Checkpoint, LogEntry, LogPosition, Revision, Store};
use botmesh::core::time::Timestamp;
use botmesh_testing::LossyKv;
use futures_util::future::BoxFuture;
use serde_json::Value;

/// Fails once its process is dead, which is when its journal is.
#[derive(Clone)]
pub(crate) struct MortalStore {
    inner: Arc<dyn Store>,
    journal: LossyKv,
    plan: Arc<Plan>,
}

#[derive(Default)]
struct Plan {
    writes: AtomicU64,
    fatal: AtomicU64,
    after: AtomicBool,
    failing: AtomicU64,
    down: AtomicBool,
}

impl MortalStore {
    pub(crate) fn new(inner: Arc<dyn Store>, journal: LossyKv) -> Self {
        Self { inner, journal, plan: Arc::default() }
    }

    /// The process dies at the `nth` write from 1, before or after it.
    pub(crate) fn die_at(&self, nth: u64, after: bool) {
        self.plan.fatal.store(nth, Ordering::Relaxed);
        self.plan.after.store(after, Ordering::Relaxed);
    }

    /// The `nth` write from 1 fails without effect.
    pub(crate) fn fail_at(&self, nth: u64) {
        self.plan.failing.store(nth, Ordering::Relaxed);
    }

    /// From now on every call fails, or works again.
    pub(crate) fn set_down(&self, down: bool) {
        self.plan.down.store(down, Ordering::Relaxed);
    }

    pub(crate) fn writes(&self) -> u64 {
        self.plan.writes.load(Ordering::Relaxed)
    }

    fn alive(&self) -> Result<(), StoreError> {
        match (self.journal.crashed(), self.plan.down.load(Ordering::Relaxed)) {
            (true, _) => Err(failure("the process is dead")),
            (false, true) => Err(failure("the store is away")),
            (false, false) => Ok(()),
        }
    }

    async fn write<T>(&self, work: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
        self.alive()?;
        let nth = self.plan.writes.fetch_add(1, Ordering::Relaxed) + 1;
        if nth == self.plan.failing.load(Ordering::Relaxed) {
            return Err(failure("the test failed this write"));
        }
        let fatal = nth == self.plan.fatal.load(Ordering::Relaxed);
        if !fatal || self.plan.after.load(Ordering::Relaxed) {
            let written = work.await;
            if !fatal {
                return written;
            }
        }
        self.journal.crash();
        Err(failure("the process died at this write"))
    }
}

fn failure(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "mortal", "write", message)
}

#[async_trait::async_trait]
impl Store for MortalStore {
    fn scoped(&self, scope: &Scope) -> Arc<dyn Store> {
        Arc::new(Self { inner: self.inner.scoped(scope), ..self.clone() })
    }

    async fn chat(&self, chat: &ChatId) -> Result<Option<ChatState>, StoreError> {
        self.alive()?;
        self.inner.chat(chat).await
    }

    async fn set_chat(&self, chat: &ChatId, state: &ChatState) -> Result<(), StoreError> {
        self.write(self.inner.set_chat(chat, state)).await
    }

    async fn user_value(&self, user: &ParticipantId, name: &str) -> Result<Option<Value>, StoreError> {
        self.alive()?;
        let value = self.inner.user_value(user, name).await;
        // A real store answers after others had their turn.
        tokio::task::yield_now().await;
        value
    }

    async fn set_user_value(
        &self,
        user: &ParticipantId,
        name: &str,
        value: Option<&Value>,
    ) -> Result<(), StoreError> {
        self.write(self.inner.set_user_value(user, name, value)).await
    }

    async fn user_values(&self, user: &ParticipantId) -> Result<Vec<(String, Value)>, StoreError> {
        self.alive()?;
        self.inner.user_values(user).await
    }

    async fn checkpoint(&self, key: &ConversationKey) -> Result<Option<Checkpoint>, StoreError> {
        self.alive()?;
        self.inner.checkpoint(key).await
    }

    async fn set_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Option<Revision>,
        checkpoint: &Checkpoint,
    ) -> Result<Cas<Revision>, StoreError> {
        self.write(self.inner.set_checkpoint(turn, key, expect, checkpoint)).await
    }

    async fn clear_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Revision,
    ) -> Result<Cas<()>, StoreError> {
        self.write(self.inner.clear_checkpoint(turn, key, expect)).await
    }

    async fn last_fence(&self) -> Result<Fence, StoreError> {
        self.alive()?;
        self.inner.last_fence().await
    }

    async fn due_checkpoints(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Timestamp)>, StoreError> {
        self.alive()?;
        self.inner.due_checkpoints(until, limit).await
    }

    async fn append_log(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        self.write(self.inner.append_log(entries)).await
    }

    async fn log(
        &self,
        chat: &ChatId,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<(LogPosition, LogEntry)>, StoreError> {
        self.alive()?;
        self.inner.log(chat, before, limit).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}
