//! One opener at a time, decided by the kernel.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::paths::Paths;
use crate::{AppendLogError, sys};

/// Bytes of a lock file that are read for the hint; ours is far shorter.
const MAX_HINT: u64 = 4096;

/// Tries to lock a file that is replaced under us; nobody does that in earnest.
const ATTEMPTS: usize = 16;

/// What the lock file says about who holds it.
///
/// Only for people to read. Whether the journal is open is decided by the kernel's lock, which dies with
/// its process: a lock file left behind with the number of a process that is alive again, as process 1
/// always is in a container, never keeps anybody out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolder {
    /// The process id, as the holder sees it.
    pub pid: Option<u32>,
    /// When that process started, in clock ticks since the machine's boot.
    pub start_time: Option<u64>,
    /// The boot that both numbers belong to.
    pub boot_id: Option<String>,
}

impl LockHolder {
    fn current() -> Self {
        Self { pid: Some(std::process::id()), start_time: start_time(), boot_id: boot_id() }
    }

    /// Reads a hint; whatever cannot be understood is left out.
    fn parse(text: &str) -> Self {
        let value = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).map(str::trim)
        };
        Self {
            pid: value("pid").and_then(|pid| pid.parse().ok()),
            start_time: value("start_time").and_then(|start| start.parse().ok()),
            boot_id: value("boot_id").filter(|boot| !boot.is_empty()).map(str::to_owned),
        }
    }

    fn read(lock: &Path) -> Self {
        let mut bytes = Vec::new();
        match File::open(lock).and_then(|file| file.take(MAX_HINT).read_to_end(&mut bytes)) {
            Ok(_) => Self::parse(&String::from_utf8_lossy(&bytes)),
            Err(_) => Self::default(),
        }
    }

    fn encode(&self) -> String {
        let mut text = String::new();
        if let Some(pid) = self.pid {
            text += &format!("pid={pid}\n");
        }
        if let Some(start_time) = self.start_time {
            text += &format!("start_time={start_time}\n");
        }
        if let Some(boot_id) = &self.boot_id {
            text += &format!("boot_id={boot_id}\n");
        }
        text
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(_) if *self == Self::current() => write!(f, "in this process"),
            Some(pid) => write!(f, "by process {pid}, says its lock file"),
            None => write!(f, "by a process that its lock file does not name"),
        }
    }
}

/// The locks of one open journal, given back when dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    files: Vec<File>,
}

impl Lock {
    /// Locks the lock file and leaves a hint in it.
    ///
    /// The file is never removed: whoever had it open meanwhile would then hold the lock of a file that
    /// nobody else can see.
    pub(crate) fn acquire(paths: &Paths) -> Result<Self, AppendLogError> {
        let fail = |operation| move |error| AppendLogError::full_or_io(&paths.lock, operation, error);
        for _ in 0..ATTEMPTS {
            let file = sys::private()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&paths.lock)
                .map_err(fail("open"))?;
            if !sys::try_lock(&file).map_err(fail("lock"))? {
                return Err(locked(paths));
            }
            if sys::is_same_file(&file, &paths.lock).map_err(fail("read"))? {
                leave_hint(&file);
                return Ok(Self { files: vec![file] });
            }
        }
        Err(AppendLogError::io(&paths.lock, "lock", io::Error::other("it is being replaced all the time")))
    }

    /// Locks the log as well, so that deleting the lock file lets nobody in.
    pub(crate) fn cover(&mut self, log: &File, paths: &Paths) -> Result<(), AppendLogError> {
        let fail = |error| AppendLogError::io(&paths.log, "lock", error);
        if !sys::try_lock(log).map_err(fail)? {
            return Err(locked(paths));
        }
        self.files.push(log.try_clone().map_err(fail)?);
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock file last: whoever gets it must get the log as well.
        for file in self.files.iter().rev() {
            sys::unlock(file);
        }
    }
}

fn locked(paths: &Paths) -> AppendLogError {
    AppendLogError::Locked { path: paths.snapshot.clone(), holder: LockHolder::read(&paths.lock) }
}

/// Writes who we are. Without it, as on a full disk, the lock is as good as with it.
fn leave_hint(file: &File) {
    let hint = LockHolder::current().encode();
    if file.set_len(0).is_ok() {
        let _ = sys::write_all_at(file, hint.as_bytes(), 0);
    }
}

/// Field 22 of `/proc/self/stat`. The command's name before it may hold spaces and brackets.
fn start_time() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    after.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
