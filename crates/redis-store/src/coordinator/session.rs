//! One session of a replica, with what it knows of its tickets.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use botmesh_core::coordinator::machine::{Ending, Leaving, Previous};
use botmesh_core::error::{LeaseLost, LeaseLostReason};
use botmesh_core::id::SessionId;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::lane::Lane;

/// A poll comes this much after the end of the holder's lease, so that it finds the holder dead.
const AFTER_LEASE: Duration = Duration::from_millis(50);

/// What a ticket that became the head is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) previous: Option<Previous>,
}

/// Where a ticket stands, as far as this replica knows.
#[derive(Debug)]
enum Place {
    /// The request is under way. A grant may be faster than its answer.
    Entering(Option<Grant>),
    /// It asks at this time.
    Waiting(oneshot::Sender<Grant>, Duration),
    Held,
}

#[derive(Debug, Default)]
struct Tickets {
    known: HashMap<u64, (Arc<str>, Place)>,
    /// Given back, and not yet acknowledged.
    leaving: HashMap<u64, (Arc<str>, Leaving)>,
    /// The waiting ones of each key. Only the first one of a key asks.
    waiting: HashMap<Arc<str>, BTreeSet<u64>>,
    polls: BTreeSet<(Duration, u64)>,
    /// The last ticket that was named when it was last looked whether any is there, and when there was none since.
    idle: (u64, Duration),
}

impl Tickets {
    fn put_off(&mut self, seq: u64, at: Duration) {
        if let Some((_, Place::Waiting(_, ask_at))) = self.known.get_mut(&seq) {
            self.polls.remove(&(*ask_at, seq));
            *ask_at = at;
            self.polls.insert((at, seq));
        }
    }

    fn stop_waiting(&mut self, key: &Arc<str>, seq: u64, ask_at: Duration) {
        self.polls.remove(&(ask_at, seq));
        if let Some(waiting) = self.waiting.get_mut(key) {
            waiting.remove(&seq);
            if waiting.is_empty() {
                self.waiting.remove(key);
            }
        }
    }
}

pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) epoch: Arc<str>,
    pub(super) lane: Arc<Lane>,
    pub(super) ended: CancellationToken,
    end: OnceLock<LeaseLostReason>,
    /// Microseconds of the clock that goes on while the machine is suspended.
    valid_until: AtomicU64,
    /// When the last accepted heartbeat was sent, in microseconds.
    beaten: AtomicU64,
    /// When the thread last looked at its clock for this session, in microseconds.
    looked: AtomicU64,
    /// Since when no call was answered, in microseconds; 0 if the last one was.
    failing: AtomicU64,
    last_seq: AtomicU64,
    tickets: Mutex<Tickets>,
    /// How often it became doubtful whether the server knows the tickets, and up to which time that was cleared up.
    doubts: AtomicU64,
    cleared: AtomicU64,
    /// Somebody is clearing them up, or will.
    clearing: AtomicBool,
    pub(super) sure: Notify,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Session {
    pub(super) fn new(
        id: SessionId,
        epoch: Arc<str>,
        lane: Arc<Lane>,
        opened: Duration,
        valid_until: Duration,
    ) -> Self {
        Self {
            id,
            epoch,
            lane,
            ended: CancellationToken::new(),
            end: OnceLock::new(),
            valid_until: AtomicU64::new(micros(valid_until)),
            beaten: AtomicU64::new(micros(opened)),
            looked: AtomicU64::new(micros(opened)),
            failing: AtomicU64::new(0),
            last_seq: AtomicU64::new(0),
            tickets: Mutex::new(Tickets { idle: (0, opened), ..Tickets::default() }),
            doubts: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            clearing: AtomicBool::new(false),
            sure: Notify::new(),
        }
    }

    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it ended, if it did.
    pub(super) fn end(&self) -> Option<LeaseLost> {
        self.end.get().map(|reason| LeaseLost { reason: *reason })
    }

    /// What the server is told of its end.
    pub(super) fn ending(&self) -> Ending {
        match self.end.get() {
            Some(LeaseLostReason::Released) => Ending::Closed,
            _ => Ending::Lost,
        }
    }

    pub(super) fn valid_until(&self) -> Duration {
        Duration::from_micros(self.valid_until.load(Ordering::Acquire))
    }

    /// A heartbeat that was sent then was accepted.
    pub(super) fn beat(&self, sent: Duration, valid_until: Duration) {
        self.valid_until.fetch_max(micros(valid_until), Ordering::AcqRel);
        self.beaten.fetch_max(micros(sent), Ordering::AcqRel);
    }

    /// When the last accepted heartbeat was sent.
    pub(super) fn beaten(&self) -> Duration {
        Duration::from_micros(self.beaten.load(Ordering::Acquire))
    }

    pub(super) fn looked(&self) -> Duration {
        Duration::from_micros(self.looked.load(Ordering::Acquire))
    }

    pub(super) fn look(&self, now: Duration) {
        self.looked.store(micros(now), Ordering::Release);
    }

    /// A call was answered.
    pub(super) fn works(&self) {
        if self.failing.load(Ordering::Relaxed) != 0 {
            self.failing.store(0, Ordering::Relaxed);
        }
    }

    /// A call failed. For how long all have.
    pub(super) fn fails(&self, now: Duration) -> Duration {
        let now_micros = micros(now).max(1);
        match self.failing.compare_exchange(0, now_micros, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Duration::ZERO,
            Err(since) => now.saturating_sub(Duration::from_micros(since)),
        }
    }

    /// From now on it is in doubt whether the server knows the tickets. Whether nobody is clearing that up.
    pub(super) fn doubt(&self) -> bool {
        self.doubts.fetch_add(1, Ordering::SeqCst);
        !self.clearing.swap(true, Ordering::SeqCst)
    }

    /// How many doubts there are to be cleared up. With `None` there are none, and the next one needs somebody.
    pub(super) fn take_doubts(&self) -> Option<u64> {
        loop {
            let doubts = self.doubts.load(Ordering::SeqCst);
            if self.cleared.load(Ordering::SeqCst) < doubts {
                return Some(doubts);
            }
            self.clearing.store(false, Ordering::SeqCst);
            if self.doubts.load(Ordering::SeqCst) == doubts || self.clearing.swap(true, Ordering::SeqCst) {
                return None;
            }
        }
    }

    /// Since there were so many doubts, the server has confirmed every ticket.
    pub(super) fn clear(&self, doubts: u64) {
        self.cleared.fetch_max(doubts, Ordering::SeqCst);
        self.sure.notify_waiters();
    }

    pub(super) fn is_sure(&self) -> bool {
        self.cleared.load(Ordering::SeqCst) >= self.doubts.load(Ordering::SeqCst)
    }

    /// Ends it if it has had no ticket for so long. Whether it did.
    pub(super) fn retire(&self, now: Duration, after: Duration) -> bool {
        let mut tickets = self.tickets();
        let last = self.last_seq.load(Ordering::Relaxed);
        if !tickets.known.is_empty() || !tickets.leaving.is_empty() || tickets.idle.0 != last {
            tickets.idle = (last, now);
            return false;
        }
        let retires =
            now.saturating_sub(tickets.idle.1) >= after && self.end.set(LeaseLostReason::Released).is_ok();
        drop(tickets);
        if retires {
            self.ended.cancel();
        }
        retires
    }

    /// Ends it. Whether it had not ended before.
    pub(super) fn finish(&self, reason: LeaseLostReason) -> bool {
        let mut tickets = self.tickets();
        if self.end.set(reason).is_err() {
            return false;
        }
        let known = std::mem::take(&mut tickets.known);
        let abandoned =
            |(seq, (key, _)): (&u64, &(Arc<str>, Place))| (*seq, (Arc::clone(key), Leaving::Abandoned));
        tickets.leaving.extend(known.iter().map(abandoned));
        tickets.waiting.clear();
        tickets.polls.clear();
        drop(tickets);
        drop(known);
        self.ended.cancel();
        true
    }

    /// Names a new ticket; `None` if the session has ended.
    pub(super) fn begin(&self, key: &Arc<str>) -> Option<u64> {
        let mut tickets = self.tickets();
        if self.end.get().is_some() {
            return None;
        }
        let seq = self.last_seq.fetch_add(1, Ordering::Relaxed) + 1;
        tickets.known.insert(seq, (Arc::clone(key), Place::Entering(None)));
        Some(seq)
    }

    /// The ticket is the head.
    pub(super) fn hold(&self, seq: u64) {
        if let Some((_, place)) = self.tickets().known.get_mut(&seq) {
            *place = Place::Held;
        }
    }

    /// The ticket waits: either for what is answered, or it was granted meanwhile. `None` if the session ended.
    pub(super) fn wait(
        &self,
        seq: u64,
        poll_at: Duration,
    ) -> Option<Result<Grant, oneshot::Receiver<Grant>>> {
        let mut tickets = self.tickets();
        let (key, place) = tickets.known.get_mut(&seq)?;
        if let Place::Entering(Some(grant)) = place {
            let grant = grant.clone();
            *place = Place::Held;
            return Some(Ok(grant));
        }
        let (grants, granted) = oneshot::channel();
        *place = Place::Waiting(grants, poll_at);
        let key = Arc::clone(key);
        tickets.waiting.entry(key).or_default().insert(seq);
        tickets.polls.insert((poll_at, seq));
        Some(Err(granted))
    }

    /// Whether the session knows the ticket, or will give it back.
    pub(super) fn grant(&self, seq: u64, grant: Grant) -> bool {
        let mut tickets = self.tickets();
        let Some((key, place)) = tickets.known.get_mut(&seq) else {
            return tickets.leaving.contains_key(&seq);
        };
        let key = Arc::clone(key);
        match std::mem::replace(place, Place::Held) {
            Place::Entering(_) => *place = Place::Entering(Some(grant)),
            Place::Waiting(waiter, ask_at) => {
                tickets.stop_waiting(&key, seq, ask_at);
                drop(tickets);
                // One that was dropped meanwhile leaves by itself.
                drop(waiter.send(grant));
            }
            Place::Held => {}
        }
        true
    }

    pub(super) fn holds(&self, seq: u64) -> bool {
        matches!(self.tickets().known.get(&seq), Some((_, Place::Held)))
    }

    pub(super) fn knows(&self, seq: u64) -> bool {
        let tickets = self.tickets();
        tickets.known.contains_key(&seq) || tickets.leaving.contains_key(&seq)
    }

    /// Forgets a ticket. What [`left`](Self::left) has not been told of is still to be given back.
    pub(super) fn leave(&self, seq: u64, leaving: Leaving) {
        let mut tickets = self.tickets();
        if let Some((key, place)) = tickets.known.remove(&seq) {
            if let Place::Waiting(_, ask_at) = place {
                tickets.stop_waiting(&key, seq, ask_at);
            }
            tickets.leaving.insert(seq, (key, leaving));
        }
    }

    /// Forgets a ticket that was not taken.
    pub(super) fn forget(&self, seq: u64) {
        self.tickets().known.remove(&seq);
    }

    pub(super) fn left(&self, seq: u64) {
        self.tickets().leaving.remove(&seq);
    }

    /// What is to be given back, in the order of the requests.
    pub(super) fn leaving(&self) -> Vec<(u64, Arc<str>, Leaving)> {
        let tickets = self.tickets();
        let leaving = tickets.leaving.iter().map(|(seq, (key, leaving))| (*seq, Arc::clone(key), *leaving));
        let mut leaving: Vec<_> = leaving.collect();
        leaving.sort_unstable_by_key(|(seq, ..)| *seq);
        leaving
    }

    /// Every ticket that the server must know.
    pub(super) fn entered(&self) -> Vec<(u64, Arc<str>)> {
        let tickets = self.tickets();
        let entered = tickets.known.iter().filter(|(_, (_, place))| !matches!(place, Place::Entering(_)));
        entered.map(|(seq, (key, _))| (*seq, Arc::clone(key))).collect()
    }

    /// When the next ticket asks.
    pub(super) fn next_poll(&self) -> Option<Duration> {
        self.tickets().polls.first().map(|(at, _)| *at)
    }

    /// The tickets that ask now: the first one of each key. The others are put off.
    pub(super) fn due(&self, now: Duration, interval: Duration) -> Vec<(u64, Arc<str>)> {
        let mut tickets = self.tickets();
        let mut due = Vec::new();
        while let Some((at, seq)) = tickets.polls.first().copied()
            && at <= now
        {
            tickets.put_off(seq, now + interval);
            let Some((key, _)) = tickets.known.get(&seq) else { continue };
            if tickets.waiting.get(key).is_some_and(|waiting| waiting.first() == Some(&seq)) {
                due.push((seq, Arc::clone(key)));
            }
        }
        due
    }

    /// The ticket asks again at this time.
    pub(super) fn ask_at(&self, seq: u64, at: Duration) {
        self.tickets().put_off(seq, at);
    }
}

/// How long a ticket waits before it asks: until its holder must be dead, or for a third of the lease.
pub(super) fn until_poll(remaining: Option<Duration>, lease: Duration) -> Duration {
    remaining.map_or(lease / 3, |remaining| (remaining + AFTER_LEASE).min(lease / 3))
}
