use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::conversations::Conversations;
use super::live::{Live, Task};
use super::rows::{EndedConversation, Keeping, Kept, Place, Stored, Vacancy, Wait};
use super::run::AnyFlow;
use super::stopped::Stopped;
use super::talk::Idle;
use crate::core::error::Cas;
use crate::core::store::{Checkpoint, CheckpointPhase, RecordedAnswer, Revision, Store};
use crate::core::time::Timestamp;
use crate::dispatch::Ctx;
use crate::events::BotEvent;

/// After how long others do what is due in a conversation whose code waits in a process: normally that one does.
const GRACE: Duration = Duration::from_secs(30);
/// How long a conversation may be silent until nobody is told any more that it was interrupted.
const STUB: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a row that nobody needs any more is kept.
pub(super) const LEFTOVER: Duration = Duration::from_secs(24 * 3600);

/// Writes the checkpoints of one run of one flow.
pub(crate) struct Saver<'a> {
    conversations: &'a Conversations,
    ctx: &'a Ctx,
    flow: &'a Arc<dyn AnyFlow>,
    stored: Mutex<&'a mut Stored>,
    keeping: Keeping,
    has_callers: bool,
}

/// What is written besides where the conversation waits.
struct Mark {
    phase: CheckpointPhase,
    answer: Option<RecordedAnswer>,
    /// Whether the row holds the effects of the message that runs.
    own: bool,
    /// Whether code waits in memory.
    live: bool,
}

impl Mark {
    fn of(phase: CheckpointPhase) -> Self {
        Self { phase, answer: None, own: true, live: false }
    }
}

impl<'a> Saver<'a> {
    pub(super) fn new(
        conversations: &'a Conversations,
        ctx: &'a Ctx,
        flow: &'a Arc<dyn AnyFlow>,
        stored: &'a mut Stored,
    ) -> Self {
        let (keeping, has_callers) = (stored.keeping, !stored.callers.is_empty());
        Self { conversations, ctx, flow, stored: Mutex::new(stored), keeping, has_callers }
    }

    /// Whether each step is written down, because others may take the conversation over.
    pub(super) fn saves_steps(&self) -> bool {
        self.keeping.place() == Place::Shared
    }

    /// Whether the conversation is written down before its first step.
    pub(super) fn saves_entry(&self) -> bool {
        self.saves_steps() && self.conversations.handover().is_some()
    }

    /// Whether another flow waits for the end of this one.
    pub(super) fn has_callers(&self) -> bool {
        self.has_callers
    }

    fn stored(&self) -> MutexGuard<'_, &'a mut Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next step is about to run; a crash from here on does not repeat the one before.
    pub(super) async fn save_running(&self, step: &str, state: Kept) -> Result<(), Stopped> {
        if let (Kept::InMemory(_), Keeping::Forwarded) = (&state, self.keeping) {
            return Ok(());
        }
        let wait = Wait { step: step.to_owned(), state, deadline: None, midway: None };
        self.write(self.keeping.place(), &Mark::of(CheckpointPhase::Running), &wait).await.map(drop)
    }

    /// The step is about to work on this answer.
    pub(super) async fn save_answer(&self, wait: &Wait, answer: RecordedAnswer) -> Result<(), Stopped> {
        let mark = Mark { answer: Some(answer), ..Mark::of(CheckpointPhase::Running) };
        self.write(self.keeping.place(), &mark, wait).await.map(drop)
    }

    /// The step failed at its answer, which is over. It waits for another one.
    pub(super) async fn save_again(&self, wait: &Wait) -> Result<(), Stopped> {
        let mark = Mark { own: false, ..Mark::of(CheckpointPhase::Waiting) };
        self.write(self.keeping.place(), &mark, wait).await.map(drop)
    }

