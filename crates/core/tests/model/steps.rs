//! What can happen next.

use std::fmt;

use botmesh_core::journal::{Follows, InboxRecord, InboxState, Leased, OutboxRecord, OutboxState, Record};

use crate::bots::Bots;
use crate::real::INSTANCES;
use crate::setting::Broken;
use crate::state::{Facts, JobStage, Lease, Process, Row, Slot, Stage, State, Then};

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Who {
    pub(crate) instance: usize,
    pub(crate) epoch: u64,
}

impl fmt::Debug for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", INSTANCES[self.instance], self.epoch)
    }
}

/// What the channel does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Takes,
    IsBusy,
    Refuses,
    TakesAndTimesOut,
    TimesOut,
}

/// What a sweep finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    Message(usize),
    DueSend(usize),
    OrphanedSend(usize),
}

/// One step. Numbers are those of messages, of sends, or of what a process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The channel delivers an event, and the process writes it to the inbox.
    Arrive(Who, usize),
    /// The process finds out what became of a write whose answer was lost. The write may take effect at the last moment,
    /// after it looked and before it writes again.
    FindOut(Who, usize, bool),
    /// The turn of the first message in the queue came.
    Start(Who),
    /// The handler sends.
    Send(Who),
    /// The handler ended, and the message is done.
    Finish(Who),
    /// The handler failed, and the message is tried again or dead.
    Fail(Who),
    /// The handler is dropped because the turn was lost, and the message begins again.
    LoseTurn(Who),
    /// The lease is lost before the channel is called, and the send is released.
    NotCall(Who, Slot),
    /// The channel is called.
    Call(Who, Slot, Call),
    /// What the channel answered, or did not, is recorded.
    Record(Who, Slot),
    /// The handler tries its send again.
    TryAgain(Who),
    /// The handler leaves its send to the background.
    Defer(Who),
    /// The channel shows a send that it delivered.
    Echo(Who, usize),
    /// That a send arrived is recorded.
    RecordArrived(Who, usize),
    /// A sweep finds something.
    Find(Who, Target),
    /// A sweep acts on what it found.
    Act(Who),
    /// A write whose answer was lost takes effect.
    Land(Who, usize),
    /// A write of a dead process takes effect.
    LandLate(usize),
    /// A session runs out.
    Expire(usize),
    /// A session that had run out is renewed.
    Beat(Who),
    /// A session that had run out is removed.
    Remove(usize),
    /// A process dies.
    Crash(Who),
    /// A process starts.
    Boot(usize),
    /// An operator replays a message.
    Replay(usize),
    /// An operator retries a send.
    Retry(usize),
}

impl Step {
    /// Whether it writes to the backend as a process that waits for the answer.
    pub(crate) fn may_lose_its_answer(self) -> bool {
        use Step::{
            Act, Arrive, Echo, Fail, Finish, LoseTurn, NotCall, Record, RecordArrived, Send, Start, TryAgain,
        };
        matches!(
            self,
            Arrive(..)
                | Start(_)
                | Send(_)
                | Finish(_)
                | Echo(..)
                | Fail(_)
                | LoseTurn(_)
                | NotCall(..)
                | Record(..)
                | TryAgain(_)
                | RecordArrived(..)
                | Act(_)
        )
    }
}

/// Steps that happen if the processes run, the channel answers, and leases of the dead run out; and those that need not.
#[derive(Default)]
pub(crate) struct Steps {
    pub(crate) certain: Vec<Step>,
    pub(crate) possible: Vec<Step>,
}

impl Steps {
    pub(crate) fn of(bots: &Bots, state: &State) -> Self {
        let mut steps = Self::default();
        for message in 0..state.messages.len() {
            steps.add_arrivals(bots, state, message);
        }
        for process in &state.processes {
            steps.add_turn(bots, state, process);
            steps.add_sends(bots, state, process);
            steps.add_sweep(bots, state, process);
            steps.add_faults(state, process);
        }
        steps.add_world(state);
        steps
    }

    fn when(&mut self, allowed: bool, step: Step) {
        if allowed {
            self.possible.push(step);
        }
    }

    fn add_arrivals(&mut self, bots: &Bots, state: &State, message: usize) {
        let story = state.messages[message];
        let before = message == 0 || state.messages[message - 1].accepted;
        let admitting = |process: &Process| {
            process
                .pending
                .iter()
                .any(|pending| pending.then == Then::Admit && pending.write.message() == Some(message))
        };
        if !before || (!story.accepted && state.processes.iter().any(admitting)) {
            return;
        }
        for process in state.processes.iter().filter(|process| !admitting(process)) {
            let step = Step::Arrive(process.who(), message);
            // Until something went wrong, the two instances are the same.
            let first = process.instance == 0 || state.left != bots.setting.faults;
            if !story.accepted && first {
                self.certain.push(step);
            } else if story.accepted {
                self.when(state.left.redeliveries > 0, step);
            }
        }
    }

    fn add_turn(&mut self, bots: &Bots, state: &State, process: &Process) {
        let Some(job) = process.jobs.first() else { return };
        let who = process.who();
        let sending = process.lane.as_ref().is_some_and(|sending| sending.handler);
        match &job.stage {
            JobStage::Writing => {}
            JobStage::Queued(_) => self.certain.push(Step::Start(who)),
            JobStage::Running(_, next) => {
                let ended = *next == bots.setting.sends;
                if !ended && process.lane.is_none() {
                    self.certain.push(Step::Send(who));
                }
                if !sending && (ended || bots.setting.breaks(Broken::AckBeforeSends)) {
                    self.certain.push(Step::Finish(who));
                }
                let recorded = process.arrived.is_empty();
                self.when(!sending && recorded && state.left.failures > 0, Step::Fail(who));
                self.when(process.dropped.is_none() && state.left.lost_turns > 0, Step::LoseTurn(who));
            }
        }
    }

