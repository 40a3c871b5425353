use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Egress, Sent, TurnScope, dead};
use crate::bot::OnAmbiguous;
use crate::core::error::{Cas, ChannelError, ErrorClass, Phase, SendError, StoreError};
use crate::core::id::SendKey;
use crate::core::journal::{Change, ErrorNote, OutboxRecord, Stored};
use crate::core::provider::{Resolution, Resolve, SendReceipt, SendRequest};
use crate::events::{BotEvent, DeadKind};
use crate::lanes::Lane;
use crate::world::{OpenJournal, World};

/// What an attempt came to.
pub(crate) enum Attempted {
    Sent(OutboxRecord),
    /// The next attempt is due later.
    Waiting(Stored<OutboxRecord>),
    Dead(OutboxRecord),
    /// Nobody knows whether it arrived, and it is not sent again.
    Unknown,
    /// Somebody else took the record over.
    Lost,
}

impl Egress {
    /// Charges an attempt of a waiting send; `None` if somebody else was faster.
    pub(super) async fn start_attempt(
        &self,
        open: &OpenJournal,
        stored: &Stored<OutboxRecord>,
    ) -> Result<Option<Stored<OutboxRecord>>, StoreError> {
        let Ok(record) = stored.record.start(&open.journal.owner(), self.world.now()) else {
            return Ok(None);
        };
        if record.attempts > 1 {
            self.world.metrics.outbox_retried.increment();
        }
        let outcome = open.journal.commit_one(Change::update(stored.version, &record)).await?;
        Ok(outcome.applied().map(|version| Stored { record, version }))
    }

    /// Attempts a send that is in flight, and again until the time for waiting is over.
    pub(super) async fn attempt_inline(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        started: Stored<OutboxRecord>,
        lane: Lane<'_>,
    ) -> Result<Sent, SendError> {
        let key = started.record.key.clone();
        let attempted = self.attempt(open, scope, started).await?;
        self.retry_inline(open, scope, key, attempted, lane).await
    }

    /// As [`attempt_inline`](Self::attempt_inline), for a send that a dead process left in flight.
    pub(super) async fn resolve_inline(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        stored: Stored<OutboxRecord>,
        lane: Lane<'_>,
    ) -> Result<Sent, SendError> {
        let key = stored.record.key.clone();
        let attempted = resolve(&self.world, open, stored, &ended_in_flight()).await?;
        self.retry_inline(open, scope, key, attempted, lane).await
    }

    async fn retry_inline(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        key: SendKey,
        mut attempted: Attempted,
        lane: Lane<'_>,
    ) -> Result<Sent, SendError> {
        let clock = &self.world.seams.clock;
        let give_up = self.world.now() + open.config.outbox.inline_max;
        let mut retrying = None;
        loop {
            let waiting = match attempted {
                Attempted::Waiting(waiting) => waiting,
                Attempted::Sent(record) => {
                    drop(lane);
                    let sent = Sent { key, message: record.message, deduped: false };
                    self.after_sent(&record.chat, &record.content, &sent).await;
                    return Ok(sent);
                }
                Attempted::Unknown => return Ok(Sent { key, message: None, deduped: false }),
                Attempted::Dead(record) => return Err(dead(&record)),
                Attempted::Lost => return Err(SendError::Deferred { key }),
            };
            let due = waiting.record.due.unwrap_or_else(|| self.world.now());
            if due > give_up {
                self.world.metrics.outbox_deferred.increment();
                return Err(SendError::Deferred { key });
            }
            retrying.get_or_insert_with(|| self.inline.begin(&key));
            clock.sleep(due.since(self.world.now())).await;
            if let Some(scope) = scope {
                scope.turn().check()?;
            }
            attempted = match self.start_attempt(open, &waiting).await? {
                // Apart, because it is seldom: a send that arrives at once needs less memory.
                Some(started) => Box::pin(self.attempt(open, scope, started)).await?,
                None => Attempted::Lost,
            };
        }
    }

    /// Calls the channel once and records what it said.
    async fn attempt(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        started: Stored<OutboxRecord>,
    ) -> Result<Attempted, StoreError> {
        let record = &started.record;
        let mut request = SendRequest::new(&record.chat, &record.content);
        if self.world.provider.capabilities().resolve != Resolve::Never {
            request = request.with_token(&record.key);
        }
        let in_flight = InFlight { world: &self.world, started: Some(&started) };
        let result = self.world.provider.send(request).await;
        in_flight.answered();
        match result {
            Ok(receipt) => record_sent(&self.world, open, scope, started, receipt).await,
            Err(error) if error.phase == Phase::Unknown => {
                Box::pin(resolve(&self.world, open, started, &error)).await
            }
            Err(error) => Box::pin(record_failure(&self.world, open, started, &error, None)).await,
        }
    }

    /// One attempt of a send that is due, in the background.
    pub(crate) async fn attempt_due(
        &self,
        open: &OpenJournal,
        due: Stored<OutboxRecord>,
    ) -> Result<(), StoreError> {
        if self.inline.contains(&due.record.key) {
            return Ok(());
        }
        let lane = self.lanes.enter(&due.record.chat).await;
        let Some(started) = self.start_attempt(open, &due).await? else { return Ok(()) };
        if let Attempted::Sent(record) = self.attempt(open, None, started).await? {
            drop(lane);
            let sent = Sent { key: record.key.clone(), message: record.message.clone(), deduped: false };
            self.after_sent(&record.chat, &record.content, &sent).await;
        }
        Ok(())
    }

