use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::{FORMAT, MAX_ERROR, Owner, Record, Refused, truncated};
use super::revival::{Revival, revived};
use crate::id::RecordId;
use crate::inbound::Inbound;
use crate::kv::Index;
use crate::media::JournaledMedia;
use crate::time::Timestamp;

/// The life of an inbound event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboxState {
    /// The occurrence of a task, due later. Costs no attempt.
    Scheduled,
    /// Taken over and waiting for its turn. Costs no attempt.
    Queued,
    /// Its handler runs, or the process died while it ran. The attempt is charged.
    Working,
    /// An attempt failed before the handlers; the next one is due later.
    Waiting,
    /// Done. Kept for the retention, to recognise redeliveries.
    Done,
    /// Given up after too many attempts.
    Dead,
}

impl InboxState {
    fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Queued => "queued",
            Self::Working => "working",
            Self::Waiting => "waiting",
            Self::Done => "done",
            Self::Dead => "dead",
        }
    }
}

/// One inbound event in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InboxRecord {
    #[serde(deserialize_with = "super::record::format")]
    v: u32,
    /// The record's id.
    pub id: RecordId,
    /// Where it stands.
    pub state: InboxState,
    /// Attempts charged so far.
    pub attempts: u32,
    /// How many of them ended with the process.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub crashes: u32,
    /// Who is to finish it; `None` for waiting and finished records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Its place in the order of arrival, in microseconds.
    pub order: i64,
    /// When it arrived.
    pub received: Timestamp,
    /// When it reached its state.
    pub changed: Timestamp,
    /// When the next attempt is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// Why the last attempt failed, at most about 1,000 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What stands for the live token of the event's media, which then is not in `inbound`. `None` without media, and
    /// where the token is journaled as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media: Option<JournaledMedia>,
    /// How often an operator wanted it processed again; the last ten times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revivals: Vec<Revival<InboxState>>,
    /// The event.
    pub inbound: Arc<Inbound>,
}

impl InboxRecord {
    /// An event that just arrived, owned from birth: waiting for its turn.
    pub fn queued(inbound: Arc<Inbound>, order: i64, owner: Owner, now: Timestamp) -> Self {
        Self {
            v: FORMAT,
            id: inbound.record_id(),
            state: InboxState::Queued,
            attempts: 0,
            crashes: 0,
            owner: Some(owner),
            order,
            received: now,
            changed: now,
            due: None,
            error: None,
            media: None,
            revivals: Vec::new(),
            inbound,
        }
    }

    /// An event that just arrived and starts at once: the same write charges the attempt.
    pub fn working(inbound: Arc<Inbound>, order: i64, owner: Owner, now: Timestamp) -> Self {
        Self { state: InboxState::Working, attempts: 1, ..Self::queued(inbound, order, owner, now) }
    }

    /// An event that the channel could not read: dead from birth.
    pub fn unreadable(inbound: Arc<Inbound>, order: i64, problem: &str, now: Timestamp) -> Self {
        Self {
            v: FORMAT,
            id: inbound.record_id(),
            state: InboxState::Dead,
            attempts: 0,
            crashes: 0,
            owner: None,
            order,
            received: now,
            changed: now,
            due: None,
            error: Some(truncated(problem, MAX_ERROR)),
            media: None,
            revivals: Vec::new(),
            inbound,
        }
    }

    /// The occurrence of a task, for whoever finds it due.
    pub fn scheduled(inbound: Arc<Inbound>, due: Timestamp, now: Timestamp) -> Self {
        Self {
            v: FORMAT,
            id: inbound.record_id(),
            state: InboxState::Scheduled,
            attempts: 0,
            crashes: 0,
            owner: None,
            order: due.as_millis().saturating_mul(1000),
            received: due,
            changed: now,
            due: Some(due),
            error: None,
            media: None,
            revivals: Vec::new(),
            inbound,
        }
    }

