//! The ticket machine: who may act for a key, as a pure function of what was asked and when.
//!
//! It has no clock, no randomness and no input or output: `now` is an argument, and whatever must be told to somebody
//! else than the caller is a value in `effects`. [`MemoryHub`](super::MemoryHub) is this machine behind a mutex; other
//! coordinators are compared with it.
//!
//! The rules:
//! - The holder of a key is its lowest-numbered ticket whose session is alive. There is no other record of holding.
//! - A session dies when its lease runs out or when it is closed, and never comes back. Whoever meets a dead session at
//!   the head of a queue buries it: all its tickets go, and each key that gets another head tells it.
//! - The client names its ticket (session and sequence number), so that every request can be repeated.
//! - Numbers come from one hybrid logical clock for all keys: larger than every earlier one, and not behind the time in
//!   microseconds. A key that is forgotten and seen again goes on with larger numbers.
//! - A grant for a ticket that its session does not know is answered by leaving it; that repairs what a repeated or
//!   abandoned request left behind.

mod keys;
mod locks;
#[cfg(test)]
mod properties_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Fence;
use crate::id::SessionId;
use crate::time::Timestamp;
use keys::{Keys, Place};
use locks::Locks;
pub use locks::{Locking, MAX_LOCK_TTL};

/// Idle keys that a machine remembers unless told otherwise.
pub const DEFAULT_MAX_IDLE_KEYS: usize = 10_000;

/// Dead sessions whose names are remembered, so that a delayed request cannot revive one of them.
const MAX_DEAD_SESSIONS: usize = 1024;

/// Microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl From<Timestamp> for Micros {
    fn from(time: Timestamp) -> Self {
        Self(u64::try_from(time.as_millis()).unwrap_or(0).saturating_mul(1000))
    }
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

/// Where a ticket stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Standing {
    /// It is the head: its session holds the key.
    Granted {
        /// The ticket's number.
        fence: Fence,
        /// The session that held the key before; `None` if it is forgotten.
        previous: Option<SessionId>,
    },
    /// It waits; an [`Effect::Granted`] will tell.
    Waiting {
        /// The ticket's number.
        fence: Fence,
        /// The session that holds the key.
        holder: SessionId,
        /// How long that session still lives if nobody hears from it; `None` if it has no lease.
        remaining: Option<Duration>,
    },
    /// There is no ticket: somebody else holds the key, and the caller did not want to wait.
    Busy {
        /// The session that holds the key.
        holder: SessionId,
        /// How long that session still lives if nobody hears from it; `None` if it has no lease.
        remaining: Option<Duration>,
    },
    /// There is no such ticket.
    Unknown,
    /// The session is dead; nothing was done.
    Dead,
}

/// Something to tell a session other than by the reply. It may be lost on the way: [`Machine::poll`] repairs that.
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
        /// The session that held the key before; `None` if it is forgotten.
        previous: Option<SessionId>,
    },
    /// Somebody waits for the holder's ticket. A session that does not know the ticket leaves it.
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
    /// The living sessions, with the end of their lease.
    pub sessions: Vec<(SessionId, Option<Micros>)>,
    /// The keys with at least one ticket.
    pub queues: Vec<QueueSnapshot>,
    /// The keys that are remembered without a ticket, with their previous holder, the next one to be forgotten first.
    pub idle: Vec<(Arc<str>, Option<SessionId>)>,
    /// The locks that nobody released: key, token, fence and end.
    pub locks: Vec<(Arc<str>, Arc<str>, Fence, Micros)>,
}

/// One key of a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueSnapshot {
    /// The key.
    pub key: Arc<str>,
    /// The session that held it before the head.
    pub previous: Option<SessionId>,
    /// The tickets, the head first.
    pub tickets: Vec<(Fence, TicketId)>,
}

#[derive(Clone, Debug)]
struct Session {
    /// How long it lives after it is heard from; `None` means until it is closed.
    lease: Option<Duration>,
    deadline: Option<Micros>,
    /// The numbers of its tickets.
    tickets: BTreeMap<(u64, Arc<str>), u64>,
}

