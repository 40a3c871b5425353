//! What the nemesis does, one function for each fault, and what ends it.

use std::time::Duration;

use botmesh_core::entropy::{SeededEntropy, random_fraction};
use botmesh_test_servers::{Accept, Cluster, Direction, End, Flow, Sentinel};

use super::servers::{Pair, ServerKind, Servers};
use super::{Failure, World, real};
use crate::history::Fault;
use crate::replica::Mode;

/// How often each fault of a process is chosen, beside the others.
pub(super) const PROCESS: &[(Fault, u32)] = &[(Fault::Kill, 3), (Fault::Stop, 4), (Fault::Terminate, 2)];

/// How often each fault of a server or a network is chosen, beside the others.
pub(super) const SERVER: &[(Fault, u32)] = &[
    (Fault::Cut, 3),
    (Fault::HalfOpen, 2),
    (Fault::Hold, 2),
    (Fault::Delay, 2),
    (Fault::DropPushes, 3),
    (Fault::DropReplies, 3),
    (Fault::ClientKill, 2),
    (Fault::ClientPause, 2),
    (Fault::ScriptFlush, 2),
    (Fault::Oom, 1),
    (Fault::ServerStop, 2),
    (Fault::Flushall, 1),
    (Fault::RestartEmpty, 1),
    (Fault::RestartAof, 1),
    (Fault::Promote, 1),
    (Fault::Split, 1),
    (Fault::SlotMoved, 4),
];

/// Whether a run of this kind has this fault.
pub(super) fn is_possible(fault: Fault, server: ServerKind, mode: Mode) -> bool {
    // What a bot has taken over lives on the server: no server that forgets it can be made up for.
    // Of one that takes over, only what it cannot have: but two that take writes for long are two bots.
    if mode == Mode::Bot && matches!(fault, Fault::Flushall | Fault::RestartEmpty | Fault::Split) {
        return false;
    }
    match fault {
        // Clients of sentinels and clusters go round a proxy, and those think that a master that stands still is dead.
        Fault::Cut
        | Fault::HalfOpen
        | Fault::Hold
        | Fault::Delay
        | Fault::DropPushes
        | Fault::DropReplies => server == ServerKind::Redis,
        Fault::ServerStop | Fault::RestartAof | Fault::RestartEmpty | Fault::Split => {
            server == ServerKind::Redis
        }
        Fault::SlotMoved => server == ServerKind::Cluster,
        _ => true,
    }
}

/// Whether it happens to one replica.
pub(super) fn is_for_replica(fault: Fault) -> bool {
    use Fault::{Cut, Delay, DropPushes, DropReplies, HalfOpen, Hold, Kill, Stop, Terminate};
    matches!(fault, Kill | Stop | Terminate | Cut | HalfOpen | Hold | Delay | DropPushes | DropReplies)
}

/// What ends a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undo {
    GoOn(usize),
    Start(usize),
    Heal(usize),
    /// With an end of the connections that the fault has broken.
    Cut(usize),
    Thaw,
    MemoryBack,
    SplitHealed,
}

/// Random numbers of a schedule.
pub(super) struct Dice(SeededEntropy);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(SeededEntropy::new(seed))
    }

    pub(super) fn below(&self, end: usize) -> usize {
        (random_fraction(&self.0) * end as f64) as usize
    }

    pub(super) fn between(&self, least: Duration, most: Duration) -> Duration {
        least + (most - least).mul_f64(random_fraction(&self.0))
    }

    pub(super) fn one_of<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub(super) fn weighted(&self, of: &[(Fault, u32)]) -> Fault {
        let mut rest = self.below(of.iter().map(|(_, weight)| *weight as usize).sum());
        for (fault, weight) in of {
            match rest.checked_sub(*weight as usize) {
                Some(less) => rest = less,
                None => return *fault,
            }
        }
        of[0].0
    }
}

const INSTANT: Duration = Duration::ZERO;

/// How long it takes after that until nobody can write to a server that is replaced.
const DETACHED: Duration = Duration::from_millis(500);

const SILENT: Duration = Duration::from_millis(400);

