//! Snapshots that cannot be trusted.

use std::fs;

use botmesh_append_log::{AppendLogError, FORMAT_VERSION, SnapshotDamage};

use crate::support::{Journal, entries, records};

/// A journal with a snapshot of three records and two entries behind it.
fn with_snapshot() -> Journal {
    let journal = Journal::new();
    let mut log = journal.open();
    log.append_batch(&["a", "b", "c"]).unwrap();
    log.compact(["one", "", "three"]).unwrap();
    log.append_batch(&["d", "e"]).unwrap();
    journal
}

/// Asserts that a snapshot of `bytes` is refused for `reason`, with every file left as it was.
fn assert_refused(journal: &Journal, bytes: &[u8], reason: &SnapshotDamage) {
    fs::write(&journal.path, bytes).unwrap();
    let log = fs::read(journal.log()).unwrap();
    for _ in 0..2 {
        match journal.try_open() {
            Err(AppendLogError::DamagedSnapshot { file, reason: found }) => {
                assert!(file.ends_with("journal"));
                assert_eq!(&found, reason);
            }
            other => panic!("{reason:?}: {other:?}"),
        }
        assert_eq!(fs::read(&journal.path).unwrap(), bytes);
        assert_eq!(fs::read(journal.log()).unwrap(), log);
    }
}

#[test]
fn an_empty_nul_or_short_snapshot_is_refused_by_name() {
    let journal = with_snapshot();
    let whole = fs::read(&journal.path).unwrap();
    let length = whole.len();
    let found = length as u64;
    assert_refused(&journal, &[], &SnapshotDamage::Empty);
    for zeros in [1, 39, 40, length, 8192] {
        assert_refused(&journal, &vec![0; zeros], &SnapshotDamage::Zeroed);
    }
    for part in 1..length {
        let expected = if part < 40 { 40 } else { found };
        let reason = SnapshotDamage::Truncated { expected, found: part as u64 };
        assert_refused(&journal, &whole[..part], &reason);
    }
    let longer = [&whole[..], b"\n"].concat();
    assert_refused(&journal, &longer, &SnapshotDamage::TooLong { expected: found, found: found + 1 });
    assert_refused(&journal, br#"{"version":3,"records":[]}"#, &SnapshotDamage::NotASnapshot);

    fs::write(&journal.path, &whole).unwrap();
    let log = journal.open();
    assert_eq!(records(&log), [b"one".to_vec(), b"".to_vec(), b"three".to_vec()]);
    assert_eq!(entries(&log), [(4, b"d".to_vec()), (5, b"e".to_vec())]);
}

#[test]
fn a_snapshot_whose_data_never_reached_the_disk_is_refused() {
    let journal = with_snapshot();
    let mut bytes = fs::read(&journal.path).unwrap();
    bytes[40..].fill(0);
    assert_refused(&journal, &bytes, &SnapshotDamage::Checksum);
}

#[test]
fn any_flipped_bit_is_refused() {
    let journal = with_snapshot();
    let whole = fs::read(&journal.path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let reason = if bit < 40 * 8 { SnapshotDamage::Header } else { SnapshotDamage::Checksum };
        assert_refused(&journal, &bytes, &reason);
    }
}

#[test]
fn a_lost_snapshot_is_noticed_by_the_log_that_goes_on_from_it() {
    let journal = with_snapshot();
    fs::remove_file(&journal.path).unwrap();
    for emptied in [false, true] {
        match journal.try_open() {
            Err(AppendLogError::DamagedSnapshot { reason, .. }) => {
                let needed = if emptied { 5 } else { 3 };
                assert_eq!(reason, SnapshotDamage::Missing { needed });
            }
            other => panic!("{other:?}"),
        }
        assert!(!journal.path.exists());
        // The same when nothing was appended since.
        let other = with_snapshot();
        other.open().close(["state"]).unwrap();
        fs::remove_file(&other.path).unwrap();
        fs::copy(other.log(), journal.log()).unwrap();
    }
}

#[test]
fn a_snapshot_from_an_old_backup_is_refused() {
    let journal = with_snapshot();
    let old = fs::read(&journal.path).unwrap();
    journal.open().close(["newer"]).unwrap();
    assert_refused(&journal, &old, &SnapshotDamage::Outdated { covers: 3, needed: 5 });
}

#[test]
fn a_newer_snapshot_format_is_refused_by_name() {
    let journal = with_snapshot();
    let mut bytes = fs::read(&journal.path).unwrap();
    bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 7).to_le_bytes());
    let crc = crc32fast::hash(&bytes[..36]);
    bytes[36..40].copy_from_slice(&crc.to_le_bytes());
    fs::write(&journal.path, &bytes).unwrap();
    match journal.try_open() {
        Err(AppendLogError::NewerFormat { file, found, .. }) => {
            assert!(file.ends_with("journal"));
            assert_eq!(found, FORMAT_VERSION + 7);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read(&journal.path).unwrap(), bytes);
}
