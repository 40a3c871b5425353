use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::Answer;
use super::definition::OnIncompatible;
use super::run::{AnyFlow, Progress, Start};
use crate::core::content::Content;
use crate::core::coordinator::Turn;
use crate::core::error::{Cas, StoreError};
use crate::core::id::ConversationKey;
use crate::core::memory::MemoryStore;
use crate::core::store::{Checkpoint, CheckpointPhase, Revision, Store};
use crate::core::time::Timestamp;
use crate::dispatch::{Ctx, Handled, Verdict, failing};
use crate::events::{BotEvent, describe};
use crate::world::World;

/// A flow that a handler entered.
pub(crate) struct Entry {
    pub(crate) flow: String,
    pub(crate) state: Option<Value>,
}

/// Why a conversation did not go on.
pub(crate) enum Stopped {
    /// The bot author's code failed.
    Handler(crate::Error),
    /// The store failed; a later attempt may find it mended.
    Store(StoreError),
    /// Another owner wrote the checkpoint.
    Superseded,
    /// The stored flow does not fit the code.
    Incompatible(String),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Stopped {
    pub(crate) fn handled(self, world: &World) -> Handled {
        let verdict = match self {
            Self::Handler(error) => {
                world.events.error(failing("a flow", &*error), &*error);
                Verdict::HandlerFailed(describe(&*error))
            }
            Self::Store(error) => {
                world.events.error("the checkpoint of a conversation", &error);
                Verdict::Failed(describe(&error))
            }
            Self::Superseded => {
                Verdict::Failed("another owner wrote the conversation's checkpoint".to_owned())
            }
            Self::Incompatible(reason) => Verdict::HandlerFailed(reason),
        };
        Handled { verdict, ended: None }
    }
}

/// What a message means to the conversation it belongs to.
pub(crate) enum Resumed {
    /// The conversation took it.
    Consumed(Option<EndedConversation>),
    /// There is no conversation; a new one may be written over what is there.
    Free(Vacancy),
    /// The conversation's wait is over, and nobody has said so yet.
    Overdue(Box<TimedOut>, Vacancy),
}

/// The rows that a new conversation replaces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vacancy {
    ephemeral: Option<Revision>,
    durable: Option<Revision>,
}

/// A conversation that is over; its row goes once the message that ended it is acknowledged.
pub(crate) struct EndedConversation {
    key: ConversationKey,
    persistent: bool,
    revision: Revision,
}

/// The flows of a bot and where each conversation stands.
pub(crate) struct Conversations {
    flows: HashMap<String, Arc<dyn AnyFlow>>,
    any_persistent: bool,
    /// Where flows that do not survive a restart stand.
    ephemeral: MemoryStore,
    durable: Arc<dyn Store>,
}

struct Active {
    checkpoint: Checkpoint,
    persistent: bool,
}

impl Conversations {
    pub(crate) fn new(flows: HashMap<String, Arc<dyn AnyFlow>>, durable: Arc<dyn Store>) -> Self {
        let any_persistent = flows.values().any(|flow| flow.is_persistent());
        Self { flows, any_persistent, ephemeral: MemoryStore::new(), durable }
    }

    fn store(&self, persistent: bool) -> &dyn Store {
        if persistent { &*self.durable } else { &self.ephemeral }
    }

    async fn load(&self, key: &ConversationKey) -> Result<(Option<Active>, Vacancy), StoreError> {
        let mut vacancy = Vacancy::default();
        let mut active = None;
        for persistent in [false, true] {
            if persistent && !self.any_persistent {
                continue;
            }
            let Some(checkpoint) = self.store(persistent).checkpoint(key).await? else { continue };
            *vacancy.of(persistent) = Some(checkpoint.revision);
            active = active.or(Some(Active { checkpoint, persistent }));
        }
        Ok((active, vacancy))
    }

