use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::{FORMAT, MAX_ERROR, Owner, Record, Refused, truncated};
use super::revival::{Revival, revived};
use crate::content::Content;
use crate::error::{ChannelError, ErrorClass, Phase};
use crate::hash::stable_hash;
use crate::id::{ChatId, MessageId, RecordId, SendKey};
use crate::kv::Index;
use crate::time::Timestamp;

/// The life of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxState {
    /// The channel is being called, or the process died while it was. The attempt is charged.
    InFlight,
    /// The next attempt is due later.
    Waiting,
    /// Delivered to the channel.
    Sent,
    /// Given up: the channel refused it for good, or too often.
    Dead,
    /// Nobody knows whether it was delivered. With a due time the channel may still say so; without one the policy decided
    /// not to send it again.
    Unknown,
}

impl OutboxState {
    fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in flight",
            Self::Waiting => "waiting",
            Self::Sent => "sent",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        }
    }
}

/// Whether a part of a longer text may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// The part before it is out, or nobody will ever know.
    Now,
    /// The part before it is still to come.
    Later,
    /// The part before it was given up or removed.
    Never,
}

impl Follows {
    /// Where the part before it is in this state; `None` if that is not in the outbox.
    pub fn after(previous: Option<OutboxState>) -> Self {
        match previous {
            Some(OutboxState::Sent | OutboxState::Unknown) => Self::Now,
            Some(OutboxState::InFlight | OutboxState::Waiting) => Self::Later,
            Some(OutboxState::Dead) | None => Self::Never,
        }
    }
}

/// What a channel said about a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorNote {
    /// The class.
    pub class: ErrorClass,
    /// How far the request came.
    pub phase: Phase,
    /// The channel's own code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What happened, at most about 1,000 bytes.
    pub detail: String,
}

impl From<&ChannelError> for ErrorNote {
    fn from(error: &ChannelError) -> Self {
        Self {
            class: error.class,
            phase: error.phase,
            code: error.code.clone(),
            detail: truncated(&error.detail, MAX_ERROR),
        }
    }
}

/// A send, before it is journaled.
#[derive(Clone, Debug, PartialEq)]
pub struct Send {
    /// The idempotency key.
    pub key: SendKey,
    /// To which chat.
    pub chat: ChatId,
    /// What.
    pub content: Content,
    /// A hash of chat and content before any hook changed it; `None` for explicit keys, which are never compared.
    pub fingerprint: Option<u64>,
    /// The inbound record it answers.
    pub source: Option<RecordId>,
}

/// Which part of a longer text a send is. The links are stored, not read from the keys: a key may end in `#2` for reasons
/// of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The first is 1.
    pub number: u32,
    /// The part before it. Where it is given up, so are those that follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<SendKey>,
    /// The part after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<SendKey>,
    /// By which rules the text was cut: [`SPLITTER`](crate::split::SPLITTER) of then.
    pub splitter: u32,
}

/// One send in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutboxRecord {
    #[serde(deserialize_with = "super::record::format")]
    v: u32,
    /// The idempotency key.
    pub key: SendKey,
    /// Where it stands.
    pub state: OutboxState,
    /// Attempts charged so far.
    pub attempts: u32,
    /// Who calls the channel; `None` unless it is in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Its place in the order of sends, in microseconds.
    pub order: i64,
    /// When it was journaled.
    pub created: Timestamp,
    /// When it reached its state.
    pub changed: Timestamp,
    /// When the next attempt is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorNote>,
    /// The channel's id of the message, once it is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<MessageId>,
    /// See [`Send::fingerprint`], in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex")]
    pub fingerprint: Option<u64>,
    /// The inbound record it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<RecordId>,
    /// The earlier send of the chat that it waits for. Waiting costs no attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<SendKey>,
    /// Which part of a longer text it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// How often an operator wanted it sent again; the last ten times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revivals: Vec<Revival<OutboxState>>,
    /// To which chat.
    pub chat: ChatId,
    /// What.
    pub content: Arc<Content>,
}

impl OutboxRecord {
    /// A send whose first attempt begins as soon as this is durable: the same write charges the attempt.
    pub fn in_flight(send: Send, order: i64, owner: Owner, now: Timestamp) -> Self {
        Self {
            state: OutboxState::InFlight,
            attempts: 1,
            owner: Some(owner),
            due: None,
            ..Self::waiting(send, order, now)
        }
    }

    /// A send that the sweeper makes.
    pub fn waiting(send: Send, order: i64, now: Timestamp) -> Self {
        Self {
            v: FORMAT,
            key: send.key,
            state: OutboxState::Waiting,
            attempts: 0,
            owner: None,
            order,
            created: now,
            changed: now,
            due: Some(now),
            error: None,
            message: None,
            fingerprint: send.fingerprint,
            source: send.source,
            behind: None,
            part: None,
            revivals: Vec::new(),
            chat: send.chat,
            content: Arc::new(send.content),
        }
    }