    /// The conversation waits for its user, perhaps with its code in memory.
    pub(super) async fn save_waiting(
        &self,
        wait: Wait,
        live: Option<(Option<Idle>, Task)>,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let keeping = match &wait.state {
            Kept::InMemory(_) if self.keeping == Keeping::Forwarded => {
                self.conversations.in_memory(&**self.flow)
            }
            _ => self.keeping,
        };
        let mark = Mark { live: live.is_some(), ..Mark::of(CheckpointPhase::Waiting) };
        let place = keeping.place();
        let revision = self.write(place, &mark, &wait).await?;
        let ended = match keeping {
            Keeping::Stub => {
                self.write_stub().await?;
                None
            }
            _ => self.end(place.other()).await?,
        };
        if let Some((idle, task)) = live {
            let idle = idle.map(|idle| (self.ctx.world().now() + idle.after, idle));
            let deadline = wait.deadline;
            let live = Live { task, flow: Arc::clone(self.flow), revision, idle, deadline };
            if let Some((key, dropped)) = self.conversations.live.put(self.ctx.conversation(), live) {
                let name = dropped.flow.name().to_owned();
                self.ctx.world().events.emit(BotEvent::ConversationDropped { key, name });
            }
        }
        Ok(ended)
    }

    /// Tells others that there is a conversation; once.
    async fn write_stub(&self) -> Result<(), Stopped> {
        if self.stored().has_stub {
            return Ok(());
        }
        let stub =
            Wait { step: String::new(), state: Kept::Plain(Value::Null), deadline: None, midway: None };
        self.write(Place::Shared, &Mark::of(CheckpointPhase::Stub), &stub).await?;
        self.stored().has_stub = true;
        Ok(())
    }

    async fn write(&self, place: Place, mark: &Mark, wait: &Wait) -> Result<Revision, Stopped> {
        let scope = self.ctx.scope();
        scope.turn().check().map_err(|_| Stopped::Superseded)?;
        let (checkpoint, expect) = {
            let stored = self.stored();
            (self.checkpoint(&stored, place, mark, wait)?, stored.vacancy.of(place))
        };
        let key = self.ctx.conversation();
        let store = self.conversations.store(place);
        let Cas::Applied(revision) = store.set_checkpoint(scope.turn(), &key, expect, &checkpoint).await?
        else {
            self.learn_fence(store).await;
            return Err(Stopped::Superseded);
        };
        let mut stored = self.stored();
        stored.vacancy.set(place, Some(revision));
        if place == Place::Shared {
            stored.has_stub = false;
        }
        Ok(revision)
    }

    /// The fences of a coordinator that lost its data while its clock was set back may be behind what the store has seen. Those of
    /// later turns are not.
    async fn learn_fence(&self, store: &dyn Store) {
        if let Ok(seen) = store.last_fence().await {
            self.ctx.world().replicas.coordinator.raise_floor(seen);
        }
    }

    fn checkpoint(
        &self,
        stored: &Stored,
        place: Place,
        mark: &Mark,
        wait: &Wait,
    ) -> Result<Checkpoint, Stopped> {
        let scope = self.ctx.scope();
        let state = match (&wait.state, place) {
            (Kept::Unchanged, _) => stored.state.clone(),
            (Kept::Plain(state), _) => state.clone(),
            (Kept::InMemory(_), Place::Local) => Value::Null,
            (Kept::InMemory(why), Place::Shared) => {
                let name = self.flow.name();
                return Err(Stopped::Handler(
                    format!("the state of the flow `{name}` cannot be stored: {why}; keep plain data in it")
                        .into(),
                ));
            }
        };
        // What a timer does has no record of its own.
        let input = match scope.record() {
            _ if !mark.own => None,
            Some(record) => Some((record.clone(), scope.sends())),
            None => stored.input.clone(),
        };
        let (input, sends) = input.unzip();
        let (expires, due) = self.times(place, mark, wait.deadline, !stored.earlier.is_empty());
        let begins_anew = self.keeping == Keeping::Persistent && !self.flow.is_code();
        let begun_with = match mark.phase {
            CheckpointPhase::Ended => None,
            _ if begins_anew => None,
            _ => stored.begun_with.clone(),
        };
        Ok(Checkpoint {
            flow: self.flow.name().to_owned(),
            version: self.flow.version(),
            fingerprint: self.flow.fingerprint(),
            step: wait.step.clone(),
            phase: mark.phase,
            state,
            begun_with,
            input,
            sends: sends.unwrap_or_default(),
            input_order: stored.order.max(self.ctx.order().filter(|_| mark.own)),
            earlier: if place == Place::Shared { stored.earlier.clone() } else { Vec::new() },
            answer: mark.answer.clone(),
            midway: wait.midway.clone(),
            callers: stored.callers.clone(),
            deadline: wait.deadline,
            expires,
            due,
            revision: Checkpoint::unwritten_revision(),
            fence: Default::default(),
            session: Checkpoint::unwritten_session(),
        })
    }

