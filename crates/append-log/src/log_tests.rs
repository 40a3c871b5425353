use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use super::*;

/// What the disk does with the next operations; without a plan it works.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    Works,
    Fails(ErrorKind),
    /// Writes so many bytes and fails.
    Tears(usize, ErrorKind),
}

#[derive(Default)]
struct Script {
    plan: VecDeque<Next>,
    /// What was asked for so far.
    done: Vec<&'static str>,
}

struct Faulty {
    file: File,
    script: Arc<Mutex<Script>>,
}

impl Faulty {
    fn next(&self, operation: &'static str) -> Next {
        let mut script = self.script.lock().unwrap();
        script.done.push(operation);
        script.plan.pop_front().unwrap_or(Next::Works)
    }
}

impl Medium for Faulty {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.next("write") {
            Next::Works => self.file.write_at(bytes, offset),
            Next::Fails(kind) => Err(kind.into()),
            Next::Tears(length, kind) => {
                self.file.write_at(&bytes[..length], offset)?;
                Err(kind.into())
            }
        }
    }

    fn set_len(&mut self, length: u64) -> io::Result<()> {
        match self.next("cut") {
            Next::Works => Medium::set_len(&mut self.file, length),
            Next::Fails(kind) | Next::Tears(_, kind) => Err(kind.into()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match self.next("sync") {
            Next::Works => self.file.sync(),
            Next::Fails(kind) | Next::Tears(_, kind) => Err(kind.into()),
        }
    }
}

struct Bench {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { path: folder.path().join("journal"), _folder: folder }
    }

    fn open(&self) -> AppendLog {
        AppendLog::open(&self.path, Options::default()).unwrap()
    }

    /// An open log with one entry, on a disk that goes by `plan`.
    fn faulty(&self, plan: impl Into<VecDeque<Next>>) -> AppendLog {
        self.scripted(plan).0
    }

    fn scripted(&self, plan: impl Into<VecDeque<Next>>) -> (AppendLog, Arc<Mutex<Script>>) {
        let mut log = self.open();
        log.append(b"kept").unwrap();
        let file = File::options().read(true).write(true).open(&log.paths.log).unwrap();
        let script = Arc::new(Mutex::new(Script { plan: plan.into(), ..Script::default() }));
        log.medium = Box::new(Faulty { file, script: Arc::clone(&script) });
        (log, script)
    }

    fn payloads(&self) -> Vec<Vec<u8>> {
        self.open().entries().unwrap().map(|entry| entry.unwrap().payload).collect()
    }
}

fn assert_poisoned(log: &mut AppendLog, kind: ErrorKind) {
    assert!(log.is_poisoned() && !log.needs_compaction());
    let refused = log.append(b"late").unwrap_err();
    assert!(matches!(refused, AppendLogError::Poisoned { cause, .. } if cause == kind), "{refused:?}");
    assert!(!refused.may_be_applied());
    assert!(matches!(log.compact(["state"]), Err(AppendLogError::Poisoned { .. })));
    assert!(matches!(log.sync(), Err(AppendLogError::Poisoned { .. })));
    assert_eq!(log.last_sequence(), 1);
}

#[test]
fn a_failed_sync_poisons_until_reopened() {
    let bench = Bench::new();
    // Only the first sync fails, as the kernel reports a lost page only once.
    let mut log = bench.faulty([Next::Works, Next::Fails(ErrorKind::Other)]);
    let error = log.append(b"doubtful").unwrap_err();
    assert!(matches!(error, AppendLogError::Io { operation: "sync", .. }), "{error:?}");
    assert!(error.may_be_applied());
    assert_poisoned(&mut log, ErrorKind::Other);
    assert!(matches!(log.close(["state"]), Err(AppendLogError::Poisoned { .. })));

    assert_eq!(bench.payloads(), [b"kept".to_vec(), b"doubtful".to_vec()]);
    assert_eq!(bench.open().append(b"on").unwrap(), 3);
}

#[test]
fn a_failed_write_poisons_until_reopened() {
    let bench = Bench::new();
    let mut log = bench.faulty([Next::Tears(23, ErrorKind::Other)]);
    assert!(matches!(log.append(b"doubtful"), Err(AppendLogError::Io { operation: "write", .. })));
    assert_poisoned(&mut log, ErrorKind::Other);
    drop(log);

    let mut log = bench.open();
    assert_eq!(log.recovery().torn.map(|torn| torn.bytes), Some(23));
    assert_eq!(log.append(b"on").unwrap(), 2);
    drop(log);
    assert_eq!(bench.payloads(), [b"kept".to_vec(), b"on".to_vec()]);
}