impl World {
    /// Lets a fault of a process happen to a replica, or of its network. What ends it, after how long.
    pub(super) fn hit_replica(
        &self,
        fault: Fault,
        number: usize,
        dice: &Dice,
    ) -> Result<Option<(Duration, Undo)>, Failure> {
        let lease = self.options.lease;
        match fault {
            Fault::Kill => {
                self.kill(number)?;
                return Ok(Some((dice.between(INSTANT, lease), Undo::Start(number))));
            }
            Fault::Stop => {
                self.stop(number)?;
                return Ok(Some((dice.between(lease / 2, lease * 3), Undo::GoOn(number))));
            }
            Fault::Terminate => {
                self.terminate(number)?;
                return Ok(Some((dice.between(INSTANT, lease / 2), Undo::Start(number))));
            }
            _ => {}
        }
        let Some(proxy) = self.servers.proxies().get(number) else { return Ok(None) };
        let (lasts, direction) =
            (dice.between(lease / 10, lease * 2), dice.one_of(&[Direction::ToServer, Direction::ToClient]));
        let is_short = dice.below(2) == 0;
        let lasts = if fault == Fault::Cut && is_short { INSTANT } else { lasts };
        self.tell(fault, Some(number), Some(lasts), Some(format!("{direction:?}")));
        match fault {
            Fault::Cut => {
                proxy.set_accept(if is_short { Accept::Forward } else { Accept::Close });
                proxy.cut();
            }
            Fault::HalfOpen if is_short => proxy.half_open(End::Server),
            Fault::HalfOpen => {
                proxy.set_accept(Accept::Silent);
                proxy.set(Direction::ToServer, Flow::Drop);
                proxy.set(Direction::ToClient, Flow::Drop);
            }
            Fault::Hold => proxy.set(direction, Flow::Hold),
            Fault::Delay => {
                let delay = dice.between(Duration::from_millis(2), Duration::from_millis(60));
                proxy.set(Direction::ToServer, Flow::Delay(delay));
                proxy.set(Direction::ToClient, Flow::Delay(delay));
            }
            Fault::DropPushes => proxy.drop_pushes(true)?,
            Fault::DropReplies => proxy.lose_replies("EVALSHA", 1 + dice.below(5)),
            _ => {}
        }
        Ok(Some((lasts, if fault == Fault::HalfOpen { Undo::Cut(number) } else { Undo::Heal(number) })))
    }

    /// Lets a fault of the servers happen. What ends it, after how long.
    pub(super) fn hit_servers(&self, fault: Fault, dice: &Dice) -> Result<Option<(Duration, Undo)>, Failure> {
        let lease = self.options.lease;
        let lasts = dice.between(lease / 5, lease * 2);
        match fault {
            Fault::ClientKill => {
                let which = dice.one_of(&["normal", "pubsub"]);
                self.tell(fault, None, Some(INSTANT), Some(which.to_owned()));
                self.servers.command(&["CLIENT", "KILL", "TYPE", which, "SKIPME", "yes"])?;
            }
            Fault::ClientPause => {
                // Sentinels think that a master that is silent for a second is dead.
                let lasts = if self.options.server == ServerKind::Redis { lasts } else { lasts.min(SILENT) };
                self.tell(fault, None, Some(lasts), None);
                self.servers.command(&["CLIENT", "PAUSE", &lasts.as_millis().to_string(), "ALL"])?;
            }
            Fault::ScriptFlush => {
                self.tell(fault, None, Some(INSTANT), None);
                self.servers.command(&["SCRIPT", "FLUSH"])?;
            }
            Fault::Flushall => {
                self.tell(fault, None, Some(INSTANT), None);
                self.servers.command(&["FLUSHALL"])?;
            }
            Fault::Oom => {
                self.tell(fault, None, None, None);
                self.servers.command(&["CONFIG", "SET", "maxmemory", "1"])?;
                return Ok(Some((lasts, Undo::MemoryBack)));
            }
            _ => match &self.servers {
                Servers::One(pair) => return self.hit_pair(fault, pair, lasts, dice),
                Servers::Sentinel(sentinel) => self.fail_over(sentinel, dice)?,
                Servers::Cluster(cluster) if fault == Fault::SlotMoved => self.move_slot(cluster, dice)?,
                Servers::Cluster(cluster) => self.fail_over_in(cluster, dice)?,
            },
        }
        Ok(None)
    }

    fn hit_pair(
        &self,
        fault: Fault,
        pair: &Pair,
        lasts: Duration,
        dice: &Dice,
    ) -> Result<Option<(Duration, Undo)>, Failure> {
        let short = dice.between(INSTANT, self.options.lease / 2);
        self.tell(fault, None, (fault == Fault::Promote).then_some(short + DETACHED), None);
        match fault {
            Fault::ServerStop => {
                pair.master().freeze()?;
                return Ok(Some((lasts, Undo::Thaw)));
            }
            Fault::RestartAof => {
                pair.master().kill()?;
                real::pause(short);
                pair.master().restart()?;
            }
            Fault::RestartEmpty => {
                pair.master().kill()?;
                real::pause(short);
                pair.master().restart_empty()?;
            }
            Fault::Promote => {
                // What is written from here on is lost.
                pair.master().cut_replication()?;
                real::pause(short);
                pair.detach()?;
                pair.swap();
                pair.lead(0..self.options.replicas, pair.master());
                pair.attach()?;
                pair.wait_until_copied();
                return Ok(None);
            }
            Fault::Split => {
                self.divide(pair)?;
                return Ok(Some((self.options.lease + lasts, Undo::SplitHealed)));
            }
            _ => return Ok(None),
        }
        self.tell(Fault::ServerBack, None, None, None);
        Ok(None)
    }

