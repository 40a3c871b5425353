//! Folding the log into a new snapshot.

use std::fs;
use std::io;

use crate::{AppendLog, AppendLogError, SnapshotWriter, snapshot, sys};

impl AppendLog {
    /// Whether the log has grown enough for [`compact`](Self::compact) to be worth it: by
    /// [`compact_entries`](crate::Options::compact_entries) or
    /// [`compact_bytes`](crate::Options::compact_bytes).
    ///
    /// After a compaction that failed it says no until as much again has come in, so that a full disk is
    /// not filled over and over. Never true when poisoned.
    #[must_use]
    pub fn needs_compaction(&self) -> bool {
        let (entries, bytes) = self.failed_at.unwrap_or((0, 0));
        let due = |have: u64, limit: u64, from: u64| limit > 0 && have.saturating_sub(from) >= limit;
        self.log_entries() > 0
            && !self.is_poisoned()
            && (due(self.log_entries(), self.options.compact_entries, entries)
                || due(self.log_bytes(), self.options.compact_bytes, bytes))
    }

    /// Replaces the snapshot by `records`, which must hold the effect of every entry so far, and empties the
    /// log.
    ///
    /// # Errors
    ///
    /// Those of [`compact_with`](Self::compact_with).
    pub fn compact<I>(&mut self, records: I) -> Result<(), AppendLogError>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        self.compact_with(|snapshot| {
            records.into_iter().try_for_each(|record| snapshot.record(record.as_ref()))
        })
    }

    /// As [`compact`](Self::compact), with records that are written one by one, so that they need not be in
    /// memory together.
    ///
    /// The new snapshot is written beside the old one, synced, renamed over it, and the folder synced, before
    /// the log is emptied: a crash at any point leaves one of the two, and a log that fits both. Sequence
    /// numbers go on.
    ///
    /// # Errors
    ///
    /// - [`Full`](AppendLogError::Full) or [`Io`](AppendLogError::Io), also for an error that `write` returns:
    ///   until the rename, the old snapshot and the log are as they were and can be used on; a failure after
    ///   it poisons the log. Nothing is lost either way.
    /// - [`Poisoned`](AppendLogError::Poisoned): an earlier write failed.
    pub fn compact_with(
        &mut self,
        write: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
    ) -> Result<(), AppendLogError> {
        self.refuse_poisoned()?;
        let written = snapshot::write(&self.paths.tmp, &self.paths.snapshot, self.last, write)
            .map_err(|error| AppendLogError::full_or_io(&self.paths.tmp, "write", error))
            .and_then(|()| {
                fs::rename(&self.paths.tmp, &self.paths.snapshot)
                    .map_err(|error| AppendLogError::full_or_io(&self.paths.snapshot, "replace", error))
            });
        if let Err(error) = written {
            // If it stays, the next compaction or the next open replaces it.
            let _ = fs::remove_file(&self.paths.tmp);
            self.failed_at = Some((self.log_entries(), self.log_bytes()));
            return Err(error);
        }
        if let Err(error) = sys::sync_dir(&self.paths.dir) {
            return Err(self.poison("make the new snapshot durable before emptying", error));
        }
        self.start_afresh(self.last)?;
        self.covered = self.last;
        Ok(())
    }

    /// Folds the log into the snapshot, unless there is nothing to fold, and closes the journal.
    ///
    /// Dropping the log closes it too: only the next open has more to read then.
    ///
    /// # Errors
    ///
    /// Those of [`compact_with`](Self::compact_with). The journal is closed, and everything that was appended
    /// is still in the log.
    pub fn close<I>(mut self, records: I) -> Result<(), AppendLogError>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        self.refuse_poisoned()?;
        if self.log_entries() == 0 {
            return Ok(());
        }
        self.compact(records)
    }
}
