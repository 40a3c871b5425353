//! Errors. Three kinds, never mixed: a lost race is an outcome ([`Cas`]), a backend's failure is a [`StoreError`], and
//! what a bot author must tell apart is an enum of its own.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::id::SendKey;

/// The longest that a channel's wish to wait is followed.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

type Source = Box<dyn Error + Send + Sync>;

/// The outcome of a compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Cas<T> {
    /// The write is durable.
    Applied(T),
    /// Somebody else wrote first; nothing changed.
    Lost,
}

impl<T> Cas<T> {
    /// The value of an applied write.
    pub fn applied(self) -> Option<T> {
        match self {
            Self::Applied(value) => Some(value),
            Self::Lost => None,
        }
    }
}

/// Why a backend failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The backend cannot be reached or is busy; it may work later.
    Unavailable,
    /// No space is left.
    Full,
    /// The file or server does not permit it.
    Denied,
    /// Stored data is damaged.
    Corrupt,
    /// Stored data is of a newer or foreign format.
    Incompatible,
    /// The file system gives no safe locks.
    UnsupportedFilesystem,
    /// A value is larger than the backend takes.
    TooLarge,
    /// The backend is used wrongly: a path is a directory, the store is closed.
    Misuse,
}

/// What a failed write may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// It may have been applied: read again before deciding.
    Unknown,
}

/// A backend's failure. Clones share their source: a failed group of writes tells each of its callers.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    effect: Effect,
    backend: &'static str,
    operation: &'static str,
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// A failure of `operation` that had no effect.
    pub fn new(
        kind: StoreErrorKind,
        backend: &'static str,
        operation: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, effect: Effect::None, backend, operation, message: message.into(), source: None }
    }

    /// With the driver's own error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// The write may have been applied although its answer was lost.
    #[must_use]
    pub fn with_unknown_effect(mut self) -> Self {
        self.effect = Effect::Unknown;
        self
    }

    /// Why it failed.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// What it may have done.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Whether the same call may succeed later without anybody's help.
    pub fn retry(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Full)
    }

    /// The backend, such as `sqlite`.
    pub fn backend(&self) -> &'static str {
        self.backend
    }

    /// What was being done, such as `commit`.
    pub fn operation(&self) -> &'static str {
        self.operation
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.backend, self.operation, self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}

/// What kind of failure a channel reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorClass {
    /// Too many calls; wait as told.
    RateLimited,
    /// The channel does not take this content.
    UnsupportedContent,
    /// The content is larger than the channel takes.
    PayloadTooLarge,
    /// The channel permits no free message to this user now.
    OutsideSessionWindow,
    /// The user blocked the bot, left, or never was there.
    RecipientUnreachable,
    /// A fault that may pass.
    Transient,
    /// The credentials are refused.
    Auth,
    /// Somebody else is connected with the same credentials, and the channel closed this connection in favour of theirs. Who
    /// connects again at once closes theirs, and so on for ever.
    Conflict,
    /// The channel ended the session of this connection; it needs a new one, such as a code that a person scans.
    LoggedOut,
    /// The channel refused the request for another reason of its own.
    Rejected,
}

impl ErrorClass {
    /// Whether another attempt to send may succeed, if the channel says nothing else: later, or through another replica.
    pub fn retryable(self) -> bool {
        matches!(self, Self::RateLimited | Self::Transient | Self::Conflict | Self::LoggedOut)
    }
}

/// How far a request came before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nothing reached the channel: refused connection, name not found, connect timeout.
    NotWritten,
    /// The channel answered, with an error.
    Answered,
    /// The request was written and no answer came: it may have been delivered.
    Unknown,
}

/// A channel's failure.
#[derive(Debug, Error)]
#[error("{class:?} ({phase:?}): {detail}")]
#[non_exhaustive]
pub struct ChannelError {
    /// What kind of failure it is.
    pub class: ErrorClass,
    /// How far the request came.
    pub phase: Phase,
    /// How long the channel asks to wait. With [`ErrorClass::RateLimited`], the bot sends nothing to the chat until then, and
    /// the attempt does not count. It waits no longer than a day: see [`wait`](Self::wait).
    pub retry_after: Option<Duration>,
    /// Whether it asks so for all chats. Default `false`: for this one.
    pub all_chats: bool,
    /// Whether another attempt may succeed.
    pub retryable: bool,
    /// The channel's own code.
    pub code: Option<String>,
    /// What happened, without secrets.
    pub detail: String,
    /// The transport's own error.
    #[source]
    pub source: Option<Source>,
}

impl ChannelError {
    /// An error of this class at this phase.
    pub fn new(class: ErrorClass, phase: Phase, detail: impl Into<String>) -> Self {
        Self {
            class,
            phase,
            retry_after: None,
            all_chats: false,
            retryable: class.retryable(),
            code: None,
            detail: detail.into(),
            source: None,
        }
    }

