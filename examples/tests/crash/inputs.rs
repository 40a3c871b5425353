//! What cannot work is refused in words that name the thing and what to do, and nothing is half applied.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use botmesh::Durability;
use rusqlite::{Connection, OpenFlags};

use crate::child::Place;

/// Runs the desk on what is there; it must fail, say all of `words`, and change neither replies nor data.
pub(crate) fn refused(place: &Place, command: &mut Command, words: &[&str]) {
    let before = kept(place);
    let known = place.complaints().len();
    let mut child = command.spawn().expect("the example starts");
    let status = place.wait(&mut child);
    let complaint = place.complaints().split_off(known);
    assert!(!status.success(), "it went on\n{complaint}");
    for word in words {
        assert!(complaint.contains(word), "`{word}` is not in: {complaint}");
    }
    assert_eq!(kept(place), before, "something was changed\n{complaint}");
}

/// The replies, and every row of the database that says what was handled.
fn kept(place: &Place) -> (Vec<u8>, Vec<String>) {
    (place.bytes("out"), rows(&place.path("data/appointments.db")).unwrap_or_default())
}

fn rows(database: &Path) -> rusqlite::Result<Vec<String>> {
    let database = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut rows = Vec::new();
    for (table, columns) in [
        ("durable", "hex(key) || ' ' || version || ' ' || hex(value)"),
        ("user_values", "user || ' ' || name || ' ' || value"),
        ("checkpoints", "conversation || ' ' || revision"),
    ] {
        let mut select = database.prepare(&format!("SELECT {columns} FROM {table} ORDER BY 1"))?;
        for row in select.query_map([], |row| row.get::<_, String>(0))? {
            rows.push(row?);
        }
    }
    Ok(rows)
}

pub(crate) fn place_with_messages(messages: &[u8]) -> Place {
    let place = Place::new();
    place.write("in", messages);
    place
}

/// Whatever was wrong, a run without it answers everything.
pub(crate) fn works_afterwards(place: &Place, replies: usize) {
    place.succeed(&mut place.transcript("in", "out"));
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
    refused(
        &place,
        &mut place.transcript("in", "out"),
        &["appointments.db", "not an SQLite database", "another path"],
    );
    assert_eq!(place.bytes("data/appointments.db"), b"not a database ".repeat(1000));
    fs::remove_file(place.path("data/appointments.db")).expect("the file");
    works_afterwards(&place, 1);
}

#[test]
fn a_newer_database_is_left_alone() {
    let place = place_with_messages(b"ana\thi\n");
    works_afterwards(&place, 1);
    let file = place.path("data/appointments.db");
    let set_version = |version: u32| {
        let database = Connection::open(&file).expect("the database");
        let before: u32 = database.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("a version");
        database.pragma_update(None, "user_version", version).expect("another version");
        before
    };
    let ours = set_version(999);
    place.write("in", "ana\thi\nana\tlist\n");
    let bytes = place.bytes("data/appointments.db");
    refused(&place, &mut place.transcript("in", "out"), &["appointments.db", "999", "upgrade"]);
    assert!(place.bytes("data/appointments.db") == bytes, "the file was changed");
    set_version(ours);
    works_afterwards(&place, 2);
}

#[test]
fn a_directory_in_place_of_the_database_is_named() {
    let place = place_with_messages(b"ana\thi\n");
    fs::create_dir_all(place.path("data/appointments.db")).expect("a folder");
    refused(&place, &mut place.transcript("in", "out"), &["appointments.db is a directory", "such as"]);
    fs::remove_dir(place.path("data/appointments.db")).expect("the folder");
    works_afterwards(&place, 1);
}

#[test]
fn a_file_in_place_of_the_folder_is_named() {
    let place = place_with_messages(b"ana\thi\n");
    fs::write(place.path("data"), "").expect("a file");
    let folder = place.path("data").display().to_string();
    refused(&place, &mut place.transcript("in", "out"), &[&folder, "choose a path"]);
    fs::remove_file(place.path("data")).expect("the file");
    works_afterwards(&place, 1);
}

