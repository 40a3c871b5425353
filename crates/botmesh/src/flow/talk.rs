use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use thiserror::Error;

use super::Answer;
use super::prompt::AskAgain;
use crate::core::content::Content;
use crate::core::error::{LeaseLost, SendError};
use crate::core::store::Midway;
use crate::dispatch::Ctx;
use crate::egress::{Boxed, KeyPosition, Sent};

/// Why a question has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AskError {
    /// The question was not sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Nobody answered in time. Returned from the code that asked, it ends the conversation as a wait that is over, not as
    /// a failure.
    #[error("nobody answered in time")]
    TimedOut,
    /// The conversation already waits for an answer: it can ask one question at a time.
    #[error("the conversation already waits for the answer to another question; ask one after the other")]
    Concurrent,
}

/// What a conversation that lives in memory and the engine share. The conversation's code runs only while a turn of its
/// chat drives it.
#[derive(Clone)]
pub(super) struct Talk(Arc<Mutex<State>>);

struct State {
    /// The message that the code runs for.
    ctx: Ctx,
    wait: Wait,
    /// Whether a question is being asked or waits for its answer.
    asking: bool,
    /// How many questions were asked so far.
    questions: u32,
    /// Where the keys of what is sent before the first answer begin.
    first_keys: Option<KeyPosition>,
    /// The answer to the first question, which was asked when the code ran before.
    known: Option<Answer>,
    idle: Option<Idle>,
}

enum Wait {
    Nothing,
    Answer { timeout: Option<Duration>, waker: Waker },
    Fed(Fed),
}

/// What a wait comes to.
pub(crate) enum Fed {
    Answer(Answer),
    TimedOut,
}

/// What is said to somebody who is silent.
#[derive(Clone)]
pub(crate) struct Idle {
    pub(crate) after: Duration,
    pub(crate) say: Content,
}

/// How a run of the code ended.
pub(super) enum Driven<T> {
    Finished(T),
    /// It waits for the user.
    Waits(Waits),
}

/// What the code waits for.
pub(super) struct Waits {
    pub(super) midway: Midway,
    pub(super) timeout: Option<Duration>,
}

impl Talk {
    /// For code that begins. If it ran before and had asked its first question, `known` is the answer to it.
    pub(super) fn new(ctx: Ctx, known: Option<Answer>) -> Self {
        let first_keys = ctx.scope().key_position();
        let state =
            State { ctx, wait: Wait::Nothing, asking: false, questions: 0, first_keys, known, idle: None };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ctx(&self) -> Ctx {
        self.lock().ctx.clone()
    }

    pub(super) fn set_idle(&self, idle: Option<Idle>) {
        self.lock().idle = idle;
    }

    pub(super) fn idle(&self) -> Option<Idle> {
        self.lock().idle.clone()
    }

    /// Ends the wait; the code goes on for this message when it is driven next.
    pub(super) fn feed(&self, ctx: Ctx, fed: Fed) {
        let mut state = self.lock();
        ctx.take_over_entry(&state.ctx);
        state.ctx = ctx;
        if let Wait::Answer { waker, .. } = std::mem::replace(&mut state.wait, Wait::Fed(fed)) {
            drop(state);
            waker.wake();
        }
    }

    /// Runs the code until it waits for the user or ends.
    pub(super) async fn drive<T>(&self, work: &mut Boxed<T>) -> Driven<T> {
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Driven::Finished(value)),
            Poll::Pending => match self.waits() {
                Some(waits) => Poll::Ready(Driven::Waits(waits)),
                None => Poll::Pending,
            },
        })
        .await
    }

    fn waits(&self) -> Option<Waits> {
        let state = self.lock();
        let Wait::Answer { timeout, .. } = state.wait else { return None };
        let first = state.first_keys.clone().filter(|_| state.questions == 1);
        let (key_base, first_send) = first.map(|keys| (keys.base, keys.next)).unzip();
        let midway =
            Midway { question: state.questions, key_base, first_send: first_send.unwrap_or_default() };
        Some(Waits { midway, timeout })
    }

    pub(super) async fn say(&self, content: Content) -> Result<Sent, SendError> {
        self.ctx().reply(content).await
    }

    /// Asks until an answer is accepted. Every try is the same question.
    pub(super) async fn ask<T>(
        &self,
        question: Content,
        timeout: Option<Duration>,
        accept: impl Fn(&Answer) -> Result<T, AskAgain>,
    ) -> Result<T, AskError> {
        let (asking, known) = self.begin_question()?;
        let mut answer = match known {
            Some(answer) => {
                self.ctx().scope().return_keys();
                answer
            }
            None => {
                self.tell(question).await?;
                asking.answer(timeout).await?
            }
        };
        loop {
            match accept(&answer) {
                Ok(value) => return Ok(value),
                Err(AskAgain(say)) => {
                    self.tell(*say).await?;
                    answer = asking.answer(timeout).await?;
                }
            }
        }
    }

    /// A deferred send is on its way, so the conversation goes on.
    async fn tell(&self, content: Content) -> Result<(), SendError> {
        match self.say(content).await {
            Ok(_) | Err(SendError::Deferred { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Begins a question; with the answer to it, if it is known.
    fn begin_question(&self) -> Result<(Asking<'_>, Option<Answer>), AskError> {
        let mut state = self.lock();
        if state.asking {
            return Err(AskError::Concurrent);
        }
        state.asking = true;
        state.questions += 1;
        Ok((Asking(self), state.known.take()))
    }

    pub(super) async fn sleep(&self, duration: Duration) -> Result<(), LeaseLost> {
        let ctx = self.ctx();
        ctx.world().seams.clock.sleep(duration).await;
        ctx.scope().turn().check()
    }
}

/// A question; dropping it ends the wait for its answer.
struct Asking<'a>(&'a Talk);

impl Asking<'_> {
    async fn answer(&self, timeout: Option<Duration>) -> Result<Answer, AskError> {
        match poll_fn(|context| self.poll(timeout, context)).await {
            Fed::Answer(answer) => Ok(answer),
            Fed::TimedOut => Err(AskError::TimedOut),
        }
    }

    fn poll(&self, timeout: Option<Duration>, context: &mut Context<'_>) -> Poll<Fed> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut state.wait, Wait::Nothing) {
            Wait::Fed(fed) => Poll::Ready(fed),
            Wait::Nothing | Wait::Answer { .. } => {
                state.wait = Wait::Answer { timeout, waker: context.waker().clone() };
                Poll::Pending
            }
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.asking = false;
        state.wait = Wait::Nothing;
    }
}
