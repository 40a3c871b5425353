//! A person at the desk, through pipes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::child::Place;

/// The example with its input and output piped.
pub(crate) struct Session {
    pub(crate) child: Child,
    replies: BufReader<ChildStdout>,
}

impl Session {
    pub(crate) fn start(place: &Place) -> Self {
        let mut child = place.command().stdin(Stdio::piped()).spawn().expect("the example starts");
        let replies = BufReader::new(child.stdout.take().expect("the output is piped"));
        Self { child, replies }
    }

    pub(crate) fn say(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().expect("the input is piped");
        writeln!(input, "{text}").and_then(|()| input.flush()).expect("the desk reads");
    }

    pub(crate) fn reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the desk writes");
        line.trim_end().to_owned()
    }

    /// Ends the input, and returns what is still said until the output ends.
    pub(crate) fn rest(&mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.replies.read_to_string(&mut rest).expect("the desk writes text");
        rest
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "the signal cannot be sent");
    }
}

#[test]
fn the_first_message_is_answered_within_a_second_of_start() {
    let place = Place::new();
    // On a new database, and on one that is there.
    for _ in 0..2 {
        let start = place.elapsed();
        let mut session = Session::start(&place);
        session.say("hi");
        assert!(session.reply().starts_with("Hello!"));
        let took = place.elapsed() - start;
        println!("the first reply came after {took:.1?}");
        assert!(took < Duration::from_secs(1), "the first reply came after {took:.1?}");
        assert_eq!(session.rest(), "");
        assert!(place.wait(&mut session.child).success());
    }
}

#[test]
fn killed_in_the_middle_of_a_booking_it_goes_on_where_it_was() {
    let place = Place::new();
    let mut session = Session::start(&place);
    for (say, reply) in [("book", "What is your name?"), ("Ana", "Which day suits you, Monday to Friday?")] {
        session.say(say);
        assert_eq!(session.reply(), reply);
    }
    session.child.kill().expect("the desk can be killed");
    session.child.wait().expect("the desk can be waited for");
    let mut session = Session::start(&place);
    session.say("tuesday");
    assert_eq!(session.reply(), "At what hour, from 9 to 17?");
    drop(session.child.stdin.take());
    assert!(place.wait(&mut session.child).success());
}

#[test]
fn the_end_of_the_input_waits_for_every_answer() {
    const LINES: usize = 300;
    let place = Place::new();
    let mut session = Session::start(&place);
    session.say(&vec!["hi"; LINES].join("\n"));
    assert_eq!(session.rest().lines().filter(|line| line.starts_with("Hello!")).count(), LINES);
    assert!(place.wait(&mut session.child).success());
}

#[test]
fn help_tells_what_can_be_said() {
    let place = Place::new();
    let output = place.command().arg("--help").output().expect("the example starts");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success());
    for word in [
        "--data <DIR>",
        "--journals <FILE>",
        "--redis <URL>",
        "--lease <TIME>",
        "--from <FILE>",
        "--to <FILE>",
        "--instance <NAME>",
    ] {
        assert!(help.contains(word), "`{word}` is not in: {help}");
    }
    assert!(!place.path("data").exists());
    let mut session = Session::start(&place);
    session.say("what now?");
    assert!(session.reply().contains("`book`"));
    assert_eq!(session.rest(), "");
    assert!(place.wait(&mut session.child).success());
}

#[test]
fn help_of_the_command_tells_what_to_type() {
    let place = Place::new();
    let output = place.command().arg("--help").output().expect("the example starts");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    for word in ["`book`", "`list`", "`cancel 1`"] {
        assert!(help.contains(word), "`{word}` is not in: {help}");
    }
}
