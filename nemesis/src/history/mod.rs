//! What the processes of a run did, and when: one file for each of them, merged by the host's one clock.

mod event;
mod metronome;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

pub use event::{Config, Event, Fault};
pub use metronome::Metronome;

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When, in nanoseconds of the host's clock; see [`now`].
    pub t: u64,
    /// The process that wrote it.
    pub pid: u32,
    /// The name of its replica. A replica that was started again has the same name and another process.
    pub replica: String,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// Nanoseconds of the host's clock that counts the time in which the machine is suspended. All processes share it.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}

/// Writes the history of one process.
#[derive(Debug)]
pub struct Recorder {
    file: Mutex<File>,
    path: PathBuf,
    replica: String,
    pid: u32,
}

impl Recorder {
    /// Appends to the file of this process in `folder`, which must be there.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn create(folder: &Path, replica: &str) -> io::Result<Self> {
        let pid = std::process::id();
        let path = folder.join(format!("{replica}-{pid}.jsonl"));
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        Ok(Self { file: Mutex::new(file), path, replica: replica.to_owned(), pid })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes down what happens now, and returns the time that it noted. The line has left the process when this returns.
    ///
    /// # Panics
    /// The file cannot be written: a history with holes proves nothing.
    #[expect(clippy::panic, reason = "see above")]
    pub fn record(&self, event: Event) -> u64 {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that the lines are in the order of their times.
        let record = Record { t: now(), pid: self.pid, replica: self.replica.clone(), event };
        let written = serde_json::to_string(&record).map_err(io::Error::from).and_then(|mut line| {
            line.push('\n');
            file.write_all(line.as_bytes())
        });
        if let Err(error) = written {
            panic!("the history {} cannot be written: {error}", self.path.display());
        }
        record.t
    }
}

/// Reads every history in `folder` and merges them by time. Of each file the last line may be torn.
///
/// # Errors
/// A file cannot be read, or has a line that is no [`Record`].
pub fn read(folder: &Path) -> io::Result<Vec<Record>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort_unstable();
    let mut records = Vec::new();
    for path in &files {
        records.extend(read_file(path)?);
    }
    Ok(merge(records))
}

/// Reads the history of one process. Its last line may be torn.
///
/// # Errors
/// The file cannot be read, or has a line that is no [`Record`].
pub fn read_file(path: &Path) -> io::Result<Vec<Record>> {
    let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
    let mut records = Vec::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        match serde_json::from_str(line) {
            Ok(record) => records.push(record),
            Err(_) if !line.ends_with('\n') => {}
            Err(error) => {
                let what = format!("{} line {}: {error}", path.display(), number + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
    Ok(records)
}

/// In the order of time; what has the same time keeps its order.
pub fn merge(mut records: Vec<Record>) -> Vec<Record> {
    records.sort_by_key(|record| record.t);
    records
}
