//! One step: what a process does, by the transitions that the journals use, and what becomes of its writes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use botmesh_core::inbound::Inbound;
use botmesh_core::journal::{InboxRecord, InboxState, OutboxRecord, OutboxState};

use crate::bots::{Action, Bots};
use crate::real::{Known, Script};
use crate::setting::{Broken, NOW};
use crate::state::{
    Facts, Found, Held, Job, JobStage, Lease, Pending, Process, Put, Row, Slot, State, Then, Write,
};
use crate::steps::{Step, Target, Who, rows};

pub(crate) struct Run<'a> {
    pub(crate) bots: &'a Bots,
    pub(crate) state: State,
    /// Whether the answer to the next write is lost.
    loses_answer: bool,
}

impl Write {
    pub(crate) fn message(&self) -> Option<usize> {
        match self.put {
            Put::Inbox(message, _) => Some(message),
            Put::Outbox(..) => None,
        }
    }
}

fn version<R: Facts>(row: Option<&Row<R>>) -> u64 {
    row.map_or(0, |row| row.held.version)
}

impl State {
    /// Whether a write finds what it expects.
    pub(crate) fn fits(&self, write: &Write) -> bool {
        match &write.put {
            Put::Inbox(at, put) => version(self.inbox[*at].as_ref()) == put.version,
            Put::Outbox(at, put) => version(self.outbox[*at].as_ref()) == put.version,
        }
    }

    /// What is there: version and write id.
    fn there(&self, put: &Put) -> Option<(u64, u64)> {
        match put {
            Put::Inbox(at, _) => self.inbox[*at].as_ref().map(|row| (row.held.version, row.write)),
            Put::Outbox(at, _) => self.outbox[*at].as_ref().map(|row| (row.held.version, row.write)),
        }
    }

    /// The lease of a process; `None` if another one took its place.
    pub(crate) fn lease(&self, who: Who) -> Option<Lease> {
        let session = self.sessions[who.instance];
        (session.epoch == who.epoch).then_some(session.lease)
    }

    /// Whether the process that opened an instance's session lives.
    pub(crate) fn lives(&self, instance: usize) -> bool {
        let holder = Who { instance, epoch: self.sessions[instance].epoch };
        self.processes.iter().any(|process| process.who() == holder)
    }

    pub(crate) fn process(&mut self, who: Who) -> &mut Process {
        let found = self.processes.iter_mut().find(|process| process.who() == who);
        found.expect("a living process")
    }
}

impl Process {
    pub(crate) fn who(&self) -> Who {
        Who { instance: self.instance, epoch: self.epoch }
    }
}

