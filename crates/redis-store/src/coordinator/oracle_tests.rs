//! Random operations on core's machine and on the real scripts, under one clock that the test sets: every answer, every
//! push and every epoch must be equal.

use std::sync::Arc;
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::coordinator::Fence;
use botmesh_core::coordinator::machine::{
    Beat, Effect, Ending, Epoch, Leaving, Limits, Liveness, Locking, Machine, Micros, Moment, Opening,
    Standing, TicketId,
};
use botmesh_core::id::SessionId;
use botmesh_test_servers::{Connection, Options, Redis, Reply};
use proptest::prelude::*;

use super::bucket::{Bucket, wake};
use super::wire::{Asked, Push, Texts, letter, word};
use crate::scripts::{self, Script};

const KEYS: [&str; 3] = ["x", "y", "a|b:c"];
const REPLICAS: usize = 3;
const LIMITS: Limits = Limits { max_idle_keys: usize::MAX, idle_ttl: None, max_waiters: 3 };
const HOUR_MILLIS: &str = "3600000";
const BEGIN: i64 = 1_764_450_000_000_000;

#[derive(Clone, Debug)]
enum Op {
    /// The replica's next session; with a lease in milliseconds, and the epoch that it knew if it says so.
    Open(usize, u64, bool),
    /// Its next one, the last one again, or one of a copy.
    Beat(usize, Pulse),
    Close(usize, Ending),
    Enter(usize, usize, bool),
    Repeat(usize),
    Leave(usize, Leaving),
    /// Tickets of a replica in one call: a key to take one, or one of the last to give it back.
    Together(usize, Vec<Result<usize, (usize, Leaving)>>),
    Poll(usize),
    Sweep(usize),
    Lock(usize, usize),
    Renew(usize, usize),
    Unlock(usize, usize),
    Flush,
    /// Microseconds on the wall clock, and milliseconds that the next caller saw pass.
    Clock(i64, Option<u64>),
}

