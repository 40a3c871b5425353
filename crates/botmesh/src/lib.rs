#![doc = include_str!("../README.md")]

mod bot;
mod dispatch;
mod egress;
mod events;
mod file;
mod flow;
mod handover;
mod health;
mod heartbeat;
mod identities;
mod intake;
mod lanes;
mod leadership;
mod metrics;
mod scheduler;
mod sweeper;
mod texts;
mod turns;
mod world;

pub use botmesh_core as core;
pub use botmesh_core::journal::OnAmbiguous;

pub use bot::{
    Bot, BotBuilder, Broadcast, BroadcastProgress, Broadcasting, Coordination, CoordinationConfig,
    CoordinationStatus, Durability, Enqueued, EnterError, InboxConfig, Journals, OnDiverged, OnHandlerError,
    OperateError, OutboxConfig, ProviderSession, ReplicaRole, TokioSpawner, TurnsConfig,
};
pub use dispatch::{
    Ctx, Handler, HookVerdict, IntoOutcome, Kind, Pattern, UserState, command, interaction, kinds, regex,
    system,
};
pub use egress::Sent;
pub use events::{BotEvent, DeadKind, FollowerReason, describe};
pub use file::{FileDurability, FileOptions};
pub use flow::{
    Answer, Ask, AskAgain, AskError, Conv, Conversation, Field, Filled, Flow, FlowCtx, FlowState,
    MigrateError, OnIncompatible, Prompt, Step, conversation, field, flow,
};
pub use handover::{
    Fallback, FallbackFunction, HandoverConfig, HandoverFlows, HandoverOutcome, Interrupted,
    InterruptedReason,
};
pub use leadership::{LeadError, Leadership};
pub use metrics::{HistogramSnapshot, MetricsSnapshot};
pub use scheduler::{
    Cancel, LastRun, Missed, Put, Schedule, ScheduleError, TaskCtx, TaskHandler, TaskInfo, TaskPage, Tasks,
};
pub use texts::{Text, Texts};

/// What handlers may fail with: any error.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of handlers and of running a bot.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// The names a bot author needs, to import in one line.
pub mod prelude {
    pub use std::time::Duration;

    pub use crate::core::content::{Button, Content};
    pub use crate::core::error::SendError;
    pub use crate::core::inbound::{Inbound, InboundBody};
    pub use crate::core::markup::{Formatted, Style};
    pub use crate::core::scope::Scope;
    pub use crate::core::store::Store;
    pub use crate::dispatch::kinds::{
        ANY, AUDIO, CONTACT, DOCUMENT, EDIT, IMAGE, INTERACTION, LOCATION, POLL_VOTE, REACTION, STICKER,
        SYSTEM, TEXT, UNSUPPORTED, VIDEO,
    };
    pub use crate::{
        Answer, AskError, Bot, BotEvent, Conv, Ctx, Durability, Flow, FlowCtx, FlowState, Pattern, Result,
        Schedule, Step, TaskCtx, command, conversation, field, flow, interaction, regex, system,
    };
}

/// The pages of the book, so that their code is compiled.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/en/first-bot.md")]
    mod first_bot {}
    #[doc = include_str!("../../../docs/en/formatting.md")]
    mod formatting {}
    #[doc = include_str!("../../../docs/en/broadcasts.md")]
    mod broadcasts {}
    #[doc = include_str!("../../../docs/en/durability.md")]
    mod durability {}
    #[doc = include_str!("../../../docs/en/flows.md")]
    mod flows {}
    #[doc = include_str!("../../../docs/en/conversations.md")]
    mod conversations {}
    #[doc = include_str!("../../../docs/en/handover.md")]
    mod handover {}
    #[doc = include_str!("../../../docs/en/replicas.md")]
    mod replicas {}
    #[doc = include_str!("../../../docs/en/deploy.md")]
    mod deploy {}
    #[doc = include_str!("../../../docs/en/scheduler.md")]
    mod scheduler {}
    #[doc = include_str!("../../../docs/en/telegram.md")]
    mod telegram {}
    #[doc = include_str!("../../../docs/en/whatsapp.md")]
    mod whatsapp {}
    #[doc = include_str!("../../../docs/en/messenger.md")]
    mod messenger {}
    #[doc = include_str!("../../../docs/en/instagram.md")]
    mod instagram {}
    #[doc = include_str!("../../../docs/en/security.md")]
    mod security {}
    #[doc = include_str!("../../../docs/en/webhooks.md")]
    mod webhooks {}
}
