use std::sync::Arc;
use std::time::Duration;

use crate::core::coordinator::Coordinator;
use crate::core::error::ConfigError;
use crate::handover::HandoverConfig;

/// How the replicas of a bot share its chats: one of them handles a chat at a time. They need a [store](crate::BotBuilder::store)
/// that they share, and journals that they share if they have any.
#[derive(Clone)]
pub struct Coordination {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    /// How long a message waits for its chat's turn at most. Default 2 min. Then it is tried again as after any failure; without
    /// durability it is lost.
    pub turn_wait: Duration,
    /// What becomes of a conversation when another replica takes its chat.
    pub handover: HandoverConfig,
}

impl Coordination {
    /// With the turns of `coordinator`. The bot closes it when it stops.
    pub fn new(coordinator: impl Coordinator) -> Self {
        Self::shared(Arc::new(coordinator))
    }

    /// As [`new`](Self::new), for a coordinator that is shared with the caller.
    pub fn shared(coordinator: Arc<dyn Coordinator>) -> Self {
        Self { coordinator, turn_wait: Duration::from_secs(120), handover: HandoverConfig::default() }
    }

    /// With this bound of the wait for a turn.
    #[must_use]
    pub fn with_turn_wait(mut self, wait: Duration) -> Self {
        self.turn_wait = wait;
        self
    }

    /// With this hand-over.
    #[must_use]
    pub fn with_handover(mut self, handover: HandoverConfig) -> Self {
        self.handover = handover;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.turn_wait.is_zero() {
            return Err(ConfigError::new(
                "coordination.turn_wait",
                "is 0, so that no message would ever get its turn",
                "set at least \"1s\"; \"2m\" is the default",
            ));
        }
        self.handover.validate()
    }
}

impl std::fmt::Debug for Coordination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordination")
            .field("turn_wait", &self.turn_wait)
            .field("handover", &self.handover)
            .finish_non_exhaustive()
    }
}
