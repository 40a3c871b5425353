//! The machine, the way to it, the resource, and what goes wrong.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use botmesh_core::coordinator::Fence;
use botmesh_core::coordinator::machine::{
    Beat, Effect, Ending, Epoch, Leaving, Limits, Liveness, Machine, Micros, Opening, Standing, TicketId,
};
use botmesh_core::entropy::{SeededEntropy, random_fraction};
use botmesh_core::id::SessionId;

use super::replica::{Replica, Timer};
use crate::history::{Config, Event, Fault, Record};

pub(super) const MS: u64 = 1_000_000;
pub(super) const LEASE: u64 = 1500 * MS;
pub(super) const MARGIN: u64 = 200 * MS;
const BEGIN: u64 = 1_000_000_000 * MS;
const QUIET: u64 = BEGIN + 12_000 * MS;
const END: u64 = QUIET + 12_000 * MS;
const REPLICAS: usize = 3;
const CHATS: u64 = 3;

/// What the generator may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Grace,
    LeaseEnds,
    OwnerOfLeave,
    GrowingFences,
    LeaveUnknown,
    SelfFencing,
    LocalOrder,
    Repair,
    PreviousHolder,
    UnusedTickets,
    TellingOfLoss,
    FirstComeFirst,
}

/// Which faults there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Random,
    Calm,
    DataLoss,
    Kills,
    Cuts,
    DeafEars,
    /// Requests overtake each other.
    Overtaking,
}

/// What a replica asks the machine.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Open { known: Option<Epoch>, floor: u64 },
    Beat,
    Enter { chat: String, seq: u64 },
    Leave { chat: String, seq: u64, acted: bool },
    Poll { chat: String, seq: u64 },
    Close,
}

/// What a replica is told.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Opened,
    Left { seq: u64 },
    Beaten { alive: bool },
    Stands { seq: u64, standing: Place },
    Granted { chat: String, seq: u64, n: u64, prev: Option<String> },
    Nudged { chat: String, seq: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Granted(u64, Option<String>),
    Waiting(u64, u64),
    Unknown,
    Dead,
}

/// An answer, or a push, with what it is of.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) sid: String,
    pub(super) epoch: Option<Epoch>,
    pub(super) sent: u64,
    pub(super) told: Told,
}

#[derive(Clone, Debug)]
enum Happens {
    Serve { replica: usize, sid: String, sent: u64, request: Request },
    Deliver { replica: usize, life: u32, message: Message, push: bool },
    Timer { replica: usize, life: u32, timer: Timer },
    Arrive { chat: String, n: u64, sid: String },
    Fault,
    Restart(usize),
    Heal(usize, Fault),
}

struct Due {
    t: u64,
    order: u64,
    what: Happens,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.t, self.order) == (other.t, other.order)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.t, self.order).cmp(&(other.t, other.order))
    }
}

pub(super) struct World {
    pub(super) now: u64,
    pub(super) without: Option<Rule>,
    plan: Plan,
    dice: SeededEntropy,
    machine: Machine,
    queue: BinaryHeap<Reverse<Due>>,
    order: u64,
    replicas: Vec<Replica>,
    records: Vec<Record>,
    resource: HashMap<String, (u64, String)>,
    /// Fences that start again with the data.
    small: HashMap<u64, u64>,
    smallest: u64,
}

impl World {
    pub(super) fn new(seed: u64, without: Option<Rule>, plan: Plan) -> Self {
        let mut world = Self {
            now: BEGIN,
            without,
            plan,
            dice: SeededEntropy::new(seed),
            machine: Machine::new(Limits::default()),
            queue: BinaryHeap::new(),
            order: 0,
            replicas: Vec::new(),
            records: Vec::new(),
            resource: HashMap::new(),
            small: HashMap::new(),
            smallest: 0,
        };
        let config = Config { lease_ms: 1500, margin_ms: 200, idle_ttl_ms: 600_000, turn_wait_ms: 60_000 };
        world.tell("harness", 1, Event::Start { seed, config });
        for number in 0..REPLICAS {
            world.replicas.push(Replica::new(number));
            world.start(number);
        }
        world.push(BEGIN + 500 * MS, Happens::Fault);
        world
    }