    /// Half of the replicas go on with the master, the other half with its copy, which takes writes of its own.
    fn divide(&self, pair: &Pair) -> Result<(), Failure> {
        pair.master().cut_replication()?;
        pair.detach()?;
        pair.lead((0..self.options.replicas).filter(|number| number % 2 == 1), pair.copy());
        Ok(())
    }

    /// Two servers take writes from now on: that of the replicas with even numbers, and that of the others.
    ///
    /// # Errors
    /// There is only one server, or it does not answer.
    pub fn split(&self) -> Result<(), Failure> {
        let Servers::One(pair) = &self.servers else {
            return Err("only one server with a copy can be split".into());
        };
        self.tell(Fault::Split, None, None, None);
        self.divide(pair)
    }

    /// One server takes writes again, that of the replicas with even numbers.
    ///
    /// # Errors
    /// A server does not answer.
    pub fn unite(&self) -> Result<(), Failure> {
        self.undo(Undo::SplitHealed)
    }

    fn fail_over(&self, sentinel: &Sentinel, dice: &Dice) -> Result<(), Failure> {
        let old = sentinel.master()?;
        let short = dice.between(INSTANT, self.options.lease / 2);
        let follows = || {
            old.info("role").ok().flatten().as_deref() == Some("slave")
                && old.info("master_link_status").ok().flatten().as_deref() == Some("up")
        };
        let dies = dice.below(2) == 0;
        // One that goes on takes writes until it learns that it is the master no more.
        if dies {
            self.tell(Fault::Promote, None, Some(short + DETACHED), None);
        } else {
            self.tell(Fault::Split, None, None, None);
        }
        old.cut_replication()?;
        real::pause(short);
        if dies {
            sentinel.fail_over()?;
            // It comes back as a master, until the sentinels tell it that it is none.
            self.tell(Fault::Split, None, None, None);
            old.restart()?;
        } else {
            sentinel.promote()?;
            old.resume_replication()?;
        }
        if !real::within(Duration::from_secs(30), follows) {
            return Err("the master of before did not become a copy within 30 s".into());
        }
        self.tell(Fault::SplitHealed, None, None, None);
        Ok(())
    }

    fn fail_over_in(&self, cluster: &Cluster, dice: &Dice) -> Result<(), Failure> {
        let masters = self.servers.masters()?;
        let old = masters[dice.below(masters.len())];
        let short = dice.between(INSTANT, self.options.lease / 2);
        self.tell(Fault::Promote, None, Some(short + DETACHED), Some(old.address().to_string()));
        old.cut_replication()?;
        real::pause(short);
        cluster.fail_over(old)?;
        old.restart()?;
        Ok(cluster.wait_until_serving()?)
    }

    /// Moves the slot of some key to another master.
    fn move_slot(&self, cluster: &Cluster, dice: &Dice) -> Result<(), Failure> {
        let masters = self.servers.masters()?;
        let (from, to) = (masters[dice.below(masters.len())], masters[dice.below(masters.len())]);
        let Some(key) = from.command(&["RANDOMKEY"])?.text() else { return Ok(()) };
        if from.address() == to.address() {
            return Ok(());
        }
        let slot = cluster.slot_of(&key)?;
        self.tell(Fault::SlotMoved, None, None, Some(format!("{slot} to {}", to.address())));
        Ok(cluster.move_slot(slot, to)?)
    }

    pub(super) fn undo(&self, undo: Undo) -> Result<(), Failure> {
        match undo {
            Undo::GoOn(number) => self.go_on(number)?,
            Undo::Start(number) => self.start(number)?,
            Undo::Heal(number) | Undo::Cut(number) => {
                if let Some(proxy) = self.servers.proxies().get(number) {
                    proxy.heal();
                    if undo == Undo::Cut(number) {
                        proxy.cut();
                    }
                }
                self.tell(Fault::Heal, Some(number), None, None);
            }
            Undo::MemoryBack => {
                // Also for those that have become masters, and those that were.
                for server in self.servers.all() {
                    server.command(&["CONFIG", "SET", "maxmemory", "0"])?;
                }
                self.tell(Fault::MemoryBack, None, None, None);
            }
            Undo::Thaw => {
                if let Servers::One(pair) = &self.servers {
                    pair.master().thaw()?;
                }
                self.tell(Fault::ServerBack, None, None, None);
            }
            Undo::SplitHealed => {
                if let Servers::One(pair) = &self.servers {
                    pair.lead(0..self.options.replicas, pair.master());
                    pair.attach()?;
                    pair.wait_until_copied();
                }
                self.tell(Fault::SplitHealed, None, None, None);
            }
        }
        Ok(())
    }
}
