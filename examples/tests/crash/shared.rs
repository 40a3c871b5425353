//! Two processes on one database.

use std::collections::HashSet;
use std::process::Child;

use botmesh::core::entropy::{Entropy, SeededEntropy};

use crate::child::Place;
use crate::script::{Lives, Script, seed};
use crate::session::Session;

fn start(place: &Place, from: &str, instance: &str) -> Child {
    place.transcript(from, "out").arg("--instance").arg(instance).spawn().expect("the example starts")
}

#[test]
fn two_processes_on_one_file_lose_and_double_nothing() {
    const KILLS: usize = 30;
    const INPUTS: [&str; 2] = ["in-a", "in-b"];
    let seed = seed(1);
    let entropy = SeededEntropy::new(seed);
    let place = Place::new();
    let script = Script::random(&entropy, 2_000, 50);
    let is_even = |chat: &str| chat.as_bytes().last().is_some_and(|digit| digit % 2 == 0);
    script.write(&place, INPUTS[0], is_even);
    script.write(&place, INPUTS[1], |chat| !is_even(chat));
    let mut children = INPUTS.map(|input| start(&place, input, input));
    let mut lives = [Lives::new(&entropy), Lives::new(&entropy)];
    let mut kills = 0;
    while kills < KILLS {
        let which = entropy.next_u64() as usize % 2;
        let killed = lives[which].next().end(&place, &mut children[which]);
        assert!(killed, "seed {seed}: a process was done after {kills} kills of both");
        children[which] = start(&place, INPUTS[which], INPUTS[which]);
        kills += 1;
    }
    for child in &mut children {
        let status = place.wait(child);
        assert!(status.success(), "seed {seed}: {status}\n{}", place.complaints());
    }
    println!("seed {seed}: {kills} kills of two processes, {:.1?}", place.elapsed());
    script.check(&place);
}

/// Both get every message, as from a channel that delivers to whoever answers first. The order of a chat across
/// processes is not promised here, so that every message says the same.
#[test]
fn the_same_messages_to_two_processes_are_answered_once() {
    const LINES: usize = 1_000;
    const KILLS: usize = 12;
    let seed = seed(2);
    let entropy = SeededEntropy::new(seed);
    let place = Place::new();
    place.write("in", (0..LINES).map(|n| format!("chat-{}\thi\n", n % 50)).collect::<String>());
    let mut children = ["a", "b"].map(|instance| start(&place, "in", instance));
    let mut lives = [Lives::new(&entropy), Lives::new(&entropy)];
    let mut kills = 0;
    while kills < KILLS {
        let which = entropy.next_u64() as usize % 2;
        let killed = lives[which].next().end(&place, &mut children[which]);
        assert!(killed, "seed {seed}: a process was done after {kills} kills of both");
        children[which] = start(&place, "in", ["a", "b"][which]);
        kills += 1;
    }
    for child in &mut children {
        let status = place.wait(child);
        assert!(status.success(), "seed {seed}: {status}\n{}", place.complaints());
    }
    println!("seed {seed}: {kills} kills of two processes, {:.1?}", place.elapsed());
    let replies = place.replies("out");
    let keys: HashSet<_> = replies.iter().map(|(key, ..)| key).collect();
    assert_eq!((keys.len(), replies.len()), (LINES, LINES));
    for chat in (0..50).map(|n| format!("chat-{n}")) {
        assert_eq!(replies.iter().filter(|(_, of, _)| *of == chat).count(), LINES / 50, "{chat}");
    }
}

#[test]
fn a_second_process_of_the_same_name_ends_the_first() {
    let place = Place::new();
    let mut first = Session::start(&place);
    first.say("hi");
    assert!(first.reply().starts_with("Hello!"));
    place.write("in", "ana\thi\n");
    place.succeed(&mut place.transcript("in", "out"));
    // Its input stays open: it ends since it was superseded.
    let status = place.wait(&mut first.child);
    let complaints = place.complaints();
    assert!(!status.success(), "it went on beside the second one\n{complaints}");
    let last = complaints.lines().find(|line| line.starts_with("appointments: ")).unwrap_or_default();
    assert!(last.contains("`desk`") && last.contains("instance id"), "{complaints}");
    assert_eq!(place.reply_count("out"), 1);
}
