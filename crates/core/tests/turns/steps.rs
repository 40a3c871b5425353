//! What can happen next, and what then is.

use std::sync::{Arc, LazyLock};

use botmesh_core::async_trait;
use botmesh_core::coordinator::{Fence, Turn, TurnHandle};
use botmesh_core::error::LeaseLost;
use botmesh_core::store::{Checkpoint, CheckpointPhase};

use crate::client::Wish;
use crate::setting::{Broken, Setting};
use crate::state::{Call, Flying, Loss, Place, Session, State};

/// When a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum When {
    Now,
    /// Now, but the answer later or never.
    AnsweredLate,
    /// Later or never.
    Late,
}

/// One step. Numbers are those of replicas, of their tickets, or of what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Ask(usize, Wish, When),
    /// What was late arrives.
    Arrive(usize),
    /// The turn is checked and the channel called.
    Call(usize, u8),
    /// The call, or the write to the store, arrives. Then the turn is given back.
    Land(usize, When),
    /// The replica stands still between check and call.
    Stall(usize),
    /// The wait is given up, and the message with it.
    Drop(usize, u8),
    Crash(usize),
    Restart(usize),
    Close(usize),
    /// Time passes, and each replica sends its heartbeat, or misses it.
    Tick([Option<When>; 3]),
    Flush,
    /// What the server knows now is what a failover goes back to.
    Copy,
    FailOver,
    Forward,
    Back,
}

/// By how much the clock of the server is set, in microseconds.
const JUMP: i64 = 10_000;

impl State {
    pub(crate) fn steps(&self, setting: &Setting) -> Vec<Step> {
        let mut steps = Vec::new();
        for replica in 0..self.replicas.len() {
            self.steps_of(setting, replica, &mut steps);
        }
        steps.extend((0..self.net.len()).map(Step::Arrive));
        for (at, call) in self.calls.iter().enumerate() {
            steps.extend(self.whens().map(|when| Step::Land(at, when)));
            if self.left.stalls > 0 && !call.stalled {
                steps.push(Step::Stall(at));
            }
        }
        let left = self.left;
        let faults = [
            (left.flushes, Step::Flush),
            (if self.backup.is_none() { left.failovers } else { 0 }, Step::Copy),
            (u8::from(self.backup.is_some()), Step::FailOver),
            (left.forward, Step::Forward),
            (left.back, Step::Back),
        ];
        steps.extend(faults.iter().filter(|(times, _)| *times > 0).map(|(_, step)| *step));
        // A call takes a tick at most.
        if self.tick < setting.ticks && self.calls.iter().all(|call| call.stalled || call.since == self.tick)
        {
            steps.extend(self.ticks());
        }
        steps
    }

