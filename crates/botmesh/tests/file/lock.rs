//! Who may open the files.

use std::fs;
use std::io::{BufRead, BufReader};

use botmesh::core::error::StoreErrorKind;

use crate::tools::{Place, child, close, commit, create, get};

#[test]
fn i04_a_lock_file_of_process_one_on_another_host_keeps_nobody_out() {
    let place = Place::new();
    fs::write(place.file(".lock"), "pid=1\nhost=old\n").unwrap();
    commit(&place.open().unwrap(), create("k", "value"));
}

#[test]
fn i04_a_second_opening_in_the_same_process_is_refused_until_the_first_is_closed() {
    let place = Place::new();
    let file = place.open().unwrap();
    commit(&file, create("k", "value"));
    let error = place.open().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("in this process"), "{error}");
    commit(&file, create("goes on", "value"));
    close(&file);
    assert!(get(&place.open().unwrap(), "goes on").is_some());
}

#[test]
fn i04_a_second_live_process_is_refused_until_the_first_is_gone() {
    let place = Place::new();
    let mut process = child(&[], "hold", &place.path()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with("open")), "the child did not open the journals");
    let error = place.open().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains(&process.id().to_string()), "{error}");
    process.kill().unwrap();
    process.wait().unwrap();
    commit(&place.open().unwrap(), create("k", "value"));
}

#[test]
fn the_files_can_be_read_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let file = place.open().unwrap();
    commit(&file, create("k", "value"));
    close(&file);
    for suffix in ["", ".log", ".lock"] {
        let mode = fs::metadata(place.file(suffix)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{suffix}");
    }
}
