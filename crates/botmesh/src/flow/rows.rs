use serde_json::Value;

use crate::core::id::{ConversationKey, RecordId};
use crate::core::store::{Caller, Checkpoint, Midway, Revision};
use crate::core::time::Timestamp;

/// What is written down of a conversation.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// By this process, for itself.
    pub(super) local: Option<Checkpoint>,
    /// In the store.
    pub(super) shared: Option<Checkpoint>,
}

/// Which of a conversation's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This process's own.
    Local,
    /// The store's.
    Shared,
}

impl Place {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Local => Self::Shared,
            Self::Shared => Self::Local,
        }
    }
}

/// The rows that are there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Vacancy {
    local: Option<Revision>,
    shared: Option<Revision>,
}

impl Vacancy {
    pub(super) fn of(self, place: Place) -> Option<Revision> {
        match place {
            Place::Local => self.local,
            Place::Shared => self.shared,
        }
    }

    pub(super) fn set(&mut self, place: Place, revision: Option<Revision>) {
        match place {
            Place::Local => self.local = revision,
            Place::Shared => self.shared = revision,
        }
    }
}

impl Rows {
    pub(super) fn vacancy(&self) -> Vacancy {
        let revision = |row: &Option<Checkpoint>| row.as_ref().map(|row| row.revision);
        Vacancy { local: revision(&self.local), shared: revision(&self.shared) }
    }
}

/// How a conversation is kept while it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Keeping {
    /// In the memory of this process.
    #[default]
    Memory,
    /// In the memory of this process, with a stub in the store that tells others that there is one.
    Stub,
    /// In the store, until it expires.
    Forwarded,
    /// In the store.
    Persistent,
}

impl Keeping {
    pub(super) fn place(self) -> Place {
        match self {
            Self::Memory | Self::Stub => Place::Local,
            Self::Forwarded | Self::Persistent => Place::Shared,
        }
    }
}

/// What is stored of a conversation that goes on.
#[derive(Default)]
pub(super) struct Stored {
    pub(super) keeping: Keeping,
    pub(super) vacancy: Vacancy,
    /// Whether the store has the stub of this conversation.
    pub(super) has_stub: bool,
    pub(super) callers: Vec<Caller>,
    pub(super) state: Value,
    pub(super) begun_with: Option<Value>,
    /// The record whose effects are stored, and how many sends it had made.
    pub(super) input: Option<(RecordId, u32)>,
    /// The latest place in the order of arrival of a record whose effects are stored.
    pub(super) order: Option<i64>,
    /// Records before it whose effects are stored, and that may not be acknowledged.
    pub(super) earlier: Vec<RecordId>,
}

/// The state of a flow, as it is stored.
pub(crate) enum Kept {
    /// As it is stored already.
    Unchanged,
    Plain(Value),
    /// It is not plain data, and therefore only in memory; this is why.
    InMemory(String),
}

/// Where a run waits.
pub(super) struct Wait {
    pub(super) step: String,
    pub(super) state: Kept,
    pub(super) deadline: Option<Timestamp>,
    pub(super) midway: Option<Midway>,
}

/// A conversation that is over; its rows go once the message that ended it is acknowledged.
#[derive(Debug)]
pub(crate) struct EndedConversation {
    pub(super) key: ConversationKey,
    pub(super) vacancy: Vacancy,
}
