//! Looks for what is unfinished in a chat. The inbox finds messages by their order alone, so a look costs as much as arrived
//! earlier and is unfinished in all chats; one look serves everybody who asked before it began, and keeps only what they
//! asked for.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::core::error::StoreError;
use crate::core::id::ConversationKey;
use crate::core::journal::{InboxRecord, InboxState, Journal, Stored};

/// The most messages of one chat that one look finds.
pub(super) const MOST: usize = 100;

pub(super) const PAGE: usize = 200;

/// How often it is read again at most while that finds something new.
const MORE_READINGS: usize = 20;

/// The earliest unfinished messages of a conversation, in the order of arrival.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) messages: Vec<Stored<InboxRecord>>,
    /// Whether there may be more.
    pub(super) more: bool,
}

#[derive(Default)]
pub(super) struct Looks {
    questions: Mutex<Questions>,
    /// Held by who looks.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Questions {
    next: u64,
    open: HashMap<u64, Question>,
}

struct Question {
    key: ConversationKey,
    before: i64,
    found: Option<Found>,
}

/// A question that is asked. It is withdrawn when this is dropped.
struct Asked<'a> {
    looks: &'a Looks,
    id: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.looks.questions().open.remove(&self.id);
    }
}

impl Looks {
    /// How many messages are kept for somebody.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.questions()
            .open
            .values()
            .filter_map(|question| question.found.as_ref())
            .map(|found| found.messages.len())
            .sum()
    }

    /// Lets nobody look meanwhile.
    #[cfg(test)]
    pub(super) async fn hold(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.looking.lock().await
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, key: ConversationKey, before: i64) -> Asked<'_> {
        let mut questions = self.questions();
        let id = questions.next;
        questions.next += 1;
        questions.open.insert(id, Question { key, before, found: None });
        Asked { looks: self, id }
    }

    fn answer(&self, id: u64) -> Option<Found> {
        self.questions().open.get_mut(&id)?.found.take()
    }

    /// The unfinished messages of the conversation that arrived before `before`, whoever owns them, as of a moment after the
    /// call.
    pub(super) async fn of(
        &self,
        journal: &Journal,
        key: &ConversationKey,
        before: i64,
    ) -> Result<Found, StoreError> {
        let asked = self.ask(key.clone(), before);
        let _looking = self.looking.lock().await;
        if let Some(found) = self.answer(asked.id) {
            return Ok(found);
        }
        let mut wanted: HashMap<ConversationKey, Wanted> = HashMap::new();
        let mut serves = Vec::new();
        for (id, question) in self.questions().open.iter().filter(|(_, question)| question.found.is_none()) {
            let wanted = wanted.entry(question.key.clone()).or_default();
            wanted.before = wanted.before.max(question.before);
            serves.push(*id);
        }
        look(journal, &mut wanted).await?;
        let mut questions = self.questions();
        for id in serves {
            if let Some(question) = questions.open.get_mut(&id)
                && let Some(wanted) = wanted.get(&question.key)
            {
                question.found = Some(wanted.found(question.before));
            }
        }
        drop(questions);
        Ok(self.answer(asked.id).unwrap_or_default())
    }
}

/// What is looked for in a conversation, and what was found.
struct Wanted {
    before: i64,
    messages: Vec<Stored<InboxRecord>>,
    more: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { before: i64::MIN, messages: Vec::new(), more: false }
    }
}

impl Wanted {
    /// Whether it was not found before. One that was is kept as it is now.
    fn add(&mut self, stored: Stored<InboxRecord>) -> bool {
        if stored.record.order >= self.before {
            return false;
        }
        if let Some(known) = self.messages.iter_mut().find(|known| known.record.id == stored.record.id) {
            *known = stored;
            return false;
        }
        let place = self.messages.partition_point(|known| known.record.order <= stored.record.order);
        self.messages.insert(place, stored);
        self.more |= self.messages.len() > MOST;
        self.messages.truncate(MOST);
        place < MOST
    }

    fn found(&self, before: i64) -> Found {
        let mut messages = self.messages.clone();
        messages.retain(|stored| stored.record.order < before);
        let more = self.more && messages.len() == self.messages.len();
        Found { messages, more }
    }
}

/// Reads those at work and those that wait by turns, until two readings find nothing new, but not for ever where so much goes on.
/// A message that begins, or goes back to those that wait, between two readings may be in neither, and is in the next one. It would
/// have to begin and go back right between all four to be missed.
async fn look(journal: &Journal, wanted: &mut HashMap<ConversationKey, Wanted>) -> Result<(), StoreError> {
    read(journal, InboxState::Working, wanted).await?;
    read(journal, InboxState::Queued, wanted).await?;
    let mut quiet = 0;
    for state in [InboxState::Working, InboxState::Queued].into_iter().cycle().take(MORE_READINGS) {
        quiet = if read(journal, state, wanted).await? { 0 } else { quiet + 1 };
        if quiet == 2 {
            break;
        }
    }
    Ok(())
}

/// Whether it finds something new.
async fn read(
    journal: &Journal,
    state: InboxState,
    wanted: &mut HashMap<ConversationKey, Wanted>,
) -> Result<bool, StoreError> {
    let until = wanted.values().map(|wanted| wanted.before).max().unwrap_or(i64::MIN).saturating_sub(1);
    let (mut after, mut is_new) = (None, false);
    loop {
        let page = journal.inbox().list_until(state, until, after.as_ref(), PAGE).await?;
        for stored in page.records {
            if let Some(wanted) = wanted.get_mut(&stored.record.inbound.conversation()) {
                is_new |= wanted.add(stored);
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(is_new),
        }
    }
}
