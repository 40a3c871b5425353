use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::definition::OnIncompatible;
use super::live::{Live, LiveConversations};
use super::run::{AnyFlow, Progress, Start, tell};
use super::saver::{Saver, Stored, Wait};
use super::stopped::Stopped;
use super::talk::{Fed, Idle};
use super::{Answer, Entry};
use crate::bot::TurnsConfig;
use crate::core::content::Content;
use crate::core::coordinator::Turn;
use crate::core::error::{Cas, StoreError};
use crate::core::id::ConversationKey;
use crate::core::memory::MemoryStore;
use crate::core::store::{Caller, Checkpoint, CheckpointPhase, Revision, Store};
use crate::core::time::Timestamp;
use crate::dispatch::Ctx;
use crate::egress::KeyPosition;
use crate::events::BotEvent;
use crate::world::World;

/// How many flows one message may enter or call, so that flows that enter each other end.
const MAX_FLOWS: usize = 100;
/// How deep flows may call each other.
const MAX_CALLERS: usize = 16;

/// What a message means to the conversation it belongs to.
pub(crate) enum Resumed {
    /// The conversation took it.
    Consumed(Option<EndedConversation>),
    /// There is no conversation.
    Free,
    /// The conversation's wait is over, and that comes first.
    Overdue,
}

/// The rows that are there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Vacancy {
    ephemeral: Option<Revision>,
    durable: Option<Revision>,
}

impl Vacancy {
    pub(super) fn of(self, persistent: bool) -> Option<Revision> {
        if persistent { self.durable } else { self.ephemeral }
    }

    pub(super) fn set(&mut self, persistent: bool, revision: Option<Revision>) {
        if persistent { self.durable = revision } else { self.ephemeral = revision }
    }
}

/// A conversation that is over; its row goes once the message that ended it is acknowledged.
pub(crate) struct EndedConversation {
    pub(super) key: ConversationKey,
    pub(super) persistent: bool,
    pub(super) revision: Revision,
}

/// The flows of a bot and where each conversation stands.
pub(crate) struct Conversations {
    flows: HashMap<String, Arc<dyn AnyFlow>>,
    any_persistent: bool,
    /// Where flows that do not survive a restart stand.
    ephemeral: MemoryStore,
    durable: Arc<dyn Store>,
    pub(super) live: LiveConversations,
    settle: Duration,
}

struct Active {
    checkpoint: Checkpoint,
    persistent: bool,
}

/// What is due in a conversation without a message of its user.
pub(crate) enum Due {
    /// To say something, because the user is silent. The conversation is to be put back afterwards.
    Idle(Live, Idle),
    /// The wait is over, and code waits for it.
    Live(Overdue),
    /// The wait is over.
    Ended(Overdue),
}

/// A conversation whose wait is over.
pub(crate) struct Overdue {
    /// What the flow says then.
    pub(crate) say: Option<Content>,
    pub(crate) checkpoint: Checkpoint,
    persistent: bool,
}

impl Conversations {
    pub(crate) fn new(
        flows: HashMap<String, Arc<dyn AnyFlow>>,
        durable: Arc<dyn Store>,
        limits: TurnsConfig,
    ) -> Self {
        let any_persistent = flows.values().any(|flow| flow.is_persistent());
        let live = LiveConversations::new(limits.max_live_conversations);
        Self { flows, any_persistent, ephemeral: MemoryStore::new(), durable, live, settle: limits.settle }
    }

    pub(super) fn store(&self, persistent: bool) -> &dyn Store {
        if persistent { &*self.durable } else { &self.ephemeral }
    }

