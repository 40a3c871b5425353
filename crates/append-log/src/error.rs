//! Every way in which a log says no.

use std::io;
use std::path::{Path, PathBuf};

use crate::LockHolder;

/// Why a log could not be opened, written or read.
///
/// `Display` names the file and what to do about it; the operating system's own words are in
/// [`source`](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendLogError {
    /// Somebody else has the journal open: another process, or this one through an earlier open.
    #[error("{} is already open: {holder}; close it there first, or give this bot a file of its own", path.display())]
    Locked {
        /// The journal that was asked for.
        path: PathBuf,
        /// What the lock file says about the holder. A hint: only the kernel's lock decides.
        holder: LockHolder,
    },

    /// The folder is on a filesystem whose locks or syncs cannot be relied on.
    #[error(
        "{} is on {filesystem}, where file locks and fsync cannot be relied on; \
         move it to a local disk, or allow it with `allow_unsupported_filesystem`",
        path.display()
    )]
    UnsupportedFilesystem {
        /// The journal that was asked for.
        path: PathBuf,
        /// The filesystem's name, such as `nfs4`, `cifs`, `9p`, `virtiofs` or `fuse.sshfs`.
        filesystem: String,
    },

    /// An entry in the middle of the log cannot be read. The file was left as it is.
    #[error(
        "{} is damaged at entry {line} (byte {offset}), with more behind it; \
         it was left untouched: restore it from a backup or move it aside",
        file.display()
    )]
    Corrupt {
        /// The log file.
        file: PathBuf,
        /// The number of the damaged entry in the file, from 1; 0 is the file's header.
        line: u64,
        /// Where that entry starts, in bytes from the start of the file.
        offset: u64,
    },

    /// The file was written by a later version, whose format this one does not know.
    #[error(
        "{} has format {found}, and this version reads up to {supported}; open it with the version that wrote it",
        file.display()
    )]
    NewerFormat {
        /// The snapshot or the log.
        file: PathBuf,
        /// The format version in the file.
        found: u32,
        /// The highest format version that can be read.
        supported: u32,
    },

    /// The file where the log belongs is something else.
    #[error("{} is not an append log; it was left untouched: move it aside, or choose another path", file.display())]
    NotAnAppendLog {
        /// The file.
        file: PathBuf,
    },

    /// The snapshot cannot be used. Nothing was touched, the log neither.
    #[error(
        "the snapshot {} cannot be used: {reason}; nothing was touched: restore it from a backup, \
         or move it and its log aside to start empty",
        file.display()
    )]
    DamagedSnapshot {
        /// The snapshot.
        file: PathBuf,
        /// What is wrong with it.
        reason: SnapshotDamage,
    },

    /// The batch is larger than [`MAX_BATCH_BYTES`](crate::MAX_BATCH_BYTES). Nothing was written.
    #[error("a batch of {bytes} bytes is over the limit of {limit} for {}; split it", file.display())]
    TooLarge {
        /// The log file.
        file: PathBuf,
        /// The size of the batch with its frames, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        limit: u64,
    },

    /// No space, quota or file size left. What was asked for was not applied, what was written of it is cut
    /// off again, and the log can be used on as soon as there is room.
    #[error("no room to write {}; free some space and try again", file.display())]
    Full {
        /// The file that could not grow.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },

    /// An earlier write or sync failed, so that nobody knows what the disk holds. Nothing is written until
    /// the log is dropped and opened again, which reads it back.
    #[error("{} takes no more writes after a failed one ({cause}); drop it and open it again", file.display())]
    Poisoned {
        /// The log file.
        file: PathBuf,
        /// What the failed operation said.
        cause: io::ErrorKind,
    },

    /// The operating system refused an operation.
    #[error("could not {operation} {}; check the path, its permissions and the disk", file.display())]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// What was being done, such as `write` or `sync`.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl AppendLogError {
    /// Whether what was asked for may be in the log in spite of the error.
    ///
    /// `true` after a write or a sync that failed half-way: only opening the log again tells. `false` for
    /// everything that is refused before, or undone after: it is certainly not there.
    #[must_use]
    pub fn may_be_applied(&self) -> bool {
        matches!(self, Self::Io { .. })
    }

    pub(crate) fn io(file: &Path, operation: &'static str, source: io::Error) -> Self {
        Self::Io { file: file.to_path_buf(), operation, source }
    }

    /// `Full` when there is no room, `Io` otherwise.
    pub(crate) fn full_or_io(file: &Path, operation: &'static str, source: io::Error) -> Self {
        if is_full(&source) {
            Self::Full { file: file.to_path_buf(), source }
        } else {
            Self::io(file, operation, source)
        }
    }

    pub(crate) fn damaged(file: &Path, reason: SnapshotDamage) -> Self {
        Self::DamagedSnapshot { file: file.to_path_buf(), reason }
    }

    pub(crate) fn corrupt(file: &Path, line: u64, offset: u64) -> Self {
        Self::Corrupt { file: file.to_path_buf(), line, offset }
    }
}

/// Whether the operating system says that there is no room: on the disk, in the quota, below the file size limit.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// What is wrong with a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotDamage {
    /// It has no bytes at all: a rename that reached the disk before the data did.
    #[error("it is empty (0 bytes)")]
    Empty,
    /// It starts with NUL bytes where its header belongs: the data never reached the disk.
    #[error("it is filled with NUL bytes")]
    Zeroed,
    /// It is shorter than it says.
    #[error("it has {found} bytes of {expected}")]
    Truncated {
        /// The length that its header promises, in bytes (or the header's own, when not even that is whole).
        expected: u64,
        /// The length of the file, in bytes.
        found: u64,
    },
    /// It is longer than it says.
    #[error("it has {found} bytes where {expected} were written")]
    TooLong {
        /// The length that its header promises, in bytes.
        expected: u64,
        /// The length of the file, in bytes.
        found: u64,
    },
    /// It is a file of another kind.
    #[error("it is not a snapshot")]
    NotASnapshot,
    /// Its header does not match its checksum.
    #[error("its header does not match its checksum")]
    Header,
    /// Its contents do not match their checksum.
    #[error("its contents do not match their checksum")]
    Checksum,
    /// It is not there, but the log only holds what came after it.
    #[error("it is missing, and the log only goes on from entry {needed}")]
    Missing {
        /// The last sequence number that the snapshot must cover.
        needed: u64,
    },
    /// It is older than the one that the log goes on from.
    #[error("it ends at entry {covers}, and the log only goes on from entry {needed}")]
    Outdated {
        /// The last sequence number that it covers.
        covers: u64,
        /// The last sequence number that it must cover.
        needed: u64,
    },
}
