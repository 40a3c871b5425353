//! For tests: a machine that is told what to do in words.

use std::time::Duration;

use super::{
    Beat, Effect, Ending, Epoch, Leaving, Limits, Liveness, Locking, Machine, Micros, Moment, Opening,
    Previous, Standing, TicketId,
};
use crate::coordinator::Fence;
use crate::id::SessionId;
use crate::time::Timestamp;

/// A machine driven by words: each command gives one line with its reply and its effects.
pub(super) struct Script {
    pub(super) machine: Machine,
    now: Micros,
    elapsed: Option<Duration>,
    epochs: Vec<Epoch>,
    beats: u64,
}

fn ticket(name: &str) -> TicketId {
    let (session, seq) = name.split_once('.').unwrap();
    TicketId { session: SessionId::from(session), seq: seq.parse().unwrap() }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn after(previous: Option<&Previous>) -> String {
    previous.map_or(String::new(), |Previous { session, given_back }| match given_back {
        true => format!(" after {session}"),
        false => format!(" after dead {session}"),
    })
}

fn standing(standing: Standing) -> String {
    let lease = |remaining: Option<Duration>| {
        remaining.map_or(String::new(), |left| format!(" {}ms", left.as_millis()))
    };
    match standing {
        Standing::Granted { fence, previous } => format!("granted {}{}", fence.0, after(previous.as_ref())),
        Standing::Waiting { fence, holder, remaining } => {
            format!("waiting {} for {holder}{}", fence.0, lease(remaining))
        }
        Standing::Busy { holder, remaining } => format!("busy {holder}{}", lease(remaining)),
        Standing::Overloaded => "overloaded".to_owned(),
        Standing::Unknown => "unknown".to_owned(),
        Standing::Dead => "dead".to_owned(),
    }
}

fn liveness(liveness: Liveness) -> String {
    match liveness {
        Liveness::Alive => "alive".to_owned(),
        Liveness::Dead => "dead".to_owned(),
    }
}

fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Granted { key, ticket, fence, previous } => {
            let TicketId { session, seq } = ticket;
            format!("; {key} to {session}.{seq} {}{}", fence.0, after(previous.as_ref()))
        }
        Effect::Nudged { key, ticket } => format!("; {key} nudges {}.{}", ticket.session, ticket.seq),
    }
}

impl Script {
    pub(super) fn new(limits: Limits) -> Self {
        Self { machine: Machine::new(limits), now: Micros(0), elapsed: None, epochs: Vec::new(), beats: 0 }
    }

    fn open(&mut self, id: &str, at: Moment, opening: Opening<'_>) -> String {
        let reply = liveness(self.machine.open(&SessionId::from(id), opening, at));
        let epoch = self.machine.epoch().unwrap().clone();
        if self.epochs.last() != Some(&epoch) {
            self.epochs.push(epoch);
        }
        reply
    }

    /// The heartbeat of this number and mark; the next one if none is named.
    fn beat(&mut self, id: &str, words: &[&str], at: Moment) -> String {
        self.beats += 1;
        let beat = match words {
            [number, mark] => Beat { number: number.parse().unwrap(), mark: mark.parse().unwrap() },
            _ => Beat { number: self.beats, mark: 0 },
        };
        liveness(self.machine.beat(&SessionId::from(id), beat, at))
    }

    fn leave(
        &mut self,
        key: &str,
        name: &str,
        leaving: Leaving,
        at: Moment,
        effects: &mut Vec<Effect>,
    ) -> String {
        self.machine.leave(key, &ticket(name), leaving, at, effects).to_string()
    }

    /// The caller's own clock is told once.
    fn at(&mut self) -> Moment {
        Moment { now: self.now, elapsed: self.elapsed.take() }
    }

    pub(super) fn run(&mut self, command: &str) -> String {
        let mut effects = Vec::new();
        let words: Vec<_> = command.split(' ').collect();
        let out = &mut effects;
        let at = self.at();
        let mut reply = match *words {
            ["at", time] => {
                self.now = Timestamp::from_millis(time.parse().unwrap()).into();
                return String::new();
            }
            ["elapsed", time] => {
                self.elapsed = Some(millis(time));
                return String::new();
            }
            ["flush"] => {
                self.machine.flush();
                return String::new();
            }
            ["open", id] => self.open(id, at, Opening::default()),
            ["open", id, lease] => {
                self.open(id, at, Opening { lease: Some(millis(lease)), ..Opening::default() })
            }
            ["reopen", id, lease] => {
                let known = self.epochs.last().cloned();
                self.open(
                    id,
                    at,
                    Opening { lease: Some(millis(lease)), known: known.as_ref(), ..Opening::default() },
                )
            }
            ["floor", id, floor] => {
                self.open(id, at, Opening { floor: Fence(floor.parse().unwrap()), ..Opening::default() })
            }
            ["raise", floor] => {
                self.machine.raise_floor(Fence(floor.parse().unwrap()));
                return String::new();
            }
            ["beat", id, ref beat @ ..] => self.beat(id, beat, at),
            ["close", id] => {
                self.machine.close(&SessionId::from(id), Ending::Closed, at, out);
                String::new()
            }
            ["lose", id] => {
                self.machine.close(&SessionId::from(id), Ending::Lost, at, out);
                String::new()
            }
            ["enter", key, name] => standing(self.machine.enter(key, &ticket(name), at, out)),
            ["try", key, name] => standing(self.machine.try_enter(key, &ticket(name), at, out)),
            ["leave", key, name] => self.leave(key, name, Leaving::Done, at, out),
            ["abandon", key, name] => self.leave(key, name, Leaving::Abandoned, at, out),
            ["cancel", key, name] => self.leave(key, name, Leaving::Unused, at, out),
            ["poll", key, name] => standing(self.machine.poll(key, &ticket(name), at, out)),
            ["lock", key, token, ttl] => match self.machine.lock_acquire(key, token, millis(ttl), at) {
                Locking::Acquired(fence) => format!("acquired {}", fence.0),
                Locking::Unopened => "unopened".to_owned(),
                Locking::Busy { remaining } => format!("busy {}ms", remaining.as_millis()),
            },
            ["renew", key, token, ttl] => {
                let renewed = self.machine.lock_renew(key, token, millis(ttl), at);
                renewed.map_or("lost".to_owned(), |fence| format!("renewed {}", fence.0))
            }
            ["unlock", key, token] => self.machine.lock_release(key, token, at).to_string(),
            _ => panic!("no command: {command}"),
        };
        reply.extend(effects.iter().map(effect));
        reply
    }
}

pub(super) fn idle(max_idle_keys: usize) -> Limits {
    Limits { max_idle_keys, ..Limits::default() }
}

/// Runs lines of `command = reply; effects`. A command without `=` may answer anything.
pub(super) fn check(rule: &str, limits: Limits, lines: &str) {
    let mut script = Script::new(limits);
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.split_once(" = ") {
            Some((command, expected)) => assert_eq!(script.run(command), expected, "{rule}: {line}"),
            None => {
                script.run(line);
            }
        }
    }
}