    /// Decides what becomes of a send that a dead process left in flight. In the chat's lane: the message that it answers
    /// may be running again, and its next sends must not overtake this one.
    pub(crate) async fn settle_orphan(
        &self,
        open: &OpenJournal,
        orphan: Stored<OutboxRecord>,
    ) -> Result<(), StoreError> {
        let _lane = self.lanes.enter(&orphan.record.chat).await;
        resolve(&self.world, open, orphan, &ended_in_flight()).await.map(|_| ())
    }
}

fn ended_in_flight() -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::Unknown, "the process ended while the channel was called")
}

async fn record_sent(
    world: &Arc<World>,
    open: &OpenJournal,
    scope: Option<&TurnScope>,
    started: Stored<OutboxRecord>,
    receipt: SendReceipt,
) -> Result<Attempted, StoreError> {
    let Ok(record) = started.record.sent(receipt.message, world.now()) else { return Ok(Attempted::Lost) };
    let change = Change::update(started.version, &record);
    let change = match scope {
        Some(scope) => scope.defer(change),
        None => Some(change),
    };
    if let Some(change) = change {
        let outcome = open.journal.commit_one(change).await?;
        world.count_stale(&[outcome]);
    }
    Ok(Attempted::Sent(record))
}

/// Records an attempt that surely delivered nothing. `retry_in` replaces the backoff.
async fn record_failure(
    world: &World,
    open: &OpenJournal,
    started: Stored<OutboxRecord>,
    error: &ChannelError,
    retry_in: Option<Duration>,
) -> Result<Attempted, StoreError> {
    let config = &open.config.outbox;
    let attempts = started.record.attempts;
    let retry_at = (error.retryable && attempts <= config.retries).then(|| {
        let backoff = || config.backoff.delay(attempts, error.retry_after, &*world.seams.entropy);
        world.now() + retry_in.unwrap_or_else(backoff)
    });
    let Ok(record) = started.record.fail(ErrorNote::from(error), retry_at, world.now()) else {
        return Ok(Attempted::Lost);
    };
    let Cas::Applied(version) = open.journal.commit_one(Change::update(started.version, &record)).await?
    else {
        world.metrics.stale_leases.increment();
        return Ok(Attempted::Lost);
    };
    if retry_at.is_some() {
        return Ok(Attempted::Waiting(Stored { record, version }));
    }
    world.metrics.outbox_dead.increment();
    let (id, error) = (record.key.to_string(), error.to_string());
    world.events.emit(BotEvent::Dead { kind: DeadKind::Outbound, id, error });
    Ok(Attempted::Dead(record))
}

/// Decides what becomes of an attempt whose answer was lost: asks the channel if it can say, else follows the policy.
async fn resolve(
    world: &Arc<World>,
    open: &OpenJournal,
    started: Stored<OutboxRecord>,
    error: &ChannelError,
) -> Result<Attempted, StoreError> {
    let record = &started.record;
    match world.provider.capabilities().resolve {
        Resolve::Lookup => match world.provider.resolve(&record.key, &record.chat).await {
            Resolution::Sent(receipt) => return record_sent(world, open, None, started, receipt).await,
            Resolution::NotSent => {
                return record_failure(world, open, started, error, Some(Duration::ZERO)).await;
            }
            Resolution::Unknown => {}
        },
        Resolve::Dedupe { window } if world.now().since(record.created) < window => {
            return record_failure(world, open, started, error, None).await;
        }
        Resolve::Never | Resolve::Echo { .. } | Resolve::Dedupe { .. } => {}
    }
    world.metrics.outbox_ambiguous.increment();
    let resent = open.config.outbox.on_ambiguous == OnAmbiguous::Resend;
    let (key, chat) = (record.key.clone(), record.chat.clone());
    world.events.emit(BotEvent::Ambiguous { key, chat, resent });
    if resent {
        return record_failure(world, open, started, error, None).await;
    }
    let Ok(record) = started.record.give_up_unknown(world.now()) else { return Ok(Attempted::Lost) };
    let outcome = open.journal.commit_one(Change::update(started.version, &record)).await?;
    world.count_stale(&[outcome]);
    Ok(if outcome == Cas::Lost { Attempted::Lost } else { Attempted::Unknown })
}

/// A call of the channel. If it is dropped before the answer came, the send is ambiguous like after a crash, and that is
/// settled in the background.
struct InFlight<'a> {
    world: &'a Arc<World>,
    started: Option<&'a Stored<OutboxRecord>>,
}

impl InFlight<'_> {
    fn answered(mut self) {
        self.started = None;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let Some(started) = self.started.cloned() else { return };
        let world = Arc::clone(self.world);
        self.world.spawn_tracked("settle-dropped-send", async move {
            let Some(open) = &world.journal else { return };
            let error = ChannelError::new(
                ErrorClass::Transient,
                Phase::Unknown,
                "the call of the channel was dropped",
            );
            if let Err(error) = resolve(&world, open, started, &error).await {
                world.events.error("settling a send that was dropped", &error);
            }
        });
    }
}

/// Sends whose retries somebody waits for.
#[derive(Default)]
pub(super) struct InlineRetries(Mutex<HashSet<SendKey>>);

struct InlineRetry<'a> {
    retries: &'a InlineRetries,
    key: SendKey,
}

impl InlineRetries {
    fn begin(&self, key: &SendKey) -> InlineRetry<'_> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        InlineRetry { retries: self, key: key.clone() }
    }

    fn contains(&self, key: &SendKey) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }
}

impl Drop for InlineRetry<'_> {
    fn drop(&mut self) {
        self.retries.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
