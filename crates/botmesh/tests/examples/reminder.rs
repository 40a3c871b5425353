//! The reminders of somebody whose bot is killed again and again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::Typed;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Session {
    typed: Typed,
    lines: Receiver<String>,
}

impl Session {
    fn start(folder: &Path) -> Self {
        let data = folder.join("reminder.db");
        let mut typed = Typed::start("reminder", &["--data", data.to_str().expect("a path in Unicode")]);
        let output = BufReader::new(typed.0.stdout.take().expect("its output"));
        let (says, lines) = channel();
        // It ends with the output.
        let read = move || output.lines().map_while(Result::ok).try_for_each(|line| says.send(line));
        std::thread::Builder::new().name("output".to_owned()).spawn(read).expect("a thread");
        Self { typed, lines }
    }

    /// Types a line and waits for an answer that contains `wanted`.
    fn say(&mut self, text: &str, wanted: &str) -> String {
        self.typed.types(&format!("{text}\n"));
        self.hear(wanted)
    }

    fn hear(&mut self, wanted: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("it never said {wanted:?}: {error}"));
            if line.contains(wanted) {
                return line;
            }
        }
    }

    /// Lists until nothing waits any more.
    fn until_nothing_waits(&mut self) {
        let none = (0..10_000).any(|_| self.say("list", "").starts_with("You have no reminders"));
        assert!(none, "something waits for ever");
    }

    /// Kills it with SIGKILL. Returns what it had said in the meantime.
    fn kill(mut self) -> String {
        self.typed.0.kill().expect("it can be killed");
        self.rest()
    }

    /// Ends its input and returns what it says until it ends.
    fn end(mut self) -> String {
        drop(self.typed.0.stdin.take());
        let rest = self.rest();
        assert!(self.typed.0.wait().expect("an end").success(), "{rest}");
        rest
    }

    fn rest(&self) -> String {
        self.lines.iter().collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn a_reminder_comes_once_though_the_bot_is_killed_between_asking_and_its_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut session = Session::start(folder.path());
    session.say("zone madrid", "Europe/Madrid");
    session.say("remind me in 5s to stretch", "1. On ");
    assert_eq!(session.kill(), "", "not yet");
    // It is killed before it comes, and after it.
    let mut session = Session::start(folder.path());
    session.say("list", "1. on ");
    session.hear("Reminder of ");
    session.until_nothing_waits();
    session.kill();
    let mut session = Session::start(folder.path());
    session.say("remind me in 3 seconds to sleep", "2. On ");
    session.say("cancel 2", "Cancelled: sleep");
    session.say("remind me in 4 seconds to sit down", "3. On ");
    let next = session.hear("Reminder of ");
    assert!(next.ends_with(": sit down"), "{next}");
    let rest = session.end();
    assert!(!rest.contains("Reminder of"), "{rest}");
}

#[test]
fn a_daily_reminder_is_kept_until_it_is_cancelled() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut session = Session::start(folder.path());
    let utc = session.say("remind me at 8:30 to water the plants", "1. Every day at 08:30");
    assert!(utc.contains("`zone Madrid`") && utc.ends_with(": water the plants"), "{utc}");
    session.say("zone Europe/Madrid", "Europe/Madrid");
    let daily = session.say("/remind 8.05 pm water the cat", "2. Every day at 20:05, first on ");
    assert!(daily.ends_with(" (Europe/Madrid): water the cat"), "{daily}");
    session.kill();
    let mut session = Session::start(folder.path());
    session.say("list", "1. every day at 08:30, next on ");
    let second = session.hear("2. every ");
    assert!(second.contains("at 20:05") && second.ends_with(": water the cat"), "{second}");
    session.say("cancel 1", "Cancelled: water the plants");
    session.kill();
    let mut session = Session::start(folder.path());
    let left = session.say("list", ". ");
    assert!(left.starts_with("2. "), "{left}");
    session.say("cancel 1", "no reminder of that number");
    session.say("cancel 2", "Cancelled: water the cat");
    session.say("list", "You have no reminders");
    session.end();
}

#[test]
fn what_it_does_not_understand_is_answered_with_what_to_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut session = Session::start(folder.path());
    for (text, answer) in [
        ("hello", "`remind me at 8:30 to water the plants`"),
        ("help", "`zone Madrid`"),
        ("remind me to water the plants", "`remind me in 10 minutes to stretch`"),
        ("/remind", "`remind me in 10 minutes to stretch`"),
        ("remind me at 25:00 to sleep", "`20:30`"),
        ("remind me at 8:75 to sleep", "`20:30`"),
        ("remind me at 13 pm to sleep", "`8:30 pm`"),
        ("remind me at 12 am to sleep", "at 00:00"),
        ("remind me in 0 seconds to sleep", "`10 minutes`"),
        ("remind me in 99999999999999999999 days to sleep", "`10 minutes`"),
        ("remind me in 400d to sleep", "`10 minutes`"),
        ("remind me in 3600 \u{17f} to sleep", "2. On "),
        ("zone", "`zone Europe/Madrid`"),
        ("zone Atlantis", "`zone Europe/Madrid`"),
        ("zone louisville", "`zone America/Kentucky/Louisville`"),
        ("zone New York", "America/New_York"),
        ("cancel", "`list`"),
        ("cancel 77", "`list`"),
        ("cancel everything", "`list`"),
    ] {
        session.say(text, answer);
    }
    session.say(&format!("remind me in 1h to {}", "x".repeat(501)), "500 letters");
    for number in 3..=20 {
        session.say("remind me in 1h to look up", &format!("{number}. On "));
    }
    session.say("remind me in 1h to look up", "You have 20 reminders");
    assert_eq!(session.end(), "");
}
