//! What stands before the replicas as a load balancer would: it gives each message to any of them, and gives it again until
//! one of them says that it has it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::mpsc;
use std::time::Duration;

use botmesh::core::entropy::{Entropy, SeededEntropy};

use super::replica::Replica;
use crate::child::Place;

/// After so long without a sign a message is given again.
const PATIENCE: Duration = Duration::from_secs(1);

/// A user writes on when the message before is taken over, at whichever replica.
pub(super) struct Feeder<'a> {
    place: &'a Place,
    entropy: &'a SeededEntropy,
    messages: &'a [(String, String)],
    taken: mpsc::Receiver<usize>,
    chats: HashMap<&'a str, Chat>,
    arrived: usize,
    replies: Replies,
    /// How many messages were given again.
    pub(super) again: usize,
}

#[derive(Default)]
struct Chat {
    waiting: VecDeque<usize>,
    given: Option<Given>,
}

struct Given {
    message: usize,
    at: Duration,
}

impl<'a> Feeder<'a> {
    pub(super) fn new(
        place: &'a Place,
        entropy: &'a SeededEntropy,
        messages: &'a [(String, String)],
        taken: mpsc::Receiver<usize>,
    ) -> Self {
        let (chats, replies) = Default::default();
        Self { place, entropy, messages, taken, chats, arrived: 0, replies, again: 0 }
    }

    /// Lets more messages arrive, until so many did.
    pub(super) fn arrive(&mut self, until: usize) {
        for message in self.arrived..until.min(self.messages.len()) {
            self.chats.entry(&self.messages[message].0).or_default().waiting.push_back(message);
            self.arrived = message + 1;
        }
    }

    /// Does what can be done, and waits a moment for more.
    pub(super) fn step(&mut self, replicas: &mut [Replica]) {
        if let Ok(first) = self.taken.recv_timeout(Duration::from_millis(1)) {
            for message in std::iter::once(first).chain(self.taken.try_iter()) {
                if let Some(chat) = self.chats.get_mut(&*self.messages[message].0) {
                    chat.given.take_if(|given| given.message == message);
                }
            }
        }
        self.replies.read(self.place);
        let now = self.place.elapsed();
        for chat in self.chats.values_mut() {
            if let Some(given) = chat.given.as_mut().filter(|given| now - given.at > PATIENCE) {
                given.at = now;
                self.again += 1;
                give(self.entropy, self.messages, replicas, given.message);
            }
            if chat.given.is_none()
                && let Some(message) = chat.waiting.pop_front()
            {
                chat.given = Some(Given { message, at: now });
                give(self.entropy, self.messages, replicas, message);
            }
        }
    }

    /// Whether every message was taken over and is answered.
    pub(super) fn is_done(&self) -> bool {
        self.replies.keys.len() >= self.messages.len()
            && self.chats.values().all(|chat| chat.given.is_none() && chat.waiting.is_empty())
    }

    pub(super) fn answered(&self) -> usize {
        self.replies.keys.len()
    }
}

fn give(entropy: &SeededEntropy, messages: &[(String, String)], replicas: &mut [Replica], message: usize) {
    let to = entropy.next_u64() as usize % replicas.len();
    let (chat, text) = &messages[message];
    replicas[to].give(message, chat, text);
}

/// The replies so far.
#[derive(Default)]
struct Replies {
    read: u64,
    keys: HashSet<String>,
}

impl Replies {
    /// Reads what was written since. A line that is being written is left to the next time.
    fn read(&mut self, place: &Place) {
        let Ok(mut file) = File::open(place.path("out")) else { return };
        let mut new = Vec::new();
        file.seek(SeekFrom::Start(self.read)).and_then(|_| file.read_to_end(&mut new)).expect("the replies");
        new.truncate(new.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1));
        self.read += new.len() as u64;
        for line in String::from_utf8(new).expect("text").lines() {
            let Some((key, _)) = line.split_once('\t') else { panic!("not a reply: {line}") };
            self.keys.insert(key.to_owned());
        }
    }
}
