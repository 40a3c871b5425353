use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;

use super::conversation::downcast;
use super::definition::{Action, Flow, OnIncompatible, Step, Work};
use super::live::Task;
use super::rows::Kept;
use super::saver::Saver;
use super::stopped::Stopped;
use super::talk::{Driven, Fed, Idle, Talk};
use super::{Answer, Ask, AskAgain, FlowState, state};
use crate::Error;
use crate::core::content::Content;
use crate::core::error::{LeaseLost, SendError};
use crate::core::store::Midway;
use crate::dispatch::{Ctx, UserState};
use crate::egress::{Boxed, Sent};

/// How many steps one message may run, so that a flow that goes in circles ends.
const MAX_STEPS: usize = 1000;

/// A flow without its state's type, or a conversation.
#[async_trait]
pub(crate) trait AnyFlow: Send + Sync {
    fn name(&self) -> &str;
    fn version(&self) -> u32;
    fn fingerprint(&self) -> String;
    fn is_persistent(&self) -> bool;
    /// What becomes of it when it cannot go on; `None` if the bot's hand-over decides.
    fn on_incompatible(&self) -> Option<&OnIncompatible>;
    /// Whether it is code without steps.
    fn is_code(&self) -> bool {
        false
    }
    fn timeout_text(&self) -> Option<&Content>;
    /// What is said if this answer cancels it.
    fn cancel(&self, answer: &Answer) -> Option<&Content>;
    fn problems(&self) -> Vec<String>;
    /// Whether its code runs again from what is stored, so that it can be told that a wait is over.
    fn replays(&self) -> bool {
        false
    }
    /// Whether it ends with a state, which a flow that calls it takes.
    fn ends_with_state(&self) -> bool {
        true
    }
    /// The flows that it calls.
    fn calls(&self) -> Vec<&str>;

    /// Runs from `start` until it waits for an answer or another flow, or ends.
    async fn advance(&self, ctx: &Ctx, start: Start, saver: &Saver<'_>) -> Result<Progress, Stopped>;
}

/// Where a run begins.
pub(crate) enum Start {
    /// At the first step, with this state or the default.
    Beginning(Option<Value>),
    /// At a step, with its answer if it was waiting for one.
    At { step: String, version: u32, state: Value, answer: Option<Answer> },
    /// In code that runs again from this, and whose wait is over.
    TimedOut(Value),
    /// At a step that called another flow, with the state in which that ended.
    Returned { step: String, version: u32, state: Value, result: Value },
    /// In the middle of its code.
    Live { task: Task, fed: Fed },
}

/// Where a run ends.
pub(crate) enum Progress {
    Waiting {
        step: String,
        state: Kept,
        timeout: Option<Duration>,
        midway: Option<Midway>,
        /// The code that waits.
        live: Option<(Option<Idle>, Task)>,
    },
    Calling {
        step: String,
        state: Value,
        flow: String,
        begin: Value,
    },
    /// With its state, if another flow called it.
    Ended(Value),
}

/// What a `do_` step works with. Cheap to clone.
pub struct FlowCtx<S> {
    talk: Talk,
    state: Arc<Mutex<S>>,
}

impl<S> Clone for FlowCtx<S> {
    fn clone(&self) -> Self {
        Self { talk: self.talk.clone(), state: Arc::clone(&self.state) }
    }
}

impl<S> std::fmt::Debug for FlowCtx<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowCtx").field("ctx", &self.ctx()).finish_non_exhaustive()
    }
}

impl<S> FlowCtx<S> {
    /// The message that the step runs for: the one that brought the flow here, then the last answer. Do not keep it across
    /// a question: its turn is over then. While the step waits there is none; see [`Conv::ctx`](crate::Conv::ctx).
    pub fn ctx(&self) -> Ctx {
        self.talk.ctx()
    }

    pub(super) fn talk(&self) -> &Talk {
        &self.talk
    }

    /// Reads the state.
    pub fn get<T>(&self, read: impl FnOnce(&S) -> T) -> T {
        read(&lock(&self.state))
    }

