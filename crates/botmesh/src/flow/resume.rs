//! A message that comes to a conversation.

use std::pin::pin;
use std::sync::Arc;

use super::Answer;
use super::conversations::{Conversations, Resumed, is_own};
use super::live::Live;
use super::rows::{EndedConversation, Keeping, Kept, Place, Rows, Stored, Wait};
use super::run::{AnyFlow, Start, tell};
use super::saver::Saver;
use super::stopped::Stopped;
use super::talk::Fed;
use crate::core::content::Content;
use crate::core::coordinator::Turn;
use crate::core::error::StoreError;
use crate::core::id::{ConversationKey, RecordId};
use crate::core::store::{Caller, Checkpoint, CheckpointPhase, RecordedAnswer};
use crate::core::time::Timestamp;
use crate::dispatch::{Ctx, StandIn, is_deferred};
use crate::egress::KeyPosition;
use crate::events::BotEvent;
use crate::handover::{Decision, Feed, HandoverFlows, HandoverOutcome, Standing};

impl Conversations {
    /// Gives the message to the conversation that waits for it, if there is one.
    pub(crate) async fn resume(&self, ctx: &Ctx) -> Result<Resumed, Stopped> {
        if self.flows.is_empty() || !ctx.inbound().body.is_answer() {
            return Ok(Resumed::Free);
        }
        let rows = self.load(&ctx.conversation()).await?;
        match self.decide(ctx, &rows).await? {
            Decision::Route => Ok(Resumed::Free),
            Decision::Done => Ok(Resumed::Consumed(self.done(ctx, &rows))),
            Decision::Overdue => Ok(Resumed::Overdue),
            Decision::Fallback(reason) => self.fall_back(ctx, rows, reason).await,
            Decision::GoOn(feed @ (Feed::Recorded | Feed::Again)) => self.catch_up(ctx, rows, feed).await,
            Decision::GoOn(feed) => self.go_on(ctx, rows, feed).await,
        }
    }

    /// Goes on with a step that was left in the middle of its work for an earlier message, in the place of that one. If the
    /// step has its answer, this message is kept for the question that comes next. If not, it is the answer to what the step
    /// asked before it was left, as the outbox knows; a question that is only asked now it cannot answer.
    async fn catch_up(&self, ctx: &Ctx, rows: Rows, feed: Feed) -> Result<Resumed, Stopped> {
        let left = self.row(ctx, &rows).filter(|(_, row)| row.phase == CheckpointPhase::Running);
        let Some((_, row)) = left.filter(|(_, row)| !is_own(ctx, row)) else {
            return self.go_on(ctx, rows, Feed::Again).await;
        };
        if let Some(flow) = self.flows.get(&row.flow)
            && self.cancelled(ctx, flow, &row.callers).is_some()
        {
            return self.go_on(ctx, rows, Feed::Again).await;
        }
        let Some(earlier) = self.stand_in(ctx, row).await? else {
            return self.go_on(ctx, rows, Feed::Again).await;
        };
        let (scope, feeds) = (earlier.shared_scope(), feed == Feed::Recorded);
        let going_on = self.go_on(&earlier, rows, if feeds { Feed::Answer } else { Feed::Again });
        // Else the two would be polled with all that is between them on the stack.
        let outcome = scope.drive(pin!(Box::pin(going_on))).await;
        ctx.scope().take_over(&scope);
        match outcome {
            Ok(Resumed::Consumed(_)) => {}
            // The conversation is over, for an earlier message: this one is handled as any other.
            Err(stopped @ Stopped::Over(..)) => stopped.tell(ctx),
            outcome => return outcome.map(|_| Resumed::Free),
        }
        let answers = feeds || !scope.sent_anew();
        let rows = self.load(&ctx.conversation()).await?;
        match self.decide(ctx, &rows).await? {
            Decision::GoOn(feed) if answers => self.go_on(ctx, rows, feed).await,
            Decision::GoOn(_) => Ok(Resumed::Consumed(None)),
            Decision::Done => Ok(Resumed::Consumed(self.done(ctx, &rows))),
            Decision::Overdue => Ok(Resumed::Overdue),
            // It is over, and the message is none of its answers.
            Decision::Route | Decision::Fallback(_) => Ok(Resumed::Free),
        }
    }

