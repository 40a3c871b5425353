use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use super::unfinished::{Beginning, Call};
use super::{Egress, TurnScope};
use crate::core::error::{Cas, ChannelError, ErrorClass, Phase, SendError, StoreError};
use crate::core::id::ChatId;
use crate::core::journal::{Ambiguity, Change, ErrorNote, OutboxRecord, Stored};
use crate::core::kv::Version;
use crate::core::provider::{Resolution, Resolve, SendReceipt, SendRequest};
use crate::core::time::Timestamp;
use crate::events::{BotEvent, DeadKind};
use crate::world::{OpenJournal, World};

/// How old a send may be whose attempts do not count, because the channel takes none now.
const LIMITED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// How long nothing is sent after the channel refused the credentials.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// What is told while it does.
const REFUSED: &str = "sending: the channel refuses the credentials or has blocked the account; messages wait for a day at most, \
                       so start the bot again with new credentials, or settle it with the channel";

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
    /// This process may not call the channel; the attempt did not begin.
    Refused(SendError),
}

impl World {
    /// Calls the channel. If it was called too often, nothing is sent for as long as it asks; if it refuses the credentials,
    /// what waits in the outbox is left alone for a while, and it is told.
    pub(super) async fn call_channel(
        &self,
        chat: &ChatId,
        request: SendRequest<'_>,
    ) -> Result<SendReceipt, ChannelError> {
        let answer = self.provider.send(request).await;
        match &answer {
            Ok(_) => self.events.over(REFUSED),
            Err(error) => {
                if error.class == ErrorClass::Auth {
                    self.events.trouble(REFUSED, error);
                }
                self.note_limit(chat, error);
            }
        }
        answer
    }

    fn note_limit(&self, chat: &ChatId, error: &ChannelError) {
        match (error.class, error.wait()) {
            (ErrorClass::RateLimited, Some(wait)) => {
                tracing::warn!(%chat, all_chats = error.all_chats, ?wait, "the channel was called too often");
                self.pace.pause(Some(chat).filter(|_| !error.all_chats), wait, self.monotonic());
            }
            // Without an outbox, nothing waits.
            (ErrorClass::Auth, _) if self.journal.is_some() => {
                self.pace.pause(None, REFUSED_FOR, self.monotonic());
            }
            _ => {}
        }
    }
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
        let change = open.journal.identified(Change::update(stored.version, &record));
        let (own, with) = (change.clone(), Vec::new());
        let beginning = Beginning { world: &self.world, record: &record, change, with, open: true };
        let outcome = commit(&self.world, open, own).await;
        beginning.close();
        Ok(outcome?.applied().map(|version| Stored { record, version }))
    }

    /// Where the messages of a chat go now; `None` if the store does not say, and then none may go out. To be asked before an
    /// attempt begins: one that has begun counts, and is in doubt if the process ends.
    pub(super) async fn address_of(&self, chat: &ChatId) -> Option<ChatId> {
        // The look tells of its failure itself.
        self.world.named(chat).await.ok().map(|recipient| recipient.address)
    }

    /// Calls the channel once, for a message to this `address`, and records what it said.
    pub(super) async fn attempt(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        started: Stored<OutboxRecord>,
        address: &ChatId,
    ) -> Result<Attempted, StoreError> {
        let mut call = Call { world: &self.world, started, answer: None, open: true };
        let record = &call.started.record;
        let mut request = SendRequest::new(address, &record.content);
        if self.world.provider.capabilities().resolve != Resolve::Never {
            request = request.with_token(&record.key);
        }
        if let Err(lost) = self.may_call(scope).await {
            let released = record.release(self.world.now()).ok();
            let change = released.map(|released| Change::update(call.started.version, &released));
            self.world.backlog.note(&record.chat);
            self.world.commit_in_background(change.into_iter().collect());
            call.close();
            return Ok(Attempted::Refused(lost));
        }
        if matches!(self.world.provider.capabilities().resolve, Resolve::Echo { .. }) {
            self.world.echoes.expect(&record.key);
        }
        let span =
            tracing::info_span!("send", key = %record.key, chat = %record.chat, attempt = record.attempts);
        let answer =
            call.answer.insert(self.world.call_channel(&record.chat, request).instrument(span).await);
        let attempted = conclude(&self.world, open, scope, &call.started, answer).await;
        call.close();
        attempted
    }

    /// The time in which the channel could have said what became of a send is over.
    pub(crate) async fn stop_waiting_for_echo(
        &self,
        open: &OpenJournal,
        stored: &Stored<OutboxRecord>,
    ) -> Result<(), StoreError> {
        resolve(&self.world, open, stored, &no_echo(), true).await.map(|_| ())
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
    if let (Some(echo), Err(_)) = (world.echoes.take(&started.record.key), answer) {
        return record_sent(world, open, None, started, &echo).await;
    }
    match answer {
        Ok(receipt) => record_sent(world, open, scope, started, receipt).await,
        Err(error) if error.phase == Phase::Unknown => {
            Box::pin(resolve(world, open, started, error, false)).await
        }
        Err(error) => Box::pin(record_failure(world, open, started, error, None)).await,
    }
}

pub(super) fn ended_in_flight() -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::Unknown, "the process ended while the channel was called")
}

