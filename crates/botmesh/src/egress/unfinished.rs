//! Sends whose caller went away halfway. What is open is finished in the background, so that nothing stays in flight for
//! as long as the process lives.

use std::sync::Arc;

use super::attempt::conclude;
use crate::core::error::{Cas, ChannelError, ErrorClass, Phase, StoreError};
use crate::core::journal::{Change, ErrorNote, OutboxRecord, Stored};
use crate::core::kv::Version;
use crate::core::provider::SendReceipt;
use crate::world::{OpenJournal, World};

/// An attempt whose beginning is being journaled. If it is dropped open, the record may be in flight although the channel
/// was surely not called.
pub(super) struct Beginning<'a> {
    pub(super) world: &'a Arc<World>,
    pub(super) record: &'a OutboxRecord,
    /// The version that the beginning replaces.
    pub(super) replaces: Option<Version>,
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
        let (world, record, replaces) = (Arc::clone(self.world), self.record.clone(), self.replaces);
        let with = std::mem::take(&mut self.with);
        self.world.spawn_tracked("settle-dropped-send", async move {
            let Some(open) = &world.journal else { return };
            if let Err(error) = leave_waiting(&world, open, &record, replaces, with).await {
                world.events.error("leaving a send to the background", &error);
            }
        });
    }
}

/// Makes a send wait for the sweeper, whether its beginning took effect or not. To look would not be enough, because the
/// write may still be under way: this one writes too, and whichever comes second loses.
async fn leave_waiting(
    world: &World,
    open: &OpenJournal,
    begun: &OutboxRecord,
    replaces: Option<Version>,
    mut changes: Vec<Change>,
) -> Result<(), StoreError> {
    let now = world.now();
    let note = ErrorNote::from(&dropped(Phase::NotWritten));
    let waiting = begun.fail(note, Some(now), now).unwrap_or_else(|_| begun.clone());
    world.backlog.note(&begun.chat);
    changes.push(match replaces {
        None => Change::insert(&waiting),
        Some(version) => Change::update(version, &waiting),
    });
    let outcomes = open.journal.commit_patiently(changes, &world.abort).await?;
    if outcomes.last() != Some(&Cas::Lost) {
        return Ok(());
    }
    let stored = open.journal.outbox().get(&begun.key).await?;
    let same = |stored: &Stored<OutboxRecord>| {
        let OutboxRecord { state, order, attempts, .. } = &stored.record;
        (*state, *order, *attempts) == (begun.state, begun.order, begun.attempts)
    };
    if let Some(stored) = stored.filter(same) {
        let change = Change::update(stored.version, &waiting);
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
        let answer = self.answer.take().unwrap_or_else(|| Err(dropped(Phase::Unknown)));
        self.world.spawn_tracked("settle-dropped-send", async move {
            let Some(open) = &world.journal else { return };
            if let Err(error) = conclude(&world, open, None, &started, &answer).await {
                world.events.error("settling a send that was dropped", &error);
            }
        });
    }
}

fn dropped(phase: Phase) -> ChannelError {
    ChannelError::new(ErrorClass::Transient, phase, "the send was dropped by its caller")
}
