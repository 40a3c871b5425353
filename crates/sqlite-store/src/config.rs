//! What may be set when a store is opened.

use std::time::Duration;

use botmesh_core::error::ConfigError;
use serde::{Deserialize, Serialize};

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Synchronous {
    /// A power failure: each group of writes ends with one `fsync`. The default.
    #[default]
    Full,
    /// The death of the process only: a power failure may lose the last writes, but never tears the file.
    Normal,
}

/// How a [`SqliteStore`](crate::SqliteStore) is opened.
///
/// | field | default |
/// |---|---|
/// | `synchronous` | `full` |
/// | `busy_timeout` | 5 s |
/// | `journal_size_limit` | 67108864 bytes (64 MiB) |
/// | `allow_network_filesystem` | `false` |
///
/// ```
/// use botmesh_sqlite_store::SqliteConfig;
/// use std::time::Duration;
///
/// let config = SqliteConfig::default().with_busy_timeout(Duration::from_secs(10));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// What an acknowledged write survives. Default: [`Synchronous::Full`].
    pub synchronous: Synchronous,
    /// How long a group of writes waits for another process that holds the write lock before it fails with
    /// [`Unavailable`](botmesh_core::error::StoreErrorKind::Unavailable). Default: 5 s; at most 1 h.
    #[serde(with = "botmesh_core::duration")]
    pub busy_timeout: Duration,
    /// The size in bytes to which the write-ahead log (the file that ends in `-wal`) is cut back. It grows beyond this
    /// only while somebody reads from an old snapshot, which is logged as a warning. Default: 64 MiB; at least 64 KiB.
    pub journal_size_limit: u64,
    /// Whether to open the file on a network or FUSE file system all the same, where SQLite's locks and shared memory
    /// may not work and the file can be damaged. Default: `false`.
    pub allow_network_filesystem: bool,
}

impl Default for SqliteConfig {
    fn default() -> Self {
        Self {
            synchronous: Synchronous::Full,
            busy_timeout: Duration::from_secs(5),
            journal_size_limit: 64 << 20,
            allow_network_filesystem: false,
        }
    }
}

impl SqliteConfig {
    /// Sets [`synchronous`](Self::synchronous).
    #[must_use]
    pub fn with_synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Sets [`busy_timeout`](Self::busy_timeout).
    #[must_use]
    pub fn with_busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Sets [`journal_size_limit`](Self::journal_size_limit), in bytes.
    #[must_use]
    pub fn with_journal_size_limit(mut self, bytes: u64) -> Self {
        self.journal_size_limit = bytes;
        self
    }

    /// Sets [`allow_network_filesystem`](Self::allow_network_filesystem).
    #[must_use]
    pub fn with_allow_network_filesystem(mut self, allow: bool) -> Self {
        self.allow_network_filesystem = allow;
        self
    }

    /// Checks the values; opening a store does it too.
    ///
    /// # Errors
    /// The first value that cannot work, with what to do.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.busy_timeout > Duration::from_secs(3600) {
            let given = botmesh_core::duration::format(self.busy_timeout);
            return Err(ConfigError::new(
                "sqlite.busy_timeout",
                format!("{given} is too long"),
                "set at most 1h",
            ));
        }
        if !(64 << 10..=1 << 40).contains(&self.journal_size_limit) {
            return Err(ConfigError::new(
                "sqlite.journal_size_limit",
                format!("{} bytes is out of range", self.journal_size_limit),
                "set between 65536 (64 KiB) and 1099511627776 (1 TiB)",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
