use std::time::Duration;

use super::Bot;
use crate::core::coordinator::Fence;
use crate::core::provider::ConnectionState;
use crate::leadership::{LeadError, Leadership};

/// What a replica is to its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaRole {
    /// Every replica uses the channel.
    Shared,
    /// This one uses the channel alone.
    Leader {
        /// The number of its leadership.
        fence: Fence,
    },
    /// Another one does, or nobody.
    Standby,
    /// The channel ended its session: it stands by and does not campaign until [`Bot::logged_in`].
    LoggedOut,
}

/// How a replica stands with the others, for health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoordinationStatus {
    /// Its name in events.
    pub replica: String,
    /// What it is to the channel.
    pub role: ReplicaRole,
    /// How long ago the last accepted heartbeat began: unhealthy if that is longer than a lease. `None` if the coordinator needs
    /// none.
    pub last_beat: Option<Duration>,
}

impl Bot {
    /// How this replica stands with the others. `None` without coordination, and before the bot runs.
    pub fn coordination(&self) -> Option<CoordinationStatus> {
        let world = &self.shared.running.get()?.world;
        if !world.coordinated {
            return None;
        }
        let role = match (world.lead.is_exclusive(), world.lead.fence()) {
            (false, _) => ReplicaRole::Shared,
            (true, Some(fence)) => ReplicaRole::Leader { fence },
            (true, None) if world.lead.is_logged_out() => ReplicaRole::LoggedOut,
            (true, None) => ReplicaRole::Standby,
        };
        let (replica, last_beat) = (world.replicas.replica.clone(), world.replicas.coordinator.last_beat());
        Some(CoordinationStatus { replica, role, last_beat })
    }

    /// Returns when the bot runs and its channel is open. On a replica that stands by, that is when it has taken over; if the
    /// bot ends before, never. Cancel safe.
    pub async fn ready(&self) {
        self.shared.started.cancelled().await;
        let Some(running) = self.shared.running.get() else { return std::future::pending().await };
        let world = &running.world;
        let mut states = world.provider.connection();
        loop {
            world.lead.held().await;
            if states.wait_for(|state| *state == ConnectionState::Open).await.is_err() {
                // The channel says no more.
                return std::future::pending().await;
            }
            if world.lead.may_call() {
                return;
            }
        }
    }

    /// Says that somebody gave this replica a new session, such as by scanning a code: if the channel had ended its last one, it
    /// campaigns for the channel again. Returns whether that was so; otherwise nothing happens.
    pub fn logged_in(&self) -> bool {
        self.shared.running.get().is_some_and(|running| running.world.lead.log_in())
    }

    /// Leads what only one replica at a time is to do, such as a job that is started by a timer on all of them: `None` if
    /// another one has it, or this one already. Names are the bot's own; bots of other scopes have theirs. Without
    /// coordination, it is only about this process.
    ///
    /// ```no_run
    /// # use botmesh::Bot;
    /// # async fn send_report() -> botmesh::Result { Ok(()) }
    /// # async fn job(bot: Bot) -> botmesh::Result {
    /// if let Some(lead) = bot.try_lead("report").await? {
    ///     send_report().await?;
    ///     lead.release();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LeadError`]: the bot is not running, the name is empty or longer than 512 bytes, or the coordinator cannot be asked.
    ///
    /// # Cancel safety
    /// A dropped call leads nothing.
    pub async fn try_lead(&self, name: impl AsRef<str>) -> Result<Option<Leadership>, LeadError> {
        let running = self.shared.running.get().ok_or(LeadError::NotRunning)?;
        running.world.replicas.try_lead(name.as_ref()).await
    }
}