impl Session {
    fn alive(&self, now: Micros) -> bool {
        self.deadline.is_none_or(|deadline| now < deadline)
    }
}

/// A clock for leases: it stands still while the wall clock is set back, so that leases keep their remaining time.
#[derive(Clone, Debug, Default)]
struct LeaseClock {
    last_wall: u64,
    offset: u64,
}

impl LeaseClock {
    fn read(&mut self, wall: Micros) -> Micros {
        self.offset += self.last_wall.saturating_sub(wall.0);
        self.last_wall = wall.0;
        Micros(wall.0 + self.offset)
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Machine {
    last: u64,
    clock: LeaseClock,
    sessions: HashMap<SessionId, Session>,
    dead: HashSet<SessionId>,
    dead_order: VecDeque<SessionId>,
    keys: Keys,
    locks: Locks,
}

fn later(now: Micros, by: Duration) -> Micros {
    Micros(now.0.saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)))
}

impl Machine {
    /// An empty machine that remembers at most `max_idle_keys` keys without a ticket, forgetting the least recently used.
    pub fn new(max_idle_keys: usize) -> Self {
        Self {
            last: 0,
            clock: LeaseClock::default(),
            sessions: HashMap::new(),
            dead: HashSet::new(),
            dead_order: VecDeque::new(),
            keys: Keys::new(max_idle_keys),
            locks: Locks::default(),
        }
    }

    /// Remembers at most `limit` keys without a ticket from now on.
    pub fn set_max_idle_keys(&mut self, limit: usize) {
        self.keys.set_max_idle(limit);
    }

    /// Opens a session that lives for `lease` after each time it is heard from, or until it is closed. `floor` is the
    /// largest fence that the caller ever saw: all later numbers are larger. Opening a living session is harmless.
    pub fn open(&mut self, id: &SessionId, lease: Option<Duration>, floor: Fence, now: Micros) -> Liveness {
        let now = self.clock.read(now);
        let expired = self.sessions.get(id).is_some_and(|session| !session.alive(now));
        if expired || self.dead.contains(id) {
            return Liveness::Dead;
        }
        self.last = self.last.max(floor.0);
        let deadline = lease.map(|lease| later(now, lease));
        match self.sessions.get_mut(id) {
            Some(session) => (session.lease, session.deadline) = (lease, deadline),
            None => {
                self.sessions.insert(id.clone(), Session { lease, deadline, tickets: BTreeMap::new() });
            }
        }
        Liveness::Alive
    }

    /// Prolongs a session's lease, and buries every session whose lease has run out.
    pub fn beat(&mut self, id: &SessionId, now: Micros, effects: &mut Vec<Effect>) -> Liveness {
        self.expire(now, effects);
        let now = self.clock.read(now);
        let Some(session) = self.sessions.get_mut(id) else { return Liveness::Dead };
        session.deadline = session.lease.map(|lease| later(now, lease));
        Liveness::Alive
    }

    /// Ends a session and gives back all its tickets.
    pub fn close(&mut self, id: &SessionId, now: Micros, effects: &mut Vec<Effect>) {
        let now = self.clock.read(now);
        self.bury(id, now, effects);
    }

    /// Buries every session whose lease has run out.
    pub fn expire(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        let now = self.clock.read(now);
        let expired = self.sessions.iter().filter(|(_, session)| !session.alive(now));
        let mut expired: Vec<_> = expired.map(|(id, _)| id.clone()).collect();
        expired.sort_unstable();
        for id in &expired {
            self.bury(id, now, effects);
        }
    }

    /// Takes a ticket at the end of the queue of `key`. Sent again, it answers for the ticket that is there.
    pub fn enter(
        &mut self,
        key: &str,
        ticket: &TicketId,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) -> Standing {
        let lease_now = self.clock.read(now);
        if self.refuse_dead(&ticket.session, lease_now, effects) {
            return Standing::Dead;
        }
        self.take(key, ticket, now);
        self.stand(key, ticket, lease_now, effects)
    }

