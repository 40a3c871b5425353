//! Files that were damaged or cut short.

use std::fs;

use botmesh::FileOptions;
use botmesh::core::error::StoreErrorKind;
use botmesh::core::kv::DurableKv;

use crate::tools::{Place, applied, block_on, close, commit, create, get};

/// Where each entry of the log starts, and where the last one ends, by the lengths that they give.
fn offsets(log: &[u8]) -> Vec<usize> {
    let mut offsets = vec![32];
    let mut at = 32;
    while at < log.len() {
        at += 20 + u32::from_le_bytes(log[at + 4..at + 8].try_into().unwrap()) as usize;
        offsets.push(at);
    }
    offsets
}

fn key(n: usize) -> String {
    format!("k{n:02}")
}

/// A journal whose log has 20 commits of two entries each.
fn of_twenty() -> (Place, Vec<u8>) {
    let place = Place::new();
    let file = place.open().unwrap();
    for n in 0..20 {
        let ops = vec![create(key(n), "value"), create(format!("{}b", key(n)), "value")];
        for outcome in block_on(file.commit(ops)).unwrap() {
            applied(outcome);
        }
    }
    let log = fs::read(place.file(".log")).unwrap();
    close(&file);
    fs::remove_file(place.path()).unwrap();
    fs::write(place.file(".log"), &log).unwrap();
    (place, log)
}

#[test]
fn i02_an_empty_zeroed_or_short_snapshot_is_refused_by_name_and_left_alone() {
    let place = Place::new();
    let file = place.open().unwrap();
    commit(&file, create("k", "value"));
    close(&file);
    let whole = fs::read(place.path()).unwrap();
    let zeroed = vec![0; whole.len()];
    for (what, bytes, word) in [
        ("empty", &[][..], "0 bytes"),
        ("zeroed", &zeroed, "NUL"),
        ("its first half", &whole[..whole.len() / 2], "bytes of"),
        ("its first byte", &whole[..1], "bytes of"),
    ] {
        fs::write(place.path(), bytes).unwrap();
        let error = place.refused();
        let text = error.to_string();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{what}: {text}");
        let named = text.contains(&place.path().display().to_string()) && text.contains(word);
        assert!(named && text.contains("backup"), "{what}: {text}");
    }
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(place.path(), flipped).unwrap();
    assert!(place.refused().to_string().contains("checksum"));
    fs::remove_file(place.path()).unwrap();
    assert!(place.refused().to_string().contains("missing"));
    fs::write(place.path(), whole).unwrap();
    assert_eq!(get(&place.open().unwrap(), "k").unwrap().value, "value");
}

#[test]
fn i06_a_log_torn_at_any_byte_opens_with_its_whole_commits_and_takes_one_more() {
    let (place, log) = of_twenty();
    let offsets = offsets(&log);
    assert_eq!(offsets.len(), 21);
    let quick = || place.open_with(FileOptions::default().with_fsync(false)).unwrap();
    // Every byte of three commits, and around each of the others; the log's own tests take all.
    let near = |cut: &usize| offsets.iter().any(|offset| offset.abs_diff(*cut) <= 1);
    let inside = |cut: &usize| [0, 9, 19].iter().any(|&n| (offsets[n]..offsets[n + 1]).contains(cut));
    for cut in (offsets[0]..=log.len()).filter(|cut| near(cut) || inside(cut)) {
        let _ = fs::remove_file(place.path());
        fs::write(place.file(".log"), &log[..cut]).unwrap();
        let whole = offsets.iter().filter(|&&offset| offset <= cut).count() - 1;
        let file = quick();
        commit(&file, create("more", "value"));
        close(&file);
        let file = quick();
        for n in 0..20 {
            let both = [key(n), format!("{}b", key(n))].map(|key| get(&file, key).is_some());
            assert_eq!(both, [n < whole; 2], "commit {n} of a log cut at byte {cut}");
        }
        assert!(get(&file, "more").is_some(), "the commit after a cut at byte {cut}");
        close(&file);
    }
}

#[test]
fn i06_a_flipped_bit_in_the_middle_is_refused_with_file_entry_and_offset() {
    let (place, log) = of_twenty();
    let seventh = offsets(&log)[6];
    let mut damaged = log.clone();
    damaged[seventh + 25] ^= 1;
    fs::write(place.file(".log"), &damaged).unwrap();
    let error = place.refused();
    let text = error.to_string();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{text}");
    let log_name = place.file(".log").display().to_string();
    for word in ["AppendLogCorrupt", &log_name, "entry 7", &format!("byte {seventh}"), "backup"] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    fs::write(place.file(".log"), &log).unwrap();
    assert!(get(&place.open().unwrap(), key(19)).is_some());
}

#[test]
fn files_of_another_kind_are_refused_as_such() {
    let place = Place::new();
    fs::write(place.path(), "{\"records\":[]}".repeat(9)).unwrap();
    assert!(place.refused().to_string().contains("not a snapshot"));
    fs::remove_file(place.path()).unwrap();
    fs::write(place.file(".log"), "text\n".repeat(20)).unwrap();
    let error = place.refused();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{error}");
    fs::remove_file(place.file(".log")).unwrap();
    // An append log of somebody else: whole, but not of our entries.
    let mut log = botmesh_append_log::AppendLog::open(place.path(), Default::default()).unwrap();
    log.append(b"\x01another program's").unwrap();
    drop(log);
    let error = place.refused();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("not written by this program"), "{error}");
}

#[test]
fn entries_of_a_later_version_are_refused() {
    let place = Place::new();
    let mut log = botmesh_append_log::AppendLog::open(place.path(), Default::default()).unwrap();
    log.append(b"\x02whatever it will be").unwrap();
    drop(log);
    let error = place.refused();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("upgrade"), "{error}");
}

#[test]
fn a_folder_and_a_path_without_a_name_are_refused() {
    let place = Place::new();
    fs::create_dir(place.path()).unwrap();
    let error = place.open().unwrap_err();
    assert!(error.to_string().contains(&place.path().display().to_string()), "{error}");
    let error = block_on(botmesh::FileDurability::open("/")).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misuse, "{error}");
}
