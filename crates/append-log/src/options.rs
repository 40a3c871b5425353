//! What a caller may choose when it opens a log.

/// Entries after which [`AppendLog::needs_compaction`](crate::AppendLog::needs_compaction) says yes: 1000.
pub const DEFAULT_COMPACT_ENTRIES: u64 = 1000;

/// Bytes of log after which [`AppendLog::needs_compaction`](crate::AppendLog::needs_compaction) says yes: 4 MiB.
pub const DEFAULT_COMPACT_BYTES: u64 = 4 * 1024 * 1024;

/// What an acknowledged append survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SyncPolicy {
    /// A power cut: every append ends with one `fdatasync`. The default.
    #[default]
    PowerLoss,
    /// The death of the process only: appends stay in the operating system's cache until it writes them
    /// back, so a power cut or a kernel crash loses the last of them. Snapshots, and the cut of a torn
    /// tail, are still synced, so that what is lost is a tail and never the whole journal.
    Os,
}

/// How to open an [`AppendLog`](crate::AppendLog).
///
/// ```
/// use botmesh_append_log::{Options, SyncPolicy};
///
/// let options = Options::default().with_compact_entries(200).with_sync(SyncPolicy::Os);
/// assert_eq!(options.compact_entries, 200);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What an acknowledged append survives. Default: [`SyncPolicy::PowerLoss`].
    pub sync: SyncPolicy,
    /// Entries in the log after which compaction is suggested; 0 never suggests it by number.
    /// Default: [`DEFAULT_COMPACT_ENTRIES`].
    pub compact_entries: u64,
    /// Bytes of log (frames included) after which compaction is suggested; 0 never suggests it by size.
    /// Default: [`DEFAULT_COMPACT_BYTES`].
    pub compact_bytes: u64,
    /// Open also on a network, pass-through or user-space filesystem, where locks and fsync may not mean
    /// what they say. Default: `false`.
    pub allow_unsupported_filesystem: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sync: SyncPolicy::default(),
            compact_entries: DEFAULT_COMPACT_ENTRIES,
            compact_bytes: DEFAULT_COMPACT_BYTES,
            allow_unsupported_filesystem: false,
        }
    }
}

impl Options {
    /// Sets [`sync`](Self::sync).
    #[must_use]
    pub fn with_sync(mut self, sync: SyncPolicy) -> Self {
        self.sync = sync;
        self
    }

    /// Sets [`compact_entries`](Self::compact_entries), in entries.
    #[must_use]
    pub fn with_compact_entries(mut self, entries: u64) -> Self {
        self.compact_entries = entries;
        self
    }

    /// Sets [`compact_bytes`](Self::compact_bytes), in bytes.
    #[must_use]
    pub fn with_compact_bytes(mut self, bytes: u64) -> Self {
        self.compact_bytes = bytes;
        self
    }

    /// Sets [`allow_unsupported_filesystem`](Self::allow_unsupported_filesystem).
    #[must_use]
    pub fn with_allow_unsupported_filesystem(mut self, allow: bool) -> Self {
        self.allow_unsupported_filesystem = allow;
        self
    }
}
