//! What is due in conversations without a message of their user.

use std::sync::Arc;

use super::conversations::Conversations;
use super::live::Live;
use super::rows::{EndedConversation, Place, Rows};
use super::run::Start;
use super::stopped::Stopped;
use super::talk::{Fed, Idle};
use crate::core::content::Content;
use crate::core::coordinator::Turn;
use crate::core::error::{Cas, StoreError};
use crate::core::id::ConversationKey;
use crate::core::store::{Checkpoint, CheckpointPhase, Revision};
use crate::core::time::Timestamp;
use crate::dispatch::Ctx;
use crate::handover::Standing;
use crate::world::World;

/// What is due in a conversation without a message of its user.
pub(crate) enum Due {
    /// To say something, because the user is silent. The conversation is to be put back afterwards.
    Idle(Live, Idle),
    /// The wait is over, and code waits for it.
    Live(Overdue),
    /// The wait is over.
    Ended(Overdue),
}

/// A conversation whose wait is over.
pub(crate) struct Overdue {
    /// What the flow says then.
    pub(crate) say: Option<Content>,
    pub(crate) checkpoint: Checkpoint,
    place: Place,
    /// The store's stub of it.
    stub: Option<Revision>,
}

impl Conversations {
    /// Conversations in which something is due without a message of their user.
    pub(crate) async fn overdue(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<ConversationKey>, StoreError> {
        let mut due = self.live.due(now, limit);
        for place in self.places() {
            let rows = self.store(place).due_checkpoints(now, limit).await?;
            due.extend(rows.into_iter().map(|(key, _)| key));
        }
        Ok(due)
    }

    /// What is due in a conversation, if something still is.
    pub(crate) async fn due(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        now: Timestamp,
    ) -> Result<Option<Due>, StoreError> {
        let rows = self.load(key).await?;
        let found = self.found(&rows, turn, key, now);
        let (place, checkpoint) = match found.standing() {
            Standing::Local(row) => (Place::Local, row),
            Standing::Shared(row) => (Place::Shared, row),
            Standing::Nowhere | Standing::Interrupted(..) => {
                drop(self.live.take(key));
                self.clear_leftovers(turn, key, &rows, now).await?;
                return Ok(None);
            }
        };
        if checkpoint.phase != CheckpointPhase::Waiting {
            drop(self.live.take(key));
            return self.clear_leftovers(turn, key, &rows, now).await.map(|()| None);
        }
        let live = self.live.take(key).filter(|live| live.revision == checkpoint.revision);
        if checkpoint.deadline.is_some_and(|deadline| deadline <= now) {
            let flow = self.flows.get(&checkpoint.flow);
            let say = flow.and_then(|flow| self.timeout_text(flow, &checkpoint.callers)).cloned();
            let replays = flow.is_some_and(|flow| flow.replays());
            let stub = rows.shared.as_ref().filter(|row| row.phase == CheckpointPhase::Stub);
            let stub = stub.map(|stub| stub.revision);
            let overdue = Overdue { say, checkpoint: checkpoint.clone(), place, stub };
            return Ok(Some(match live {
                Some(live) => {
                    self.put_back(key, live);
                    Due::Live(overdue)
                }
                None if replays => Due::Live(overdue),
                None => Due::Ended(overdue),
            }));
        }
        self.clear_leftovers(turn, key, &rows, now).await?;
        let is_kept = checkpoint.due.is_none_or(|due| due > now);
        let Some(mut live) = live.filter(|_| is_kept) else { return Ok(None) };
        match live.idle.take() {
            Some((at, idle)) if at <= now => Ok(Some(Due::Idle(live, idle))),
            idle => {
                live.idle = idle;
                self.put_back(key, live);
                Ok(None)
            }
        }
    }

    /// Clears rows that are kept no longer.
    async fn clear_leftovers(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        rows: &Rows,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        for (place, row) in [(Place::Local, &rows.local), (Place::Shared, &rows.shared)] {
            let over = |row: &&Checkpoint| row.due.is_some_and(|due| due <= now);
            if let Some(row) = row.as_ref().filter(over) {
                // Whoever wrote a newer one looks after it.
                let _ = self.store(place).clear_checkpoint(turn, key, row.revision).await?;
            }
        }
        Ok(())
    }

    /// Puts back what was taken out to look at it.
    pub(crate) fn put_back(&self, key: &ConversationKey, live: Live) {
        drop(self.live.put(key.clone(), live));
    }

    /// Tells waiting code that nobody answered in time, and lets it go on.
    pub(crate) async fn time_out_live(
        &self,
        ctx: &Ctx,
        overdue: Overdue,
    ) -> Result<Option<EndedConversation>, Stopped> {
        let key = ctx.conversation();
        let Overdue { checkpoint, place, .. } = overdue;
        let live = self.live.take(&key);
        let rows = self.load(&key).await?;
        let earlier = self.unacknowledged(ctx, &rows).await?;
        let flow = Arc::clone(self.find(&checkpoint.flow)?);
        let start = match live {
            Some(live) => Start::Live { task: live.task, fed: Fed::TimedOut },
            None => Start::TimedOut(checkpoint.state.clone()),
        };
        let mut stored = self.stored(&rows, place, &checkpoint, earlier);
        self.advance(ctx, &flow, start, &mut stored).await.inspect_err(|stopped| {
            if let Stopped::Incompatible(why) = stopped {
                self.tell_incompatible(ctx, flow.name(), why);
            }
        })
    }

    /// Ends a conversation whose wait is over.
    pub(crate) async fn end_overdue(
        &self,
        world: &World,
        turn: &Turn,
        key: &ConversationKey,
        overdue: &Overdue,
    ) -> Result<(), StoreError> {
        let Overdue { checkpoint, place, stub, .. } = overdue;
        if let Some(stub) = stub {
            let _ = self.store(Place::Shared).clear_checkpoint(turn, key, *stub).await?;
        }
        let removed = self.remove((world, turn, key), (*place, checkpoint), None).await?;
        if removed == Cas::Applied(()) {
            self.tell_timeout(world, key, &checkpoint.flow);
        }
        Ok(())
    }
}
