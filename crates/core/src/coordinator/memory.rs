use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::machine::{
    Effect, Ending, Leaving, Limits, Locking, Machine, Micros, Opening, Previous, Standing, TicketId,
};
use super::{Coordinator, Fence, Ticket, TicketHandle, Turn, TurnHandle};
use crate::entropy::{Entropy, random_hex};
use crate::error::{CoordinationUnavailable, CoordinationUnavailableReason, LeaseLost, LeaseLostReason};
use crate::id::SessionId;
use crate::time::{Clock, Timestamp};

/// Where the coordinators of one process meet: the [`machine`](super::machine) behind a mutex.
///
/// For a bot of one process, and for tests of several replicas in one process. Clones are the same hub. It starts no
/// task: a session needs no heartbeat and lives until its coordinator is closed, [crashes](MemoryCoordinator::crash), or
/// is dropped with all its tickets and turns. Idle keys beyond
/// [`DEFAULT_MAX_IDLE_KEYS`](super::machine::DEFAULT_MAX_IDLE_KEYS) are forgotten; any number of tickets may wait.
#[derive(Clone)]
pub struct MemoryHub {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    machine: Machine,
    effects: Vec<Effect>,
    waiters: HashMap<TicketId, oneshot::Sender<Grant>>,
    sessions: u64,
    floor: Fence,
    /// What tests set the clock by, in milliseconds.
    jump: i64,
    /// Cancelled when the data is lost.
    epoch: CancellationToken,
}

/// What a waiting ticket is told.
struct Grant {
    previous: Option<Previous>,
}

impl MemoryHub {
    /// An empty hub. The clock makes fences follow time, and ends locks; no turn expires by it.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State {
            machine: Machine::new(Limits { max_waiters: usize::MAX, ..Limits::default() }),
            effects: Vec::new(),
            waiters: HashMap::new(),
            sessions: 0,
            floor: Fence(0),
            jump: 0,
            epoch: CancellationToken::new(),
        };
        Self { shared: Arc::new(Shared { clock, state: Mutex::new(state) }) }
    }

    /// Remembers the previous holder of at most `limit` keys that nobody holds, forgetting the least recently used.
    #[must_use]
    pub fn with_max_idle_keys(self, limit: usize) -> Self {
        self.set_limits(|limits| limits.max_idle_keys = limit);
        self
    }

    /// Lets at most `limit` tickets wait for one key; [`enter`](Coordinator::enter) then fails with
    /// [`Overloaded`](CoordinationUnavailableReason::Overloaded). Default: any number.
    #[must_use]
    pub fn with_max_waiters(self, limit: usize) -> Self {
        self.set_limits(|limits| limits.max_waiters = limit);
        self
    }

    fn set_limits(&self, change: impl FnOnce(&mut Limits)) {
        self.shared.step(|state, _| {
            let mut limits = state.machine.limits();
            change(&mut limits);
            state.machine.set_limits(limits);
        });
    }

    /// Gives out only fences above `floor`: the largest one that the bot's store has seen, so that a clock that stepped
    /// back between two starts does not make the store refuse the second one.
    #[must_use]
    pub fn with_floor(self, floor: Fence) -> Self {
        self.shared.step(|state, _| state.raise_floor(floor));
        self
    }

    /// Loses all data, as a server does that is started empty: every turn is lost
    /// ([`LeaseLostReason::DataLoss`]), every ticket is worth nothing, and every replica goes on under a new session.
    /// Fences go on growing. For tests.
    pub fn flush(&self) {
        let waiters = self.shared.step(|state, _| {
            state.floor = state.floor.max(state.machine.snapshot().last);
            state.machine.flush();
            // First of all, so that no check succeeds once somebody else is granted.
            std::mem::replace(&mut state.epoch, CancellationToken::new()).cancel();
            std::mem::take(&mut state.waiters)
        });
        drop(waiters);
    }

    /// Sets the hub's clock forward or, if negative, back. For tests.
    pub fn clock_jump(&self, millis: i64) {
        self.shared.step(|state, _| state.jump = state.jump.saturating_add(millis));
    }

    /// A new coordinator, with a session of its own.
    pub fn coordinator(&self, entropy: &dyn Entropy) -> MemoryCoordinator {
        let incarnation = random_hex(entropy);
        let session = Session::open(&self.shared, &incarnation);
        let session = Mutex::new(Arc::new(session));
        let replica = Replica { incarnation, session, partitioned: AtomicBool::new(false) };
        MemoryCoordinator { replica: Arc::new(replica) }
    }
}

impl fmt::Debug for MemoryHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryHub")
    }
}

