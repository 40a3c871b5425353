//! Random operations against the invariants: one holder, first come first served, fences that only grow, and no ticket
//! left behind once everybody has gone.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;

use super::{
    Beat, Effect, Ending, Leaving, Limits, Liveness, Locking, Machine, Micros, Moment, Opening, Previous,
    QueueSnapshot, Standing, TicketId,
};
use crate::coordinator::Fence;
use crate::id::SessionId;

const KEYS: usize = 3;
const SESSIONS: usize = 4;
const LIMITS: Limits = Limits { max_idle_keys: 1, idle_ttl: Some(Duration::from_millis(40)), max_waiters: 3 };

#[derive(Clone, Debug)]
enum Op {
    /// Opens the next generation of a session, if the present one is dead. Odd sessions have a lease.
    Open(usize),
    Beat(usize),
    Close(usize, bool),
    /// Takes a ticket; the second number asks again for an old one.
    Enter(usize, usize, bool),
    Repeat(usize),
    Leave(usize),
    Poll(usize),
    /// The clock moves, also backwards, and forward by more than the callers see.
    Clock(i64),
    Flush,
    Lock(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0..SESSIONS).prop_map(Op::Open),
        2 => (0..SESSIONS).prop_map(Op::Beat),
        1 => (0..SESSIONS, any::<bool>()).prop_map(|(session, lost)| Op::Close(session, lost)),
        8 => (0..KEYS, 0..SESSIONS, any::<bool>()).prop_map(|(key, session, wait)| Op::Enter(key, session, wait)),
        2 => any::<usize>().prop_map(Op::Repeat),
        6 => any::<usize>().prop_map(Op::Leave),
        3 => any::<usize>().prop_map(Op::Poll),
        3 => prop_oneof![-5_000i64..15_000, Just(3_600_000_000)].prop_map(Op::Clock),
        1 => Just(Op::Flush),
        1 => (0..KEYS, 0..SESSIONS).prop_map(|(key, session)| Op::Lock(key, session)),
    ]
}

/// The sessions' view: what they were told, and what that must mean.
struct World {
    machine: Machine,
    now: i64,
    generations: [usize; SESSIONS],
    /// Every ticket that was taken and not given back, with its key and number.
    tickets: Vec<(usize, TicketId, Fence)>,
    next_seq: u64,
    beats: u64,
    last: Fence,
    last_granted: HashMap<usize, Fence>,
    last_holder: HashMap<usize, SessionId>,
    lock_fences: HashSet<(usize, usize, Fence)>,
}

fn key(index: usize) -> &'static str {
    ["x", "y", "z"][index]
}

impl World {
    fn new() -> Self {
        Self {
            machine: Machine::new(LIMITS),
            now: 1_000_000,
            generations: [0; SESSIONS],
            tickets: Vec::new(),
            next_seq: 0,
            beats: 0,
            last: Fence(0),
            last_granted: HashMap::new(),
            last_holder: HashMap::new(),
            lock_fences: HashSet::new(),
        }
    }

    /// Nobody sees more than 15 ms pass.
    fn now(&self) -> Moment {
        let elapsed = Some(Duration::from_millis(15));
        Moment { now: Micros(self.now.unsigned_abs()), elapsed }
    }

    fn session(&self, index: usize) -> SessionId {
        SessionId::from(format!("{index}.{}", self.generations[index]))
    }

    /// Fences only grow, and each is given once.
    fn new_number(&mut self, fence: Fence) {
        assert!(fence > self.last, "{fence:?} after {:?}", self.last);
        self.last = fence;
    }

    fn granted(&mut self, at: usize, ticket: &TicketId, fence: Fence, previous: Option<&Previous>) {
        let last = self.last_granted.insert(at, fence).unwrap_or_default();
        assert!(fence >= last, "grants of a key come in the order of the tickets");
        let holder = self.last_holder.insert(at, ticket.session.clone());
        if let Some(previous) = previous
            && previous.session == ticket.session
        {
            assert_eq!(holder.as_ref(), Some(&previous.session), "nobody else held it since");
            assert!(previous.given_back, "a living session lost nothing");
        }
    }

