//! The ticket machine: who may act for a key, as a pure function of what was asked and when.
//!
//! It has no clock, no randomness and no input or output: `now` is an argument, and whatever must be told to somebody
//! else than the caller is a value in `effects`. [`MemoryHub`](super::MemoryHub) is this machine behind a mutex; other
//! coordinators are compared with it.
//!
//! The rules:
//! - The holder of a key is its lowest-numbered ticket whose session is alive. There is no other record of holding.
//! - A session dies when its lease runs out or when it is closed, and never comes back. Whoever meets a dead session at
//!   the head of a queue removes its ticket and tells the next one.
//! - Who held a key before is remembered, and how that ended: a turn was given back if a living session said that it is
//!   done. One that was abandoned, or whose session ended under it, was not. So it is with a ticket whose session ended while
//!   it waited: what it was taken for is left.
//! - Heartbeats are counted, so that a copy of a process does not share its session.
//! - The client names its ticket (session and sequence number), so that every request can be repeated.
//! - Numbers come from one hybrid logical clock for all keys: larger than every earlier one, and not behind the time in
//!   microseconds. A key that is forgotten and seen again goes on with larger numbers.
//! - A grant for a ticket that its session does not know is answered by leaving it; that repairs what a repeated or
//!   abandoned request left behind.
//! - What the machine knows has an [`Epoch`]. A session that knew another one has lost its tickets and its turns; when the
//!   next one of its replica says so, nobody is granted anything until every holder from before must have noticed.

mod clock;
mod keys;
mod locks;
#[cfg(test)]
mod properties_tests;
#[cfg(test)]
mod script;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Fence;
use crate::id::SessionId;
use clock::LeaseClock;
pub use clock::{Micros, Moment};
use keys::{Keys, Place};
use locks::Locks;
pub use locks::{Locking, MAX_LOCK_TTL};
pub use words::{
    Beat, Effect, Ending, Epoch, Leaving, Limits, Liveness, Opening, Previous, QueueSnapshot, Snapshot,
    Standing, TicketId,
};

/// Idle keys that a machine remembers unless told otherwise.
pub const DEFAULT_MAX_IDLE_KEYS: usize = 10_000;

/// Tickets that may wait for one key unless told otherwise.
pub const DEFAULT_MAX_WAITERS: usize = 1000;

/// How long a dead session is remembered, so that a delayed request cannot revive it.
pub const DEAD_KEPT: Duration = Duration::from_secs(600);

/// Closed sessions that are remembered at most.
const MAX_CLOSED: usize = 1024;

/// Tickets of dead sessions that one request removes at most, so that no request takes long. The next one goes on.
pub const MAX_BURIED: usize = 256;

/// Tickets of a full queue that one request looks at at most, to leave out the dead.
const MAX_LOOKED: usize = 1024;

#[derive(Clone, Debug, Default)]
struct Session {
    /// How long it lives after it is heard from; `None` means until it is closed.
    lease: Option<Duration>,
    deadline: Option<Micros>,
    is_closed: bool,
    beat: Option<Beat>,
    /// The numbers of its tickets.
    tickets: BTreeMap<(u64, Arc<str>), u64>,
}

