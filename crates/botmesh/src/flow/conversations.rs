use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;

use super::Entry;
use super::live::LiveConversations;
use super::rows::{EndedConversation, Keeping, Place, Rows, Stored, Wait};
use super::run::{AnyFlow, Progress, Start, tell};
use super::saver::{LEFTOVER, Saver};
use super::stopped::Stopped;
use crate::bot::TurnsConfig;
use crate::core::content::Content;
use crate::core::coordinator::Turn;
use crate::core::error::{Cas, StoreError};
use crate::core::id::{ConversationKey, RecordId};
use crate::core::memory::MemoryStore;
use crate::core::store::{Caller, Checkpoint, CheckpointPhase, Store};
use crate::core::time::Timestamp;
use crate::dispatch::{Ctx, panic_text};
use crate::events::BotEvent;
use crate::handover::{Decision, Feed, Found, HandoverConfig, HandoverFlows, Message, decide};
use crate::world::World;

/// How many flows one message may enter or call, so that flows that enter each other end.
const MAX_FLOWS: usize = 100;
/// How deep flows may call each other.
const MAX_CALLERS: usize = 16;
/// How many records a checkpoint remembers whose acknowledgement nobody saw; the oldest are forgotten first.
const MAX_EARLIER: usize = 32;

/// What a message means to the conversation it belongs to.
pub(crate) enum Resumed {
    /// The conversation took it.
    Consumed(Option<EndedConversation>),
    /// There is no conversation.
    Free,
    /// The conversation's wait is over, and that comes first.
    Overdue,
}

/// The flows of a bot and where each conversation stands.
pub(crate) struct Conversations {
    pub(super) flows: HashMap<String, Arc<dyn AnyFlow>>,
    /// Whether the store may have conversations.
    any_shared: bool,
    /// Where conversations stand that do not survive the process.
    local: MemoryStore,
    shared: Arc<dyn Store>,
    pub(super) live: LiveConversations,
    settle: Duration,
    /// `None` if there are no other replicas.
    handover: Option<HandoverConfig>,
}

impl Conversations {
    pub(crate) fn new(
        flows: HashMap<String, Arc<dyn AnyFlow>>,
        shared: Arc<dyn Store>,
        limits: TurnsConfig,
        handover: Option<HandoverConfig>,
    ) -> Self {
        let any_shared = handover.is_some() || flows.values().any(|flow| flow.is_persistent());
        let live = LiveConversations::new(limits.max_live_conversations);
        Self { flows, any_shared, local: MemoryStore::new(), shared, live, settle: limits.settle, handover }
    }

    pub(super) fn handover(&self) -> Option<&HandoverConfig> {
        self.handover.as_ref()
    }

    pub(super) fn settle(&self) -> Duration {
        self.settle
    }

    pub(super) fn store(&self, place: Place) -> &dyn Store {
        match place {
            Place::Local => &self.local,
            Place::Shared => &*self.shared,
        }
    }