    fn standing(&mut self, at: usize, ticket: &TicketId, standing: &Standing) {
        let fence = match standing {
            Standing::Granted { fence, .. } | Standing::Waiting { fence, .. } => *fence,
            Standing::Busy { .. } | Standing::Overloaded | Standing::Unknown | Standing::Dead => return,
        };
        match self.tickets.iter().find(|(of, known, _)| *of == at && known == ticket) {
            Some((_, _, known)) => assert_eq!(*known, fence, "a ticket keeps its number"),
            None => {
                self.new_number(fence);
                self.tickets.push((at, ticket.clone(), fence));
            }
        }
        if let Standing::Granted { fence, previous } = standing {
            self.granted(at, ticket, *fence, previous.as_ref());
        }
    }

    fn step(&mut self, op: &Op) {
        let before = self.machine.snapshot();
        let now = self.now();
        let mut effects = Vec::new();
        match *op {
            Op::Open(index) => self.open(index),
            Op::Beat(index) => {
                self.beats += 1;
                let beat = Beat { number: self.beats, mark: 0 };
                let _ = self.machine.beat(&self.session(index), beat, now);
            }
            Op::Close(index, lost) => {
                let ending = if lost { Ending::Lost } else { Ending::Closed };
                self.machine.close(&self.session(index), ending, now, &mut effects);
            }
            Op::Enter(at, index, wait) => {
                let ticket = TicketId { session: self.session(index), seq: self.next_seq };
                self.next_seq += 1;
                let standing = if wait {
                    self.machine.enter(key(at), &ticket, now, &mut effects)
                } else {
                    self.machine.try_enter(key(at), &ticket, now, &mut effects)
                };
                self.forget_gone();
                self.standing(at, &ticket, &standing);
            }
            Op::Repeat(which) | Op::Poll(which) | Op::Leave(which) => {
                let Some((at, ticket, _)) = self.pick(which) else { return };
                match op {
                    Op::Leave(_) => {
                        self.tickets.retain(|(_, known, _)| *known != ticket);
                        self.machine.leave(key(at), &ticket, Leaving::Done, now, &mut effects);
                    }
                    Op::Poll(_) => {
                        let standing = self.machine.poll(key(at), &ticket, now, &mut effects);
                        assert_ne!(standing, Standing::Unknown, "{ticket:?}");
                        self.forget_gone();
                        self.standing(at, &ticket, &standing);
                    }
                    _ => {
                        let standing = self.machine.enter(key(at), &ticket, now, &mut effects);
                        self.forget_gone();
                        self.standing(at, &ticket, &standing);
                    }
                }
            }
            Op::Clock(by) => self.now = (self.now + by).max(0),
            Op::Flush => self.flush(),
            Op::Lock(at, index) => {
                let token = index.to_string();
                let ttl = Duration::from_millis(5);
                if let Locking::Acquired(fence) = self.machine.lock_acquire(key(at), &token, ttl, now)
                    && self.lock_fences.insert((at, index, fence))
                {
                    self.new_number(fence);
                }
            }
        }
        self.forget_gone();
        self.effects(&before.queues, &effects);
        self.no_ghosts();
    }

    /// Everything is lost but what the replicas know: the largest fence, and that a session of theirs is dead.
    fn flush(&mut self) {
        self.machine.flush();
        self.tickets.clear();
        self.last_holder.clear();
        self.lock_fences.clear();
        for generation in &mut self.generations {
            *generation += 1;
        }
    }

