//! The steps of a send.

use std::sync::Arc;
use std::time::Duration;

use botmesh_core::content::Content;
use botmesh_core::journal::{Ambiguity, ErrorNote, Follows, Leased, OutboxRecord, OutboxState, Part, Send};
use botmesh_core::split::SPLITTER;

use crate::run::Run;
use crate::setting::{Broken, NOW};
use crate::state::{Answer, Held, JobStage, Put, Sending, Slot, Stage, Then};
use crate::steps::{Call, Who};

fn content(message: usize, n: usize) -> Send {
    let key = format!("{message}:{n}").as_str().into();
    Send { key, chat: "ana".into(), content: Content::text("hello"), fingerprint: None, source: None }
}

/// One of the two parts of a text; both are journaled in one commit, and wait.
pub(crate) fn part(message: usize, n: usize) -> OutboxRecord {
    let link = |at: usize| (n != at).then(|| content(message, at).key);
    let number = u32::try_from(n + 1).expect("two parts");
    let part = Part { number, previous: link(0), next: link(1), splitter: SPLITTER };
    let order = i64::try_from(message).expect("few messages");
    OutboxRecord::waiting(content(message, n), order, NOW).as_part(part)
}

impl Run<'_> {
    /// The handler's next send: journaled in flight, unless it is known.
    pub(crate) fn send(&mut self, who: Who) {
        let sends = self.bots.setting.sends;
        let process = self.state.process(who);
        let job = &process.jobs[0];
        let JobStage::Running(_, next) = job.stage else { return };
        let (replay, message) = (job.replay, job.message);
        let send = message * sends + next;
        process.lane = Some(Sending { send, handler: true, stage: Stage::Writing });
        let parts = self.bots.setting.parts;
        let may_be_known = replay || (parts && next > 0);
        let known = self.state.outbox[send].as_ref().filter(|_| may_be_known).map(|row| row.held.clone());
        if let Some(known) = known {
            return self.answer(who, send, &known);
        }
        let order = i64::try_from(send).expect("few sends");
        let record = match parts {
            true => part(message, next),
            false => OutboxRecord::in_flight(content(message, next), order, who.owner(), NOW),
        };
        self.begin(who, Slot::Lane, send, 0, record);
    }

    fn begin(&mut self, who: Who, slot: Slot, send: usize, version: u64, record: OutboxRecord) {
        if self.bots.setting.breaks(Broken::CallBeforeIntent) {
            self.deliver(send);
        }
        let record = Arc::new(record);
        self.put(who, Put::Outbox(send, Held { record, version }), Then::Begin(slot));
    }

    /// Begins an attempt of a send that waits, if it is its turn.
    fn start_in_turn(&mut self, who: Who, slot: Slot, send: usize, held: &Held<OutboxRecord>) {
        match self.bots.follows(&self.state, send) {
            Follows::Now => self.start_attempt(who, slot, send, held),
            Follows::Later => self.end_sending(who, slot),
            Follows::Never => match held.record.cut_off(ErrorNote::from(&Answer::Refused.error()), NOW) {
                Ok(record) => self.conclude(who, slot, send, held.version, record),
                Err(_) => self.end_sending(who, slot),
            },
        }
    }

    fn start_attempt(&mut self, who: Who, slot: Slot, send: usize, held: &Held<OutboxRecord>) {
        let Ok(mut record) = held.record.start(&who.owner(), NOW) else {
            return self.end_sending(who, slot);
        };
        if self.bots.setting.breaks(Broken::FreeSend) {
            record.attempts = held.record.attempts;
        }
        self.set_stage(who, slot, Stage::Writing);
        self.begin(who, slot, send, held.version, record);
    }

    fn set_stage(&mut self, who: Who, slot: Slot, stage: Stage) {
        if let Some(sending) = self.state.process(who).slot(slot) {
            sending.stage = stage;
        }
    }

    /// The lane is free again, and a handler goes on to its next send.
    pub(crate) fn end_sending(&mut self, who: Who, slot: Slot) {
        let process = self.state.process(who);
        let ended = process.slot(slot).take();
        if ended.is_some_and(|sending| sending.handler && slot == Slot::Lane)
            && let JobStage::Running(_, next) = &mut process.jobs[0].stage
        {
            *next += 1;
        }
    }

    /// What a send whose key is recorded comes to.
    fn answer(&mut self, who: Who, send: usize, known: &Held<OutboxRecord>) {
        let slot = Slot::Lane;
        let orphan = |owner| self.bots.is_orphan(&self.state, who, Some(owner), Leased::Sends);
        match (known.record.state, &known.record.owner) {
            (OutboxState::Waiting, _) => self.start_in_turn(who, slot, send, known),
            (OutboxState::InFlight, Some(owner)) if *owner != who.owner() => {
                if self.bots.setting.breaks(Broken::IgnoresIntent) {
                    self.start_attempt(who, slot, send, known);
                } else if orphan(owner) {
                    self.resolve(who, slot, send, known, false);
                } else {
                    self.end_sending(who, slot);
                }
            }
            _ => self.end_sending(who, slot),
        }
    }

    /// What becomes of an attempt whose answer is lost. `in_vain` says that its echo was waited for.
    fn resolve(&mut self, who: Who, slot: Slot, send: usize, held: &Held<OutboxRecord>, in_vain: bool) {
        let setting = &self.bots.setting;
        let record = &held.record;
        let next = match setting.policy.decide(setting.channel, Duration::ZERO, in_vain) {
            Ambiguity::LookUp if self.state.sends[send].delivered > 0 => record.sent("m".into(), NOW),
            Ambiguity::AwaitEcho(_) if !setting.breaks(Broken::EchoNotAwaited) => record.await_echo(NOW, NOW),
            Ambiguity::GiveUp => record.give_up_unknown(NOW),
            _ if setting.breaks(Broken::GivesUpUnderResend) => record.give_up_unknown(NOW),
            _ => return self.record_failure(who, slot, send, held, Answer::TimedOut),
        };
        match next {
            Ok(record) => self.conclude(who, slot, send, held.version, record),
            Err(_) => self.end_sending(who, slot),
        }
    }

    /// The channel shows a message that it delivered.
    pub(crate) fn echo(&mut self, who: Who, send: usize) {
        self.state.sends[send].echoed += 1;
        let process = self.state.process(who);
        if let Some(Sending { send: called, stage: Stage::Answered(held, _), .. }) = process.lane.clone()
            && called == send
        {
            // It is taken for the answer that did not come.
            if let Ok(record) = held.record.sent("m".into(), NOW) {
                self.conclude(who, Slot::Lane, send, held.version, record);
            }
            return;
        }
        let Some(held) = self.state.outbox[send].as_ref().map(|row| row.held.clone()) else { return };
        if held.record.owner != Some(who.owner())
            && let Ok(record) = held.record.confirm("m".into(), NOW)
        {
            let record = Arc::new(record);
            self.put(who, Put::Outbox(send, Held { record, version: held.version }), Then::Nothing);
        }
    }

    fn record_failure(
        &mut self,
        who: Who,
        slot: Slot,
        send: usize,
        held: &Held<OutboxRecord>,
        answer: Answer,
    ) {
        let error = answer.error();
        let retry_at = held.record.may_retry(&error, self.bots.setting.retries).then_some(NOW);
        match held.record.fail(ErrorNote::from(&error), retry_at, NOW) {
            Ok(mut record) => {
                if self.bots.setting.breaks(Broken::RetryWithoutDue) {
                    record.due = None;
                }
                self.conclude(who, slot, send, held.version, record);
            }
            Err(_) => self.end_sending(who, slot),
        }
    }

    fn conclude(&mut self, who: Who, slot: Slot, send: usize, version: u64, record: OutboxRecord) {
        self.set_stage(who, slot, Stage::Writing);
        let record = Arc::new(record);
        self.put(who, Put::Outbox(send, Held { record, version }), Then::Conclude(slot));
    }

    pub(crate) fn go_on_sending(
        &mut self,
        who: Who,
        then: Then,
        send: usize,
        put: &Held<OutboxRecord>,
        applied: Option<u64>,
    ) {
        let fresh = put.version == 0;
        let written = applied.map(|version| Held { version, ..put.clone() });
        match (then, written) {
            (Then::Begin(_), Some(held)) if held.record.state == OutboxState::Waiting => {
                self.answer(who, send, &held);
            }
            (Then::Begin(slot), Some(held)) => self.set_stage(who, slot, Stage::Calling(held)),
            (Then::Begin(_), None) if fresh => {
                match self.state.outbox[send].as_ref().map(|row| row.held.clone()) {
                    Some(known) => self.answer(who, send, &known),
                    None => self.end_sending(who, Slot::Lane),
                }
            }
            (Then::Conclude(slot), Some(held)) if held.record.state == OutboxState::Waiting => {
                let inline =
                    self.state.process(who).slot(slot).as_ref().is_some_and(|sending| sending.handler);
                match inline {
                    true => self.set_stage(who, slot, Stage::Resting(held)),
                    false => self.end_sending(who, slot),
                }
            }
            (Then::Begin(slot) | Then::Conclude(slot), _) => self.end_sending(who, slot),
            (Then::TakeBack, _) => self.take_back(who, send, &put.record, applied),
            _ => {}
        }
    }

    fn deliver(&mut self, send: usize) {
        if self.bots.setting.parts && send % 2 == 1 {
            let before = self.state.outbox[send - 1].as_ref().map(|row| row.held.record.state);
            let out = matches!(before, Some(OutboxState::Sent | OutboxState::Unknown));
            self.state.offences.overtook |= !out && self.state.sends[send - 1].delivered == 0;
        }
        let story = &mut self.state.sends[send];
        let setting = &self.bots.setting;
        let recognised = setting.dedupes() && !setting.breaks(Broken::TokenPerAttempt);
        if story.delivered == 0 || !recognised {
            story.delivered = (story.delivered + 1).min(4);
        }
    }

    pub(crate) fn call(&mut self, who: Who, slot: Slot, call: Call) {
        let called_before = self.bots.setting.breaks(Broken::CallBeforeIntent);
        let Some(Sending { send, stage: Stage::Calling(held), .. }) =
            self.state.process(who).slot(slot).clone()
        else {
            return;
        };
        if matches!(call, Call::Takes | Call::TakesAndTimesOut) && !called_before {
            self.deliver(send);
        }
        let left = &mut self.state.left;
        let answer = match call {
            Call::Takes => {
                let Ok(record) = held.record.sent("m".into(), NOW) else { return };
                let sent = Held { record: Arc::new(record), version: held.version };
                self.state.process(who).arrived.push((send, sent));
                return self.end_sending(who, slot);
            }
            Call::IsBusy => Answer::Busy,
            Call::Refuses => Answer::Refused,
            Call::TakesAndTimesOut | Call::TimesOut => Answer::TimedOut,
        };
        match answer {
            Answer::Busy | Answer::Refused => left.refusals -= 1,
            Answer::TimedOut => left.timeouts -= u8::from(slot == Slot::Lane),
        }
        self.set_stage(who, slot, Stage::Answered(held, answer));
    }

    pub(crate) fn not_call(&mut self, who: Who, slot: Slot) {
        let Some(Sending { send, stage: Stage::Calling(held), .. }) =
            self.state.process(who).slot(slot).clone()
        else {
            return;
        };
        self.state.left.lost_turns -= 1;
        self.end_sending(who, slot);
        if let Ok(record) = held.record.release(NOW) {
            let record = Arc::new(record);
            self.put(who, Put::Outbox(send, Held { record, version: held.version }), Then::Nothing);
        }
    }

    pub(crate) fn record(&mut self, who: Who, slot: Slot) {
        let Some(Sending { send, stage: Stage::Answered(held, answer), .. }) =
            self.state.process(who).slot(slot).clone()
        else {
            return;
        };
        if answer == Answer::TimedOut && !self.bots.setting.breaks(Broken::TimeoutIsFailure) {
            self.resolve(who, slot, send, &held, false);
        } else {
            self.record_failure(who, slot, send, &held, answer);
        }
    }

    pub(crate) fn try_again(&mut self, who: Who) {
        if let Some(Sending { send, stage: Stage::Resting(held), .. }) = self.state.process(who).lane.clone()
        {
            self.start_in_turn(who, Slot::Lane, send, &held);
        }
    }

    pub(crate) fn record_arrived(&mut self, who: Who, n: usize) {
        let (send, held) = self.state.process(who).arrived.remove(n);
        self.put(who, Put::Outbox(send, held), Then::Nothing);
    }

    pub(crate) fn attempt_due(&mut self, who: Who, send: usize, held: &Held<OutboxRecord>) {
        let process = self.state.process(who);
        process.lane = Some(Sending { send, handler: false, stage: Stage::Writing });
        if held.record.awaits_echo() {
            self.resolve(who, Slot::Lane, send, held, true);
        } else {
            self.start_in_turn(who, Slot::Lane, send, held);
        }
    }

    pub(crate) fn settle_orphan(&mut self, who: Who, send: usize, held: &Held<OutboxRecord>) {
        let process = self.state.process(who);
        process.lane = Some(Sending { send, handler: false, stage: Stage::Writing });
        self.resolve(who, Slot::Lane, send, held, false);
    }

    /// The handler is dropped. What its send was doing goes on in the background, without the lane.
    pub(crate) fn lose_turn(&mut self, who: Who) {
        self.state.left.lost_turns -= 1;
        let process = self.state.process(who);
        if let Some(Sending { send, stage, .. }) = process.lane.take_if(|sending| sending.handler) {
            let stage = match stage {
                Stage::Resting(_) => None,
                Stage::Writing => self.drop_write(who),
                stage => Some(stage),
            };
            let dropped = stage.map(|stage| Sending { send, handler: false, stage });
            self.state.process(who).dropped = dropped;
        }
        self.begin_again(who);
    }

    /// The caller of a write goes away: a beginning is taken back, a conclusion goes on.
    fn drop_write(&mut self, who: Who) -> Option<Stage> {
        let mut pending = self.state.process(who).pending.iter_mut();
        let write = pending
            .find(|pending| matches!(pending.then, Then::Begin(Slot::Lane) | Then::Conclude(Slot::Lane)))?;
        write.then = match write.then {
            Then::Begin(_) => Then::TakeBack,
            _ => Then::Conclude(Slot::Dropped),
        };
        Some(Stage::Writing)
    }

    /// Makes a send wait whose beginning was dropped, if it took effect.
    fn take_back(&mut self, who: Who, send: usize, begun: &OutboxRecord, applied: Option<u64>) {
        self.end_sending(who, Slot::Dropped);
        let there = self.state.outbox[send].as_ref().map(|row| &row.held);
        let looks_alike = there.filter(|held| {
            (held.record.state, held.record.attempts) == (begun.state, begun.attempts)
                && self.bots.setting.breaks(Broken::TakesBackAnothers)
        });
        let Some(version) = applied.or(looks_alike.map(|held| held.version)) else { return };
        if let Ok(record) = begun.release(NOW) {
            let record = Arc::new(record);
            self.put(who, Put::Outbox(send, Held { record, version }), Then::Nothing);
        }
    }
}
