//! Lines that are piped in.

use std::io::{self, BufReader, Cursor, Read, Write};
use std::sync::Arc;

use botmesh_core::content::{Button, Content, ContentBody};
use botmesh_core::entropy::SeededEntropy;
use botmesh_core::error::{ErrorClass, Phase};
use botmesh_core::id::ChatId;
use botmesh_core::provider::{ConnectionState, InboundSink, Provider, Resolve, SendRequest};
use botmesh_terminal::Terminal;

use crate::support::{Answer, Paper, Recorder, block_on, never};

fn over(input: &[u8]) -> Terminal {
    Terminal::over(Cursor::new(input.to_vec()), io::sink())
}

#[test]
fn each_line_is_a_text_and_run_ends_with_the_input() {
    let terminal = over(b"hi\r\n\n   \n a\0b\tc \nlast").with_chat("ana");
    let sink = Recorder::new(&[]);
    block_on(terminal.run(sink.clone(), never())).unwrap();
    assert_eq!(sink.texts(), ["hi", " a\0b\tc ", "last"]);
    let taken = sink.taken.lock().unwrap();
    assert!(taken.iter().all(|inbound| inbound.chat.as_str() == "ana" && !inbound.group));
    assert_eq!(terminal.capabilities().resolve, Resolve::Never);
}

#[test]
fn event_ids_are_new_at_each_start() {
    let mut ids = Vec::new();
    for _ in 0..2 {
        let sink = Recorder::new(&[]);
        block_on(over(b"a\nb\n").run(sink.clone(), never())).unwrap();
        ids.extend(sink.taken().into_iter().map(|(event, _, _)| event));
    }
    let seeded = over(b"a\n").with_entropy(Arc::new(SeededEntropy::new(1)));
    let sink = Recorder::new(&[]);
    block_on(seeded.run(sink.clone(), never())).unwrap();
    assert_eq!(sink.taken()[0].0, "910a2dec89025cc1-1");
    ids.extend(sink.taken().into_iter().map(|(event, _, _)| event));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5, "{ids:?}");
}

#[test]
fn a_bad_line_is_named_after_everything_before_it_was_taken() {
    let mut long = b"one\ntwo\n".to_vec();
    long.extend(vec![b'x'; 2 << 20]);
    long.extend(b"\nfour\n");
    let cases = [
        (long, "line 3 of the input: it is longer than 1 MiB; split it into shorter messages"),
        (
            b"one\ntwo\nab\xff\nfour\n".to_vec(),
            "line 3 of the input: byte 3 of it is not valid UTF-8; convert the input to UTF-8",
        ),
    ];
    for (input, message) in cases {
        let sink = Recorder::new(&[]);
        let error = block_on(over(&input).run(sink.clone(), never())).unwrap_err();
        assert_eq!((error.class, error.retryable), (ErrorClass::Rejected, false));
        assert_eq!(error.detail, message);
        assert_eq!(sink.texts(), ["one", "two"]);
    }
}

#[test]
fn the_longest_line_is_taken_and_one_without_end_is_not_kept_in_memory() {
    for end in ["", "\n", "\r\n"] {
        let text = "x".repeat(1 << 20);
        let sink = Recorder::new(&[]);
        block_on(over(format!("{text}{end}").as_bytes()).run(sink.clone(), never())).unwrap();
        assert_eq!(sink.texts(), [text.as_str()]);
    }
    let endless = Terminal::over(BufReader::new(io::repeat(b'x')), io::sink());
    let error = block_on(endless.run(Recorder::new(&[]), never())).unwrap_err();
    assert!(error.detail.starts_with("line 1 of the input: it is longer"), "{error}");
}

/// Fails after some bytes.
struct Broken(&'static [u8]);

impl Read for Broken {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(io::Error::other("unplugged"));
        }
        self.0.read(buffer)
    }
}

#[test]
fn an_input_that_fails_is_an_error_and_not_an_end() {
    let terminal = Terminal::over(BufReader::new(Broken(b"one\ntw")), io::sink());
    let sink = Recorder::new(&[]);
    let error = block_on(terminal.run(sink.clone(), never())).unwrap_err();
    assert!(error.detail.contains("line 2 of the input: it cannot be read"), "{error}");
    assert_eq!(error.source.unwrap().to_string(), "unplugged");
    assert_eq!(sink.texts(), ["one"]);
}

#[test]
fn stop_ends_the_run_while_the_input_is_silent() {
    let (input, _still_open) = io::pipe().unwrap();
    let terminal = Terminal::over(BufReader::new(input), io::sink());
    let mut connection = terminal.connection();
    assert_eq!(*connection.borrow_and_update(), ConnectionState::Closed);
    let stop = never();
    block_on(async {
        let watch = async {
            connection.changed().await.unwrap();
            assert_eq!(*connection.borrow_and_update(), ConnectionState::Open);
            stop.cancel();
        };
        let (ended, ()) = tokio::join!(terminal.run(Recorder::new(&[]), stop.clone()), watch);
        ended.unwrap();
    });
    assert_eq!(*connection.borrow_and_update(), ConnectionState::Closed);
}

