//! What a transcript reads.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::fs;
use std::path::PathBuf;

use botmesh_core::provider::{ConnectionState, Provider, Resolve};
use botmesh_terminal::Transcript;
use tempfile::TempDir;

use crate::support::{Answer, Recorder, block_on, never};

fn folder(input: &[u8]) -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("in"), folder.path().join("out"));
    fs::write(&from, input).unwrap();
    (folder, from, to)
}

fn owned(expected: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    expected.iter().map(|(event, chat, text)| ((*event).into(), (*chat).into(), (*text).into())).collect()
}

#[test]
fn the_number_of_the_line_is_the_event_so_that_reading_again_is_a_redelivery() {
    let (_folder, from, to) = folder(b"ana\thi\nben\ta\tb\r\n\nana\tnul \0 \\n\n \t\nana\tlast");
    let expected = owned(&[
        ("1", "ana", "hi"),
        ("2", "ben", "a\tb"),
        ("4", "ana", "nul \0 \\n"),
        ("5", " ", ""),
        ("6", "ana", "last"),
    ]);
    for _ in 0..2 {
        let transcript = Transcript::open(&from, &to).unwrap();
        assert_eq!(transcript.capabilities().resolve, Resolve::Lookup);
        let mut connection = transcript.connection();
        assert_eq!(*connection.borrow_and_update(), ConnectionState::Closed);
        let sink = Recorder::new(&[]);
        block_on(transcript.run(sink.clone(), never())).unwrap();
        assert_eq!(sink.taken(), expected);
        assert!(connection.has_changed().unwrap());
        assert_eq!(*connection.borrow_and_update(), ConnectionState::Closed);
    }
}

#[test]
fn a_bad_line_is_named_and_nothing_is_handed_over() {
    let long = [b"ana\t".to_vec(), vec![b'x'; 2 << 20], b"\n".to_vec()].concat();
    let chat = [vec![b'c'; 513], b"\thi\n".to_vec()].concat();
    let cases: [(&[u8], &str); 6] = [
        (b"no tab\n", "there is no TAB; write the chat, a TAB and the text"),
        (b"\tno chat\n", "there is no chat before the TAB; write the chat, a TAB and the text"),
        (&chat, "the chat is longer than 512 bytes; use a shorter name"),
        (b"ana\t\xc3\x28\n", "byte 5 of it is not valid UTF-8; convert the input to UTF-8"),
        (&long, "it is longer than 1 MiB; split it into shorter messages"),
        (b"   \n", "there is no TAB; write the chat, a TAB and the text"),
    ];
    for (bad, message) in cases {
        let good = b"ana\thi\n\n";
        let (_folder, from, to) = folder(&[good, bad].concat());
        let error = Transcript::open(&from, &to).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: line 3: {message}", from.display()));
        assert_eq!((error.path(), error.line()), (from.as_path(), Some(3)));
        assert!(!to.exists(), "nothing is begun");

        // The file may also go bad after it was opened.
        fs::write(&from, good).unwrap();
        let transcript = Transcript::open(&from, &to).unwrap();
        fs::write(&from, [good, bad].concat()).unwrap();
        let sink = Recorder::new(&[]);
        let error = block_on(transcript.run(sink.clone(), never())).unwrap_err();
        assert!(!error.retryable && error.detail.ends_with(message), "{error}");
        assert!(sink.taken().is_empty());
    }
    let (_folder, from, to) = folder("\u{feff}ana\thi\n".as_bytes());
    let error = Transcript::open(&from, &to).unwrap_err().to_string();
    assert!(
        error.ends_with("line 1: it begins with a byte order mark; save the file as UTF-8 without one"),
        "{error}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let (folder, from, to) = folder(b"ana\thi\n");
    let says = |path: PathBuf, problem: &str| {
        let error = Transcript::open(&path, &to).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {problem}", path.display()));
    };
    says(folder.path().join("missing"), "it does not exist; check the path");
    says(folder.path().to_owned(), "it is a folder; give a file");
    if cfg!(unix) {
        says("/dev/null".into(), "it is a pipe or a device; give a regular file");
    }
    let error = Transcript::open(&from, &from).unwrap_err().to_string();
    assert!(error.contains("both the transcript to read and the one to write"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, from, to) = folder(b"ana\thi\n");
    fs::set_permissions(&from, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&from).is_ok() {
        println!("not run: this user may read every file");
        return;
    }
    let error = Transcript::open(&from, &to).unwrap_err().to_string();
    assert!(error.contains("no permission to read it; change its permissions"), "{error}");
}

#[test]
fn a_line_that_was_not_journaled_is_handed_over_again() {
    let (_folder, from, to) = folder(b"ana\t1\nana\t2\nana\t3\n");
    let transcript = Transcript::open(&from, &to).unwrap();
    let sink = Recorder::new(&[Answer::Take, Answer::JournalFails]);
    let error = block_on(transcript.run(sink.clone(), never())).unwrap_err();
    assert!(error.retryable, "{error}");
    block_on(transcript.run(sink.clone(), never())).unwrap();
    assert_eq!(sink.texts(), ["1", "2", "3"]);
}

#[test]
fn stop_ends_the_run_at_once() {
    let (_folder, from, to) = folder(&b"ana\thi\n".repeat(10_000));
    let transcript = Transcript::open(&from, &to).unwrap();
    let sink = Recorder::new(&[Answer::Take, Answer::Hang]);
    let stop = never();
    block_on(async {
        let watch = async {
            sink.arrived.notified().await;
            stop.cancel();
        };
        let (ended, ()) = tokio::join!(transcript.run(sink.clone(), stop.clone()), watch);
        ended.unwrap();
    });
    assert_eq!(sink.taken().len(), 1);
}