    /// Changes the state. What is stored while the step waits for an answer is the state with which it began: a step that
    /// begins again does so without these changes.
    pub fn update<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        change(&mut lock(&self.state))
    }

    /// Asks, and waits for the answer: a text, a pressed button or media. A step may ask more than once; see
    /// [`Flow::do_`] for what a crash repeats.
    pub fn ask(&self, question: impl Into<Content>) -> Ask {
        Ask::new(&self.talk, question.into())
    }

    /// Sends to the chat; see [`Ctx::reply`].
    ///
    /// # Errors
    /// As [`Ctx::reply`].
    pub async fn say(&self, content: impl Into<Content>) -> Result<Sent, SendError> {
        self.talk.say(content.into()).await
    }

    /// Waits; see [`Conv::sleep`](crate::Conv::sleep).
    ///
    /// # Errors
    /// The turn was lost meanwhile.
    pub async fn sleep(&self, duration: Duration) -> Result<(), LeaseLost> {
        self.talk.sleep(duration).await
    }

    /// Until the step ends, says this whenever the user has not answered for so long; once for each wait.
    pub fn idle(&self, after: Duration, say: impl Into<Content>) {
        self.talk.set_idle(Some(Idle { after, say: Arc::new(say.into()) }));
    }

    /// Enters another flow in place of this one: this one ends when the step returned, whatever it returned.
    pub fn enter(&self, flow: impl Into<String>) {
        self.ctx().enter(flow);
    }

    /// Enters another flow with this state in place of this one.
    ///
    /// # Errors
    /// The state cannot be written as JSON.
    pub fn enter_with<T: Serialize>(&self, flow: impl Into<String>, state: &T) -> Result<(), Error> {
        self.ctx().enter_with(flow, state)
    }

    /// The state of the user, kept across conversations.
    pub fn user(&self) -> UserState {
        self.ctx().user().clone()
    }
}

fn lock<S>(state: &Mutex<S>) -> MutexGuard<'_, S> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A `do_` step in the middle of its work.
struct Working<S> {
    at: usize,
    c: FlowCtx<S>,
    work: Boxed<Result<Step, Error>>,
}

/// A flow that waits in memory.
enum InMemory<S> {
    /// At a question, because its state is not plain data.
    At(usize, Arc<Mutex<S>>),
    Working(Working<S>),
}

/// A step, the flow's state, and what the step begins with.
type Position<S> = (usize, Arc<Mutex<S>>, With<S>);

/// What the first step of a run begins with.
enum With<S> {
    Nothing,
    Answer(Answer),
    Result(Value),
    Work(Working<S>),
}

