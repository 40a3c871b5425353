use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Recipient;
use crate::core::id::ChatId;
use crate::core::time::Timestamp;

/// How many ids are remembered at least, and half as many as there can be.
const REMEMBERED: usize = 20_000;

/// The ids that were looked up lately, most of which never moved.
#[derive(Default)]
pub(super) struct Known {
    young: HashMap<ChatId, (Entry, Duration)>,
    old: HashMap<ChatId, (Entry, Duration)>,
    /// Grows when what is being looked up may be over.
    epoch: u64,
}

/// What is known of an id.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// The first id of whoever has it; `None` if it is this one.
    pub(super) owner: Option<ChatId>,
    /// When whoever had it got another one.
    pub(super) left: Option<Timestamp>,
    /// Who had it last, if it is an alias.
    pub(super) holder: Option<ChatId>,
    /// Whom a message to it goes to; `None` if it never moved.
    pub(super) recipient: Option<Arc<Recipient>>,
    /// Whom a message goes to in the chat of this name, where somebody else has the id.
    pub(super) named: Option<Arc<Recipient>>,
}

impl Entry {
    pub(super) fn recipient(&self, id: &ChatId) -> Recipient {
        Self::or_itself(self.recipient.as_ref(), id)
    }

    pub(super) fn named(&self, id: &ChatId) -> Recipient {
        Self::or_itself(self.named.as_ref().or(self.recipient.as_ref()), id)
    }

    fn or_itself(recipient: Option<&Arc<Recipient>>, id: &ChatId) -> Recipient {
        match recipient {
            Some(recipient) => Recipient::clone(recipient),
            None => Recipient { key: id.clone(), address: id.clone() },
        }
    }
}

impl Known {
    /// What is known, if it was looked up after `since` (on the monotonic clock).
    pub(super) fn get(&mut self, id: &ChatId, since: Option<Duration>) -> Option<Entry> {
        if !self.young.contains_key(id) {
            let found = self.old.remove(id)?;
            self.insert(id.clone(), found);
        }
        let (entry, looked) = self.young.get(id)?;
        since.is_none_or(|since| *looked > since).then(|| entry.clone())
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Remembers what was looked up, unless something was forgotten since the `epoch` in which the look began.
    pub(super) fn put(&mut self, epoch: u64, id: &ChatId, entry: &Entry, looked: Duration) {
        if epoch == self.epoch {
            self.insert(id.clone(), (entry.clone(), looked));
        }
    }

    /// Forgets these, and what is being looked up.
    pub(super) fn forget_these(&mut self, ids: &[&ChatId]) {
        self.epoch += 1;
        ids.iter().for_each(|id| self.forget(id));
    }

    pub(super) fn forget(&mut self, id: &ChatId) {
        self.young.remove(id);
        self.old.remove(id);
    }

    pub(super) fn forget_all(&mut self) {
        self.epoch += 1;
        self.young.clear();
        self.old.clear();
    }

    fn insert(&mut self, id: ChatId, found: (Entry, Duration)) {
        if self.young.len() >= REMEMBERED {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, found);
    }
}