impl Shared {
    /// Runs one step of the machine and wakes whoever it concerns, after the lock is free again.
    fn step<T>(&self, operation: impl FnOnce(&mut State, Micros) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that time does not step back between two steps.
        let now = self.clock.now().as_millis().saturating_add(state.jump);
        let now = Micros::from(Timestamp::from_millis(now));
        let reply = operation(&mut state, now);
        let grants = state.grants(now);
        drop(state);
        for (waiter, grant) in grants {
            // A ticket that was dropped meanwhile leaves the queue by itself.
            let _ = waiter.send(grant);
        }
        reply
    }
}

impl State {
    fn raise_floor(&mut self, floor: Fence) {
        self.floor = self.floor.max(floor);
        self.machine.raise_floor(floor);
    }

    /// Who is to be woken. A grant that nobody waits for is given back at once.
    fn grants(&mut self, now: Micros) -> Vec<(oneshot::Sender<Grant>, Grant)> {
        let mut grants = Vec::new();
        let mut told = 0;
        while let Some(effect) = self.effects.get(told).cloned() {
            told += 1;
            if let Effect::Granted { key, ticket, previous, .. } = effect {
                match self.waiters.remove(&ticket) {
                    Some(waiter) => grants.push((waiter, Grant { previous })),
                    None => {
                        self.machine.leave(&key, &ticket, Leaving::Unused, now, &mut self.effects);
                    }
                }
            }
        }
        self.effects.clear();
        grants
    }
}

const ALIVE: u8 = 0;
const CLOSED: u8 = 1;
const CRASHED: u8 = 2;
const STALLED: u8 = 3;
const PARTITIONED: u8 = 4;

/// What a coordinator, its tickets and its turns share.
struct Session {
    hub: Arc<Shared>,
    id: SessionId,
    last_seq: AtomicU64,
    end: AtomicU8,
    /// Cancelled with its epoch, too.
    ended: CancellationToken,
    epoch: CancellationToken,
}

impl Session {
    fn open(hub: &Arc<Shared>, incarnation: &str) -> Self {
        let (id, epoch) = hub.step(|state, now| {
            let id = SessionId::from(format!("{incarnation}.{}", state.sessions));
            state.sessions += 1;
            let _ = state.machine.open(&id, Opening { floor: state.floor, ..Opening::default() }, now);
            (id, state.epoch.clone())
        });
        let (last_seq, end) = (AtomicU64::new(0), AtomicU8::new(ALIVE));
        Self { hub: Arc::clone(hub), id, last_seq, end, ended: epoch.child_token(), epoch }
    }

    fn check(&self) -> Result<(), LeaseLost> {
        let reason = match self.end.load(Ordering::SeqCst) {
            ALIVE if self.epoch.is_cancelled() => LeaseLostReason::DataLoss,
            ALIVE => return Ok(()),
            CLOSED => LeaseLostReason::Released,
            STALLED => LeaseLostReason::Stalled,
            PARTITIONED => LeaseLostReason::CoordinatorLost,
            _ => LeaseLostReason::Expired,
        };
        Err(LeaseLost { reason })
    }

    fn die(&self, end: u8) {
        // First of all, so that no check succeeds once somebody else is granted.
        if self.end.compare_exchange(ALIVE, end, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        let own_waiters: Vec<_> = self.hub.step(|state, now| {
            let ending = if end == CLOSED { Ending::Closed } else { Ending::Lost };
            state.machine.close(&self.id, ending, now, &mut state.effects);
            state.waiters.extract_if(|ticket, _| ticket.session == self.id).collect()
        });
        drop(own_waiters);
        self.ended.cancel();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.die(CLOSED);
    }
}

/// A [`Coordinator`] of a [`MemoryHub`]: one replica. Clones share its session.
#[derive(Clone)]
pub struct MemoryCoordinator {
    replica: Arc<Replica>,
}

struct Replica {
    incarnation: String,
    session: Mutex<Arc<Session>>,
    partitioned: AtomicBool,
}

impl MemoryCoordinator {
    /// Dies as a replica does whose lease ran out: its turns are lost ([`LeaseLostReason::Expired`]), its tickets are
    /// worth nothing, others go on, and every later call fails.
    pub fn crash(&self) {
        self.current().die(CRASHED);
    }

    /// Loses everything as a replica does whose lease ran out while it worked: its turns are lost
    /// ([`LeaseLostReason::Expired`]), its tickets are worth nothing, and others go on. Then it goes on itself, under a new
    /// session. A coordinator that is closed or crashed stays so.
    pub fn lose(&self) {
        self.begin_again(CRASHED);
    }

    /// Like [`lose`](Self::lose), for a replica that stood still for longer than its lease
    /// ([`LeaseLostReason::Stalled`]).
    pub fn stall(&self) {
        self.begin_again(STALLED);
    }