    /// The places where conversations may be written down.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        std::iter::once(Place::Local).chain(self.any_shared.then_some(Place::Shared))
    }

    /// The names of the flows.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.flows.keys().map(String::as_str)
    }

    /// How a flow that begins is kept while it waits.
    fn keeping(&self, flow: &dyn AnyFlow) -> Keeping {
        let forwards = |handover: &HandoverConfig| handover.flows == HandoverFlows::Forward;
        if flow.is_persistent() {
            Keeping::Persistent
        } else if flow.is_code() {
            self.in_memory(flow)
        } else if self.handover.as_ref().is_some_and(forwards) {
            Keeping::Forwarded
        } else {
            Keeping::Memory
        }
    }

    /// How a conversation is kept that can only wait in memory.
    pub(super) fn in_memory(&self, flow: &dyn AnyFlow) -> Keeping {
        if self.handover.is_some() && self.falls_back(flow) { Keeping::Stub } else { Keeping::Memory }
    }

    pub(super) async fn load(&self, key: &ConversationKey) -> Result<Rows, StoreError> {
        let local = self.local.checkpoint(key).await?;
        let shared = if self.any_shared { self.shared.checkpoint(key).await? } else { None };
        Ok(Rows { local, shared })
    }

    /// What is found of a conversation under a turn of its chat.
    pub(super) fn found<'a>(
        &self,
        rows: &'a Rows,
        turn: &'a Turn,
        key: &ConversationKey,
        now: Timestamp,
    ) -> Found<'a> {
        Found {
            coordinated: self.handover.is_some(),
            session: turn.session(),
            previous: turn.previous_holder(),
            now,
            local: rows.local.as_ref(),
            shared: rows.shared.as_ref(),
            live: self.live.revision(key),
            changed: rows.shared.as_ref().is_some_and(|row| self.has_changed(row)),
        }
    }

    /// Whether a flow of the row has other steps here than where it was written.
    fn has_changed(&self, row: &Checkpoint) -> bool {
        let callers = row.callers.iter().map(|caller| (&caller.flow, &caller.fingerprint));
        let mut flows = std::iter::once((&row.flow, &row.fingerprint)).chain(callers);
        row.expires.is_some()
            && flows
                .any(|(flow, wrote)| self.flows.get(flow).is_some_and(|here| here.fingerprint() != *wrote))
    }

    /// The messages whose effects the store's row holds and that may come again. Those of this process itself are
    /// acknowledged before the next one of their conversation begins.
    pub(super) async fn unacknowledged(&self, ctx: &Ctx, rows: &Rows) -> Result<Vec<RecordId>, StoreError> {
        let (world, turn) = (ctx.world(), ctx.scope().turn());
        let mut unacknowledged = self.unacknowledged_in(world, turn, rows.shared.as_ref()).await?;
        unacknowledged.retain(|record| ctx.record() != Some(record));
        Ok(unacknowledged)
    }

    async fn unacknowledged_in(
        &self,
        world: &World,
        turn: &Turn,
        row: Option<&Checkpoint>,
    ) -> Result<Vec<RecordId>, StoreError> {
        let (Some(row), Some(open)) = (row, &world.journal) else { return Ok(Vec::new()) };
        let elsewhere = row.input.as_ref().filter(|_| row.session != *turn.session());
        let mut unacknowledged = Vec::new();
        for record in row.earlier.iter().chain(elsewhere) {
            if !unacknowledged.contains(record)
                && let Some(stored) = open.journal.inbox().get(record).await?
                && !stored.record.is_over()
            {
                unacknowledged.push(record.clone());
            }
        }
        let forgotten = unacknowledged.len().saturating_sub(MAX_EARLIER);
        Ok(unacknowledged.split_off(forgotten))
    }

    /// Begins a flow that a handler entered, in place of the one that may be going on.
    pub(crate) async fn enter(&self, ctx: &Ctx, entry: Entry) -> Result<Option<EndedConversation>, Stopped> {
        let key = ctx.conversation();
        let rows = self.load(&key).await?;
        let message = self.message(ctx, &rows).await?;
        let mut ongoing = [&rows.local, &rows.shared].into_iter().flatten();
        if ongoing.any(|row| row.phase != CheckpointPhase::Ended && message.is_past(row)) {
            // What it began is over, and another conversation goes on.
            return Ok(None);
        }
        drop(self.live.take(&key));
        let earlier = self.unacknowledged(ctx, &rows).await?;
        let mut stored = Stored { vacancy: rows.vacancy(), earlier, ..Stored::default() };
        self.begin(ctx, entry, &mut stored).await
    }

    async fn begin(
        &self,
        ctx: &Ctx,
        entry: Entry,
        stored: &mut Stored,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let (flow, start) = self.beginning(entry, stored)?;
        self.advance(ctx, flow, start, stored).await
    }

    /// What it takes to begin a flow in place of another one.
    pub(super) fn beginning(
        &self,
        entry: Entry,
        stored: &mut Stored,
    ) -> Result<(&Arc<dyn AnyFlow>, Start), Stopped> {
        let flow = self.find(&entry.flow)?;
        stored.callers.clear();
        stored.keeping = self.keeping(&**flow);
        stored.begun_with = entry.state.clone();
        stored.has_stub = false;
        Ok((flow, Start::Beginning(entry.state)))
    }

    /// Begins a flow that was entered from outside of a message of the user.
    pub(crate) async fn enter_from_outside(
        &self,
        ctx: &Ctx,
        entry: Entry,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let rows = self.load(&ctx.conversation()).await?;
        let own = [&rows.local, &rows.shared].into_iter().flatten().any(|row| is_own(ctx, row));
        let resumed = match self.decide(ctx, &rows).await? {
            Decision::Done => Resumed::Consumed(self.done(ctx, &rows)),
            Decision::GoOn(feed @ (Feed::Answer | Feed::Again)) if own => self.go_on(ctx, rows, feed).await?,
            _ => return self.enter(ctx, entry).await,
        };
        match resumed {
            Resumed::Consumed(ended) => Ok(ended),
            Resumed::Free | Resumed::Overdue => Ok(None),
        }
    }

    pub(super) async fn decide(&self, ctx: &Ctx, rows: &Rows) -> Result<Decision, StoreError> {
        let message = self.message(ctx, rows).await?;
        let (turn, key) = (ctx.scope().turn(), ctx.conversation());
        // What came in time is in time, however late it is handled.
        let found = self.found(rows, turn, &key, ctx.received());
        Ok(decide(&found, &message))
    }

    /// What is known of the message. That an earlier run of it came to something shows in the outbox.
    async fn message<'a>(&self, ctx: &'a Ctx, rows: &Rows) -> Result<Message<'a>, StoreError> {
        let others = [&rows.local, &rows.shared].into_iter().flatten().filter(|row| !is_own(ctx, row));
        let taken = others.filter_map(|row| row.input_order).max();
        let overtaken =
            ctx.order().filter(|order| ctx.is_replay() && taken.is_some_and(|taken| *order <= taken));
        let handled_order = match (overtaken, ctx.scope().first_key(), &ctx.world().journal) {
            (Some(order), Some(first), Some(open)) => {
                let handled = open.journal.outbox().get(&first).await?.is_some();
                if handled {
                    ctx.scope().note_past();
                }
                handled.then_some(order)
            }
            _ => None,
        };
        Ok(Message { record: ctx.record(), received: ctx.received(), handled_order })
    }

    pub(super) fn find(&self, name: &str) -> Result<&Arc<dyn AnyFlow>, Stopped> {
        self.flows.get(name).ok_or_else(|| {
            let known: Vec<_> = self.flows.keys().collect();
            Stopped::Handler(format!("there is no flow `{name}`; flows: {known:?}").into())
        })
    }

    /// Runs a conversation, through all flows that it enters or calls, until it waits for its user or ends.
    pub(super) async fn advance(
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
            let running = AssertUnwindSafe(flow.advance(ctx, start, &saver)).catch_unwind();
            let progress = tokio::select! {
                biased;
                progress = running => progress.unwrap_or_else(|panic| Err(panicked(&**flow, &*panic))),
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
                (flow, start) = self.beginning(entry, stored)?;
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

    /// Forgets a conversation that ended. If this fails, its rows stay and are written over by the next conversation.
    pub(crate) async fn forget_ended(&self, turn: &Turn, ended: EndedConversation) {
        for place in [Place::Local, Place::Shared] {
            let Some(revision) = ended.vacancy.of(place) else { continue };
            if let Err(error) = self.store(place).clear_checkpoint(turn, &ended.key, revision).await {
                tracing::debug!(%error, "the row of an ended conversation stays for now");
            }
        }
    }

    /// Removes the row of a conversation that is over. If it holds the effects of messages that may come again, other than
    /// `message`, it stays for a while and says so.
    pub(super) async fn remove(
        &self,
        (world, turn, key): (&World, &Turn, &ConversationKey),
        (place, row): (Place, &Checkpoint),
        message: Option<&RecordId>,
    ) -> Result<Cas<()>, StoreError> {
        let shared = Some(row).filter(|_| place == Place::Shared);
        let mut earlier = self.unacknowledged_in(world, turn, shared).await?;
        earlier.retain(|record| message != Some(record));
        if earlier.is_empty() {
            return self.store(place).clear_checkpoint(turn, key, row.revision).await;
        }
        let over = Checkpoint {
            phase: CheckpointPhase::Ended,
            state: Value::Null,
            begun_with: None,
            input: None,
            earlier,
            answer: None,
            midway: None,
            callers: Vec::new(),
            deadline: None,
            expires: None,
            due: Some(world.now() + LEFTOVER),
            ..row.clone()
        };
        let written = self.store(place).set_checkpoint(turn, key, Some(row.revision), &over).await?;
        Ok(match written {
            Cas::Applied(_) => Cas::Applied(()),
            Cas::Lost => Cas::Lost,
        })
    }

    /// What a flow says when its time runs out, or the flow that called it.
    pub(super) fn timeout_text<'a>(
        &'a self,
        flow: &'a Arc<dyn AnyFlow>,
        callers: &[Caller],
    ) -> Option<&'a Content> {
        let mut callers = callers.iter().rev().filter_map(|caller| self.flows.get(&caller.flow));
        flow.timeout_text().or_else(|| callers.find_map(|flow| flow.timeout_text()))
    }

    pub(super) fn tell_timeout(&self, world: &World, key: &ConversationKey, flow: &str) {
        world.events.emit(BotEvent::FlowTimeout { key: key.clone(), flow: flow.to_owned() });
    }
}

/// A step that panics failed like any other. Code without steps has nowhere to stand: it is over, as if it had returned.
fn panicked(flow: &dyn AnyFlow, panic: &(dyn Any + Send)) -> Stopped {
    let why = panic_text(panic).into();
    if flow.is_code() { Stopped::Over(why, None) } else { Stopped::Handler(why) }
}

/// Whether a checkpoint holds effects of this very message.
pub(super) fn is_own(ctx: &Ctx, checkpoint: &Checkpoint) -> bool {
    ctx.record().is_some() && checkpoint.input.as_ref() == ctx.record()
}
