//! Folding the log into the snapshot, and crashes around it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;

use botmesh_append_log::{AppendLog, AppendLogError, FRAME_OVERHEAD, MAX_BATCH_BYTES, Options};

use crate::support::{Journal, assert_counts_to, entries, payload, records};

#[test]
fn sequence_numbers_go_on_over_compactions_and_reopens() {
    let journal = Journal::new();
    for round in 0..5 {
        let mut log = journal.open();
        assert_eq!(log.last_sequence(), round * 3);
        assert_eq!(log.append_batch(&["x", "y", "z"]).unwrap(), round * 3 + 1..round * 3 + 4);
        log.compact([format!("round {round}")]).unwrap();
        assert_eq!((log.log_entries(), log.log_bytes()), (0, 32));
        assert_eq!(records(&log), [format!("round {round}").into_bytes()]);
        assert_eq!(log.snapshot().unwrap().unwrap().covered(), round * 3 + 3);
    }
}

#[test]
fn a_crash_between_the_snapshot_and_the_cut_is_harmless() {
    let journal = Journal::of_twenty();
    let old = fs::read(journal.log()).unwrap();
    journal.open().compact(["one to twenty"]).unwrap();
    fs::write(journal.log(), &old).unwrap();

    let mut log = journal.open();
    let recovery = log.recovery();
    assert_eq!((recovery.snapshot, recovery.entries, recovery.skipped), (Some(20), 0, 20));
    assert_eq!(entries(&log), []);
    assert_eq!(log.log_bytes(), 32); // The cut is made up for.
    assert_eq!(log.append(b"on").unwrap(), 21);
    drop(log);
    let log = journal.open();
    assert_eq!(records(&log), [b"one to twenty".to_vec()]);
    assert_eq!(entries(&log), [(21, b"on".to_vec())]);
}

#[test]
fn entries_that_the_snapshot_holds_are_skipped_and_later_ones_replayed() {
    let journal = Journal::of_twenty();
    let longer = fs::read(journal.log()).unwrap();
    let shorter = Journal::new();
    let mut log = shorter.open();
    for number in 1..=15 {
        log.append(&payload(number)).unwrap();
    }
    log.close(["one to fifteen"]).unwrap();
    fs::write(shorter.log(), &longer).unwrap();

    let mut log = shorter.open();
    assert_eq!((log.recovery().entries, log.recovery().skipped), (5, 15));
    assert_eq!(log.log_entries(), 5);
    let expected: Vec<_> = (16..=20).map(|number| (number, payload(number))).collect();
    assert_eq!(entries(&log), expected);
    assert_eq!(log.append(b"on").unwrap(), 21);
}

#[test]
fn a_crash_before_the_rename_leaves_a_file_that_is_cleared_away() {
    let journal = Journal::of_twenty();
    fs::write(journal.file(".tmp"), b"half a snap").unwrap();
    assert_counts_to(&journal.open(), 20);
    assert!(!journal.file(".tmp").exists());
}

#[test]
fn a_torn_header_of_an_emptied_log_goes_on_behind_the_snapshot() {
    let journal = Journal::of_twenty();
    journal.open().compact(["state"]).unwrap();
    let header = fs::read(journal.log()).unwrap();
    for length in 0..32 {
        fs::write(journal.log(), &header[..length]).unwrap();
        assert_eq!(journal.open().last_sequence(), 20);
    }
    fs::remove_file(journal.log()).unwrap();
    assert_eq!(journal.open().append(b"on").unwrap(), 21);
}

#[test]
fn close_folds_the_log_and_an_empty_one_needs_no_folding() {
    let journal = Journal::of_twenty();
    journal.open().close(["folded"]).unwrap();
    let log = journal.open();
    assert_eq!((entries(&log).len(), records(&log)), (0, vec![b"folded".to_vec()]));
    let before = fs::read(&journal.path).unwrap();
    log.close(["never written"]).unwrap();
    assert_eq!(fs::read(&journal.path).unwrap(), before);

    let unused = Journal::new();
    unused.open().close([""; 0]).unwrap();
    assert!(!unused.path.exists());
}

#[test]
fn compaction_is_suggested_by_number_and_by_size() {
    let journal = Journal::new();
    let mut log = journal.open();
    log.append_batch(&[b"x"; 999]).unwrap();
    assert!(!log.needs_compaction());
    log.append(b"x").unwrap();
    assert!(log.needs_compaction());
    log.compact(["state"]).unwrap();
    assert!(!log.needs_compaction());
    log.append(&vec![1; (4 << 20) - 32 - FRAME_OVERHEAD - 1]).unwrap();
    assert!(!log.needs_compaction());
    log.append(b"").unwrap();
    assert!(log.needs_compaction());
    drop(log);

    let never = Options::default().with_compact_bytes(0).with_compact_entries(0);
    assert!(!AppendLog::open(&journal.path, never).unwrap().needs_compaction());
}

#[test]
fn a_compaction_that_fails_leaves_the_log_in_use_and_waits_before_the_next() {
    let journal = Journal::new();
    let mut log = AppendLog::open(&journal.path, Options::default().with_compact_entries(10)).unwrap();
    log.compact(["old"]).unwrap();
    log.append_batch(&["x"; 10]).unwrap();
    assert!(log.needs_compaction());
    let failed = log.compact_with(|snapshot| {
        snapshot.record(b"half")?;
        Err(io::Error::other("the state cannot be read"))
    });
    assert!(matches!(failed, Err(AppendLogError::Io { .. })));
    assert!(!log.is_poisoned() && !log.needs_compaction());
    assert!(!journal.file(".tmp").exists());
    assert_eq!(records(&log), [b"old".to_vec()]);

    log.append_batch(&["y"; 10]).unwrap();
    assert!(log.needs_compaction());
    log.compact(["new"]).unwrap();
    assert_eq!(records(&log), [b"new".to_vec()]);
}

#[test]
fn a_batch_over_the_limit_is_refused_before_anything_is_written() {
    let journal = Journal::of_twenty();
    let mut log = journal.open();
    let half = vec![0; MAX_BATCH_BYTES as usize / 2];
    let error = log.append_batch(&[&half, &half]).unwrap_err();
    assert!(
        matches!(error, AppendLogError::TooLarge { bytes, .. } if bytes == MAX_BATCH_BYTES + 40),
        "{error:?}"
    );
    assert!(!log.is_poisoned());
    assert_eq!(log.append(&payload(21)).unwrap(), 21);
    assert_counts_to(&log, 21);
}

#[test]
fn no_entries_are_no_write() {
    let journal = Journal::of_twenty();
    let mut log = journal.open();
    let before = fs::read(journal.log()).unwrap();
    assert_eq!(log.append_batch::<&[u8]>(&[]).unwrap(), 21..21);
    assert_eq!(fs::read(journal.log()).unwrap(), before);
}

#[test]
fn files_are_private_and_a_changed_mode_is_kept() {
    let journal = Journal::of_twenty();
    let mode = |suffix| fs::metadata(journal.file(suffix)).unwrap().permissions().mode() & 0o777;
    journal.open().compact(["state"]).unwrap();
    for suffix in ["", ".log", ".lock"] {
        assert_eq!(mode(suffix), 0o600, "{suffix}");
    }
    fs::set_permissions(&journal.path, fs::Permissions::from_mode(0o640)).unwrap();
    journal.open().compact(["state"]).unwrap();
    assert_eq!(mode(""), 0o640);
}