    /// With the channel's own code.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// With the time the channel asks to wait.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// How long to wait because the channel asks so: at most a day. Whoever asks for more, or by mistake for centuries, is called
    /// again then and can say it again.
    pub fn wait(&self) -> Option<Duration> {
        self.retry_after.map(|wait| wait.min(LONGEST_WAIT))
    }

    /// The time to wait is for all chats.
    #[must_use]
    pub fn for_all_chats(mut self) -> Self {
        self.all_chats = true;
        self
    }

    /// Never to be retried, whatever the class.
    #[must_use]
    pub fn not_retryable(mut self) -> Self {
        self.retryable = false;
        self
    }

    /// With the transport's own error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// Why a send did not end with a delivered message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The send failed for now; the sweeper goes on trying. It is not lost.
    #[error("the send {key} is deferred and will be tried again in the background")]
    Deferred {
        /// The send's key in the outbox.
        key: SendKey,
    },
    /// The send failed for good and lies in the dead letters.
    #[error("the send {key} failed for good: {reason}")]
    Dead {
        /// The send's key in the outbox.
        key: SendKey,
        /// What the channel said last.
        reason: String,
    },
    /// The channel failed and no outbox is configured.
    #[error("the channel refused the message")]
    Channel(#[from] ChannelError),
    /// Nothing was sent because the turn of the chat was lost.
    #[error("nothing was sent")]
    LeaseLost(#[from] LeaseLost),
    /// Nothing was sent because another replica holds the channel's connection. Only outside of a message, and without an
    /// outbox: the replies of a turn wait for the one that does.
    #[error("nothing was sent")]
    NotLeader(#[from] NotLeader),
    /// Nothing was sent because the outbox could not be written.
    #[error("nothing was sent: the outbox cannot be written")]
    Journal(#[from] StoreError),
    /// A hook before the send stopped it.
    #[error("a hook stopped the send: {reason}")]
    Stopped {
        /// What the hook said.
        reason: String,
    },
}

/// Why a turn or a leadership was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LeaseLostReason {
    /// This process stood still for most of the lease.
    Stalled,
    /// The lease ran out.
    Expired,
    /// Another owner took over.
    Superseded,
    /// The coordinator cannot be reached.
    CoordinatorLost,
    /// The coordinator lost its data.
    DataLoss,
    /// The turn had already ended.
    Released,
}

/// The right to act for a chat is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the lease is lost ({reason:?})")]
pub struct LeaseLost {
    /// Why.
    pub reason: LeaseLostReason,
}

/// Another replica holds the channel's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("this replica stands by: another one holds the channel's connection")]
pub struct NotLeader;

/// Why the media of a message cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MediaUnavailableReason {
    /// The provider made no durable reference, as for view-once media.
    NotDurable,
    /// Another provider wrote the record.
    ProviderMismatch,
    /// The stored reference is invalid, of an unknown version, or was tampered with.
    RehydrateFailed,
    /// The channel could not deliver the bytes.
    DownloadFailed,
    /// It has more bytes than the bot accepts.
    TooLarge,
    /// The message has none.
    NoMedia,
}

/// The media of a message cannot be had.
#[derive(Clone, Debug, Error)]
#[error("the media is unavailable ({reason:?}): {detail}")]
#[non_exhaustive]
pub struct MediaUnavailable {
    /// Why.
    pub reason: MediaUnavailableReason,
    /// What happened, without secrets.
    pub detail: String,
    /// The channel's own error.
    #[source]
    pub source: Option<Arc<dyn Error + Send + Sync>>,
}

impl MediaUnavailable {
    /// An error for this reason.
    pub fn new(reason: MediaUnavailableReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), source: None }
    }

    /// With the channel's own error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }
}

/// Why the coordinator gave no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CoordinationUnavailableReason {
    /// The wait for the turn took too long.
    Timeout,
    /// The coordinator cannot be reached or is closed.
    Down,
    /// The coordinator has no room for another ticket.
    Overloaded,
}

/// The coordinator gave no turn.
#[derive(Debug, Error)]
#[error("no turn for the chat ({reason:?})")]
pub struct CoordinationUnavailable {
    /// Why.
    pub reason: CoordinationUnavailableReason,
    /// The backend's own error.
    #[source]
    pub source: Option<Source>,
}

/// A value in the configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}; {fix}")]
pub struct ConfigError {
    /// The field, such as `outbox.lease`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do.
    pub fix: String,
}

impl ConfigError {
    /// Names the field, what is wrong and what to do.
    pub fn new(field: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), fix: fix.into() }
    }
}