    /// As one part of a longer text.
    #[must_use]
    pub fn as_part(self, part: Part) -> Self {
        Self { part: Some(part), ..self }
    }

    /// Its place in the order of its chat.
    pub fn place(&self) -> (i64, u32) {
        (self.order, self.part.as_ref().map_or(1, |part| part.number))
    }

    /// The part of the same text that goes out before this one.
    pub fn previous_part(&self) -> Option<&SendKey> {
        self.part.as_ref()?.previous.as_ref()
    }

    /// The part of the same text that goes out after this one.
    pub fn next_part(&self) -> Option<&SendKey> {
        self.part.as_ref()?.next.as_ref()
    }

    /// Whether an attempt was ever charged to it.
    pub fn was_attempted(&self) -> bool {
        self.attempts > 0 || !self.revivals.is_empty()
    }

    /// Whether it is neither finished nor left to the channel to say.
    pub fn is_unfinished(&self) -> bool {
        matches!(self.state, OutboxState::InFlight | OutboxState::Waiting)
    }

    /// Whether the channel may still say what became of it.
    pub fn awaits_echo(&self) -> bool {
        self.state == OutboxState::Unknown && self.due.is_some()
    }

    fn refused(&self, transition: &'static str) -> Refused {
        Refused { id: self.key.to_string(), state: self.state.name(), transition }
    }

    fn in_state(&self, state: OutboxState, now: Timestamp) -> Self {
        Self { state, changed: now, due: None, owner: None, behind: None, ..self.clone() }
    }

    /// An attempt begins: of a waiting send, or again of one in flight whose owner is dead or whose outcome the policy
    /// permits to repeat (the caller made sure).
    ///
    /// # Errors
    /// It is finished.
    pub fn start(&self, owner: &Owner, now: Timestamp) -> Result<Self, Refused> {
        if !matches!(self.state, OutboxState::Waiting | OutboxState::InFlight) {
            return Err(self.refused("start"));
        }
        let owner = Some(owner.clone());
        Ok(Self { attempts: self.attempts + 1, owner, ..self.in_state(OutboxState::InFlight, now) })
    }

    /// The attempt did not come to a call of the channel and does not count: whoever finds it next makes it.
    ///
    /// # Errors
    /// It is not in flight.
    pub fn release(&self, now: Timestamp) -> Result<Self, Refused> {
        if self.state != OutboxState::InFlight {
            return Err(self.refused("be released"));
        }
        let attempts = self.attempts.saturating_sub(1);
        Ok(Self { attempts, due: Some(now), ..self.in_state(OutboxState::Waiting, now) })
    }

    /// The channel asks to wait until `due`, and took nothing: the attempt does not count.
    ///
    /// # Errors
    /// It is not in flight.
    pub fn postpone(&self, error: ErrorNote, due: Timestamp, now: Timestamp) -> Result<Self, Refused> {
        let released = self.release(now)?;
        Ok(Self { due: Some(due), error: Some(error), ..released })
    }

    /// Whether another attempt may follow one that failed with `error`, with at most `retries` after the first.
    pub fn may_retry(&self, error: &ChannelError, retries: u32) -> bool {
        error.retryable && self.attempts <= retries
    }

    /// The channel took it.
    ///
    /// # Errors
    /// It is not in flight.
    pub fn sent(&self, message: MessageId, now: Timestamp) -> Result<Self, Refused> {
        if self.state != OutboxState::InFlight {
            return Err(self.refused("be sent"));
        }
        Ok(Self { message: Some(message), error: None, ..self.in_state(OutboxState::Sent, now) })
    }

    /// The channel showed later that it had arrived, whatever was thought of it.
    ///
    /// # Errors
    /// That is known already.
    pub fn confirm(&self, message: MessageId, now: Timestamp) -> Result<Self, Refused> {
        if self.state == OutboxState::Sent {
            return Err(self.refused("be confirmed"));
        }
        Ok(Self { message: Some(message), error: None, ..self.in_state(OutboxState::Sent, now) })
    }

