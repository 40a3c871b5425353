use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;

use super::Bot;
use crate::core::entropy::random_hex;
use crate::core::id::ConversationKey;
use crate::core::provider::AdmitError;
use crate::flow::Entry;

/// A flow was not entered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EnterError {
    /// The bot is not running.
    #[error("the bot is not running: enter flows after `Bot::run` opened its journals (the event `started`)")]
    NotRunning,
    /// No flow or conversation has this name.
    #[error("there is no flow `{flow}`; flows: {known:?}")]
    Unknown {
        /// The name.
        flow: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The state cannot be written as JSON.
    #[error("the state cannot be written as JSON")]
    State(#[from] serde_json::Error),
    /// It could not be taken over; nothing happens.
    #[error(transparent)]
    Refused(#[from] AdmitError),
}

impl Bot {
    /// Enters a flow with this state, or a conversation with this input, without a message of the user: under the turn of
    /// the chat, after the messages that wait for it. It replaces a conversation that is going on. `&()` begins a flow
    /// whose state is `()`, and a conversation without input.
    ///
    /// With durability it is journaled like a message: once this returned, the flow begins also after a crash. In a group,
    /// name the participant: `ConversationKey::in_group("group", "ana")`.
    ///
    /// # Errors
    /// There is no such flow, the bot is not running, or the inbox cannot be written.
    ///
    /// # Cancel safety
    /// A dropped call may have entered the flow.
    pub async fn enter<S: Serialize + ?Sized>(
        &self,
        chat: impl Into<ConversationKey>,
        flow: impl Into<String>,
        state: &S,
    ) -> Result<(), EnterError> {
        let running = self.shared.running.get().ok_or(EnterError::NotRunning)?;
        let (flow, state) = (flow.into(), serde_json::to_value(state)?);
        let conversations = running.turns.dispatcher().conversations();
        if !conversations.names().any(|name| name == flow) {
            let mut known: Vec<_> = conversations.names().map(str::to_owned).collect();
            known.sort_unstable();
            return Err(EnterError::Unknown { flow, known });
        }
        let id = random_hex(&*running.world.seams.entropy);
        let inbound = Entry { flow, state: Some(state) }.into_inbound(chat.into(), &id);
        // It comes after what waits now: its place may be taken later.
        let _taken_over = running.intake.take_over(Arc::new(inbound)).await?;
        Ok(())
    }
}
