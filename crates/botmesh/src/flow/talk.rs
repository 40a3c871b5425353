use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error as ThisError;

use super::Answer;
use super::history::{Doing, Entry, Fault, History, Known, Outcome};
use super::prompt::AskAgain;
use crate::Result;
use crate::core::content::Content;
use crate::core::error::{LeaseLost, SendError};
use crate::core::store::Midway;
use crate::dispatch::{Ctx, Past};
use crate::egress::{Boxed, KeyPosition, Sent};
use crate::events::describe;

/// Why a question has no answer.
#[derive(Debug, ThisError)]
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
    message: Message,
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
    /// What the code did so far, if it is replayable.
    history: Option<History>,
    /// What the history's next wait comes to.
    next: Option<Fed>,
    /// Set while the code waits for its history to be stored.
    saving: Option<Waker>,
}

/// The message that the code runs for.
enum Message {
    Present(Ctx),
    /// The code waits for the next one.
    Past(Past),
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
    pub(crate) say: Arc<Content>,
}

/// How a run of the code ended.
pub(super) enum Driven<T> {
    Finished(T),
    /// It waits for the user.
    Waits(Waits),
    /// It waits for its history to be stored; then [`Talk::saved`] is called.
    Saves,
    /// It cannot go on.
    Stuck(Fault),
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
        Self(Arc::new(Mutex::new(State {
            message: Message::Present(ctx),
            wait: Wait::Nothing,
            asking: false,
            questions: 0,
            first_keys,
            known,
            idle: None,
            history: None,
            next: None,
            saving: None,
        })))
    }

    /// For replayable code that did this before, and then waited for this.
    pub(super) fn replayable(ctx: Ctx, history: History, next: Option<Fed>) -> Self {
        let talk = Self::new(ctx, None);
        let mut state = talk.lock();
        (state.history, state.next) = (Some(history), next);
        drop(state);
        talk
    }

    /// Looks at the history; code that is not replayable has none.
    pub(super) fn history<T>(&self, look: impl FnOnce(&History) -> T) -> Option<T> {
        self.lock().history.as_ref().map(look)
    }

    /// The history is stored.
    pub(super) fn saved(&self) {
        if let Some(waker) = self.lock().saving.take() {
            waker.wake();
        }
    }

    /// Does something, or takes from the history what came of it before. Code that does something else than before never
    /// goes on.
    async fn known(&self, doing: Doing<'_>) -> Option<Entry> {
        let known = self.lock().history.as_mut().map_or(Known::New, |history| history.next(&doing));
        match known {
            Known::Done(entry) => Some(entry),
            Known::New => None,
            Known::Never => std::future::pending().await,
        }
    }

    async fn record(&self, entry: impl FnOnce() -> Entry) {
        let faulty = match &mut self.lock().history {
            None => false,
            Some(history) => {
                history.record(entry());
                history.fault().is_some()
            }
        };
        if faulty {
            std::future::pending::<()>().await;
        }
    }

    /// Does something once, and remembers what came of it before the code goes on.
    pub(super) async fn run<T, Fut>(&self, name: &str, effect: impl FnOnce() -> Fut) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        Fut: Future<Output = Result<T>>,
    {
        let result = match self.known(Doing::Run(name)).await {
            Some(Entry::Ran { result, .. }) => result,
            _ => {
                let result = effect().await;
                if self.lock().history.is_none() {
                    return result;
                }
                let result = match result {
                    Ok(value) => Ok(serde_json::to_value(value)?),
                    Err(error) => Err(describe(&*error)),
                };
                let (name, recorded) = (name.to_owned(), result.clone());
                self.record(|| Entry::Ran { name, result: recorded }).await;
                let mut asked = false;
                poll_fn(|context| {
                    let mut state = self.lock();
                    if asked && state.saving.is_none() {
                        return Poll::Ready(());
                    }
                    asked = true;
                    state.saving = Some(context.waker().clone());
                    Poll::Pending
                })
                .await;
                result
            }
        };
        Ok(serde_json::from_value(result?)?)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ctx(&self) -> Ctx {
        match &self.lock().message {
            Message::Present(ctx) => ctx.clone(),
            Message::Past(past) => past.ctx(),
        }
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
        if let Message::Past(past) = &mut state.message {
            ctx.go_on_from(past);
        }
        state.message = Message::Present(ctx);
        if let Wait::Answer { waker, .. } = std::mem::replace(&mut state.wait, Wait::Fed(fed)) {
            drop(state);
            waker.wake();
        }
    }

    /// Runs the code until it waits for the user or ends.
    pub(super) async fn drive<T>(&self, work: &mut Boxed<T>) -> Driven<T> {
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Driven::Finished(value)),
            Poll::Pending => self.resting().map_or(Poll::Pending, Poll::Ready),
        })
        .await
    }

    fn resting<T>(&self) -> Option<Driven<T>> {
        let mut state = self.lock();
        if let Some(fault) = state.history.as_ref().and_then(History::fault) {
            return Some(Driven::Stuck(fault.clone()));
        }
        if state.saving.is_some() {
            return Some(Driven::Saves);
        }
        let Wait::Answer { timeout, .. } = state.wait else { return None };
        // A message and its turn take far more memory than waiting code may hold.
        if let Message::Present(ctx) = &state.message {
            state.message = Message::Past(ctx.leave());
        }
        let first = state.first_keys.clone().filter(|_| state.questions == 1);
        let (key_base, first_send) = first.map(|keys| (keys.base, keys.next)).unzip();
        let midway =
            Midway { question: state.questions, key_base, first_send: first_send.unwrap_or_default() };
        Some(Driven::Waits(Waits { midway, timeout }))
    }

    /// A send takes far more memory than waiting code may hold, so it has a place of its own.
    pub(super) fn say(&self, content: Content) -> BoxFuture<'_, Result<Sent, SendError>> {
        Box::pin(async move {
            if let Some(Entry::Said { outcome, .. }) = self.known(Doing::Say(&content)).await {
                return outcome.result();
            }
            let ctx = self.ctx();
            if self.lock().history.is_none() {
                return ctx.reply(content).await;
            }
            let result = ctx.reply(content.clone()).await;
            if let Some(outcome) = Outcome::of(&result) {
                self.record(|| Entry::said(&content, outcome)).await;
            }
            result
        })
    }

    /// Asks until an answer is accepted. Every try is the same question.
    pub(super) async fn ask<T>(
        &self,
        question: Box<Content>,
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
                    self.tell(say).await?;
                    answer = asking.answer(timeout).await?;
                }
            }
        }
    }

    /// A deferred send is on its way, so the conversation goes on.
    async fn tell(&self, content: Box<Content>) -> Result<(), SendError> {
        match self.say(*content).await {
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
        if self.known(Doing::Sleep).await.is_none() {
            ctx.world().seams.clock.sleep(duration).await;
            self.record(|| Entry::Slept).await;
        }
        ctx.scope().turn().check()
    }
}

/// A question; dropping it ends the wait for its answer.
struct Asking<'a>(&'a Talk);

impl Asking<'_> {
    async fn answer(&self, timeout: Option<Duration>) -> Result<Answer, AskError> {
        let known: Option<Fed> = self.0.known(Doing::Wait).await.and_then(Into::into);
        let fed = match known {
            Some(fed) => fed,
            None => {
                let next = self.0.lock().next.take();
                let fed = match next {
                    Some(fed) => fed,
                    None => poll_fn(|context| self.poll(timeout, context)).await,
                };
                self.0.record(|| Entry::fed(&fed)).await;
                fed
            }
        };
        match fed {
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