    /// Like [`enter`](Self::enter), but takes no ticket if somebody holds the key.
    pub fn try_enter(
        &mut self,
        key: &str,
        ticket: &TicketId,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) -> Standing {
        let lease_now = self.clock.read(now);
        if self.refuse_dead(&ticket.session, lease_now, effects) {
            return Standing::Dead;
        }
        self.bury_dead_head(key, lease_now, effects);
        if let Some(head) = self.keys.head(key)
            && head.ticket != *ticket
        {
            let (holder, remaining) =
                (head.ticket.session.clone(), self.remaining(&head.ticket.session, lease_now));
            return Standing::Busy { holder, remaining };
        }
        self.take(key, ticket, now);
        self.stand(key, ticket, lease_now, effects)
    }

    /// Gives a ticket back, whether it waits or holds. Whether it was there; harmless if not.
    pub fn leave(&mut self, key: &str, ticket: &TicketId, now: Micros, effects: &mut Vec<Effect>) -> bool {
        let now = self.clock.read(now);
        let Some(number) = self.forget_number(key, ticket) else { return false };
        let was_head = self.keys.remove(key, number);
        match self.keys.head(key) {
            None => self.keys.rest(key),
            Some(head) if !self.alive(&head.ticket.session, now) => self.bury_dead_head(key, now, effects),
            Some(_) if was_head => effects.extend(self.keys.grant(key)),
            Some(_) => {}
        }
        true
    }

    /// Asks where a ticket stands; for a client that may have missed an effect. Whoever waits nudges the holder.
    pub fn poll(&mut self, key: &str, ticket: &TicketId, now: Micros, effects: &mut Vec<Effect>) -> Standing {
        let now = self.clock.read(now);
        if self.refuse_dead(&ticket.session, now, effects) {
            return Standing::Dead;
        }
        if self.number(key, ticket).is_none() {
            return Standing::Unknown;
        }
        let standing = self.stand(key, ticket, now, effects);
        if matches!(standing, Standing::Waiting { .. }) {
            effects.extend(self.keys.nudge(key));
        }
        standing
    }

    /// Takes the lock `key` for `ttl` if it is free. The caller names the acquisition by a token of its own: sent again
    /// while the lock is held, it is the same acquisition with the same fence.
    pub fn lock_acquire(&mut self, key: &str, token: &str, ttl: Duration, now: Micros) -> Locking {
        let lease_now = self.clock.read(now);
        self.locks.acquire(key, token, ttl, lease_now, || {
            self.last = (self.last + 1).max(now.0);
            Fence(self.last)
        })
    }

    /// Prolongs a lock to `ttl` from now. Its fence, or `None` if `token` does not hold it.
    pub fn lock_renew(&mut self, key: &str, token: &str, ttl: Duration, now: Micros) -> Option<Fence> {
        let now = self.clock.read(now);
        self.locks.renew(key, token, ttl, now)
    }

    /// Frees a lock. Whether `token` held it.
    pub fn lock_release(&mut self, key: &str, token: &str, now: Micros) -> bool {
        let now = self.clock.read(now);
        self.locks.release(key, token, now)
    }

    /// Everything the machine knows. Costs a copy of it.
    pub fn snapshot(&self) -> Snapshot {
        let mut sessions: Vec<_> =
            self.sessions.iter().map(|(id, session)| (id.clone(), session.deadline)).collect();
        sessions.sort_unstable();
        let (queues, idle) = self.keys.snapshot();
        Snapshot { last: Fence(self.last), sessions, queues, idle, locks: self.locks.snapshot() }
    }

    fn alive(&self, id: &SessionId, now: Micros) -> bool {
        self.sessions.get(id).is_some_and(|session| session.alive(now))
    }

    fn remaining(&self, id: &SessionId, now: Micros) -> Option<Duration> {
        let deadline = self.sessions.get(id)?.deadline?;
        Some(Duration::from_micros(deadline.0.saturating_sub(now.0)))
    }