    /// Gives the message to the conversation that waits for it, if there is one.
    pub(crate) async fn resume(&self, ctx: &Ctx) -> Result<Resumed, Stopped> {
        if self.flows.is_empty() || !ctx.inbound().body.is_answer() {
            return Ok(Resumed::Free(Vacancy::default()));
        }
        let key = ctx.conversation();
        let (active, mut vacancy) = self.load(&key).await?;
        let Some(Active { checkpoint, persistent }) = active else { return Ok(Resumed::Free(vacancy)) };
        let own = ctx.record().is_some() && checkpoint.input.as_ref() == ctx.record();
        let answer = match checkpoint.phase {
            // The effects of this very message are already in the checkpoint; only the acknowledgement is missing.
            CheckpointPhase::Ended if own => {
                let ended = EndedConversation { key, persistent, revision: checkpoint.revision };
                return Ok(Resumed::Consumed(Some(ended)));
            }
            CheckpointPhase::Waiting if own => return Ok(Resumed::Consumed(None)),
            CheckpointPhase::Running if own => {
                ctx.scope().resume_sends(checkpoint.sends);
                None
            }
            CheckpointPhase::Waiting => {
                // What came in time is in time, however late it is handled.
                if checkpoint.deadline.is_some_and(|deadline| deadline <= ctx.received()) {
                    *vacancy.of(persistent) = None;
                    return Ok(Resumed::Overdue(Box::new(self.time_out(checkpoint, persistent)), vacancy));
                }
                Some(Answer::new(ctx.text().to_owned(), ctx.shared_inbound()))
            }
            // The message that was being handled was given up; the step begins again.
            CheckpointPhase::Running => None,
            _ => return Ok(Resumed::Free(vacancy)),
        };
        let Some(flow) = self.flows.get(&checkpoint.flow) else {
            let reason = format!("the flow `{}` is gone", checkpoint.flow);
            self.tell_incompatible(ctx, &key, &checkpoint.flow, &reason);
            return Ok(Resumed::Free(vacancy));
        };
        let given_up = checkpoint.phase == CheckpointPhase::Running && !own;
        let Checkpoint { step, version, state, .. } = checkpoint;
        let start = Start::At { step, version, state, answer };
        match self.advance(ctx, flow, start, vacancy).await {
            Ok(ended) => Ok(Resumed::Consumed(ended)),
            Err(Stopped::Incompatible(reason)) => self.incompatible(ctx, flow, &reason, vacancy).await,
            // The step failed for an earlier message as well. Whoever writes must not be stuck in it for ever.
            Err(Stopped::Handler(error)) if given_up && !ctx.world().retries_handlers() => {
                let (_, vacancy) = self.load(&key).await?;
                Saver::new(self, ctx, flow, vacancy).save_ended().await?;
                Err(Stopped::Handler(error))
            }
            Err(stopped) => Err(stopped),
        }
    }

    async fn incompatible(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
        reason: &str,
        vacancy: Vacancy,
    ) -> Result<Resumed, Stopped> {
        self.tell_incompatible(ctx, &ctx.conversation(), flow.name(), reason);
        match flow.on_incompatible() {
            OnIncompatible::Drop => Ok(Resumed::Free(vacancy)),
            OnIncompatible::Restart => {
                self.advance(ctx, flow, Start::Beginning(None), vacancy).await.map(Resumed::Consumed)
            }
            OnIncompatible::Notify(say) => {
                ctx.reply(Content::clone(say)).await.map_err(|error| Stopped::Handler(error.into()))?;
                let saver = Saver::new(self, ctx, flow, vacancy);
                saver.save_ended().await.map(Resumed::Consumed)
            }
        }
    }

    /// Begins a flow that a handler entered.
    pub(crate) async fn enter(
        &self,
        ctx: &Ctx,
        entry: Entry,
        vacancy: Vacancy,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let Some(flow) = self.flows.get(&entry.flow) else {
            let known: Vec<_> = self.flows.keys().collect();
            return Err(Stopped::Handler(
                format!("there is no flow `{}`; flows: {known:?}", entry.flow).into(),
            ));
        };
        self.advance(ctx, flow, Start::Beginning(entry.state), vacancy).await
    }

    async fn advance(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
        start: Start,
        vacancy: Vacancy,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let saver = Saver::new(self, ctx, flow, vacancy);
        match flow.advance(ctx, start, &saver).await? {
            Progress::Ended => saver.save_ended().await,
            Progress::Waiting { step, state, timeout } => {
                let deadline = timeout.map(|timeout| ctx.world().now() + timeout);
                saver.save(&step, CheckpointPhase::Waiting, state, deadline).await?;
                Ok(None)
            }
        }
    }

    /// Forgets a conversation that ended. If this fails, the row stays and is written over by the next conversation.
    pub(crate) async fn forget_ended(&self, turn: &Turn, ended: EndedConversation) {
        let store = self.store(ended.persistent);
        match store.clear_checkpoint(turn, &ended.key, ended.revision).await {
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the row of an ended conversation stays for now"),
        }
    }

