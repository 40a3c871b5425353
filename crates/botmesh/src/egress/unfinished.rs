//! Sends whose caller went away halfway. What is open is finished in the background, so that nothing stays in flight for
//! as long as the process lives.

use std::sync::Arc;

use super::attempt::conclude;
use crate::core::error::{Cas, ChannelError, ErrorClass, Phase, StoreError};
use crate::core::journal::{Change, OutboxRecord, Stored};
use crate::core::provider::SendReceipt;
use crate::world::{OpenJournal, World};

/// An attempt whose beginning is being journaled. If it is dropped open, the record may be in flight although the channel
/// was surely not called.
pub(super) struct Beginning<'a> {
    pub(super) world: &'a Arc<World>,
    pub(super) record: &'a OutboxRecord,
    /// The change that makes it durable, identified.
    pub(super) change: Change,
    /// What is written in the same commit.
    pub(super) with: Vec<Change>,
    pub(super) open: bool,
}

impl Beginning<'_> {
    pub(super) fn close(mut self) {
        self.open = false;
    }
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (world, record, change) = (Arc::clone(self.world), self.record.clone(), self.change.clone());
        let with = std::mem::take(&mut self.with);
        self.world.spawn_tracked("settle-dropped-send", async move {
            let Some(open) = &world.journal else { return };
            if let Err(error) = leave_waiting(&world, open, &record, change, with).await {
                world.events.error("leaving a send to the background", &error);
            }
        });
    }
}

/// Makes a send wait for the sweeper, whether its beginning took effect or not. Only the write itself tells whether it did:
/// another attempt of this process with the same number may be under way by now.
async fn leave_waiting(
    world: &World,
    open: &OpenJournal,
    begun: &OutboxRecord,
    change: Change,
    with: Vec<Change>,
) -> Result<(), StoreError> {
    world.backlog.note(&begun.chat);
    if !with.is_empty() {
        // They lose where they took effect already.
        let _ = open.journal.commit_patiently(with, &world.abort).await?;
    }
    let Cas::Applied(version) = open.journal.find_out(change, &world.abort).await? else { return Ok(()) };
    // It is waiting already if it was journaled so.
    if let Ok(waiting) = begun.release(world.now()) {
        let change = Change::update(version, &waiting);
        world.count_stale(&open.journal.commit_patiently(vec![change], &world.abort).await?);
    }
    Ok(())
}

/// A call of the channel, and what the channel answered. If it is dropped open, the outcome is recorded in the background;
/// without an answer the send is ambiguous like after a crash.
pub(super) struct Call<'a> {
    pub(super) world: &'a Arc<World>,
    pub(super) started: Stored<OutboxRecord>,
    pub(super) answer: Option<Result<SendReceipt, ChannelError>>,
    pub(super) open: bool,
}

impl Call<'_> {
    pub(super) fn close(mut self) {
        self.open = false;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (world, started) = (Arc::clone(self.world), self.started.clone());
        let answer = self.answer.take().unwrap_or_else(|| Err(dropped()));
        self.world.spawn_tracked("settle-dropped-send", async move {
            let Some(open) = &world.journal else { return };
            if let Err(error) = conclude(&world, open, None, &started, &answer).await {
                world.events.error("settling a send that was dropped", &error);
            }
        });
    }
}

fn dropped() -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::Unknown, "the send was dropped by its caller")
}
