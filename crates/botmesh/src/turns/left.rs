//! What a replica left in a chat that lost its turn there: it goes before what arrived after it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

use super::worker::Finished;
use super::{Turns, Work};
use crate::core::coordinator::Turn;
use crate::core::error::{Cas, StoreError};
use crate::core::id::{ConversationKey, RecordId};
use crate::core::journal::{Change, InboxRecord, InboxState, Stored};
use crate::dispatch::Verdict;
use crate::scheduler::is_task;
use crate::world::OpenJournal;

/// How often, and after which pause, it is looked again for what somebody else was about to take.
const ROUNDS: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

const LOOKING: &str = "looking for what another replica left in a chat";

/// The unfinished messages of all processes. Looking for those of one chat costs as much as there are of all, so one look
/// serves everybody who asked before it.
#[derive(Default)]
pub(super) struct Left {
    asked: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Who asked up to here is served.
    asked: u64,
    messages: HashMap<ConversationKey, Vec<Stored<InboxRecord>>>,
}

impl Left {
    /// Those of the conversation, as of a moment after the call.
    async fn of(
        &self,
        open: &OpenJournal,
        key: &ConversationKey,
    ) -> Result<Vec<Stored<InboxRecord>>, StoreError> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let mut seen = self.seen.lock().await;
        if seen.asked < asked {
            let serves = self.asked.load(Ordering::Relaxed);
            seen.messages = look(open).await?;
            seen.asked = serves;
        }
        Ok(seen.messages.remove(key).unwrap_or_default())
    }
}

async fn look(open: &OpenJournal) -> Result<HashMap<ConversationKey, Vec<Stored<InboxRecord>>>, StoreError> {
    const PAGE: usize = 200;
    let mut found = HashMap::<_, Vec<_>>::new();
    for state in [InboxState::Working, InboxState::Queued] {
        let mut after = None;
        loop {
            let page = open.journal.inbox().list(state, after.as_ref(), PAGE).await?;
            for stored in page.records {
                found.entry(stored.record.inbound.conversation()).or_default().push(stored);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
    }
    Ok(found)
}

enum Looked {
    All,
    /// Somebody was about to take some of it.
    Again,
}

impl Turns {
    /// Handles, under the turn of `before`, what arrived earlier in its chat and was left by whoever had the turn and did not
    /// give it back. Whoever that is cannot handle it now: it has no turn.
    pub(super) async fn finish_left(&self, turn: &Turn, key: &ConversationKey, before: &Work) {
        let (Some(open), Some(stored)) = (&self.world.journal, &before.record) else { return };
        if is_task(&key.chat) {
            return;
        }
        let mut earlier = Vec::new();
        // Again after a lost race, since whoever won it may be no further. Others who go on losing leave it as it is.
        for _ in 0..ROUNDS {
            // What the sweeper took up stands behind what arrived later.
            earlier.extend(self.queues.take_earlier(key, stored.record.order));
            if turn.previous_holder().is_none() || turn.was_given_back() {
                break;
            }
            match self.take_left(open, key, stored, &mut earlier).await {
                Ok(Looked::All) => break,
                Ok(Looked::Again) => self.world.seams.clock.sleep(PAUSE).await,
                Err(error) => {
                    self.world.trouble(LOOKING, &error);
                    break;
                }
            }
        }
        earlier.sort_by_key(|work| work.record.as_ref().map(|stored| stored.record.order));
        for mut work in earlier {
            let suspect =
                |stored: &Stored<InboxRecord>| stored.record.is_suspect(open.config.inbox.max_attempts);
            if work.alone.is_none() && work.record.as_ref().is_some_and(suspect) {
                work.alone = self.alone().await;
            }
            if let Some(work) = self.settle(None, Some(work)).await {
                let finished = self.run_under(turn.clone(), key, work).await;
                self.settle_left(key, finished).await;
            }
        }
    }

    /// Makes this process the owner of what arrived before `before` and is left, and adds it to what was found `earlier`.
    async fn take_left(
        &self,
        open: &OpenJournal,
        key: &ConversationKey,
        before: &Stored<InboxRecord>,
        earlier: &mut Vec<Work>,
    ) -> Result<Looked, StoreError> {
        let (owner, max, now) = (open.journal.owner(), open.config.inbox.max_attempts, self.world.now());
        let found = |id: &RecordId| {
            let mut known = earlier.iter().filter_map(|work| work.record.as_ref());
            before.record.id == *id || known.any(|known| known.record.id == *id)
        };
        let mut left = self.left.of(open, key).await?;
        left.retain(|stored| stored.record.order < before.record.order && !found(&stored.record.id));
        // The sweeper is about to queue it.
        let queued_soon =
            left.extract_if(.., |stored| stored.record.owner.as_ref() == Some(&owner)).count() > 0;
        let taken: Vec<_> = left
            .into_iter()
            .filter_map(|stored| Some((stored.version, stored.record.adopt(&owner, max, now).ok()?)))
            .filter(|(_, record)| record.state == InboxState::Queued)
            .collect();
        if taken.is_empty() {
            return Ok(if queued_soon { Looked::Again } else { Looked::All });
        }
        let changes = taken.iter().map(|(version, record)| Change::update(*version, record)).collect();
        let outcomes = open.journal.commit(changes).await?;
        let lapses = open.journal.lease().lapses();
        let work = |((_, record), outcome): ((_, InboxRecord), Cas<_>)| {
            let version = outcome.applied()?;
            self.world.metrics.inbound_replayed.increment();
            Some(Work {
                inbound: Arc::clone(&record.inbound),
                received: record.received,
                unfinished: Some(self.world.metrics.begin(record.received)),
                record: Some(Stored { record, version }),
                replay: true,
                lapses,
                journaled_in: Duration::ZERO,
                _permit: None,
                alone: None,
            })
        };
        let wanted = taken.len();
        let won: Vec<_> = taken.into_iter().zip(outcomes).filter_map(work).collect();
        let all = won.len() == wanted && !queued_soon;
        earlier.extend(won);
        Ok(if all { Looked::All } else { Looked::Again })
    }

    /// As for any message, but the turn is kept. What did not count goes back into the queue, and will be taken before what
    /// arrived after it again.
    async fn settle_left(&self, key: &ConversationKey, finished: Finished) {
        if matches!(finished.verdict, Verdict::Released) && !self.world.abort.is_cancelled() {
            self.world.commit_sent(finished.sent).await;
            self.queues.put_first(key, finished.work);
            return;
        }
        self.settle(Some(Finished { keeps_turn: true, ..finished }), None).await;
    }
}