    /// The row at which the conversation stands.
    pub(super) fn row<'a>(&self, ctx: &Ctx, rows: &'a Rows) -> Option<(Place, &'a Checkpoint)> {
        let (turn, key) = (ctx.scope().turn(), ctx.conversation());
        match self.found(rows, turn, &key, ctx.received()).standing() {
            Standing::Local(_) => rows.local.as_ref().map(|row| (Place::Local, row)),
            Standing::Shared(_) => rows.shared.as_ref().map(|row| (Place::Shared, row)),
            Standing::Nowhere | Standing::Interrupted(..) => None,
        }
    }

    /// The message that a step was left for, to go on in its place: from the inbox, or from the checkpoint itself.
    async fn stand_in(&self, ctx: &Ctx, row: &Checkpoint) -> Result<Option<Ctx>, StoreError> {
        let answer = row.answer.as_ref();
        let record = answer.map_or(row.input.as_ref(), |answer| answer.record.as_ref());
        let text = answer.and_then(|answer| answer.text.clone());
        if let (Some(record), Some(open)) = (record, &ctx.world().journal) {
            let Some(stored) = open.journal.inbox().get(record).await? else { return Ok(None) };
            let record = stored.record;
            return Ok(Some(ctx.stand_in(StandIn {
                inbound: record.inbound,
                media: record.media,
                received: record.received,
                order: Some(record.order),
                record: Some(record.id),
                text,
            })));
        }
        let Some((answer, inbound)) = answer.and_then(|answer| Some((answer, answer.inbound.clone()?)))
        else {
            return Ok(None);
        };
        let received = answer.received;
        Ok(Some(ctx.stand_in(StandIn { inbound, media: None, received, order: None, record: None, text })))
    }

    /// What the hooks before a message made of this one, if a step was given it before; then they do not run again. Nor do
    /// they if only its acknowledgement is missing.
    pub(crate) async fn heard(&self, ctx: &Ctx) -> Result<Option<Option<String>>, StoreError> {
        if self.handover().is_none() || !ctx.inbound().body.is_answer() {
            return Ok(None);
        }
        let rows = self.load(&ctx.conversation()).await?;
        if self.decide(ctx, &rows).await? == Decision::Done {
            return Ok(Some(None));
        }
        let answer = rows.shared.and_then(|row| row.answer);
        let own = answer.filter(|answer| answer.record.is_some() && answer.record.as_ref() == ctx.record());
        Ok(own.map(|answer| answer.text))
    }

    /// Gives the message to a conversation that waits, or that an earlier message left in the middle of a step.
    pub(super) async fn go_on(&self, ctx: &Ctx, rows: Rows, feed: Feed) -> Result<Resumed, Stopped> {
        let Some((place, row)) = self.row(ctx, &rows) else { return Ok(Resumed::Free) };
        let Some(flow) = self.flows.get(&row.flow) else { return self.unknown(ctx, row).await };
        let mut earlier = self.unacknowledged(ctx, &rows).await?;
        if ctx.is_stand_in() {
            // It is not acknowledged by this process.
            earlier.extend(ctx.record().cloned());
        }
        let own = is_own(ctx, row) && !ctx.is_stand_in();
        let mut stored = self.stored(&rows, place, row, earlier);
        let live = self.live.take(&ctx.conversation()).filter(|_| feed == Feed::Live);
        if !own && let Some(say) = self.cancelled(ctx, flow, &row.callers) {
            tell(ctx, say.clone()).await?;
            return Saver::new(self, ctx, flow, &mut stored).save_ended().await.map(Resumed::Consumed);
        }
        let recorded = self.record_answer(ctx, flow, row, feed, &mut stored).await?;
        let start = start(ctx, row, feed, live);
        match self.advance(ctx, flow, start, &mut stored).await {
            Ok(ended) => {
                if place == Place::Shared && feed != Feed::Live {
                    self.tell_resumed(ctx, row);
                }
                Ok(Resumed::Consumed(ended))
            }
            Err(Stopped::Incompatible(reason)) => self.incompatible(ctx, flow, &reason, row, stored).await,
            Err(stopped) => self.failed(ctx, flow, (row, own, recorded), stopped, stored).await,
        }
    }

    /// The step did not come to its end. Whoever writes must not be stuck in it for ever.
    async fn failed(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
        (row, own, recorded): (&Checkpoint, bool, bool),
        stopped: Stopped,
        mut stored: Stored,
    ) -> Result<Resumed, Stopped> {
        let last = ctx.is_last_attempt();
        let stopped = match stopped {
            // Nothing failed: whoever had the conversation left a send in flight, and its lease has to run out first.
            Stopped::Handler(error) if ctx.is_stand_in() && !last && is_deferred(&*error) => {
                return Err(Stopped::InFlight(error));
            }
            stopped => stopped,
        };
        let is_over = match &stopped {
            Stopped::Handler(_) => last || !ctx.world().retries_handlers(),
            Stopped::Unsettled => last,
            _ => false,
        };
        if is_over && row.phase == CheckpointPhase::Running && !own {
            // It failed for an earlier message as well.
            let why = match stopped {
                Stopped::Handler(error) => error,
                stopped => stopped.to_string().into(),
            };
            return Err(Stopped::Over(why, self.give_up(ctx, flow).await?));
        }
        // An answer without a record is nowhere else, so the step keeps it when it is cut short.
        let keeps = matches!(stopped, Stopped::Unsettled) && ctx.record().is_none();
        if is_over && recorded && !keeps {
            let saver = Saver::new(self, ctx, flow, &mut stored);
            saver.save_again(&waiting(row)).await?;
        }
        Err(stopped)
    }

    async fn give_up(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let rows = self.load(&ctx.conversation()).await?;
        let earlier = self.unacknowledged(ctx, &rows).await?;
        let mut stored = match self.row(ctx, &rows) {
            Some((place, row)) => self.stored(&rows, place, row, earlier),
            None => Stored { vacancy: rows.vacancy(), earlier, ..Stored::default() },
        };
        Saver::new(self, ctx, flow, &mut stored).save_ended().await
    }

    /// Writes down the answer that a step is about to work on, where others may take the conversation over. Whether it is.
    async fn record_answer(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
        row: &Checkpoint,
        feed: Feed,
        stored: &mut Stored,
    ) -> Result<bool, Stopped> {
        let first = row.midway.as_ref().is_none_or(|midway| midway.question <= 1);
        let answers = matches!(feed, Feed::Live | Feed::Answer) && first;
        let (true, Some(handover)) = (answers && stored.keeping.place() == Place::Shared, self.handover())
        else {
            return Ok(false);
        };
        if row.answer.is_some() {
            return Ok(true);
        }
        let (record, inbound) = match ctx.record() {
            Some(record) => (Some(record.clone()), None),
            None => {
                let inbound = ctx.shared_inbound();
                let size = serde_json::to_vec(&*inbound).map_or(usize::MAX, |json| json.len());
                if size > handover.max_answer_bytes {
                    // Whoever takes it over must not take the next message for this answer.
                    Saver::new(self, ctx, flow, stored).save_running(&row.step, Kept::Unchanged).await?;
                    return Ok(true);
                }
                (None, Some(inbound))
            }
        };
        let text = Some(ctx.text()).filter(|text| *text != ctx.inbound().readable_text());
        let text = text.map(str::to_owned);
        let answer = RecordedAnswer { record, inbound, text, received: ctx.received() };
        Saver::new(self, ctx, flow, stored).save_answer(&waiting(row), answer).await?;
        Ok(true)
    }

    /// What is stored of a conversation that stands at this row.
    pub(super) fn stored(
        &self,
        rows: &Rows,
        place: Place,
        row: &Checkpoint,
        earlier: Vec<RecordId>,
    ) -> Stored {
        let shared = rows.shared.as_ref();
        let has_stub = place == Place::Local && shared.is_some_and(|row| row.phase == CheckpointPhase::Stub);
        let forwards = self.handover().is_some_and(|handover| handover.flows == HandoverFlows::Forward);
        let keeping = match (place, row.expires) {
            (Place::Local, _) if has_stub => Keeping::Stub,
            (Place::Shared, None) => Keeping::Persistent,
            (Place::Shared, Some(_)) if forwards => Keeping::Forwarded,
            (Place::Local | Place::Shared, _) => Keeping::Memory,
        };
        Stored {
            keeping,
            vacancy: rows.vacancy(),
            has_stub,
            callers: row.callers.clone(),
            state: row.state.clone(),
            begun_with: row.begun_with.clone(),
            input: row.input.clone().map(|record| (record, row.sends)),
            order: row.input_order,
            earlier,
        }
    }

    /// What is said if the message cancels the conversation.
    fn cancelled(&self, ctx: &Ctx, flow: &Arc<dyn AnyFlow>, callers: &[Caller]) -> Option<&Content> {
        let answer = Answer::of(ctx);
        let flow = self.flows.get(flow.name())?;
        let callers = callers.iter().rev().filter_map(|caller| self.flows.get(&caller.flow));
        std::iter::once(flow).chain(callers).find_map(|flow| flow.cancel(&answer))
    }

    /// What is left of a message whose effects are stored already, if only its acknowledgement is missing.
    pub(super) fn done(&self, ctx: &Ctx, rows: &Rows) -> Option<EndedConversation> {
        let ended = |row: &&Checkpoint| row.phase == CheckpointPhase::Ended && is_own(ctx, row);
        let local = rows.local.as_ref().filter(ended).is_some();
        let shared = rows.shared.as_ref().filter(ended).is_some_and(|row| row.earlier.is_empty());
        let mut vacancy = rows.vacancy();
        if !local {
            vacancy.set(Place::Local, None);
        }
        if !shared {
            vacancy.set(Place::Shared, None);
        }
        (local || shared).then(|| EndedConversation { key: ctx.conversation(), vacancy })
    }

    /// Forgets what this process noted of a conversation that others had since. It comes before anything else under a turn:
    /// afterwards this process is the one that had the chat last. If the store does not say, it is forgotten as well.
    pub(crate) async fn forget_stale(&self, turn: &Turn, key: &ConversationKey, now: Timestamp) {
        if self.handover().is_none() {
            return;
        }
        let local = self.store(Place::Local).checkpoint(key).await.unwrap_or_default();
        let Some(revision) = local.as_ref().map(|row| row.revision) else { return };
        let mut rows = Rows { local, shared: None };
        if !self.found(&rows, turn, key, now).is_stale() {
            return;
        }
        rows.shared = self.store(Place::Shared).checkpoint(key).await.unwrap_or_default();
        if self.found(&rows, turn, key, now).is_stale() {
            drop(self.live.take(key));
            let _ = self.store(Place::Local).clear_checkpoint(turn, key, revision).await;
        }
    }

    fn tell_resumed(&self, ctx: &Ctx, row: &Checkpoint) {
        if self.handover().is_some() && row.session != *ctx.scope().turn().session() {
            let (key, name) = (ctx.conversation(), row.flow.clone());
            let outcome = HandoverOutcome::Resumed;
            ctx.world().events.emit(BotEvent::Handover { key, name, outcome });
        }
    }
}

