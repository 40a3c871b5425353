use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument;

use super::left::{Begins, LOOKING, StillLeft};
use super::queues::Takes;
use super::{Turns, Work};
use crate::bot::OnHandlerError;
use crate::core::coordinator::Turn;
use crate::core::error::{Cas, CoordinationUnavailable, CoordinationUnavailableReason, StoreError};
use crate::core::id::ConversationKey;
use crate::core::journal::{Change, InboxRecord, InboxState, Stored};
use crate::core::kv::Version;
use crate::core::time::Timestamp;
use crate::dispatch::{EndedConversation, Handled, Verdict, panic_text};
use crate::egress::{TurnScope, Unrecorded};
use crate::events::{BotEvent, describe};
use crate::scheduler::key_base;
use crate::world::OpenJournal;

const TAKING: &str = "taking a turn";

/// A message whose handler ended, before that is durable.
pub(super) struct Finished {
    pub(super) turn: Option<Turn>,
    pub(super) work: Work,
    pub(super) verdict: Verdict,
    /// That its sends arrived.
    pub(super) sent: Unrecorded,
    pub(super) ended: Option<EndedConversation>,
    /// Another message of the chat is handled under the same turn.
    pub(super) keeps_turn: bool,
    /// What arrived earlier in the chat is left, or may be.
    pub(super) leaves: bool,
}

impl Finished {
    fn unhandled(turn: Option<Turn>, work: Work, verdict: Verdict) -> Self {
        let (sent, ended) = Default::default();
        let leaves = turn.as_ref().is_some_and(|turn| !turn.was_given_back());
        Self { turn, work, verdict, sent, ended, keeps_turn: false, leaves }
    }

    /// Its end is not durable: the message may run again, here or elsewhere, and must then know what it ended.
    fn not_over(&mut self) {
        self.leaves = true;
        self.ended = None;
    }
}

/// When a message is tried again.
pub(super) enum Again {
    /// After a failure of its handler; other replicas may handle what comes after it meanwhile.
    After { delay: Duration, error: String },
    /// After a failure that another replica may not have.
    Elsewhere { delay: Duration, error: String },
    /// The attempt did not count, because the turn or the lease was lost: as soon as the lease is held.
    Held,
}

impl Again {
    fn lets_others_pass(&self) -> bool {
        matches!(self, Self::After { .. })
    }
}

impl Turns {
    pub(super) fn start_worker(self: &Arc<Self>, key: ConversationKey, permit: Option<OwnedSemaphorePermit>) {
        let turns = Arc::clone(self);
        self.world.spawn_tracked("turn", async move { turns.serve(key, permit).await });
    }

    /// Serves a conversation until it has nothing to do.
    async fn serve(&self, key: ConversationKey, permit: Option<OwnedSemaphorePermit>) {
        let mut running = match permit {
            Some(permit) => Some(permit),
            None => Arc::clone(&self.running).acquire_owned().await.ok(),
        };
        let (mut finished, mut leaves) = (None::<Finished>, false);
        loop {
            let next = match &finished {
                Some(_) => self.queues.next(&key),
                None => match self.queues.next_or_dismiss(&key) {
                    Ok(work) => Some(work),
                    Err(unused) if leaves => return self.abandon(unused),
                    Err(_) => return,
                },
            };
            let next = match next {
                Some(work) if self.world.journal.is_some() && self.world.stopping.is_cancelled() => {
                    leaves = true;
                    if let Some(stored) = work.record.as_ref().filter(|_| !work.under_turn) {
                        self.leave_to_next_start(stored).await;
                    }
                    None
                }
                next => next,
            };
            if let Some(finished) = &mut finished {
                finished.leaves |= leaves;
            }
            if let Some(work) = self.settle(finished.take(), next).await {
                finished = Some(self.run_with_retries(&key, work, &mut running).await);
            }
        }
    }

    /// With an inbox, what has not begun when the bot stops is left to the next start. If it was to begin at once, its
    /// attempt was charged when it arrived.
    pub(crate) async fn leave_to_next_start(&self, stored: &Stored<InboxRecord>) {
        let Some(open) = &self.world.journal else { return };
        let Ok(released) = stored.record.release(self.world.now()) else { return };
        let change = Change::update(stored.version, &released);
        match open.journal.commit_patiently(vec![change], &self.world.abort).await {
            Ok(outcomes) => self.world.count_stale(&outcomes),
            Err(error) => self.world.events.error("leaving a message to the next start", &error),
        }
    }

