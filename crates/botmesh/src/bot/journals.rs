//! What an operator does with the journals of a running bot.

use std::sync::Arc;

use thiserror::Error;
use tokio::sync::Notify;

use crate::core::error::{Cas, StoreError};
use crate::core::id::{RecordId, SendKey};
use crate::core::journal::{
    Change, Inbox, InboxRecord, Journal, Outbox, OutboxRecord, OutboxState, Record, Refused, Stored,
};
use crate::core::kv::Version;
use crate::metrics::MetricsSnapshot;
use crate::world::World;

/// The most parts of one text that are looked at.
const MAX_PARTS: usize = 1000;

/// The journals of a running bot: look at what is unfinished, dead or done, and decide about it.
///
/// ```no_run
/// use botmesh::core::journal::{InboxState, OutboxState};
/// # async fn operate(bot: botmesh::Bot) -> botmesh::Result {
/// let Some(journals) = bot.durability() else { return Err("the bot is not durable, or does not run yet".into()) };
/// let page = journals.outbox().list(OutboxState::Dead, None, 50).await?;
/// for dead in &page.records {
///     println!("{} to {}: {:?}", dead.record.key, dead.record.chat, dead.record.error);
/// }
/// for unreadable in &page.unreadable {
///     println!("{} cannot be read: {}", unreadable.key, unreadable.reason);
/// }
/// let journals = journals.by("ana");
/// let _ = journals.retry_send("invoice:42").await?;
/// let _ = journals.replay_inbound("m/ana/7").await?;
/// let _ = journals.discard_send("invoice:43").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Journals {
    journal: Journal,
    world: Arc<World>,
    wake: Arc<Notify>,
    by: Option<Arc<str>>,
}

/// Why an operator's wish was not fulfilled. That somebody else changed the record at the same time is not an error but
/// [`Cas::Lost`].
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OperateError {
    /// There is no such record.
    #[error(
        "the {journal} has no record `{id}`: it never had, or the record was discarded or outlived its retention"
    )]
    NotFound {
        /// `inbox` or `outbox`.
        journal: &'static str,
        /// The id or key.
        id: String,
    },
    /// The state of the record does not permit it.
    #[error("{refused}; {}", advice(refused))]
    Refused {
        /// The record, its state, and what was asked of it.
        #[from]
        refused: Refused,
    },
    /// The backend failed.
    #[error(transparent)]
    Journal(#[from] StoreError),
}

fn advice(refused: &Refused) -> &'static str {
    match refused.state {
        "sent" => "to send it once more, use another key",
        _ => "try again when it is finished",
    }
}

impl Journals {
    pub(super) fn new(journal: Journal, world: Arc<World>, wake: Arc<Notify>) -> Self {
        Self { journal, world, wake, by: None }
    }

    /// For an operator of this name, who is remembered in the records that are replayed or sent again.
    #[must_use]
    pub fn by(mut self, name: impl Into<Arc<str>>) -> Self {
        self.by = Some(name.into());
        self
    }

