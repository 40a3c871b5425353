use botmesh_append_log::{Options, SyncPolicy};
use serde::{Deserialize, Serialize};

use crate::core::error::ConfigError;

/// How [`FileDurability`](crate::FileDurability) keeps its files.
///
/// | field | default |
/// |---|---|
/// | `compact_every` | 1000 commits |
/// | `compact_bytes` | 4194304 bytes (4 MiB) |
/// | `fsync` | `true` |
/// | `allow_network_filesystem` | `false` |
///
/// ```
/// let options = botmesh::FileOptions::default().with_compact_every(200);
/// assert!(options.fsync && options.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct FileOptions {
    /// After how many commits the log is folded into a new snapshot; 0 never does it by number. Default: 1000.
    ///
    /// A log that is shorter than the snapshot it would be folded into waits until it is as long: each byte is so
    /// rewritten about once, however much is kept.
    pub compact_every: u64,
    /// After how many bytes of log it is folded, under the same condition; 0 never does it by size. Default: 4 MiB.
    pub compact_bytes: u64,
    /// Whether a commit waits until it is on stable storage. Default: `true`. Without it commits outlive the process, but
    /// a power failure may lose the last of them; snapshots and folders are synced all the same.
    pub fsync: bool,
    /// Whether to open the files on a network or FUSE file system all the same, where locks and syncs may not mean what
    /// they say. Default: `false`.
    pub allow_network_filesystem: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        let Options { compact_entries, compact_bytes, .. } = Options::default();
        Self { compact_every: compact_entries, compact_bytes, fsync: true, allow_network_filesystem: false }
    }
}

impl FileOptions {
    /// Sets [`compact_every`](Self::compact_every), in commits.
    #[must_use]
    pub fn with_compact_every(mut self, commits: u64) -> Self {
        self.compact_every = commits;
        self
    }

    /// Sets [`compact_bytes`](Self::compact_bytes).
    #[must_use]
    pub fn with_compact_bytes(mut self, bytes: u64) -> Self {
        self.compact_bytes = bytes;
        self
    }

    /// Sets [`fsync`](Self::fsync).
    #[must_use]
    pub fn with_fsync(mut self, fsync: bool) -> Self {
        self.fsync = fsync;
        self
    }

    /// Sets [`allow_network_filesystem`](Self::allow_network_filesystem).
    #[must_use]
    pub fn with_allow_network_filesystem(mut self, allow: bool) -> Self {
        self.allow_network_filesystem = allow;
        self
    }

    /// Checks the values; opening does it too.
    ///
    /// # Errors
    /// The first value that cannot work, with what to do.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.compact_every == 0 && self.compact_bytes == 0 {
            return Err(ConfigError::new(
                "file.compact_every",
                "and file.compact_bytes are both 0, so that the log would grow for ever",
                "set one of them; 1000 and 4194304 (4 MiB) are the defaults",
            ));
        }
        Ok(())
    }

    pub(super) fn for_log(&self) -> Options {
        Options::default()
            .with_compact_entries(self.compact_every)
            .with_compact_bytes(self.compact_bytes)
            .with_sync(if self.fsync { SyncPolicy::PowerLoss } else { SyncPolicy::Os })
            .with_allow_unsupported_filesystem(self.allow_network_filesystem)
    }
}
