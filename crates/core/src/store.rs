//! What a store implements: the bot's state beside the journals.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::coordinator::{Fence, Turn};
use crate::error::{Cas, StoreError};
use crate::id::{ChatId, ConversationKey, MessageId, ParticipantId, RecordId, SessionId};
use crate::inbound::Inbound;
use crate::scope::Scope;
use crate::time::Timestamp;

/// Durable state of one bot: chats, users, checkpoints and the message log.
///
/// Every write is durable when it returns `Ok`. A reply lost on the wire is an error with
/// [`Effect::Unknown`](crate::error::Effect::Unknown), never [`Cas::Lost`]. All methods are cancel safe in this sense:
/// a dropped call has happened wholly or not at all.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The same store, restricted to what belongs to `scope`.
    fn scoped(&self, scope: &Scope) -> Arc<dyn Store>;

    /// What is known of a chat.
    ///
    /// # Errors
    /// The backend's failure.
    async fn chat(&self, chat: &ChatId) -> Result<Option<ChatState>, StoreError>;

    /// Replaces what is known of a chat.
    ///
    /// # Errors
    /// The backend's failure.
    async fn set_chat(&self, chat: &ChatId, state: &ChatState) -> Result<(), StoreError>;

    /// One named value of a user.
    ///
    /// # Errors
    /// The backend's failure.
    async fn user_value(&self, user: &ParticipantId, name: &str) -> Result<Option<Value>, StoreError>;

    /// Sets one named value of a user; other names are untouched. `None` removes it.
    ///
    /// # Errors
    /// The backend's failure.
    async fn set_user_value(
        &self,
        user: &ParticipantId,
        name: &str,
        value: Option<&Value>,
    ) -> Result<(), StoreError>;

    /// All named values of a user, ordered by the bytes of the name.
    ///
    /// # Errors
    /// The backend's failure.
    async fn user_values(&self, user: &ParticipantId) -> Result<Vec<(String, Value)>, StoreError>;

    /// The checkpoint of a conversation.
    ///
    /// # Errors
    /// The backend's failure, or [`StoreErrorKind::Incompatible`](crate::error::StoreErrorKind::Incompatible) for a row
    /// of a newer format.
    async fn checkpoint(&self, key: &ConversationKey) -> Result<Option<Checkpoint>, StoreError>;

    /// Writes the checkpoint of a conversation if its stored revision is still `expect` (`None`: there is none) and the
    /// turn is not older than the stored one: its fence is greater than the stored fence, or equal and of the same
    /// session. The row takes over the turn's fence and session, and as revision the larger of the stored one plus one
    /// and the fence, so that revisions never restart, also not after [`clear_checkpoint`](Self::clear_checkpoint).
    ///
    /// # Errors
    /// The backend's failure.
    async fn set_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Option<Revision>,
        checkpoint: &Checkpoint,
    ) -> Result<Cas<Revision>, StoreError>;

    /// Removes the checkpoint under the same conditions as [`set_checkpoint`](Self::set_checkpoint).
    ///
    /// # Errors
    /// The backend's failure.
    async fn clear_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Revision,
    ) -> Result<Cas<()>, StoreError>;

    /// The largest fence of any checkpoint written in this scope, cleared ones included where the store remembers them;
    /// zero if there is none.
    ///
    /// # Errors
    /// The backend's failure.
    async fn last_fence(&self) -> Result<Fence, StoreError>;

    /// Whether checkpoints are compared before they are written, as [`set_checkpoint`](Self::set_checkpoint) and
    /// [`clear_checkpoint`](Self::clear_checkpoint) demand. Default `true`. A store that cannot do it says `false`, ignores
    /// `expect` and the stored fence, and answers with what it wrote: several replicas that share it are then protected only
    /// by a look at the turn right before each write, and the bot says so when it starts.
    fn compares_checkpoints(&self) -> bool {
        true
    }

    /// Checkpoints whose [`due`](Checkpoint::due) is not after `until`, earliest first, at most `limit`.
    ///
    /// # Errors
    /// The backend's failure.
    async fn due_checkpoints(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Timestamp)>, StoreError>;

    /// Appends to the message log.
    ///
    /// # Errors
    /// The backend's failure.
    async fn append_log(&self, entries: &[LogEntry]) -> Result<(), StoreError>;

    /// The last `limit` entries of a chat, newest first, older than `before` if it is given.
    ///
    /// # Errors
    /// The backend's failure.
    async fn log(
        &self,
        chat: &ChatId,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<(LogPosition, LogEntry)>, StoreError>;

    /// Finishes what was called and gives the backend's resources back. Later calls fail with
    /// [`StoreErrorKind::Misuse`](crate::error::StoreErrorKind::Misuse).
    ///
    /// # Errors
    /// The backend's failure.
    async fn close(&self) -> Result<(), StoreError>;
}