fn op() -> impl Strategy<Value = Op> {
    let (replica, key) = (0..REPLICAS, 0..KEYS.len());
    let pulse = prop_oneof![6 => Just(Pulse::Next), 2 => Just(Pulse::Again), 1 => Just(Pulse::Copied)];
    let leaving = prop_oneof![
        4 => Just(Leaving::Done),
        2 => Just(Leaving::Abandoned),
        3 => Just(Leaving::Unused),
    ];
    let part = prop_oneof![
        1 => key.clone().prop_map(Ok),
        1 => (any::<usize>(), leaving.clone()).prop_map(Err),
    ];
    let clock = prop_oneof![
        8 => -5_000i64..15_000,
        1 => prop_oneof![Just(3_600_000_000), Just(-3_600_000_000)],
    ];
    prop_oneof![
        3 => (replica.clone(), 5u64..40, any::<bool>()).prop_map(|(r, lease, known)| Op::Open(r, lease, known)),
        4 => (replica.clone(), pulse).prop_map(|(r, pulse)| Op::Beat(r, pulse)),
        1 => (replica.clone(), prop_oneof![Just(Ending::Closed), Just(Ending::Lost)])
            .prop_map(|(r, ending)| Op::Close(r, ending)),
        12 => (key.clone(), replica.clone(), prop::bool::weighted(0.8)).prop_map(|(k, r, w)| Op::Enter(k, r, w)),
        2 => any::<usize>().prop_map(Op::Repeat),
        8 => (any::<usize>(), leaving).prop_map(|(which, leaving)| Op::Leave(which, leaving)),
        8 => (replica.clone(), prop::collection::vec(part, 1..7)).prop_map(|(r, parts)| Op::Together(r, parts)),
        5 => any::<usize>().prop_map(Op::Poll),
        1 => key.clone().prop_map(Op::Sweep),
        2 => (key.clone(), replica.clone()).prop_map(|(k, r)| Op::Lock(k, r)),
        1 => (key.clone(), replica.clone()).prop_map(|(k, r)| Op::Renew(k, r)),
        1 => (key, replica).prop_map(|(k, r)| Op::Unlock(k, r)),
        1 => Just(Op::Flush),
        6 => (clock, prop::option::of(0u64..20)).prop_map(|(by, elapsed)| Op::Clock(by, elapsed)),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Pulse {
    Next,
    Again,
    Copied,
}

/// The scripts on a server that takes the time from the last two arguments and keeps its pushes in lists.
struct Scripts {
    connection: Connection,
    bucket: Bucket,
}

impl Scripts {
    fn run(&mut self, script: &Script, keys: &[Bytes], at: Moment, args: &[&str]) -> (Option<Epoch>, Texts) {
        let (epoch, texts) = Texts::new(&self.text(script, keys, at, args)).unwrap();
        (epoch.map(|epoch| Epoch(String::from_utf8(epoch.to_vec()).unwrap().into())), texts)
    }

    fn text(&mut self, script: &Script, keys: &[Bytes], at: Moment, args: &[&str]) -> Bytes {
        let text = script.text.replace("redis.call('TIME')", "{ARGV[#ARGV - 1], ARGV[#ARGV]}");
        let text = text.replace("redis.pcall('PUBLISH', ", "redis.call('RPUSH', ");
        assert!(!text.contains("'TIME'") && !text.contains("'PUBLISH'"));
        let mut all: Vec<Bytes> = vec!["EVAL".into(), text.into(), keys.len().to_string().into()];
        all.extend_from_slice(keys);
        let elapsed = at.elapsed.map(|elapsed| elapsed.as_micros().to_string()).unwrap_or_default();
        all.push(elapsed.into());
        all.extend(args.iter().map(|arg| Bytes::copy_from_slice(arg.as_bytes())));
        let (seconds, micros) = (at.now.0 / 1_000_000, at.now.0 % 1_000_000);
        all.extend([seconds.to_string().into(), micros.to_string().into()]);
        self.connection.command(&all).unwrap().text().unwrap().into()
    }

    fn pushed(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for replica in 0..REPLICAS {
            let list = wake("p", &format!("r{replica}"));
            let texts = self.connection.command(&["LRANGE", &list, "0", "-1"]).unwrap();
            for text in texts.items().iter().map(|item| item.text().unwrap()) {
                effects.push(effect(Push::parse(&text).unwrap()));
            }
            self.connection.command(&["DEL", &list]).unwrap();
        }
        effects
    }
}

fn effect(push: Push) -> Effect {
    let ticket = TicketId { session: push.session, seq: push.seq };
    match push.grants {
        true => Effect::Granted { key: push.key, ticket, fence: push.fence, previous: push.previous },
        false => Effect::Nudged { key: push.key, ticket },
    }
}

struct Pair {
    machine: Machine,
    scripts: Scripts,
    now: i64,
    elapsed: Option<Duration>,
    generations: [usize; REPLICAS],
    leases: [u64; REPLICAS],
    beats: [Beat; REPLICAS],
    tickets: Vec<(usize, TicketId)>,
    known: Option<Epoch>,
    granted: usize,
    together: usize,
}

impl Pair {
    fn session(&self, replica: usize) -> SessionId {
        SessionId::from(format!("r{replica}.{}", self.generations[replica]))
    }

    fn at(&mut self) -> Moment {
        Moment { now: Micros(self.now.unsigned_abs()), elapsed: self.elapsed.take() }
    }

    fn state(&self) -> [Bytes; 1] {
        [self.scripts.bucket.state()]
    }

    fn turn(&self, key: usize) -> [Bytes; 3] {
        self.scripts.bucket.turn(KEYS[key])
    }

    fn lock(&self, key: usize) -> [Bytes; 2] {
        [self.scripts.bucket.state(), self.scripts.bucket.lock(KEYS[key])]
    }

    fn epochs(&self, answered: &Option<Epoch>) {
        assert_eq!(self.machine.epoch(), answered.as_ref());
    }

    fn standing(&mut self, key: usize, ticket: &TicketId, which: &Op) {
        let (at, mut effects) = (self.at(), Vec::new());
        let (name, seq) = (KEYS[key], ticket.seq.to_string());
        let (session, waiters) = (ticket.session.as_str(), LIMITS.max_waiters.to_string());
        let last = self.machine.snapshot().last.0;
        let floor = [0, last, last + 3_000][usize::try_from(ticket.seq % 3).unwrap()];
        if !matches!(which, Op::Poll(_)) {
            self.machine.raise_floor(Fence(floor));
        }
        let floor = floor.to_string();
        let enter = |mode| [session, &seq, &waiters, mode, HOUR_MILLIS, &floor];
        let turn = &self.turn(key);
        let (expected, (epoch, texts)) = match which {
            Op::Poll(_) => (
                self.machine.poll(name, ticket, at, &mut effects),
                self.scripts.run(&scripts::POLL, turn, at, &[session, &seq]),
            ),
            Op::Enter(_, _, false) => (
                self.machine.try_enter(name, ticket, at, &mut effects),
                self.scripts.run(&scripts::ENTER, turn, at, &enter("try")),
            ),
            _ => (
                self.machine.enter(name, ticket, at, &mut effects),
                self.scripts.run(&scripts::ENTER, turn, at, &enter("wait")),
            ),
        };
        self.epochs(&epoch);
        assert_eq!(texts.standing().unwrap(), expected, "{which:?}");
        self.granted += usize::from(matches!(expected, Standing::Granted { .. }));
        assert_eq!(self.scripts.pushed(), effects, "{which:?}");
    }

    /// What the scripts do with a ticket that is given back.
    fn leave(&mut self, key: usize, ticket: &TicketId, leaving: Leaving, at: Moment) -> (bool, Vec<Effect>) {
        let (turn, seq) = (self.turn(key), ticket.seq.to_string());
        let args = [ticket.session.as_str(), &seq, HOUR_MILLIS, word(leaving)];
        let (_, texts) = self.scripts.run(&scripts::LEAVE, &turn, at, &args);
        let (left, next) = texts.left().unwrap();
        let mut effects = self.scripts.pushed();
        effects.extend(next.map(|next| Effect::Granted {
            key: Arc::from(KEYS[key]),
            ticket: TicketId { session: ticket.session.clone(), seq: next.seq },
            fence: next.fence,
            previous: next.previous,
        }));
        (left, effects)
    }

    /// Tickets in one call. What is answered is what the machine says of each in turn; the others are asked for by themselves.
    fn together(&mut self, replica: usize, parts: &[Result<usize, (usize, Leaving)>]) {
        let session = self.session(replica);
        let mut asks = Vec::new();
        for part in parts {
            match *part {
                Ok(key) => {
                    let ticket = TicketId { session: session.clone(), seq: self.tickets.len() as u64 };
                    self.tickets.push((key, ticket.clone()));
                    asks.push((key, ticket, Asked::Enter));
                }
                Err((which, leaving)) => {
                    let picked = self.pick(which).filter(|(_, ticket)| ticket.session == session);
                    asks.extend(picked.map(|(key, ticket)| (key, ticket, Asked::Leave(leaving))));
                }
            }
        }
        if asks.is_empty() {
            return;
        }
        let at = self.at();
        let mut keys = self.state().to_vec();
        keys.extend(asks.iter().map(|(key, ..)| self.turn(*key)[1].clone()));
        let floor = self.machine.snapshot().last.0.to_string();
        let tickets: Vec<_> =
            asks.iter().map(|(_, ticket, asked)| format!("{}{}", letter(*asked), ticket.seq)).collect();
        let mut args = vec![session.as_str(), HOUR_MILLIS, &floor];
        args.extend(tickets.iter().map(String::as_str));
        let text = self.scripts.text(&scripts::TOGETHER, &keys, at, &args);
        assert_eq!(self.scripts.pushed(), []);
        let (epoch, answers) = Texts::of_each(&text).unwrap();
        assert_eq!((answers.len(), epoch.is_some()), (asks.len(), self.machine.epoch().is_some()));
        let mut alone = Vec::new();
        for ((key, ticket, asked), answer) in asks.into_iter().zip(answers) {
            let (name, mut effects) = (KEYS[key], Vec::new());
            match (asked, answer) {
                (_, None) => alone.push((key, ticket, asked)),
                (Asked::Enter, Some(answer)) => {
                    let expected = self.machine.enter(name, &ticket, at, &mut effects);
                    assert_eq!(answer.standing().unwrap(), expected);
                    self.granted += 1;
                    self.together += 1;
                }
                (Asked::Leave(leaving), Some(answer)) => {
                    let expected = self.machine.leave(name, &ticket, leaving, at, &mut effects);
                    assert_eq!((answer.left().unwrap(), expected), ((true, None), true));
                    self.together += 1;
                }
            }
            assert_eq!(effects, [], "{asked:?}");
        }
        for (key, ticket, asked) in alone {
            match asked {
                Asked::Enter => self.standing(key, &ticket, &Op::Enter(key, replica, true)),
                Asked::Leave(leaving) => self.leave_as_expected(key, &ticket, leaving),
            }
        }
    }

    fn leave_as_expected(&mut self, key: usize, ticket: &TicketId, leaving: Leaving) {
        let (at, mut effects) = (self.at(), Vec::new());
        let expected = self.machine.leave(KEYS[key], ticket, leaving, at, &mut effects);
        assert_eq!(self.leave(key, ticket, leaving, at), (expected, effects));
    }

    fn sweep(&mut self, key: usize) {
        let (at, mut effects) = (self.at(), Vec::new());
        let expected = self.machine.sweep(KEYS[key], at, &mut effects);
        let turn = self.turn(key);
        let (epoch, texts) = self.scripts.run(&scripts::SWEEP, &turn, at, &["", HOUR_MILLIS]);
        self.epochs(&epoch);
        assert_eq!(texts.swept().unwrap(), expected);
        assert_eq!(self.scripts.pushed(), effects, "sweep");
    }

    fn open(&mut self, replica: usize, lease: u64, known: bool) {
        self.generations[replica] += 1;
        self.leases[replica] = lease;
        let (session, state) = (self.session(replica), self.state());
        let floor = self.machine.snapshot().last;
        let known = self.known.clone().filter(|_| known);
        // Sent again, it changes nothing.
        for _ in 0..2 {
            let at = self.at();
            let opening = Opening { lease: Some(Duration::from_millis(lease)), floor, known: known.as_ref() };
            let expected = self.machine.open(&session, opening, at);
            let (lease, floor) = ((lease * 1000).to_string(), floor.0.to_string());
            let known = known.as_ref().map_or("", |known| &known.0);
            let args = [session.as_str(), &lease, known, &floor];
            let (epoch, texts) = self.scripts.run(&scripts::OPEN, &state, at, &args);
            self.epochs(&epoch);
            assert_eq!((texts.liveness().unwrap(), expected), (Liveness::Alive, Liveness::Alive));
        }
        self.known = self.machine.epoch().cloned();
    }

    fn close(&mut self, replica: usize, ending: Ending) {
        let (session, state) = (self.session(replica), self.state());
        let (at, mut effects) = (self.at(), Vec::new());
        self.machine.close(&session, ending, at, &mut effects);
        let how = if ending == Ending::Closed { "closed" } else { "lost" };
        let (epoch, _) = self.scripts.run(&scripts::CLOSE, &state, at, &[session.as_str(), how]);
        self.epochs(&epoch);
        let mut told = Vec::new();
        let own: Vec<_> =
            self.tickets.iter().filter(|(_, ticket)| ticket.session == session).cloned().collect();
        for (key, ticket) in own {
            told.extend(self.leave(key, &ticket, Leaving::Abandoned, at).1);
        }
        assert_eq!(told, effects, "close");
        let queues = self.machine.snapshot().queues;
        let mut left = queues.iter().flat_map(|queue| &queue.tickets);
        // The server forgets a dead session after a while, the machine not before its tickets.
        if self.machine.epoch().is_some() && !left.any(|(_, ticket)| ticket.session == session) {
            let opening = Opening { lease: Some(Duration::from_millis(5)), ..Opening::default() };
            let expected = self.machine.open(&session, opening, at);
            let (_, texts) =
                self.scripts.run(&scripts::OPEN, &state, at, &[session.as_str(), "5000", "", "0"]);
            assert_eq!(texts.liveness().unwrap(), expected);
            // It is alive if the data was lost before it was closed.
            self.leases[replica] = 5;
        }
    }

    fn locks(&mut self, op: &Op) {
        let (at, ttl) = (self.at(), Duration::from_millis(7));
        match *op {
            Op::Lock(key, replica) => {
                let (token, lock) = (replica.to_string(), self.lock(key));
                let expected = self.machine.lock_acquire(KEYS[key], &token, ttl, at);
                let (epoch, texts) = self.scripts.run(&scripts::LOCK_ACQUIRE, &lock, at, &[&token, "7000"]);
                self.epochs(&epoch);
                assert_eq!(texts.locking().unwrap(), expected);
                self.granted += usize::from(matches!(expected, Locking::Acquired(_)));
            }
            Op::Renew(key, replica) => {
                let (token, lock) = (replica.to_string(), self.lock(key));
                let expected = self.machine.lock_renew(KEYS[key], &token, ttl, at);
                let (_, texts) = self.scripts.run(&scripts::LOCK_RENEW, &lock, at, &[&token, "7000"]);
                assert_eq!(texts.renewed().unwrap(), expected);
            }
            Op::Unlock(key, replica) => {
                let (token, lock) = (replica.to_string(), self.lock(key));
                let expected = self.machine.lock_release(KEYS[key], &token, at);
                let (_, texts) = self.scripts.run(&scripts::LOCK_RELEASE, &lock, at, &[&token]);
                assert_eq!(texts.released().unwrap(), expected);
            }
            _ => {}
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Open(replica, lease, known) => self.open(replica, lease, known),
            Op::Beat(replica, pulse) => {
                let (session, state, at) = (self.session(replica), self.state(), self.at());
                let last = self.beats[replica];
                let beat = match pulse {
                    Pulse::Next => Beat { number: last.number + 1, mark: 1 },
                    Pulse::Again => last,
                    Pulse::Copied => Beat { mark: 2, ..last },
                };
                self.beats[replica] = if matches!(pulse, Pulse::Copied) { last } else { beat };
                let expected = self.machine.beat(&session, beat, at);
                let lease = (self.leases[replica] * 1000).to_string();
                let (number, mark) = (beat.number.to_string(), beat.mark.to_string());
                let args = [session.as_str(), &lease, &number, &mark];
                let (epoch, texts) = self.scripts.run(&scripts::BEAT, &state, at, &args);
                self.epochs(&epoch);
                assert_eq!(texts.liveness().unwrap(), expected);
            }
            Op::Close(replica, ending) => self.close(replica, ending),
            Op::Enter(key, replica, _) => {
                let seq = u64::try_from(self.tickets.len()).unwrap();
                let ticket = TicketId { session: self.session(replica), seq };
                self.tickets.push((key, ticket.clone()));
                self.standing(key, &ticket, op);
            }
            Op::Repeat(which) | Op::Poll(which) | Op::Leave(which, _) => {
                let Some((key, ticket)) = self.pick(which) else { return };
                let Op::Leave(_, leaving) = *op else { return self.standing(key, &ticket, op) };
                self.leave_as_expected(key, &ticket, leaving);
            }
            Op::Together(replica, ref parts) => self.together(replica, parts),
            Op::Sweep(key) => self.sweep(key),
            Op::Lock(..) | Op::Renew(..) | Op::Unlock(..) => self.locks(op),
            Op::Flush => {
                self.machine.flush();
                self.scripts.connection.command(&["FLUSHALL"]).unwrap();
            }
            Op::Clock(by, elapsed) => {
                self.now += by;
                self.elapsed = elapsed.map(Duration::from_millis);
            }
        }
    }

    /// A late ticket more likely than an early one.
    fn pick(&self, which: usize) -> Option<(usize, TicketId)> {
        let of = self.tickets.len();
        let back = (which % 10).min(of.checked_sub(1)?);
        self.tickets.get(of - 1 - back).cloned()
    }
}

#[test]
fn the_scripts_answer_as_the_machine_does() {
    let redis = Redis::start(&Options::new()).unwrap();
    let (granted, together) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(80) };
    proptest!(config, |(ops in prop::collection::vec(op(), 20..120))| {
        let mut connection = redis.connection().unwrap();
        assert!(matches!(connection.command(&["FLUSHALL"]).unwrap(), Reply::Simple(_)));
        let mut pair = Pair {
            machine: Machine::new(LIMITS),
            scripts: Scripts { connection, bucket: Bucket::new("p", 0) },
            now: BEGIN,
            elapsed: None,
            generations: [0; REPLICAS],
            leases: [5; REPLICAS],
            beats: [Beat { number: 1, mark: 1 }; REPLICAS],
            tickets: Vec::new(),
            known: None,
            granted: 0,
            together: 0,
        };
        for replica in 0..REPLICAS {
            pair.open(replica, 30, false);
        }
        for op in &ops {
            pair.step(op);
        }
        granted.set(granted.get() + pair.granted);
        together.set(together.get() + pair.together);
    });
    assert!(granted.get() > 500, "nearly nothing was granted: {}", granted.get());
    assert!(together.get() > 200, "nearly nothing was done together: {}", together.get());
}
