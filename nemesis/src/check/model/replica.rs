//! A client that keeps the rules, unless the world says otherwise.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use botmesh_core::coordinator::machine::Epoch;

use super::world::{LEASE, MARGIN, MS, Message, Place, Request, Rule, Told, World};
use crate::history::Event;

/// What a replica does at a time.
#[derive(Clone, Debug)]
pub(super) enum Timer {
    Wish,
    Beat(String),
    /// The end of what is known of the session's lease.
    Look(String),
    Reopen(String),
    Again(u64),
    Poll(u64),
    Write(u64),
    Done(u64),
    GiveUp(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Behind an earlier call of the same chat.
    Queued,
    Asking,
    Waiting,
    Held,
}

struct Call {
    chat: String,
    stage: Stage,
    n: u64,
}

pub(super) struct Replica {
    number: usize,
    pub(super) name: String,
    pub(super) life: u32,
    pub(super) up: bool,
    pub(super) stopped_until: u64,
    pub(super) cut: bool,
    pub(super) deaf: bool,
    generation: u32,
    sid: String,
    open: bool,
    valid_until: u64,
    epoch: Option<Epoch>,
    largest: u64,
    written: u64,
    seq: u64,
    calls: BTreeMap<u64, Call>,
    order: HashMap<String, VecDeque<u64>>,
    last: HashMap<String, u64>,
    /// What was given back under a turn, which the machine may not have heard.
    released: HashSet<u64>,
}

impl Replica {
    pub(super) fn new(number: usize) -> Self {
        Self {
            number,
            name: format!("r{number}"),
            life: 0,
            up: false,
            stopped_until: 0,
            cut: false,
            deaf: false,
            generation: 0,
            sid: String::new(),
            open: false,
            valid_until: 0,
            epoch: None,
            largest: 0,
            written: 0,
            seq: 0,
            calls: BTreeMap::new(),
            order: HashMap::new(),
            last: HashMap::new(),
            released: HashSet::new(),
        }
    }

    /// What the world looks at while the replica is lent out.
    pub(super) fn borrow_from(&mut self, other: &Self) {
        (self.life, self.up, self.stopped_until) = (other.life, other.up, other.stopped_until);
        (self.cut, self.deaf) = (other.cut, other.deaf);
    }

    pub(super) fn pid(&self) -> u32 {
        100 * (u32::try_from(self.number).unwrap() + 1) + self.life
    }

    pub(super) fn incarnation(&self) -> String {
        format!("{}x{}.", self.name, self.life)
    }

    fn tell(&self, world: &mut World, event: Event) {
        world.tell(&self.name, self.pid(), event);
    }

    pub(super) fn start(&mut self, world: &mut World) {
        let life = self.life + 1;
        let (cut, deaf) = (self.cut, self.deaf);
        *self = Self { life, up: true, cut, deaf, ..Self::new(self.number) };
        world.with_life(self.number, life);
        self.reopen(world);
        world.timer(self.number, MS, Timer::Wish);
    }

    pub(super) fn terminate(&mut self, world: &mut World) {
        let calls: Vec<_> = self.calls.keys().copied().collect();
        for seq in calls {
            if self.calls[&seq].stage == Stage::Held && self.check(world) && self.written <= world.now {
                self.release(world, seq);
            } else {
                self.give_up(world, seq);
            }
        }
        let sid = self.sid.clone();
        world.send(self.number, &sid, Request::Close);
        self.tell(world, Event::Down { clean: true });
        self.up = false;
    }

    fn reopen(&mut self, world: &mut World) {
        self.sid = format!("{}{}", self.incarnation(), self.generation);
        self.generation += 1;
        self.open = false;
        self.ask_to_open(world);
    }

    fn ask_to_open(&mut self, world: &mut World) {
        let (sid, known) = (self.sid.clone(), self.epoch.clone());
        let floor = if world.keeps(Rule::GrowingFences) { self.largest } else { 0 };
        world.send(self.number, &sid, Request::Open { known, floor });
        world.timer(self.number, 100 * MS, Timer::Reopen(sid));
    }

    fn check(&mut self, world: &mut World) -> bool {
        if self.open && world.now >= self.valid_until && world.keeps(Rule::SelfFencing) {
            self.lose(world);
        }
        self.open
    }

    /// The session is over, and everything with it.
    fn lose(&mut self, world: &mut World) {
        let sid = std::mem::take(&mut self.sid);
        self.tell(
            world,
            Event::Lost { sid: sid.clone(), chat: None, call: None, n: None, reason: "lost".into() },
        );
        self.order.clear();
        for (call, Call { chat, stage, n }) in std::mem::take(&mut self.calls) {
            let event = match stage {
                Stage::Held if world.keeps(Rule::TellingOfLoss) => {
                    let (chat, call, n) = (Some(chat), Some(call), Some(n));
                    Event::Lost { sid: sid.clone(), chat, call, n, reason: "lost".into() }
                }
                Stage::Held => continue,
                _ => Event::EnterErr { chat, call, error: "lost".into() },
            };
            self.tell(world, event);
        }
        world.send(self.number, &sid, Request::Close);
        self.reopen(world);
    }

