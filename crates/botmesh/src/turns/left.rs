//! What a replica left in a chat that lost its turn there: it goes before what arrived after it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

use super::worker::{Again, Finished};
use super::{Turns, Work};
use crate::core::coordinator::Turn;
use crate::core::error::{Cas, StoreError};
use crate::core::id::{ConversationKey, RecordId};
use crate::core::journal::{Change, InboxRecord, InboxState, Stored};
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

/// The place of a message in the order of arrival. One that is not journaled comes after all that is.
fn order_of(work: &Work) -> i64 {
    work.record.as_ref().map_or(i64::MAX, |stored| stored.record.order)
}

enum Looked {
    All,
    /// Somebody was about to take some of it.
    Again,
}

/// What arrived earlier in a chat is left, and goes before.
pub(super) struct StillLeft;

impl Turns {
    /// Handles, under the turn of `before`, what arrived earlier in its chat and was left by whoever had the turn and did not
    /// give it back. Whoever that is cannot handle it now: it has no turn.
    pub(super) async fn finish_left(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        before: &Work,
    ) -> Result<(), StillLeft> {
        let Some(open) = &self.world.journal else { return Ok(()) };
        if is_task(&key.chat) || turn.was_given_back() && turn.previous_holder() == Some(turn.session()) {
            return Ok(());
        }
        let order = order_of(before);
        // Again after a lost race, since whoever won it may be no further.
        for _ in 0..ROUNDS {
            // What the sweeper took up stands behind what arrived later.
            let mut earlier = self.queues.take_earlier(key, order);
            let looked = match turn.was_given_back() {
                true => Ok(Looked::All),
                false => self.take_left(open, key, before, &mut earlier).await,
            };
            earlier.sort_by_key(|work| work.record.as_ref().map(|stored| stored.record.order));
            self.handle_left(turn, key, earlier).await?;
            match looked {
                Ok(Looked::All) => return Ok(()),
                Ok(Looked::Again) => self.world.seams.clock.sleep(PAUSE).await,
                Err(error) => {
                    self.world.trouble(LOOKING, &error);
                    return Err(StillLeft);
                }
            }
        }
        Err(StillLeft)
    }

    /// Whether something of the conversation is unfinished, whoever owns it.
    pub(crate) async fn is_left(&self, key: &ConversationKey) -> Result<bool, StoreError> {
        match &self.world.journal {
            Some(open) => Ok(!self.left.of(open, key).await?.is_empty()),
            None => Ok(false),
        }
    }

    /// Handles messages one after the other. If one of them is not over then, it goes back into the queue with those behind it.
    async fn handle_left(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        works: Vec<Work>,
    ) -> Result<(), StillLeft> {
        let mut works = works.into_iter();
        while let Some(mut work) = works.next() {
            let max = self.world.journal.as_ref().map_or(0, |open| open.config.inbox.max_attempts);
            if work.alone.is_none()
                && work.record.as_ref().is_some_and(|stored| stored.record.is_suspect(max))
            {
                work.alone = self.alone().await;
            }
            let Some(work) = self.settle(None, Some(work)).await else { continue };
            let finished = self.run_under(turn.clone(), key, work).await;
            let again = self.settle_left(finished).await;
            if again.is_some() || self.world.abort.is_cancelled() {
                let again = again.into_iter().chain(works);
                again.rev().for_each(|work| self.queues.put_first(key, work));
                return Err(StillLeft);
            }
        }
        Ok(())
    }

