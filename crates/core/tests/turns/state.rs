//! What there is: the server, the replicas with what they know, and what is under way between them.

use std::fmt;
use std::sync::LazyLock;

use botmesh_core::coordinator::machine::Epoch;
use botmesh_core::id::SessionId;

use crate::server::{Answer, Push, Request, Server};
use crate::setting::{Faults, KEYS, LEASE, MARGIN, Setting};

/// A session of a replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sid {
    pub(crate) replica: u8,
    pub(crate) generation: u8,
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const GENERATIONS: usize = 12;

static SESSIONS: LazyLock<Vec<SessionId>> = LazyLock::new(|| {
    let name = |at: usize| format!("{}.{}", NAMES[at / GENERATIONS], at % GENERATIONS);
    (0..NAMES.len() * GENERATIONS).map(|at| SessionId::from(name(at))).collect()
});

impl Sid {
    pub(crate) fn id(self) -> &'static SessionId {
        &SESSIONS[usize::from(self.replica) * GENERATIONS + usize::from(self.generation)]
    }

    pub(crate) fn of(id: &SessionId) -> Self {
        let at = SESSIONS.iter().position(|known| known == id).expect("a session of the model");
        let small = |number: usize| u8::try_from(number).expect("few sessions");
        Self { replica: small(at / GENERATIONS), generation: small(at % GENERATIONS) }
    }
}

impl fmt::Debug for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id().as_str())
    }
}

/// Where a ticket stands, as far as its replica knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    /// It was asked for. A grant may be faster than the answer.
    Entering {
        granted: bool,
    },
    Waiting,
    /// It has the turn. Once it has called the channel it will give the turn back.
    Held {
        called: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket {
    pub(crate) seq: u8,
    pub(crate) key: u8,
    pub(crate) place: Place,
    pub(crate) number: Option<u64>,
    /// The largest number of the key that anybody had been told when this ticket was asked for.
    pub(crate) after: u64,
}

/// A session that its replica believes in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    pub(crate) id: Sid,
    pub(crate) epoch: Epoch,
    /// When the last acknowledged heartbeat was sent.
    pub(crate) heard: u8,
    pub(crate) valid_until: u8,
    pub(crate) last_seq: u8,
    pub(crate) tickets: Vec<Ticket>,
    /// Given back, and not yet acknowledged: key and number of the request.
    pub(crate) leaving: Vec<(u8, u8)>,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Loss {
    Expired,
    Data,
    Released,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) up: bool,
    pub(crate) generation: u8,
    pub(crate) session: Option<Session>,
    /// Why there is no session.
    pub(crate) lost: Option<Loss>,
    /// A session that ended, of which the server has not been told, and from when on it may be: whoever comes next is
    /// granted then, and what was checked before must have arrived.
    pub(crate) to_close: Option<(Sid, u8)>,
    pub(crate) known: Option<Epoch>,
    /// The largest fence that it saw.
    pub(crate) largest: u64,
    /// When it sent the last request that was answered, if the server is to know.
    pub(crate) witnessed: Option<u8>,
    /// Its messages that have no ticket, by key.
    pub(crate) todo: [u8; KEYS],
}

/// A call of the channel, or a write to the store: on its way since the check of the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Call {
    pub(crate) key: u8,
    pub(crate) number: u64,
    pub(crate) session: Sid,
    pub(crate) seq: u8,
    pub(crate) since: u8,
    /// Its replica stood still after the check.
    pub(crate) stalled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Flying {
    Request(Request),
    Answer(Request, Answer),
    Push(Push),
}

/// What the store and an onlooker know of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    /// The turn of the last write.
    pub(crate) written: Option<(u64, Sid)>,
    /// The largest number that anybody was told.
    pub(crate) acknowledged: u64,
}

/// Promises that a step broke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Offences {
    pub(crate) fence_fell: bool,
    pub(crate) holder_refused: bool,
    pub(crate) overtook: bool,
    pub(crate) revived: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) tick: u8,
    /// What the server's wall clock was set by, in microseconds.
    pub(crate) jumped: i64,
    pub(crate) server: Server,
    /// What a failover goes back to.
    pub(crate) backup: Option<Server>,
    pub(crate) replicas: Vec<Replica>,
    /// Sorted, each once.
    pub(crate) net: Vec<Flying>,
    pub(crate) calls: Vec<Call>,
    pub(crate) rows: [Row; KEYS],
    pub(crate) offences: Offences,
    pub(crate) left: Faults,
}

impl State {
    /// Every replica has a session.
    pub(crate) fn first(setting: &Setting) -> Self {
        let replicas = setting.messages.iter().map(|messages| Replica {
            up: true,
            generation: 0,
            session: None,
            lost: None,
            to_close: None,
            known: None,
            largest: 0,
            witnessed: None,
            todo: *messages,
        });
        let mut state = Self {
            tick: 0,
            jumped: 0,
            server: Server::default(),
            backup: None,
            replicas: replicas.collect(),
            net: Vec::new(),
            calls: Vec::new(),
            rows: [Row::default(); KEYS],
            offences: Offences::default(),
            left: setting.faults,
        };
        for replica in 0..setting.messages.len() {
            state.ask(setting, replica, crate::client::Wish::Open);
        }
        state
    }

    /// Until when a session may act that was heard from at a tick.
    pub(crate) fn valid_until(setting: &Setting, heard: u8) -> u8 {
        let margin = if setting.breaks(crate::setting::Broken::NoMargin) { 0 } else { MARGIN };
        heard + LEASE - margin
    }

    /// Which replicas may act for a key, or have begun to.
    pub(crate) fn acting(&self, key: usize) -> usize {
        let of_key = |at: u8| usize::from(at) == key;
        let acts = |replica: usize| {
            let held = self.replicas[replica].session.iter().flat_map(|session| &session.tickets);
            let mut held = held.filter(|ticket| of_key(ticket.key));
            let calls = |call: &Call| of_key(call.key) && usize::from(call.session.replica) == replica;
            held.any(|ticket| matches!(ticket.place, Place::Held { .. })) || self.calls.iter().any(calls)
        };
        (0..self.replicas.len()).filter(|replica| acts(*replica)).count()
    }

    /// A session that its replica believes in.
    pub(crate) fn session(&mut self, id: Sid) -> Option<&mut Session> {
        self.replicas[usize::from(id.replica)].session.as_mut().filter(|session| session.id == id)
    }

    pub(crate) fn fly(&mut self, flying: Flying) {
        if let Err(at) = self.net.binary_search(&flying) {
            self.net.insert(at, flying);
        }
    }
}