#[test]
fn a_descriptor_that_cannot_be_written_poisons() {
    let bench = Bench::new();
    let mut log = bench.faulty([]);
    log.medium = Box::new(File::open(&log.paths.log).unwrap());
    let error = log.append(b"nowhere").unwrap_err();
    assert!(matches!(error, AppendLogError::Io { operation: "write", .. }), "{error:?}");
    assert!(log.is_poisoned());
}

#[test]
fn no_room_takes_the_entry_back_and_goes_on() {
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge] {
        let bench = Bench::new();
        let mut log = bench.faulty([Next::Tears(25, kind)]);
        let before = log.log_bytes();
        let error = log.append(b"too much").unwrap_err();
        assert!(matches!(error, AppendLogError::Full { .. }) && !error.may_be_applied(), "{error:?}");
        assert_eq!(std::fs::metadata(&log.paths.log).unwrap().len(), before);
        assert_eq!(log.append(b"on").unwrap(), 2);
        drop(log);
        assert_eq!(bench.payloads(), [b"kept".to_vec(), b"on".to_vec()]);
    }
}

#[test]
fn no_room_and_no_way_back_poisons() {
    for plan in [
        vec![Next::Tears(25, ErrorKind::StorageFull), Next::Fails(ErrorKind::Other)],
        vec![Next::Tears(25, ErrorKind::StorageFull), Next::Works, Next::Fails(ErrorKind::Other)],
    ] {
        let bench = Bench::new();
        let mut log = bench.faulty(plan);
        assert!(matches!(log.append(b"too much"), Err(AppendLogError::Io { operation: "cut", .. })));
        assert_poisoned(&mut log, ErrorKind::Other);
        drop(log);
        assert_eq!(bench.payloads(), [b"kept".to_vec()]);
    }
}

#[test]
fn a_failure_while_the_log_is_emptied_poisons_and_loses_nothing() {
    let fails = Next::Fails(ErrorKind::Other);
    for plan in [
        vec![fails],
        vec![Next::Works, fails],
        vec![Next::Works, Next::Tears(9, ErrorKind::StorageFull)],
        vec![Next::Works, Next::Works, fails],
    ] {
        let bench = Bench::new();
        let mut log = bench.faulty(plan.clone());
        assert!(matches!(log.compact(["state"]), Err(AppendLogError::Io { .. })), "{plan:?}");
        assert!(log.is_poisoned());
        drop(log);

        let mut log = bench.open();
        let records: Vec<_> = log.snapshot().unwrap().unwrap().map(Result::unwrap).collect();
        assert_eq!(records, [b"state".to_vec()]);
        assert_eq!(log.entries().unwrap().count(), 0);
        assert_eq!(log.append(b"on").unwrap(), 2);
    }
}

#[test]
fn the_operating_systems_cache_is_synced_only_when_asked() {
    let bench = Bench::new();
    let mut log = bench.faulty([Next::Works, Next::Works, Next::Fails(ErrorKind::Other)]);
    log.options.sync = SyncPolicy::Os;
    log.append(b"one").unwrap();
    log.append(b"two").unwrap();
    assert_eq!(log.unsynced, 2);
    assert!(matches!(log.sync(), Err(AppendLogError::Io { operation: "sync", .. })));
    assert!(log.is_poisoned());
}

#[test]
fn display_names_the_file_and_never_repeats_the_source() {
    let bench = Bench::new();
    let mut log = bench.faulty([Next::Fails(ErrorKind::PermissionDenied)]);
    let error = log.append(b"x").unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    let text = error.to_string();
    assert!(text.contains("journal.log") && !text.contains(&source), "{text} / {source}");
}

#[test]
fn a_batch_is_one_write_and_one_sync() {
    let bench = Bench::new();
    let (mut log, script) = bench.scripted([]);
    log.append_batch(&[[7; 3000]; 500]).unwrap();
    assert_eq!(std::mem::take(&mut script.lock().unwrap().done), ["write", "sync"]);
    log.append_batch::<&[u8]>(&[]).unwrap();
    log.sync().unwrap();
    assert_eq!(script.lock().unwrap().done, [""; 0]);

    log.options.sync = SyncPolicy::Os;
    log.append(b"one").unwrap();
    log.append(b"two").unwrap();
    assert_eq!(script.lock().unwrap().done, ["write", "write"]);
    log.sync().unwrap();
    assert_eq!(script.lock().unwrap().done, ["write", "write", "sync"]);
    log.compact(["state"]).unwrap();
    assert_eq!(script.lock().unwrap().done[3..], ["cut", "write", "sync"]);
}
