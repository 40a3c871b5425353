use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::occurrence::Occurrence;
use super::{Scheduler, Tasks};
use crate::core::content::Content;
use crate::core::error::SendError;
use crate::core::id::{ChatId, SendKey};
use crate::core::time::Timestamp;
use crate::dispatch::IntoOutcome;
use crate::egress::{Boxed, Sent, TurnScope};
use crate::{Error, Result};

/// The run of a task and everything its handler does with it. Cheap to clone.
///
/// With a durable task, a handler may run again after a failure or a crash: it is the same occurrence, and what it sent is
/// answered from the outbox.
#[derive(Clone)]
pub struct TaskCtx {
    inner: Arc<Inner>,
}

struct Inner {
    scheduler: Arc<Scheduler>,
    /// `None` for tasks in memory.
    scope: Option<Arc<TurnScope>>,
    occurrence: Occurrence,
    attempt: u32,
}

impl TaskCtx {
    pub(super) fn new(
        scheduler: Arc<Scheduler>,
        scope: Option<Arc<TurnScope>>,
        occurrence: Occurrence,
        attempt: u32,
    ) -> Self {
        Self { inner: Arc::new(Inner { scheduler, scope, occurrence, attempt }) }
    }

    /// The task's name; of one in memory, its schedule.
    pub fn task(&self) -> &str {
        &self.inner.occurrence.task
    }

    /// The id under which the occurrence was put down; `None` if the task is repeated.
    pub fn id(&self) -> Option<&str> {
        self.inner.occurrence.id.as_deref()
    }

    /// When the occurrence was to run. The same in each run of it.
    pub fn scheduled(&self) -> Timestamp {
        self.inner.occurrence.at
    }

    /// How many occurrences before this one did not run because their time had gone by; at most about 1,000 are counted.
    pub fn missed(&self) -> u32 {
        self.inner.occurrence.missed
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// What the occurrence was put down with.
    ///
    /// # Errors
    /// It is not of this type.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&self.inner.occurrence.payload).map_err(|error| {
            format!("the payload of task `{}` is not what its handler expects: {error}", self.task()).into()
        })
    }

    /// Sends to a chat. With a durable task, a run that sends again in the same order is answered from the outbox.
    ///
    /// # Errors
    /// As [`Ctx::reply`](crate::Ctx::reply).
    pub async fn send(
        &self,
        chat: impl Into<ChatId>,
        content: impl Into<Content>,
    ) -> Result<Sent, SendError> {
        self.send_under(None, &chat.into(), content.into()).await
    }

    /// Sends to a chat under a name of its own within the occurrence, for sends whose order or number may differ when it
    /// runs again: a name such as the chat's id. A task in memory sends it like any other.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_named(
        &self,
        name: &str,
        chat: impl Into<ChatId>,
        content: impl Into<Content>,
    ) -> Result<Sent, SendError> {
        let key = self.inner.scope.as_ref().and_then(|scope| scope.named_key(name));
        self.send_under(key, &chat.into(), content.into()).await
    }

    async fn send_under(
        &self,
        key: Option<SendKey>,
        chat: &ChatId,
        content: Content,
    ) -> Result<Sent, SendError> {
        self.inner.scheduler.egress.send(self.inner.scope.as_deref(), key, chat, content).await
    }

    /// What is put down to run later.
    pub fn tasks(&self) -> Tasks {
        Tasks::new(Arc::clone(&self.inner.scheduler))
    }
}

impl std::fmt::Debug for TaskCtx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskCtx").field("occurrence", &self.inner.occurrence).finish_non_exhaustive()
    }
}

/// The code of a task: an `async fn(TaskCtx)`, or a closure that returns a future.
pub trait TaskHandler: Send + Sync + 'static {
    /// Runs.
    fn call(&self, ctx: TaskCtx) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;
}

impl<F, Fut> TaskHandler for F
where
    F: Fn(TaskCtx) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    fn call(&self, ctx: TaskCtx) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let running = self(ctx);
        Box::pin(async move { running.await.into_outcome() })
    }
}

pub(super) type BoxedTask = Arc<dyn Fn(TaskCtx) -> Boxed<Result<(), Error>> + Send + Sync>;

pub(super) fn boxed(handler: impl TaskHandler) -> BoxedTask {
    Arc::new(move |ctx| handler.call(ctx))
}
