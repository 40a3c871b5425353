//! Flows: guided conversations of named steps, with typed state and a checkpoint for each step.

mod conversations;
mod definition;
mod prompt;
mod run;
mod state;

pub(crate) use conversations::{Conversations, EndedConversation, Entry, Resumed, Stopped, TimedOut};
pub use definition::{Flow, OnIncompatible, Step, flow};
pub use prompt::{Answer, AskAgain, Prompt};
pub(crate) use run::AnyFlow;
pub use run::FlowCtx;
pub use state::{FlowState, MigrateError};