    /// In which ways a request may go.
    fn whens(&self) -> impl Iterator<Item = When> + use<'_> {
        let late = [When::Late, When::AnsweredLate].into_iter();
        std::iter::once(When::Now).chain(late.filter(|_| self.left.network > 0))
    }

    /// In which ways the heartbeats of the next tick may go.
    fn ticks(&self) -> Vec<Step> {
        let mut ticks = vec![[Some(When::Now); 3]];
        for (at, who) in self.replicas.iter().enumerate() {
            if who.session.as_ref().is_none_or(|session| session.valid_until <= self.tick + 1) {
                continue;
            }
            for tick in ticks.clone() {
                for how in [None, Some(When::Late), Some(When::AnsweredLate)] {
                    let mut other = tick;
                    other[at] = how;
                    ticks.push(other);
                }
            }
        }
        let times = |tick: &[Option<When>; 3], missed: bool| {
            let wrong = tick.iter().filter(|how| **how != Some(When::Now) && how.is_none() == missed);
            wrong.count()
        };
        ticks.retain(|tick| {
            times(tick, true) <= self.left.missed.into() && times(tick, false) <= self.left.network.into()
        });
        ticks.into_iter().map(Step::Tick).collect()
    }

    fn steps_of(&self, setting: &Setting, replica: usize, steps: &mut Vec<Step>) {
        let who = &self.replicas[replica];
        if !who.up {
            if self.left.restarts > 0 {
                steps.push(Step::Restart(replica));
            }
            return;
        }
        let mut wishes = Vec::new();
        match &who.session {
            None => wishes.push(Wish::Open),
            Some(session) => {
                if !session.leaving.is_empty() {
                    wishes.push(Wish::Leave);
                }
                wishes.extend(self.entering(setting, replica, session));
                self.steps_of_tickets(setting, replica, session, &mut wishes, steps);
            }
        }
        for wish in wishes {
            steps.extend(self.whens().map(|when| Step::Ask(replica, wish, when)));
        }
        if self.left.crashes > 0 {
            steps.push(Step::Crash(replica));
        }
        if self.left.closes > 0 && self.calls.iter().all(|call| usize::from(call.session.replica) != replica)
        {
            steps.push(Step::Close(replica));
        }
    }

    /// The keys of which a replica asks for its next ticket.
    fn entering(&self, setting: &Setting, replica: usize, session: &Session) -> Vec<Wish> {
        // Where all replicas are alike, they begin in this order.
        let began = |at: usize| {
            let who = &self.replicas[at];
            !who.up || who.generation > 1 || who.session.as_ref().is_none_or(|session| session.last_seq > 0)
        };
        if setting.is_symmetric() && replica > 0 && !began(replica - 1) {
            return Vec::new();
        }
        let waits = |key: u8| {
            let is_entering = |place| matches!(place, Place::Entering { .. });
            session.tickets.iter().any(|ticket| ticket.key == key && is_entering(ticket.place))
        };
        let todo = (0u8..).zip(self.replicas[replica].todo).filter(|(_, messages)| *messages > 0);
        let free = todo.filter(|(key, _)| setting.breaks(Broken::TicketsAtOnce) || !waits(*key));
        free.map(|(key, _)| Wish::Enter(key)).collect()
    }

    fn steps_of_tickets(
        &self,
        setting: &Setting,
        replica: usize,
        session: &Session,
        wishes: &mut Vec<Wish>,
        steps: &mut Vec<Step>,
    ) {
        for ticket in &session.tickets {
            let seq = ticket.seq;
            let is_first = session.tickets.iter().find(|other| other.key == ticket.key) == Some(ticket);
            if self.left.dropped > 0 && !matches!(ticket.place, Place::Held { .. }) {
                steps.push(Step::Drop(replica, seq));
            }
            match ticket.place {
                Place::Entering { .. } => wishes.push(Wish::Again(seq)),
                Place::Waiting if is_first => wishes.push(Wish::Poll(seq)),
                Place::Waiting => {}
                Place::Held { called } => {
                    // After a reconnect a replica asks for all its tickets.
                    if setting.faults.failovers > self.left.failovers {
                        wishes.push(Wish::Poll(seq));
                    }
                    if !called {
                        steps.push(Step::Call(replica, seq));
                    }
                }
            }
        }
    }

    pub(crate) fn step(&self, setting: &Setting, step: Step) -> Self {
        let mut next = self.clone();
        match step {
            Step::Ask(replica, wish, when) => next.send(setting, replica, wish, when),
            Step::Arrive(at) => match next.net.remove(at) {
                Flying::Request(request) => {
                    let answer = next.serve(setting, &request);
                    next.answered(setting, &request, answer);
                }
                Flying::Answer(request, answer) => next.answered(setting, &request, answer),
                Flying::Push(push) => next.pushed(setting, &push),
            },
            Step::Call(replica, seq) => next.call(replica, seq),
            Step::Land(at, when) => next.land(setting, at, when),
            Step::Stall(at) => {
                next.left.stalls -= 1;
                next.calls[at].stalled = true;
            }
            Step::Drop(replica, seq) => {
                next.left.dropped -= 1;
                next.give_back(replica, seq);
            }
            Step::Crash(replica) => {
                next.left.crashes -= 1;
                next.crash(setting, replica);
            }
            Step::Restart(replica) => {
                next.left.restarts -= 1;
                next.restart(replica);
            }
            Step::Close(replica) => {
                next.left.closes -= 1;
                next.close(setting, replica);
            }
            Step::Tick(beats) => next.pass(setting, beats),
            Step::Flush => {
                next.left.flushes -= 1;
                next.flush(setting);
            }
            Step::Copy => {
                next.left.failovers -= 1;
                next.backup = Some(next.server.clone());
            }
            Step::FailOver => next.fail_over(),
            Step::Forward => {
                next.left.forward -= 1;
                next.jumped += JUMP;
            }
            Step::Back => {
                next.left.back -= 1;
                next.jumped -= JUMP;
            }
        }
        next.prune();
        next
    }

    fn send(&mut self, setting: &Setting, replica: usize, wish: Wish, when: When) {
        if when == When::Now {
            return self.ask(setting, replica, wish);
        }
        self.left.network -= 1;
        let request = self.request(setting, replica, wish);
        if when == When::Late {
            self.fly(Flying::Request(request));
        } else {
            let answer = self.serve(setting, &request);
            self.fly(Flying::Answer(request, answer));
        }
    }

    /// Time passes. Whoever was not heard from in time ends its session by itself.
    pub(crate) fn pass(&mut self, setting: &Setting, beats: [Option<When>; 3]) {
        self.tick += 1;
        let over = |session: &Session| session.valid_until <= self.tick;
        let sessions = self.replicas.iter().filter_map(|replica| replica.session.as_ref());
        let ended: Vec<_> = sessions.filter(|session| over(session)).map(|session| session.id).collect();
        for id in ended {
            self.lose(setting, id, Loss::Expired);
        }
        for (replica, when) in (0..self.replicas.len()).zip(beats) {
            self.close_in_time(setting, replica);
            match when {
                Some(when) if self.replicas[replica].session.is_some() => {
                    self.send(setting, replica, Wish::Beat, when);
                }
                Some(_) => {}
                None => self.left.missed -= 1,
            }
        }
    }

    /// Tells the server of a session that ended, when what was checked before must have arrived.
    fn close_in_time(&mut self, setting: &Setting, replica: usize) {
        if self.replicas[replica].to_close.is_some_and(|(_, from)| from <= self.tick) {
            self.ask(setting, replica, Wish::Close);
        }
    }

    fn call(&mut self, replica: usize, seq: u8) {
        let since = self.tick;
        let Some(session) = &mut self.replicas[replica].session else { return };
        let id = session.id;
        let Some(ticket) = session.tickets.iter_mut().find(|ticket| ticket.seq == seq) else { return };
        ticket.place = Place::Held { called: true };
        let number = ticket.number.expect("a turn has a number");
        self.calls.push(Call { key: ticket.key, number, session: id, seq, since, stalled: false });
        self.calls.sort_unstable();
    }

    /// A write arrives at the store, which decides by the rule of the product.
    pub(crate) fn land(&mut self, setting: &Setting, at: usize, when: When) {
        let Call { key, number, session, seq, .. } = self.calls.remove(at);
        let row = &mut self.rows[usize::from(key)];
        let stored = row.written.map(|(fence, session)| Checkpoint {
            fence: Fence(fence),
            session: session.id().clone(),
            ..CHECKPOINT.clone()
        });
        let turn = Turn::new(Fence(number), session.id().clone(), None, Arc::new(Steady));
        let expect = stored.as_ref().map(|stored| stored.revision);
        if Checkpoint::accepts(stored.as_ref(), expect, &turn) || setting.breaks(Broken::FenceUnchecked) {
            self.offences.fence_fell |= row
                .written
                .is_some_and(|(fence, last)| fence > number || (fence == number && last != session));
            row.written = Some((number, session));
        } else if self.is_holder(key, session, number) {
            self.offences.holder_refused = true;
        }
        let replica = usize::from(session.replica);
        if self.session(session).is_some() {
            self.give_back(replica, seq);
            // What was to be given back before is first.
            if when == When::Now {
                while self.session(session).is_some_and(|session| !session.leaving.is_empty()) {
                    self.ask(setting, replica, Wish::Leave);
                }
            } else {
                self.send(setting, replica, Wish::Leave, when);
            }
        }
    }
}

/// A turn whose end the model itself decides on.
struct Steady;

#[async_trait]
impl TurnHandle for Steady {
    fn check(&self) -> Result<(), LeaseLost> {
        Ok(())
    }
    async fn lost(&self) -> LeaseLost {
        std::future::pending().await
    }
    fn release(&self) {}
}

static CHECKPOINT: LazyLock<Checkpoint> = LazyLock::new(|| Checkpoint {
    flow: "f".into(),
    version: 1,
    fingerprint: String::new(),
    step: String::new(),
    phase: CheckpointPhase::Waiting,
    state: serde_json::Value::Null,
    input: None,
    sends: 0,
    begun_with: None,
    input_order: None,
    earlier: Vec::new(),
    answer: None,
    midway: None,
    callers: Vec::new(),
    deadline: None,
    expires: None,
    due: None,
    revision: Checkpoint::unwritten_revision(),
    fence: Fence(0),
    session: Checkpoint::unwritten_session(),
});