#[test]
fn stop_ends_the_run_while_the_bot_has_no_room() {
    let terminal = over(b"one\ntwo\n");
    let sink = Recorder::new(&[Answer::Hang]);
    let stop = never();
    block_on(async {
        let full = async {
            sink.arrived.notified().await;
            stop.cancel();
        };
        let (ended, ()) = tokio::join!(terminal.run(sink.clone(), stop.clone()), full);
        ended.unwrap();
    });
    assert!(sink.taken().is_empty());
}

#[test]
fn a_line_that_was_not_journaled_is_handed_over_again() {
    let terminal = over(b"one\ntwo\nthree\n");
    let sink = Recorder::new(&[Answer::Take, Answer::JournalFails, Answer::Take, Answer::Stopping]);
    let error = block_on(terminal.run(sink.clone(), never())).unwrap_err();
    assert!(error.retryable, "{error}");
    block_on(terminal.run(sink.clone(), never())).unwrap();
    assert_eq!(sink.texts(), ["one", "two"], "the bot is stopping");
    block_on(terminal.run(sink.clone(), never())).unwrap();
    assert_eq!(sink.texts(), ["one", "two", "three"]);
    let numbers: Vec<_> = sink.taken().iter().map(|(event, _, _)| event[17..].to_owned()).collect();
    assert_eq!(numbers, ["1", "2", "3"]);
}

#[test]
fn an_event_that_can_never_be_taken_ends_the_run() {
    let error = block_on(over(b"one\n").run(Recorder::new(&[Answer::Invalid]), never())).unwrap_err();
    assert!(!error.retryable && error.detail.contains("an id is too long"), "{error}");
    for name in ["", &"x".repeat(513)] {
        let error = block_on(over(b"one\n").with_chat(name).run(Recorder::new(&[]), never())).unwrap_err();
        assert!(error.detail.contains("1 to 512 bytes"), "{error}");
    }
}

#[test]
fn only_one_run_at_a_time() {
    let terminal = over(b"one\n");
    let sink = Recorder::new(&[Answer::Hang]);
    let stop = never();
    block_on(async {
        let second = async {
            sink.arrived.notified().await;
            let error = terminal.run(sink.clone(), never()).await.unwrap_err();
            assert!(error.detail.contains("already running"), "{error}");
            assert_eq!(*terminal.connection().borrow(), ConnectionState::Open);
            stop.cancel();
        };
        let (first, ()) = tokio::join!(terminal.run(sink.clone(), stop.clone()), second);
        first.unwrap();
    });
}

fn send(terminal: &Terminal, chat: &str, content: &Content) -> Result<String, (ErrorClass, Phase)> {
    let chat = ChatId::from(chat);
    let sent = block_on(terminal.send(SendRequest::new(&chat, content)));
    sent.map(|receipt| receipt.message.to_string()).map_err(|error| (error.class, error.phase))
}

#[test]
fn replies_are_written_as_they_are_and_say_whose_they_are() {
    let paper = Paper::default();
    let terminal = Terminal::over(io::empty(), paper.clone());
    let first = send(&terminal, "you", &Content::text("hi\x1b[2J\nthere")).unwrap();
    let second = send(&terminal, "ben", &Content::text("welcome back")).unwrap();
    send(&terminal, "you", &Content::text("ok?").with_buttons([Button::new("y", "Yes")])).unwrap();
    assert_eq!(paper.text(), "hi\x1b[2J\nthere\nben: welcome back\nok?\n1) Yes\n");
    assert_ne!(first, second);
}

#[test]
fn a_reply_that_cannot_be_written_is_not_called_sent() {
    let terminal = Terminal::over(io::empty(), Paper::with_room(3));
    let unknown = Err((ErrorClass::Transient, Phase::Unknown));
    assert_eq!(send(&terminal, "you", &Content::text("hello")), unknown, "a part is out");
    let nothing = Err((ErrorClass::Transient, Phase::NotWritten));
    assert_eq!(send(&terminal, "you", &Content::text("hello")), nothing);
}

#[test]
fn a_program_that_reads_the_choices_can_press_them() {
    let (input, mut typed) = io::pipe().unwrap();
    let terminal = Terminal::over(BufReader::new(input), io::sink());
    let sink = Recorder::new(&[]);
    let say = async |text: &[u8], content: Option<Content>| {
        if let Some(content) = content {
            terminal.send(SendRequest::new(&"you".into(), &content)).await.unwrap();
        }
        (&typed).write_all(text).unwrap();
        sink.arrived.notified().await;
    };
    let yes_no = || Content::text("Sure?").with_buttons([Button::new("y", "Yes"), Button::new("n", "No")]);
    let thumb = Content::from(ContentBody::Reaction { message: "m".into(), emoji: Some("👍".into()) });
    let elsewhere = async || {
        terminal.send(SendRequest::new(&"ben".into(), &Content::text("x"))).await.unwrap();
    };
    let stop = never();
    block_on(async {
        let talk = async {
            say(b"1\n", None).await;
            say(b"2\n", Some(yes_no())).await;
            elsewhere().await;
            say(b"yes\n", Some(thumb)).await;
            say(b"3\n", None).await;
            say(b"1\n", Some(Content::text("How many?"))).await;
            stop.cancel();
        };
        let sink: Arc<dyn InboundSink> = sink.clone();
        let (ended, ()) = tokio::join!(terminal.run(sink, stop.clone()), talk);
        ended.unwrap();
    });
    assert_eq!(sink.texts(), ["1", "press n", "press y", "3", "1"]);
    typed.flush().unwrap();
}
