use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::conversations::{Conversations, EndedConversation, Vacancy};
use super::live::{Live, Task};
use super::run::AnyFlow;
use super::stopped::Stopped;
use super::talk::Idle;
use crate::core::error::Cas;
use crate::core::id::RecordId;
use crate::core::store::{Caller, Checkpoint, CheckpointPhase, Midway, Revision};
use crate::core::time::Timestamp;
use crate::dispatch::Ctx;
use crate::events::BotEvent;

/// What is stored of a conversation that goes on.
#[derive(Default)]
pub(super) struct Stored {
    /// Whether it is stored where it survives a restart.
    pub(super) persistent: bool,
    pub(super) vacancy: Vacancy,
    pub(super) callers: Vec<Caller>,
    pub(super) state: Value,
    /// The record whose effects are stored, and how many sends it had made.
    pub(super) input: Option<(RecordId, u32)>,
}

/// Writes the checkpoints of one run of one flow.
pub(crate) struct Saver<'a> {
    conversations: &'a Conversations,
    ctx: &'a Ctx,
    flow: &'a Arc<dyn AnyFlow>,
    stored: Mutex<&'a mut Stored>,
    persistent: bool,
    has_callers: bool,
}

/// Where a run waits.
pub(super) struct Wait {
    pub(super) step: String,
    pub(super) state: Option<Value>,
    pub(super) deadline: Option<Timestamp>,
    pub(super) midway: Option<Midway>,
}

impl<'a> Saver<'a> {
    pub(super) fn new(
        conversations: &'a Conversations,
        ctx: &'a Ctx,
        flow: &'a Arc<dyn AnyFlow>,
        stored: &'a mut Stored,
    ) -> Self {
        let (persistent, has_callers) = (stored.persistent, !stored.callers.is_empty());
        Self { conversations, ctx, flow, stored: Mutex::new(stored), persistent, has_callers }
    }

    pub(super) fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Whether another flow waits for the end of this one.
    pub(super) fn has_callers(&self) -> bool {
        self.has_callers
    }

    fn stored(&self) -> MutexGuard<'_, &'a mut Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next step is about to run; a crash from here on does not repeat the one before.
    pub(super) async fn save_running(&self, step: &str, state: Value) -> Result<(), Stopped> {
        let wait = Wait { step: step.to_owned(), state: Some(state), deadline: None, midway: None };
        self.save(CheckpointPhase::Running, &wait).await.map(|_| ())
    }

    /// The conversation waits for its user, perhaps with its code in memory.
    pub(super) async fn save_waiting(
        &self,
        wait: Wait,
        live: Option<(Option<Idle>, Task)>,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let revision = self.save(CheckpointPhase::Waiting, &wait).await?;
        let ended = self.end_other().await?;
        if let Some((idle, task)) = live {
            let idle = idle.map(|idle| (self.ctx.world().now() + idle.after, idle));
            let live = Live { task, flow: Arc::clone(self.flow), revision, idle };
            if let Some((key, dropped)) = self.conversations.live.put(self.ctx.conversation(), live) {
                let name = dropped.flow.name().to_owned();
                self.ctx.world().events.emit(BotEvent::ConversationDropped { key, name });
            }
        }
        Ok(ended)
    }

    async fn save(&self, phase: CheckpointPhase, wait: &Wait) -> Result<Revision, Stopped> {
        self.write(self.persistent, phase, wait).await
    }

    async fn write(
        &self,
        persistent: bool,
        phase: CheckpointPhase,
        wait: &Wait,
    ) -> Result<Revision, Stopped> {
        let scope = self.ctx.scope();
        scope.turn().check().map_err(|_| Stopped::Superseded)?;
        let (checkpoint, expect) = {
            let stored = self.stored();
            // What a timer does has no record of its own.
            let own = scope.record().map(|record| (record.clone(), scope.sends()));
            let (input, sends) = own.or_else(|| stored.input.clone()).unzip();
            let checkpoint = Checkpoint {
                flow: self.flow.name().to_owned(),
                version: self.flow.version(),
                fingerprint: self.flow.fingerprint(),
                step: wait.step.clone(),
                phase,
                state: wait.state.clone().unwrap_or_else(|| stored.state.clone()),
                input,
                sends: sends.unwrap_or_default(),
                earlier: Vec::new(),
                answer: None,
                midway: wait.midway.clone(),
                callers: stored.callers.clone(),
                deadline: wait.deadline,
                expires: None,
                due: wait.deadline,
                revision: Checkpoint::unwritten_revision(),
                fence: Default::default(),
                session: Checkpoint::unwritten_session(),
            };
            (checkpoint, stored.vacancy.of(persistent))
        };
        let key = self.ctx.conversation();
        let store = self.conversations.store(persistent);
        let Cas::Applied(revision) = store.set_checkpoint(scope.turn(), &key, expect, &checkpoint).await?
        else {
            return Err(Stopped::Superseded);
        };
        self.stored().vacancy.set(persistent, Some(revision));
        Ok(revision)
    }

    /// The conversation is over.
    pub(super) async fn save_ended(&self) -> Result<Option<EndedConversation>, Stopped> {
        let other = self.end_other().await?;
        if other.is_some() && self.stored().vacancy.of(self.persistent).is_none() {
            return Ok(other);
        }
        Ok(self.end(self.persistent).await?.or(other))
    }

    /// What the conversation left where it is not stored any more.
    async fn end_other(&self) -> Result<Option<EndedConversation>, Stopped> {
        self.end(!self.persistent).await
    }

    /// Ends what one of the stores holds. With an inbox record, a row remembers which message ended it until that message
    /// is acknowledged: a replay in between must not take the message for a new one.
    async fn end(&self, persistent: bool) -> Result<Option<EndedConversation>, Stopped> {
        let expect = self.stored().vacancy.of(persistent);
        let ours = persistent == self.persistent;
        if expect.is_none() && !(ours && self.ctx.record().is_some()) {
            return Ok(None);
        }
        let key = self.ctx.conversation();
        if self.ctx.record().is_some() {
            let over = Wait { step: String::new(), state: Some(Value::Null), deadline: None, midway: None };
            let revision = self.write(persistent, CheckpointPhase::Ended, &over).await?;
            return Ok(Some(EndedConversation { key, persistent, revision }));
        }
        let (turn, store) = (self.ctx.scope().turn(), self.conversations.store(persistent));
        if let Some(revision) = expect
            && store.clear_checkpoint(turn, &key, revision).await? == Cas::Lost
        {
            return Err(Stopped::Superseded);
        }
        self.stored().vacancy.set(persistent, None);
        Ok(None)
    }
}
