use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::unfinished::{Beginning, Call};
use super::{Egress, Sent, TurnScope, dead};
use crate::bot::OnAmbiguous;
use crate::core::error::{Cas, ChannelError, ErrorClass, Phase, SendError, StoreError};
use crate::core::id::SendKey;
use crate::core::journal::{Change, ErrorNote, OutboxRecord, Stored};
use crate::core::kv::Version;
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
        let replaces = Some(stored.version);
        let beginning =
            Beginning { world: &self.world, record: &record, replaces, with: Vec::new(), open: true };
        let outcome = commit(&self.world, open, Change::update(stored.version, &record)).await;
        beginning.close();
        Ok(outcome?.applied().map(|version| Stored { record, version }))
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
        let attempted = resolve(&self.world, open, &stored, &ended_in_flight()).await?;
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
        let mut call = Call { world: &self.world, started, answer: None, open: true };
        let record = &call.started.record;
        let mut request = SendRequest::new(&record.chat, &record.content);
        if self.world.provider.capabilities().resolve != Resolve::Never {
            request = request.with_token(&record.key);
        }
        let answer = call.answer.insert(self.world.provider.send(request).await);
        let attempted = conclude(&self.world, open, scope, &call.started, answer).await;
        call.close();
        attempted
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
        resolve(&self.world, open, &orphan, &ended_in_flight()).await.map(|_| ())
    }
}

/// Commits what must not fail because the backend is away for a while.
async fn commit(world: &World, open: &OpenJournal, change: Change) -> Result<Cas<Version>, StoreError> {
    let outcomes = open.journal.commit_patiently(vec![change], &world.abort).await?;
    Ok(outcomes.into_iter().next().unwrap_or(Cas::Lost))
}

/// Records what the channel answered.
pub(super) async fn conclude(
    world: &Arc<World>,
    open: &OpenJournal,
    scope: Option<&TurnScope>,
    started: &Stored<OutboxRecord>,
    answer: &Result<SendReceipt, ChannelError>,
) -> Result<Attempted, StoreError> {
    match answer {
        Ok(receipt) => record_sent(world, open, scope, started, receipt).await,
        Err(error) if error.phase == Phase::Unknown => Box::pin(resolve(world, open, started, error)).await,
        Err(error) => Box::pin(record_failure(world, open, started, error, None)).await,
    }
}

fn ended_in_flight() -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::Unknown, "the process ended while the channel was called")
}

async fn record_sent(
    world: &Arc<World>,
    open: &OpenJournal,
    scope: Option<&TurnScope>,
    started: &Stored<OutboxRecord>,
    receipt: &SendReceipt,
) -> Result<Attempted, StoreError> {
    let Ok(record) = started.record.sent(receipt.message.clone(), world.now()) else {
        return Ok(Attempted::Lost);
    };
    let change = Change::update(started.version, &record);
    let change = match scope {
        Some(scope) => scope.defer(change),
        None => Some(change),
    };
    if let Some(change) = change {
        world.count_stale(&[commit(world, open, change).await?]);
    }
    Ok(Attempted::Sent(record))
}

/// Records an attempt that surely delivered nothing. `retry_in` replaces the backoff.
async fn record_failure(
    world: &World,
    open: &OpenJournal,
    started: &Stored<OutboxRecord>,
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
    let Cas::Applied(version) = commit(world, open, Change::update(started.version, &record)).await? else {
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
    started: &Stored<OutboxRecord>,
    error: &ChannelError,
) -> Result<Attempted, StoreError> {
    let record = &started.record;
    match world.provider.capabilities().resolve {
        Resolve::Lookup => match world.provider.resolve(&record.key, &record.chat).await {
            Resolution::Sent(receipt) => return record_sent(world, open, None, started, &receipt).await,
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
    let outcome = commit(world, open, Change::update(started.version, &record)).await?;
    world.count_stale(&[outcome]);
    Ok(if outcome == Cas::Lost { Attempted::Lost } else { Attempted::Unknown })
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
