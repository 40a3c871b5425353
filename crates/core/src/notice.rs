//! What a channel tells beside the events of its chats.

use std::fmt;

use serde_json::Value;

use crate::error::ErrorClass;
use crate::id::{ChatId, MessageId};
use crate::inbound::Inbound;
use crate::time::Timestamp;

/// Something that nobody answers: no message waits for it, and it is not journaled. A channel may tell it more than once, or
/// not at all.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// How far messages of this bot came.
    Receipt(Receipt),
    /// Somebody else wrote in the bot's place: a person in the channel's own inbox, or another application.
    FromMe {
        /// The chat.
        chat: ChatId,
        /// The message.
        message: MessageId,
        /// What it says.
        text: String,
    },
    /// A message in a chat that another application answers. This bot only watches it.
    Watched(Box<Inbound>),
    /// The channel has a problem that belongs to no call of this bot.
    Problem {
        /// The channel's own code.
        code: Option<String>,
        /// What happened.
        detail: String,
    },
    /// Something about the bot's account.
    Account {
        /// What happened, in the channel's word.
        event: String,
        /// Details in the channel's own form.
        detail: Value,
    },
}

/// A chat or a user goes on under another id: a group became a supergroup, somebody changed their number. Told with
/// [`InboundSink::moved`](crate::provider::InboundSink::moved), not as a notice: it must not be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The id until now.
    pub from: ChatId,
    /// The id from now on.
    pub to: ChatId,
    /// When the channel says that it was. Of two moves of the same chat, the later one says where it is.
    pub at: Option<Timestamp>,
}

/// How far messages of this bot came.
#[derive(Clone, Debug, PartialEq)]
pub struct Receipt {
    /// In which chat.
    pub chat: ChatId,
    /// Which of its messages.
    pub of: ReceiptOf,
    /// How far.
    pub stage: Stage,
    /// When the channel says that it was.
    pub at: Option<Timestamp>,
    /// Why it failed.
    pub failure: Option<DeliveryFailure>,
}

/// Which messages a receipt is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiptOf {
    /// This one.
    Message(MessageId),
    /// All that were sent up to this instant.
    UpTo(Timestamp),
}

/// How far a message came. The order is that of its life; a channel may tell it in another one, and leave some out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// The channel has it and holds it back.
    Accepted,
    /// The channel sent it on.
    Sent,
    /// It could not be delivered, although the channel had taken it.
    Failed,
    /// A device of the user has it.
    Delivered,
    /// The user saw it.
    Read,
    /// The user played it.
    Played,
}

/// Why a message that the channel had taken was not delivered. Nobody sends it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryFailure {
    /// What kind of failure it is.
    pub class: ErrorClass,
    /// The channel's own code.
    pub code: Option<String>,
    /// What happened.
    pub detail: String,
}

impl Notice {
    /// Whether somebody should look at it.
    pub fn is_trouble(&self) -> bool {
        match self {
            Self::Receipt(receipt) => receipt.stage == Stage::Failed,
            Self::Problem { .. } => true,
            Self::FromMe { .. } | Self::Watched(_) | Self::Account { .. } => false,
        }
    }
}

/// Without what people wrote: this goes to logs.
impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receipt(Receipt { chat, of, stage, failure, .. }) => {
                match of {
                    ReceiptOf::Message(message) => write!(f, "{message} to {chat}: {stage:?}")?,
                    ReceiptOf::UpTo(at) => write!(f, "everything to {chat} up to {at}: {stage:?}")?,
                }
                match failure {
                    Some(DeliveryFailure { class, detail, .. }) => write!(f, ", {class:?}: {detail}"),
                    None => Ok(()),
                }
            }
            Self::FromMe { chat, message, .. } => write!(f, "{message} to {chat}"),
            Self::Watched(inbound) => write!(f, "{} in {}", inbound.event, inbound.chat),
            Self::Problem { code: Some(code), detail } => write!(f, "{code}: {detail}"),
            Self::Problem { code: None, detail } => f.write_str(detail),
            Self::Account { event, .. } => f.write_str(event),
        }
    }
}
