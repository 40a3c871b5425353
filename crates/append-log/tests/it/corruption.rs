//! Damage that must be refused, and left as it is.

use std::fs;
use std::path::Path;

use botmesh_append_log::{AppendLogError, FORMAT_VERSION};

use crate::support::{Journal, assert_counts_to, offsets, payload};

/// Opens a log of `bytes` and asserts that it is refused at `line` and `offset`, untouched.
fn assert_corrupt(journal: &Journal, bytes: &[u8], line: u64, offset: u64, what: &str) {
    fs::write(journal.log(), bytes).unwrap();
    match journal.open_quickly() {
        Err(AppendLogError::Corrupt { file, line: found, offset: at }) => {
            assert_eq!(file, fs::canonicalize(journal.log()).unwrap(), "{what}");
            assert_eq!((found, at), (line, offset), "{what}");
        }
        other => panic!("{what}: {other:?}"),
    }
    assert!(fs::read(journal.log()).unwrap() == bytes, "{what}: touched");
    assert!(!Path::new(&journal.path).exists());
}

#[test]
fn any_flipped_bit_in_a_middle_entry_is_reported() {
    let journal = Journal::of_twenty();
    let whole = fs::read(journal.log()).unwrap();
    let ends = offsets(&journal.log());
    let (start, end) = (ends[6], ends[7]);
    for byte in start..end {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[byte as usize] ^= 1 << bit;
            assert_corrupt(&journal, &bytes, 7, start, &format!("bit {bit} of byte {byte}"));
        }
    }
    // Repaired, it is all there.
    fs::write(journal.log(), &whole).unwrap();
    assert_counts_to(&journal.open(), 20);
}

#[test]
fn the_error_says_file_entry_and_byte() {
    let journal = Journal::of_twenty();
    let mut bytes = fs::read(journal.log()).unwrap();
    let start = offsets(&journal.log())[6];
    bytes[start as usize] ^= 1;
    fs::write(journal.log(), &bytes).unwrap();
    let error = journal.try_open().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("journal.log is damaged at entry 7") && text.contains(&format!("byte {start}")),
        "{text}"
    );
    assert!(!error.may_be_applied());
}

#[test]
fn a_flipped_bit_within_one_batch_is_reported() {
    let journal = Journal::new();
    let payloads: Vec<_> = (1..=20).map(payload).collect();
    journal.open().append_batch(&payloads).unwrap();
    let whole = fs::read(journal.log()).unwrap();
    let ends = offsets(&journal.log());
    for byte in ends[6]..ends[7] {
        let mut bytes = whole.clone();
        bytes[byte as usize] ^= 0x04;
        assert_corrupt(&journal, &bytes, 7, ends[6], &format!("byte {byte}"));
    }
}

#[test]
fn entries_that_are_missing_zeroed_swapped_or_doubled_are_reported() {
    let journal = Journal::of_twenty();
    let whole = fs::read(journal.log()).unwrap();
    let ends: Vec<_> = offsets(&journal.log()).into_iter().map(|end| end as usize).collect();
    let (before, seventh, eighth, after) =
        (&whole[..ends[6]], &whole[ends[6]..ends[7]], &whole[ends[7]..ends[8]], &whole[ends[8]..]);
    let offset = ends[6] as u64;

    let missing = [before, eighth, after].concat();
    assert_corrupt(&journal, &missing, 7, offset, "missing");
    let zeroed = [before, &vec![0; seventh.len()], eighth, after].concat();
    assert_corrupt(&journal, &zeroed, 7, offset, "zeroed");
    let swapped = [before, eighth, seventh, after].concat();
    assert_corrupt(&journal, &swapped, 7, offset, "swapped");
    let doubled = [before, seventh, seventh, eighth, after].concat();
    assert_corrupt(&journal, &doubled, 8, ends[7] as u64, "doubled");
    let stuffed = [before, b"\n", seventh, eighth, after].concat();
    assert_corrupt(&journal, &stuffed, 7, offset, "stuffed");
}

#[test]
fn damage_further_from_the_end_than_a_batch_can_reach_is_reported() {
    let journal = Journal::of_twenty();
    let mut bytes = fs::read(journal.log()).unwrap();
    let start = offsets(&journal.log())[19];
    // No valid entry follows, but no torn append leaves so much.
    bytes.truncate(start as usize);
    bytes.resize(start as usize + (64 << 20) + 1, 0xa5);
    assert_corrupt(&journal, &bytes, 20, start, "long");
}

#[test]
fn any_flipped_bit_in_the_header_is_refused() {
    let journal = Journal::of_twenty();
    let whole = fs::read(journal.log()).unwrap();
    for bit in 0..32 * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_corrupt(&journal, &bytes, 0, 0, &format!("bit {bit}"));
    }
    let mut bytes = whole;
    bytes[..32].fill(0);
    assert_corrupt(&journal, &bytes, 0, 0, "zeroed");
}

#[test]
fn something_else_in_the_logs_place_is_refused_and_kept() {
    let long = b"2026-01-01 12:00:00 INFO started, somebody's own log file\n";
    for text in [&long[..], b"INFO\n", b"x"] {
        let journal = Journal::new();
        fs::write(journal.log(), text).unwrap();
        let error = journal.try_open().unwrap_err();
        assert!(matches!(error, AppendLogError::NotAnAppendLog { .. }), "{error:?}");
        assert_eq!(fs::read(journal.log()).unwrap(), text);
    }
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let journal = Journal::of_twenty();
    let mut bytes = fs::read(journal.log()).unwrap();
    bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    let crc = crc32fast::hash(&bytes[..28]);
    bytes[28..32].copy_from_slice(&crc.to_le_bytes());
    fs::write(journal.log(), &bytes).unwrap();
    match journal.try_open() {
        Err(AppendLogError::NewerFormat { file, found, supported }) => {
            assert!(file.ends_with("journal.log"));
            assert_eq!((found, supported), (FORMAT_VERSION + 1, FORMAT_VERSION));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read(journal.log()).unwrap(), bytes);
}
