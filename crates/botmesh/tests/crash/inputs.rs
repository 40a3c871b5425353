//! What cannot work is refused in words that name the thing and what to do, and nothing is half applied.

use std::fs;
use std::path::Path;
use std::process::Command;

use botmesh::Durability;

use crate::child::Place;

/// Runs the desk on what is there; it must fail, say all of `words`, and send nothing.
fn refused(place: &Place, command: &mut Command, words: &[&str]) {
    let mut child = command.spawn().expect("the example starts");
    let status = place.wait(&mut child);
    let complaint = place.complaints();
    assert!(!status.success(), "it went on\n{complaint}");
    for word in words {
        assert!(complaint.contains(word), "`{word}` is not in: {complaint}");
    }
    assert_eq!(place.reply_count("out"), 0);
}

fn place_with_messages(messages: &[u8]) -> Place {
    let place = Place::new();
    fs::write(place.path("in"), messages).expect("the transcript can be written");
    place
}

/// Whatever was wrong, a run without it answers everything.
fn works_afterwards(place: &Place, replies: usize) {
    let mut child = place.transcript("in", "out").spawn().expect("the example starts");
    let status = place.wait(&mut child);
    assert!(status.success(), "{status}\n{}", place.complaints());
    assert_eq!(place.reply_count("out"), replies);
}

fn with_database(bytes: &[u8]) -> Place {
    let place = place_with_messages(b"ana\thi\n");
    fs::create_dir(place.path("data")).expect("a folder");
    fs::write(place.path("data/appointments.db"), bytes).expect("a file");
    place
}

#[test]
fn a_file_that_is_no_database_is_left_alone() {
    let place = with_database(&b"not a database ".repeat(1000));
    refused(&place, &mut place.transcript("in", "out"), &["appointments.db", "database"]);
    assert_eq!(fs::read(place.path("data/appointments.db")).ok(), Some(b"not a database ".repeat(1000)));
}

#[test]
fn a_newer_database_is_left_alone() {
    let place = place_with_messages(b"ana\thi\n");
    works_afterwards(&place, 1);
    let file = place.path("data/appointments.db");
    let mut bytes = fs::read(&file).expect("the database");
    // The user version in the header of SQLite's file format.
    bytes[60..64].copy_from_slice(&999_u32.to_be_bytes());
    fs::write(&file, &bytes).expect("the database");
    fs::remove_file(place.path("out")).expect("the replies");
    refused(&place, &mut place.transcript("in", "out"), &["appointments.db", "999"]);
    assert_eq!(fs::read(&file).ok(), Some(bytes));
}

#[test]
fn a_directory_in_place_of_the_database_is_named() {
    let place = place_with_messages(b"ana\thi\n");
    fs::create_dir_all(place.path("data/appointments.db")).expect("a folder");
    refused(&place, &mut place.transcript("in", "out"), &["appointments.db", "director"]);
}

#[test]
fn a_file_in_place_of_the_folder_is_named() {
    let place = place_with_messages(b"ana\thi\n");
    fs::write(place.path("data"), "").expect("a file");
    refused(&place, &mut place.transcript("in", "out"), &["data"]);
    fs::remove_file(place.path("data")).expect("the file");
    works_afterwards(&place, 1);
}

#[test]
fn a_bad_line_is_named_before_anything_is_handled() {
    let long = [b"ana\thi\nana\t".as_slice(), &[b'x'; 2 << 20], b"\n"].concat();
    let cases: [(&[u8], &str); 4] = [
        (&long, "line 2"),
        (b"ana\thi\nbob\t\xff\xfe\n", "line 2"),
        (b"ana\thi\nno tab\n", "line 2"),
        (b"ana\thi\n\tnobody\n", "line 2"),
    ];
    for (input, line) in cases {
        let place = place_with_messages(input);
        let file = place.path("in");
        refused(&place, &mut place.transcript("in", "out"), &[&file.display().to_string(), line]);
        fs::write(&file, "ana\thi\n").expect("the transcript can be written");
        works_afterwards(&place, 1);
    }
}

#[test]
fn nul_bytes_are_text() {
    let place = place_with_messages(b"ana\tbook\nana\tA\0na\nana\tmon\nana\t9\n");
    works_afterwards(&place, 4);
    let replies = place.replies("out");
    assert_eq!(replies[3].2, "A\0na on Monday at 9:00. Shall I book it?\n1) Yes\n2) No");
}

#[test]
fn unknown_flags_and_missing_files_are_named() {
    let place = place_with_messages(b"");
    refused(&place, place.command().arg("--from-file"), &["--from-file", "--help"]);
    refused(&place, place.command().arg("--from").arg(place.path("in")), &["--to"]);
    refused(&place, &mut place.transcript("nowhere", "out"), &["nowhere"]);
}

#[test]
fn unknown_config_fields_and_bad_durations_are_named() {
    let error = |json: &str| serde_json::from_str::<Durability>(json).expect_err(json).to_string();
    let unknown = error(r#"{"outbox": {"retires": 3}}"#);
    assert!(unknown.contains("`retires`") && unknown.contains("`retries`"), "{unknown}");
    assert!(error(r#"{"poll": "soon"}"#).contains("soon"));
    assert!(error(r#"{"poll": -1}"#).contains("negative"));
    let text: Durability = serde_json::from_str(r#"{"poll": "1500ms"}"#).expect("a duration as text");
    let number: Durability = serde_json::from_str(r#"{"poll": 1500}"#).expect("a duration in milliseconds");
    assert_eq!(text.poll, number.poll);
}

/// A small file system of its own; `None`, told, where this user may not mount one.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(path: &'a Path, options: &str) -> Option<Self> {
        fs::create_dir_all(path).expect("a folder");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(path));
        }
        println!("not run: mounting a tmpfs is not permitted here; run the tests as root");
        None
    }

    fn remount(&self, options: &str) {
        let status = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(self.0).status();
        assert!(status.is_ok_and(|status| status.success()), "the file system cannot be mounted again");
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_read_only_folder_is_named() {
    let place = place_with_messages(b"ana\thi\n");
    let data = place.path("data");
    let Some(disk) = SmallDisk::mount(&data, "size=4m,ro") else { return };
    refused(&place, &mut place.transcript("in", "out"), &["appointments.db"]);
    disk.remount("rw");
    works_afterwards(&place, 1);
}

#[test]
fn a_full_disk_loses_nothing() {
    const LINES: usize = 400;
    let messages: String = (0..LINES).map(|n| format!("chat-{}\thi\n", n % 20)).collect();
    let place = place_with_messages(messages.as_bytes());
    let data = place.path("data");
    let Some(disk) = SmallDisk::mount(&data, "size=400k") else { return };
    let mut child = place.transcript("in", "out").spawn().expect("the example starts");
    place.wait_for("a complaint of the full disk", || {
        let full = place.complaints().contains("full") || place.complaints().contains("space");
        (full || child.try_wait().expect("the child can be waited for").is_some()).then_some(())
    });
    child.kill().expect("the child can be killed");
    child.wait().expect("the child can be waited for");
    assert!(place.reply_count("out") < LINES, "the disk was not full");
    disk.remount("size=64m");
    works_afterwards(&place, LINES);
    let replies = place.replies("out");
    let keys: std::collections::HashSet<_> = replies.iter().map(|(key, ..)| key).collect();
    assert_eq!(keys.len(), LINES);
}
