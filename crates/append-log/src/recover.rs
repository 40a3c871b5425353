//! Opening: lock, verify, cut, and only then hand out.
//!
//! Everything is verified before anything is changed, so that a file that is refused is left as it was.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use crate::filesystem::unsafe_filesystem;
use crate::frame::LogHeader;
use crate::lock::Lock;
use crate::log::AppendLog;
use crate::medium::Medium;
use crate::options::{Options, SyncPolicy};
use crate::paths::Paths;
use crate::scan::{Scan, scan};
use crate::{AppendLogError, SnapshotDamage, snapshot, sys};

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The last sequence number that the snapshot covers; `None` without a snapshot.
    pub snapshot: Option<u64>,
    /// Entries of the log that the snapshot does not hold.
    pub entries: u64,
    /// Entries of the log that the snapshot already held: a crash came between the snapshot and the cut.
    pub skipped: u64,
    /// What a crash had torn, and was cut off.
    pub torn: Option<TornTail>,
}

/// The end of a log that a crash left half-written. Nobody was told that it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TornTail {
    /// Where it was cut, in bytes from the start of the log.
    pub offset: u64,
    /// How many bytes were cut off.
    pub bytes: u64,
}

/// Opens the journal at `path`: see [`AppendLog::open`].
pub(crate) fn open(path: &Path, options: Options) -> Result<AppendLog, AppendLogError> {
    let paths = Paths::resolve(path).map_err(|error| AppendLogError::io(path, "resolve", error))?;
    refuse_unsafe_filesystem(&paths, &options)?;
    paths.create_dir()?;
    let mut lock = Lock::acquire(&paths)?;

    let found = snapshot::verify(&paths.snapshot)?;
    let covered = found.as_ref().map(|(covered, _)| *covered);
    let log = open_log(&paths)?;
    let scan = match &log {
        Some(log) => {
            lock.cover(log, &paths)?;
            Some(scan(log, &paths.log)?)
        }
        None => None,
    };
    let header = scan.as_ref().and_then(|scan| scan.header);
    refuse_gap(&paths, covered, header)?;

    // From here on files are changed.
    if let Some((_, snapshot)) = &found {
        // It may be renamed but not yet durable, and the log is about to be cut for it.
        sys::sync_read(snapshot).map_err(|error| AppendLogError::io(&paths.snapshot, "sync", error))?;
    }
    remove_leftover(&paths.tmp)?;
    let log = match log {
        Some(log) => log,
        None => {
            let log = create_log(&paths)?;
            lock.cover(&log, &paths)?;
            log
        }
    };
    paths.sync_dir()?;

    let recovery = summary(covered, scan.as_ref());
    let covered = covered.unwrap_or(0);
    match (scan, header) {
        (Some(scan), Some(header))
            if scan.last > covered || (scan.entries == 0 && header.base == covered) =>
        {
            let unsynced = settle(&log, &paths.log, &scan, options.sync)?;
            let medium: Box<dyn Medium> = Box::new(log);
            let mut log = AppendLog::new(paths, options, lock, medium, header, recovery);
            log.resume(scan.end, scan.last, unsynced);
            Ok(log)
        }
        // New, or all of it is in the snapshot: it starts afresh behind it.
        _ => {
            let header = LogHeader::after(covered);
            let medium: Box<dyn Medium> = Box::new(log);
            let mut log = AppendLog::new(paths, options, lock, medium, header, recovery);
            log.start_afresh(covered)?;
            Ok(log)
        }
    }
}

fn refuse_unsafe_filesystem(paths: &Paths, options: &Options) -> Result<(), AppendLogError> {
    if options.allow_unsupported_filesystem {
        return Ok(());
    }
    let dir = paths.existing_dir();
    match unsafe_filesystem(dir).map_err(|error| AppendLogError::io(dir, "find the filesystem of", error))? {
        Some(filesystem) => {
            Err(AppendLogError::UnsupportedFilesystem { path: paths.snapshot.clone(), filesystem })
        }
        None => Ok(()),
    }
}

/// The log goes on from `base`: without a snapshot up to there, entries are missing.
fn refuse_gap(paths: &Paths, covered: Option<u64>, header: Option<LogHeader>) -> Result<(), AppendLogError> {
    let needed = header.map_or(0, |header| header.base);
    let reason = match covered {
        None if needed > 0 => SnapshotDamage::Missing { needed },
        Some(covers) if covers < needed => SnapshotDamage::Outdated { covers, needed },
        _ => return Ok(()),
    };
    Err(AppendLogError::damaged(&paths.snapshot, reason))
}

fn open_log(paths: &Paths) -> Result<Option<File>, AppendLogError> {
    match File::options().read(true).write(true).open(&paths.log) {
        Ok(log) => Ok(Some(log)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(AppendLogError::io(&paths.log, "open", error)),
    }
}

fn create_log(paths: &Paths) -> Result<File, AppendLogError> {
    sys::private()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&paths.log)
        .map_err(|error| AppendLogError::full_or_io(&paths.log, "create", error))
}

/// A snapshot that a crash left half-written.
fn remove_leftover(tmp: &Path) -> Result<(), AppendLogError> {
    match fs::remove_file(tmp) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(AppendLogError::io(tmp, "remove", error)),
        _ => Ok(()),
    }
}

fn summary(covered: Option<u64>, scan: Option<&Scan>) -> Recovery {
    let Some(scan) = scan else {
        return Recovery { snapshot: covered, ..Recovery::default() };
    };
    let first = scan.last - scan.entries;
    let skipped = covered.unwrap_or(0).saturating_sub(first).min(scan.entries);
    let torn = TornTail { offset: scan.end, bytes: scan.length - scan.end };
    Recovery {
        snapshot: covered,
        entries: scan.entries - skipped,
        skipped,
        torn: (torn.bytes > 0).then_some(torn),
    }
}

/// Makes what was read durable before anybody acts on it, and cuts the torn tail. Returns how many of the
/// entries are still not known to be on stable storage.
///
/// The last run is not only synced but written again: when a sync failed, the kernel may have dropped pages
/// that it never wrote and still show them, and a second sync would succeed without writing them either.
fn settle(file: &File, path: &Path, scan: &Scan, sync: SyncPolicy) -> Result<u32, AppendLogError> {
    let torn = scan.end < scan.length;
    if !torn && sync == SyncPolicy::Os {
        return Ok(scan.run_entries);
    }
    if torn {
        file.set_len(scan.end).map_err(|error| AppendLogError::io(path, "cut", error))?;
    }
    write_again(file, scan).map_err(|error| AppendLogError::full_or_io(path, "write", error))?;
    file.sync_all().map_err(|error| AppendLogError::io(path, "sync", error))?;
    Ok(0)
}

fn write_again(mut file: &File, scan: &Scan) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    let mut at = scan.run_start;
    while at < scan.end {
        let part = usize::try_from(scan.end - at).unwrap_or(usize::MAX).min(buffer.len());
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut buffer[..part])?;
        sys::write_all_at(file, &buffer[..part], at)?;
        at += part as u64;
    }
    Ok(())
}
