//! The server: the real ticket machine, and what becomes of its effects.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use botmesh_core::coordinator::Fence;
use botmesh_core::coordinator::machine::{
    Beat, Effect, Ending, Epoch, Leaving, Limits, Liveness, Machine, Micros, Moment, Opening, Snapshot,
    Standing, TicketId,
};

use crate::setting::{Broken, LEASE, Setting, TICK};
use crate::state::{Flying, Place, Session, Sid, State};

/// A machine, compared by everything that it knows.
#[derive(Clone, Debug)]
pub(crate) struct Server(Arc<(Machine, Snapshot)>);

impl Server {
    fn new(machine: Machine) -> Self {
        let snapshot = machine.snapshot();
        Self(Arc::new((machine, snapshot)))
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.0.1
    }

    /// Whether a session lived at the last request.
    pub(crate) fn lives(&self, id: Sid) -> bool {
        let Snapshot { sessions, clock, .. } = self.snapshot();
        let session = sessions.iter().find(|(known, _)| known == id.id());
        session.is_some_and(|(_, end)| end.is_none_or(|end| clock.1 < end))
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new(Machine::new(Limits::default()))
    }
}

impl PartialEq for Server {
    fn eq(&self, other: &Self) -> bool {
        self.snapshot() == other.snapshot()
    }
}

impl Eq for Server {}

impl Hash for Server {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.snapshot().hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Op {
    Open {
        known: Option<Epoch>,
        floor: u64,
    },
    Beat,
    /// Whether what it had was given back.
    Close {
        gives_back: bool,
    },
    Enter {
        key: u8,
        seq: u8,
        floor: u64,
    },
    Leave {
        key: u8,
        seq: u8,
    },
    Poll {
        key: u8,
        seq: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Request {
    pub(crate) session: Sid,
    pub(crate) op: Op,
    pub(crate) sent: u8,
    /// How much time its sender saw pass, in ticks.
    pub(crate) elapsed: Option<u8>,
}

/// Where a ticket stands, as far as its sender needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum What {
    Granted(u64),
    Waiting(u64),
    Unknown,
    Alive,
    Dead,
    Left,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Answer {
    pub(crate) epoch: Option<Epoch>,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Push {
    pub(crate) epoch: Option<Epoch>,
    pub(crate) session: Sid,
    pub(crate) key: u8,
    pub(crate) seq: u8,
    /// The number of a ticket that became the head; `None` for a nudge.
    pub(crate) grants: Option<u64>,
}

const NAMES: [&str; 2] = ["x", "y"];

fn key_of(name: &str) -> u8 {
    u8::from(name != NAMES[0])
}

fn seq_of(ticket: &TicketId) -> u8 {
    u8::try_from(ticket.seq).expect("few tickets")
}

impl From<Standing> for What {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Granted { fence, .. } => Self::Granted(fence.0),
            Standing::Waiting { fence, .. } => Self::Waiting(fence.0),
            Standing::Unknown => Self::Unknown,
            Standing::Dead => Self::Dead,
            Standing::Busy { .. } | Standing::Overloaded => unreachable!("nobody tries, and few wait"),
        }
    }
}

impl From<Liveness> for What {
    fn from(liveness: Liveness) -> Self {
        match liveness {
            Liveness::Alive => Self::Alive,
            Liveness::Dead => Self::Dead,
        }
    }
}

/// Long before anything happens, in microseconds.
const START: i64 = 100_000;
/// What losing its data takes a server at least, in microseconds.
const RESTART: i64 = 100;
/// No process has a copy here, and one heartbeat is like another.
const BEAT: Beat = Beat { number: 0, mark: 0 };

fn carry_out(
    machine: &mut Machine,
    setting: &Setting,
    request: &Request,
    at: Moment,
    effects: &mut Vec<Effect>,
) -> What {
    let id = request.session.id();
    let name = |seq: u8| TicketId { session: id.clone(), seq: seq.into() };
    match &request.op {
        Op::Open { known, floor } => {
            let lease = Some(TICK * u32::from(LEASE));
            let opening = Opening { lease, floor: Fence(*floor), known: known.as_ref() };
            machine.open(id, opening, at).into()
        }
        Op::Beat => match machine.beat(id, BEAT, at) {
            Liveness::Dead if setting.breaks(Broken::BeatUnchecked) => What::Alive,
            liveness => liveness.into(),
        },
        Op::Close { gives_back } => {
            let ending = if *gives_back { Ending::Closed } else { Ending::Lost };
            machine.close(id, ending, at, effects);
            What::Dead
        }
        Op::Enter { key, seq, floor } => {
            machine.raise_floor(Fence(*floor));
            machine.enter(NAMES[usize::from(*key)], &name(*seq), at, effects).into()
        }
        Op::Leave { key, seq } => {
            let key = NAMES[usize::from(*key)];
            let left = machine.leave(key, &name(*seq), Leaving::Done, at, effects);
            if !left && setting.breaks(Broken::LeaveUnchecked) {
                let snapshot = machine.snapshot();
                let head = snapshot.queues.iter().find(|queue| *queue.key == *key);
                if let Some((_, head)) = head.and_then(|queue| queue.tickets.first()) {
                    machine.leave(key, head, Leaving::Done, at, effects);
                }
            }
            What::Left
        }
        Op::Poll { key, seq } => machine.poll(NAMES[usize::from(*key)], &name(*seq), at, effects).into(),
    }
}

impl State {
    fn wall(&self) -> i64 {
        let tick = i64::try_from(TICK.as_micros()).expect("short");
        START + i64::from(self.tick) * tick + self.jumped
    }

