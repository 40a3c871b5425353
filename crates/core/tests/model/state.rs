//! One moment: what is stored, what each process has in its memory, what the channel delivered, and what happened so far
//! that the promises are about.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::journal::{InboxRecord, OutboxRecord, Owner};

use crate::setting::Faults;

/// What tells two records of one id apart. Their times and texts do not matter here.
pub(crate) trait Facts {
    fn facts(&self) -> (u8, u32, Option<&Owner>, bool);
    fn state_name(&self) -> String;
}

impl Facts for InboxRecord {
    fn facts(&self) -> (u8, u32, Option<&Owner>, bool) {
        (self.state as u8, self.attempts, self.owner.as_ref(), self.due.is_some())
    }
    fn state_name(&self) -> String {
        format!("{:?}", self.state)
    }
}

impl Facts for OutboxRecord {
    fn facts(&self) -> (u8, u32, Option<&Owner>, bool) {
        (self.state as u8, self.attempts, self.owner.as_ref(), self.due.is_some())
    }
    fn state_name(&self) -> String {
        format!("{:?}", self.state)
    }
}

/// A record, and the version it was read or written at.
#[derive(Clone)]
pub(crate) struct Held<R> {
    pub(crate) record: Arc<R>,
    pub(crate) version: u64,
}

impl<R: Facts> PartialEq for Held<R> {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.record.facts() == other.record.facts()
    }
}

impl<R: Facts> Hash for Held<R> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.version, self.record.facts()).hash(hasher);
    }
}

impl<R: Facts> fmt::Debug for Held<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, attempts, owner, due) = self.record.facts();
        write!(f, "{} v{} attempts={attempts}", self.record.state_name(), self.version)?;
        if let Some(owner) = owner {
            write!(f, " owner={}@{}", owner.instance, owner.epoch)?;
        }
        write!(f, "{}", if due { " due" } else { "" })
    }
}

/// What the backend has: a record and the id of the write that wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Row<R: Facts> {
    pub(crate) held: Held<R>,
    pub(crate) write: u64,
}

impl<R: Facts> PartialEq for Row<R> {
    fn eq(&self, other: &Self) -> bool {
        (&self.held, self.write) == (&other.held, other.write)
    }
}

impl<R: Facts> Hash for Row<R> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.held, self.write).hash(hasher);
    }
}

/// One compare-and-set.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) enum Put {
    Inbox(usize, Held<InboxRecord>),
    Outbox(usize, Held<OutboxRecord>),
}

/// A write on its way: `put` carries the version it expects, 0 for none.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Write {
    pub(crate) put: Put,
    pub(crate) id: u64,
}

/// What a process does when it knows what became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Then {
    /// The message is in the inbox: by this write, or as a duplicate.
    Admit,
    /// The first message of the queue may run.
    Run,
    /// The message is queued, or dead.
    Adopt,
    /// The first message of the queue is finished.
    End,
    /// The channel may be called.
    Begin(Slot),
    /// An attempt is over.
    Conclude(Slot),
    /// A send that was dropped while it began is left to the sweeper.
    TakeBack,
    /// Nothing more.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Pending {
    pub(crate) write: Write,
    pub(crate) landed: bool,
    pub(crate) then: Then,
}

/// A message in a process's memory.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Job {
    pub(crate) message: usize,
    pub(crate) replay: bool,
    pub(crate) stage: JobStage,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) enum JobStage {
    /// The backend has not answered.
    Writing,
    Queued(Held<InboxRecord>),
    /// The handler runs and is about to make its send with this number.
    Running(Held<InboxRecord>, usize),
}

/// Where a send is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    /// In the chat's lane: one at a time.
    Lane,
    /// In the background, because its caller went away.
    Dropped,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Sending {
    pub(crate) send: usize,
    /// Whether a handler waits for it.
    pub(crate) handler: bool,
    pub(crate) stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) enum Stage {
    /// The backend has not answered.
    Writing,
    /// In flight; the channel is not called yet.
    Calling(Held<OutboxRecord>),
    /// The channel answered, which is not recorded yet.
    Answered(Held<OutboxRecord>, Answer),
    /// Waiting, with a handler that may try again.
    Resting(Held<OutboxRecord>),
}

/// What the channel said, if not that it took the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// Not now.
    Busy,
    /// Never.
    Refused,
    /// Nobody knows.
    TimedOut,
}

impl Answer {
    pub(crate) fn error(self) -> ChannelError {
        let (class, phase) = match self {
            Self::Busy => (ErrorClass::Transient, Phase::Answered),
            Self::Refused => (ErrorClass::Rejected, Phase::Answered),
            Self::TimedOut => (ErrorClass::Transient, Phase::Unknown),
        };
        ChannelError::new(class, phase, "")
    }
}

/// What a sweeper found and has not acted on.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) enum Found {
    Message(usize, Held<InboxRecord>),
    DueSend(usize, Held<OutboxRecord>),
    OrphanedSend(usize, Held<OutboxRecord>),
}

/// A living process.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Process {
    pub(crate) instance: usize,
    pub(crate) epoch: u64,
    /// The chat's queue; the first one runs.
    pub(crate) jobs: Vec<Job>,
    pub(crate) lane: Option<Sending>,
    pub(crate) dropped: Option<Sending>,
    /// Sends that arrived, which is not recorded yet.
    pub(crate) arrived: Vec<(usize, Held<OutboxRecord>)>,
    pub(crate) found: Option<Found>,
    pub(crate) pending: Vec<Pending>,
}

impl Process {
    pub(crate) fn start(instance: usize, epoch: u64) -> Self {
        let (jobs, arrived, pending) = (Vec::new(), Vec::new(), Vec::new());
        Self { instance, epoch, jobs, lane: None, dropped: None, arrived, found: None, pending }
    }

    pub(crate) fn slot(&mut self, slot: Slot) -> &mut Option<Sending> {
        match slot {
            Slot::Lane => &mut self.lane,
            Slot::Dropped => &mut self.dropped,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lease {
    Held,
    RunOut,
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    pub(crate) epoch: u64,
    pub(crate) lease: Lease,
}

/// What happened to a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MessageStory {
    /// The channel was told that it is taken over.
    pub(crate) accepted: bool,
    /// It was done since an operator last replayed it.
    pub(crate) done: bool,
    /// Runs charged since then.
    pub(crate) runs: u32,
}

/// What happened to a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SendStory {
    /// How often the user got it.
    pub(crate) delivered: u8,
    /// How often the channel showed that he did.
    pub(crate) echoed: u8,
    /// How often an operator retried it although nobody knew what became of it.
    pub(crate) risked: u8,
    /// Attempts begun since an operator last retried it.
    pub(crate) begun: u32,
    /// It was recorded as sent.
    pub(crate) sent: bool,
}

/// What must never happen, noted when it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Offences {
    pub(crate) undone: bool,
    pub(crate) unsent: bool,
    pub(crate) ran_without_claim: bool,
    pub(crate) overtook: bool,
}

/// A moment.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct State {
    pub(crate) inbox: Vec<Option<Row<InboxRecord>>>,
    pub(crate) outbox: Vec<Option<Row<OutboxRecord>>>,
    pub(crate) sessions: [Session; 2],
    pub(crate) processes: Vec<Process>,
    /// Writes of dead processes that may still take effect.
    pub(crate) wire: Vec<Write>,
    pub(crate) messages: Vec<MessageStory>,
    pub(crate) sends: Vec<SendStory>,
    pub(crate) offences: Offences,
    pub(crate) left: Faults,
}
