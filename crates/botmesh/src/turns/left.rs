//! What a replica left in a chat that lost its turn there: it goes before what arrived after it.

use std::sync::Arc;
use std::time::Duration;

use super::worker::{Again, Finished};
use super::{Turns, Work};
use crate::core::coordinator::Turn;
use crate::core::error::{Cas, StoreError};
use crate::core::id::{ConversationKey, RecordId};
use crate::core::journal::{Change, InboxRecord, InboxState, Leased, Stored};
use crate::scheduler::is_task;
use crate::world::OpenJournal;

/// How often, and after which pause, it is looked again for what somebody else was about to take.
const ROUNDS: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

pub(super) const LOOKING: &str = "looking for what another replica left in a chat";

/// The place of a message in the order of arrival. One that is not journaled comes after all that is.
fn order_of(work: &Work) -> i64 {
    work.record.as_ref().map_or(i64::MAX, |stored| stored.record.order)
}

enum Looked {
    All,
    /// There is more than can be handled in one go.
    More,
    /// Somebody was about to take some of it.
    Again,
    /// The turn was lost meanwhile, so that others may be at it.
    TurnLost,
}

/// What becomes of a message that is to begin under its turn.
pub(super) enum Begins {
    Now,
    /// It is over, or waits for its next attempt.
    NotAtAll,
    /// The turn was lost meanwhile, so that others may be at it.
    WithAnotherTurn,
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
        let mut lost = 0;
        loop {
            // What the sweeper took up stands behind what arrived later.
            let mut earlier = self.queues.take_earlier(key, order);
            let looked = match turn.was_given_back() {
                true => Ok(Looked::All),
                false => self.take_left(open, turn, key, before, &mut earlier).await,
            };
            earlier.sort_by_key(|work| work.record.as_ref().map(|stored| stored.record.order));
            self.handle_left(turn, key, earlier).await?;
            match looked {
                Ok(Looked::All) => return Ok(()),
                Ok(Looked::More) => {}
                // Whoever won the race may be no further.
                Ok(Looked::Again) if lost < ROUNDS => {
                    lost += 1;
                    self.world.seams.clock.sleep(PAUSE).await;
                }
                Ok(Looked::Again | Looked::TurnLost) => return Err(StillLeft),
                Err(error) => {
                    self.world.trouble(LOOKING, &error);
                    return Err(StillLeft);
                }
            }
        }
    }

    /// Whether something of the conversation is left by who is dead, as far as anybody can tell.
    pub(super) async fn is_left_by_dead(&self, key: &ConversationKey) -> bool {
        let Some(open) = &self.world.journal else { return false };
        let looked = tokio::try_join!(self.looks.of(&open.journal, key, i64::MAX), open.journal.sessions());
        looked.map_or(true, |(left, sessions)| {
            left.messages.iter().any(|left| sessions.is_orphan(left.record.owner.as_ref(), Leased::Messages))
        })
    }

    /// Whether something of the conversation is unfinished, whoever owns it.
    pub(crate) async fn is_left(&self, key: &ConversationKey) -> Result<bool, StoreError> {
        match &self.world.journal {
            Some(open) => Ok(!self.looks.of(&open.journal, key, i64::MAX).await?.messages.is_empty()),
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
            if let Some(open) = &self.world.journal {
                self.set_apart(open, &mut work).await;
            }
            let again = match self.begin_left(turn, work).await {
                Ok(None) => None,
                Ok(Some(work)) => {
                    let finished = self.run_under(turn.clone(), key, work).await;
                    self.settle_left(finished).await
                }
                Err(work) => Some(*work),
            };
            if again.is_some() || self.world.abort.is_cancelled() {
                let again = again.into_iter().chain(works);
                again.rev().for_each(|work| self.queues.put_first(key, work));
                return Err(StillLeft);
            }
        }
        Ok(())
    }

    /// A message that goes first, begun; `None` if somebody else had it meanwhile. The message as it was if nobody can tell.
    async fn begin_left(&self, turn: &Turn, work: Work) -> Result<Option<Work>, Box<Work>> {
        let work = match work.under_turn {
            true => Some(work),
            false => self.settle(None, Some(work)).await,
        };
        let (mut work, open) = match (work, &self.world.journal) {
            (Some(work), Some(open)) if work.under_turn => (work, open),
            (work, _) => return Ok(work),
        };
        match self.take_over(open, turn, &mut work).await {
            Ok(Begins::Now) => Ok(Some(work)),
            Ok(Begins::NotAtAll) => Ok(None),
            Ok(Begins::WithAnotherTurn) => Err(Box::new(work)),
            Err(error) => {
                self.world.trouble(LOOKING, &error);
                Err(Box::new(work))
            }
        }
    }

    /// Makes this process the owner of what arrived before `before` and is left, and adds it to what was found `earlier`.
    async fn take_left(
        &self,
        open: &OpenJournal,
        turn: &Turn,
        key: &ConversationKey,
        before: &Work,
        earlier: &mut Vec<Work>,
    ) -> Result<Looked, StoreError> {
        let (owner, max, now) = (open.journal.owner(), open.config.inbox.max_attempts, self.world.now());
        let found = |id: &RecordId| {
            let mut known = earlier.iter().chain([before]).filter_map(|work| work.record.as_ref());
            known.any(|known| known.record.id == *id)
        };
        let left = self.looks.of(&open.journal, key, order_of(before)).await?;
        // After the look: what others do with it from now on is noticed by its version.
        if turn.check().is_err() {
            return Ok(Looked::TurnLost);
        }
        let taken: Vec<_> = left
            .messages
            .into_iter()
            .filter(|stored| !found(&stored.record.id))
            .filter_map(|stored| Some((stored.version, stored.record.adopt(&owner, max, now).ok()?)))
            .filter(|(_, record)| record.state == InboxState::Queued)
            .collect();
        if taken.is_empty() {
            // Behind those that are at hand there may be more.
            return Ok(if left.more && !earlier.is_empty() { Looked::More } else { Looked::All });
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
        Ok(match all {
            true if left.more => Looked::More,
            true => Looked::All,
            false => Looked::Again,
        })
    }

    /// As for any message, but the turn is kept. Returns what is to be tried again, before what arrived after it.
    async fn settle_left(&self, mut finished: Finished) -> Option<Work> {
        let record = match self.again(&finished) {
            None => None,
            Some(Again::Held) => self.hold(&finished.work).await,
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

    /// Puts the record of a message whose attempt did not count back into its place; `None` if somebody else has it now.
    async fn hold(&self, work: &Work) -> Option<Stored<InboxRecord>> {
        let stored = work.record.as_ref()?;
        self.write(stored, stored.record.release(self.world.now()).ok()?).await
    }

    /// Puts the record of a message whose attempt failed back into its place; `None` if that cannot be.
    async fn postpone(&self, work: &Work, error: &str) -> Option<Stored<InboxRecord>> {
        let (open, stored) = (self.world.journal.as_ref()?, work.record.as_ref()?);
        let (owner, max, now) = (open.journal.owner(), open.config.inbox.max_attempts, self.world.now());
        let record = stored.record.fail(error, now, max, now).ok()?.adopt(&owner, max, now).ok()?;
        self.write(stored, record).await
    }

    /// Makes durable what became of a message; `None` if somebody else has it now, or nothing can be written any more.
    pub(super) async fn write(
        &self,
        stored: &Stored<InboxRecord>,
        record: InboxRecord,
    ) -> Option<Stored<InboxRecord>> {
        let open = self.world.journal.as_ref()?;
        let change = vec![Change::update(stored.version, &record)];
        let outcomes = open.journal.commit_patiently(change, &self.world.abort).await.ok()?;
        let version = outcomes.into_iter().next()?.applied()?;
        Some(Stored { record, version })
    }

    /// Makes this process the owner of a message that begins under its turn, and begins it, whoever has it: without the turn they
    /// cannot handle it.
    pub(super) async fn take_over(
        &self,
        open: &OpenJournal,
        turn: &Turn,
        work: &mut Work,
    ) -> Result<Begins, StoreError> {
        let Some(id) = work.record.as_ref().map(|stored| stored.record.id.clone()) else {
            return Ok(Begins::NotAtAll);
        };
        let (owner, max) = (open.journal.owner(), open.config.inbox.max_attempts);
        for _ in 0..ROUNDS {
            let found = open.journal.inbox().get(&id).await?;
            let Some(Stored { record, version }) = found.filter(|found| found.record.is_in_process()) else {
                return Ok(Begins::NotAtAll);
            };
            // After it was read: what others do with it from now on is noticed by its version.
            if turn.check().is_err() {
                return Ok(Begins::WithAnotherTurn);
            }
            let (lapses, now) = (open.journal.lease().lapses(), self.world.now());
            // It may have begun here already, without an answer.
            let begun = match record.state == InboxState::Working && record.owner.as_ref() == Some(&owner) {
                true => record.begin_again(None, &owner, max, now),
                false => record.adopt(&owner, max, now).and_then(|adopted| adopted.start(&owner, now)),
            };
            let Ok(begun) = begun else { return Ok(Begins::NotAtAll) };
            if let Cas::Applied(version) = open.journal.commit_one(Change::update(version, &begun)).await? {
                work.record = Some(Stored { record: begun, version });
                (work.lapses, work.under_turn, work.replay) = (lapses, false, true);
                return Ok(Begins::Now);
            }
        }
        Ok(Begins::WithAnotherTurn)
    }
}
