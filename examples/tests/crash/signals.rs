//! Asked to end, the example finishes what is in flight, ends well, and the next start goes on.

use std::process::Command;
use std::time::Duration;

use botmesh::core::entropy::{Entropy, SeededEntropy};

use crate::child::Place;
use crate::desk::Desk;
use crate::script::{Life, Script, seed};
use crate::session::Session;

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
        assert_eq!(session.rest(), "");
        assert!(place.wait(&mut session.child).success());
    }
}

/// A person's lines, some answered, some in flight and some not yet read when the signal comes: what is answered then
/// and after the next start is the beginning of the conversation, and the state fits to it.
#[test]
fn asked_to_end_in_the_middle_of_a_conversation_nothing_that_was_taken_is_lost() {
    for signal in ["INT", "TERM"] {
        let place = Place::new();
        let mut desk = Desk::new();
        let lines: Vec<_> = (0..60)
            .flat_map(|n| ["book".to_owned(), format!("Ana {n}"), "tue".into(), "9".into(), "yes".into()])
            .collect();
        let expected: Vec<_> = lines.iter().map(|line| desk.answer(line)).collect();
        let mut session = Session::start(&place);
        session.say(&lines.join("\n"));
        assert_eq!(session.reply(), expected[0]);
        session.signal(signal);
        let mut said = format!("{}\n{}", expected[0], session.rest());
        let status = place.wait(&mut session.child);
        assert!(status.success(), "{signal}: {status}\n{}", place.complaints());
        let mut session = Session::start(&place);
        said += &session.rest();
        assert!(place.wait(&mut session.child).success());
        let said: String =
            said.lines().filter(|line| !line.starts_with('(')).map(|line| format!("{line}\n")).collect();
        let (mut whole, mut answered) = (String::new(), 0);
        while whole.len() < said.len() {
            whole += &format!("{}\n", expected[answered]);
            answered += 1;
        }
        assert_eq!(said, whole, "{signal}");
        println!("SIG{signal}: {answered} of {} lines were taken", lines.len());
        let mut desk = Desk::new();
        lines.iter().take(answered).for_each(|line| drop(desk.answer(line)));
        let mut session = Session::start(&place);
        session.say("stop\nlist");
        assert_eq!(session.rest(), format!("{}\n{}\n", desk.answer("stop"), desk.answer("list")), "{signal}");
        assert!(place.wait(&mut session.child).success());
    }
}

/// As when killed, but each time the process may finish what it has in flight and must end well.
#[test]
fn asked_to_end_at_random_every_reply_comes_exactly_once_and_in_order() {
    const SIGNALS: usize = 20;
    let seed = seed(3);
    let entropy = SeededEntropy::new(seed);
    let place = Place::new();
    let script = Script::random(&entropy, 2_000, 50);
    script.write(&place, "in", |_| true);
    for n in 0..SIGNALS {
        let mut child = place.transcript("in", "out").spawn().expect("the example starts");
        // Before its first reply, it may not listen to signals yet, and just end.
        let life = Life { replies: 1 + entropy.next_u64() as usize % 20, at_most: Duration::MAX };
        assert!(life.is_over(&place, &mut child), "seed {seed}: all was answered after {n} signals");
        let signal = ["INT", "TERM"][entropy.next_u64() as usize % 2];
        let status = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "the signal cannot be sent");
        let status = place.wait(&mut child);
        assert!(status.success(), "seed {seed}: {signal}: {status}\n{}", place.complaints());
    }
    println!("seed {seed}: {} replies, {:.1?}", place.reply_count("out"), place.elapsed());
    place.succeed(&mut place.transcript("in", "out"));
    script.check(&place);
}
