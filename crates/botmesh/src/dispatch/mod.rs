//! Which code answers a message: the conversation it belongs to, else the first route that matches.

mod ctx;
mod handler;
mod media;
mod past;
mod pattern;
mod user;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::Value;

use crate::core::content::Content;
use crate::core::coordinator::Turn;
use crate::core::error::{SendError, StoreError};
use crate::core::id::ConversationKey;
use crate::core::store::Direction;
use crate::core::time::Timestamp;
use crate::egress::{Boxed, Egress, TurnScope};
pub(crate) use crate::flow::EndedConversation;
use crate::flow::{Conversations, Due, Entry, Overdue, Resumed, Stopped, own_event};
use crate::scheduler::{Scheduler, is_task};
use crate::turns::Work;
use crate::world::World;
pub use ctx::Ctx;
pub(crate) use ctx::{Arrived, StandIn};
pub(crate) use handler::{BoxedHandler, boxed};
pub use handler::{Handler, IntoOutcome};
pub(crate) use past::Past;
pub(crate) use pattern::fold;
pub use pattern::{Kind, Pattern, command, interaction, kinds, regex, system};
pub use user::UserState;

/// What a hook before a message decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookVerdict {
    /// The message goes on.
    Continue,
    /// The message goes on with this text, for example the transcript of a voice note.
    Text(String),
    /// The message is done.
    Stop,
}

/// A hook before a message.
pub(crate) type BeforeMessage = Arc<dyn Fn(Ctx) -> Boxed<Result<HookVerdict, crate::Error>> + Send + Sync>;
/// A hook after a message.
pub(crate) type AfterMessage = Arc<dyn Fn(Ctx) -> Boxed<()> + Send + Sync>;

/// What handling a message came to.
pub(crate) struct Handled {
    pub(crate) verdict: Verdict,
    pub(crate) ended: Option<EndedConversation>,
}

/// What becomes of the message.
pub(crate) enum Verdict {
    Done,
    /// Something failed that a later attempt may find mended.
    Failed(String),
    /// The bot author's code failed.
    HandlerFailed(String),
    /// Something failed, and the bot stops before the next attempt, which is left to the next start.
    Postponed(String),
    /// It did not count.
    Released,
    /// It was another process's before it began.
    Taken,
}

/// The routes of a bot.
#[derive(Default)]
pub(crate) struct Routes {
    pub(crate) when: Vec<(Pattern, BoxedHandler)>,
    pub(crate) otherwise: Option<BoxedHandler>,
    pub(crate) before: Vec<BeforeMessage>,
    pub(crate) after: Vec<AfterMessage>,
}

pub(crate) struct Dispatcher {
    world: Arc<World>,
    egress: Arc<Egress>,
    routes: Routes,
    conversations: Conversations,
    scheduler: Arc<Scheduler>,
}

impl Dispatcher {
    pub(crate) fn new(
        world: Arc<World>,
        egress: Arc<Egress>,
        routes: Routes,
        conversations: Conversations,
        scheduler: Arc<Scheduler>,
    ) -> Self {
        Self { world, egress, routes, conversations, scheduler }
    }

