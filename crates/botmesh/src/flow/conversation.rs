use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::definition::{CancelWords, OnIncompatible};
use super::history::{Fault, History};
use super::live::Task;
use super::rows::Kept;
use super::run::{AnyFlow, Progress, Start};
use super::saver::Saver;
use super::stopped::Stopped;
use super::talk::{Driven, Fed, Idle, Talk};
use super::{Answer, Ask};
use crate::core::content::Content;
use crate::core::error::{LeaseLost, SendError};
use crate::core::hash::stable_hash;
use crate::dispatch::{Ctx, IntoOutcome, UserState};
use crate::egress::{Boxed, Sent};
use crate::{Error, Result};

type Run = Box<dyn Fn(Conv) -> Boxed<Result<(), Error>> + Send + Sync>;

/// A conversation as one `async fn`: it asks, waits, and goes on where it was. Make it with [`conversation`], register it
/// with [`BotBuilder::conversation`](crate::BotBuilder::conversation), enter it by name like a flow.
///
/// It lives in memory: a restart of the process ends it, and so does a message of its chat that another process handles.
/// What must survive is [replayable](Self::replayable), or a [`Flow`](crate::Flow).
///
/// Its code runs only while a message of its chat is handled, and that message's turn is held until the code asks again
/// or ends, at most for [`TurnsConfig::settle`](crate::TurnsConfig::settle).
#[must_use]
pub struct Conversation {
    name: String,
    run: Run,
    cancel: CancelWords,
    on_timeout: Option<Content>,
    on_interrupted: Option<OnIncompatible>,
    replayable: bool,
}

/// A conversation of this name.
pub fn conversation<F, Fut>(name: impl Into<String>, run: F) -> Conversation
where
    F: Fn(Conv) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    Conversation {
        name: name.into(),
        // Not an `async` block: that would hold the future twice.
        run: Box::new(move |conv| Box::pin(run(conv).map(IntoOutcome::into_outcome))),
        cancel: CancelWords::default(),
        on_timeout: None,
        on_interrupted: None,
        replayable: false,
    }
}

impl Conversation {
    /// Lets the conversation survive the end of its process. What it said, which answers it got and what its effects
    /// ([`Conv::run`]) came to is kept in the bot's store; a process that does not have it in memory runs it again from the
    /// beginning, with all that in place of the world, and goes on from there.
    ///
    /// So its code must do the same again given the same answers: what differs from run to run (time, random numbers, other
    /// services, the user's state) belongs into [`Conv::run`], and it does one thing after the other. If it does something
    /// else, as changed code may, the event `flow:incompatible` tells both histories, and
    /// [`on_interrupted`](Self::on_interrupted) decides. It may do 1,000 things and remember 256 KiB.
    pub fn replayable(mut self) -> Self {
        self.replayable = true;
        self
    }

    /// Ends the conversation when the user writes one of these words, and says this.
    pub fn cancel_on<const N: usize>(mut self, words: [&str; N], say: impl Into<Content>) -> Self {
        self.cancel = CancelWords::new(&words, say.into());
        self
    }

    /// What is said when the conversation ends because nobody answered in time. Default: nothing.
    pub fn on_timeout(mut self, say: impl Into<Content>) -> Self {
        self.on_timeout = Some(say.into());
        self
    }

    /// What becomes of it when its user writes and it is not in memory any more. Default: what
    /// [`HandoverConfig::fallback`](crate::HandoverConfig::fallback) says; without [coordination](crate::Coordination) it is
    /// lost, and the message is handled as any other.
    pub fn on_interrupted(mut self, policy: OnIncompatible) -> Self {
        self.on_interrupted = Some(policy);
        self
    }
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a conversation works with. Cheap to clone.
///
/// After a lost turn everything fails with [`LeaseLost`], and the conversation is dropped where it stands.
#[derive(Clone)]
pub struct Conv {
    talk: Talk,
    input: Arc<Value>,
}

impl Conv {
    /// Asks, and waits for the answer: a text, a pressed button or media.
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

