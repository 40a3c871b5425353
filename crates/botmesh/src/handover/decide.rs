use super::InterruptedReason;
use crate::core::id::{RecordId, SessionId};
use crate::core::store::{Checkpoint, CheckpointPhase, Revision};
use crate::core::time::Timestamp;

/// What a process finds of a conversation when a turn of its chat begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    /// Whether there may be other replicas.
    pub(crate) coordinated: bool,
    /// Who has the turn.
    pub(crate) session: &'a SessionId,
    /// Who had the chat's turn before; `None` if nobody knows.
    pub(crate) previous: Option<&'a SessionId>,
    /// When that is, or when the message arrived that the turn is for.
    pub(crate) now: Timestamp,
    /// What this process noted for itself.
    pub(crate) local: Option<&'a Checkpoint>,
    /// What is in the store.
    pub(crate) shared: Option<&'a Checkpoint>,
    /// The checkpoint at which the code waits in the memory of this process.
    pub(crate) live: Option<Revision>,
    /// Whether the flow of the store's checkpoint, or one that waits for its end, has other steps here.
    pub(crate) changed: bool,
}

/// The message that comes to the conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) record: Option<&'a RecordId>,
    /// When it arrived.
    pub(crate) received: Timestamp,
    /// Its place in the order of arrival, if it may have been handled before.
    pub(crate) handled_order: Option<i64>,
}

impl Message<'_> {
    /// Whether it was handled before a later message came to this conversation, or began it. Two processes may give the same
    /// place in one instant.
    pub(crate) fn is_past(&self, row: &Checkpoint) -> bool {
        let is_own = self.record.is_some() && row.input.as_ref() == self.record;
        !is_own && self.handled_order.zip(row.input_order).is_some_and(|(handled, taken)| handled <= taken)
    }
}

/// Where a conversation stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Standing<'a> {
    /// There is none.
    Nowhere,
    /// In the memory of this process.
    Local(&'a Checkpoint),
    /// In the store.
    Shared(&'a Checkpoint),
    /// In the store, but it cannot go on here.
    Interrupted(&'a Checkpoint, InterruptedReason),
}

/// What becomes of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nobody waits for it: it is handled as any other.
    Route,
    /// The conversation holds its effects already; only its acknowledgement is missing.
    Done,
    /// The conversation's wait was over before it came.
    Overdue,
    /// The conversation goes on.
    GoOn(Feed),
    /// The conversation cannot go on: the fallback decides.
    Fallback(InterruptedReason),
}

/// How a conversation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feed {
    /// The code that waits in memory gets the message as its answer.
    Live,
    /// The message answers the question that the step asked.
    Answer,
    /// The step gets the answer that was recorded; the message is for the question that comes next.
    Recorded,
    /// The step begins again; the message only woke it.
    Again,
}

impl<'a> Found<'a> {
    /// Where the conversation stands.
    pub(crate) fn standing(&self) -> Standing<'a> {
        let is_over = |row: &Checkpoint| row.phase == CheckpointPhase::Ended;
        if let Some(local) = self.local
            && !is_over(local)
            && self.is_latest(local)
        {
            return Standing::Local(local);
        }
        match self.shared {
            None => Standing::Nowhere,
            Some(row) if is_over(row) || self.has_expired(row) => Standing::Nowhere,
            Some(row) if row.phase == CheckpointPhase::Stub => {
                Standing::Interrupted(row, InterruptedReason::InMemory)
            }
            Some(row) if self.has_changed(row) => Standing::Interrupted(row, InterruptedReason::Changed),
            Some(row) => Standing::Shared(row),
        }
    }

    /// Whether what this process noted is over, because others had the chat since.
    pub(crate) fn is_stale(&self) -> bool {
        self.local.is_some_and(|local| local.phase != CheckpointPhase::Ended && !self.is_latest(local))
    }

    /// Whether nobody else had the chat since this process noted that: the one before was this process, or the store still
    /// has what it wrote.
    fn is_latest(&self, local: &Checkpoint) -> bool {
        let own = |session: &SessionId| session == self.session || *session == local.session;
        let stub = self.shared.filter(|row| row.phase == CheckpointPhase::Stub);
        !self.coordinated || self.previous.is_some_and(own) || stub.is_some_and(|stub| own(&stub.session))
    }

    /// A row that expires does so for others than its writer.
    fn has_expired(&self, row: &Checkpoint) -> bool {
        row.expires.is_some_and(|expires| expires <= self.now) && row.session != *self.session
    }

    /// A forwarded flow goes on only where it is the same flow. A persistent one finds its step by its id.
    fn has_changed(&self, row: &Checkpoint) -> bool {
        row.expires.is_some() && self.changed
    }

    /// Whether the code that waits in memory waits for what this row says.
    fn is_live(&self, row: &Checkpoint) -> bool {
        self.live == Some(row.revision)
    }
}

/// What becomes of a message that comes to a chat.
pub(crate) fn decide(found: &Found<'_>, message: &Message<'_>) -> Decision {
    let is_own = |row: &Checkpoint| message.record.is_some() && row.input.as_ref() == message.record;
    let holds = |row: &Checkpoint| message.record.is_some_and(|record| row.earlier.contains(record));
    let rows = || [found.local, found.shared].into_iter().flatten();
    let ended = |row: &Checkpoint| row.phase == CheckpointPhase::Ended;
    if rows().any(|row| holds(row) || (ended(row) && is_own(row))) {
        return Decision::Done;
    }
    let row = match found.standing() {
        Standing::Nowhere => return Decision::Route,
        Standing::Interrupted(row, _) | Standing::Local(row) | Standing::Shared(row)
            if message.is_past(row) =>
        {
            return Decision::Route;
        }
        Standing::Interrupted(_, reason) => return Decision::Fallback(reason),
        Standing::Local(row) | Standing::Shared(row) => row,
    };
    match row.phase {
        CheckpointPhase::Waiting if is_own(row) => Decision::Done,
        // What came in time is in time, however late it is handled.
        CheckpointPhase::Waiting if row.deadline.is_some_and(|end| end <= message.received) => {
            Decision::Overdue
        }
        CheckpointPhase::Waiting if found.is_live(row) => Decision::GoOn(Feed::Live),
        // A question that is not the step's first is not asked where the step begins again.
        CheckpointPhase::Waiting if row.midway.as_ref().is_some_and(|midway| midway.question > 1) => {
            Decision::GoOn(Feed::Again)
        }
        CheckpointPhase::Waiting => Decision::GoOn(Feed::Answer),
        CheckpointPhase::Running => Decision::GoOn(match &row.answer {
            Some(answer) if answer.record.is_some() && answer.record.as_ref() == message.record => {
                Feed::Answer
            }
            Some(_) => Feed::Recorded,
            None => Feed::Again,
        }),
        _ => Decision::Route,
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
