//! Conversations: flows of named steps with typed state and a checkpoint for each step, and code that waits for its user.

mod ask;
mod conversation;
mod conversations;
mod definition;
mod entry;
mod form;
mod history;
mod live;
mod prompt;
mod run;
mod saver;
mod state;
mod stopped;
mod talk;

pub use ask::Ask;
pub use conversation::{Conv, Conversation, conversation};
pub(crate) use conversations::{Conversations, Due, EndedConversation, Overdue, Resumed};
pub use definition::{Flow, OnIncompatible, Step, flow};
pub(crate) use entry::{Entry, OWN_EVENTS, own_event};
pub use form::{Field, Filled, field};
pub use prompt::{Answer, AskAgain, Prompt};
pub(crate) use run::AnyFlow;
pub use run::FlowCtx;
pub use state::{FlowState, MigrateError};
pub(crate) use stopped::Stopped;
pub use talk::AskError;
