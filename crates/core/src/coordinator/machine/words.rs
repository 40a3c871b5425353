//! What is asked of a machine, and what it answers.

use std::sync::Arc;
use std::time::Duration;

use super::{DEFAULT_MAX_IDLE_KEYS, DEFAULT_MAX_WAITERS, Fence, Micros};
use crate::id::SessionId;

/// What bounds a machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Keys without a ticket whose previous holder is remembered; those that were idle longest are forgotten. Default:
    /// [`DEFAULT_MAX_IDLE_KEYS`].
    pub max_idle_keys: usize,
    /// How long a key without a ticket is remembered. Default: no limit.
    pub idle_ttl: Option<Duration>,
    /// Tickets that may wait behind the head of one queue, without those of dead sessions among its first 1024. Default: [`DEFAULT_MAX_WAITERS`].
    pub max_waiters: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_idle_keys: DEFAULT_MAX_IDLE_KEYS, idle_ttl: None, max_waiters: DEFAULT_MAX_WAITERS }
    }
}

/// Names what a machine knows: a machine that lost everything has another one as soon as a session opens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub Arc<str>);

impl std::fmt::Display for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a session says of itself when it opens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening<'a> {
    /// How long it lives after it is heard from; `None` means until it is closed.
    pub lease: Option<Duration>,
    /// The largest fence that its replica or the bot's store ever saw: all later numbers are larger.
    pub floor: Fence,
    /// The epoch that its replica knew before. If there is another one, data was lost, and nobody is granted anything
    /// until a lease after the new epoch began.
    pub known: Option<&'a Epoch>,
}

/// The name that a client gives to its ticket. Within one key it names one ticket, however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId {
    /// The session that asks.
    pub session: SessionId,
    /// A number that the session uses once.
    pub seq: u64,
}

/// Whether a session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Liveness {
    /// It lives.
    Alive,
    /// It is dead, or was never opened. It does not come back; open another one.
    Dead,
}

/// How a session ends before its lease runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Its replica stopped acting, and gives back what it held.
    Closed,
    /// Its replica lost it: what acted under its turns may not have noticed yet.
    Lost,
}

/// How a ticket is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leaving {
    /// Its turn is over, and nothing is left that goes before what comes next.
    Done,
    /// Something may be left.
    Abandoned,
    /// Nobody has begun its turn, though it may have been granted.
    Unused,
}

/// Who held a key before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Previous {
    /// The session.
    pub session: SessionId,
    /// Whether it gave the key back with nothing left. If not, it abandoned the key, or ended while it held it.
    pub given_back: bool,
}

/// One heartbeat of a session. Sent again, because its answer was lost, it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Beat {
    /// It grows from heartbeat to heartbeat of a session.
    pub number: u64,
    /// A random number. It tells this heartbeat from one of a copy of the process, which counts as far.
    pub mark: u64,
}

/// Where a ticket stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Standing {
    /// It is the head: its session holds the key.
    Granted {
        /// The ticket's number.
        fence: Fence,
        /// Who held the key before; `None` if it is forgotten.
        previous: Option<Previous>,
    },
    /// It waits; an [`Effect::Granted`] will tell.
    Waiting {
        /// The ticket's number.
        fence: Fence,
        /// The session that holds the key; the ticket's own one while nobody is granted anything after a loss of data.
        holder: SessionId,
        /// How long that session still lives if nobody hears from it, or how long nobody is granted anything; `None` if
        /// it has no lease.
        remaining: Option<Duration>,
    },
    /// There is no ticket: somebody else holds the key, and the caller did not want to wait.
    Busy {
        /// The session that holds the key.
        holder: SessionId,
        /// How long that session still lives if nobody hears from it; `None` if it has no lease.
        remaining: Option<Duration>,
    },
    /// No ticket was taken: as many as may wait do.
    Overloaded,
    /// There is no such ticket.
    Unknown,
    /// The session is dead; nothing was done.
    Dead,
}

/// Something to tell a session other than by the reply. It may be lost on the way: [`Machine::poll`](super::Machine::poll) repairs that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The ticket became the head.
    Granted {
        /// The key.
        key: Arc<str>,
        /// The ticket.
        ticket: TicketId,
        /// The ticket's number.
        fence: Fence,
        /// Who held the key before; `None` if it is forgotten.
        previous: Option<Previous>,
    },
    /// Somebody waits for the holder's ticket, or found the key busy. A session that does not know the ticket leaves it.
    Nudged {
        /// The key.
        key: Arc<str>,
        /// The ticket.
        ticket: TicketId,
    },
}

/// Everything a machine knows, in a fixed order: for model checkers and for comparisons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snapshot {
    /// The largest number given so far.
    pub last: Fence,
    /// The epoch, if a session ever opened.
    pub epoch: Option<Epoch>,
    /// When it began and until when nobody is granted anything, on the clock of the leases.
    pub grace: (Micros, Micros),
    /// The wall clock and the clock of the leases at the last request.
    pub clock: (Option<u64>, Micros),
    /// The sessions, with the end of their lease; the dead ones too, as long as they are remembered.
    pub sessions: Vec<(SessionId, Option<Micros>)>,
    /// The keys with at least one ticket.
    pub queues: Vec<QueueSnapshot>,
    /// The keys that are remembered without a ticket, with their previous holder, the next one to be forgotten first.
    pub idle: Vec<(Arc<str>, Option<Previous>)>,
    /// The locks that nobody released: key, token, fence and end.
    pub locks: Vec<(Arc<str>, Arc<str>, Fence, Micros)>,
}

/// One key of a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueSnapshot {
    /// The key.
    pub key: Arc<str>,
    /// Who held it before the head.
    pub previous: Option<Previous>,
    /// The tickets, the head first.
    pub tickets: Vec<(Fence, TicketId)>,
}