    fn open(&mut self, index: usize) {
        let lease = (index % 2 == 1).then_some(Duration::from_millis(10));
        let now = self.now();
        let opening = Opening { lease, floor: self.last, known: None };
        if self.machine.open(&self.session(index), opening, now) == Liveness::Dead {
            let dead = self.session(index);
            self.generations[index] += 1;
            assert_eq!(self.machine.open(&self.session(index), opening, now), Liveness::Alive);
            assert_eq!(self.machine.open(&dead, opening, now), Liveness::Dead, "no resurrection");
        }
    }

    fn pick(&self, which: usize) -> Option<(usize, TicketId, Fence)> {
        let of = self.tickets.len();
        (of > 0).then(|| self.tickets[which % of].clone())
    }

    /// Takes over which tickets went after their session died; no other ticket may vanish.
    fn forget_gone(&mut self) {
        let snapshot = self.machine.snapshot();
        self.tickets.retain(|(at, ticket, _)| {
            let queue = snapshot.queues.iter().find(|queue| *queue.key == *key(*at));
            let there = queue.is_some_and(|queue| queue.tickets.iter().any(|(_, there)| there == ticket));
            let session = snapshot.sessions.iter().find(|(id, _)| *id == ticket.session);
            let alive = session.is_some_and(|(_, end)| end.is_none_or(|end| snapshot.clock.1 < end));
            assert!(there || !alive, "{ticket:?}: a ticket stays as long as its session");
            there
        });
    }

    /// Each key with another head than before tells it, and nobody else, unless the reply has told it.
    fn effects(&mut self, before: &[QueueSnapshot], effects: &[Effect]) {
        let after = self.machine.snapshot().queues;
        for effect in effects {
            let Effect::Granted { key: of, ticket, fence, previous } = effect else { continue };
            let queue = after.iter().find(|queue| queue.key == *of).unwrap();
            assert_eq!(queue.tickets[0], (*fence, ticket.clone()), "only the head is granted");
            let at = (0..KEYS).find(|at| **of == *key(*at)).unwrap();
            self.granted(at, ticket, *fence, previous.as_ref());
            let old = before.iter().find(|queue| queue.key == *of).unwrap();
            assert_ne!(old.tickets[0].1, *ticket, "a head is told once");
        }
        for queue in after {
            let old = before.iter().find(|old| old.key == queue.key);
            if old.is_some_and(|old| old.tickets[0] != queue.tickets[0]) {
                let at = (0..KEYS).find(|at| *queue.key == *key(*at)).unwrap();
                assert_eq!(self.last_granted.get(&at), Some(&queue.tickets[0].0), "every new head is told");
            }
        }
    }

    /// The machine holds no ticket that its session does not know; each queue is in the order of its numbers.
    fn no_ghosts(&self) {
        let snapshot = self.machine.snapshot();
        for queue in &snapshot.queues {
            assert!(queue.tickets.is_sorted_by(|a, b| a.0 < b.0));
            for (fence, ticket) in &queue.tickets {
                let known = |(at, known, number): &(usize, TicketId, Fence)| {
                    key(*at) == &*queue.key && known == ticket && number == fence
                };
                assert!(self.tickets.iter().any(known), "a ghost: {ticket:?}");
            }
        }
        assert!(snapshot.idle.len() <= LIMITS.max_idle_keys);
    }

    /// Everybody who is alive leaves, everybody else dies: nothing is left.
    fn quiesce(&mut self) {
        self.now += 1_000_000;
        let now = self.now();
        let mut effects = Vec::new();
        for index in (1..SESSIONS).step_by(2) {
            self.machine.close(&self.session(index), Ending::Closed, now, &mut effects);
        }
        for (at, ticket, _) in std::mem::take(&mut self.tickets) {
            self.machine.leave(key(at), &ticket, Leaving::Done, now, &mut effects);
        }
        assert_eq!(self.machine.snapshot().queues, []);
        assert!(self.machine.sessions.values().all(|session| session.tickets.is_empty()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn invariants_hold_whatever_happens(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for index in 0..SESSIONS {
            world.open(index);
        }
        for op in &ops {
            world.step(op);
        }
        world.quiesce();
    }
}