    /// Cuts the replica off the hub until it [heals](Self::heal), for longer than its lease: its turns are lost
    /// ([`LeaseLostReason::CoordinatorLost`]), its tickets are worth nothing, others go on, and its calls fail.
    pub fn partition(&self) {
        self.replica.partitioned.store(true, Ordering::SeqCst);
        self.begin_again(PARTITIONED);
    }

    /// Ends a [`partition`](Self::partition): the replica goes on under a new session.
    pub fn heal(&self) {
        self.replica.partitioned.store(false, Ordering::SeqCst);
    }

    /// The session, if the hub can be asked.
    fn reach(&self) -> Result<Arc<Session>, CoordinationUnavailable> {
        if self.replica.partitioned.load(Ordering::SeqCst) {
            return Err(down("the hub cannot be reached"));
        }
        Ok(self.current())
    }

    /// Like [`reach`](Self::reach), for what the machine allows to anybody.
    fn reach_alive(&self) -> Result<Arc<Session>, CoordinationUnavailable> {
        self.reach().and_then(|session| match session.check() {
            Ok(()) => Ok(session),
            Err(_) => Err(down(CLOSED_COORDINATOR)),
        })
    }

    fn next_ticket(&self) -> Result<(Arc<Session>, TicketId), CoordinationUnavailable> {
        let session = self.reach()?;
        let seq = session.last_seq.fetch_add(1, Ordering::Relaxed);
        let ticket = TicketId { session: session.id.clone(), seq };
        Ok((session, ticket))
    }

    fn begin_again(&self, end: u8) {
        let lost = {
            let mut current = self.replica.session.lock().unwrap_or_else(PoisonError::into_inner);
            if current.check().is_err() {
                return;
            }
            let next = Arc::new(Session::open(&current.hub, &self.replica.incarnation));
            std::mem::replace(&mut *current, next)
        };
        lost.die(end);
    }

    /// The session, a new one if the hub lost its data since.
    fn current(&self) -> Arc<Session> {
        let mut current = self.replica.session.lock().unwrap_or_else(PoisonError::into_inner);
        if current.check() == Err(LeaseLost { reason: LeaseLostReason::DataLoss }) {
            *current = Arc::new(Session::open(&current.hub, &self.replica.incarnation));
        }
        Arc::clone(&current)
    }
}

impl fmt::Debug for MemoryCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCoordinator").field("session", &self.current().id).finish_non_exhaustive()
    }
}

const SHORTEST_LOCK: Duration = Duration::from_millis(1);

const CLOSED_COORDINATOR: &str = "the coordinator is closed";

fn down(why: &'static str) -> CoordinationUnavailable {
    CoordinationUnavailable { reason: CoordinationUnavailableReason::Down, source: Some(why.into()) }
}

#[async_trait]
impl Coordinator for MemoryCoordinator {
    fn session(&self) -> SessionId {
        self.current().id.clone()
    }

    async fn enter(&self, key: &str) -> Result<Ticket, CoordinationUnavailable> {
        let (session, ticket) = self.next_ticket()?;
        let entered =
            session.hub.step(|state, now| match state.machine.enter(key, &ticket, now, &mut state.effects) {
                Standing::Granted { fence, previous } => Ok((fence, Place::Head(Grant { previous }))),
                Standing::Waiting { fence, .. } => {
                    let (waiter, waiting) = oneshot::channel();
                    state.waiters.insert(ticket.clone(), waiter);
                    Ok((fence, Place::Waiting(waiting)))
                }
                Standing::Overloaded => Err(CoordinationUnavailable {
                    reason: CoordinationUnavailableReason::Overloaded,
                    source: Some("as many tickets as may wait for the key do".into()),
                }),
                Standing::Busy { .. } | Standing::Unknown | Standing::Dead => Err(down(CLOSED_COORDINATOR)),
            });
        let (fence, place) = entered?;
        let claim = Claim { session, key: Arc::from(key), ticket, left: AtomicBool::new(false) };
        Ok(Ticket::new(fence, Box::new(MemoryTicket { fence, claim: Some(claim), place })))
    }

    async fn try_enter(&self, key: &str) -> Result<Option<Turn>, CoordinationUnavailable> {
        let (session, ticket) = self.next_ticket()?;
        let entered = session.hub.step(|state, now| {
            match state.machine.try_enter(key, &ticket, now, &mut state.effects) {
                Standing::Granted { fence, previous } => Ok(Some((fence, Grant { previous }))),
                Standing::Dead => Err(down(CLOSED_COORDINATOR)),
                Standing::Busy { .. }
                | Standing::Waiting { .. }
                | Standing::Overloaded
                | Standing::Unknown => Ok(None),
            }
        });
        let Some((fence, grant)) = entered? else { return Ok(None) };
        let claim = Claim { session, key: Arc::from(key), ticket, left: AtomicBool::new(false) };
        Ok(Some(claim.turn(fence, grant)))
    }

