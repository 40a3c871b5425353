//! What many chats say, what each must be answered, and when processes are killed meanwhile.

use std::collections::{BTreeMap, HashSet};
use std::process::Child;
use std::time::Duration;

use botmesh::core::entropy::{Entropy, SeededEntropy};

use crate::child::{Place, by_chat, pause};
use crate::desk::Desk;

/// The seed of a run, which `BOTMESH_SEED` repeats. Each test takes its own `salt`.
pub(crate) fn seed(salt: u64) -> u64 {
    match std::env::var("BOTMESH_SEED") {
        Ok(seed) => seed.parse().expect("BOTMESH_SEED is a whole number"),
        Err(_) => 20_260_501 ^ salt,
    }
}

/// Messages of some chats, and what each chat must be answered.
pub(crate) struct Script {
    pub(crate) lines: Vec<(String, String)>,
    pub(crate) expected: BTreeMap<String, Vec<String>>,
}

impl Script {
    pub(crate) fn random(entropy: &SeededEntropy, lines: usize, chats: usize) -> Self {
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
    pub(crate) fn write(&self, place: &Place, file: &str, chosen: impl Fn(&str) -> bool) {
        let lines = self.lines.iter().filter(|(chat, _)| chosen(chat));
        place.write(file, lines.map(|(chat, text)| format!("{chat}\t{text}\n")).collect::<String>());
    }

    /// Every expected reply exactly once, in order, and nothing else.
    pub(crate) fn check(&self, place: &Place) {
        let replies = place.replies("out");
        let keys: HashSet<_> = replies.iter().map(|(key, ..)| key).collect();
        assert_eq!(keys.len(), replies.len(), "a key was sent twice");
        self.check_replies(&replies, place);
    }

    /// As [`check`](Self::check), of these replies.
    pub(crate) fn check_replies(&self, replies: &[(String, String, String)], place: &Place) {
        let chats = by_chat(replies);
        for (chat, expected) in &self.expected {
            let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
            let said = chats.get(chat.as_str()).cloned().unwrap_or_default();
            let same = expected.iter().zip(&said).take_while(|(one, other)| one == other).count();
            assert!(
                said == expected,
                "{chat}: after {same} replies it says {:?}, not {:?}; the keys are {:?}\n{}",
                &said[same..],
                &expected[same..],
                keys_of(replies, chat),
                place.complaints()
            );
        }
        assert_eq!(replies.len(), self.lines.len(), "replies to nothing");
    }
}

/// The keys of the last replies to a chat: they say which messages were answered.
fn keys_of<'a>(replies: &'a [(String, String, String)], chat: &str) -> Vec<&'a str> {
    let keys: Vec<&str> = replies.iter().filter(|reply| reply.1 == chat).map(|(key, ..)| &**key).collect();
    keys[keys.len().saturating_sub(10)..].to_vec()
}

/// The lives of one process that is started again and again.
///
/// A message is given up when five processes in a row died while they handled it, as it may be what kills them. So that
/// no message is that unlucky, every fourth life is long enough for whatever the ones before it left in the middle.
pub(crate) struct Lives<'a> {
    entropy: &'a SeededEntropy,
    begun: usize,
}

/// When a life ends: after some more replies, or after some time.
pub(crate) struct Life {
    pub(crate) replies: usize,
    pub(crate) at_most: Duration,
}

impl<'a> Lives<'a> {
    pub(crate) fn new(entropy: &'a SeededEntropy) -> Self {
        Self { entropy, begun: 0 }
    }

    pub(crate) fn next(&mut self) -> Life {
        self.begun += 1;
        let [kind, replies, micros] = [(); 3].map(|()| self.entropy.next_u64());
        match kind % 3 {
            _ if self.begun.is_multiple_of(4) => Life { replies: 80, at_most: Duration::MAX },
            0 => Life { replies: usize::MAX, at_most: Duration::from_micros(micros % 40_000) },
            _ => Life { replies: replies as usize % 40, at_most: Duration::MAX },
        }
    }
}

impl Life {
    /// Kills the child when its life is over; `false` if it ended by itself.
    pub(crate) fn end(&self, place: &Place, child: &mut Child) -> bool {
        let killed = self.is_over(place, child);
        if killed {
            child.kill().expect("the child can be killed");
            child.wait().expect("the child can be waited for");
        }
        killed
    }

    /// Waits until the life is over; `false` if the child ended by itself, which it must do well.
    pub(crate) fn is_over(&self, place: &Place, child: &mut Child) -> bool {
        let (start, replies) = (place.elapsed(), place.reply_count("out"));
        loop {
            if let Some(status) = child.try_wait().expect("the child can be waited for") {
                assert!(status.success(), "the desk failed: {status}\n{}", place.complaints());
                return false;
            }
            if place.elapsed() - start >= self.at_most || place.reply_count("out") - replies >= self.replies {
                return true;
            }
            pause();
        }
    }
}