fn no_echo() -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::Unknown, "no answer came, and no echo of the message")
}

async fn record_sent(
    world: &Arc<World>,
    open: &OpenJournal,
    scope: Option<&TurnScope>,
    started: &Stored<OutboxRecord>,
    receipt: &SendReceipt,
) -> Result<Attempted, StoreError> {
    let answered = world.monotonic();
    let Ok(record) = started.record.sent(receipt.message.clone(), world.now()) else {
        return Ok(Attempted::Lost);
    };
    let change = Change::update(started.version, &record);
    let change = match scope {
        Some(scope) => scope.defer(change, answered),
        None => Some(change),
    };
    if let Some(change) = change {
        world.count_stale(&[commit(world, open, change).await?]);
        world.metrics.note_recorded(&[answered], world.monotonic());
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
    if let Some(wait) = asked_to_wait(&started.record, error, world.now()) {
        // With jitter, so that what was put off together comes back apart.
        let wait = config.backoff.delay(1, Some(wait), &*world.seams.entropy);
        return postpone(world, open, started, error, wait).await;
    }
    let attempts = started.record.attempts;
    let retry_at = started.record.may_retry(error, config.retries).then(|| {
        let backoff = || config.backoff.delay(attempts, error.wait(), &*world.seams.entropy);
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
        world.backlog.note(&record.chat);
        return Ok(Attempted::Waiting(Stored { record, version }));
    }
    world.metrics.outbox_dead.increment();
    let (id, error) = (record.key.to_string(), error.to_string());
    world.events.emit(BotEvent::Dead { kind: DeadKind::Outbound, id, error });
    Ok(Attempted::Dead(record))
}

/// How long to wait because the channel takes nothing now, if the attempt does not count because of that.
fn asked_to_wait(record: &OutboxRecord, error: &ChannelError, now: Timestamp) -> Option<Duration> {
    let wait = match error.class {
        ErrorClass::RateLimited if error.retryable => error.wait(),
        ErrorClass::Auth => Some(REFUSED_FOR),
        _ => None,
    };
    wait.filter(|_| error.phase != Phase::Unknown && now.since(record.created) < LIMITED_FOR)
}

/// Records an attempt that the channel took nothing of, whatever it was.
async fn postpone(
    world: &World,
    open: &OpenJournal,
    started: &Stored<OutboxRecord>,
    error: &ChannelError,
    wait: Duration,
) -> Result<Attempted, StoreError> {
    let now = world.now();
    let Ok(record) = started.record.postpone(ErrorNote::from(error), now + wait, now) else {
        return Ok(Attempted::Lost);
    };
    let Cas::Applied(version) = commit(world, open, Change::update(started.version, &record)).await? else {
        world.metrics.stale_leases.increment();
        return Ok(Attempted::Lost);
    };
    world.backlog.note(&record.chat);
    Ok(Attempted::Waiting(Stored { record, version }))
}

/// Decides what becomes of an attempt whose answer was lost: asks the channel if it can say, else follows the policy.
/// `in_vain` says that its echo was waited for already.
pub(super) async fn resolve(
    world: &Arc<World>,
    open: &OpenJournal,
    started: &Stored<OutboxRecord>,
    error: &ChannelError,
    in_vain: bool,
) -> Result<Attempted, StoreError> {
    let (record, policy) = (&started.record, open.config.outbox.on_ambiguous);
    let channel = world.provider.capabilities().resolve;
    let age = world.now().since(record.created);
    let mut decision = policy.decide(channel, age, in_vain);
    if decision == Ambiguity::LookUp {
        match world.provider.resolve(&record.key, &record.chat).await {
            Resolution::Sent(receipt) => return record_sent(world, open, None, started, &receipt).await,
            Resolution::NotSent => {
                return record_failure(world, open, started, error, Some(Duration::ZERO)).await;
            }
            Resolution::Unknown => decision = policy.decide(channel, age, true),
        }
    }
    let next = match decision {
        Ambiguity::Repeat => return record_failure(world, open, started, error, None).await,
        Ambiguity::AwaitEcho(wait) => record.await_echo(world.now() + wait, world.now()),
        Ambiguity::Resend => {
            let failed = record_failure(world, open, started, error, None).await?;
            if !matches!(failed, Attempted::Lost) {
                tell_ambiguous(world, record, true);
            }
            return Ok(failed);
        }
        Ambiguity::GiveUp | Ambiguity::LookUp => record.give_up_unknown(world.now()),
    };
    let Ok(next) = next else { return Ok(Attempted::Lost) };
    let outcome = commit(world, open, Change::update(started.version, &next)).await?;
    world.count_stale(&[outcome]);
    if outcome == Cas::Lost {
        return Ok(Attempted::Lost);
    }
    if !matches!(decision, Ambiguity::AwaitEcho(_)) {
        tell_ambiguous(world, record, false);
    }
    Ok(Attempted::Unknown)
}

fn tell_ambiguous(world: &World, record: &OutboxRecord, resent: bool) {
    world.metrics.outbox_ambiguous.increment();
    let (key, chat) = (record.key.clone(), record.chat.clone());
    world.events.emit(BotEvent::Ambiguous { key, chat, resent });
}