#[async_trait]
impl<S: FlowState> AnyFlow for Flow<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u32 {
        S::VERSION
    }

    fn fingerprint(&self) -> String {
        Flow::fingerprint(self)
    }

    fn is_persistent(&self) -> bool {
        self.persistent
    }

    fn on_incompatible(&self) -> Option<&OnIncompatible> {
        Some(&self.on_incompatible)
    }

    fn timeout_text(&self) -> Option<&Content> {
        self.on_timeout.as_ref()
    }

    fn cancel(&self, answer: &Answer) -> Option<&Content> {
        self.cancel.find(answer)
    }

    fn problems(&self) -> Vec<String> {
        Flow::problems(self)
    }

    fn calls(&self) -> Vec<&str> {
        self.steps
            .iter()
            .filter_map(|step| match &step.action {
                Action::Call(call) => Some(call.flow.as_str()),
                _ => None,
            })
            .collect()
    }

    async fn advance(&self, ctx: &Ctx, start: Start, saver: &Saver<'_>) -> Result<Progress, Stopped> {
        let begins = matches!(start, Start::Beginning(_));
        let (mut at, state, mut with) = self.begin(ctx, start)?;
        if let (true, Some(first)) = (begins && saver.saves_entry(), self.steps.get(at)) {
            saver.save_running(&first.id, kept(&state)).await?;
        }
        for _ in 0..MAX_STEPS {
            let Some(step) = self.steps.get(at) else { return ended(&state, saver) };
            at = match (&step.action, std::mem::replace(&mut with, With::Nothing)) {
                (Action::Ask { accept, timeout, .. }, With::Answer(answer)) => {
                    ctx.scope().return_keys();
                    let accepted = accept(&mut lock(&state), &answer);
                    match accepted {
                        Ok(()) => at + 1,
                        Err(AskAgain(say)) => {
                            tell(ctx, *say).await?;
                            return Ok(waiting((at, &step.id), &state, *timeout));
                        }
                    }
                }
                (Action::Ask { prompt, timeout, .. }, _) => {
                    let question = prompt(&lock(&state));
                    tell(ctx, question).await?;
                    return Ok(waiting((at, &step.id), &state, *timeout));
                }
                (Action::Say(prompt), _) => {
                    let say = prompt(&lock(&state));
                    tell(ctx, say).await?;
                    at + 1
                }
                (Action::Goto(label), _) => self.find_label(label)?,
                (Action::Call(call), With::Result(result)) => {
                    (call.accept)(&mut lock(&state), result).map_err(Stopped::Handler)?;
                    at + 1
                }
                (Action::Call(call), _) => {
                    let begin = (call.begin)(&lock(&state)).map_err(Stopped::Handler)?;
                    let (step, flow) = (step.id.clone(), call.flow.clone());
                    return Ok(Progress::Calling { step, state: state_json(&state)?, flow, begin });
                }
                (Action::Do(work), with) => {
                    let step = match self.work(ctx, (at, &step.id), work, &state, with).await? {
                        ControlFlow::Break(progress) => return Ok(progress),
                        ControlFlow::Continue(step) => step,
                    };
                    if ctx.has_entry() {
                        return Ok(Progress::Ended(Value::Null));
                    }
                    let next = match step {
                        Step::Next => at + 1,
                        Step::Repeat => at,
                        Step::Goto(label) => self.find_label(label)?,
                        Step::End => return ended(&state, saver),
                    };
                    if let (true, Some(next)) = (saver.saves_steps(), self.steps.get(next)) {
                        saver.save_running(&next.id, kept(&state)).await?;
                    }
                    next
                }
            };
        }
        let problem = format!("the flow `{}` ran {MAX_STEPS} steps without waiting for anybody", self.name);
        Err(Stopped::Handler(problem.into()))
    }
}

impl<S: FlowState> Flow<S> {
    fn begin(&self, ctx: &Ctx, start: Start) -> Result<Position<S>, Stopped> {
        let shared = |state| Arc::new(Mutex::new(state));
        match start {
            Start::Beginning(None) => Ok((0, shared(S::default()), With::Nothing)),
            Start::Beginning(Some(state)) => {
                let state = serde_json::from_value(state).map_err(|error| {
                    Stopped::Handler(
                        format!("the flow `{}` cannot begin with this state: {error}", self.name).into(),
                    )
                })?;
                Ok((0, shared(state), With::Nothing))
            }
            Start::At { step, version, state, answer } => {
                let (at, state) = self.place(&step, version, state)?;
                Ok((at, shared(state), answer.map_or(With::Nothing, With::Answer)))
            }
            Start::Returned { step, version, state, result } => {
                let (at, state) = self.place(&step, version, state)?;
                Ok((at, shared(state), With::Result(result)))
            }
            Start::TimedOut(_) => Err(Stopped::TimedOut),
            Start::Live { task, fed } => match (downcast::<InMemory<S>>(task)?, fed) {
                (InMemory::Working(working), fed) => {
                    working.c.talk.feed(ctx.clone(), fed);
                    Ok((working.at, Arc::clone(&working.c.state), With::Work(working)))
                }
                (InMemory::At(at, state), Fed::Answer(answer)) => Ok((at, state, With::Answer(answer))),
                (InMemory::At(..), Fed::TimedOut) => Err(Stopped::TimedOut),
            },
        }
    }