    /// The names of the flows.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.flows.keys().map(String::as_str)
    }

    async fn load(&self, key: &ConversationKey) -> Result<(Option<Active>, Vacancy), StoreError> {
        let mut vacancy = Vacancy::default();
        let mut active: Option<Active> = None;
        for persistent in [false, true] {
            if persistent && !self.any_persistent {
                continue;
            }
            let Some(checkpoint) = self.store(persistent).checkpoint(key).await? else { continue };
            vacancy.set(persistent, Some(checkpoint.revision));
            if active.as_ref().is_none_or(|active| active.checkpoint.phase == CheckpointPhase::Ended) {
                active = Some(Active { checkpoint, persistent });
            }
        }
        Ok((active, vacancy))
    }

    /// Gives the message to the conversation that waits for it, if there is one.
    pub(crate) async fn resume(&self, ctx: &Ctx) -> Result<Resumed, Stopped> {
        if self.flows.is_empty() || !ctx.inbound().body.is_answer() {
            return Ok(Resumed::Free);
        }
        let key = ctx.conversation();
        let (Some(active), vacancy) = self.load(&key).await? else { return Ok(Resumed::Free) };
        if let Some(consumed) = own_effects(ctx, &active, &key) {
            return Ok(consumed);
        }
        match active.checkpoint.phase {
            CheckpointPhase::Waiting
                if active.checkpoint.deadline.is_some_and(|deadline| deadline <= ctx.received()) =>
            {
                // What came in time is in time, however late it is handled.
                return Ok(Resumed::Overdue);
            }
            CheckpointPhase::Waiting | CheckpointPhase::Running => {}
            _ => return Ok(Resumed::Free),
        }
        self.go_on(ctx, active, vacancy).await
    }

    /// Gives the message to a conversation that waits, or that an earlier message left in the middle of a step.
    async fn go_on(&self, ctx: &Ctx, active: Active, vacancy: Vacancy) -> Result<Resumed, Stopped> {
        let Active { checkpoint, persistent } = active;
        let key = ctx.conversation();
        let Some(flow) = self.flows.get(&checkpoint.flow) else {
            let reason = format!("the flow `{}` is gone", checkpoint.flow);
            self.tell_incompatible(ctx, &key, &checkpoint.flow, &reason);
            return self.forget(ctx, persistent, vacancy).await;
        };
        let live = self.live_copy(ctx.scope().turn(), &key, &checkpoint, persistent);
        let running = checkpoint.phase == CheckpointPhase::Running;
        let own = is_own(ctx, &checkpoint);
        let (start, mut stored) = self.place(ctx, checkpoint, live, persistent, vacancy);
        if !own && let Some(say) = self.cancelled(ctx, flow, &stored.callers) {
            tell(ctx, say.clone()).await?;
            let saver = Saver::new(self, ctx, flow, &mut stored);
            return saver.save_ended().await.map(Resumed::Consumed);
        }
        match self.advance(ctx, flow, start, &mut stored).await {
            Ok(ended) => Ok(Resumed::Consumed(ended)),
            Err(Stopped::Incompatible(reason)) => self.incompatible(ctx, flow, &reason, stored).await,
            // The step failed for an earlier message as well. Whoever writes must not be stuck in it for ever.
            Err(Stopped::Handler(error))
                if running && !own && (ctx.is_last_attempt() || !ctx.world().retries_handlers()) =>
            {
                let ended = self.give_up(ctx, flow).await?;
                Err(Stopped::Over(error, ended))
            }
            Err(Stopped::Unsettled) if running && !own && ctx.is_last_attempt() => {
                let ended = self.give_up(ctx, flow).await?;
                Err(Stopped::Over(Stopped::Unsettled.to_string().into(), ended))
            }
            Err(stopped) => Err(stopped),
        }
    }

    async fn give_up(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let (active, vacancy) = self.load(&ctx.conversation()).await?;
        let persistent = active.map_or(flow.is_persistent(), |active| active.persistent);
        let mut stored = Stored { persistent, vacancy, ..Stored::default() };
        Saver::new(self, ctx, flow, &mut stored).save_ended().await
    }

    /// Where a stored conversation begins, and what is stored of it.
    fn place(
        &self,
        ctx: &Ctx,
        checkpoint: Checkpoint,
        live: Option<Live>,
        persistent: bool,
        vacancy: Vacancy,
    ) -> (Start, Stored) {
        let own = is_own(ctx, &checkpoint);
        let Checkpoint { step, version, state, callers, midway, input, sends, revision, phase, .. } =
            checkpoint;
        let stored = Stored {
            persistent,
            vacancy,
            callers,
            state: state.clone(),
            input: input.map(|record| (record, sends)),
        };
        let answer = (phase == CheckpointPhase::Waiting).then(|| Answer::of(ctx));
        if let (Some(live), Some(answer)) = (live, &answer) {
            return (Start::Live { task: live.task, fed: Fed::Answer(answer.clone()) }, stored);
        }
        if own {
            ctx.scope().resume_sends(sends);
        }
        let answer = match midway {
            // The step runs again up to its first question, whose answer is there: what it sent before is sent under
            // the same keys.
            Some(midway) if midway.question <= 1 => {
                if let Some(base) = midway.key_base {
                    ctx.scope().borrow_keys(KeyPosition { base, next: midway.first_send });
                }
                answer
            }
            // The step begins again. This message's own keys may be those of what it sent when it was an answer.
            Some(_) => {
                if let Some(own) = ctx.scope().key_position() {
                    let base = format!("{}:r{}", own.base, revision.0);
                    ctx.scope().borrow_keys(KeyPosition { base, next: 0 });
                }
                None
            }
            None => answer,
        };
        (Start::At { step, version, state, answer }, stored)
    }

    /// The code that waits, if this process has it and nobody went on without it.
    fn live_copy(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        checkpoint: &Checkpoint,
        persistent: bool,
    ) -> Option<Live> {
        let live = self.live.take(key)?;
        let elsewhere = turn.previous_holder().is_some_and(|holder| holder != turn.session());
        let fresh = live.revision == checkpoint.revision && (persistent || !elsewhere);
        fresh.then_some(live)
    }

    /// What is said if the message cancels the conversation.
    fn cancelled(&self, ctx: &Ctx, flow: &Arc<dyn AnyFlow>, callers: &[Caller]) -> Option<&Content> {
        let answer = Answer::of(ctx);
        let flow = self.flows.get(flow.name())?;
        let callers = callers.iter().rev().filter_map(|caller| self.flows.get(&caller.flow));
        std::iter::once(flow).chain(callers).find_map(|flow| flow.cancel(&answer))
    }

    async fn incompatible(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
        reason: &str,
        stored: Stored,
    ) -> Result<Resumed, Stopped> {
        self.tell_incompatible(ctx, &ctx.conversation(), flow.name(), reason);
        ctx.scope().return_keys();
        let Stored { persistent, vacancy, .. } = stored;
        let mut stored = Stored { persistent, vacancy, ..Stored::default() };
        match flow.on_incompatible() {
            OnIncompatible::Drop => self.forget(ctx, persistent, vacancy).await,
            OnIncompatible::Restart => {
                self.advance(ctx, flow, Start::Beginning(None), &mut stored).await.map(Resumed::Consumed)
            }
            OnIncompatible::Notify(say) => {
                tell(ctx, Content::clone(say)).await?;
                Saver::new(self, ctx, flow, &mut stored).save_ended().await.map(Resumed::Consumed)
            }
        }
    }

    /// Forgets a conversation that does not go on. The message is free, also when it runs again.
    async fn forget(&self, ctx: &Ctx, persistent: bool, vacancy: Vacancy) -> Result<Resumed, Stopped> {
        let (turn, key) = (ctx.scope().turn(), ctx.conversation());
        if let Some(revision) = vacancy.of(persistent)
            && self.store(persistent).clear_checkpoint(turn, &key, revision).await? == Cas::Lost
        {
            return Err(Stopped::Superseded);
        }
        Ok(Resumed::Free)
    }

    /// Begins a flow that a handler entered, in place of the one that may be going on.
    pub(crate) async fn enter(&self, ctx: &Ctx, entry: Entry) -> Result<Option<EndedConversation>, Stopped> {
        let key = ctx.conversation();
        drop(self.live.take(&key));
        let flow = self.find(&entry.flow)?;
        let (_, vacancy) = self.load(&key).await?;
        let mut stored = Stored { persistent: flow.is_persistent(), vacancy, ..Stored::default() };
        self.advance(ctx, flow, Start::Beginning(entry.state), &mut stored).await
    }

    /// Begins a flow that was entered from outside of a message of the user.
    pub(crate) async fn enter_from_outside(
        &self,
        ctx: &Ctx,
        entry: Entry,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let key = ctx.conversation();
        let (active, vacancy) = self.load(&key).await?;
        let Some(active) = active.filter(|active| is_own(ctx, &active.checkpoint)) else {
            return self.enter(ctx, entry).await;
        };
        let resumed = match own_effects(ctx, &active, &key) {
            Some(resumed) => resumed,
            None => self.go_on(ctx, active, vacancy).await?,
        };
        match resumed {
            Resumed::Consumed(ended) => Ok(ended),
            Resumed::Free | Resumed::Overdue => Ok(None),
        }
    }

    fn find(&self, name: &str) -> Result<&Arc<dyn AnyFlow>, Stopped> {
        self.flows.get(name).ok_or_else(|| {
            let known: Vec<_> = self.flows.keys().collect();
            Stopped::Handler(format!("there is no flow `{name}`; flows: {known:?}").into())
        })
    }

    /// Runs a conversation, through all flows that it enters or calls, until it waits for its user or ends.
    async fn advance(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
        mut start: Start,
        stored: &mut Stored,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let mut flow = flow;
        let mut settle = pin!(ctx.world().seams.clock.sleep(self.settle));
        for _ in 0..MAX_FLOWS {
            let saver = Saver::new(self, ctx, flow, stored);
            let progress = tokio::select! {
                biased;
                progress = flow.advance(ctx, start, &saver) => progress,
                () = &mut settle => Err(Stopped::Unsettled),
            };
            let result = match progress {
                Ok(Progress::Waiting { step, state, timeout, midway, live }) => {
                    let deadline = timeout.map(|timeout| ctx.world().now() + timeout);
                    return saver.save_waiting(Wait { step, state, deadline, midway }, live).await;
                }
                Ok(Progress::Calling { step, state, flow: called, begin }) => {
                    let (version, fingerprint) = (flow.version(), flow.fingerprint());
                    let caller = Caller { flow: flow.name().to_owned(), version, fingerprint, step, state };
                    stored.callers.push(caller);
                    if stored.callers.len() > MAX_CALLERS {
                        let problem =
                            format!("flows call each other more than {MAX_CALLERS} deep: `{called}`");
                        return Err(Stopped::Handler(problem.into()));
                    }
                    flow = self.find(&called)?;
                    start = Start::Beginning(Some(begin));
                    continue;
                }
                Ok(Progress::Ended(result)) => result,
                Err(Stopped::TimedOut) => {
                    if let Some(say) = self.timeout_text(flow, &stored.callers) {
                        tell(ctx, say.clone()).await?;
                    }
                    self.tell_timeout(ctx.world(), &ctx.conversation(), flow.name());
                    return Saver::new(self, ctx, flow, stored).save_ended().await;
                }
                Err(Stopped::Over(error, _)) => {
                    return Err(Stopped::Over(error, saver.save_ended().await?));
                }
                Err(stopped) => return Err(stopped),
            };
            if let Some(entry) = ctx.take_entry() {
                flow = self.find(&entry.flow)?;
                stored.callers.clear();
                stored.persistent = flow.is_persistent();
                start = Start::Beginning(entry.state);
            } else if let Some(Caller { flow: name, version, step, state, .. }) = stored.callers.pop() {
                flow = self.find(&name)?;
                start = Start::Returned { step, version, state, result };
            } else {
                return Saver::new(self, ctx, flow, stored).save_ended().await;
            }
        }
        let problem = format!("one message entered {MAX_FLOWS} flows without waiting for anybody");
        Err(Stopped::Handler(problem.into()))
    }

    /// Forgets a conversation that ended. If this fails, the row stays and is written over by the next conversation.
    pub(crate) async fn forget_ended(&self, turn: &Turn, ended: EndedConversation) {
        let store = self.store(ended.persistent);
        match store.clear_checkpoint(turn, &ended.key, ended.revision).await {
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the row of an ended conversation stays for now"),
        }
    }

    /// Conversations in which something is due without a message of their user.
    pub(crate) async fn overdue(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<ConversationKey>, StoreError> {
        let mut due = self.live.idle(now, limit);
        let rows = self.ephemeral.due_checkpoints(now, limit).await?;
        due.extend(rows.into_iter().map(|(key, _)| key));
        if self.any_persistent {
            let rows = self.durable.due_checkpoints(now, limit).await?;
            due.extend(rows.into_iter().map(|(key, _)| key));
        }
        Ok(due)
    }

    /// What is due in a conversation, if something still is.
    pub(crate) async fn due(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        now: Timestamp,
    ) -> Result<Option<Due>, StoreError> {
        let (active, _) = self.load(key).await?;
        let waiting = active.filter(|active| active.checkpoint.phase == CheckpointPhase::Waiting);
        let Some(Active { checkpoint, persistent }) = waiting else {
            drop(self.live.take(key));
            return Ok(None);
        };
        let live = self.live_copy(turn, key, &checkpoint, persistent);
        if checkpoint.deadline.is_some_and(|deadline| deadline <= now) {
            let say = self.flows.get(&checkpoint.flow);
            let say = say.and_then(|flow| self.timeout_text(flow, &checkpoint.callers)).cloned();
            let overdue = Overdue { say, checkpoint, persistent };
            return Ok(Some(match live {
                Some(live) => {
                    self.put_back(key, live);
                    Due::Live(overdue)
                }
                None if self.flows.get(&overdue.checkpoint.flow).is_some_and(|flow| flow.replays()) => {
                    Due::Live(overdue)
                }
                None => Due::Ended(overdue),
            }));
        }
        let Some(mut live) = live else { return Ok(None) };
        match live.idle.take() {
            Some((at, idle)) if at <= now => Ok(Some(Due::Idle(live, idle))),
            idle => {
                live.idle = idle;
                self.put_back(key, live);
                Ok(None)
            }
        }
    }

    /// Puts back what was taken out to look at it.
    pub(crate) fn put_back(&self, key: &ConversationKey, live: Live) {
        drop(self.live.put(key.clone(), live));
    }

    /// Tells waiting code that nobody answered in time, and lets it go on.
    pub(crate) async fn time_out_live(
        &self,
        ctx: &Ctx,
        overdue: Overdue,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let key = ctx.conversation();
        let Overdue { checkpoint, persistent, .. } = overdue;
        let live = self.live.take(&key);
        let (_, vacancy) = self.load(&key).await?;
        let Checkpoint { flow, state, callers, input, sends, .. } = checkpoint;
        let input = input.map(|record| (record, sends));
        let mut stored = Stored { persistent, vacancy, callers, state: state.clone(), input };
        let start = match live {
            Some(live) => Start::Live { task: live.task, fed: Fed::TimedOut },
            None => Start::TimedOut(state),
        };
        self.advance(ctx, self.find(&flow)?, start, &mut stored).await
    }

    /// Ends a conversation whose wait is over.
    pub(crate) async fn end_overdue(
        &self,
        world: &World,
        turn: &Turn,
        key: &ConversationKey,
        overdue: &Overdue,
    ) -> Result<(), StoreError> {
        let revision = overdue.checkpoint.revision;
        if let Cas::Applied(()) = self.store(overdue.persistent).clear_checkpoint(turn, key, revision).await?
        {
            self.tell_timeout(world, key, &overdue.checkpoint.flow);
        }
        Ok(())
    }

    /// What a flow says when its time runs out, or the flow that called it.
    fn timeout_text<'a>(&'a self, flow: &'a Arc<dyn AnyFlow>, callers: &[Caller]) -> Option<&'a Content> {
        let mut callers = callers.iter().rev().filter_map(|caller| self.flows.get(&caller.flow));
        flow.timeout_text().or_else(|| callers.find_map(|flow| flow.timeout_text()))
    }

    fn tell_timeout(&self, world: &World, key: &ConversationKey, flow: &str) {
        world.events.emit(BotEvent::FlowTimeout { key: key.clone(), flow: flow.to_owned() });
    }

    fn tell_incompatible(&self, ctx: &Ctx, key: &ConversationKey, flow: &str, reason: &str) {
        let (key, flow, reason) = (key.clone(), flow.to_owned(), reason.to_owned());
        ctx.world().events.emit(BotEvent::FlowIncompatible { key, flow, reason });
    }
}

/// Whether a checkpoint holds effects of this very message.
fn is_own(ctx: &Ctx, checkpoint: &Checkpoint) -> bool {
    ctx.record().is_some() && checkpoint.input.as_ref() == ctx.record()
}

/// What is left of a message whose effects are already in the checkpoint, if only its acknowledgement is missing.
fn own_effects(ctx: &Ctx, active: &Active, key: &ConversationKey) -> Option<Resumed> {
    let Active { checkpoint, persistent } = active;
    match checkpoint.phase {
        CheckpointPhase::Ended if is_own(ctx, checkpoint) => {
            let (key, persistent, revision) = (key.clone(), *persistent, checkpoint.revision);
            Some(Resumed::Consumed(Some(EndedConversation { key, persistent, revision })))
        }
        CheckpointPhase::Waiting if is_own(ctx, checkpoint) => Some(Resumed::Consumed(None)),
        _ => None,
    }
}
