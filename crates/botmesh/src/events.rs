use std::fmt;

use tokio::sync::broadcast;

use crate::core::error::LeaseLostReason;
use crate::core::id::{ChatId, ConversationKey, SendKey};

/// How many events a slow listener may be behind before it misses the oldest.
const CAPACITY: usize = 1024;

/// Which journal a dead letter lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadKind {
    /// An inbound event.
    Inbound,
    /// A send.
    Outbound,
}

/// What happens in a bot and is worth telling an operator. One event for each change, not for each retry.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BotEvent {
    /// The journals are open, unfinished work is queued again, and the channel is being connected.
    Started,
    /// Everything in flight is finished or released.
    Stopped,
    /// A handler or a hook failed, or a backend did.
    Error {
        /// Where.
        context: String,
        /// What happened.
        error: String,
    },
    /// A record was given up.
    Dead {
        /// Which journal it lies in.
        kind: DeadKind,
        /// Its id or key.
        id: String,
        /// Why.
        error: String,
    },
    /// A send's outcome is unknown and the channel could not resolve it; the policy decided.
    Ambiguous {
        /// The send.
        key: SendKey,
        /// Its chat.
        chat: ChatId,
        /// Whether it is sent again.
        resent: bool,
    },
    /// A send of unknown outcome, told as [`Ambiguous`](Self::Ambiguous) before, had arrived: the channel showed it.
    Resolved {
        /// The send.
        key: SendKey,
        /// Its chat.
        chat: ChatId,
    },
    /// This process stood still or lost its backend for longer than a lease. Until it can renew it, it begins no handler
    /// and does not call the channel.
    InstanceLeaseLost {
        /// Why.
        reason: LeaseLostReason,
    },
    /// The lease that was lost is held again; nobody took this process's place.
    InstanceLeaseRenewed,
    /// Another process took this one's place: it started under this instance id, or took over everything after the lease
    /// ran out. This one takes nothing new and ends.
    Superseded {
        /// The instance id.
        instance: String,
    },
    /// A turn was lost; what the handler did afterwards was refused.
    LeaseLost {
        /// The conversation.
        key: ConversationKey,
        /// Why.
        reason: String,
    },
    /// A stored flow could not go on: its state does not load or its step is gone.
    FlowIncompatible {
        /// The conversation.
        key: ConversationKey,
        /// The flow.
        flow: String,
        /// What did not fit.
        reason: String,
    },
    /// A wait of a flow ran out.
    FlowTimeout {
        /// The conversation.
        key: ConversationKey,
        /// The flow.
        flow: String,
    },
}

impl BotEvent {
    /// The event's name, as in the documentation.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::Error { .. } => "error",
            Self::Dead { .. } => "durability:dead",
            Self::Ambiguous { .. } => "durability:ambiguous",
            Self::Resolved { .. } => "durability:resolved",
            Self::InstanceLeaseLost { .. } => "durability:lease-lost",
            Self::InstanceLeaseRenewed => "durability:lease-renewed",
            Self::Superseded { .. } => "durability:superseded",
            Self::LeaseLost { .. } => "coordination:lease-lost",
            Self::FlowIncompatible { .. } => "flow:incompatible",
            Self::FlowTimeout { .. } => "flow:timeout",
        }
    }
}

impl fmt::Display for BotEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Started | Self::Stopped | Self::InstanceLeaseRenewed => Ok(()),
            Self::InstanceLeaseLost { reason } => write!(f, " {reason:?}"),
            Self::Error { context, error } => write!(f, " {context}: {error}"),
            Self::Dead { kind, id, error } => write!(f, " {kind:?} {id}: {error}"),
            Self::Ambiguous { key, chat, resent } => write!(f, " {key} to {chat}, resent: {resent}"),
            Self::Resolved { key, chat } => write!(f, " {key} to {chat}"),
            Self::Superseded { instance } => write!(f, " {instance}"),
            Self::LeaseLost { key, reason } => write!(f, " {key}: {reason}"),
            Self::FlowIncompatible { key, flow, reason } => write!(f, " {flow} of {key}: {reason}"),
            Self::FlowTimeout { key, flow } => write!(f, " {flow} of {key}"),
        }
    }
}

/// Tells listeners and the log.
#[derive(Clone, Debug)]
pub(crate) struct EventBus(broadcast::Sender<BotEvent>);

impl EventBus {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(CAPACITY))
    }

    pub(crate) fn emit(&self, event: BotEvent) {
        match &event {
            BotEvent::Started | BotEvent::Stopped => tracing::info!(event = event.name()),
            event => tracing::warn!(event = event.name(), "{event}"),
        }
        // Nobody has to listen.
        let _ = self.0.send(event);
    }

    pub(crate) fn error(&self, context: impl Into<String>, error: &dyn std::error::Error) {
        self.failure(context, describe(error));
    }

    pub(crate) fn failure(&self, context: impl Into<String>, error: String) {
        self.emit(BotEvent::Error { context: context.into(), error });
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<BotEvent> {
        self.0.subscribe()
    }
}

/// An error with its causes in one line, as a person wants to read it.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
