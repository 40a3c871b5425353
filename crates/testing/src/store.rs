//! The state of a process that may crash.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use async_trait::async_trait;
use botmesh_core::coordinator::{Fence, Turn};
use botmesh_core::error::{Cas, StoreError, StoreErrorKind};
use botmesh_core::id::{ChatId, ConversationKey, ParticipantId};
use botmesh_core::scope::Scope;
use botmesh_core::store::{ChatState, Checkpoint, LogEntry, LogPosition, Revision, Store};
use botmesh_core::time::Timestamp;
use serde_json::Value;

use crate::Crash;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The state of a process that may crash: a store that works until its process is dead, and that fails or crashes at
/// chosen writes. Writes are numbered from 1 since this value was made; all scopes of one value share them.
#[derive(Clone)]
pub struct CrashableStore {
    inner: Arc<dyn Store>,
    process: Crash,
    plan: Arc<Plan>,
}

#[derive(Default)]
struct Plan {
    state: Mutex<State>,
    calling: AtomicUsize,
}

#[derive(Default)]
struct State {
    writes: u64,
    down: bool,
    faults: BTreeMap<u64, WriteFault>,
}

#[derive(Clone, Copy)]
enum WriteFault {
    Fail,
    CrashBefore,
    CrashAfter,
}

impl CrashableStore {
    /// The state of `process` in `inner`. Until told otherwise, it does just what `inner` does.
    pub fn new(inner: Arc<dyn Store>, process: Crash) -> Self {
        Self { inner, process, plan: Arc::default() }
    }

    /// The process dies right before the `nth` write.
    pub fn crash_before_write(&self, nth: u64) {
        self.plan.lock().faults.insert(nth, WriteFault::CrashBefore);
    }

    /// The process dies right after the `nth` write, before it hears of it.
    pub fn crash_after_write(&self, nth: u64) {
        self.plan.lock().faults.insert(nth, WriteFault::CrashAfter);
    }

    /// The `nth` write fails without effect.
    pub fn fail_write(&self, nth: u64) {
        self.plan.lock().faults.insert(nth, WriteFault::Fail);
    }

    /// While `down`, every call fails as if the store could not be reached.
    pub fn set_down(&self, down: bool) {
        self.plan.lock().down = down;
    }

    /// How many writes were called, whatever became of them.
    pub fn writes(&self) -> u64 {
        self.plan.lock().writes
    }

    /// How many calls the store is answering now.
    pub fn calls_under_way(&self) -> usize {
        self.plan.calling.load(Ordering::Relaxed)
    }

    fn alive(&self) -> Result<(), StoreError> {
        if self.process.happened() {
            return Err(failure("crashed: the process of this handle is dead"));
        }
        if self.plan.lock().down {
            return Err(failure("the test took the store down"));
        }
        Ok(())
    }

    async fn call<T>(&self, work: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
        let _calling = Calling::new(&self.plan);
        work.await
    }

    async fn read<T>(&self, work: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
        self.alive()?;
        let read = self.call(work).await;
        give_way().await;
        read
    }

    async fn write<T>(&self, work: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
        self.alive()?;
        match self.plan.next_write() {
            None => self.call(work).await,
            Some(WriteFault::Fail) => Err(failure("the test failed this write")),
            Some(WriteFault::CrashBefore) => {
                self.process.now();
                Err(failure("crashed before the write"))
            }
            Some(WriteFault::CrashAfter) => {
                let written = self.call(work).await;
                self.process.now();
                drop(written?);
                Err(failure("crashed after the write").with_unknown_effect())
            }
        }
    }
}

/// A real store answers after others had their turn. Not Tokio's way to yield, whose wake-up comes at some later time.
async fn give_way() {
    let mut gave_way = false;
    poll_fn(|context| {
        if std::mem::replace(&mut gave_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Plan {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_write(&self) -> Option<WriteFault> {
        let mut state = self.lock();
        state.writes += 1;
        let number = state.writes;
        state.faults.remove(&number)
    }
}

struct Calling<'a>(&'a Plan);

impl<'a> Calling<'a> {
    fn new(plan: &'a Plan) -> Self {
        plan.calling.fetch_add(1, Ordering::Relaxed);
        Self(plan)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.calling.fetch_sub(1, Ordering::Relaxed);
    }
}

fn failure(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "crashable", "call", message)
}

impl fmt::Debug for CrashableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashableStore")
            .field("writes", &self.writes())
            .field("crashed", &self.process.happened())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for CrashableStore {
    fn scoped(&self, scope: &Scope) -> Arc<dyn Store> {
        Arc::new(Self { inner: self.inner.scoped(scope), ..self.clone() })
    }

    async fn chat(&self, chat: &ChatId) -> Result<Option<ChatState>, StoreError> {
        self.read(self.inner.chat(chat)).await
    }

    async fn set_chat(&self, chat: &ChatId, state: &ChatState) -> Result<(), StoreError> {
        self.write(self.inner.set_chat(chat, state)).await
    }

    async fn user_value(&self, user: &ParticipantId, name: &str) -> Result<Option<Value>, StoreError> {
        self.read(self.inner.user_value(user, name)).await
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
        self.read(self.inner.user_values(user)).await
    }

    async fn checkpoint(&self, key: &ConversationKey) -> Result<Option<Checkpoint>, StoreError> {
        self.read(self.inner.checkpoint(key)).await
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

    fn compares_checkpoints(&self) -> bool {
        self.inner.compares_checkpoints()
    }

    async fn last_fence(&self) -> Result<Fence, StoreError> {
        self.read(self.inner.last_fence()).await
    }

    async fn due_checkpoints(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Timestamp)>, StoreError> {
        self.read(self.inner.due_checkpoints(until, limit)).await
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
        self.read(self.inner.log(chat, before, limit)).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}
