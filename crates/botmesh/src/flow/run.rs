use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::conversations::{Saver, Stopped};
use super::definition::{Action, Flow, OnIncompatible, Step};
use super::{Answer, AskAgain, FlowState, state};
use crate::core::content::Content;
use crate::core::error::SendError;
use crate::dispatch::{Ctx, UserState, fold};
use crate::egress::Sent;

/// How many steps one message may run, so that a flow that goes in circles ends.
const MAX_STEPS: usize = 1000;

/// A flow without its state's type.
#[async_trait]
pub(crate) trait AnyFlow: Send + Sync {
    fn name(&self) -> &str;
    fn version(&self) -> u32;
    fn fingerprint(&self) -> String;
    fn is_persistent(&self) -> bool;
    fn on_incompatible(&self) -> &OnIncompatible;
    fn timeout_text(&self) -> Option<&Content>;
    fn problems(&self) -> Vec<String>;

    /// Runs from `start` until the flow waits for an answer or ends.
    async fn advance(&self, ctx: &Ctx, start: Start, saver: &Saver<'_>) -> Result<Progress, Stopped>;
}

/// Where a run begins.
pub(crate) enum Start {
    /// At the first step, with this state or the default.
    Beginning(Option<Value>),
    /// At a step, with its answer if it was waiting for one.
    At { step: String, version: u32, state: Value, answer: Option<Answer> },
}

/// Where a run ends.
pub(crate) enum Progress {
    Waiting { step: String, state: Value, timeout: Option<Duration> },
    Ended,
}

/// What a `do_` step works with. Cheap to clone.
pub struct FlowCtx<S> {
    ctx: Ctx,
    state: Arc<Mutex<S>>,
}

impl<S> Clone for FlowCtx<S> {
    fn clone(&self) -> Self {
        Self { ctx: self.ctx.clone(), state: Arc::clone(&self.state) }
    }
}

impl<S> std::fmt::Debug for FlowCtx<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowCtx").field("ctx", &self.ctx).finish_non_exhaustive()
    }
}

impl<S> FlowCtx<S> {
    /// The message that the step runs for.
    pub fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    /// Reads the state.
    pub fn get<T>(&self, read: impl FnOnce(&S) -> T) -> T {
        read(&self.lock())
    }

    /// Changes the state.
    pub fn update<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        change(&mut self.lock())
    }

    /// Sends to the chat; see [`Ctx::reply`].
    ///
    /// # Errors
    /// As [`Ctx::reply`].
    pub async fn say(&self, content: impl Into<Content>) -> Result<Sent, SendError> {
        self.ctx.reply(content).await
    }

    /// The state of the user, kept across conversations.
    pub fn user(&self) -> &UserState {
        self.ctx.user()
    }

    fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    fn on_incompatible(&self) -> &OnIncompatible {
        &self.on_incompatible
    }

    fn timeout_text(&self) -> Option<&Content> {
        self.on_timeout.as_ref()
    }

    fn problems(&self) -> Vec<String> {
        Flow::problems(self)
    }

    async fn advance(&self, ctx: &Ctx, start: Start, saver: &Saver<'_>) -> Result<Progress, Stopped> {
        let (mut at, state, mut answer) = self.begin(start)?;
        let flow = FlowCtx { ctx: ctx.clone(), state: Arc::new(Mutex::new(state)) };
        for _ in 0..MAX_STEPS {
            let Some(step) = self.steps.get(at) else { return Ok(Progress::Ended) };
            match &step.action {
                Action::Ask { prompt, accept, timeout } => match answer.take() {
                    None => {
                        tell(ctx, flow.get(prompt)).await?;
                        return waiting(&step.id, &flow, *timeout);
                    }
                    Some(answer) => match self.take_answer(&flow, accept, &answer) {
                        Taken::Accepted => at += 1,
                        Taken::Refused(say) => {
                            tell(ctx, say).await?;
                            return waiting(&step.id, &flow, *timeout);
                        }
                        Taken::Cancelled(say) => {
                            tell(ctx, say).await?;
                            return Ok(Progress::Ended);
                        }
                    },
                },
                Action::Say(prompt) => {
                    tell(ctx, flow.get(prompt)).await?;
                    at += 1;
                }
                Action::Goto(label) => at = self.find_label(label)?,
                Action::Do(work) => {
                    match work(flow.clone()).await.map_err(Stopped::Handler)? {
                        Step::Next => at += 1,
                        Step::Repeat => {}
                        Step::Goto(label) => at = self.find_label(label)?,
                        Step::End => return Ok(Progress::Ended),
                    }
                    if let (true, Some(next)) = (self.persistent, self.steps.get(at)) {
                        saver.save_running(&next.id, state_json(&flow)?).await?;
                    }
                }
            }
        }
        let problem = format!("the flow `{}` ran {MAX_STEPS} steps without waiting for anybody", self.name);
        Err(Stopped::Handler(problem.into()))
    }
}

enum Taken {
    Accepted,
    Refused(Content),
    Cancelled(Content),
}

impl<S: FlowState> Flow<S> {
    fn begin(&self, start: Start) -> Result<(usize, S, Option<Answer>), Stopped> {
        match start {
            Start::Beginning(None) => Ok((0, S::default(), None)),
            Start::Beginning(Some(state)) => {
                let state = serde_json::from_value(state).map_err(|error| {
                    Stopped::Handler(
                        format!("the flow `{}` cannot begin with this state: {error}", self.name).into(),
                    )
                })?;
                Ok((0, state, None))
            }
            Start::At { step, version, state, answer } => {
                let at = self.steps.iter().position(|known| known.id == step);
                let at = at.ok_or_else(|| Stopped::Incompatible(format!("the step `{step}` is gone")))?;
                let state = state::load(version, state).map_err(Stopped::Incompatible)?;
                Ok((at, state, answer))
            }
        }
    }

    fn take_answer(
        &self,
        flow: &FlowCtx<S>,
        accept: &super::definition::Accept<S>,
        answer: &Answer,
    ) -> Taken {
        if let Some((words, say)) = &self.cancel
            && words.contains(&fold(answer.text()))
        {
            return Taken::Cancelled(say.clone());
        }
        match flow.update(|state| accept(state, answer)) {
            Ok(()) => Taken::Accepted,
            Err(AskAgain(say)) => Taken::Refused(*say),
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

fn waiting<S: FlowState>(
    step: &str,
    flow: &FlowCtx<S>,
    timeout: Option<Duration>,
) -> Result<Progress, Stopped> {
    Ok(Progress::Waiting { step: step.to_owned(), state: state_json(flow)?, timeout })
}

fn state_json<S: FlowState>(flow: &FlowCtx<S>) -> Result<Value, Stopped> {
    serde_json::to_value(&*flow.lock()).map_err(|error| Stopped::Handler(error.into()))
}

/// A deferred send is on its way, so the flow goes on.
async fn tell(ctx: &Ctx, content: Content) -> Result<(), Stopped> {
    match ctx.reply(content).await {
        Ok(_) | Err(SendError::Deferred { .. }) => Ok(()),
        Err(error) => Err(Stopped::Handler(error.into())),
    }
}