    fn refused(&self, transition: &'static str) -> Refused {
        Refused { id: self.id.to_string(), state: self.state.name(), transition }
    }

    fn in_state(&self, state: InboxState, now: Timestamp) -> Self {
        Self { state, changed: now, due: None, ..self.clone() }
    }

    /// The turn came: charges the attempt.
    ///
    /// # Errors
    /// It is not queued by `owner`.
    pub fn start(&self, owner: &Owner, now: Timestamp) -> Result<Self, Refused> {
        if self.state != InboxState::Queued || self.owner.as_ref() != Some(owner) {
            return Err(self.refused("start"));
        }
        Ok(Self { attempts: self.attempts + 1, ..self.in_state(InboxState::Working, now) })
    }

    /// Takes over an unfinished record: one whose owner is dead (the caller made sure), or one whose retry is due. A
    /// record that was being worked on for the last permitted time becomes dead instead.
    ///
    /// # Errors
    /// It is finished.
    pub fn adopt(&self, owner: &Owner, max_attempts: u32, now: Timestamp) -> Result<Self, Refused> {
        match self.state {
            InboxState::Working if self.attempts >= max_attempts => {
                let error =
                    format!("{} attempts ended without completing, probably with the process", self.attempts);
                Ok(Self { owner: None, error: Some(error), ..self.in_state(InboxState::Dead, now) })
            }
            InboxState::Scheduled | InboxState::Queued | InboxState::Working | InboxState::Waiting => {
                let crashes = self.crashes.saturating_add((self.state == InboxState::Working).into());
                Ok(Self { crashes, owner: Some(owner.clone()), ..self.in_state(InboxState::Queued, now) })
            }
            InboxState::Done | InboxState::Dead => Err(self.refused("be adopted")),
        }
    }

    /// The handler ended.
    ///
    /// # Errors
    /// It is not being worked on.
    pub fn finish(&self, now: Timestamp) -> Result<Self, Refused> {
        if self.state != InboxState::Working {
            return Err(self.refused("finish"));
        }
        Ok(Self { owner: None, error: None, ..self.in_state(InboxState::Done, now) })
    }

    /// The attempt failed: tried again at `retry_at`, or dead if no attempt is left.
    ///
    /// # Errors
    /// It is not being worked on.
    pub fn fail(
        &self,
        error: &str,
        retry_at: Timestamp,
        max_attempts: u32,
        now: Timestamp,
    ) -> Result<Self, Refused> {
        if self.state != InboxState::Working {
            return Err(self.refused("fail"));
        }
        let error = Some(truncated(error, MAX_ERROR));
        if self.attempts >= max_attempts {
            return Ok(Self { owner: None, error, ..self.in_state(InboxState::Dead, now) });
        }
        Ok(Self { owner: None, error, due: Some(retry_at), ..self.in_state(InboxState::Waiting, now) })
    }

    /// The next attempt begins in the same process, without another write between them. It is charged if the one before
    /// `failed` with an error, and not if that did not count.
    ///
    /// # Errors
    /// It is not being worked on by `owner`, or no attempt is left.
    pub fn begin_again(
        &self,
        failed: Option<&str>,
        owner: &Owner,
        max_attempts: u32,
        now: Timestamp,
    ) -> Result<Self, Refused> {
        let queued = match failed {
            Some(error) => self.fail(error, now, max_attempts, now)?.adopt(owner, max_attempts, now)?,
            None => self.release(now)?,
        };
        queued.start(owner, now)
    }

    /// The attempt did not count: back to the queue, with the attempt refunded. Whoever adopts it goes on.
    ///
    /// # Errors
    /// It is not being worked on.
    pub fn release(&self, now: Timestamp) -> Result<Self, Refused> {
        if self.state != InboxState::Working {
            return Err(self.refused("be released"));
        }
        Ok(Self { attempts: self.attempts.saturating_sub(1), ..self.in_state(InboxState::Queued, now) })
    }

