//! The open log: appending, and what it knows about itself.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::error::is_full;
use crate::frame::{self, FRAME_OVERHEAD, LOG_HEADER, LogHeader, MAX_BATCH_BYTES};
use crate::lock::Lock;
use crate::medium::Medium;
use crate::options::{Options, SyncPolicy};
use crate::paths::Paths;
use crate::{AppendLogError, Entries, Recovery, SnapshotReader, recover};

/// Capacity of the write buffer that is kept between appends, in bytes.
const KEPT_BUFFER: usize = 1024 * 1024;

/// A journal in three files: `<path>` (the snapshot), `<path>.log` (what came after it) and `<path>.lock`.
///
/// Entries are opaque bytes. One value has the journal to itself until it is dropped; all calls block on the
/// disk, so call them from a thread that may. What was appended is read back with
/// [`snapshot`](Self::snapshot) and [`entries`](Self::entries).
pub struct AppendLog {
    pub(crate) paths: Paths,
    pub(crate) options: Options,
    pub(crate) medium: Box<dyn Medium>,
    pub(crate) header: LogHeader,
    /// Where the next frame goes, in bytes.
    pub(crate) end: u64,
    pub(crate) last: u64,
    /// The last entry that the snapshot holds.
    pub(crate) covered: u64,
    /// Entries at the end that are not known to be on stable storage.
    unsynced: u32,
    /// Entries and bytes of the log at a compaction that failed: the next is suggested after as many again.
    pub(crate) failed_at: Option<(u64, u64)>,
    pub(crate) poisoned: Option<io::ErrorKind>,
    recovery: Recovery,
    buffer: Vec<u8>,
    // Last, so that the file is not written to any more when somebody else may open it.
    _lock: Lock,
}

impl fmt::Debug for AppendLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppendLog")
            .field("path", &self.paths.snapshot)
            .field("options", &self.options)
            .field("last_sequence", &self.last)
            .field("log_bytes", &self.end)
            .field("poisoned", &self.poisoned)
            .finish_non_exhaustive()
    }
}