    /// What arrived.
    pub fn inbox(&self) -> Inbox<'_> {
        self.journal.inbox()
    }

    /// What is sent.
    pub fn outbox(&self) -> Outbox<'_> {
        self.journal.outbox()
    }

    /// Counters, gauges and histograms; see [`Bot::metrics`](crate::Bot::metrics).
    pub fn metrics(&self) -> MetricsSnapshot {
        self.world.metrics.snapshot(Some(self.world.now()))
    }

    /// Has a message processed again, at once and with a fresh budget of attempts, whether it is done, dead or waits for a
    /// retry. What its handler sent before is answered from the outbox. Returns the record as it is now, with this decision
    /// and the attempts before it in its `revivals`.
    ///
    /// # Errors
    /// There is no such record, it is queued or being worked on, or the backend failed.
    pub async fn replay_inbound(&self, id: impl Into<RecordId>) -> Result<Cas<InboxRecord>, OperateError> {
        let id = id.into();
        let stored = found(self.inbox().get(&id).await?, id.as_str())?;
        let record = stored.record.replay(self.by.as_deref(), self.world.now())?;
        let outcome = self.journal.commit_one(Change::update(stored.version, &record)).await?;
        self.wake.notify_one();
        Ok(self.done("replayed", outcome, record))
    }

    /// Sends a message again, at once and with a fresh budget of attempts, whether it is dead, of unknown outcome or waits for
    /// a retry. If it is a part of a longer text, the other parts that are dead are sent too. Returns the record as it is now,
    /// with this decision and the attempts before it in its `revivals`.
    ///
    /// # Errors
    /// There is no such record, it is in flight or sent, or the backend failed.
    pub async fn retry_send(&self, key: impl Into<SendKey>) -> Result<Cas<OutboxRecord>, OperateError> {
        let key = key.into();
        let stored = found(self.outbox().get(&key).await?, key.as_str())?;
        let (by, now) = (self.by.as_deref(), self.world.now());
        let record = stored.record.retry(by, now)?;
        let mut changes = Vec::new();
        for part in self.other_parts(&record).await? {
            if part.record.state == OutboxState::Dead {
                changes.push(Change::update(part.version, &part.record.retry(by, now)?));
            }
        }
        changes.push(Change::update(stored.version, &record));
        // Before and after, as with every send that waits: what the chat gets next must not overtake it.
        self.world.backlog.note(&record.chat);
        let outcomes = self.journal.commit(changes).await?;
        self.world.backlog.note(&record.chat);
        self.wake.notify_one();
        Ok(self.done("retried", outcomes.into_iter().next_back().unwrap_or(Cas::Lost), record))
    }

    /// Forgets a message. If the channel delivers it again, it is handled again; what its handler sent before is still answered
    /// from the outbox. Returns the record as it was.
    ///
    /// # Errors
    /// There is no such record, it is queued or being worked on, or the backend failed.
    pub async fn discard_inbound(&self, id: impl Into<RecordId>) -> Result<Cas<InboxRecord>, OperateError> {
        let id = id.into();
        let stored = found(self.inbox().get(&id).await?, id.as_str())?;
        stored.record.discard()?;
        self.discard(stored).await
    }

    /// Forgets a send. Its key may then be used again. The parts of the same text that wait for it are given up. Returns the
    /// record as it was.
    ///
    /// # Errors
    /// There is no such record, it is in flight, or the backend failed.
    pub async fn discard_send(&self, key: impl Into<SendKey>) -> Result<Cas<OutboxRecord>, OperateError> {
        let key = key.into();
        let stored = found(self.outbox().get(&key).await?, key.as_str())?;
        stored.record.discard()?;
        self.discard(stored).await
    }

    async fn discard<R: Record>(&self, stored: Stored<R>) -> Result<Cas<R>, OperateError> {
        let outcome = self.journal.commit_one(Change::delete(&stored)).await?;
        Ok(self.done("discarded", outcome, stored.record))
    }

    fn done<R: Record>(&self, what: &'static str, outcome: Cas<Version>, record: R) -> Cas<R> {
        match outcome {
            Cas::Applied(_) => {
                tracing::info!(by = self.by.as_deref(), record = record.id(), "{what} in the {}", R::JOURNAL);
                Cas::Applied(record)
            }
            Cas::Lost => Cas::Lost,
        }
    }

    async fn other_parts(&self, record: &OutboxRecord) -> Result<Vec<Stored<OutboxRecord>>, StoreError> {
        let mut parts = Vec::new();
        for link in [OutboxRecord::previous_part, OutboxRecord::next_part] {
            let mut next = link(record).cloned();
            while let Some(key) = next.filter(|_| parts.len() < MAX_PARTS) {
                let Some(part) = self.outbox().get(&key).await? else { break };
                next = link(&part.record).cloned();
                parts.push(part);
            }
        }
        Ok(parts)
    }
}

fn found<R: Record>(stored: Option<Stored<R>>, id: &str) -> Result<Stored<R>, OperateError> {
    stored.ok_or_else(|| OperateError::NotFound { journal: R::JOURNAL, id: id.to_owned() })
}

impl std::fmt::Debug for Journals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journals")
            .field("journal", &self.journal)
            .field("by", &self.by)
            .finish_non_exhaustive()
    }
}
