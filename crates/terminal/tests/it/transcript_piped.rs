//! What a transcript takes over a pipe, and what it says of it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::io::Cursor;

use botmesh_core::provider::Provider;
use botmesh_terminal::Transcript;

use crate::support::{Answer, Paper, Recorder, block_on, never};

fn piped(input: &str) -> (tempfile::TempDir, Transcript, Paper) {
    let folder = tempfile::tempdir().unwrap();
    let taken = Paper::default();
    let input = Cursor::new(input.to_owned());
    let transcript = Transcript::piped(input, taken.clone(), folder.path().join("out")).unwrap();
    (folder, transcript, taken)
}

#[test]
fn each_message_has_its_own_id_which_is_told_when_it_is_taken_over() {
    let (_folder, transcript, taken) = piped("7\tana\thi\r\n\nm-1\tben\ta\tb\n7\tana\thi");
    let sink = Recorder::new(&[]);
    block_on(transcript.run(sink.clone(), never())).unwrap();
    let expected = [("7", "ana", "hi"), ("m-1", "ben", "a\tb"), ("7", "ana", "hi")];
    assert_eq!(sink.taken(), expected.map(|(id, chat, text)| (id.into(), chat.into(), text.into())));
    assert_eq!(taken.text(), "7\nm-1\n7\n");
    let error = block_on(transcript.run(sink, never()));
    assert!(error.is_ok(), "the end of the input stays the end: {error:?}");
}

#[test]
fn what_is_not_taken_over_is_not_told() {
    let (_folder, transcript, taken) = piped("1\tana\tone\n2\tana\ttwo\n");
    let sink = Recorder::new(&[Answer::Take, Answer::JournalFails]);
    let error = block_on(transcript.run(sink.clone(), never())).unwrap_err();
    assert!(error.retryable, "{error}");
    assert_eq!(taken.text(), "1\n");
    block_on(transcript.run(sink.clone(), never())).unwrap();
    assert_eq!((sink.texts(), taken.text()), (vec!["one".into(), "two".into()], "1\n2\n".into()));
}

#[test]
fn a_bad_line_is_named_and_what_came_before_it_is_taken_over() {
    let long = format!("{}\tana\thi", "x".repeat(513));
    for (line, problem) in [
        ("hi", "there is no TAB; write the id, a TAB, the chat, a TAB and the text"),
        ("2\thi", "there is no TAB; write the id, a TAB, the chat, a TAB and the text"),
        ("\tana\thi", "there is no id before the TAB; write the id, a TAB, the chat, a TAB and the text"),
        ("2\t\thi", "there is no chat before the TAB; write the id, a TAB, the chat, a TAB and the text"),
        (&long, "the id is longer than 512 bytes; use a shorter name"),
    ] {
        let (_folder, transcript, taken) = piped(&format!("1\tana\thi\n{line}\n3\tana\thi\n"));
        let sink = Recorder::new(&[]);
        let error = block_on(transcript.run(sink.clone(), never())).unwrap_err();
        assert!(!error.retryable, "{error}");
        assert!(error.detail.ends_with(&format!("the piped messages: line 2: {problem}")), "{error}");
        assert_eq!((sink.texts(), taken.text()), (vec!["hi".into()], "1\n".into()));
    }
}

#[test]
fn nobody_needs_to_listen() {
    let folder = tempfile::tempdir().unwrap();
    let input = Cursor::new("1\tana\tone\n2\tana\ttwo\n");
    let transcript = Transcript::piped(input, Paper::with_room(0), folder.path().join("out")).unwrap();
    let sink = Recorder::new(&[]);
    block_on(transcript.run(sink.clone(), never())).unwrap();
    assert_eq!(sink.texts(), ["one", "two"]);
}
