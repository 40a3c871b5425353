//! A run: random faults for some time, then none, and the end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::faults::{self, Dice, Undo};
use super::real::{self, Watch};
use super::{Failure, ServerKind, World};
use crate::history::Fault;
use crate::replica::Mode;

/// How long replicas may do nothing of what is owed once nothing hinders them. How long all of it takes depends on the machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// How long the world looks away between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long faults happen.
    pub faults_for: Duration,
    /// Only these; all that are possible if empty.
    pub only: Vec<Fault>,
    /// The longest time between two faults of processes, and between two of servers and networks.
    pub rests: (Duration, Duration),
    /// How long the replicas go on after the last fault.
    pub quiet_for: Duration,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// For how long, in seconds.
    pub seconds: u64,
    /// Faults so far.
    pub faults: usize,
    /// Replicas that had ended by themselves and were started again.
    pub revived: usize,
}

impl World {
    /// Starts the replicas, lets the faults happen, and ends everything. `shows` is called about every 10 s.
    ///
    /// # Errors
    /// The world itself failed, a replica did not end as it should, or what is owed was not done.
    pub fn run(&self, plan: &Plan, mut shows: impl FnMut(&Self, Progress)) -> Result<Progress, Failure> {
        self.start_all()?;
        let mut progress = Progress::default();
        let (watch, mut shown) = (Watch::start(), 0);
        let mut processes = Schedule::new(self, plan, faults::PROCESS, plan.rests.0, 1);
        let mut servers = Schedule::new(self, plan, faults::SERVER, plan.rests.1, 2);
        let counted = AtomicUsize::new(0);
        let mut says = Says { dice: Dice::new(self.options.seed ^ 3), at: Duration::ZERO };
        thread::scope(|scope| {
            let others = thread::Builder::new()
                .name("nemesis".into())
                .spawn_scoped(scope, || servers.run(watch, plan.faults_for, &counted))?;
            // Replicas are started by this thread alone: they end with the thread that started them.
            while watch.elapsed() < plan.faults_for {
                processes.look(watch)?;
                says.look(self, watch);
                progress.revived += self.revive()?;
                progress.seconds = watch.elapsed().as_secs();
                progress.faults = processes.faults + counted.load(Ordering::Relaxed);
                if progress.seconds / 10 > shown {
                    shown = progress.seconds / 10;
                    shows(self, progress);
                }
                real::pause(LOOK);
            }
            processes.end()?;
            match others.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        self.conclude(plan.quiet_for)?;
        progress.faults = processes.faults + servers.faults;
        progress.seconds = watch.elapsed().as_secs();
        Ok(progress)
    }

    /// Ends what a run or a test began: nothing hinders the replicas for `quiet_for`, what is owed is done, they end, and
    /// whatever is left on the servers is written down.
    ///
    /// # Errors
    /// A replica does not end as it should, or what is owed was not done.
    pub fn conclude(&self, quiet_for: Duration) -> Result<(), Failure> {
        self.start_all()?;
        self.quiet();
        self.settle(quiet_for)?;
        self.finish()
    }

    fn settle(&self, quiet_for: Duration) -> Result<(), Failure> {
        let watch = Watch::start();
        let mut measured = false;
        while watch.elapsed() < quiet_for {
            self.revive()?;
            // What the faults have cost is over.
            if !measured && watch.elapsed() > self.options.lease * 2 + LOOK {
                measured = true;
                self.measure()?;
            }
            real::pause(LOOK);
        }
        if measured {
            self.measure()?;
        }
        if self.options.mode != Mode::Bot {
            return Ok(());
        }
        loop {
            let before = self.provider.messages();
            let mut failed = None;
            let goes_on = real::within(SETTLES_WITHIN, || {
                failed = self.revive().err();
                failed.is_some() || self.is_settled() || self.provider.messages() != before
            });
            match failed {
                Some(error) => return Err(error),
                None if self.is_settled() => return Ok(()),
                None if goes_on => {}
                None => {
                    let (said, taken, replies) = before;
                    return Err(format!(
                        "of {said} messages {taken} were taken over and {replies} answered after the last fault, and none for {SETTLES_WITHIN:?}"
                    )
                    .into());
                }
            }
        }
    }

    /// Writes down what the servers did so far, if turns alone are what they do. On a Cluster it is not told how many of its parts
    /// a replica uses, each of which has heartbeats of its own.
    fn measure(&self) -> Result<(), Failure> {
        if self.options.mode == Mode::Bare && self.options.server != ServerKind::Cluster {
            self.history.record(self.servers.usage()?);
        }
        Ok(())
    }
}

/// Users who write to a bot.
struct Says {
    dice: Dice,
    at: Duration,
}

impl Says {
    fn look(&mut self, world: &World, watch: Watch) {
        if world.options.mode == Mode::Bot && watch.elapsed() >= self.at {
            let chats = usize::try_from(world.options.chats).unwrap_or(1);
            world.provider.say(&format!("chat{}", self.dice.below(chats)));
            self.at = watch.elapsed() + self.dice.between(LOOK, LOOK * 8);
        }
    }
}

/// Faults of one kind, one after the other, each until its end.
struct Schedule<'a> {
    world: &'a World,
    of: Vec<(Fault, u32)>,
    dice: Dice,
    rest: Duration,
    next: Duration,
    undos: Vec<(Duration, Undo)>,
    faults: usize,
}

impl<'a> Schedule<'a> {
    fn new(world: &'a World, plan: &Plan, of: &[(Fault, u32)], rest: Duration, stream: u64) -> Self {
        let options = &world.options;
        let possible = of.iter().filter(|(fault, _)| {
            (plan.only.is_empty() || plan.only.contains(fault))
                && faults::is_possible(*fault, options.server, options.mode)
        });
        let dice = Dice::new(options.seed.wrapping_mul(7).wrapping_add(stream));
        let next = dice.between(Duration::ZERO, rest) + Duration::from_secs(1);
        Self { world, of: possible.copied().collect(), dice, rest, next, undos: Vec::new(), faults: 0 }
    }

