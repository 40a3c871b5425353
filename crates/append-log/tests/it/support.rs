//! A journal in a temporary folder.

use std::fs;
use std::path::{Path, PathBuf};

use botmesh_append_log::{AppendLog, AppendLogError, Options, SyncPolicy};

pub(crate) struct Journal {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Journal {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { path: folder.path().join("journal"), _folder: folder }
    }

    /// A journal whose log has 20 entries, appended one by one.
    pub(crate) fn of_twenty() -> Self {
        let journal = Self::new();
        let mut log = journal.open();
        for number in 1..=20 {
            log.append(&payload(number)).unwrap();
        }
        journal
    }

    pub(crate) fn file(&self, suffix: &str) -> PathBuf {
        with_suffix(&self.path, suffix)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.file(".log")
    }

    pub(crate) fn open(&self) -> AppendLog {
        self.try_open().unwrap()
    }

    pub(crate) fn try_open(&self) -> Result<AppendLog, AppendLogError> {
        AppendLog::open(&self.path, Options::default())
    }

    /// Opens without a sync for every append: for tests that open thousands of times.
    pub(crate) fn open_quickly(&self) -> Result<AppendLog, AppendLogError> {
        AppendLog::open(&self.path, Options::default().with_sync(SyncPolicy::Os))
    }
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What entry `number` holds: of a length of its own, the third one empty.
pub(crate) fn payload(number: u64) -> Vec<u8> {
    if number == 3 {
        return Vec::new();
    }
    (0..8 + number % 7).map(|byte| (byte * 31 + number * 17) as u8).collect()
}

/// Where each frame of a log starts, and where the last one ends, by the lengths that the frames give.
pub(crate) fn offsets(log: &Path) -> Vec<u64> {
    let bytes = fs::read(log).unwrap();
    let mut at = 32;
    let mut offsets = vec![at as u64];
    while at < bytes.len() {
        at += 20 + u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        offsets.push(at as u64);
    }
    offsets
}

/// The sequence numbers and payloads of the log.
pub(crate) fn entries(log: &AppendLog) -> Vec<(u64, Vec<u8>)> {
    log.entries().unwrap().map(|entry| entry.unwrap()).map(|entry| (entry.sequence, entry.payload)).collect()
}

pub(crate) fn records(log: &AppendLog) -> Vec<Vec<u8>> {
    log.snapshot().unwrap().into_iter().flatten().map(Result::unwrap).collect()
}

/// Asserts that entries 1 to `count` are there, each with its payload.
pub(crate) fn assert_counts_to(log: &AppendLog, count: u64) {
    let expected: Vec<_> = (1..=count).map(|number| (number, payload(number))).collect();
    assert_eq!(entries(log), expected);
}