    pub(super) fn rings(&mut self, world: &mut World, timer: Timer) {
        match timer {
            Timer::Wish => self.wish(world),
            Timer::Reopen(sid) if sid == self.sid && !self.open => self.ask_to_open(world),
            Timer::Beat(sid) if sid == self.sid && self.check(world) => {
                world.send(self.number, &sid, Request::Beat);
                world.timer(self.number, LEASE / 6, Timer::Beat(sid));
            }
            Timer::Look(sid) if sid == self.sid && self.check(world) => {
                let after = self.valid_until.saturating_sub(world.now).max(MS);
                world.timer(self.number, after, Timer::Look(sid));
            }
            Timer::Again(seq) if self.stage(seq) == Some(Stage::Asking) => self.ask(world, seq),
            Timer::Poll(seq) if self.stage(seq) == Some(Stage::Waiting) => {
                let (sid, chat) = (self.sid.clone(), self.calls[&seq].chat.clone());
                if world.keeps(Rule::Repair) {
                    world.send(self.number, &sid, Request::Poll { chat, seq });
                }
                world.timer(self.number, LEASE / 3, Timer::Poll(seq));
            }
            Timer::Write(seq) if self.stage(seq) == Some(Stage::Held) => self.write(world, seq),
            Timer::Done(seq) if self.stage(seq) == Some(Stage::Held) && self.check(world) => {
                // Every write is awaited.
                match self.written.saturating_sub(world.now) {
                    0 => self.release(world, seq),
                    left => world.timer(self.number, left, Timer::Done(seq)),
                }
            }
            Timer::GiveUp(seq) if self.stage(seq).is_some_and(|stage| stage != Stage::Held) => {
                self.give_up(world, seq);
            }
            _ => {}
        }
    }

    fn stage(&self, seq: u64) -> Option<Stage> {
        self.calls.get(&seq).map(|call| call.stage)
    }

    fn wish(&mut self, world: &mut World) {
        if !world.is_quiet() {
            let wait = world.below(300) * MS;
            world.timer(self.number, wait, Timer::Wish);
        }
        if !self.check(world) {
            return;
        }
        let chat = world.chat();
        for _ in 0..1 + world.below(2) {
            self.seq += 1;
            let (seq, after) = (self.seq, self.last.insert(chat.clone(), self.seq));
            self.tell(world, Event::EnterCall { chat: chat.clone(), call: seq, after });
            self.calls.insert(seq, Call { chat: chat.clone(), stage: Stage::Queued, n: 0 });
            let order = self.order.entry(chat.clone()).or_default();
            order.push_back(seq);
            if order.len() == 1 || !world.keeps(Rule::LocalOrder) {
                self.ask(world, seq);
            }
            if world.below(10) == 0 {
                let soon = world.below(4 * MS);
                world.timer(self.number, soon, Timer::GiveUp(seq));
            }
        }
    }

    fn ask(&mut self, world: &mut World, seq: u64) {
        let Some(call) = self.calls.get_mut(&seq) else { return };
        call.stage = Stage::Asking;
        let (sid, chat) = (self.sid.clone(), call.chat.clone());
        world.send(self.number, &sid, Request::Enter { chat, seq });
        world.timer(self.number, 150 * MS, Timer::Again(seq));
    }

    /// The next call of the chat may ask.
    fn answered(&mut self, world: &mut World, chat: &str, seq: u64) {
        let Some(order) = self.order.get_mut(chat) else { return };
        order.retain(|other| *other != seq);
        if let Some(next) = order.front().copied()
            && self.stage(next) == Some(Stage::Queued)
        {
            self.ask(world, next);
        }
    }

    fn give_up(&mut self, world: &mut World, seq: u64) {
        let Some(Call { chat, stage, .. }) = self.calls.remove(&seq) else { return };
        self.tell(world, Event::Cancelled { chat: chat.clone(), call: seq });
        if stage != Stage::Queued {
            let (sid, left) = (self.sid.clone(), chat.clone());
            world.send(self.number, &sid, Request::Leave { chat: left, seq, acted: false });
        }
        self.answered(world, &chat, seq);
    }

    fn release(&mut self, world: &mut World, seq: u64) {
        let Some(Call { chat, n, .. }) = self.calls.remove(&seq) else { return };
        self.tell(world, Event::Released { chat: chat.clone(), call: seq, n });
        self.released.insert(seq);
        let sid = self.sid.clone();
        world.send(self.number, &sid, Request::Leave { chat, seq, acted: true });
    }