/// Lines that are no message, and what is said of them.
fn bad_lines() -> [(Vec<u8>, &'static str); 4] {
    [
        ([b"ana\t".as_slice(), &[b'x'; 2 << 20]].concat(), "split it"),
        (b"bob\t\xff\xfe".to_vec(), "UTF-8"),
        (b"no tab".to_vec(), "TAB"),
        (b"\tnobody".to_vec(), "chat"),
    ]
}

#[test]
fn a_bad_line_is_named_before_anything_is_handled() {
    for (bad, word) in bad_lines() {
        let place = place_with_messages(b"ana\thi\n");
        works_afterwards(&place, 1);
        place.write("in", [b"ana\thi\nana\tbook\n".as_slice(), &bad, b"\n"].concat());
        let line = format!("{}: line 3", place.path("in").display());
        refused(&place, &mut place.transcript("in", "out"), &[&line, word]);
        place.write("in", "ana\thi\nana\tbook\nana\tAna\n");
        works_afterwards(&place, 3);
    }
}

#[test]
fn a_bad_line_of_a_pipe_ends_it_after_what_came_before() {
    for (bad, word) in &bad_lines()[..2] {
        let place = place_with_messages(&[b"hi\nlist\n".as_slice(), bad, b"\nhi\n"].concat());
        let input = fs::File::open(place.path("in")).expect("the input");
        let output = place.command().stdin(Stdio::from(input)).output().expect("the example starts");
        let complaint = place.complaints();
        assert!(!output.status.success(), "it went on\n{complaint}");
        assert!(complaint.contains("line 3") && complaint.contains(word), "{complaint}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let said: Vec<_> = said.lines().filter(|line| !line.starts_with('(')).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("Hello!") && said[1].starts_with("You have no"), "{said:?}");
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
    refused(&place, place.command().arg("--to").arg(place.path("out")), &["--from"]);
    refused(&place, &mut place.transcript("nowhere", "out"), &["nowhere", "does not exist"]);
    refused(&place, &mut place.transcript("in", "no-folder/out"), &["no-folder/out", "create the folder"]);
    refused(&place, &mut place.transcript("in", "in"), &["two different files"]);
    refused(&place, place.command().args(["--instance", ""]), &["instance_id"]);
}

#[test]
fn unknown_config_fields_and_bad_durations_are_named() {
    let read = |json: &str| serde_json::from_str::<Durability>(json);
    let error = |json: &str| read(json).expect_err(json).to_string();
    for (json, field, known) in [
        (r#"{"inbocks": {}}"#, "`inbocks`", ["`inbox`", "`outbox`", "`poll`"]),
        (r#"{"inbox": {"leese": "15s"}}"#, "`leese`", ["`lease`", "`max_attempts`", "`backoff`"]),
        (r#"{"outbox": {"retires": 3}}"#, "`retires`", ["`retries`", "`inline_max`", "`on_ambiguous`"]),
        (r#"{"outbox": {"backoff": {"bass": 1}}}"#, "`bass`", ["`base`", "`cap`", "`jitter`"]),
    ] {
        let error = error(json);
        assert!(error.contains(field) && known.iter().all(|known| error.contains(known)), "{error}");
    }
    for (json, says) in [
        (r#"{"poll": "soon"}"#, "`soon`"),
        (r#"{"poll": ""}"#, "15s"),
        (r#"{"poll": "-1s"}"#, "`-1s`"),
        (r#"{"poll": -1}"#, "negative"),
        (r#"{"poll": 1.5}"#, "whole number"),
        (r#"{"poll": true}"#, "whole number"),
        (r#"{"outbox": {"on_ambiguous": "guess"}}"#, "`skip`"),
    ] {
        assert!(error(json).contains(says), "{}", error(json));
    }
    let poll = |json: &str| read(json).expect("a duration").poll;
    assert_eq!(poll(r#"{"poll": "15s"}"#), Duration::from_secs(15));
    assert_eq!(poll(r#"{"poll": "1500ms"}"#), poll(r#"{"poll": 1500}"#));
    let written = serde_json::to_string(&Durability::default()).expect("a configuration");
    assert_eq!(read(&written).expect("what was written").inbox.lease, Durability::default().inbox.lease);
}

#[cfg(not(feature = "redis"))]
#[test]
fn a_redis_server_without_the_feature_is_refused_with_the_command_that_has_it() {
    let place = Place::new();
    let mut command = place.bare_command();
    command.args(["--redis", "redis://127.0.0.1"]);
    let words = "cargo run --example appointments --features redis -- --redis redis://127.0.0.1";
    refused(&place, &mut command, &[words]);
}