    fn run(&mut self, watch: Watch, until: Duration, counted: &AtomicUsize) -> Result<(), Failure> {
        while watch.elapsed() < until {
            self.look(watch)?;
            counted.store(self.faults, Ordering::Relaxed);
            real::pause(LOOK);
        }
        self.end()
    }

    fn look(&mut self, watch: Watch) -> Result<(), Failure> {
        let now = watch.elapsed();
        while let Some(place) = self.undos.iter().position(|(at, _)| *at <= now) {
            let (_, undo) = self.undos.swap_remove(place);
            self.world.undo(undo)?;
        }
        if now < self.next || self.of.is_empty() {
            return Ok(());
        }
        let fault = self.dice.weighted(&self.of);
        if let Some(undo) = self.hit(fault)? {
            self.undos.push((watch.elapsed() + undo.0, undo.1));
        }
        self.next = watch.elapsed() + self.dice.between(self.rest / 5, self.rest);
        Ok(())
    }

    fn hit(&mut self, fault: Fault) -> Result<Option<(Duration, Undo)>, Failure> {
        let number = self.dice.below(self.world.options.replicas);
        let is_hit = |undo: &Undo| matches!(undo, Undo::GoOn(at) | Undo::Start(at) | Undo::Heal(at) | Undo::Cut(at) if *at == number);
        let of_server = |undo: &Undo| matches!(undo, Undo::Thaw | Undo::MemoryBack | Undo::SplitHealed);
        let busy = |hits: &dyn Fn(&Undo) -> bool| self.undos.iter().any(|(_, undo)| hits(undo));
        let for_replica = faults::is_for_replica(fault);
        // One at a time of each replica, and of the server.
        if (for_replica && busy(&is_hit)) || (!for_replica && busy(&of_server)) {
            return Ok(None);
        }
        self.faults += 1;
        match for_replica {
            true => self.world.hit_replica(fault, number, &self.dice),
            false => self.world.hit_servers(fault, &self.dice),
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        std::mem::take(&mut self.undos).into_iter().try_for_each(|(_, undo)| self.world.undo(undo))
    }
}