    /// When a row is over for others, and when somebody is to look after it.
    fn times(
        &self,
        place: Place,
        mark: &Mark,
        deadline: Option<Timestamp>,
        has_earlier: bool,
    ) -> (Option<Timestamp>, Option<Timestamp>) {
        let (Place::Shared, now) = (place, self.ctx.world().now()) else { return (None, deadline) };
        let handover = self.conversations.handover();
        match mark.phase {
            CheckpointPhase::Stub => return (Some(now + STUB), Some(now + STUB + LEFTOVER)),
            CheckpointPhase::Ended => return (None, has_earlier.then(|| now + LEFTOVER)),
            _ => {}
        }
        let expires = handover
            .filter(|_| self.keeping == Keeping::Forwarded)
            // Not at its deadline: whoever finds it then tells the user that the wait is over.
            .map(|handover| deadline.map_or(now, |end| end + 2 * GRACE).max(now + handover.ttl));
        let deadline = deadline.filter(|_| mark.phase == CheckpointPhase::Waiting);
        let grace = if mark.live && handover.is_some() { GRACE } else { Duration::ZERO };
        (expires, deadline.map(|end| end + grace).or_else(|| expires.map(|expires| expires + LEFTOVER)))
    }

    /// The conversation is over.
    pub(super) async fn save_ended(&self) -> Result<Option<EndedConversation>, Stopped> {
        let place = self.keeping.place();
        let other = self.end(place.other()).await?;
        if other.is_some() && self.stored().vacancy.of(place).is_none() {
            return Ok(other);
        }
        let own = self.end(place).await?;
        Ok(merge(own, other))
    }

    /// Ends what is written in one place. With an inbox record, a row remembers which message ended it until that message is
    /// acknowledged: a replay in between must not take the message for a new one.
    async fn end(&self, place: Place) -> Result<Option<EndedConversation>, Stopped> {
        let expect = self.stored().vacancy.of(place);
        let ours = place == self.keeping.place();
        if expect.is_none() && !(ours && self.ctx.record().is_some()) {
            return Ok(None);
        }
        let key = self.ctx.conversation();
        if self.ctx.record().is_some() {
            // A stub says nothing of what its conversation did, so it stays as it is until the message is acknowledged.
            let is_stub = {
                let stored = self.stored();
                place == Place::Shared && stored.has_stub && stored.earlier.is_empty()
            };
            let revision = match expect.filter(|_| is_stub) {
                Some(stub) => stub,
                None => {
                    let over = Wait {
                        step: String::new(),
                        state: Kept::Plain(Value::Null),
                        deadline: None,
                        midway: None,
                    };
                    self.write(place, &Mark::of(CheckpointPhase::Ended), &over).await?
                }
            };
            let mut vacancy = Vacancy::default();
            // Messages that it holds may come again, so the row stays for a while.
            let stays = place == Place::Shared && !self.stored().earlier.is_empty();
            vacancy.set(place, Some(revision).filter(|_| !stays));
            return Ok(Some(EndedConversation { key, vacancy }));
        }
        let (turn, store) = (self.ctx.scope().turn(), self.conversations.store(place));
        if let Some(revision) = expect
            && store.clear_checkpoint(turn, &key, revision).await? == Cas::Lost
        {
            self.learn_fence(store).await;
            return Err(Stopped::Superseded);
        }
        self.stored().vacancy.set(place, None);
        Ok(None)
    }
}

/// The rows of both.
fn merge(one: Option<EndedConversation>, other: Option<EndedConversation>) -> Option<EndedConversation> {
    let (mut one, other) = match (one, other) {
        (Some(one), Some(other)) => (one, other),
        (one, other) => return one.or(other),
    };
    for place in [Place::Local, Place::Shared] {
        one.vacancy.set(place, one.vacancy.of(place).or(other.vacancy.of(place)));
    }
    Some(one)
}