    /// Runs a message until nothing is left to try. What fails is tried again in its place: the answers that follow it in
    /// the conversation must not be taken for answers to something else. Meanwhile the place to run is given back.
    async fn run_with_retries(
        &self,
        key: &ConversationKey,
        mut work: Work,
        running: &mut Option<OwnedSemaphorePermit>,
    ) -> Finished {
        loop {
            let mut finished = self.run(key, work).await;
            let Some(again) = self.again(&finished) else { return finished };
            if again.lets_others_pass() {
                drop(self.queues.take_back(key, Takes::No));
                // Whoever looks for what is left takes this message too.
                finished.leaves = finished.leaves && self.is_left_by_dead(key).await;
            } else {
                self.abandon(self.queues.take_back(key, Takes::Later));
                finished.leaves = true;
            }
            give_back(&mut finished);
            // Before the next attempt, which asks the outbox what it need not send again.
            self.world.commit_sent(std::mem::take(&mut finished.sent)).await;
            *running = None;
            finished.work.alone = None;
            let rested = async {
                self.rest(&again).await;
                Arc::clone(&self.running).acquire_owned().await.ok()
            };
            *running = tokio::select! {
                biased;
                () = self.world.stopping.cancelled() => return match again {
                    Again::After { error, .. } | Again::Elsewhere { error, .. } => {
                        Finished { verdict: Verdict::Postponed(error), ..finished }
                    }
                    Again::Held => finished,
                },
                permit = rested => permit,
            };
            let lapses = self.lapses();
            match self.begin_again(&finished.work, &again).await {
                Some(stored) => work = Work { record: Some(stored), replay: true, lapses, ..finished.work },
                None => return finished,
            }
        }
    }

    /// When a message that failed or was released is tried again; `None` if it is not.
    pub(super) fn again(&self, finished: &Finished) -> Option<Again> {
        let config = &self.world.journal.as_ref()?.config.inbox;
        let attempts = finished.work.record.as_ref()?.record.attempts;
        if finished.work.under_turn && matches!(finished.verdict, Verdict::Failed(_)) {
            // It has not begun here.
            return Some(Again::Held);
        }
        let (error, of_handler) = match &finished.verdict {
            Verdict::Released => return (!self.world.abort.is_cancelled()).then_some(Again::Held),
            Verdict::Failed(error) => (error.clone(), false),
            Verdict::HandlerFailed(error) if config.on_handler_error == OnHandlerError::Retry => {
                (error.clone(), true)
            }
            _ => return None,
        };
        if attempts >= config.max_attempts {
            return None;
        }
        let delay = config.backoff.delay(attempts, None, &*self.world.seams.entropy);
        Some(match of_handler {
            true => Again::After { delay, error },
            false => Again::Elsewhere { delay, error },
        })
    }

    async fn rest(&self, again: &Again) {
        let Some(open) = &self.world.journal else { return };
        match again {
            Again::After { delay, .. } | Again::Elsewhere { delay, .. } => {
                self.world.seams.clock.sleep(*delay).await;
            }
            Again::Held => {
                self.world.seams.clock.sleep(open.config.poll).await;
                open.journal.lease().held().await;
            }
        }
    }

    /// How often the lease lapsed so far.
    fn lapses(&self) -> u64 {
        self.world.journal.as_ref().map_or(0, |open| open.journal.lease().lapses())
    }

    /// Begins the next attempt of a message; `None` if it is not this process's any more. It is charged unless the one
    /// before did not count.
    async fn begin_again(&self, work: &Work, again: &Again) -> Option<Stored<InboxRecord>> {
        let (open, stored) = (self.world.journal.as_ref()?, work.record.as_ref()?);
        if work.under_turn {
            return Some(stored.clone());
        }
        let (owner, max, now) = (open.journal.owner(), open.config.inbox.max_attempts, self.world.now());
        let failed = match again {
            Again::After { error, .. } | Again::Elsewhere { error, .. } => Some(error.as_str()),
            Again::Held => None,
        };
        self.write(stored, stored.record.begin_again(failed, &owner, max, now).ok()?).await
    }

