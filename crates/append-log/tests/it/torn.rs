//! A crash in the middle of an append.

use std::fs;

use crate::support::{Journal, assert_counts_to, entries, offsets, payload};

#[test]
fn truncated_at_any_byte_keeps_exactly_the_complete_entries() {
    let journal = Journal::of_twenty();
    let whole = fs::read(journal.log()).unwrap();
    let ends = offsets(&journal.log());
    assert_eq!(ends.len(), 21);

    for length in 0..=whole.len() {
        fs::write(journal.log(), &whole[..length]).unwrap();
        let complete = ends[1..].iter().filter(|&&end| end <= length as u64).count() as u64;
        let good = if length < 32 { 0 } else { ends[complete as usize] };

        let mut log = journal.open_quickly().unwrap();
        assert_counts_to(&log, complete);
        let torn = log.recovery().torn.map(|torn| (torn.offset, torn.bytes));
        assert_eq!(torn, (good < length as u64).then(|| (good, length as u64 - good)), "{length}");
        assert_eq!(log.append(&payload(complete + 1)).unwrap(), complete + 1, "{length}");
        drop(log);

        let log = journal.open_quickly().unwrap();
        assert_eq!(log.recovery().torn, None, "{length}");
        assert_counts_to(&log, complete + 1);
    }
}

#[test]
fn the_torn_tail_is_cut_at_open_before_any_append() {
    let journal = Journal::of_twenty();
    let ends = offsets(&journal.log());
    let whole = fs::read(journal.log()).unwrap();
    fs::write(journal.log(), &whole[..whole.len() - 3]).unwrap();
    drop(journal.open());
    assert_eq!(fs::metadata(journal.log()).unwrap().len(), ends[19]);
}

#[test]
fn a_tail_of_zeros_is_torn() {
    for zeros in [1, 19, 20, 21, 512, 5000, 1 << 20] {
        let journal = Journal::of_twenty();
        let mut bytes = fs::read(journal.log()).unwrap();
        bytes.resize(bytes.len() + zeros, 0);
        fs::write(journal.log(), &bytes).unwrap();
        let mut log = journal.open();
        assert_eq!(log.recovery().torn.unwrap().bytes, zeros as u64);
        assert_counts_to(&log, 20);
        assert_eq!(log.append(&payload(21)).unwrap(), 21);
        drop(log);
        assert_counts_to(&journal.open(), 21);
    }
}

#[test]
fn a_tail_of_zeros_longer_than_any_batch_is_torn() {
    let journal = Journal::of_twenty();
    let end = fs::metadata(journal.log()).unwrap().len();
    fs::File::options().write(true).open(journal.log()).unwrap().set_len(end + (65 << 20)).unwrap();
    let log = journal.open();
    assert_eq!(log.recovery().torn.unwrap().bytes, 65 << 20);
    assert_counts_to(&log, 20);
}

/// A failed sync may have dropped pages that the cache still shows: only writing them again brings them back.
#[test]
fn what_no_later_entry_proves_synced_is_written_again_at_open() {
    let journal = Journal::of_twenty();
    let log = fs::File::options().write(true).open(journal.log()).unwrap();
    let whole = fs::read(journal.log()).unwrap();
    let long_ago = std::time::UNIX_EPOCH;
    let modified = || fs::metadata(journal.log()).unwrap().modified().unwrap();

    log.set_modified(long_ago).unwrap();
    drop(journal.open_quickly().unwrap());
    assert_eq!(modified(), long_ago);
    drop(journal.open());
    assert_ne!(modified(), long_ago);
    assert_eq!(fs::read(journal.log()).unwrap(), whole);
}

#[test]
fn a_last_entry_that_only_reached_the_disk_in_part_is_torn() {
    let journal = Journal::of_twenty();
    let ends = offsets(&journal.log());
    let whole = fs::read(journal.log()).unwrap();
    for byte in ends[19] as usize..whole.len() {
        let mut bytes = whole.clone();
        bytes[byte..].fill(0);
        bytes.extend([0; 100]);
        fs::write(journal.log(), &bytes).unwrap();
        let log = journal.open_quickly().unwrap();
        let kept = log.last_sequence();
        // Zeros over a payload that ends in zeros change nothing.
        assert!(kept == 19 || (kept == 20 && bytes[..whole.len()] == whole), "{byte}: {kept}");
        assert_counts_to(&log, kept);
    }
}

#[test]
fn a_batch_whose_blocks_reached_the_disk_in_another_order_is_torn() {
    let journal = Journal::of_twenty();
    let before = fs::metadata(journal.log()).unwrap().len() as usize;
    let big = vec![7; 10_000];
    journal.open().append_batch(&[b"first".as_slice(), &big, b"last"]).unwrap();
    let whole = fs::read(journal.log()).unwrap();

    // One block of the second entry never arrived, the third did.
    let mut bytes = whole;
    bytes[4096..8192].fill(0);
    fs::write(journal.log(), &bytes).unwrap();
    let log = journal.open();
    assert_eq!(log.recovery().torn.unwrap().offset, (before + 25) as u64);
    assert_eq!(entries(&log).last().unwrap(), &(21, b"first".to_vec()));
    assert_eq!(log.last_sequence(), 21);
}

#[test]
fn a_large_torn_entry_is_cut() {
    let journal = Journal::of_twenty();
    let numbers: Vec<u8> = (0..500_000_u64).flat_map(u64::to_le_bytes).collect();
    journal.open().append(&numbers).unwrap();
    let length = fs::metadata(journal.log()).unwrap().len();
    fs::File::options().write(true).open(journal.log()).unwrap().set_len(length - 1).unwrap();
    assert_counts_to(&journal.open(), 20);
}

#[test]
fn a_log_that_was_just_being_created_is_empty() {
    for start in [&b""[..], b"B", b"BMLOG\r\n\x1a", b"BMLOG\r\n\x1a\x01\0\0", &[0; 7], &[0; 32]] {
        let journal = Journal::new();
        fs::write(journal.log(), start).unwrap();
        let mut log = journal.open();
        assert_eq!(log.append(b"first").unwrap(), 1, "{start:?}");
        drop(log);
        assert_eq!(entries(&journal.open()), [(1, b"first".to_vec())]);
    }
}
