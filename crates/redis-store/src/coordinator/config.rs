use std::time::Duration;

use botmesh_core::coordinator::Fence;
use botmesh_core::error::ConfigError;
use serde::{Deserialize, Serialize};

/// How a [`RedisCoordinator`](super::RedisCoordinator) works.
///
/// | field | default |
/// |---|---|
/// | `lease` | 15 s |
/// | `turn_wait` | 2 min |
/// | `max_waiters` | 1000 |
/// | `idle_ttl` | 10 min |
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RedisCoordinatorConfig {
    /// How long the replica's turns outlive its last sign of life: so long others wait for the chats of a replica that
    /// died, and so long a replica may be cut off from the server without losing its turns (less a tenth, at least 200 ms).
    /// The same for all replicas. Default: 15 s; 1 s to 10 min, and at least 12 times the measured round trip.
    #[serde(with = "botmesh_core::duration")]
    pub lease: Duration,
    /// How long a ticket waits for its turn, from the call that takes it. Default: 2 min; 100 ms to 24 h.
    #[serde(with = "botmesh_core::duration")]
    pub turn_wait: Duration,
    /// How many tickets may wait for one key, without those of the dead among the first 1024; further ones are refused as
    /// [`Overloaded`](botmesh_core::error::CoordinationUnavailableReason::Overloaded). Default: 1000; at least 1.
    pub max_waiters: u32,
    /// How long the server remembers who held a key last. After that, a replica reads again what it may still have in its
    /// memory. Default: 10 min; 1 s to 24 h.
    #[serde(with = "botmesh_core::duration")]
    pub idle_ttl: Duration,
    /// All fences are larger: the largest one that the bot's store has seen
    /// ([`last_fence`](botmesh_core::store::Store::last_fence)). [`RedisStore::coordinator`](crate::RedisStore::coordinator)
    /// looks it up in the default scope, and a bot that starts raises it to what its store has seen. Default: 0.
    #[serde(skip)]
    pub floor: Fence,
    #[cfg(feature = "mutations")]
    #[serde(skip)]
    pub(crate) altered: super::rules::Altered,
}

impl Default for RedisCoordinatorConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            turn_wait: Duration::from_secs(120),
            max_waiters: 1000,
            idle_ttl: Duration::from_secs(600),
            floor: Fence(0),
            #[cfg(feature = "mutations")]
            altered: super::rules::Altered::default(),
        }
    }
}

impl RedisCoordinatorConfig {
    /// Sets [`lease`](Self::lease).
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets [`turn_wait`](Self::turn_wait).
    #[must_use]
    pub fn with_turn_wait(mut self, wait: Duration) -> Self {
        self.turn_wait = wait;
        self
    }

    /// Sets [`max_waiters`](Self::max_waiters).
    #[must_use]
    pub fn with_max_waiters(mut self, waiters: u32) -> Self {
        self.max_waiters = waiters;
        self
    }

    /// Sets [`idle_ttl`](Self::idle_ttl).
    #[must_use]
    pub fn with_idle_ttl(mut self, ttl: Duration) -> Self {
        self.idle_ttl = ttl;
        self
    }

    /// Sets [`floor`](Self::floor).
    #[must_use]
    pub fn with_floor(mut self, floor: Fence) -> Self {
        self.floor = floor;
        self
    }

    /// For the tests of this project: a coordinator that does not keep a rule.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    #[must_use]
    pub fn without(mut self, rule: super::Rule) -> Self {
        self.altered.without = Some(rule);
        self
    }

    /// For the tests of this project: the server's clock goes ahead by so many seconds as the key `ahead` beside the state of
    /// the turns says; with `=` before the number it stands still there.
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_clock_ahead(mut self) -> Self {
        self.altered.clock_ahead = true;
        self
    }

    /// Checks the values; connecting does it too.
    ///
    /// # Errors
    /// The first value that cannot work, with what to do.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let day = Duration::from_secs(86_400);
        let ranges = [
            ("lease", self.lease, Duration::from_secs(1), Duration::from_secs(600), "between 1s and 10m"),
            ("turn_wait", self.turn_wait, Duration::from_millis(100), day, "between 100ms and 24h"),
            ("idle_ttl", self.idle_ttl, Duration::from_secs(1), day, "between 1s and 24h"),
        ];
        for (field, value, least, most, fix) in ranges {
            if !(least..=most).contains(&value) {
                return Err(ConfigError::new(
                    format!("coordinator.{field}"),
                    format!("{} is out of range", botmesh_core::duration::format(value)),
                    format!("set {fix}"),
                ));
            }
        }
        if self.max_waiters == 0 {
            let problem = "no ticket could wait for its turn";
            return Err(ConfigError::new("coordinator.max_waiters", problem, "set at least 1"));
        }
        Ok(())
    }

    /// How long one command may take. Some are tried again within a lease.
    pub(super) fn command_timeout(&self) -> Duration {
        (self.lease / 6).min(Duration::from_secs(2))
    }

    /// How long before the server's own end of the lease the replica stops.
    pub(super) fn margin(&self, round_trip: Duration) -> Duration {
        (self.lease / 10).max(Duration::from_millis(200)).max(round_trip * 4)
    }
}