    /// Makes durable that a message is finished, and in the same commit that the next one begins. Returns the next one
    /// if it may run.
    pub(super) async fn settle(
        &self,
        mut finished: Option<Finished>,
        mut next: Option<Work>,
    ) -> Option<Work> {
        if let Some(open) = &self.world.journal {
            let lapses = self.lapses();
            let ending = finished.as_ref().and_then(|finished| self.ending(open, finished));
            let (ending, letter) = self.conclude(ending);
            let beginning = next.as_ref().and_then(|work| beginning(open, work, self.world.now()));
            let Unrecorded { mut changes, answered } =
                finished.as_mut().map(|finished| std::mem::take(&mut finished.sent)).unwrap_or_default();
            changes.extend(letter.iter().map(Change::insert));
            changes.extend(
                ending.iter().chain(&beginning).map(|stored| Change::update(stored.version, &stored.record)),
            );
            let outcomes = match changes.is_empty() {
                true => Ok(Vec::new()),
                false => open.journal.commit_patiently(changes, &self.world.abort).await,
            };
            match outcomes {
                Ok(mut outcomes) => {
                    self.world.metrics.note_recorded(&answered, self.world.monotonic());
                    if let Some(beginning) = beginning {
                        let outcome = outcomes.pop();
                        next = next.and_then(|work| begun(work, beginning, outcome, lapses));
                        next = next.filter(|work| !work.under_turn || self.world.coordinated);
                    }
                    self.world.count_stale(&outcomes);
                    let is_over =
                        ending.as_ref().is_none_or(|ending| is_over(&ending.record, outcomes.last()));
                    if let Some(finished) = finished.as_mut().filter(|_| !is_over) {
                        finished.not_over();
                    }
                    let ended = ending.filter(|_| matches!(outcomes.last(), Some(Cas::Applied(_))));
                    self.tell_ended(ended.map(|ended| ended.record), letter);
                }
                Err(error) => {
                    // Nothing is lost: what is not acknowledged runs again, and what has not begun waits in the inbox.
                    self.world.events.error("finishing a message in the inbox", &error);
                    next = None;
                    if let Some(finished) = &mut finished {
                        finished.not_over();
                    }
                }
            }
        }
        if let Some(mut finished) = finished {
            let key = finished.work.inbound.conversation();
            finished.leaves |= self.queues.has_unplaced(&key, next.is_some());
            self.clean_up(finished).await;
        }
        next
    }

    /// The record of a finished message as it is to become.
    fn ending(&self, open: &OpenJournal, finished: &Finished) -> Option<Stored<InboxRecord>> {
        let stored = finished.work.record.as_ref().filter(|_| !finished.work.under_turn)?;
        let config = &open.config.inbox;
        let now = self.world.now();
        let retry = |error: &str| {
            let delay = config.backoff.delay(stored.record.attempts, None, &*self.world.seams.entropy);
            stored.record.fail(error, now + delay, config.max_attempts, now)
        };
        let record = match &finished.verdict {
            Verdict::Taken => return None,
            Verdict::Done => stored.record.finish(now),
            Verdict::Released => stored.record.release(now),
            Verdict::Failed(error) => retry(error),
            // Back to its place in the order of arrival.
            Verdict::Postponed(error) => stored
                .record
                .fail(error, now, config.max_attempts, now)
                .and_then(|failed| failed.adopt(&open.journal.owner(), config.max_attempts, now)),
            Verdict::HandlerFailed(error) => match config.on_handler_error {
                OnHandlerError::Ack => stored.record.finish(now),
                OnHandlerError::Retry => retry(error),
                OnHandlerError::Dead => stored.record.fail(error, now, 0, now),
            },
        };
        record.ok().map(|record| Stored { record, version: stored.version })
    }

    /// What becomes of a record that is over; see [`Scheduler::conclude`](crate::scheduler::Scheduler::conclude).
    fn conclude(
        &self,
        ending: Option<Stored<InboxRecord>>,
    ) -> (Option<Stored<InboxRecord>>, Option<InboxRecord>) {
        let Some(Stored { record, version }) = ending else { return (None, None) };
        let (record, letter) = self.dispatcher.scheduler().conclude(record, self.world.now());
        (Some(Stored { record, version }), letter)
    }

    fn tell_ended(&self, ended: Option<InboxRecord>, letter: Option<InboxRecord>) {
        let Some(ended) = ended else { return };
        self.dispatcher.scheduler().wake_if_due(&ended);
        let ended = letter.unwrap_or(ended);
        if ended.state == InboxState::Dead {
            self.world.tell_dead_message(ended);
        }
    }