    /// The attempt failed, or shall be repeated although nobody knows what became of it: tried again at `retry_at`, or
    /// dead if `retry_at` is `None`.
    ///
    /// # Errors
    /// It is neither in flight nor waiting for the channel to say what became of it.
    pub fn fail(
        &self,
        error: ErrorNote,
        retry_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Self, Refused> {
        if self.state != OutboxState::InFlight && !self.awaits_echo() {
            return Err(self.refused("fail"));
        }
        let state = if retry_at.is_some() { OutboxState::Waiting } else { OutboxState::Dead };
        Ok(Self { due: retry_at, error: Some(error), ..self.in_state(state, now) })
    }

    /// Nobody knows whether it was delivered, and it shall not be sent again.
    ///
    /// # Errors
    /// It is neither in flight nor waiting for the channel to say what became of it.
    pub fn give_up_unknown(&self, now: Timestamp) -> Result<Self, Refused> {
        if self.state != OutboxState::InFlight && !self.awaits_echo() {
            return Err(self.refused("become unknown"));
        }
        Ok(self.in_state(OutboxState::Unknown, now))
    }

    /// Nobody knows whether it was delivered, but the channel may say so before `until`.
    ///
    /// # Errors
    /// It is not in flight.
    pub fn await_echo(&self, until: Timestamp, now: Timestamp) -> Result<Self, Refused> {
        if self.state != OutboxState::InFlight {
            return Err(self.refused("wait for an echo"));
        }
        Ok(Self { due: Some(until), ..self.in_state(OutboxState::Unknown, now) })
    }

    /// It waits behind an earlier send of its chat, until `due` at least. Costs no attempt.
    ///
    /// # Errors
    /// It is not waiting.
    pub fn wait_behind(&self, earlier: SendKey, due: Timestamp, now: Timestamp) -> Result<Self, Refused> {
        if self.state != OutboxState::Waiting {
            return Err(self.refused("wait"));
        }
        Ok(Self { due: Some(due), behind: Some(earlier), ..self.in_state(OutboxState::Waiting, now) })
    }

    /// It can never go out, because an earlier part of the same text did not.
    ///
    /// # Errors
    /// It is not waiting.
    pub fn cut_off(&self, error: ErrorNote, now: Timestamp) -> Result<Self, Refused> {
        if self.state != OutboxState::Waiting {
            return Err(self.refused("be given up"));
        }
        Ok(Self { error: Some(error), ..self.in_state(OutboxState::Dead, now) })
    }

    /// Keeps only the first part of its text; the others have records of their own.
    ///
    /// # Errors
    /// It is not waiting.
    pub fn shorten(&self, content: Arc<Content>, part: Part, now: Timestamp) -> Result<Self, Refused> {
        if self.state != OutboxState::Waiting {
            return Err(self.refused("be cut into parts"));
        }
        let Self { due, behind, .. } = self.clone();
        Ok(Self { due, behind, content, part: Some(part), ..self.in_state(self.state, now) })
    }

    /// The part before it was cut again: it follows the last piece of it.
    ///
    /// # Errors
    /// It is not waiting, or not a part.
    pub fn relink(&self, previous: SendKey) -> Result<Self, Refused> {
        match (&self.part, self.state) {
            (Some(part), OutboxState::Waiting) => {
                Ok(Self { part: Some(Part { previous: Some(previous), ..part.clone() }), ..self.clone() })
            }
            _ => Err(self.refused("follow another part")),
        }
    }

    /// An operator, `by` name if it is known, wants it sent again, with a fresh budget of attempts.
    ///
    /// # Errors
    /// It is in flight or already sent.
    pub fn retry(&self, by: Option<&str>, now: Timestamp) -> Result<Self, Refused> {
        if matches!(self.state, OutboxState::InFlight | OutboxState::Sent) {
            return Err(self.refused("be retried"));
        }
        let error = self.error.as_ref().map(|error| error.detail.as_str());
        let revivals = revived(&self.revivals, (self.state, self.attempts, error), by, now);
        Ok(Self { attempts: 0, due: Some(now), revivals, ..self.in_state(OutboxState::Waiting, now) })
    }

    /// Whether an operator may have it removed.
    ///
    /// # Errors
    /// It is in flight.
    pub fn discard(&self) -> Result<(), Refused> {
        if self.state == OutboxState::InFlight { Err(self.refused("be discarded")) } else { Ok(()) }
    }
}

impl Record for OutboxRecord {
    type State = OutboxState;
    const PREFIX: u8 = b'o';
    const JOURNAL: &'static str = "outbox";

    fn id(&self) -> &str {
        self.key.as_str()
    }

    fn index(&self) -> Index {
        let place = match self.state {
            OutboxState::InFlight | OutboxState::Waiting => place_of_chat(&self.chat),
            OutboxState::Sent | OutboxState::Dead | OutboxState::Unknown => self.changed.as_millis(),
        };
        Index { due: self.due, list: Some((Self::bucket(self.state), place)) }
    }

    fn bucket(state: OutboxState) -> u8 {
        match state {
            OutboxState::InFlight => 11,
            OutboxState::Waiting => 12,
            OutboxState::Sent => 13,
            OutboxState::Dead => 14,
            OutboxState::Unknown => 15,
        }
    }
}

/// Where the unfinished sends of a chat are found together.
pub(super) fn place_of_chat(chat: &ChatId) -> i64 {
    stable_hash(chat.as_str().bytes()).cast_signed()
}

/// 64-bit numbers as text: JSON numbers of that size are rounded by other readers.
mod hex {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(&format_args!("{value:016x}")),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| u64::from_str_radix(&text, 16).map_err(D::Error::custom)).transpose()
    }
}