    fn add_sends(&mut self, bots: &Bots, state: &State, process: &Process) {
        let who = process.who();
        for (send, story) in state.sends.iter().enumerate() {
            self.when(bots.setting.echoes() && story.echoed < story.delivered, Step::Echo(who, send));
        }
        for (slot, sending) in [(Slot::Lane, &process.lane), (Slot::Dropped, &process.dropped)] {
            match sending.as_ref().map(|sending| &sending.stage) {
                None | Some(Stage::Writing) => {}
                // The caller went away, and the answer with it.
                Some(Stage::Calling(_)) if slot == Slot::Dropped => {
                    let calls = [Call::TakesAndTimesOut, Call::TimesOut];
                    self.certain.extend(calls.map(|call| Step::Call(who, slot, call)));
                }
                Some(Stage::Calling(_)) => {
                    self.certain.push(Step::Call(who, slot, Call::Takes));
                    self.when(state.left.lost_turns > 0, Step::NotCall(who, slot));
                    for call in [Call::IsBusy, Call::Refuses] {
                        self.when(state.left.refusals > 0, Step::Call(who, slot, call));
                    }
                    for call in [Call::TakesAndTimesOut, Call::TimesOut] {
                        self.when(state.left.timeouts > 0, Step::Call(who, slot, call));
                    }
                }
                Some(Stage::Answered(..)) => self.certain.push(Step::Record(who, slot)),
                Some(Stage::Resting(_)) => self.certain.extend([Step::TryAgain(who), Step::Defer(who)]),
            }
        }
        self.certain.extend((0..process.arrived.len()).map(|n| Step::RecordArrived(who, n)));
        self.certain.extend((0..process.pending.len()).map(|n| Step::FindOut(who, n, false)));
        for (n, pending) in process.pending.iter().enumerate() {
            let may_land = !pending.landed && state.fits(&pending.write);
            self.when(may_land, Step::FindOut(who, n, true));
            self.when(may_land, Step::Land(who, n));
        }
    }

    fn add_sweep(&mut self, bots: &Bots, state: &State, process: &Process) {
        let who = process.who();
        if process.found.is_some() {
            if process.lane.is_none() || matches!(process.found, Some(crate::state::Found::Message(..))) {
                self.certain.push(Step::Act(who));
            }
            return;
        }
        // What is claimed without a lease is anybody's.
        if state.lease(who) != Some(Lease::Held) {
            return;
        }
        let is_orphan = |record: &dyn Facts, leased| bots.is_orphan(state, who, record.facts().2, leased);
        let found_in = |buckets: &[u8], index: botmesh_core::kv::Index| {
            index.list.is_some_and(|(bucket, _)| buckets.contains(&bucket))
        };
        let unfinished = [InboxState::Working, InboxState::Queued].map(InboxRecord::bucket);
        for (message, Row { held, .. }) in rows(&state.inbox) {
            let index = held.record.index();
            let orphan = found_in(&unfinished, index) && is_orphan(&*held.record, Leased::Messages);
            if index.due.is_some() || orphan {
                self.certain.push(Step::Find(who, Target::Message(message)));
            }
        }
        for (send, Row { held, .. }) in rows(&state.outbox) {
            let index = held.record.index();
            if index.due.is_some() {
                let step = Step::Find(who, Target::DueSend(send));
                match bots.follows(state, send) {
                    Follows::Now | Follows::Never => self.certain.push(step),
                    Follows::Later => self.possible.push(step),
                }
            }
            let in_flight = [OutboxRecord::bucket(OutboxState::InFlight)];
            if found_in(&in_flight, index) && is_orphan(&*held.record, Leased::Sends) {
                self.certain.push(Step::Find(who, Target::OrphanedSend(send)));
            }
        }
    }

    fn add_faults(&mut self, state: &State, process: &Process) {
        let who = process.who();
        self.when(state.left.crashes > 0, Step::Crash(who));
        if state.lease(who) == Some(Lease::RunOut) {
            self.certain.push(Step::Beat(who));
        }
    }

    fn add_world(&mut self, state: &State) {
        let works =
            |process: &Process| matches!(state.lease(process.who()), Some(Lease::Held | Lease::RunOut));
        let nobody = !state.processes.iter().any(works);
        for (instance, session) in state.sessions.iter().enumerate() {
            let lives = state.lives(instance);
            match session.lease {
                Lease::Held if !lives => self.certain.push(Step::Expire(instance)),
                Lease::Held => self.when(state.left.expiries > 0, Step::Expire(instance)),
                Lease::RunOut => self.when(!lives || state.left.expiries > 0, Step::Remove(instance)),
                Lease::Removed => {}
            }
            let runs = state.processes.iter().any(|process| process.instance == instance && works(process));
            if nobody {
                self.certain.push(Step::Boot(instance));
            } else {
                self.when(!runs || state.left.usurpers > 0, Step::Boot(instance));
            }
        }
        self.possible.extend((0..state.wire.len()).map(Step::LandLate));
        if state.left.replays > 0 {
            self.possible.extend(rows(&state.inbox).map(|(message, _)| Step::Replay(message)));
        }
        if state.left.retries > 0 {
            self.possible.extend(rows(&state.outbox).map(|(send, _)| Step::Retry(send)));
        }
    }
}

pub(crate) fn rows<R: Facts>(rows: &[Option<Row<R>>]) -> impl Iterator<Item = (usize, &Row<R>)> {
    rows.iter().enumerate().filter_map(|(at, row)| Some((at, row.as_ref()?)))
}