    /// The server carries out a request. What it has to tell others is under way then.
    pub(crate) fn serve(&mut self, setting: &Setting, request: &Request) -> Answer {
        let elapsed = request.elapsed.map(|ticks| TICK * u32::from(ticks));
        let at = Moment { now: Micros(self.wall().unsigned_abs()), elapsed };
        let mut effects = Vec::new();
        let mut machine = self.server.0.0.clone();
        let what = carry_out(&mut machine, setting, request, at, &mut effects);
        let before = std::mem::replace(&mut self.server, Server::new(machine));
        let opens = matches!(request.op, Op::Open { .. });
        let succeeds = matches!(what, What::Alive | What::Granted(_) | What::Waiting(_));
        let was_opened = before.snapshot().sessions.iter().any(|known| known.0 == *request.session.id());
        self.offences.revived |= succeeds && !before.lives(request.session) && (!opens || was_opened);
        if let (What::Granted(number), Op::Enter { key, .. } | Op::Poll { key, .. }) = (what, &request.op) {
            self.watch_order(setting, *key, number);
        }
        let epoch = self.server.snapshot().epoch.clone();
        for effect in effects {
            self.push(setting, epoch.clone(), &effect);
        }
        Answer { epoch, what }
    }

    fn push(&mut self, setting: &Setting, epoch: Option<Epoch>, effect: &Effect) {
        let (key, ticket, grants) = match effect {
            Effect::Granted { key, ticket, fence, .. } => (key, ticket, Some(fence.0)),
            Effect::Nudged { key, ticket } => (key, ticket, None),
        };
        let (key, session, seq) = (key_of(key), Sid::of(&ticket.session), seq_of(ticket));
        if let Some(number) = grants {
            self.watch_order(setting, key, number);
        }
        self.fly(Flying::Push(Push { epoch, session, key, seq, grants }));
    }

    /// Nobody is granted a turn before an earlier ticket whose session lives.
    fn watch_order(&mut self, setting: &Setting, key: u8, number: u64) {
        if setting.faults.failovers > 0 {
            return;
        }
        let overtaken = |session: &Session| {
            self.server.lives(session.id)
                && self.server.snapshot().epoch.as_ref() == Some(&session.epoch)
                && session
                    .tickets
                    .iter()
                    .any(|ticket| ticket.key == key && ticket.number.is_some_and(|earlier| earlier < number))
        };
        let sessions = self.replicas.iter().filter_map(|replica| replica.session.as_ref());
        if sessions.into_iter().any(overtaken) {
            self.offences.overtook = true;
        }
    }

    /// Whether a ticket has the turn in the eyes of the server.
    pub(crate) fn is_holder(&self, key: u8, session: Sid, number: u64) -> bool {
        let Snapshot { queues, grace, clock, .. } = self.server.snapshot();
        let queue = queues.iter().find(|queue| *queue.key == *NAMES[usize::from(key)]);
        let head = queue.and_then(|queue| queue.tickets.first());
        clock.1 >= grace.1
            && self.server.lives(session)
            && head.is_some_and(|(fence, head)| head.session == *session.id() && fence.0 == number)
    }

    /// Whether the server has a ticket whose session lives, and its replica too.
    pub(crate) fn has_ticket_of_living(&self) -> bool {
        let tickets = self.server.snapshot().queues.iter().flat_map(|queue| &queue.tickets);
        let mut sessions = tickets.map(|(_, ticket)| Sid::of(&ticket.session));
        sessions.any(|id| self.replicas[usize::from(id.replica)].up && self.server.lives(id))
    }

    /// Whether the server has a ticket that its living session does not know.
    pub(crate) fn has_ghost(&self) -> bool {
        let tickets = self
            .server
            .snapshot()
            .queues
            .iter()
            .flat_map(|queue| queue.tickets.iter().map(|(_, ticket)| (key_of(&queue.key), ticket)));
        let is_ghost = |(key, ticket): (u8, &TicketId)| {
            let (sid, seq) = (Sid::of(&ticket.session), seq_of(ticket));
            let replica = &self.replicas[usize::from(sid.replica)];
            let session = replica.session.as_ref().filter(|session| session.id == sid);
            session.is_some_and(|session| {
                let known = |ticket: &crate::state::Ticket| ticket.seq == seq && ticket.key == key;
                !session.tickets.iter().any(known) && !session.leaving.contains(&(key, seq))
            })
        };
        tickets.into_iter().any(is_ghost)
    }

    /// Whether a turn that was not given back went to somebody else.
    pub(crate) fn was_taken_over(&self) -> bool {
        self.server.snapshot().queues.iter().any(|queue| {
            let previous = queue.previous.as_ref().map(|previous| Sid::of(&previous.session));
            let holds = |session: &Session| {
                let key = key_of(&queue.key);
                let held = |place| matches!(place, Place::Held { .. });
                session.tickets.iter().any(|ticket| ticket.key == key && held(ticket.place))
            };
            previous.is_some_and(|previous| {
                let sessions = self.replicas.iter().filter_map(|replica| replica.session.as_ref());
                let mut others = sessions.filter(|session| session.id.replica != previous.replica);
                !self.replicas[usize::from(previous.replica)].up && others.any(holds)
            })
        })
    }

    /// The server loses all it knows.
    pub(crate) fn flush(&mut self, setting: &Setting) {
        self.server = Server::default();
        self.jumped += RESTART;
        if setting.breaks(Broken::CountedFences) {
            self.jumped -= self.wall();
        }
    }

    /// Another server goes on with what it was told some time ago.
    pub(crate) fn fail_over(&mut self) {
        if let Some(backup) = self.backup.take() {
            self.server = backup;
            self.jumped += RESTART;
        }
    }
}