impl AppendLog {
    /// Opens the journal at `path`, or creates it, with the folders that are missing.
    ///
    /// The whole journal is read and verified before anything is changed. The torn end of a log, which a
    /// crash leaves, is cut off and the cut synced; [`recovery`](Self::recovery) tells about it. What is
    /// found is durable before this returns, under [`SyncPolicy::PowerLoss`].
    ///
    /// # Errors
    ///
    /// - [`Locked`](AppendLogError::Locked): it is open already, here or in another process.
    /// - [`UnsupportedFilesystem`](AppendLogError::UnsupportedFilesystem): see [`Options`].
    /// - [`DamagedSnapshot`](AppendLogError::DamagedSnapshot), [`Corrupt`](AppendLogError::Corrupt),
    ///   [`NewerFormat`](AppendLogError::NewerFormat), [`NotAnAppendLog`](AppendLogError::NotAnAppendLog):
    ///   the files cannot be used, and were left as they are.
    /// - [`Full`](AppendLogError::Full), [`Io`](AppendLogError::Io): the operating system refused.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, AppendLogError> {
        recover::open(path.as_ref(), options)
    }

    pub(crate) fn new(
        paths: Paths,
        options: Options,
        lock: Lock,
        medium: Box<dyn Medium>,
        header: LogHeader,
        recovery: Recovery,
    ) -> Self {
        Self {
            paths,
            options,
            medium,
            header,
            end: LOG_HEADER as u64,
            last: header.base,
            covered: recovery.snapshot.unwrap_or(0),
            unsynced: 0,
            failed_at: None,
            poisoned: None,
            recovery,
            buffer: Vec::new(),
            _lock: lock,
        }
    }

    /// Goes on after what was found.
    pub(crate) fn resume(&mut self, end: u64, last: u64, unsynced: u32) {
        (self.end, self.last, self.unsynced) = (end, last, unsynced);
    }

    /// Empties the log, to go on after entry `base`.
    pub(crate) fn start_afresh(&mut self, base: u64) -> Result<(), AppendLogError> {
        let header = LogHeader::after(base);
        let done = self
            .medium
            .set_len(0)
            .and_then(|()| self.medium.write_at(&header.encode(), 0))
            .and_then(|()| self.medium.sync());
        done.map_err(|error| self.poison("empty", error))?;
        (self.header, self.end, self.last, self.unsynced) = (header, LOG_HEADER as u64, base, 0);
        self.failed_at = None;
        Ok(())
    }

    /// Appends one entry and returns its sequence number: [`append_batch`](Self::append_batch) of one.
    ///
    /// # Errors
    ///
    /// Those of [`append_batch`](Self::append_batch).
    pub fn append(&mut self, entry: &[u8]) -> Result<u64, AppendLogError> {
        self.append_batch(&[entry]).map(|sequences| sequences.start)
    }

    /// Appends entries in order, with one write and one sync, and returns their sequence numbers (an empty
    /// range for no entries, which does nothing).
    ///
    /// The entries are durable before this returns `Ok`, as far as the [`SyncPolicy`] goes. A crash before
    /// that may keep some of them from the front, so what must be kept or lost together belongs in one entry.
    ///
    /// # Errors
    ///
    /// - [`TooLarge`](AppendLogError::TooLarge): the batch is over [`MAX_BATCH_BYTES`]; nothing was written.
    /// - [`Full`](AppendLogError::Full): no room; nothing was applied, and the log can be used on.
    /// - [`Io`](AppendLogError::Io): the write or the sync failed; whether the entries are there is known
    ///   only after opening again, and until then everything is refused as `Poisoned`.
    /// - [`Poisoned`](AppendLogError::Poisoned): an earlier one failed; nothing was written.
    pub fn append_batch<E: AsRef<[u8]>>(&mut self, entries: &[E]) -> Result<Range<u64>, AppendLogError> {
        self.refuse_poisoned()?;
        let first = self.last + 1;
        if entries.is_empty() {
            return Ok(first..first);
        }
        self.refuse_too_large(entries)?;
        let (mut sequence, mut unsynced) = (self.last, self.unsynced);
        self.buffer.clear();
        for entry in entries {
            sequence += 1;
            frame::encode(&mut self.buffer, self.header.salt, sequence, unsynced, entry.as_ref());
            unsynced = unsynced.saturating_add(1);
        }
        self.write()?;
        if self.options.sync == SyncPolicy::PowerLoss {
            self.medium.sync().map_err(|error| self.poison("sync", error))?;
            unsynced = 0;
        }
        self.end += self.buffer.len() as u64;
        self.last = sequence;
        self.unsynced = unsynced;
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BUFFER);
        Ok(first..sequence + 1)
    }

    /// Waits until everything appended is on stable storage. Only of use under [`SyncPolicy::Os`].
    ///
    /// # Errors
    ///
    /// [`Io`](AppendLogError::Io) when it failed, which poisons the log, and
    /// [`Poisoned`](AppendLogError::Poisoned) afterwards.
    pub fn sync(&mut self) -> Result<(), AppendLogError> {
        self.refuse_poisoned()?;
        if self.unsynced > 0 {
            self.medium.sync().map_err(|error| self.poison("sync", error))?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// The snapshot's records, or `None` before the first compaction.
    ///
    /// # Errors
    ///
    /// [`Io`](AppendLogError::Io), or [`DamagedSnapshot`](AppendLogError::DamagedSnapshot) when it was
    /// changed behind our back.
    pub fn snapshot(&self) -> Result<Option<SnapshotReader>, AppendLogError> {
        SnapshotReader::open(&self.paths.snapshot)
    }

    /// The entries that came after the snapshot, oldest first.
    ///
    /// # Errors
    ///
    /// [`Io`](AppendLogError::Io) when the log cannot be read; the iterator's own errors are that and
    /// [`Corrupt`](AppendLogError::Corrupt), when it was changed behind our back.
    pub fn entries(&self) -> Result<Entries, AppendLogError> {
        Entries::open(self.paths.log.clone(), self.header.salt, self.covered, self.end)
    }

    /// What opening found, and what it cut.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The sequence number of the last entry; 0 before the first.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        self.last
    }

    /// Entries that came after the snapshot.
    #[must_use]
    pub fn log_entries(&self) -> u64 {
        self.last - self.covered
    }

    /// The length of the log file, in bytes.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.end
    }

    /// The snapshot's path, with links followed. The log and the lock are beside it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.paths.snapshot
    }

    /// Whether a failed write or sync has closed the log to further writes.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.is_some()
    }

    /// Writes the buffer behind the last frame. Without room for all of it, none of it stays.
    fn write(&mut self) -> Result<(), AppendLogError> {
        let Err(error) = self.medium.write_at(&self.buffer, self.end) else {
            return Ok(());
        };
        if !is_full(&error) {
            return Err(self.poison("write", error));
        }
        if let Err(error) = self.medium.set_len(self.end).and_then(|()| self.medium.sync()) {
            return Err(self.poison("cut", error));
        }
        self.unsynced = 0;
        Err(AppendLogError::full_or_io(&self.paths.log, "write", error))
    }

    fn refuse_too_large<E: AsRef<[u8]>>(&self, entries: &[E]) -> Result<(), AppendLogError> {
        let bytes = entries.iter().map(|entry| (FRAME_OVERHEAD + entry.as_ref().len()) as u64).sum();
        if bytes > MAX_BATCH_BYTES {
            return Err(AppendLogError::TooLarge {
                file: self.paths.log.clone(),
                bytes,
                limit: MAX_BATCH_BYTES,
            });
        }
        Ok(())
    }

    pub(crate) fn refuse_poisoned(&self) -> Result<(), AppendLogError> {
        match self.poisoned {
            Some(cause) => Err(AppendLogError::Poisoned { file: self.paths.log.clone(), cause }),
            None => Ok(()),
        }
    }

    /// No more writes: what the disk holds is not known any more.
    pub(crate) fn poison(&mut self, operation: &'static str, error: io::Error) -> AppendLogError {
        self.poisoned = Some(error.kind());
        AppendLogError::io(&self.paths.log, operation, error)
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