impl<'a> Run<'a> {
    /// The state after `action`; `None` if the action is not possible.
    pub(crate) fn step(bots: &'a Bots, state: &State, action: Action) -> Option<State> {
        let mut run = Self { bots, state: state.clone(), loses_answer: action.loses_answer };
        run.take(action.step);
        let Self { mut state, loses_answer, .. } = run;
        let wire = std::mem::take(&mut state.wire);
        state.wire = wire.into_iter().filter(|write| state.fits(write)).collect();
        (!loses_answer).then_some(state)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Arrive(who, message) => self.arrive(who, message),
            Step::FindOut(who, n, late) => self.find_out(who, n, late),
            Step::Start(who) => self.start(who),
            Step::Send(who) => self.send(who),
            Step::Finish(who) => self.finish(who),
            Step::Fail(who) => self.fail(who),
            Step::LoseTurn(who) => self.lose_turn(who),
            Step::NotCall(who, slot) => self.not_call(who, slot),
            Step::Call(who, slot, call) => self.call(who, slot, call),
            Step::Record(who, slot) => self.record(who, slot),
            Step::TryAgain(who) => self.try_again(who),
            Step::Defer(who) => self.end_sending(who, Slot::Lane),
            Step::Echo(who, send) => self.echo(who, send),
            Step::RecordArrived(who, n) => self.record_arrived(who, n),
            Step::Find(who, target) => self.find(who, target),
            Step::Act(who) => self.act(who),
            Step::Land(who, n) => {
                let write = self.state.process(who).pending[n].write.clone();
                self.state.process(who).pending[n].landed = true;
                let _ = self.apply(&write);
            }
            Step::LandLate(n) => {
                let write = self.state.wire.remove(n);
                let _ = self.apply(&write);
            }
            Step::Expire(_) | Step::Beat(_) | Step::Remove(_) | Step::Crash(_) | Step::Boot(_) => {
                self.fate(step);
            }
            Step::Replay(message) => self.replay(message),
            Step::Retry(send) => self.retry(send),
        }
    }

    fn fate(&mut self, step: Step) {
        let state = &mut self.state;
        match step {
            Step::Expire(instance) | Step::Remove(instance) => {
                state.left.expiries -= u8::from(state.lives(instance));
                let lease = &mut state.sessions[instance].lease;
                *lease = if *lease == Lease::Held { Lease::RunOut } else { Lease::Removed };
            }
            Step::Beat(who) => state.sessions[who.instance].lease = Lease::Held,
            Step::Crash(who) => {
                state.left.crashes -= 1;
                let at = state.processes.iter().position(|process| process.who() == who);
                let process = state.processes.remove(at.expect("a living process"));
                let open = process.pending.into_iter().filter(|pending| !pending.landed);
                state.wire.extend(open.map(|pending| pending.write));
            }
            Step::Boot(instance) => {
                let in_use = state.lives(instance) && state.sessions[instance].lease != Lease::Removed;
                state.left.usurpers -= u8::from(in_use);
                let session = &mut state.sessions[instance];
                (session.epoch, session.lease) = (session.epoch + 1, Lease::Held);
                let epoch = session.epoch;
                state.processes.push(Process::start(instance, epoch));
                state.processes.sort_by_key(|process| (process.instance, process.epoch));
            }
            _ => {}
        }
    }

    /// Writes, and goes on when the backend answers.
    pub(crate) fn put(&mut self, who: Who, put: Put, then: Then) {
        let id = self.new_write_id(&(who, &put));
        let write = Write { put, id };
        if self.loses_answer {
            self.loses_answer = false;
            self.state.left.lost_answers -= 1;
            self.state.process(who).pending.push(Pending { write, landed: false, then });
            return;
        }
        let applied = self.apply(&write);
        self.go_on(who, then, write.put, applied);
    }

    /// An id that no write has that may still matter.
    fn new_write_id(&self, of: &impl Hash) -> u64 {
        let state = &self.state;
        let pending = state.processes.iter().flat_map(|process| &process.pending);
        let under_way = pending.map(|pending| &pending.write).chain(&state.wire).map(|write| write.id);
        let inbox = rows(&state.inbox).map(|(_, row)| row.write);
        let stored = rows(&state.outbox).map(|(_, row)| row.write).chain(inbox);
        let used: Vec<u64> = under_way.chain(stored).collect();
        let id = |n: u64| {
            let mut hasher = DefaultHasher::new();
            (n, of).hash(&mut hasher);
            hasher.finish() | 1
        };
        (0..).map(id).find(|id| !used.contains(id)).expect("an unused id")
    }

    /// `lands` makes the write take effect between the look at the record and the second attempt to write it.
    fn find_out(&mut self, who: Who, n: usize, lands: bool) {
        let Pending { write, then, .. } = self.state.process(who).pending.remove(n);
        let setting = &self.bots.setting;
        let script = Script {
            there: self.state.there(&write.put),
            lands,
            blind: setting.breaks(Broken::BlindWrites),
            anonymous: setting.breaks(Broken::NoWriteIds),
        };
        let applied = match self.bots.committer.find_out(&write, script) {
            Known::Recognised(version) if lands => self.apply(&write).filter(|now| *now == version),
            Known::Recognised(version) => Some(version),
            Known::Wrote => self.apply(&write),
            Known::Lost if lands => self.apply(&write).and(None),
            Known::Lost => None,
        };
        self.go_on(who, then, write.put, applied);
    }

    /// Applies a compare-and-set and returns the new version.
    fn apply(&mut self, write: &Write) -> Option<u64> {
        let setting = &self.bots.setting;
        let insert = match &write.put {
            Put::Inbox(_, put) => put.version == 0,
            Put::Outbox(_, put) => put.version == 0,
        };
        let blind =
            setting.breaks(Broken::BlindWrites) || (insert && setting.breaks(Broken::InsertOverwrites));
        if !blind && !self.state.fits(write) {
            return None;
        }
        match &write.put {
            Put::Inbox(at, put) => {
                let old = self.state.inbox[*at].take();
                self.note_message(*at, old.as_ref(), &put.record);
                let held = Held { record: Arc::clone(&put.record), version: version(old.as_ref()) + 1 };
                let version = held.version;
                self.state.inbox[*at] = Some(Row { held, write: write.id });
                Some(version)
            }
            Put::Outbox(at, put) => {
                self.note_send(*at, &put.record);
                let version = version(self.state.outbox[*at].as_ref()) + 1;
                let held = Held { record: Arc::clone(&put.record), version };
                self.state.outbox[*at] = Some(Row { held, write: write.id });
                if insert && self.bots.setting.parts && self.state.outbox[at + 1].is_none() {
                    let record = Arc::new(crate::sends::part(at / 2, 1));
                    let held = Held { record, version: 1 };
                    self.state.outbox[at + 1] = Some(Row { held, write: write.id });
                }
                Some(version)
            }
        }
    }

    fn note_message(&mut self, at: usize, old: Option<&Row<InboxRecord>>, next: &InboxRecord) {
        let (story, offences) = (&mut self.state.messages[at], &mut self.state.offences);
        offences.undone |= story.done && next.state != InboxState::Done;
        match next.state {
            InboxState::Done => story.done = true,
            // One that goes on with the same attempt was released between.
            InboxState::Working => {
                let of = |old: &Row<InboxRecord>| (old.held.record.state, old.held.record.attempts);
                story.runs += u32::from(old.map(of) != Some((InboxState::Working, next.attempts)));
            }
            InboxState::Scheduled | InboxState::Queued | InboxState::Waiting | InboxState::Dead => {}
        }
    }

    fn note_send(&mut self, at: usize, next: &OutboxRecord) {
        let old = self.state.outbox[at].as_ref();
        let (story, offences) = (&mut self.state.sends[at], &mut self.state.offences);
        offences.unsent |= story.sent && next.state != OutboxState::Sent;
        story.sent |= next.state == OutboxState::Sent;
        match next.state {
            OutboxState::InFlight => story.begun += 1,
            OutboxState::Waiting if old.is_some_and(|old| old.held.record.attempts > next.attempts) => {
                story.begun = story.begun.saturating_sub(1);
            }
            _ => {}
        }
    }

    /// What a process does when it knows what became of its write.
    fn go_on(&mut self, who: Who, then: Then, put: Put, applied: Option<u64>) {
        match (then, put) {
            (Then::Admit, Put::Inbox(message, put)) => {
                self.state.messages[message].accepted = true;
                let jobs = &self.state.process(who).jobs;
                let waits = |job: &Job| job.message == message && job.stage == JobStage::Writing;
                let at = jobs.iter().rposition(waits).expect("a place in the queue");
                self.fill(who, at, put, applied);
            }
            (Then::Run, Put::Inbox(message, put)) => {
                let stale = version(self.state.inbox[message].as_ref());
                let runs_anyhow = self.bots.setting.breaks(Broken::RunsWithoutTheClaim).then_some(stale);
                self.fill(who, 0, put, applied.or(runs_anyhow));
            }
            (Then::Adopt, Put::Inbox(message, put)) => {
                if let Some(version) = applied.filter(|_| put.record.state == InboxState::Queued) {
                    let stage = JobStage::Queued(Held { version, ..put });
                    self.state.process(who).jobs.push(Job { message, replay: true, stage });
                }
            }
            (Then::End, _) => {
                self.state.process(who).jobs.remove(0);
            }
            (then, Put::Outbox(send, put)) => self.go_on_sending(who, then, send, &put, applied),
            (_, Put::Inbox(..)) => {}
        }
    }

    /// Fills a place in the queue, or gives it back.
    fn fill(&mut self, who: Who, at: usize, put: Held<InboxRecord>, applied: Option<u64>) {
        let Some(version) = applied else {
            self.state.process(who).jobs.remove(at);
            return;
        };
        let held = Held { version, ..put };
        let job = &mut self.state.process(who).jobs[at];
        let message = job.message;
        if held.record.state == InboxState::Queued {
            job.stage = JobStage::Queued(held);
            return;
        }
        job.replay |= held.record.attempts > 1;
        job.stage = JobStage::Running(held, 0);
        let claim = self.state.inbox[message].as_ref().map(|row| &*row.held.record);
        let claimed = claim
            .is_some_and(|record| record.state == InboxState::Working && record.owner == Some(who.owner()));
        self.state.offences.ran_without_claim |= !claimed;
    }

    fn arrive(&mut self, who: Who, message: usize) {
        if self.state.messages[message].accepted {
            self.state.left.redeliveries -= 1;
        }
        let inbound = Arc::new(Inbound::text(message.to_string(), "ana", "hi"));
        let process = self.state.process(who);
        let new = if process.jobs.is_empty() { InboxRecord::working } else { InboxRecord::queued };
        let order = i64::try_from(message).expect("few messages");
        let record = Arc::new(new(inbound, order, who.owner(), NOW));
        process.jobs.push(Job { message, replay: false, stage: JobStage::Writing });
        self.put(who, Put::Inbox(message, Held { record, version: 0 }), Then::Admit);
    }

    /// Writes what the first message of the queue becomes.
    fn put_first(&mut self, who: Who, then: Then, next: impl FnOnce(&InboxRecord) -> Option<InboxRecord>) {
        let job = &mut self.state.process(who).jobs[0];
        let message = job.message;
        let (JobStage::Queued(held) | JobStage::Running(held, _)) =
            std::mem::replace(&mut job.stage, JobStage::Writing)
        else {
            return;
        };
        let record = Arc::new(next(&held.record).expect("a transition that its state permits"));
        self.put(who, Put::Inbox(message, Held { record, version: held.version }), then);
    }

    fn start(&mut self, who: Who) {
        let free = u32::from(self.bots.setting.breaks(Broken::FreeStart));
        self.put_first(who, Then::Run, |record| {
            let mut next = record.start(&who.owner(), NOW).ok()?;
            next.attempts -= free;
            Some(next)
        });
    }

    fn finish(&mut self, who: Who) {
        self.put_first(who, Then::End, |record| record.finish(NOW).ok());
    }

    fn fail(&mut self, who: Who) {
        self.state.left.failures -= 1;
        let max = self.bots.setting.max_attempts;
        let job = &mut self.state.process(who).jobs[0];
        let JobStage::Running(held, _) = &job.stage else { return };
        if held.record.attempts < max {
            job.replay = true;
            self.put_first(who, Then::Run, |record| {
                record.begin_again(Some(""), &who.owner(), max, NOW).ok()
            });
        } else {
            self.put_first(who, Then::End, |record| record.fail("", NOW, max, NOW).ok());
        }
    }

    /// The attempt did not count, and the next one begins.
    pub(crate) fn begin_again(&mut self, who: Who) {
        let max = self.bots.setting.max_attempts;
        self.state.process(who).jobs[0].replay = true;
        if self.bots.setting.breaks(Broken::ReleasedAndForgotten) {
            self.put_first(who, Then::End, |record| record.release(NOW).ok());
        } else {
            self.put_first(who, Then::Run, |record| record.begin_again(None, &who.owner(), max, NOW).ok());
        }
    }

    fn find(&mut self, who: Who, target: Target) {
        let message = |at: usize| self.state.inbox[at].as_ref().map(|row| row.held.clone());
        let send = |at: usize| self.state.outbox[at].as_ref().map(|row| row.held.clone());
        let found = match target {
            Target::Message(at) => message(at).map(|held| Found::Message(at, held)),
            Target::DueSend(at) => send(at).map(|held| Found::DueSend(at, held)),
            Target::OrphanedSend(at) => send(at).map(|held| Found::OrphanedSend(at, held)),
        };
        self.state.process(who).found = found;
    }

    fn act(&mut self, who: Who) {
        match self.state.process(who).found.take() {
            Some(Found::Message(message, held)) => {
                let adopted = held.record.adopt(&who.owner(), self.bots.setting.max_attempts, NOW);
                let Ok(record) = adopted.map(Arc::new) else { return };
                let stale = self.bots.setting.breaks(Broken::StaleRescue);
                let version = if stale { version(self.state.inbox[message].as_ref()) } else { held.version };
                self.put(who, Put::Inbox(message, Held { record, version }), Then::Adopt);
            }
            Some(Found::DueSend(send, held)) => self.attempt_due(who, send, &held),
            Some(Found::OrphanedSend(send, held)) => self.settle_orphan(who, send, &held),
            None => {}
        }
    }

    fn replay(&mut self, message: usize) {
        let Some(row) = &self.state.inbox[message] else { return };
        let Ok(record) = row.held.record.replay(None, NOW) else { return };
        self.state.left.replays -= 1;
        let story = &mut self.state.messages[message];
        (story.done, story.runs) = (false, 0);
        self.put_by_operator(Put::Inbox(
            message,
            Held { version: row.held.version, record: Arc::new(record) },
        ));
    }

    fn retry(&mut self, send: usize) {
        let Some(row) = &self.state.outbox[send] else { return };
        let old = &row.held.record;
        let again = self.bots.setting.breaks(Broken::RetrySent) && old.state == OutboxState::Sent;
        let mut record = OutboxRecord::clone(old);
        if again {
            (record.state, record.due) = (OutboxState::Waiting, Some(NOW));
        } else if let Ok(retried) = old.retry(None, NOW) {
            record = retried;
        } else {
            return;
        }
        self.state.left.retries -= 1;
        let story = &mut self.state.sends[send];
        story.begun = 0;
        story.risked += u8::from(old.state == OutboxState::Unknown);
        self.put_by_operator(Put::Outbox(send, Held { version: row.held.version, record: Arc::new(record) }));
    }

    fn put_by_operator(&mut self, put: Put) {
        let id = self.new_write_id(&("operator", &put));
        let _ = self.apply(&Write { put, id });
    }
}