    /// Does something whose result may differ from run to run. In a [replayable](Conversation::replayable) conversation
    /// the result is stored before the code goes on, and a later run takes it from there, also if it is an error. If the
    /// process ends between the effect and that write, the effect happens again. Elsewhere it simply happens.
    ///
    /// # Errors
    /// The effect's own, or a result that cannot be kept as JSON.
    pub async fn run<T, F, Fut>(&self, name: &str, effect: F) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        // So that code that waits elsewhere has no room for it.
        Box::pin(self.talk.run(name, effect)).await
    }

    /// Waits, and keeps the chat's turn meanwhile: messages of the user are handled afterwards. Counts to
    /// [`TurnsConfig::settle`](crate::TurnsConfig::settle), so it is for pauses of seconds. To do something later, send it
    /// from elsewhere or ask with a [timeout](Ask::timeout).
    ///
    /// # Errors
    /// The turn was lost meanwhile.
    pub async fn sleep(&self, duration: Duration) -> Result<(), LeaseLost> {
        self.talk.sleep(duration).await
    }

    /// From now on, says this whenever the user has not answered for so long; once for each wait. A later call replaces an
    /// earlier one.
    pub fn idle(&self, after: Duration, say: impl Into<Content>) {
        self.talk.set_idle(Some(Idle { after, say: Arc::new(say.into()) }));
    }

    /// Says nothing any more when the user does not answer.
    pub fn no_idle(&self) {
        self.talk.set_idle(None);
    }

    /// The message that the code runs for: the one that entered the conversation, then the last answer. Do not keep it
    /// across a question: its turn is over then.
    ///
    /// While the code waits for its user there is none, which only other code can notice that has a clone of the `Conv`: it
    /// gets a system event `botmesh:waiting` of the same chat, and is refused with [`LeaseLost`] what needs a turn.
    pub fn ctx(&self) -> Ctx {
        self.talk.ctx()
    }

    /// The state of the user, kept across conversations.
    pub fn user(&self) -> UserState {
        self.ctx().user().clone()
    }

    /// What the conversation was entered with.
    ///
    /// # Errors
    /// It does not have this form.
    pub fn input<T: DeserializeOwned>(&self) -> Result<T, Error> {
        T::deserialize(&*self.input).map_err(|error| format!("the input has another form: {error}").into())
    }

    /// Enters a flow or a conversation once this one ended.
    pub fn enter(&self, flow: impl Into<String>) {
        self.ctx().enter(flow);
    }

    /// Enters a flow or a conversation with this state once this one ended.
    ///
    /// # Errors
    /// The state cannot be written as JSON.
    pub fn enter_with<S: Serialize>(&self, flow: impl Into<String>, state: &S) -> Result<(), Error> {
        self.ctx().enter_with(flow, state)
    }
}

impl std::fmt::Debug for Conv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conv").field("ctx", &self.ctx()).finish_non_exhaustive()
    }
}

/// The running code.
struct Talking {
    talk: Talk,
    code: Boxed<Result<(), Error>>,
    input: Arc<Value>,
}

/// What is stored of replayable code.
#[derive(Deserialize)]
struct Replay {
    input: Value,
    history: Value,
}

impl Talking {
    /// What is stored.
    fn state(&self) -> Result<Value, Stopped> {
        let state = self.talk.history(|history| {
            serde_json::to_value(history.entries())
                .map(|history| json!({ "input": &*self.input, "history": history }))
        });
        state.unwrap_or(Ok(Value::Null)).map_err(|error| Stopped::Handler(error.into()))
    }
}

impl Conversation {
    fn start(&self, talk: Talk, input: Value) -> Talking {
        let input = Arc::new(input);
        let conv = Conv { talk: talk.clone(), input: Arc::clone(&input) };
        Talking { talk, code: (self.run)(conv), input }
    }

