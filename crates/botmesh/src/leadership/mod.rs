//! Who leads: which replica may use the channel, and who does what only one is to do.

mod channel;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::bot::{Coordination, CoordinationConfig};
use crate::core::coordinator::{Coordinator, Fence, Turn};
use crate::core::entropy::{Entropy, random_hex};
use crate::core::error::{CoordinationUnavailable, LeaseLost};
use crate::core::id::ConversationKey;
use crate::core::scope::Scope;
pub(crate) use channel::ChannelLead;

/// The longest name of a leadership, in bytes.
const MAX_NAME: usize = 512;

/// Where the replicas of a bot meet.
pub(crate) struct Replicas {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    /// The name of this one, for people; and whether somebody chose it.
    pub(crate) replica: String,
    pub(crate) is_named: bool,
    /// How long the leader's connection may be down.
    pub(crate) provider_down: Duration,
    scope: String,
    /// Before the keys of chats.
    chats: String,
}

impl Replicas {
    pub(crate) fn new(coordination: &Coordination, scope: &Scope, entropy: &dyn Entropy) -> Self {
        let CoordinationConfig { replica_id, provider_down, .. } = &coordination.config;
        Self {
            coordinator: Arc::clone(&coordination.coordinator),
            replica: replica_id.clone().unwrap_or_else(|| random_hex(entropy)),
            is_named: replica_id.is_some(),
            provider_down: *provider_down,
            scope: scope.id(),
            chats: if *scope == Scope::default() { String::new() } else { format!("chat/{}/", scope.id()) },
        }
    }

    /// The key of the turns of a conversation. Bots of other scopes have their own. Those of the default scope begin with
    /// `c/`.
    pub(crate) fn chat_key(&self, key: &ConversationKey) -> String {
        let mut text = self.chats.clone();
        text.push_str(&key.encode());
        text
    }

    /// The key of this bot's leadership of a channel. No chat and no job has it.
    pub(crate) fn channel_key(&self, name: &str) -> String {
        format!("lead/{}/{name}", self.scope)
    }

    pub(crate) fn replica_key(&self) -> String {
        format!("replica/{}/{}", self.scope, self.replica)
    }

    pub(crate) async fn try_lead(&self, name: &str) -> Result<Option<Leadership>, LeadError> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(LeadError::Name { bytes: name.len() });
        }
        let turn = self.coordinator.try_enter(&format!("job/{}/{name}", self.scope)).await?;
        Ok(turn.map(|turn| Leadership { name: name.to_owned(), turn }))
    }
}

/// The right to do what one replica at a time does; from [`Bot::try_lead`](crate::Bot::try_lead). It ends when it is released
/// or dropped, when the bot stops, and when the replica is silent for longer than its lease.
#[must_use = "a leadership that is dropped is given back"]
pub struct Leadership {
    name: String,
    turn: Turn,
}

impl Leadership {
    /// What it was asked for by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A number that grows from leadership to leadership of the same name: a resource that remembers the largest can refuse
    /// whoever comes late.
    pub fn fence(&self) -> Fence {
        self.turn.fence()
    }

    /// Whether it is still held. Compares numbers; asks nobody. To be called before each step that another replica must not
    /// do as well.
    ///
    /// # Errors
    /// It is lost.
    pub fn check(&self) -> Result<(), LeaseLost> {
        self.turn.check()
    }

    /// Returns when it is lost. Cancel safe.
    pub async fn lost(&self) -> LeaseLost {
        self.turn.lost().await
    }

    /// Gives it back, so that another replica can have it at once; as dropping does.
    pub fn release(self) {
        self.turn.release();
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.turn.release();
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.name)
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

/// Nobody can say who leads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LeadError {
    /// The bot is not running.
    #[error("the bot is not running: ask after `Bot::run` began (the event `started`)")]
    NotRunning,
    /// The name is empty or too long.
    #[error("the name has {bytes} bytes; give it 1 to {MAX_NAME}")]
    Name {
        /// How long it is.
        bytes: usize,
    },
    /// The coordinator cannot be asked.
    #[error("the coordinator cannot be asked who leads")]
    Unavailable(#[from] CoordinationUnavailable),
}
