//! What a run of the model is about: who has which messages, what may go wrong, and the rule that is broken to test the
//! checker itself.

use std::fmt;
use std::time::Duration;

/// One tick of all clocks.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// How long a session lives after it is heard from, in ticks.
pub(crate) const LEASE: u8 = 3;
/// How long before that its replica stops acting: as long as a call of the channel takes at most.
pub(crate) const MARGIN: u8 = 1;
pub(crate) const KEYS: usize = 2;

/// How often each thing may go wrong. Together with the ticks they bound the states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// A request arrives later, after others, or never; or its answer does. Its sender may send it again meanwhile. Pushes
    /// are late, out of order or lost as they like.
    pub(crate) network: u8,
    /// A heartbeat is not sent.
    pub(crate) missed: u8,
    /// The wait for a turn is given up.
    pub(crate) dropped: u8,
    /// A replica dies.
    pub(crate) crashes: u8,
    /// A replica that died starts again, as one that knows nothing.
    pub(crate) restarts: u8,
    /// A replica stops in an orderly way.
    pub(crate) closes: u8,
    /// The server loses its data.
    pub(crate) flushes: u8,
    /// The server goes on with what it knew some time ago.
    pub(crate) failovers: u8,
    /// The server's wall clock is set forward, by more than a lease.
    pub(crate) forward: u8,
    /// The server's wall clock is set back.
    pub(crate) back: u8,
    /// A replica stands still between its check and what it then does, for as long as it likes.
    pub(crate) stalls: u8,
}

/// A rule that the program keeps, broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A session does not say which epoch its replica knew, so that turns are given at once after a loss of data.
    NoGrace,
    /// A heartbeat succeeds whether its session lives or not.
    BeatUnchecked,
    /// A grant or a nudge for a ticket that the replica does not know is ignored.
    GhostsKept,
    /// Numbers are counted from one.
    CountedFences,
    /// A replica does not say which fences it saw.
    NoFloor,
    /// A replica acts until the end of its lease.
    NoMargin,
    /// A session that was lost is closed while what was checked before may be on its way.
    ClosesAtOnce,
    /// The next ticket of a chat is asked for before the one before is answered.
    TicketsAtOnce,
    /// The store takes writes of any fence.
    FenceUnchecked,
    /// Giving a ticket back takes the turn from whoever has it.
    LeaveUnchecked,
}

/// The messages of each replica by key, the clock's end, and what may go wrong until then.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) messages: &'static [[u8; KEYS]],
    pub(crate) ticks: u8,
    pub(crate) faults: Faults,
    pub(crate) broken: Option<Broken>,
    /// What must be seen to happen.
    pub(crate) shows: &'static [&'static str],
}

impl Setting {
    pub(crate) fn new(messages: &'static [[u8; KEYS]], ticks: u8, faults: Faults) -> Self {
        Self { messages, ticks, faults, broken: None, shows: &[] }
    }

    pub(crate) fn showing(mut self, shows: &'static [&'static str]) -> Self {
        self.shows = shows;
        self
    }

    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// Whether two replicas may act at a time, so that only the fence tells. A server that lost acknowledged writes, or
    /// whose clock was set forward, ends leases early; a replica that knows nothing begins a new epoch without a grace; and
    /// nothing helps a replica that stands still after its check.
    pub(crate) fn may_overlap(&self) -> bool {
        let Faults { failovers, forward, stalls, flushes, restarts, .. } = self.faults;
        failovers + forward + stalls > 0 || (flushes > 0 && restarts > 0)
    }

    /// Whether fences may fall for a time: the server lost them, and its clock does not make up for it.
    pub(crate) fn may_fall_back(&self) -> bool {
        self.faults.flushes > 0 && self.faults.back > 0 && self.messages.len() > 1
    }

    /// Whether all replicas have the same messages, so that it does not matter which one begins.
    pub(crate) fn is_symmetric(&self) -> bool {
        self.messages.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Whether requests tell the server how much time passed. Otherwise its clock is right anyway.
    pub(crate) fn witnesses(&self) -> bool {
        self.faults.forward + self.faults.back > 0
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults {
            network,
            missed,
            dropped,
            crashes,
            restarts,
            closes,
            flushes,
            failovers,
            forward,
            back,
            stalls,
        } = self.faults;
        write!(f, "messages {:?}, {} ticks", self.messages, self.ticks)?;
        let faults = [
            ("network", network),
            ("missed", missed),
            ("dropped", dropped),
            ("crashes", crashes),
            ("restarts", restarts),
            ("closes", closes),
            ("flushes", flushes),
            ("failovers", failovers),
            ("forward", forward),
            ("back", back),
            ("stalls", stalls),
        ];
        for (name, times) in faults.iter().filter(|(_, times)| *times > 0) {
            write!(f, ", {name} {times}")?;
        }
        self.broken.map_or(Ok(()), |rule| write!(f, ", broken: {rule:?}"))
    }
}