    fn write(&mut self, world: &mut World, seq: u64) {
        if !self.check(world) {
            return;
        }
        let (n, chat, sid) = (self.calls[&seq].n, self.calls[&seq].chat.clone(), self.sid.clone());
        let left = self.valid_until as i64 - world.now as i64;
        self.tell(
            world,
            Event::WriteCall {
                chat: chat.clone(),
                n,
                sid: sid.clone(),
                checked_t: world.now,
                valid_for_ms: Some(left / MS as i64),
            },
        );
        self.written = self.written.max(world.write(&chat, n, &sid));
        let next = (5 + world.below(30)) * MS;
        world.timer(self.number, next, Timer::Write(seq));
    }

    pub(super) fn hears(&mut self, world: &mut World, message: Message) {
        let Message { sid, epoch, sent, told } = message;
        if sid != self.sid {
            return;
        }
        if let Told::Opened = told {
            if !self.open {
                (self.open, self.epoch, self.valid_until) = (true, epoch, sent + LEASE - MARGIN);
                let event = match self.generation {
                    1 => Event::Up { sid: sid.clone() },
                    _ => Event::Session { sid: sid.clone(), epoch: None },
                };
                self.tell(world, event);
                world.timer(self.number, LEASE / 6, Timer::Beat(sid.clone()));
                world.timer(self.number, LEASE - MARGIN, Timer::Look(sid));
            }
            return;
        }
        if !self.check(world) {
            return;
        }
        if epoch != self.epoch {
            return self.lose(world);
        }
        match told {
            Told::Opened => {}
            Told::Left { seq } => {
                self.released.remove(&seq);
            }
            Told::Beaten { alive: true } => self.valid_until = self.valid_until.max(sent + LEASE - MARGIN),
            Told::Beaten { alive: false } => self.lose(world),
            Told::Stands { seq, standing } => self.stands(world, seq, standing),
            Told::Granted { chat, seq, n, prev } => match self.stage(seq) {
                Some(Stage::Asking | Stage::Waiting) => self.granted(world, seq, n, prev),
                Some(_) => {}
                None => self.unknown(world, chat, seq),
            },
            Told::Nudged { chat, seq } if self.stage(seq).is_none() => self.unknown(world, chat, seq),
            Told::Nudged { .. } => {}
        }
    }

    fn unknown(&mut self, world: &mut World, chat: String, seq: u64) {
        if world.keeps(Rule::LeaveUnknown) {
            let (sid, acted) = (self.sid.clone(), self.released.contains(&seq));
            world.send(self.number, &sid, Request::Leave { chat, seq, acted });
        }
    }

    fn stands(&mut self, world: &mut World, seq: u64, standing: Place) {
        let stage = self.stage(seq);
        match (standing, stage) {
            (Place::Dead, _) | (Place::Unknown, Some(Stage::Waiting | Stage::Held)) => self.lose(world),
            (Place::Granted(n, prev), Some(Stage::Asking | Stage::Waiting)) => {
                self.granted(world, seq, n, prev);
            }
            (Place::Waiting(n, left), Some(Stage::Asking)) => {
                self.entered(world, seq, n);
                if !world.keeps(Rule::FirstComeFirst) && world.below(20) == 0 {
                    return self.granted(world, seq, n, None);
                }
                world.timer(self.number, (left + 50 * MS).min(LEASE / 3), Timer::Poll(seq));
            }
            _ => {}
        }
    }

    fn entered(&mut self, world: &mut World, seq: u64, n: u64) {
        let Some(call) = self.calls.get_mut(&seq) else { return };
        if call.stage == Stage::Asking {
            (call.stage, call.n) = (Stage::Waiting, n);
            let chat = call.chat.clone();
            self.largest = self.largest.max(n);
            self.tell(world, Event::EnterOk { chat: chat.clone(), call: seq, n });
            self.answered(world, &chat, seq);
        }
    }

    fn granted(&mut self, world: &mut World, seq: u64, n: u64, prev: Option<String>) {
        self.entered(world, seq, n);
        let Some(call) = self.calls.get_mut(&seq) else { return };
        call.stage = Stage::Held;
        let (chat, sid) = (call.chat.clone(), self.sid.clone());
        let prev = if world.keeps(Rule::PreviousHolder) { prev } else { Some(sid.clone()) };
        self.tell(world, Event::Granted { chat, call: seq, n, sid, prev });
        self.write(world, seq);
        let hold = if world.holds_long() { 800 * MS } else { world.below(40) * MS };
        world.timer(self.number, hold, Timer::Done(seq));
    }
}