    /// What comes after the acknowledgement. Gives the turn and the share of the backlog back.
    async fn clean_up(&self, mut finished: Finished) {
        if let (Some(turn), Verdict::Done | Verdict::HandlerFailed(_), Some(ended)) =
            (&finished.turn, &finished.verdict, finished.ended.take())
        {
            self.dispatcher.forget_ended(turn, ended).await;
        }
        if !finished.keeps_turn {
            give_back(&mut finished);
        }
    }

    async fn run(&self, key: &ConversationKey, mut work: Work) -> Finished {
        let (placed, mut waited) = (work.placed.take(), false);
        let taking = async {
            let turn;
            (turn, waited) = self.next_turn(key, placed).await?;
            Ok(turn)
        };
        let turn = match self.within_turn_wait(key, taking).await {
            Ok(turn) => {
                self.world.events.over(TAKING);
                turn
            }
            Err(error) => {
                self.world.events.trouble(TAKING, &error);
                return Finished::unhandled(None, work, Verdict::Failed(describe(&error)));
            }
        };
        if !self.world.coordinated {
            return self.run_under(turn, key, work).await;
        }
        if !work.under_turn {
            match self.is_ours(&turn, &work, waited).await {
                Ok(ours) => work.under_turn = !ours,
                Err(error) => return self.unlooked(turn, work, &error),
            }
        }
        // What arrived after this message may be left as well, by who had a ticket before it had this one: only what has just
        // arrived comes after all of that.
        let leaves = !turn.was_given_back() && (waited || work.replay);
        let released = |turn, work| {
            // It is tried again as soon as possible, whoever has the turn then.
            Finished { leaves: true, ..Finished::unhandled(Some(turn), work, Verdict::Released) }
        };
        if let Err(StillLeft) = self.finish_left(&turn, key, &work).await {
            return released(turn, work);
        }
        if let Some(open) = self.world.journal.as_ref().filter(|_| work.under_turn) {
            // As late as can be: its attempt is charged, and it is not what ends the process while it waits for others.
            self.set_apart(open, &mut work).await;
            if self.world.stopping.is_cancelled() {
                return released(turn, work);
            }
            match self.take_over(open, &turn, &mut work).await {
                Ok(Begins::Now) => {}
                Ok(Begins::NotAtAll) => return Finished::unhandled(Some(turn), work, Verdict::Taken),
                Ok(Begins::WithAnotherTurn) => return released(turn, work),
                Err(error) => return self.unlooked(turn, work, &error),
            }
        }
        Finished { leaves, ..self.run_under(turn, key, work).await }
    }

    /// Nobody knows whether a message that has the turn may run.
    fn unlooked(&self, turn: Turn, work: Work, error: &StoreError) -> Finished {
        self.world.trouble(LOOKING, error);
        let verdict = match work.under_turn && !error.retry() {
            // The sweeper tells of what nobody can read.
            true => Verdict::Taken,
            false => Verdict::Failed(describe(error)),
        };
        Finished::unhandled(Some(turn), work, verdict)
    }

    /// Whether the message is still this process's, or again. One that waited for its turn may have been handled by the replica
    /// that had the turn before: see [`finish_left`](Self::finish_left).
    async fn is_ours(&self, turn: &Turn, work: &Work, waited: bool) -> Result<bool, StoreError> {
        /// In so little time nobody finds a message and handles it.
        const AT_ONCE: Duration = Duration::from_millis(2);
        let (Some(open), Some(stored)) = (&self.world.journal, &work.record) else { return Ok(true) };
        if turn.previous_holder() == Some(turn.session()) {
            return Ok(true);
        }
        if !waited && self.world.now() < stored.record.changed + AT_ONCE {
            return Ok(true);
        }
        let now = open.journal.inbox().get(&stored.record.id).await?;
        Ok(now.is_some_and(|now| now.version == stored.version))
    }

