//! No room left.

use std::fs;
use std::path::Path;
use std::process::Command;

use botmesh_append_log::{AppendLog, AppendLogError, Options};

use crate::child::Process;
use crate::support::{Journal, entries, records};

/// A mounted folder, unmounted when dropped.
pub(crate) struct Mount(tempfile::TempDir);

impl Mount {
    /// `None` when this process may not mount.
    pub(crate) fn new(kind: &str, options: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", kind, "-o", options, "botmesh-test"]).arg(folder.path());
        mount.output().is_ok_and(|done| done.status.success()).then(|| Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_disk_takes_nothing_half_and_goes_on_when_there_is_room() {
    let Some(disk) = Mount::new("tmpfs", "size=256k") else {
        println!("not run: needs the right to mount a small disk");
        return;
    };
    let path = disk.path().join("journal");
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 128 * 1024]).unwrap();
    let mut log = AppendLog::open(&path, Options::default()).unwrap();
    log.compact(["old state"]).unwrap();

    let entry = vec![7; 5000];
    let mut stored = 0;
    let error = loop {
        match log.append(&entry) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AppendLogError::Full { .. }) && !error.may_be_applied(), "{error:?}");
    assert!(stored > 0 && !log.is_poisoned());
    let length = fs::metadata(disk.path().join("journal.log")).unwrap().len();
    assert_eq!((length, log.log_entries()), (32 + 5020 * stored, stored));

    // Neither is there room for another snapshot; the old one stays.
    let failed = log.compact([vec![8; 64 * 1024]]);
    assert!(matches!(failed, Err(AppendLogError::Full { .. })), "{failed:?}");
    assert_eq!(records(&log), [b"old state".to_vec()]);
    assert!(!disk.path().join("journal.tmp").exists());

    fs::remove_file(&ballast).unwrap();
    assert_eq!(log.append(&entry).unwrap(), stored + 1);
    drop(log);
    let log = AppendLog::open(&path, Options::default()).unwrap();
    assert_eq!(log.recovery().torn, None);
    assert!(entries(&log).iter().all(|(_, payload)| *payload == entry));
    assert_eq!(log.last_sequence(), stored + 1);
}

#[test]
fn a_journal_on_a_full_disk_opens_and_compacts_nothing_away() {
    let Some(disk) = Mount::new("tmpfs", "size=64k") else {
        println!("not run: needs the right to mount a small disk");
        return;
    };
    let path = disk.path().join("journal");
    AppendLog::open(&path, Options::default()).unwrap().append(b"kept").unwrap();
    let _ = fs::write(disk.path().join("ballast"), vec![1; 64 * 1024]); // As far as it goes.
    let log = AppendLog::open(&path, Options::default()).unwrap();
    assert_eq!(entries(&log), [(1, b"kept".to_vec())]);
    assert!(matches!(log.close(["state"]), Err(AppendLogError::Full { .. })));
    assert_eq!(AppendLog::open(&path, Options::default()).unwrap().last_sequence(), 1);
}

#[test]
fn the_file_size_limit_is_no_room_too() {
    let journal = Journal::new();
    // 4096 bytes, in the unit of the shell: three entries of 1020 bytes behind the header, and part of a fourth.
    let limited = ["sh", "-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""];
    let mut process = Process::start_under(&limited, "fill", &journal.path);
    assert_eq!(process.line(), "full 3092 4");
    drop(process);
    let log = journal.open();
    assert_eq!(log.recovery().torn, None);
    assert_eq!(entries(&log)[3], (4, b"small".to_vec()));
}
