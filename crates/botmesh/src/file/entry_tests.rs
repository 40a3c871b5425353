use super::*;

fn entry(key: &'static [u8], index: Index) -> Entry {
    Entry {
        key: Bytes::from_static(key),
        version: Version(u64::MAX),
        value: Bytes::from_static(b"\0\xff"),
        index,
    }
}

fn all() -> (Vec<u8>, Vec<Change>) {
    let due = Some(Timestamp::from_millis(i64::MIN));
    let list = Some((255, i64::MAX));
    let entries = [
        entry(b"", Index::default()),
        entry(b"due", Index { due, list: None }),
        entry(b"list", Index { due: None, list }),
        entry(b"both\0", Index { due, list }),
    ];
    let mut writing = Writing::of("scöpe");
    for Entry { key, version, value, index } in &entries {
        writing.put(key, *version, *index, value);
    }
    writing.remove(b"gone");
    writing.last_version(Version(7));
    let others = [Change::Remove(Bytes::from_static(b"gone")), Change::LastVersion(Version(7))];
    (writing.finish(), entries.map(Change::Put).into_iter().chain(others).collect())
}

#[test]
fn what_is_written_is_read() {
    let (bytes, changes) = all();
    assert_eq!(read(&bytes), Ok(("scöpe", changes)));
}

#[test]
fn no_end_that_is_missing_and_no_byte_that_is_wrong_is_fatal() {
    let (bytes, changes) = all();
    for length in 0..bytes.len() {
        // A whole change fewer is an entry too; the log's own checksum tells that it is not this one.
        match read(&bytes[..length]) {
            Ok((_, found)) => assert!(changes.starts_with(&found) && found.len() < changes.len()),
            Err(error) => assert_eq!(error, Unreadable::Damaged),
        }
        let mut wrong = bytes.clone();
        wrong[length] ^= 0xff;
        assert_ne!(read(&wrong), Ok(("scöpe", all().1)), "byte {length}");
    }
}

#[test]
fn a_later_format_is_told_from_damage() {
    let (mut bytes, _) = all();
    bytes[0] = FORMAT + 1;
    assert_eq!(read(&bytes), Err(Unreadable::Newer(FORMAT + 1)));
}

#[test]
fn the_overhead_is_not_larger_than_said() {
    let largest = Index { due: Some(Timestamp::from_millis(1)), list: Some((1, 1)) };
    let mut writing = Writing::of("");
    writing.put(b"", Version(1), largest, b"");
    assert!(writing.finish().len() <= OVERHEAD + CHANGE_OVERHEAD);
}
