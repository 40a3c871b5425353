//! Conversations: flows of named steps with typed state and a checkpoint for each step, and code that waits for its user.

mod ask;
mod conversation;
mod conversations;
mod definition;
mod due;
mod entry;
mod form;
mod history;
mod interrupted;
mod live;
mod prompt;
mod resume;
mod rows;
mod run;
mod saver;
mod state;
mod stopped;
mod talk;

pub use ask::Ask;
pub use conversation::{Conv, Conversation, conversation};
pub(crate) use conversations::{Conversations, Resumed};
pub use definition::{Flow, OnIncompatible, Step, flow};
pub(crate) use due::{Due, Overdue};
pub(crate) use entry::{Entry, OWN_EVENTS, own_event};
pub use form::{Field, Filled, field};
pub use prompt::{Answer, AskAgain, Prompt};
pub(crate) use rows::EndedConversation;
pub(crate) use run::AnyFlow;
pub use run::FlowCtx;
pub use state::{FlowState, MigrateError};
pub(crate) use stopped::Stopped;
pub use talk::AskError;