    /// Conversations whose wait is over.
    pub(crate) async fn overdue(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<ConversationKey>, StoreError> {
        let mut due = self.ephemeral.due_checkpoints(now, limit).await?;
        if self.any_persistent {
            due.extend(self.durable.due_checkpoints(now, limit).await?);
        }
        Ok(due.into_iter().map(|(key, _)| key).collect())
    }

    /// The checkpoint whose wait is over, if it still is.
    pub(crate) async fn timed_out(
        &self,
        key: &ConversationKey,
        now: Timestamp,
    ) -> Result<Option<TimedOut>, StoreError> {
        let (active, _) = self.load(key).await?;
        let timed_out = active.filter(|active| {
            let checkpoint = &active.checkpoint;
            checkpoint.phase == CheckpointPhase::Waiting
                && checkpoint.deadline.is_some_and(|deadline| deadline <= now)
        });
        Ok(timed_out.map(|active| self.time_out(active.checkpoint, active.persistent)))
    }

    fn time_out(&self, checkpoint: Checkpoint, persistent: bool) -> TimedOut {
        let say = self.flows.get(&checkpoint.flow).and_then(|flow| flow.timeout_text().cloned());
        TimedOut { say, checkpoint, persistent }
    }

    /// Ends a conversation whose wait is over.
    pub(crate) async fn end_timed_out(
        &self,
        world: &World,
        turn: &Turn,
        key: &ConversationKey,
        timed_out: &TimedOut,
    ) -> Result<(), StoreError> {
        let revision = timed_out.checkpoint.revision;
        if let Cas::Applied(()) =
            self.store(timed_out.persistent).clear_checkpoint(turn, key, revision).await?
        {
            self.tell_timeout(world, key, &timed_out.checkpoint);
        }
        Ok(())
    }

    fn tell_timeout(&self, world: &World, key: &ConversationKey, checkpoint: &Checkpoint) {
        world.events.emit(BotEvent::FlowTimeout { key: key.clone(), flow: checkpoint.flow.clone() });
    }

    fn tell_incompatible(&self, ctx: &Ctx, key: &ConversationKey, flow: &str, reason: &str) {
        let (key, flow, reason) = (key.clone(), flow.to_owned(), reason.to_owned());
        ctx.world().events.emit(BotEvent::FlowIncompatible { key, flow, reason });
    }
}

/// A conversation whose wait is over.
pub(crate) struct TimedOut {
    /// What the flow says then.
    pub(crate) say: Option<Content>,
    pub(crate) checkpoint: Checkpoint,
    persistent: bool,
}

impl Vacancy {
    fn of(&mut self, persistent: bool) -> &mut Option<Revision> {
        if persistent { &mut self.durable } else { &mut self.ephemeral }
    }
}

/// Writes the checkpoints of one run of one flow.
pub(crate) struct Saver<'a> {
    conversations: &'a Conversations,
    ctx: &'a Ctx,
    flow: &'a Arc<dyn AnyFlow>,
    vacancy: Mutex<Vacancy>,
}

impl<'a> Saver<'a> {
    fn new(
        conversations: &'a Conversations,
        ctx: &'a Ctx,
        flow: &'a Arc<dyn AnyFlow>,
        vacancy: Vacancy,
    ) -> Self {
        Self { conversations, ctx, flow, vacancy: Mutex::new(vacancy) }
    }

    /// The next step is about to run; a crash from here on does not repeat the one before.
    pub(super) async fn save_running(&self, step: &str, state: Value) -> Result<(), Stopped> {
        self.save(step, CheckpointPhase::Running, state, None).await.map(|_| ())
    }

    async fn save(
        &self,
        step: &str,
        phase: CheckpointPhase,
        state: Value,
        deadline: Option<Timestamp>,
    ) -> Result<Revision, Stopped> {
        let scope = self.ctx.scope();
        scope.turn().check().map_err(|_| Stopped::Superseded)?;
        let persistent = self.flow.is_persistent();
        let checkpoint = Checkpoint {
            flow: self.flow.name().to_owned(),
            version: self.flow.version(),
            fingerprint: self.flow.fingerprint(),
            step: step.to_owned(),
            phase,
            state,
            input: scope.record().cloned(),
            sends: scope.sends(),
            deadline,
            revision: Checkpoint::unwritten_revision(),
            fence: Default::default(),
            session: Checkpoint::unwritten_session(),
        };
        let expect = *self.vacancy.lock().unwrap_or_else(PoisonError::into_inner).of(persistent);
        let key = self.ctx.conversation();
        let store = self.conversations.store(persistent);
        let Cas::Applied(revision) = store.set_checkpoint(scope.turn(), &key, expect, &checkpoint).await?
        else {
            return Err(Stopped::Superseded);
        };
        *self.vacancy.lock().unwrap_or_else(PoisonError::into_inner).of(persistent) = Some(revision);
        Ok(revision)
    }

    /// The conversation is over. With an inbox record, a row remembers which message ended it until that message is
    /// acknowledged: a replay in between must not take the message for a new one.
    async fn save_ended(&self) -> Result<Option<EndedConversation>, Stopped> {
        let persistent = self.flow.is_persistent();
        let key = self.ctx.conversation();
        let turn = self.ctx.scope().turn();
        if self.ctx.record().is_some() && persistent {
            let revision = self.save("", CheckpointPhase::Ended, Value::Null, None).await?;
            return Ok(Some(EndedConversation { key, persistent, revision }));
        }
        let vacancy = *self.vacancy.lock().unwrap_or_else(PoisonError::into_inner);
        let row = if persistent { vacancy.durable } else { vacancy.ephemeral };
        if let Some(revision) = row
            && self.conversations.store(persistent).clear_checkpoint(turn, &key, revision).await? == Cas::Lost
        {
            return Err(Stopped::Superseded);
        }
        Ok(None)
    }
}
