//! The writes of the journals as a closed list, so that a test can fail or crash each of them.

use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::inbox::{InboxRecord, InboxState};
use super::outbox::{OutboxRecord, OutboxState};
use super::record::{Record, WriteId};
use super::session::SessionRecord;
use crate::kv::{Expect, Op};

macro_rules! points {
    ($($(#[$doc:meta])* $point:ident = $name:literal,)+) => {
        /// One kind of write of the journals: which journal, whether a record is born, changed or removed, and the state
        /// in which the write leaves it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum WritePoint {
            $($(#[$doc])* $point,)+
        }

        impl WritePoint {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$point,)+];

            /// Its name, such as `outbox.sent`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)+
                }
            }
        }
    };
}

points! {
    /// An event arrives while others of its chat wait.
    InboxInsertQueued = "inbox.insert-queued",
    /// An event arrives and starts at once.
    InboxInsertWorking = "inbox.insert-working",
    /// A task is to run once.
    InboxInsertScheduled = "inbox.insert-scheduled",
    /// A task is to run again.
    InboxSchedule = "inbox.schedule",
    /// An unfinished event is adopted, or goes back to its place.
    InboxQueue = "inbox.queue",
    /// The turn of an event came, or its next attempt: the attempt is charged.
    InboxBegin = "inbox.begin",
    /// An event waits for its next attempt.
    InboxWait = "inbox.wait",
    /// An event is done.
    InboxFinish = "inbox.finish",
    /// An event is given up.
    InboxDead = "inbox.dead",
    /// An event is removed.
    InboxDelete = "inbox.delete",
    /// A send whose first attempt begins at once.
    OutboxInsertInFlight = "outbox.insert-in-flight",
    /// A send that is left to the background.
    OutboxInsertWaiting = "outbox.insert-waiting",
    /// A later attempt of a send begins.
    OutboxBegin = "outbox.begin",
    /// A send waits for its next attempt.
    OutboxWait = "outbox.wait",
    /// A send was delivered.
    OutboxSent = "outbox.sent",
    /// A send is given up.
    OutboxDead = "outbox.dead",
    /// Nobody knows what became of a send.
    OutboxUnknown = "outbox.unknown",
    /// A send is removed.
    OutboxDelete = "outbox.delete",
    /// An instance starts for the first time.
    SessionOpen = "session.open",
    /// A session is renewed, ended, or taken over by a later start of its instance.
    SessionRenew = "session.renew",
    /// A session that ran out is removed.
    SessionDelete = "session.delete",
}

/// Whether a record is born or changed.
#[derive(Clone, Copy)]
enum Put {
    Insert,
    Update,
}

impl WritePoint {
    /// Which write this is; `None` for one that the journals never make, but for the dead letter of a repeated task that
    /// goes on.
    pub fn of(op: &Op) -> Option<Self> {
        let journal = *op.key().first()?;
        let (expect, value) = match op {
            Op::Put { expect, value, .. } => (expect, value),
            Op::Delete { .. } => {
                return match journal {
                    InboxRecord::PREFIX => Some(Self::InboxDelete),
                    OutboxRecord::PREFIX => Some(Self::OutboxDelete),
                    SessionRecord::PREFIX => Some(Self::SessionDelete),
                    _ => None,
                };
            }
        };
        let put = match expect {
            Expect::Absent => Put::Insert,
            Expect::Version(_) => Put::Update,
        };
        match journal {
            InboxRecord::PREFIX => Self::of_inbox(put, state(value)?),
            OutboxRecord::PREFIX => Self::of_outbox(put, state(value)?),
            SessionRecord::PREFIX => Some(match put {
                Put::Insert => Self::SessionOpen,
                Put::Update => Self::SessionRenew,
            }),
            _ => None,
        }
    }

    fn of_inbox(put: Put, state: InboxState) -> Option<Self> {
        match (put, state) {
            (Put::Insert, InboxState::Queued) => Some(Self::InboxInsertQueued),
            (Put::Insert, InboxState::Working) => Some(Self::InboxInsertWorking),
            (Put::Insert, InboxState::Scheduled) => Some(Self::InboxInsertScheduled),
            (Put::Update, InboxState::Scheduled) => Some(Self::InboxSchedule),
            (Put::Insert, InboxState::Waiting | InboxState::Done | InboxState::Dead) => None,
            (Put::Update, InboxState::Queued) => Some(Self::InboxQueue),
            (Put::Update, InboxState::Working) => Some(Self::InboxBegin),
            (Put::Update, InboxState::Waiting) => Some(Self::InboxWait),
            (Put::Update, InboxState::Done) => Some(Self::InboxFinish),
            (Put::Update, InboxState::Dead) => Some(Self::InboxDead),
        }
    }

    fn of_outbox(put: Put, state: OutboxState) -> Option<Self> {
        match (put, state) {
            (Put::Insert, OutboxState::InFlight) => Some(Self::OutboxInsertInFlight),
            (Put::Insert, OutboxState::Waiting) => Some(Self::OutboxInsertWaiting),
            (Put::Insert, OutboxState::Sent | OutboxState::Dead | OutboxState::Unknown) => None,
            (Put::Update, OutboxState::InFlight) => Some(Self::OutboxBegin),
            (Put::Update, OutboxState::Waiting) => Some(Self::OutboxWait),
            (Put::Update, OutboxState::Sent) => Some(Self::OutboxSent),
            (Put::Update, OutboxState::Dead) => Some(Self::OutboxDead),
            (Put::Update, OutboxState::Unknown) => Some(Self::OutboxUnknown),
        }
    }
}

/// The state of a stored record.
fn state<S: DeserializeOwned>(value: &Bytes) -> Option<S> {
    #[derive(Deserialize)]
    struct Stated<S> {
        state: S,
    }
    let body = value.get(size_of::<WriteId>()..)?;
    serde_json::from_slice(body).ok().map(|Stated { state }| state)
}

impl fmt::Display for WritePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