/// Where the step of a row waits, with nothing changed.
fn waiting(row: &Checkpoint) -> Wait {
    let (step, midway) = (row.step.clone(), row.midway.clone());
    Wait { step, state: Kept::Unchanged, deadline: row.deadline, midway }
}

/// Where a stored conversation begins.
fn start(ctx: &Ctx, row: &Checkpoint, feed: Feed, live: Option<Live>) -> Start {
    let answer = (feed != Feed::Again).then(|| Answer::of(ctx));
    if let (Some(live), Some(answer)) = (live, &answer) {
        return Start::Live { task: live.task, fed: Fed::Answer(answer.clone()) };
    }
    if is_own(ctx, row) {
        ctx.scope().resume_sends(row.sends);
    }
    match (&row.midway, &answer) {
        // The step runs again up to its first question, whose answer is there: what it sent before is sent under the same
        // keys.
        (Some(midway), Some(_)) => {
            if let Some(base) = midway.key_base.clone() {
                ctx.scope().borrow_keys(KeyPosition { base, next: midway.first_send });
            }
        }
        // The step begins again. This message's own keys may be those of what it sent when it was an answer.
        (Some(_), None) => {
            if let Some(own) = ctx.scope().key_position() {
                let base = format!("{}:r{}", own.base, row.revision.0);
                ctx.scope().borrow_keys(KeyPosition { base, next: 0 });
            }
        }
        (None, _) => {}
    }
    Start::At { step: row.step.clone(), version: row.version, state: row.state.clone(), answer }
}
