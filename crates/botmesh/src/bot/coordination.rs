use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::core::coordinator::Coordinator;
use crate::core::error::ConfigError;
use crate::core::provider::Provider;
use crate::handover::HandoverConfig;

/// The longest replica id, in bytes.
const MAX_REPLICA_ID: usize = 128;

/// How the replicas of a bot share its chats and its channel: one of them handles a chat at a time, and of a channel that
/// permits one connection, one of them has it. They need a [store](crate::BotBuilder::store) that they share, and journals
/// that they share if they have any.
#[derive(Clone)]
pub struct Coordination {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    /// How it is used.
    pub config: CoordinationConfig,
}

/// How a coordinator is used. In files, durations are texts such as `"15s"` or whole milliseconds, and unknown fields are
/// refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinationConfig {
    /// How long a message waits for its chat's turn at most. Default 2 min. Then it is tried again as after any failure; without
    /// durability it is lost.
    #[serde(with = "botmesh_core::duration")]
    pub turn_wait: Duration,
    /// Which replicas connect the channel. Default [`ProviderSession::Auto`].
    pub provider_session: ProviderSession,
    /// How long the connection of the replica that leads may be down, or not come up, before another one gets to try. Default
    /// 1 min. Longer than it takes to connect, also for a person who has to scan a code.
    #[serde(with = "botmesh_core::duration")]
    pub provider_down: Duration,
    /// The name of this replica in events and logs. Default: random at each start. Two replicas of one name both work, and
    /// are told of.
    pub replica_id: Option<String>,
    /// What becomes of a conversation when another replica takes its chat.
    pub handover: HandoverConfig,
}

/// Which replicas connect the channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderSession {
    /// One at a time; the others stand by, and one of them connects when it is gone.
    Leader,
    /// All of them: each receives a part of what users say.
    Shared,
    /// As the channel needs it: [`Leader`](Self::Leader) if it permits only one connection
    /// ([`exclusive_session`](crate::core::provider::Capabilities::exclusive_session)), else [`Shared`](Self::Shared).
    #[default]
    Auto,
}

impl Default for CoordinationConfig {
    fn default() -> Self {
        Self {
            turn_wait: Duration::from_secs(120),
            provider_session: ProviderSession::Auto,
            provider_down: Duration::from_secs(60),
            replica_id: None,
            handover: HandoverConfig::default(),
        }
    }
}

impl Coordination {
    /// With the turns of `coordinator`. The bot closes it when it stops.
    pub fn new(coordinator: impl Coordinator) -> Self {
        Self::shared(Arc::new(coordinator))
    }

    /// As [`new`](Self::new), for a coordinator that is shared with the caller.
    pub fn shared(coordinator: Arc<dyn Coordinator>) -> Self {
        Self { coordinator, config: CoordinationConfig::default() }
    }

    /// With this use of it.
    #[must_use]
    pub fn with_config(mut self, config: CoordinationConfig) -> Self {
        self.config = config;
        self
    }

    /// With this bound of the wait for a turn.
    #[must_use]
    pub fn with_turn_wait(mut self, wait: Duration) -> Self {
        self.config.turn_wait = wait;
        self
    }

    /// With these replicas connected.
    #[must_use]
    pub fn with_provider_session(mut self, session: ProviderSession) -> Self {
        self.config.provider_session = session;
        self
    }

    /// With this patience with a connection that is down.
    #[must_use]
    pub fn with_provider_down(mut self, patience: Duration) -> Self {
        self.config.provider_down = patience;
        self
    }

    /// With this name of this replica.
    #[must_use]
    pub fn with_replica_id(mut self, id: impl Into<String>) -> Self {
        self.config.replica_id = Some(id.into());
        self
    }

    /// With this hand-over.
    #[must_use]
    pub fn with_handover(mut self, handover: HandoverConfig) -> Self {
        self.config.handover = handover;
        self
    }

    /// Whether only one replica is connected to this channel.
    pub(crate) fn one_connection(&self, provider: &dyn Provider) -> bool {
        match self.config.provider_session {
            ProviderSession::Leader => true,
            ProviderSession::Shared => false,
            ProviderSession::Auto => provider.capabilities().exclusive_session,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let config = &self.config;
        if config.turn_wait.is_zero() {
            return Err(ConfigError::new(
                "coordination.turn_wait",
                "is 0, so that no message would ever get its turn",
                "set at least \"1s\"; \"2m\" is the default",
            ));
        }
        if config.provider_down < Duration::from_secs(1) {
            return Err(ConfigError::new(
                "coordination.provider_down",
                "is shorter than a second, so that no replica would have the time to connect",
                "set at least \"1s\"; \"1m\" is the default",
            ));
        }
        if let Some(id) = &config.replica_id
            && (id.is_empty() || id.len() > MAX_REPLICA_ID)
        {
            return Err(ConfigError::new(
                "coordination.replica_id",
                format!("has {} bytes, not 1 to {MAX_REPLICA_ID}", id.len()),
                "give each replica a short name of its own, or leave it out",
            ));
        }
        config.handover.validate()
    }
}

impl std::fmt::Debug for Coordination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordination").field("config", &self.config).finish_non_exhaustive()
    }
}
