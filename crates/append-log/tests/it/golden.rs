//! Files that an earlier version wrote, which every later one has to read.

use std::fs;
use std::path::Path;

use botmesh_append_log::{AppendLog, Options};

use crate::support::{Journal, entries, payload, records};

/// A copy of the files of one format version.
fn copy_of(version: &str) -> Journal {
    let journal = Journal::new();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version);
    fs::copy(golden.join("journal"), &journal.path).unwrap();
    fs::copy(golden.join("journal.log"), journal.log()).unwrap();
    journal
}

#[test]
fn version_1_is_read_and_written_on() {
    let journal = copy_of("v1");
    let (snapshot, log) = (fs::read(&journal.path).unwrap(), fs::read(journal.log()).unwrap());
    let mut opened = journal.open();
    assert_eq!(records(&opened), [b"one to five".to_vec(), b"".to_vec()]);
    let expected: Vec<_> = (6..=9).map(|number| (number, payload(number))).collect();
    assert_eq!(entries(&opened), expected);
    assert_eq!(opened.append(&payload(10)).unwrap(), 10);
    drop(opened);
    assert_eq!(fs::read(&journal.path).unwrap(), snapshot);
    assert!(fs::read(journal.log()).unwrap().starts_with(&log));
}

/// Writes the files anew, to be done once for each format version:
/// `cargo test -p botmesh-append-log --test it golden::write -- --ignored`.
#[test]
#[ignore = "writes the golden files"]
fn write() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    if folder.exists() {
        return;
    }
    let mut log = AppendLog::open(folder.join("journal"), Options::default()).unwrap();
    log.append_batch(&(1..=5).map(payload).collect::<Vec<_>>()).unwrap();
    log.compact(["one to five", ""]).unwrap();
    log.append(&payload(6)).unwrap();
    log.append_batch(&[payload(7), payload(8), payload(9)]).unwrap();
    drop(log);
    fs::remove_file(folder.join("journal.lock")).unwrap();
}