impl Session {
    fn alive(&self, now: Micros) -> bool {
        self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Whether a heartbeat is the last one again, or a later one.
    fn follows(&self, beat: Beat) -> bool {
        self.beat.is_none_or(|last| beat == last || beat.number > last.number)
    }

    /// Whether a ticket of it that goes now is given back.
    fn gives_back(&self, leaving: Leaving, now: Micros) -> bool {
        leaving == Leaving::Done && (self.is_closed || self.alive(now))
    }
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Machine {
    limits: Limits,
    last: u64,
    clock: LeaseClock,
    epoch: Option<Epoch>,
    born: Micros,
    grace_until: Micros,
    sessions: HashMap<SessionId, Session>,
    closed: VecDeque<SessionId>,
    keys: Keys,
    locks: Locks,
}

impl Machine {
    /// An empty machine.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Goes on with other limits.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.keys.forget_idle(self.clock.last().1, &limits);
    }

    /// Its limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Forgets everything, as a server does that lost its data.
    pub fn flush(&mut self) {
        *self = Self::new(self.limits);
    }

    /// The present epoch; `None` before the first session opens. It goes with every reply.
    pub fn epoch(&self) -> Option<&Epoch> {
        self.epoch.as_ref()
    }

    /// All later numbers are larger than `floor`.
    pub fn raise_floor(&mut self, floor: Fence) {
        self.last = self.last.max(floor.0);
    }

    /// Opens a session that lives for its lease after each time it is heard from, or until it is closed. Opening a living
    /// session is harmless. The first one begins an epoch.
    pub fn open(&mut self, id: &SessionId, opening: Opening<'_>, at: impl Into<Moment>) -> Liveness {
        let at = at.into();
        let now = self.clock.read(at);
        self.forget_dead(now);
        if self.sessions.contains_key(id) && !self.alive(id, now) {
            return Liveness::Dead;
        }
        let epoch = self.epoch.get_or_insert_with(|| {
            self.born = now;
            Epoch(format!("{}-{id}", at.now.0).into())
        });
        if let (Some(known), Some(lease)) = (opening.known, opening.lease)
            && known != epoch
        {
            self.grace_until = self.grace_until.max(self.born.after(lease));
        }
        self.raise_floor(opening.floor);
        let session = self.sessions.entry(id.clone()).or_default();
        session.lease = opening.lease;
        session.deadline = opening.lease.map(|lease| now.after(lease));
        Liveness::Alive
    }

    /// Prolongs a session's lease. A heartbeat that does not follow the last one is of a copy of the process, as a restored
    /// snapshot of its machine is: that ends the session, for both.
    pub fn beat(&mut self, id: &SessionId, beat: Beat, at: impl Into<Moment>) -> Liveness {
        let now = self.clock.read(at.into());
        self.forget_dead(now);
        match self.sessions.get_mut(id).filter(|session| session.alive(now)) {
            Some(session) if session.follows(beat) => {
                session.deadline = session.lease.map(|lease| now.after(lease));
                session.beat = Some(beat);
                Liveness::Alive
            }
            Some(session) => {
                session.deadline = Some(now);
                Liveness::Dead
            }
            None => Liveness::Dead,
        }
    }

    /// Ends a session and removes the tickets of it that are heads, in the order of their sequence numbers. Those that wait
    /// stay until they would be: whoever comes next then learns what was left.
    pub fn close(
        &mut self,
        id: &SessionId,
        ending: Ending,
        at: impl Into<Moment>,
        effects: &mut Vec<Effect>,
    ) {
        let now = self.clock.read(at.into());
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.alive(now) {
            session.deadline = Some(now);
            session.is_closed = ending == Ending::Closed;
            self.closed.push_back(id.clone());
        }
        let tickets: Vec<_> = session.tickets.keys().cloned().collect();
        for (seq, key) in tickets {
            self.give_back(&key, &TicketId { session: id.clone(), seq }, Leaving::Abandoned, now, effects);
        }
        if self.closed.len() > MAX_CLOSED
            && let Some(oldest) = self.closed.pop_front()
            && self.sessions.get(&oldest).is_some_and(|session| session.tickets.is_empty())
        {
            self.sessions.remove(&oldest);
        }
    }

    /// Takes a ticket at the end of the queue of `key`. Sent again, it answers for the ticket that is there.
    pub fn enter(
        &mut self,
        key: &str,
        ticket: &TicketId,
        at: impl Into<Moment>,
        effects: &mut Vec<Effect>,
    ) -> Standing {
        let at = at.into();
        let now = self.read(at);
        if !self.alive(&ticket.session, now) {
            return Standing::Dead;
        }
        let moved = self.bury(key, now);
        let full = self.number(key, ticket).is_none() && self.is_full(key, now);
        if !full {
            self.take(key, ticket, at.now);
        }
        let standing = self.stand(key, ticket, now);
        if moved && !matches!(standing, Standing::Granted { .. }) {
            self.tell_head(key, now, effects);
        }
        if full { Standing::Overloaded } else { standing }
    }

    /// Like [`enter`](Self::enter), but takes no ticket if it would have to wait. Whoever finds the key busy nudges the
    /// holder.
    pub fn try_enter(
        &mut self,
        key: &str,
        ticket: &TicketId,
        at: impl Into<Moment>,
        effects: &mut Vec<Effect>,
    ) -> Standing {
        let at = at.into();
        let now = self.read(at);
        if !self.alive(&ticket.session, now) {
            return Standing::Dead;
        }
        let moved = self.bury(key, now);
        if let Some(head) = self.keys.head(key)
            && head.ticket != *ticket
        {
            let holder = head.ticket.session.clone();
            let remaining = self.remaining(&holder, now);
            if moved {
                self.tell_head(key, now, effects);
            } else {
                effects.extend(self.keys.nudge(key));
            }
            return Standing::Busy { holder, remaining };
        }
        if let Some(grace) = self.grace(now) {
            self.keys.rest(key, now, &self.limits);
            return Standing::Busy { holder: ticket.session.clone(), remaining: Some(grace) };
        }
        self.take(key, ticket, at.now);
        self.stand(key, ticket, now)
    }

    /// Gives a ticket back, whether it waits or holds. Whether it was there; harmless if not. If it was unused, whoever held
    /// the key before remains the previous holder. One that a dead session abandoned while it waited is left to those behind
    /// it. Where nobody else has a ticket nothing comes of the time, and the clock is not noted.
    pub fn leave(
        &mut self,
        key: &str,
        ticket: &TicketId,
        leaving: Leaving,
        at: impl Into<Moment>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let at = at.into();
        let is_alone = self.keys.tickets(key) == 1 && self.heads(key, ticket);
        let now = if is_alone { self.clock.peek(at) } else { self.clock.read(at) };
        self.keys.forget_idle(now, &self.limits);
        self.give_back(key, ticket, leaving, now, effects)
    }

    /// Asks where a ticket stands; for a client that may have missed an effect. Whoever waits nudges the holder.
    pub fn poll(
        &mut self,
        key: &str,
        ticket: &TicketId,
        at: impl Into<Moment>,
        effects: &mut Vec<Effect>,
    ) -> Standing {
        let now = self.read(at.into());
        if !self.alive(&ticket.session, now) {
            return Standing::Dead;
        }
        if self.number(key, ticket).is_none() {
            return Standing::Unknown;
        }
        let moved = self.bury(key, now);
        let standing = self.stand(key, ticket, now);
        let waits_for_other = matches!(&standing, Standing::Waiting { holder, .. } if self.alive(holder, now))
            && !self.heads(key, ticket);
        if waits_for_other && moved {
            self.tell_head(key, now, effects);
        } else if waits_for_other {
            effects.extend(self.keys.nudge(key));
        }
        standing
    }

    /// Removes the dead at the head of a queue, where nobody may come again. Whether there are more, since one request removes
    /// [`MAX_BURIED`] at most.
    pub fn sweep(&mut self, key: &str, at: impl Into<Moment>, effects: &mut Vec<Effect>) -> bool {
        let now = self.read(at.into());
        if self.bury(key, now) {
            self.tell_head(key, now, effects);
            self.keys.rest(key, now, &self.limits);
        }
        self.keys.head(key).is_some_and(|head| !self.alive(&head.ticket.session, now))
    }

    /// Takes the lock `key` for `ttl` if it is free. The caller names the acquisition by a token of its own: sent again
    /// while the lock is held, it is the same acquisition with the same fence.
    pub fn lock_acquire(&mut self, key: &str, token: &str, ttl: Duration, at: impl Into<Moment>) -> Locking {
        let at = at.into();
        let now = self.clock.read(at);
        if self.epoch.is_none() {
            return Locking::Unopened;
        }
        if let Some(remaining) = self.grace(now) {
            return Locking::Busy { remaining };
        }
        self.locks.acquire(key, token, ttl, now, || {
            self.last = (self.last + 1).max(at.now.0);
            Fence(self.last)
        })
    }

    /// Prolongs a lock to `ttl` from now. Its fence, or `None` if `token` does not hold it.
    pub fn lock_renew(
        &mut self,
        key: &str,
        token: &str,
        ttl: Duration,
        at: impl Into<Moment>,
    ) -> Option<Fence> {
        let now = self.clock.read(at.into());
        self.locks.renew(key, token, ttl, now)
    }

    /// Frees a lock. Whether `token` held it.
    pub fn lock_release(&mut self, key: &str, token: &str, at: impl Into<Moment>) -> bool {
        let now = self.clock.read(at.into());
        self.locks.release(key, token, now)
    }

    /// Everything the machine knows. Costs a copy of it.
    pub fn snapshot(&self) -> Snapshot {
        let mut sessions: Vec<_> =
            self.sessions.iter().map(|(id, session)| (id.clone(), session.deadline)).collect();
        sessions.sort_unstable();
        let (queues, idle) = self.keys.snapshot();
        Snapshot {
            last: Fence(self.last),
            epoch: self.epoch.clone(),
            grace: (self.born, self.grace_until),
            clock: self.clock.last(),
            sessions,
            queues,
            idle,
            locks: self.locks.snapshot(),
        }
    }

    fn read(&mut self, at: Moment) -> Micros {
        let now = self.clock.read(at);
        self.keys.forget_idle(now, &self.limits);
        now
    }

    fn alive(&self, id: &SessionId, now: Micros) -> bool {
        self.sessions.get(id).is_some_and(|session| session.alive(now))
    }

    fn remaining(&self, id: &SessionId, now: Micros) -> Option<Duration> {
        match self.sessions.get(id) {
            Some(session) => session.deadline.map(|deadline| now.until(deadline)),
            None => Some(Duration::ZERO),
        }
    }

    /// How long nobody is granted anything.
    fn grace(&self, now: Micros) -> Option<Duration> {
        (now < self.grace_until).then(|| now.until(self.grace_until))
    }

    fn forget_dead(&mut self, now: Micros) {
        self.sessions.retain(|_, session| {
            let over = session.deadline.is_some_and(|deadline| deadline.after(DEAD_KEPT) <= now);
            !over || !session.tickets.is_empty()
        });
    }

    fn number(&self, key: &str, ticket: &TicketId) -> Option<u64> {
        let name = (ticket.seq, self.keys.name(key)?);
        self.sessions.get(&ticket.session)?.tickets.get(&name).copied()
    }

    /// Whether as many tickets of the living wait as may.
    fn is_full(&self, key: &str, now: Micros) -> bool {
        let (tickets, most) = (self.keys.tickets(key), self.limits.max_waiters);
        let is_dead = |place: &&Place| !self.alive(&place.ticket.session, now);
        tickets > most && tickets - self.keys.places(key).take(MAX_LOOKED).filter(is_dead).count() > most
    }

    fn heads(&self, key: &str, ticket: &TicketId) -> bool {
        self.keys.head(key).is_some_and(|head| head.ticket == *ticket)
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

    /// Removes a ticket. Whether it was the head; `None` if it was not there.
    fn remove(&mut self, key: &str, ticket: &TicketId, leaving: Leaving, now: Micros) -> Option<bool> {
        let name = (ticket.seq, self.keys.name(key)?);
        let session = self.sessions.get_mut(&ticket.session)?;
        let number = session.tickets.remove(&name)?;
        let held = (leaving != Leaving::Unused).then(|| session.gives_back(leaving, now));
        Some(self.keys.remove(key, number, held))
    }

    fn give_back(
        &mut self,
        key: &str,
        ticket: &TicketId,
        leaving: Leaving,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if leaving == Leaving::Abandoned && !self.heads(key, ticket) && !self.alive(&ticket.session, now) {
            return self.number(key, ticket).is_some();
        }
        let Some(was_head) = self.remove(key, ticket, leaving, now) else { return false };
        if self.bury(key, now) || was_head {
            self.tell_head(key, now, effects);
        }
        self.keys.rest(key, now, &self.limits);
        true
    }

    /// Where a ticket stands.
    fn stand(&self, key: &str, ticket: &TicketId, now: Micros) -> Standing {
        let Some(number) = self.number(key, ticket) else { return Standing::Unknown };
        let fence = Fence(number);
        match self.keys.head(key) {
            Some(head) if head.ticket != *ticket => {
                let holder = head.ticket.session.clone();
                let remaining = self.remaining(&holder, now);
                Standing::Waiting { fence, holder, remaining }
            }
            _ => match self.grace(now) {
                None => Standing::Granted { fence, previous: self.keys.previous(key) },
                grace => Standing::Waiting { fence, holder: ticket.session.clone(), remaining: grace },
            },
        }
    }

    /// Removes the dead at the head of a queue. Whether there were any.
    fn bury(&mut self, key: &str, now: Micros) -> bool {
        for buried in 0..MAX_BURIED {
            match self.keys.head(key) {
                Some(head) if !self.alive(&head.ticket.session, now) => {
                    let ticket = head.ticket.clone();
                    self.remove(key, &ticket, Leaving::Abandoned, now);
                }
                _ => return buried > 0,
            }
        }
        true
    }

    fn tell_head(&self, key: &str, now: Micros, effects: &mut Vec<Effect>) {
        if let Some(head) = self.keys.head(key)
            && self.alive(&head.ticket.session, now)
            && self.grace(now).is_none()
        {
            effects.extend(self.keys.grant(key));
        }
    }
}
