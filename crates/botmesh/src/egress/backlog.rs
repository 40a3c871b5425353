use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::core::hash::stable_hash;
use crate::core::id::ChatId;

/// How many chats are remembered. With more, every send looks into the outbox.
const REMEMBERED: usize = 100_000;

/// The chats that may have unfinished sends in the outbox: what is sent to them now must not overtake these.
///
/// Only a hint that saves a look into the outbox for every send. A chat that is here by mistake costs one; until
/// everything unfinished was looked at once, every chat counts as one of them.
#[derive(Debug, Default)]
pub(crate) struct Backlog(Mutex<Chats>);

#[derive(Debug, Default)]
struct Chats {
    known: HashSet<u64>,
    complete: bool,
    /// How often there were too many.
    overflows: u64,
}

impl Chats {
    fn forget_all(&mut self) {
        *self = Self { overflows: self.overflows + 1, ..Self::default() };
    }
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Chats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the chat may have unfinished sends.
    pub(crate) fn may_hold(&self, chat: &ChatId) -> bool {
        let chats = self.lock();
        !chats.complete || chats.known.contains(&hash(chat))
    }

    /// The chat has unfinished sends, or is about to.
    pub(crate) fn note(&self, chat: &ChatId) {
        let mut chats = self.lock();
        chats.known.insert(hash(chat));
        if chats.known.len() > REMEMBERED {
            chats.forget_all();
        }
    }

    /// Others may have left sends to any chat.
    pub(crate) fn doubt(&self) {
        self.lock().forget_all();
    }

    /// The chat has no unfinished sends.
    pub(crate) fn forget(&self, chat: &ChatId) {
        self.lock().known.remove(&hash(chat));
    }

    /// Whether all chats with unfinished sends are known.
    pub(crate) fn is_complete(&self) -> bool {
        self.lock().complete
    }

    /// How often there were too many chats to remember.
    pub(crate) fn overflows(&self) -> u64 {
        self.lock().overflows
    }

    /// Every unfinished send was looked at and its chat noted, since there were `overflows`.
    pub(crate) fn complete(&self, overflows: u64) {
        let mut chats = self.lock();
        chats.complete = chats.overflows == overflows;
    }
}

fn hash(chat: &ChatId) -> u64 {
    stable_hash(chat.as_str().bytes())
}
