//! The model: where it begins, what it can do, and what it promises.

use stateright::{Model, Property};

use botmesh_core::journal::{Follows, InboxState, Leased, OnAmbiguous, OutboxRecord, OutboxState, Owner};

use crate::real::{INSTANCES, RealCommitter, Views, instance};
use crate::run::Run;
use crate::setting::{Broken, Setting};
use crate::state::{Lease, MessageStory, Offences, Process, SendStory, Session, State};
use crate::steps::{Step, Steps, Who, rows};

pub(crate) struct Bots {
    pub(crate) setting: Setting,
    pub(crate) committer: RealCommitter,
    views: &'static Views,
}

/// A step, and whether the backend's answer to its write is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Action {
    pub(crate) step: Step,
    pub(crate) loses_answer: bool,
}

impl Bots {
    pub(crate) fn new(setting: Setting) -> Self {
        Self { setting, committer: RealCommitter::new(), views: Views::all() }
    }

    /// Whether nobody alive is to finish a record, in the eyes of `asker`.
    pub(crate) fn is_orphan(&self, state: &State, asker: Who, owner: Option<&Owner>, leased: Leased) -> bool {
        let earlier_self = owner.is_some_and(|owner| {
            owner.instance.as_str() == INSTANCES[asker.instance] && owner.epoch < asker.epoch
        });
        if earlier_self && self.setting.breaks(Broken::EpochIgnored) {
            return state.sessions[asker.instance].lease != Lease::Held;
        }
        self.views.seen_by(asker, &state.sessions).is_orphan(owner, leased)
    }
}

impl Bots {
    /// Whether a send may go out, as far as it is a part of a text.
    pub(crate) fn follows(&self, state: &State, send: usize) -> Follows {
        let first = send.is_multiple_of(self.setting.sends);
        if first || !self.setting.parts || self.setting.breaks(Broken::PartsOutOfOrder) {
            return Follows::Now;
        }
        Follows::after(state.outbox[send - 1].as_ref().map(|row| row.held.record.state))
    }
}

impl Who {
    pub(crate) fn owner(self) -> Owner {
        Owner { instance: instance(self.instance), epoch: self.epoch }
    }
}

impl Model for Bots {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Setting { messages, sends, faults, .. } = self.setting;
        vec![State {
            inbox: vec![None; messages],
            outbox: vec![None; messages * sends],
            sessions: [Session { epoch: 1, lease: Lease::Held }; 2],
            processes: vec![Process::start(0, 1), Process::start(1, 1)],
            wire: Vec::new(),
            messages: vec![MessageStory::default(); messages],
            sends: vec![SendStory::default(); messages * sends],
            offences: Offences::default(),
            left: faults,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let steps = Steps::of(self, state);
        for step in steps.certain.into_iter().chain(steps.possible) {
            actions.push(Action { step, loses_answer: false });
            if state.left.lost_answers > 0 && step.may_lose_its_answer() {
                actions.push(Action { step, loses_answer: true });
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Run::step(self, state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(UNDOUBLED, |bots, state| {
                let Setting { policy, .. } = bots.setting;
                let once = |send: &SendStory| match bots.setting.dedupes() {
                    true => send.delivered <= 1,
                    false => policy == OnAmbiguous::Resend || send.delivered <= 1 + send.risked,
                };
                state.sends.iter().all(once)
            }),
            Property::<Self>::always(KEPT, nothing_is_lost),
            Property::<Self>::always(DONE, |_, state| !state.offences.undone),
            Property::<Self>::always(SENT, |_, state| !state.offences.unsent),
            Property::<Self>::always(CLAIMED, |_, state| !state.offences.ran_without_claim),
            Property::<Self>::always(ORDER, |_, state| !state.offences.overtook),
            Property::<Self>::always(BUDGET, |bots, state| {
                let Setting { max_attempts, retries, .. } = bots.setting;
                state.messages.iter().all(|message| message.runs <= max_attempts)
                    && state.sends.iter().all(|send| send.begun <= retries + 1)
            }),
            Property::<Self>::always(UNSTUCK, |bots, state| {
                is_finished(state) || !Steps::of(bots, state).certain.is_empty()
            }),
            Property::<Self>::sometimes(USEFUL, |_, state| {
                is_finished(state) && state.sends.iter().all(|send| send.sent && send.delivered == 1)
            }),
        ]
    }
}

pub(crate) const UNDOUBLED: &str = "no send is doubled, unless the policy permits it";
pub(crate) const KEPT: &str = "nothing is lost, unless the policy permits it";
pub(crate) const DONE: &str = "done is terminal";
pub(crate) const SENT: &str = "sent is terminal";
pub(crate) const CLAIMED: &str = "nothing runs without the claim";
pub(crate) const ORDER: &str = "no part of a text overtakes another";
pub(crate) const BUDGET: &str = "attempts stay within the budget";
pub(crate) const UNSTUCK: &str = "no record is stuck";
pub(crate) const USEFUL: &str = "everything is done and sent";

/// What was taken over is in the inbox; what is done has all its sends in the outbox; what is sent was delivered; and a
/// send is given up as unknown only where the policy permits it and the channel cannot help.
fn nothing_is_lost(bots: &Bots, state: &State) -> bool {
    let per_message = bots.setting.sends;
    let kept = state.messages.iter().enumerate().all(|(at, story)| match &state.inbox[at] {
        None => !story.accepted,
        Some(row) => {
            row.held.record.state != InboxState::Done
                || state.outbox[at * per_message..(at + 1) * per_message].iter().all(Option::is_some)
        }
    });
    kept && rows(&state.outbox).all(|(at, row)| match row.held.record.state {
        OutboxState::Sent => state.sends[at].delivered > 0,
        OutboxState::Unknown => bots.setting.may_give_up() || row.held.record.awaits_echo(),
        OutboxState::InFlight | OutboxState::Waiting | OutboxState::Dead => true,
    })
}

/// Every message is done or dead, and every send sent, dead or unknown.
fn is_finished(state: &State) -> bool {
    let over = |state| matches!(state, InboxState::Done | InboxState::Dead);
    let messages = state.inbox.iter().all(|row| row.as_ref().is_some_and(|row| over(row.held.record.state)));
    let open = |record: &OutboxRecord| record.is_unfinished() || record.awaits_echo();
    messages && rows(&state.outbox).all(|(_, row)| !open(&row.held.record))
}
