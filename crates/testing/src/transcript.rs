//! What went through a mock channel, for assertions and for their messages.

use std::fmt::{self, Write as _};

use botmesh_core::content::Content;
use botmesh_core::error::{ErrorClass, Phase};
use botmesh_core::id::{ChatId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::SendReceipt;

/// One call of `send`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// Which replica called, counted from 1; see [`MockProvider::replica`](crate::MockProvider::replica).
    pub replica: usize,
    /// To which chat.
    pub chat: ChatId,
    /// What.
    pub content: Content,
    /// The send's token, where the channel asks for one.
    pub token: Option<SendKey>,
    /// Which attempt at this message it was, from 1. Attempts at one message have the same token, or, without tokens,
    /// the same chat and content.
    pub attempt: u32,
    /// What became of it.
    pub outcome: SendOutcome,
}

impl Sent {
    /// The text or the caption.
    pub fn text(&self) -> &str {
        self.content.readable_text()
    }

    /// The channel's id of the message, if it has one.
    pub fn receipt(&self) -> Option<&SendReceipt> {
        match &self.outcome {
            SendOutcome::Delivered(receipt)
            | SendOutcome::AnswerLost(receipt)
            | SendOutcome::Deduplicated(receipt) => Some(receipt),
            SendOutcome::Failed(..) | SendOutcome::Hanging => None,
        }
    }

    /// Whether the user sees a message that was not there before.
    pub fn is_delivery(&self) -> bool {
        matches!(self.outcome, SendOutcome::Delivered(_) | SendOutcome::AnswerLost(_))
    }
}

/// What became of one call of `send`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The message was delivered, and the caller was told.
    Delivered(SendReceipt),
    /// The message was delivered, and the answer was lost.
    AnswerLost(SendReceipt),
    /// The channel had the token's message already; the caller was told of the first delivery.
    Deduplicated(SendReceipt),
    /// The message was not delivered.
    Failed(ErrorClass, Phase),
    /// The call stands still, or was dropped while it did. Nothing was delivered.
    Hanging,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bot -> {}: {:?}", self.chat, self.text())?;
        if let Some(token) = &self.token {
            write!(f, " [{token}]")?;
        }
        if self.attempt > 1 {
            write!(f, " attempt {}", self.attempt)?;
        }
        match &self.outcome {
            SendOutcome::Delivered(receipt) => write!(f, " => {}", receipt.message),
            SendOutcome::AnswerLost(receipt) => write!(f, " => {}, answer lost", receipt.message),
            SendOutcome::Deduplicated(receipt) => write!(f, " => {}, known already", receipt.message),
            SendOutcome::Failed(class, phase) => write!(f, " => failed: {class:?} ({phase:?})"),
            SendOutcome::Hanging => write!(f, " => hanging"),
        }
    }
}

/// A line of the transcript.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    /// What the test delivered to the bot.
    In(Box<Inbound>),
    /// The place of a send in the list of sends.
    Out(usize),
}

pub(crate) fn render(lines: &[Line], sent: &[Sent]) -> String {
    if lines.is_empty() {
        return "(nothing was received or sent)".to_owned();
    }
    let mut text = String::new();
    for line in lines {
        let written = match line {
            Line::In(inbound) => {
                writeln!(text, "{} -> bot: {:?} ({})", inbound.chat, inbound.readable_text(), inbound.event)
            }
            Line::Out(place) => writeln!(text, "{}", sent[*place]),
        };
        debug_assert!(written.is_ok(), "writing to a String never fails");
    }
    text
}