/// What is known of a chat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChatState {
    /// The language chosen for the chat, as a BCP 47 tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

/// The number of a checkpoint's write. Grows with every write of a key and never restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision of a write that follows `stored` under `fence`.
    #[must_use]
    pub fn next(stored: Option<Self>, fence: Fence) -> Self {
        Self(stored.map_or(0, |stored| stored.0 + 1).max(fence.0))
    }
}

/// Where a conversation stands. One row for each conversation key; readable by people and by other languages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The name of the flow or conversation.
    pub flow: String,
    /// The version of the state's type.
    pub version: u32,
    /// A hash of the flow's name, version and step ids; not of its wording.
    pub fingerprint: String,
    /// The step.
    pub step: String,
    /// What the step is doing.
    pub phase: CheckpointPhase,
    /// The flow's state.
    pub state: Value,
    /// What the conversation was entered with, kept where a hand-over may begin it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_with: Option<Value>,
    /// The inbox record whose effects this checkpoint holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<RecordId>,
    /// How many sends that record has made so far.
    #[serde(default)]
    pub sends: u32,
    /// The latest place in the order of arrival of a record that it took. A message that was handled before and arrived
    /// earlier is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_order: Option<i64>,
    /// Inbox records before that one whose effects it holds as well, and whose acknowledgement the writer did not see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<RecordId>,
    /// The answer that the step works on, recorded before it went on: whoever takes the conversation over gives it to the
    /// step again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<RecordedAnswer>,
    /// How far the step is, if it asks on its own in the middle of its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub midway: Option<Midway>,
    /// The flows that wait for this one to end, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<Caller>,
    /// When the wait ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// When it is over for whoever does not have the conversation in memory; `None` if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// When somebody is to look after it without a message of its user; what [`Store::due_checkpoints`] finds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// The number of this write; set by the store.
    #[serde(default = "Checkpoint::unwritten_revision")]
    pub revision: Revision,
    /// The turn of this write; set by the store.
    #[serde(default)]
    pub fence: Fence,
    /// The session of this write; set by the store.
    #[serde(default = "Checkpoint::unwritten_session")]
    pub session: SessionId,
}

impl Checkpoint {
    /// The revision of a checkpoint that no store has written yet.
    pub fn unwritten_revision() -> Revision {
        Revision(0)
    }

    /// The session of a checkpoint that no store has written yet.
    pub fn unwritten_session() -> SessionId {
        SessionId::from("")
    }

    /// Whether a write under `turn` that expects `expect` may replace (or clear) `stored`: the rule of
    /// [`Store::set_checkpoint`], for stores to share.
    pub fn accepts(stored: Option<&Self>, expect: Option<Revision>, turn: &Turn) -> bool {
        let Some(stored) = stored else { return expect.is_none() };
        let newer = turn.fence() > stored.fence
            || (turn.fence() == stored.fence && *turn.session() == stored.session);
        expect == Some(stored.revision) && newer
    }
}

/// An answer that a step works on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedAnswer {
    /// The inbox record that has the message; `None` without durability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordId>,
    /// The message itself, where no inbox record has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inbound: Option<Arc<Inbound>>,
    /// Its text as the hooks before a message left it, if they changed it. They do not run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// When it arrived.
    pub received: Timestamp,
}

/// How far a step is that asks on its own. Code in the middle of its work cannot be stored, only what it takes to run it
/// again: `state` is the state with which the step began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Midway {
    /// Which of its questions waits for its answer, from 1.
    pub question: u32,
    /// What the keys of the step's sends begin with until its first question is answered; `None` if they are random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base: Option<String>,
    /// The number of the step's first send under that base.
    #[serde(default)]
    pub first_send: u32,
}

/// A flow that waits for another one to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Caller {
    /// Its name.
    pub flow: String,
    /// The version of its state's type.
    pub version: u32,
    /// As [`Checkpoint::fingerprint`].
    pub fingerprint: String,
    /// The step that called.
    pub step: String,
    /// Its state.
    pub state: Value,
}

/// What a conversation is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckpointPhase {
    /// The step asked its question and waits for the answer.
    Waiting,
    /// The step is about to run.
    Running,
    /// The conversation is over. The row only remembers which record ended it, until that record is acknowledged.
    Ended,
    /// A marker that a conversation without a checkpoint of its own is going on, for hand-over.
    Stub,
}

/// Who wrote a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The user.
    In,
    /// The bot.
    Out,
}

/// One message of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The chat.
    pub chat: ChatId,
    /// Who wrote it.
    pub direction: Direction,
    /// When.
    pub at: Timestamp,
    /// The channel's id of it.
    pub message: MessageId,
    /// What it said.
    pub text: String,
}

/// A place in a chat's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);