    pub(super) fn keeps(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    pub(super) fn history(self) -> Vec<Record> {
        self.records
    }

    pub(super) fn below(&self, end: u64) -> u64 {
        (random_fraction(&self.dice) * end as f64) as u64
    }

    pub(super) fn tell(&mut self, replica: &str, pid: u32, event: Event) {
        self.records.push(Record { t: self.now, pid, replica: replica.into(), event });
    }

    fn push(&mut self, t: u64, what: Happens) {
        self.order += 1;
        self.queue.push(Reverse(Due { t, order: self.order, what }));
    }

    pub(super) fn timer(&mut self, replica: usize, after: u64, timer: Timer) {
        let life = self.replicas[replica].life;
        self.push(self.now + after, Happens::Timer { replica, life, timer });
    }

    /// From the replica to the machine.
    pub(super) fn send(&mut self, replica: usize, sid: &str, request: Request) {
        if self.replicas[replica].cut {
            return;
        }
        // On one connection nothing overtakes anything; on a new one it may.
        let slow =
            self.plan == Plan::Overtaking && matches!(request, Request::Enter { .. }) && self.below(8) == 0;
        let way = if slow { self.below(300) * MS } else { self.below(2 * MS) + MS / 10 };
        let way = if self.keeps(Rule::LocalOrder) { way } else { way + self.below(4 * MS) };
        let sid = sid.to_owned();
        self.push(self.now + way, Happens::Serve { replica, sid, sent: self.now, request });
    }

    /// From the replica to the resource. When it arrives.
    pub(super) fn write(&mut self, chat: &str, n: u64, sid: &str) -> u64 {
        let way = self.below(2 * MS);
        self.push(self.now + way, Happens::Arrive { chat: chat.into(), n, sid: sid.into() });
        self.now + way
    }

    pub(super) fn holds_long(&self) -> bool {
        self.below(if self.plan == Plan::Cuts { 3 } else { 20 }) == 0
    }

    pub(super) fn chat(&self) -> String {
        format!("chat{}", self.below(CHATS))
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.now >= QUIET
    }

    pub(super) fn run(&mut self) {
        let mut quiet = false;
        while let Some(Reverse(Due { t, what, .. })) = self.queue.pop() {
            if t > END {
                break;
            }
            self.now = t;
            if self.is_quiet() && !quiet {
                quiet = true;
                self.tell("harness", 1, Event::Quiet);
            }
            self.happen(what);
        }
        self.now = END;
        let left = self.machine.snapshot().queues.iter().map(|queue| queue.tickets.len() as u64).sum();
        // Those of replicas that died for good are found by nobody.
        if left == 0 {
            self.tell("harness", 1, Event::Queues { left });
        }
        self.tell("harness", 1, Event::End);
    }

    fn happen(&mut self, what: Happens) {
        match what {
            Happens::Serve { replica, sid, sent, request } => self.serve(replica, sid, sent, request),
            Happens::Deliver { replica, life, message, push } => {
                let to = &self.replicas[replica];
                if to.life != life || !to.up || to.cut || (push && to.deaf) {
                    return;
                }
                if to.stopped_until > self.now {
                    let until = to.stopped_until;
                    return self.push(until, Happens::Deliver { replica, life, message, push });
                }
                self.with(replica, |replica, world| replica.hears(world, message));
            }
            Happens::Timer { replica, life, timer } => {
                let to = &self.replicas[replica];
                if to.life != life || !to.up {
                    return;
                }
                if to.stopped_until > self.now {
                    let until = to.stopped_until;
                    return self.push(until, Happens::Timer { replica, life, timer });
                }
                self.with(replica, |replica, world| replica.rings(world, timer));
            }
            Happens::Arrive { chat, n, sid } => {
                let last = self.resource.get(&chat);
                let accepted = last.is_none_or(|(m, s)| n > *m || (n == *m && sid == *s));
                if accepted {
                    self.resource.insert(chat.clone(), (n, sid.clone()));
                }
                self.tell("resource", 1, Event::Write { chat, n, sid, accepted });
            }
            Happens::Fault => self.fault(),
            Happens::Restart(replica) => self.start(replica),
            Happens::Heal(replica, what) => self.heal(replica, what),
        }
    }

    /// Lends a replica out of the world.
    fn with(&mut self, number: usize, act: impl FnOnce(&mut Replica, &mut Self)) {
        let mut replica = std::mem::replace(&mut self.replicas[number], Replica::new(number));
        self.replicas[number].borrow_from(&replica);
        act(&mut replica, self);
        self.replicas[number] = replica;
    }

    /// From now on its timers are those of this life.
    pub(super) fn with_life(&mut self, number: usize, life: u32) {
        let lent = &mut self.replicas[number];
        (lent.life, lent.up) = (life, true);
    }

    fn start(&mut self, number: usize) {
        self.with(number, Replica::start);
    }

    fn fault(&mut self) {
        if self.is_quiet() {
            return;
        }
        let wait = 400 + self.below(1600);
        self.push(self.now + wait * MS, Happens::Fault);
        let replica = self.below(REPLICAS as u64) as usize;
        let kinds: &[Fault] = match self.plan {
            Plan::Calm | Plan::Overtaking => &[],
            Plan::Kills => &[Fault::Kill],
            Plan::DataLoss => &[Fault::Flushall, Fault::Cut],
            Plan::Cuts => &[Fault::Cut],
            Plan::DeafEars => &[Fault::DropPushes],
            Plan::Random => {
                &[Fault::Kill, Fault::Stop, Fault::Terminate, Fault::Cut, Fault::DropPushes, Fault::Flushall]
            }
        };
        let Some(what) = kinds.get(self.below(kinds.len().max(1) as u64) as usize).copied() else { return };
        let to = &self.replicas[replica];
        if what != Fault::Flushall && (!to.up || to.cut || to.deaf || to.stopped_until > self.now) {
            return;
        }
        self.hit(what, replica);
    }

    fn hit(&mut self, what: Fault, replica: usize) {
        let to = &mut self.replicas[replica];
        let (name, pid) = (to.name.clone(), to.pid());
        let target = (what != Fault::Flushall).then_some(name);
        let event = Event::Nemesis {
            what,
            target,
            target_pid: (what != Fault::Flushall).then_some(pid),
            detail: None,
            until_t: None,
        };
        let lasts = (200 + self.below(3000)) * MS;
        let until = (self.now + lasts).min(QUIET - MS);
        self.tell("harness", 1, event);
        let to = &mut self.replicas[replica];
        match what {
            Fault::Kill => {
                to.up = false;
                self.push(until, Happens::Restart(replica));
            }
            Fault::Terminate => {
                self.with(replica, Replica::terminate);
                self.push(until, Happens::Restart(replica));
            }
            Fault::Stop => {
                to.stopped_until = until;
                self.push(until, Happens::Heal(replica, Fault::Cont));
            }
            Fault::Cut | Fault::DropPushes => {
                to.cut |= what == Fault::Cut;
                to.deaf |= what == Fault::DropPushes;
                self.push(until, Happens::Heal(replica, Fault::Heal));
            }
            _ => {
                self.machine.flush();
                if !self.keeps(Rule::GrowingFences) {
                    (self.small, self.smallest) = (HashMap::new(), 0);
                }
            }
        }
    }

    fn heal(&mut self, replica: usize, what: Fault) {
        let to = &mut self.replicas[replica];
        (to.cut, to.deaf) = (false, false);
        let target = Some(to.name.clone());
        let event = Event::Nemesis { what, target, target_pid: None, detail: None, until_t: None };
        self.tell("harness", 1, event);
    }

    fn fence(&mut self, fence: Fence) -> u64 {
        if self.keeps(Rule::GrowingFences) {
            return fence.0;
        }
        *self.small.entry(fence.0).or_insert_with(|| {
            self.smallest += 1;
            self.smallest
        })
    }

    fn place(&mut self, standing: Standing) -> Place {
        match standing {
            Standing::Granted { fence, previous } => {
                Place::Granted(self.fence(fence), previous.map(|previous| previous.session.to_string()))
            }
            Standing::Waiting { fence, remaining, .. } => {
                let left = remaining.map_or(LEASE, |left| u64::try_from(left.as_nanos()).unwrap());
                Place::Waiting(self.fence(fence), left)
            }
            Standing::Unknown => Place::Unknown,
            _ => Place::Dead,
        }
    }

    fn serve(&mut self, replica: usize, sid: String, sent: u64, request: Request) {
        let (at, id, mut effects) = (Micros(self.now / 1000), SessionId::from(sid.as_str()), Vec::new());
        let ticket = |seq| TicketId { session: id.clone(), seq };
        let lease = Duration::from_nanos(if self.keeps(Rule::LeaseEnds) { LEASE } else { 3 * LEASE });
        let told = match request {
            Request::Open { known, floor } => {
                let known = known.filter(|_| self.keeps(Rule::Grace));
                let opening = Opening { lease: Some(lease), floor: Fence(floor), known: known.as_ref() };
                let _ = self.machine.open(&id, opening, at);
                Some(Told::Opened)
            }
            Request::Beat => {
                let beat = Beat { number: sent, mark: sent };
                let alive = self.machine.beat(&id, beat, at) == Liveness::Alive;
                Some(Told::Beaten { alive })
            }
            Request::Close => {
                self.machine.close(&id, Ending::Closed, at, &mut effects);
                None
            }
            Request::Enter { chat, seq } => {
                let standing = self.machine.enter(&chat, &ticket(seq), at, &mut effects);
                Some(Told::Stands { seq, standing: self.place(standing) })
            }
            Request::Poll { chat, seq } => {
                let standing = self.machine.poll(&chat, &ticket(seq), at, &mut effects);
                Some(Told::Stands { seq, standing: self.place(standing) })
            }
            Request::Leave { chat, seq, acted } => {
                let mut own = ticket(seq);
                if !self.keeps(Rule::OwnerOfLeave) {
                    let queues = self.machine.snapshot().queues;
                    let queue = queues.into_iter().find(|queue| *queue.key == *chat);
                    own = queue.map_or(own, |queue| queue.tickets[0].1.clone());
                }
                if acted || !self.keeps(Rule::UnusedTickets) {
                    self.machine.leave(&chat, &own, Leaving::Done, at, &mut effects);
                } else {
                    self.machine.leave(&chat, &own, Leaving::Unused, at, &mut effects);
                }
                Some(Told::Left { seq })
            }
        };
        let epoch = self.machine.epoch().cloned();
        if let Some(told) = told {
            self.deliver(replica, Message { sid, epoch: epoch.clone(), sent, told }, false);
        }
        for effect in effects {
            self.effect(effect, epoch.clone());
        }
    }

    fn effect(&mut self, effect: Effect, epoch: Option<Epoch>) {
        let (ticket, told) = match effect {
            Effect::Granted { key, ticket, fence, previous } => {
                let (n, prev) = (self.fence(fence), previous.map(|previous| previous.session.to_string()));
                (ticket.clone(), Told::Granted { chat: key.to_string(), seq: ticket.seq, n, prev })
            }
            Effect::Nudged { key, ticket } => {
                (ticket.clone(), Told::Nudged { chat: key.to_string(), seq: ticket.seq })
            }
        };
        let sid = ticket.session.to_string();
        let Some(replica) = self.replicas.iter().position(|replica| sid.starts_with(&replica.incarnation()))
        else {
            return;
        };
        self.deliver(replica, Message { sid, epoch, sent: self.now, told }, true);
    }

    fn deliver(&mut self, replica: usize, message: Message, push: bool) {
        let way = self.below(2 * MS) + MS / 10;
        let life = self.replicas[replica].life;
        self.push(self.now + way, Happens::Deliver { replica, life, message, push });
    }
}
