use std::fmt;

use super::AskError;
use super::rows::EndedConversation;
use crate::core::error::StoreError;
use crate::dispatch::{Ctx, Handled, Verdict, failing};
use crate::events::{BotEvent, describe};

/// Why a conversation did not go on.
pub(crate) enum Stopped {
    /// The bot author's code failed; the conversation stands where it stood.
    Handler(crate::Error),
    /// The bot author's code failed, and the conversation is over.
    Over(crate::Error, Option<EndedConversation>),
    /// A send of the step is still in flight of whoever had the conversation before; a later attempt finds what became of it.
    InFlight(crate::Error),
    /// Nobody answered in time.
    TimedOut,
    /// It ran for too long.
    Unsettled,
    /// The store failed; a later attempt may find it mended.
    Store(StoreError),
    /// Another owner wrote the checkpoint.
    Superseded,
    /// The stored flow does not fit the code.
    Incompatible(String),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler(error) | Self::InFlight(error) | Self::Over(error, _) => {
                f.write_str(&describe(&**error))
            }
            Self::TimedOut => f.write_str("nobody answered in time"),
            Self::Unsettled => f.write_str(
                "the conversation ran for longer than turns.settle without waiting for its user or ending, and was \
                 stopped; raise turns.settle, or do long work elsewhere",
            ),
            Self::Store(error) => f.write_str(&describe(error)),
            Self::Superseded => f.write_str("another owner wrote the conversation's checkpoint"),
            Self::Incompatible(reason) => f.write_str(reason),
        }
    }
}

impl Stopped {
    /// What an error of the bot author's code means.
    pub(super) fn by_code(error: crate::Error) -> Self {
        match error.downcast_ref() {
            Some(AskError::TimedOut) => Self::TimedOut,
            _ => Self::Handler(error),
        }
    }

    /// Tells the operator.
    pub(crate) fn tell(&self, ctx: &Ctx) {
        let events = &ctx.world().events;
        match self {
            Self::Handler(error) | Self::Over(error, _) => {
                events.error(failing("a flow", &**error), &**error);
            }
            Self::Store(error) => events.error("the checkpoint of a conversation", error),
            Self::Unsettled => events.failure("a flow", self.to_string()),
            Self::Superseded => {
                events.emit(BotEvent::LeaseLost { key: ctx.conversation(), reason: "Superseded".to_owned() });
            }
            // Told where they are found. What is in flight is no failure.
            Self::TimedOut | Self::Incompatible(_) | Self::InFlight(_) => {}
        }
    }

    pub(crate) fn handled(self, ctx: &Ctx) -> Handled {
        self.tell(ctx);
        let reason = self.to_string();
        match self {
            Self::Over(_, ended) => Handled { verdict: Verdict::HandlerFailed(reason), ended },
            Self::Handler(_) | Self::TimedOut | Self::Incompatible(_) => {
                Handled { verdict: Verdict::HandlerFailed(reason), ended: None }
            }
            Self::Store(_) | Self::InFlight(_) | Self::Unsettled | Self::Superseded => {
                Handled { verdict: Verdict::Failed(reason), ended: None }
            }
        }
    }
}