    /// Whether a session is dead; if its lease has just been found to have run out, it is buried.
    fn refuse_dead(&mut self, id: &SessionId, now: Micros, effects: &mut Vec<Effect>) -> bool {
        let dead = !self.alive(id, now);
        if dead {
            self.bury(id, now, effects);
        }
        dead
    }

    fn number(&self, key: &str, ticket: &TicketId) -> Option<u64> {
        let name = (ticket.seq, self.keys.name(key)?);
        self.sessions.get(&ticket.session)?.tickets.get(&name).copied()
    }

    fn forget_number(&mut self, key: &str, ticket: &TicketId) -> Option<u64> {
        let name = (ticket.seq, self.keys.name(key)?);
        self.sessions.get_mut(&ticket.session)?.tickets.remove(&name)
    }

    /// Puts a ticket at the end of the queue, unless it is there.
    fn take(&mut self, key: &str, ticket: &TicketId, now: Micros) {
        let Some(session) = self.sessions.get_mut(&ticket.session) else { return };
        let (name, queue) = self.keys.busy(key);
        session.tickets.entry((ticket.seq, name)).or_insert_with(|| {
            self.last = (self.last + 1).max(now.0);
            queue.push_back(Place { number: self.last, ticket: ticket.clone() });
            self.last
        });
    }

    /// Where a ticket that is there stands, after the dead in front of it are gone.
    fn stand(&mut self, key: &str, ticket: &TicketId, now: Micros, effects: &mut Vec<Effect>) -> Standing {
        let told = effects.len();
        self.bury_dead_head(key, now, effects);
        let Some(head) = self.keys.head(key) else { return Standing::Unknown };
        if head.ticket != *ticket {
            let Some(number) = self.number(key, ticket) else { return Standing::Unknown };
            let holder = head.ticket.session.clone();
            let remaining = self.remaining(&holder, now);
            return Standing::Waiting { fence: Fence(number), holder, remaining };
        }
        let granted = Standing::Granted { fence: Fence(head.number), previous: self.keys.previous(key) };
        // The reply says it already.
        if effects.len() > told {
            effects.retain(|effect| {
                !matches!(effect, Effect::Granted { key: of, ticket: to, .. } if **of == *key && to == ticket)
            });
        }
        granted
    }

    fn bury_dead_head(&mut self, key: &str, now: Micros, effects: &mut Vec<Effect>) {
        if let Some(head) = self.keys.head(key)
            && !self.alive(&head.ticket.session, now)
        {
            let session = head.ticket.session.clone();
            self.bury(&session, now, effects);
        }
    }

    /// Removes a session with all its tickets, and every other dead session that thereby comes to the head of a queue.
    fn bury(&mut self, id: &SessionId, now: Micros, effects: &mut Vec<Effect>) {
        let mut beheaded = BTreeSet::new();
        self.remove_session(id, &mut beheaded);
        while let Some(key) = beheaded.pop_first() {
            match self.keys.head(&key) {
                None => self.keys.rest(&key),
                Some(head) if self.alive(&head.ticket.session, now) => effects.extend(self.keys.grant(&key)),
                Some(head) => {
                    let session = head.ticket.session.clone();
                    self.remove_session(&session, &mut beheaded);
                }
            }
        }
    }

    /// Removes a session with all its tickets; adds the keys that it held to `beheaded`.
    fn remove_session(&mut self, id: &SessionId, beheaded: &mut BTreeSet<Arc<str>>) {
        let Some(session) = self.sessions.remove(id) else { return };
        if self.dead.insert(id.clone()) {
            self.dead_order.push_back(id.clone());
        }
        if self.dead_order.len() > MAX_DEAD_SESSIONS
            && let Some(oldest) = self.dead_order.pop_front()
        {
            self.dead.remove(&oldest);
        }
        for ((_, key), number) in session.tickets {
            if self.keys.remove(&key, number) {
                beheaded.insert(key);
            }
        }
    }
}
