//! Killed at random moments: every reply exactly once, in each chat's order.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::process::Child;
use std::time::Duration;

use botmesh::core::entropy::{Entropy, SeededEntropy};

use crate::child::{Place, by_chat, pause};
use crate::desk::Desk;

/// The seed of a run: another one by `BOTMESH_SEED`.
fn seed() -> u64 {
    let seed =
        std::env::var("BOTMESH_SEED").ok().map(|seed| seed.parse().expect("BOTMESH_SEED is a whole number"));
    seed.unwrap_or(20_260_501)
}

/// Messages of some chats, and what each chat must be answered.
struct Script {
    lines: Vec<(String, String)>,
    expected: BTreeMap<String, Vec<String>>,
}

impl Script {
    fn random(entropy: &SeededEntropy, lines: usize, chats: usize) -> Self {
        let mut desks: Vec<Desk> = (0..chats).map(|_| Desk::new()).collect();
        let mut script = Self { lines: Vec::new(), expected: BTreeMap::new() };
        for _ in 0..lines {
            let chat = entropy.next_u64() as usize % chats;
            let name = format!("chat-{chat}");
            let text = desks[chat].say(entropy);
            script.expected.entry(name.clone()).or_default().push(desks[chat].answer(&text));
            script.lines.push((name, text));
        }
        script
    }

    /// Writes the lines whose chat is `chosen`.
    fn write(&self, place: &Place, file: &str, chosen: impl Fn(&str) -> bool) {
        let lines = self.lines.iter().filter(|(chat, _)| chosen(chat));
        let text: String = lines.map(|(chat, text)| format!("{chat}\t{text}\n")).collect();
        fs::write(place.path(file), text).expect("the transcript can be written");
    }

    /// Every expected reply exactly once, in order.
    fn check(&self, place: &Place) {
        let replies = place.replies("out");
        let keys: HashSet<_> = replies.iter().map(|(key, ..)| key).collect();
        assert_eq!(keys.len(), replies.len(), "a key was sent twice");
        let chats = by_chat(&replies);
        for (chat, expected) in &self.expected {
            assert_eq!(
                chats.get(chat.as_str()),
                Some(&expected.iter().map(String::as_str).collect()),
                "{chat}"
            );
        }
        assert_eq!(replies.len(), self.lines.len(), "replies to nothing");
    }
}

/// When a life ends: after some more replies, or after some time.
struct Life {
    replies: usize,
    at_most: Duration,
}

impl Life {
    fn random(entropy: &SeededEntropy) -> Self {
        let replies = entropy.next_u64() as usize % 40;
        let short = Duration::from_micros(entropy.next_u64() % 40_000);
        let at_most = if entropy.next_u64().is_multiple_of(3) { short } else { Duration::from_secs(60) };
        Self { replies, at_most }
    }

    /// Kills the child when its life is over; `false` if it ended by itself.
    fn end(&self, place: &Place, child: &mut Child) -> bool {
        let (start, replies) = (place.elapsed(), place.reply_count("out"));
        loop {
            if let Some(status) = child.try_wait().expect("the child can be waited for") {
                assert!(status.success(), "the desk failed: {status}\n{}", place.complaints());
                return false;
            }
            if place.elapsed() - start >= self.at_most || place.reply_count("out") >= replies + self.replies {
                child.kill().expect("the child can be killed");
                child.wait().expect("the child can be waited for");
                return true;
            }
            pause();
        }
    }
}

#[test]
fn killed_at_random_every_reply_comes_exactly_once_and_in_order() {
    const KILLS: usize = 35;
    let seed = seed();
    let entropy = SeededEntropy::new(seed);
    let place = Place::new();
    let script = Script::random(&entropy, 2_000, 50);
    script.write(&place, "in", |_| true);
    let mut kills = 0;
    while kills < KILLS {
        let mut child = place.transcript("in", "out").spawn().expect("the example starts");
        assert!(
            Life::random(&entropy).end(&place, &mut child),
            "seed {seed}: all was answered after {kills} kills"
        );
        kills += 1;
    }
    let mut child = place.transcript("in", "out").spawn().expect("the example starts");
    let status = place.wait(&mut child);
    assert!(status.success(), "seed {seed}: {status}\n{}", place.complaints());
    println!("seed {seed}: {kills} kills, {} lines, {:.1?}", script.lines.len(), place.elapsed());
    script.check(&place);
}

#[test]
fn two_processes_on_one_file_lose_and_double_nothing() {
    const KILLS: usize = 20;
    let seed = seed() ^ 1;
    let entropy = SeededEntropy::new(seed);
    let place = Place::new();
    let script = Script::random(&entropy, 1_600, 40);
    let is_even = |chat: &str| chat.as_bytes().last().is_some_and(|digit| digit % 2 == 0);
    script.write(&place, "in-a", is_even);
    script.write(&place, "in-b", |chat| !is_even(chat));
    let start =
        |input: &str| place.transcript(input, "out").arg("--instance").arg(input).spawn().expect("it starts");
    let mut children = [start("in-a"), start("in-b")];
    let mut kills = 0;
    while kills < KILLS {
        let which = entropy.next_u64() as usize % 2;
        let killed = Life::random(&entropy).end(&place, &mut children[which]);
        assert!(killed, "seed {seed}: a process was done after {kills} kills of both");
        children[which] = start(["in-a", "in-b"][which]);
        kills += 1;
    }
    for child in &mut children {
        let status = place.wait(child);
        assert!(status.success(), "seed {seed}: {status}\n{}", place.complaints());
    }
    println!("seed {seed}: {kills} kills of two processes, {:.1?}", place.elapsed());
    let replies = place.replies("out");
    let chats = by_chat(&replies);
    for (chat, expected) in &script.expected {
        assert_eq!(chats.get(chat.as_str()), Some(&expected.iter().map(String::as_str).collect()), "{chat}");
    }
}

#[test]
fn the_same_messages_to_two_processes_are_answered_once() {
    let place = Place::new();
    let lines: String = (0..600).map(|n| format!("chat-{}\thi\n", n % 30)).collect();
    fs::write(place.path("in"), lines).expect("the transcript can be written");
    let start =
        |name: &str| place.transcript("in", "out").arg("--instance").arg(name).spawn().expect("it starts");
    let mut children = [start("a"), start("b")];
    for child in &mut children {
        let status = place.wait(child);
        assert!(status.success(), "{status}\n{}", place.complaints());
    }
    let replies = place.replies("out");
    let keys: HashSet<_> = replies.iter().map(|(key, ..)| key).collect();
    assert_eq!((keys.len(), replies.len()), (600, 600));
}