    fn place(&self, step: &str, version: u32, state: Value) -> Result<(usize, S), Stopped> {
        let at = self.steps.iter().position(|known| known.id == step);
        let at = at.ok_or_else(|| Stopped::Incompatible(format!("the step `{step}` is gone")))?;
        Ok((at, state::load(version, state).map_err(Stopped::Incompatible)?))
    }

    /// Works on a `do_` step until it ends or asks.
    async fn work(
        &self,
        ctx: &Ctx,
        (at, id): (usize, &str),
        work: &Work<S>,
        state: &Arc<Mutex<S>>,
        with: With<S>,
    ) -> Result<ControlFlow<Progress, Step>, Stopped> {
        let (mut working, begun) = match with {
            With::Work(working) => (working, Kept::Unchanged),
            with => {
                let known = if let With::Answer(answer) = with { Some(answer) } else { None };
                let begun = kept(state);
                let c = FlowCtx { talk: Talk::new(ctx.clone(), known), state: Arc::clone(state) };
                (Working { at, work: work(c.clone()), c }, begun)
            }
        };
        match working.c.talk.drive(&mut working.work).await {
            Driven::Finished(step) => {
                ctx.scope().return_keys();
                step.map(ControlFlow::Continue).map_err(Stopped::by_code)
            }
            Driven::Saves | Driven::Stuck(_) => {
                Err(Stopped::Incompatible("a step has no history".to_owned()))
            }
            Driven::Waits(waits) => Ok(ControlFlow::Break(Progress::Waiting {
                step: id.to_owned(),
                state: begun,
                timeout: waits.timeout,
                midway: Some(waits.midway),
                live: Some((working.c.talk.idle(), Box::new(InMemory::Working(working)))),
            })),
        }
    }

    fn find_label(&self, label: &str) -> Result<usize, Stopped> {
        self.labels.get(label).copied().ok_or_else(|| {
            let known: Vec<_> = self.labels.keys().collect();
            Stopped::Handler(
                format!("the flow `{}` has no label `{label}`; labels: {known:?}", self.name).into(),
            )
        })
    }
}

/// The flow waits at a question. If its state cannot be stored, it waits in memory.
fn waiting<S: FlowState>(
    (at, step): (usize, &str),
    state: &Arc<Mutex<S>>,
    timeout: Option<Duration>,
) -> Progress {
    let kept = kept(state);
    let live: Option<(Option<Idle>, Task)> = match kept {
        Kept::InMemory(_) => Some((None, Box::new(InMemory::At(at, Arc::clone(state))))),
        Kept::Plain(_) | Kept::Unchanged => None,
    };
    Progress::Waiting { step: step.to_owned(), state: kept, timeout, midway: None, live }
}

fn ended<S: FlowState>(state: &Mutex<S>, saver: &Saver<'_>) -> Result<Progress, Stopped> {
    let state = if saver.has_callers() { state_json(state)? } else { Value::Null };
    Ok(Progress::Ended(state))
}

/// The state as it can be stored: if it loads again.
fn kept<S: FlowState>(state: &Mutex<S>) -> Kept {
    let state = match serde_json::to_value(&*lock(state)) {
        Ok(state) => state,
        Err(error) => return Kept::InMemory(error.to_string()),
    };
    match S::deserialize(&state) {
        Ok(_) => Kept::Plain(state),
        Err(error) => Kept::InMemory(format!("it does not load again: {error}")),
    }
}

fn state_json<S: FlowState>(state: &Mutex<S>) -> Result<Value, Stopped> {
    serde_json::to_value(&*lock(state)).map_err(|error| Stopped::Handler(error.into()))
}

/// A deferred send is on its way, so the flow goes on.
pub(super) async fn tell(ctx: &Ctx, content: Content) -> Result<(), Stopped> {
    match ctx.reply(content).await {
        Ok(_) | Err(SendError::Deferred { .. }) => Ok(()),
        Err(error) => Err(Stopped::Handler(error.into())),
    }
}