    /// The next occurrence of a repeated task takes the place of this one, under the same id and with a fresh budget of
    /// attempts.
    ///
    /// # Errors
    /// It is still being processed.
    pub fn reschedule(&self, inbound: Arc<Inbound>, due: Timestamp, now: Timestamp) -> Result<Self, Refused> {
        if self.is_in_process() {
            return Err(self.refused("be rescheduled"));
        }
        Ok(Self { id: self.id.clone(), ..Self::scheduled(inbound, due, now) })
    }

    /// The occurrence of a task is done without a run.
    ///
    /// # Errors
    /// It is not scheduled.
    pub fn skip(&self, now: Timestamp) -> Result<Self, Refused> {
        if self.state != InboxState::Scheduled {
            return Err(self.refused("be skipped"));
        }
        Ok(self.in_state(InboxState::Done, now))
    }

    /// The occurrence of a task is given up without a run.
    ///
    /// # Errors
    /// It is not scheduled.
    pub fn abandon(&self, error: &str, now: Timestamp) -> Result<Self, Refused> {
        if self.state != InboxState::Scheduled {
            return Err(self.refused("be abandoned"));
        }
        Ok(Self { error: Some(truncated(error, MAX_ERROR)), ..self.in_state(InboxState::Dead, now) })
    }

    /// The same, as the record of another event.
    #[must_use]
    pub fn for_event(&self, inbound: Arc<Inbound>) -> Self {
        Self { id: inbound.record_id(), inbound, ..self.clone() }
    }

    /// Whether the process may have ended because of it: it was being worked on when the process ended, twice or before
    /// the last attempt.
    pub fn is_suspect(&self, max_attempts: u32) -> bool {
        self.crashes >= 2 || self.crashes == 1 && self.attempts + 1 >= max_attempts
    }

    /// An operator, `by` name if it is known, wants it processed again, with a fresh budget of attempts.
    ///
    /// # Errors
    /// It is still being processed.
    pub fn replay(&self, by: Option<&str>, now: Timestamp) -> Result<Self, Refused> {
        if self.is_in_process() {
            return Err(self.refused("be replayed"));
        }
        let series = (self.state, self.attempts, self.error.as_deref());
        let revivals = revived(&self.revivals, series, by, now);
        let due = Some(now);
        Ok(Self {
            attempts: 0,
            crashes: 0,
            owner: None,
            due,
            revivals,
            ..self.in_state(InboxState::Waiting, now)
        })
    }

    /// Whether an operator may have it removed.
    ///
    /// # Errors
    /// It is still being processed.
    pub fn discard(&self) -> Result<(), Refused> {
        if self.is_in_process() { Err(self.refused("be discarded")) } else { Ok(()) }
    }

    /// Whether nothing is left to do.
    pub fn is_over(&self) -> bool {
        matches!(self.state, InboxState::Done | InboxState::Dead)
    }

    /// Whether it is to be handled now: by its owner, or by whoever finds that it cannot.
    pub fn is_in_process(&self) -> bool {
        matches!(self.state, InboxState::Queued | InboxState::Working)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Record for InboxRecord {
    type State = InboxState;
    const PREFIX: u8 = b'i';
    const JOURNAL: &'static str = "inbox";

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn index(&self) -> Index {
        let place = match self.state {
            InboxState::Queued | InboxState::Working => self.order,
            InboxState::Scheduled => self.due.unwrap_or(self.changed).as_millis(),
            InboxState::Waiting | InboxState::Done | InboxState::Dead => self.changed.as_millis(),
        };
        Index { due: self.due, list: Some((Self::bucket(self.state), place)) }
    }

    fn bucket(state: InboxState) -> u8 {
        match state {
            InboxState::Queued => 1,
            InboxState::Working => 2,
            InboxState::Waiting => 3,
            InboxState::Done => 4,
            InboxState::Dead => 5,
            InboxState::Scheduled => 6,
        }
    }
}
