//! A person at the desk, through pipes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::child::Place;

struct Session {
    child: Child,
    replies: BufReader<ChildStdout>,
}

impl Session {
    fn start(place: &Place) -> Self {
        let mut child = place.command().stdin(Stdio::piped()).spawn().expect("the example starts");
        let replies = BufReader::new(child.stdout.take().expect("the output is piped"));
        Self { child, replies }
    }

    fn say(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().expect("the input is piped");
        writeln!(input, "{text}").and_then(|()| input.flush()).expect("the desk reads");
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the desk writes");
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "the signal cannot be sent");
    }
}

#[test]
fn the_first_message_is_answered_within_a_second_of_start() {
    let place = Place::new();
    let mut session = Session::start(&place);
    let start = place.elapsed();
    session.say("hi");
    assert!(session.reply().starts_with("Hello!"));
    assert!(place.elapsed() - start < Duration::from_secs(1), "it took {:?}", place.elapsed() - start);
    drop(session.child.stdin.take());
    assert!(place.wait(&mut session.child).success());
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
fn asked_to_end_it_finishes_and_ends_well() {
    for signal in ["INT", "TERM"] {
        let place = Place::new();
        let mut session = Session::start(&place);
        session.say("hi");
        assert!(session.reply().starts_with("Hello!"));
        session.signal(signal);
        let status = place.wait(&mut session.child);
        assert!(status.success(), "{signal}: {status}\n{}", place.complaints());
        let mut session = Session::start(&place);
        session.say("list");
        assert!(session.reply().starts_with("You have no appointments."));
        drop(session.child.stdin.take());
        assert!(place.wait(&mut session.child).success());
    }
}

#[test]
fn help_tells_what_can_be_said() {
    let place = Place::new();
    let output = place.command().arg("--help").output().expect("the example starts");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && help.contains("--data <DIR>") && help.contains("--from <FILE>"),
        "{help}"
    );
    let mut session = Session::start(&place);
    session.say("what now?");
    assert!(session.reply().contains("`book`"));
}
