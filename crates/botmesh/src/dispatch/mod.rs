//! Which code answers a message: the conversation it belongs to, else the first route that matches.

mod ctx;
mod handler;
mod media;
mod pattern;
mod user;

use std::sync::Arc;

use crate::core::coordinator::Turn;
use crate::core::error::{SendError, StoreError};
use crate::core::id::ConversationKey;
use crate::core::store::Direction;
use crate::egress::{Boxed, Egress, TurnScope};
pub(crate) use crate::flow::EndedConversation;
use crate::flow::{Conversations, Stopped, TimedOut};
use crate::turns::Work;
use crate::world::World;
pub use ctx::Ctx;
pub(crate) use handler::{BoxedHandler, boxed};
pub use handler::{Handler, IntoOutcome};
pub(crate) use pattern::fold;
pub use pattern::{Kind, Pattern, command, interaction, kinds, regex};
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
}

impl Dispatcher {
    pub(crate) fn new(
        world: Arc<World>,
        egress: Arc<Egress>,
        routes: Routes,
        conversations: Conversations,
    ) -> Self {
        Self { world, egress, routes, conversations }
    }

    pub(crate) fn conversations(&self) -> &Conversations {
        &self.conversations
    }

    pub(crate) async fn handle(&self, scope: &Arc<TurnScope>, work: &Work) -> Handled {
        let (world, egress) = (Arc::clone(&self.world), Arc::clone(&self.egress));
        let inbound = media::to_run(&*world.provider, work);
        let mut ctx = Ctx::new(world, egress, Arc::clone(scope), inbound, work.received);
        if !work.replay {
            let inbound = ctx.inbound();
            let (message, text) = (inbound.event.as_str().into(), inbound.readable_text());
            self.world.log_message(Direction::In, &inbound.chat, message, text).await;
        }
        for hook in &self.routes.before {
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

    async fn converse_or_route(&self, ctx: &Ctx) -> Handled {
        let resumed = match self.conversations.resume(ctx).await {
            Ok(resumed) => resumed,
            Err(stopped) => return stopped.handled(&self.world),
        };
        let place = match resumed {
            crate::flow::Resumed::Consumed(ended) => return Handled { verdict: Verdict::Done, ended },
            crate::flow::Resumed::Free(place) => place,
            crate::flow::Resumed::Overdue(timed_out, place) => {
                match self.end_wait(ctx.scope().turn(), &ctx.conversation(), &timed_out).await {
                    Ok(()) => place,
                    Err(error) => return Stopped::from(error).handled(&self.world),
                }
            }
        };
        if let Some((handler, args)) = self.route(ctx)
            && let Err(error) = handler(ctx.clone().with_args(args)).await
        {
            return self.failed("a handler", &*error);
        }
        let Some(entry) = ctx.take_entry() else { return Handled { verdict: Verdict::Done, ended: None } };
        match self.conversations.enter(ctx, entry, place).await {
            Ok(ended) => Handled { verdict: Verdict::Done, ended },
            Err(stopped) => stopped.handled(&self.world),
        }
    }

    /// Ends a conversation whose wait is over, and says so.
    pub(crate) async fn end_wait(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        timed_out: &TimedOut,
    ) -> Result<(), StoreError> {
        if let Some(say) = &timed_out.say {
            let base = format!("t/{}/{}", key.encode(), timed_out.checkpoint.revision.0);
            let scope = TurnScope::new(Arc::clone(&self.world), turn.clone(), None, Some(base), true);
            let told = self.egress.send(Some(&scope), None, &key.chat, say.clone()).await;
            self.world.record_in_background(scope.close());
            match told {
                Ok(_) => {}
                Err(SendError::Journal(error)) => return Err(error),
                Err(error) => self.world.events.error("telling that a wait is over", &error),
            }
        }
        self.conversations.end_timed_out(&self.world, turn, key, timed_out).await
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

/// What failed, in words that tell a bot author what became of the rest.
pub(crate) fn failing(what: &str, error: &(dyn std::error::Error + 'static)) -> String {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let deferred = causes.any(|error| matches!(error.downcast_ref(), Some(SendError::Deferred { .. })));
    match deferred {
        true => format!(
            "{what} returned the error of a send that is tried again in the background; what comes after it is not done \
             (to go on, do not return `SendError::Deferred`, or use `enqueue`)"
        ),
        false => what.to_owned(),
    }
}