    async fn acquire_lock_fenced(
        &self,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Option<Fence>, CoordinationUnavailable> {
        let session = self.reach_alive()?;
        let ttl = ttl.max(SHORTEST_LOCK);
        Ok(session.hub.step(|state, now| match state.machine.lock_acquire(key, token, ttl, now) {
            Locking::Acquired(fence) => Some(fence),
            Locking::Busy { .. } | Locking::Unopened => None,
        }))
    }

    async fn renew_lock(
        &self,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Option<Fence>, CoordinationUnavailable> {
        let session = self.reach_alive()?;
        let ttl = ttl.max(SHORTEST_LOCK);
        Ok(session.hub.step(|state, now| state.machine.lock_renew(key, token, ttl, now)))
    }

    async fn release_lock(&self, key: &str, token: &str) -> Result<bool, CoordinationUnavailable> {
        let session = self.reach_alive()?;
        Ok(session.hub.step(|state, now| state.machine.lock_release(key, token, now)))
    }

    fn raise_floor(&self, floor: Fence) {
        self.current().hub.step(|state, _| state.raise_floor(floor));
    }

    async fn close(&self) {
        self.current().die(CLOSED);
    }
}

/// A ticket in the machine. Dropping it leaves the queue.
struct Claim {
    session: Arc<Session>,
    key: Arc<str>,
    ticket: TicketId,
    left: AtomicBool,
}

impl Claim {
    /// The turn that was granted to it.
    fn turn(self, fence: Fence, grant: Grant) -> Turn {
        let session = self.session.id.clone();
        let given_back = grant.previous.as_ref().is_none_or(|previous| previous.given_back);
        let handle = Arc::new(MemoryTurn { claim: self, given_back, released: Notify::new() });
        Turn::new(fence, session, grant.previous.map(|previous| previous.session), handle)
    }

    /// Leaves the queue. Whether it was still there.
    fn leave(&self, leaving: Leaving) -> bool {
        if self.left.swap(true, Ordering::SeqCst) {
            return false;
        }
        // What a session had that has ended is left to those behind it.
        if self.session.check().is_err() {
            return true;
        }
        let waiter = self.session.hub.step(|state, now| {
            state.machine.leave(&self.key, &self.ticket, leaving, now, &mut state.effects);
            if state.waiters.is_empty() { None } else { state.waiters.remove(&self.ticket) }
        });
        drop(waiter);
        true
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.leave(Leaving::Unused);
    }
}

enum Place {
    Waiting(oneshot::Receiver<Grant>),
    Head(Grant),
    Gone,
}

struct MemoryTicket {
    fence: Fence,
    claim: Option<Claim>,
    place: Place,
}

#[async_trait]
impl TicketHandle for MemoryTicket {
    async fn granted(&mut self) -> Result<Turn, CoordinationUnavailable> {
        if let Place::Waiting(waiting) = &mut self.place {
            self.place = waiting.await.map_or(Place::Gone, Place::Head);
        }
        let Place::Head(grant) = std::mem::replace(&mut self.place, Place::Gone) else {
            return Err(down("the session of the ticket has ended, or its turn was already taken"));
        };
        let claim = self.claim.take().filter(|claim| claim.session.check().is_ok());
        let Some(claim) = claim else { return Err(down("the session of the ticket has ended")) };
        Ok(claim.turn(self.fence, grant))
    }
}

struct MemoryTurn {
    claim: Claim,
    given_back: bool,
    released: Notify,
}

impl MemoryTurn {
    fn leave(&self, leaving: Leaving) {
        if self.claim.leave(leaving) {
            self.released.notify_waiters();
        }
    }
}

impl Drop for MemoryTurn {
    fn drop(&mut self) {
        self.leave(Leaving::Abandoned);
    }
}

#[async_trait]
impl TurnHandle for MemoryTurn {
    fn check(&self) -> Result<(), LeaseLost> {
        if self.claim.left.load(Ordering::SeqCst) {
            return Err(LeaseLost { reason: LeaseLostReason::Released });
        }
        self.claim.session.check()
    }

    async fn lost(&self) -> LeaseLost {
        loop {
            let mut released = pin!(self.released.notified());
            released.as_mut().enable();
            if let Err(lost) = self.check() {
                return lost;
            }
            self.claim.session.ended.run_until_cancelled(released).await;
        }
    }

    fn release(&self) {
        self.leave(Leaving::Done);
    }

    fn abandon(&self) {
        self.leave(Leaving::Abandoned);
    }

    fn was_given_back(&self) -> bool {
        self.given_back
    }
}