    /// Handles a message under a turn of its chat.
    pub(super) async fn run_under(&self, turn: Turn, key: &ConversationKey, work: Work) -> Finished {
        let record = work.record.as_ref().map(|stored| stored.record.id.clone());
        let base =
            record.as_ref().map(|record| key_base(&work.inbound).unwrap_or_else(|| record.to_string()));
        let span = tracing::info_span!("message", record = base.as_deref(), chat = %work.inbound.chat);
        let scope = TurnScope::new(Arc::clone(&self.world), turn.clone(), record, base, work.replay)
            .begun(work.record.as_ref().map(|stored| stored.version), work.lapses);
        let scope = Arc::new(scope);
        let began = self.world.monotonic();
        let handled = if scope.check().await.is_err() {
            Handled { verdict: Verdict::Released, ended: None }
        } else {
            let handling = AssertUnwindSafe(self.dispatcher.handle(&scope, &work)).catch_unwind();
            let handling = pin!(handling.instrument(span));
            tokio::select! {
                biased;
                handled = scope.drive(handling) => handled.unwrap_or_else(|panic| self.panicked(&*panic)),
                () = self.world.abort.cancelled() => Handled { verdict: Verdict::Released, ended: None },
            }
        };
        self.world.metrics.handling.observe(self.world.monotonic().saturating_sub(began));
        if work.record.is_some() {
            self.world.metrics.durable_wait.observe(work.journaled_in + scope.waited());
        }
        let mut verdict = handled.verdict;
        if scope.journal_failed() {
            verdict = Verdict::Failed("the outbox could not be written".to_owned());
        }
        if scope.lease_lost() {
            verdict = Verdict::Released;
        }
        if let Err(lost) = turn.check() {
            self.world
                .events
                .emit(BotEvent::LeaseLost { key: key.clone(), reason: format!("{:?}", lost.reason) });
            verdict = Verdict::Released;
        }
        let (turn, sent, ended) = (Some(turn), scope.close(), handled.ended);
        Finished { turn, work, verdict, sent, ended, keeps_turn: false, leaves: false }
    }

    /// A turn of the conversation for something other than its next message.
    pub(crate) async fn take_turn(&self, key: &ConversationKey) -> Result<Turn, CoordinationUnavailable> {
        self.within_turn_wait(key, async { self.enter(key).await?.granted().await }).await
    }

    async fn within_turn_wait(
        &self,
        key: &ConversationKey,
        taking: impl Future<Output = Result<Turn, CoordinationUnavailable>>,
    ) -> Result<Turn, CoordinationUnavailable> {
        let turn = tokio::select! {
            biased;
            turn = taking => turn?,
            () = self.world.seams.clock.sleep(self.coordination.config.turn_wait) => {
                let reason = CoordinationUnavailableReason::Timeout;
                return Err(CoordinationUnavailable { reason, source: None });
            }
        };
        if self.world.coordinated && turn.previous_holder() != Some(turn.session()) {
            // What it left in the outbox must not be overtaken.
            self.world.backlog.note(&key.chat);
        }
        self.dispatcher.conversations().forget_stale(&turn, key, self.world.now()).await;
        Ok(turn)
    }

    fn panicked(&self, panic: &(dyn Any + Send)) -> Handled {
        let error = panic_text(panic);
        self.world
            .events
            .emit(BotEvent::Error { context: "handling a message".to_owned(), error: error.clone() });
        Handled { verdict: Verdict::HandlerFailed(error), ended: None }
    }
}

/// Whether nothing is left to do of a record that became this, if it did.
fn is_over(record: &InboxRecord, outcome: Option<&Cas<Version>>) -> bool {
    matches!(outcome, Some(Cas::Applied(_))) && (record.is_over() || record.state == InboxState::Scheduled)
}

/// Gives the turn of a message back.
fn give_back(finished: &mut Finished) {
    if let Some(turn) = finished.turn.take() {
        if finished.leaves { turn.abandon() } else { turn.release() }
    }
}

/// The record of a message that may run, as it is to become; `None` if it was born working, or is another's.
fn beginning(open: &OpenJournal, work: &Work, now: Timestamp) -> Option<Stored<InboxRecord>> {
    let stored = work.record.as_ref().filter(|_| !work.under_turn)?;
    let record = stored.record.start(&open.journal.owner(), now).ok()?;
    Some(Stored { record, version: stored.version })
}

/// The message, if its beginning is durable. If somebody else took it over meanwhile, it begins under its turn, if they do not
/// handle it before.
fn begun(
    mut work: Work,
    beginning: Stored<InboxRecord>,
    outcome: Option<Cas<Version>>,
    lapses: u64,
) -> Option<Work> {
    let Cas::Applied(version) = outcome? else {
        work.under_turn = true;
        return Some(work);
    };
    work.replay |= beginning.record.attempts > 1;
    work.record = Some(Stored { version, ..beginning });
    work.lapses = lapses;
    Some(work)
}
