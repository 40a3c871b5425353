//! What may be set when a store is opened.

use std::time::Duration;

use botmesh_core::error::ConfigError;
use serde::{Deserialize, Serialize};

/// What of its data a server keeps when it is killed or loses power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Persistence {
    /// Nothing, or what it had at its last snapshot: a restart of the server loses minutes or everything.
    #[default]
    None,
    /// Everything but about the last second (`appendonly yes`, `appendfsync everysec`).
    EverySecond,
    /// Everything that was acknowledged (`appendonly yes`, `appendfsync always`).
    Always,
}

/// How a [`RedisStore`](crate::RedisStore) is opened.
///
/// | field | default |
/// |---|---|
/// | `prefix` | `botmesh` |
/// | `command_timeout` | 5 s |
/// | `connect_timeout` | 5 s |
/// | `least_persistence` | `none` |
/// | `assumed_persistence` | none |
/// | `allow_eviction` | `false` |
/// | `log_length` | 10000 entries a chat |
///
/// ```
/// use botmesh_redis_store::{Persistence, RedisConfig};
///
/// let config = RedisConfig::default().with_prefix("shop").with_least_persistence(Persistence::EverySecond);
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RedisConfig {
    /// What the names of all keys begin with, behind a brace: `{botmesh:`. Replicas of one bot have the same, and several
    /// bots may share one. Default: `botmesh`; 1 to 64 of the characters `a-z A-Z 0-9 - _ . /`.
    pub prefix: String,
    /// How long one command may take, the wait for a lost connection included. A write that takes longer fails with
    /// [`Effect::Unknown`](botmesh_core::error::Effect::Unknown) if it was sent. Default: 5 s; 100 ms to 10 min.
    #[serde(with = "botmesh_core::duration")]
    pub command_timeout: Duration,
    /// How long one attempt to connect may take, TLS included. Default: 5 s; 100 ms to 10 min.
    #[serde(with = "botmesh_core::duration")]
    pub connect_timeout: Duration,
    /// What the server must persist; a server that persists less is refused when the store is opened. Default:
    /// [`Persistence::None`], that is, every server is taken, with a warning if a restart would lose data.
    pub least_persistence: Persistence,
    /// What the server persists, where it does not tell: managed services often forbid `CONFIG`. What the server does
    /// tell counts more. Default: none; then a server with an append-only file counts as
    /// [`EverySecond`](Persistence::EverySecond).
    pub assumed_persistence: Option<Persistence>,
    /// Whether to take a server that removes keys when its memory is full (`maxmemory-policy allkeys-…`), and with them
    /// messages that nobody handled yet. Default: `false`.
    pub allow_eviction: bool,
    /// How many entries of a chat's message log are kept at least; the server removes older ones in blocks. Default:
    /// 10000; `None` keeps all. At least 1.
    pub log_length: Option<u32>,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            prefix: "botmesh".to_owned(),
            command_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            least_persistence: Persistence::None,
            assumed_persistence: None,
            allow_eviction: false,
            log_length: Some(10_000),
        }
    }
}

impl RedisConfig {
    /// Sets [`prefix`](Self::prefix).
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets [`command_timeout`](Self::command_timeout).
    #[must_use]
    pub fn with_command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// Sets [`connect_timeout`](Self::connect_timeout).
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets [`least_persistence`](Self::least_persistence).
    #[must_use]
    pub fn with_least_persistence(mut self, least: Persistence) -> Self {
        self.least_persistence = least;
        self
    }

    /// Sets [`assumed_persistence`](Self::assumed_persistence).
    #[must_use]
    pub fn with_assumed_persistence(mut self, assumed: Persistence) -> Self {
        self.assumed_persistence = Some(assumed);
        self
    }

    /// Sets [`allow_eviction`](Self::allow_eviction).
    #[must_use]
    pub fn with_allow_eviction(mut self, allow: bool) -> Self {
        self.allow_eviction = allow;
        self
    }

    /// Sets [`log_length`](Self::log_length).
    #[must_use]
    pub fn with_log_length(mut self, entries: Option<u32>) -> Self {
        self.log_length = entries;
        self
    }

    /// Checks the values; opening a store does it too.
    ///
    /// # Errors
    /// The first value that cannot work, with what to do.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.chars().all(plain) {
            return Err(ConfigError::new(
                "redis.prefix",
                format!("{:?} cannot begin the names of keys", self.prefix),
                "use 1 to 64 letters, digits and the characters - _ . /",
            ));
        }
        let timeouts = [("command_timeout", self.command_timeout), ("connect_timeout", self.connect_timeout)];
        for (field, timeout) in timeouts {
            if !(Duration::from_millis(100)..=Duration::from_secs(600)).contains(&timeout) {
                return Err(ConfigError::new(
                    format!("redis.{field}"),
                    format!("{} is out of range", botmesh_core::duration::format(timeout)),
                    "set between 100ms and 10m",
                ));
            }
        }
        if self.log_length == Some(0) {
            return Err(ConfigError::new(
                "redis.log_length",
                "a log of no entries is none",
                "set at least 1, or none to keep all entries",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