    /// Runs the code again.
    fn replay(&self, ctx: &Ctx, state: Value, next: Option<Fed>) -> Result<Talking, Stopped> {
        if !self.replayable {
            let reason = "it was in the memory of a process, which gave it up";
            return Err(Stopped::Incompatible(reason.to_owned()));
        }
        let unreadable = |error: serde_json::Error| {
            Stopped::Incompatible(format!("what is stored does not load: {error}"))
        };
        let Replay { input, history } = serde_json::from_value(state).map_err(unreadable)?;
        let history = History::read(history).map_err(unreadable)?;
        Ok(self.start(Talk::replayable(ctx.clone(), history, next), input))
    }
}

#[async_trait]
impl AnyFlow for Conversation {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u32 {
        1
    }

    fn fingerprint(&self) -> String {
        format!("{:016x}", stable_hash(self.name.bytes()))
    }

    fn is_persistent(&self) -> bool {
        self.replayable
    }

    fn on_incompatible(&self) -> Option<&OnIncompatible> {
        self.on_interrupted.as_ref()
    }

    fn is_code(&self) -> bool {
        true
    }

    fn timeout_text(&self) -> Option<&Content> {
        self.on_timeout.as_ref()
    }

    fn cancel(&self, answer: &Answer) -> Option<&Content> {
        self.cancel.find(answer)
    }

    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    fn replays(&self) -> bool {
        self.replayable
    }

    fn ends_with_state(&self) -> bool {
        false
    }

    fn calls(&self) -> Vec<&str> {
        Vec::new()
    }

    async fn advance(&self, ctx: &Ctx, start: Start, saver: &Saver<'_>) -> Result<Progress, Stopped> {
        let mut talking = match start {
            Start::Beginning(input) => {
                let talk = match self.replayable {
                    true => Talk::replayable(ctx.clone(), History::default(), None),
                    false => Talk::new(ctx.clone(), None),
                };
                let talking = self.start(talk, input.unwrap_or_default());
                if saver.saves_entry() {
                    saver.save_running("", Kept::Plain(talking.state()?)).await?;
                }
                talking
            }
            Start::Live { task, fed } => {
                let talking = downcast::<Talking>(task)?;
                talking.talk.feed(ctx.clone(), fed);
                talking
            }
            Start::At { state, answer, .. } => self.replay(ctx, state, answer.map(Fed::Answer))?,
            Start::TimedOut(state) => self.replay(ctx, state, Some(Fed::TimedOut))?,
            Start::Returned { .. } => {
                return Err(Stopped::Incompatible("a conversation calls no flows".to_owned()));
            }
        };
        loop {
            match talking.talk.drive(&mut talking.code).await {
                Driven::Finished(Ok(())) => return Ok(Progress::Ended(Value::Null)),
                Driven::Finished(Err(error)) => {
                    return Err(match Stopped::by_code(error) {
                        Stopped::Handler(error) => Stopped::Over(error, None),
                        stopped => stopped,
                    });
                }
                Driven::Saves => {
                    saver.save_running("", Kept::Plain(talking.state()?)).await?;
                    talking.talk.saved();
                }
                Driven::Stuck(fault @ Fault::Diverged(_)) => {
                    return Err(Stopped::Incompatible(fault.describe()));
                }
                Driven::Stuck(fault) => return Err(Stopped::Over(fault.describe().into(), None)),
                Driven::Waits(waits) => {
                    return Ok(Progress::Waiting {
                        step: String::new(),
                        state: Kept::Plain(talking.state()?),
                        timeout: waits.timeout,
                        midway: Some(waits.midway).filter(|_| !self.replayable),
                        live: Some((talking.talk.idle(), Box::new(talking))),
                    });
                }
            }
        }
    }
}

/// The task of the flow that it was put back for.
pub(super) fn downcast<T: 'static>(task: Task) -> Result<T, Stopped> {
    let known = task.downcast().map(|task| *task);
    known.map_err(|_| Stopped::Incompatible("its code belongs to another flow".to_owned()))
}