    /// Makes this process the owner of what arrived before `before` and is left, and adds it to what was found `earlier`.
    async fn take_left(
        &self,
        open: &OpenJournal,
        key: &ConversationKey,
        before: &Work,
        earlier: &mut Vec<Work>,
    ) -> Result<Looked, StoreError> {
        let (owner, max, now) = (open.journal.owner(), open.config.inbox.max_attempts, self.world.now());
        let found = |id: &RecordId| {
            let mut known = earlier.iter().chain([before]).filter_map(|work| work.record.as_ref());
            known.any(|known| known.record.id == *id)
        };
        let mut left = self.left.of(open, key).await?;
        left.retain(|stored| stored.record.order < order_of(before) && !found(&stored.record.id));
        let taken: Vec<_> = left
            .into_iter()
            .filter_map(|stored| Some((stored.version, stored.record.adopt(&owner, max, now).ok()?)))
            .filter(|(_, record)| record.state == InboxState::Queued)
            .collect();
        if taken.is_empty() {
            return Ok(Looked::All);
        }
        let changes = taken.iter().map(|(version, record)| Change::update(*version, record)).collect();
        let outcomes = open.journal.commit(changes).await?;
        let lapses = open.journal.lease().lapses();
        let work = |((_, record), outcome): ((_, InboxRecord), Cas<_>)| {
            let version = outcome.applied()?;
            self.world.metrics.inbound_replayed.increment();
            let (inbound, received) = (Arc::clone(&record.inbound), record.received);
            let unfinished = Some(self.world.metrics.begin(received));
            let work = Work::new(inbound, received, Some(Stored { record, version }));
            Some(Work { replay: true, lapses, unfinished, ..work })
        };
        let wanted = taken.len();
        let won: Vec<_> = taken.into_iter().zip(outcomes).filter_map(work).collect();
        let all = won.len() == wanted;
        earlier.extend(won);
        Ok(if all { Looked::All } else { Looked::Again })
    }

    /// As for any message, but the turn is kept. Returns what is to be tried again, before what arrived after it.
    async fn settle_left(&self, mut finished: Finished) -> Option<Work> {
        let record = match self.again(&finished) {
            None => None,
            Some(Again::Held) => finished.work.record.clone(),
            Some(Again::After { error, .. } | Again::Elsewhere { error, .. }) => {
                self.postpone(&finished.work, &error).await
            }
        };
        if record.is_none() {
            self.settle(Some(Finished { keeps_turn: true, ..finished }), None).await;
            return None;
        }
        self.world.commit_sent(std::mem::take(&mut finished.sent)).await;
        Some(Work { record, replay: true, ..finished.work })
    }

    /// Puts the record of a message whose attempt failed back into its place; `None` if that cannot be.
    async fn postpone(&self, work: &Work, error: &str) -> Option<Stored<InboxRecord>> {
        let (open, stored) = (self.world.journal.as_ref()?, work.record.as_ref()?);
        let (owner, max, now) = (open.journal.owner(), open.config.inbox.max_attempts, self.world.now());
        let record = stored.record.fail(error, now, max, now).ok()?.adopt(&owner, max, now).ok()?;
        let change = vec![Change::update(stored.version, &record)];
        let outcomes = open.journal.commit_patiently(change, &self.world.abort).await.ok()?;
        let version = outcomes.into_iter().next()?.applied()?;
        Some(Stored { record, version })
    }

    /// Makes this process the owner of a message that the channel delivered again, and begins it. `false` if it is over, or
    /// waits for its next attempt.
    pub(super) async fn take_over(&self, open: &OpenJournal, work: &mut Work) -> Result<bool, StoreError> {
        let Some(id) = work.record.as_ref().map(|stored| stored.record.id.clone()) else { return Ok(false) };
        let (owner, max) = (open.journal.owner(), open.config.inbox.max_attempts);
        for _ in 0..ROUNDS {
            let found = open.journal.inbox().get(&id).await?;
            let Some(Stored { record, version }) = found.filter(|found| found.record.is_in_process()) else {
                return Ok(false);
            };
            let (lapses, now) = (open.journal.lease().lapses(), self.world.now());
            let adopted = record.adopt(&owner, max, now).and_then(|adopted| adopted.start(&owner, now));
            let Ok(begun) = adopted else { return Ok(false) };
            if let Cas::Applied(version) = open.journal.commit_one(Change::update(version, &begun)).await? {
                work.record = Some(Stored { record: begun, version });
                (work.lapses, work.again, work.replay) = (lapses, false, true);
                return Ok(true);
            }
        }
        Ok(false)
    }
}