    pub(crate) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.scheduler
    }

    pub(crate) fn conversations(&self) -> &Conversations {
        &self.conversations
    }

    pub(crate) async fn handle(&self, scope: &Arc<TurnScope>, work: &Work) -> Handled {
        if is_task(&work.inbound.chat) {
            return self.run_task(scope, work).await;
        }
        let (world, egress) = (Arc::clone(&self.world), Arc::clone(&self.egress));
        let inbound = media::to_run(&*world.provider, work);
        let scheduler = Arc::clone(&self.scheduler);
        let last_attempt = self.is_last_attempt(work);
        let order = work.record.as_ref().map(|stored| stored.record.order);
        let (received, replay) = (work.received, work.replay);
        let arrived = Arrived { received, order, replay, last_attempt, stand_in: false };
        let mut ctx = Ctx::new(world, egress, scheduler, Arc::clone(scope), inbound, arrived);
        if let Some(entry) = Entry::of(ctx.inbound()) {
            return entered(&ctx, self.conversations.enter_from_outside(&ctx, entry).await);
        }
        if !work.replay {
            let inbound = ctx.inbound();
            let (message, text) = (inbound.message_id(), inbound.readable_text());
            self.world.log_message(Direction::In, &inbound.chat, message, text).await;
        }
        let heard = match work.replay {
            true => self.conversations.heard(&ctx).await.unwrap_or_default(),
            false => None,
        };
        let hooks = if heard.is_some() { &[][..] } else { &self.routes.before };
        if let Some(Some(text)) = heard {
            ctx = ctx.with_text(text);
        }
        for hook in hooks {
            match hook(ctx.clone()).await {
                Ok(HookVerdict::Continue) => {}
                Ok(HookVerdict::Text(text)) => ctx = ctx.with_text(text),
                Ok(HookVerdict::Stop) => return Handled { verdict: Verdict::Done, ended: None },
                Err(error) => return self.failed("a hook before a message", &*error),
            }
        }
        let handled = self.converse_or_route(&ctx).await;
        for hook in &self.routes.after {
            hook(ctx.clone()).await;
        }
        handled
    }

    fn is_last_attempt(&self, work: &Work) -> bool {
        let (Some(open), Some(stored)) = (&self.world.journal, &work.record) else { return true };
        stored.record.attempts >= open.config.inbox.max_attempts
    }

    async fn run_task(&self, scope: &Arc<TurnScope>, work: &Work) -> Handled {
        let attempt = work.record.as_ref().map_or(1, |stored| stored.record.attempts);
        let verdict = match self.scheduler.run(scope, &work.inbound, attempt).await {
            Ok(()) => Verdict::Done,
            Err(error) => Verdict::Failed(error),
        };
        Handled { verdict, ended: None }
    }

    async fn converse_or_route(&self, ctx: &Ctx) -> Handled {
        match self.resume(ctx).await {
            Ok(Resumed::Consumed(ended)) => return Handled { verdict: Verdict::Done, ended },
            Ok(Resumed::Free | Resumed::Overdue) => {}
            Err(stopped) => return stopped.handled(ctx),
        }
        if let Some((handler, args)) = self.route(ctx)
            && let Err(error) = handler(ctx.clone().with_args(args)).await
        {
            return self.failed("a handler", &*error);
        }
        let Some(entry) = ctx.take_entry() else { return Handled { verdict: Verdict::Done, ended: None } };
        entered(ctx, self.conversations.enter(ctx, entry).await)
    }

    /// Gives the message to its conversation. A wait that was over before it came is ended first, and what the conversation
    /// asks then is answered by it.
    async fn resume(&self, ctx: &Ctx) -> Result<Resumed, Stopped> {
        let resumed = self.conversations.resume(ctx).await?;
        if !matches!(resumed, Resumed::Overdue) {
            return Ok(resumed);
        }
        self.do_due(ctx.scope().turn(), &ctx.conversation(), ctx.received()).await?;
        self.conversations.resume(ctx).await
    }

    /// Does what is due in a conversation without a message of its user; under its chat's turn.
    pub(crate) async fn do_due(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        match self.conversations.due(turn, key, now).await? {
            None => Ok(()),
            Some(Due::Ended(overdue)) => self.end_wait(turn, key, &overdue).await,
            Some(Due::Idle(live, idle)) => {
                let base = format!("i/{}/{}", key.encode(), live.revision.0);
                let told = self.tell_by_itself(turn, key, base, Content::clone(&idle.say)).await;
                self.conversations.put_back(key, live);
                told
            }
            Some(Due::Live(overdue)) => {
                if self.time_out_live(turn, key, overdue).await {
                    return Ok(());
                }
                // Nobody would get further: if it still waits, that ends as where no code waits.
                match self.conversations.due(turn, key, now).await? {
                    Some(Due::Ended(overdue) | Due::Live(overdue)) => {
                        self.end_wait(turn, key, &overdue).await
                    }
                    Some(Due::Idle(..)) | None => Ok(()),
                }
            }
        }
    }

    /// Ends a conversation whose wait is over, and says so.
    async fn end_wait(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        overdue: &Overdue,
    ) -> Result<(), StoreError> {
        if let Some(say) = &overdue.say {
            let base = format!("t/{}/{}", key.encode(), overdue.checkpoint.revision.0);
            self.tell_by_itself(turn, key, base, say.clone()).await?;
        }
        self.conversations.end_overdue(&self.world, turn, key, overdue).await
    }

    async fn tell_by_itself(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        base: String,
        say: Content,
    ) -> Result<(), StoreError> {
        let scope = TurnScope::new(Arc::clone(&self.world), turn.clone(), None, Some(base), true);
        let told = self.egress.reply(&scope, None, &key.chat, say).await;
        self.world.record_in_background(scope.close());
        match told {
            Err(SendError::Journal(error)) => return Err(error),
            Err(SendError::LeaseLost(_)) | Ok(_) => {}
            Err(error) => self.world.events.error("telling that a wait is over", &error),
        }
        Ok(())
    }

    /// Lets code go on whose wait is over. `false` if it cannot.
    async fn time_out_live(&self, turn: &Turn, key: &ConversationKey, overdue: Overdue) -> bool {
        let world = Arc::clone(&self.world);
        let id = overdue.checkpoint.revision.0.to_string();
        let base = format!("t/{}/{id}/live", key.encode());
        let scope = Arc::new(TurnScope::new(Arc::clone(&world), turn.clone(), None, Some(base), true));
        let inbound = Arc::new(own_event(key.clone(), "botmesh:timeout", &id, Value::Null));
        let arrived = Arrived::by_itself(world.now());
        let (egress, scheduler) = (Arc::clone(&self.egress), Arc::clone(&self.scheduler));
        let ctx = Ctx::new(world, egress, scheduler, Arc::clone(&scope), (inbound, None), arrived);
        let going_on = AssertUnwindSafe(self.conversations.time_out_live(&ctx, overdue)).catch_unwind();
        let outcome = scope.drive(std::pin::pin!(going_on)).await;
        self.world.record_in_background(scope.close());
        match outcome {
            Ok(Ok(ended)) => {
                if let Some(ended) = ended {
                    self.conversations.forget_ended(turn, ended).await;
                }
                true
            }
            Ok(Err(stopped)) => {
                stopped.tell(&ctx);
                matches!(stopped, Stopped::Store(_) | Stopped::Superseded)
            }
            Err(panic) => {
                self.world.events.failure("a flow", panic_text(&*panic));
                false
            }
        }
    }

    fn route(&self, ctx: &Ctx) -> Option<(&BoxedHandler, Vec<String>)> {
        let username = self.world.provider.username();
        let subject = pattern::Subject::new(ctx.inbound(), ctx.text(), username.as_deref());
        for (pattern, handler) in &self.routes.when {
            if let Some(args) = pattern.matches(&subject) {
                return Some((handler, args));
            }
        }
        let otherwise = self.routes.otherwise.as_ref()?;
        ctx.inbound().body.is_answer().then(|| (otherwise, Vec::new()))
    }

    fn failed(&self, what: &str, error: &(dyn std::error::Error + 'static)) -> Handled {
        self.world.events.error(failing(what, error), error);
        Handled { verdict: Verdict::HandlerFailed(crate::events::describe(error)), ended: None }
    }

    /// Forgets a conversation that ended, once the message that ended it is acknowledged.
    pub(crate) async fn forget_ended(&self, turn: &Turn, ended: EndedConversation) {
        self.conversations.forget_ended(turn, ended).await;
    }
}

/// Whether it comes from a send that is tried again in the background.
pub(crate) fn is_deferred(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|error| matches!(error.downcast_ref(), Some(SendError::Deferred { .. })))
}

/// What failed, in words that tell a bot author what became of the rest.
pub(crate) fn failing(what: &str, error: &(dyn std::error::Error + 'static)) -> String {
    match is_deferred(error) {
        true => format!(
            "{what} returned the error of a send that is tried again in the background; what comes after it is not done \
             (to go on, do not return `SendError::Deferred`, or use `enqueue`)"
        ),
        false => what.to_owned(),
    }
}

fn entered(ctx: &Ctx, outcome: Result<Option<EndedConversation>, Stopped>) -> Handled {
    match outcome {
        Ok(ended) => Handled { verdict: Verdict::Done, ended },
        Err(stopped) => stopped.handled(ctx),
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("no message"))
}
