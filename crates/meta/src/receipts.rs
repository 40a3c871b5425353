//! What was told of messages, so that what is told late or twice is not news.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use botmesh_core::id::{ChatId, MessageId};
use botmesh_core::notice::{Receipt, ReceiptOf, Stage};
use botmesh_core::time::Timestamp;

/// How many messages, and how many chats, are remembered.
const REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Receipts(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    messages: Newest<MessageId, Known>,
    /// Up to when everything in a chat came so far.
    chats: Newest<ChatId, Vec<(Stage, Timestamp)>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The bot knows that Meta has it.
    confirmed: bool,
    /// This process sent it.
    own: bool,
    stage: Option<Stage>,
}

impl Receipts {
    pub(crate) fn is_confirmed(&self, message: &MessageId) -> bool {
        self.told().messages.get(message).is_some_and(|known| known.confirmed)
    }

    pub(crate) fn is_own(&self, message: &MessageId) -> bool {
        self.told().messages.get(message).is_some_and(|known| known.own)
    }

    /// Remembers a message that was sent: its copy may not say whose it is.
    pub(crate) fn sent(&self, message: &MessageId) {
        self.told().messages.of(message).own = true;
    }

    pub(crate) fn confirm(&self, message: &MessageId) {
        self.told().messages.of(message).confirmed = true;
    }

    /// Whether it says more than what was told before.
    pub(crate) fn advances(&self, receipt: &Receipt) -> bool {
        let mut told = self.told();
        match &receipt.of {
            ReceiptOf::UpTo(until) => told.advances_chat(receipt, *until),
            ReceiptOf::Message(message) => {
                !told.is_past(receipt) && told.advances_message(message, receipt.stage)
            }
            _ => true,
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn advances_chat(&mut self, Receipt { chat, stage, .. }: &Receipt, until: Timestamp) -> bool {
        let marks = self.chats.of(chat);
        let news = !marks.iter().any(|(so_far, told)| so_far >= stage && *told >= until);
        if news {
            marks.retain(|(so_far, told)| so_far > stage || *told > until);
            marks.push((*stage, until));
        }
        news
    }

    fn advances_message(&mut self, message: &MessageId, stage: Stage) -> bool {
        let known = self.messages.of(message);
        let news = known.stage.is_none_or(|so_far| so_far < stage);
        if news {
            known.stage = Some(stage);
        }
        news
    }

    /// Whether the message came further already: what came so far at that time had been sent before, and everything that was
    /// sent until later came further.
    fn is_past(&self, Receipt { chat, stage, at, .. }: &Receipt) -> bool {
        let further =
            |(so_far, until): &(Stage, Timestamp)| so_far > stage && at.is_some_and(|at| at <= *until);
        self.chats.get(chat).is_some_and(|marks| marks.iter().any(further))
    }
}

/// As many values as are remembered, those that came last.
#[derive(Debug)]
struct Newest<K, V> {
    values: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Newest<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Hash + Eq + Clone, V: Default> Newest<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    fn of(&mut self, key: &K) -> &mut V {
        if !self.values.contains_key(key) {
            self.order.push_back(key.clone());
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
        self.values.entry(key.clone()).or_default()
    }
}
