//! Removes what outlived its retention, a page at a time.

use std::sync::PoisonError;
use std::time::Duration;

use super::{PAGE, Sweeper};
use crate::core::error::StoreError;
use crate::core::journal::{InboxRecord, InboxState, OutboxRecord, OutboxState, Record};
use crate::core::kv::Cursor;
use crate::core::time::Timestamp;
use crate::events::BotEvent;
use crate::world::OpenJournal;

/// Pages of finished records that one sweep removes at most. One would be less than a busy bot finishes meanwhile.
const MAX_PAGES: usize = 8;
/// How often dead letters are looked through at most: who is told about them wants to read it.
const DEAD_PERIOD: Duration = Duration::from_secs(3600);
/// Dead letters are counted up to this number; more are told as so many at least.
const MAX_COUNTED: usize = 50_000;

/// Where purging stands.
#[derive(Debug, Default)]
pub(super) struct Purging {
    done: Place,
    sent: Place,
    round: Option<Round>,
    /// When the last round began, on the monotonic clock.
    began: Option<Duration>,
}

/// One look through the dead letters that were over their retention when it began.
#[derive(Clone, Debug)]
struct Round {
    before: Timestamp,
    inbound: Place,
    outbound: Place,
    unknown: Place,
}

/// Where the next page of a state begins. Records that cannot be read are left, and must not be all that is looked at.
type Place = Option<Cursor>;

impl Sweeper {
    pub(super) async fn purge(&self, open: &OpenJournal) -> Result<(), StoreError> {
        let mut purging = std::mem::take(&mut *self.purging.lock().unwrap_or_else(PoisonError::into_inner));
        let result = self.purge_pages(open, &mut purging).await;
        *self.purging.lock().unwrap_or_else(PoisonError::into_inner) = purging;
        if result? {
            // More is left; go on at once, but after everything else that is due.
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Returns whether more is left.
    async fn purge_pages(&self, open: &OpenJournal, purging: &mut Purging) -> Result<bool, StoreError> {
        let mut more = false;
        if !open.config.retention.is_zero() {
            let before = self.world.now() - open.config.retention;
            for _ in 0..MAX_PAGES {
                more = purge::<InboxRecord>(open, InboxState::Done, before, &mut purging.done).await?;
                more |= purge::<OutboxRecord>(open, OutboxState::Sent, before, &mut purging.sent).await?;
                if !more {
                    break;
                }
            }
        }
        if purging.round.is_none() {
            purging.round = self.begin_round(open, &mut purging.began).await?;
        }
        if let Some(round) = &mut purging.round {
            let Round { before, inbound, outbound, unknown } = round;
            let mut dead = purge::<InboxRecord>(open, InboxState::Dead, *before, inbound).await?;
            dead |= purge::<OutboxRecord>(open, OutboxState::Dead, *before, outbound).await?;
            dead |= purge::<OutboxRecord>(open, OutboxState::Unknown, *before, unknown).await?;
            if !dead && [inbound, outbound, unknown].iter().all(|place| place.is_none()) {
                purging.round = None;
            }
            more |= dead;
        }
        Ok(more)
    }

    /// Tells how many dead letters are about to be removed, if there are any and the time has come.
    async fn begin_round(
        &self,
        open: &OpenJournal,
        began: &mut Option<Duration>,
    ) -> Result<Option<Round>, StoreError> {
        let retention = open.config.dead_retention;
        let now = self.world.seams.clock.monotonic();
        let recently = began.is_some_and(|began| now.saturating_sub(began) < DEAD_PERIOD.min(retention));
        if retention.is_zero() || recently {
            return Ok(None);
        }
        let before = self.world.now() - retention;
        let (inbox, outbox) = (open.journal.inbox(), open.journal.outbox());
        let inbound = inbox.count(InboxState::Dead, before, MAX_COUNTED).await?;
        let outbound = outbox.count(OutboxState::Dead, before, MAX_COUNTED).await?;
        let unknown = outbox.count(OutboxState::Unknown, before, MAX_COUNTED).await?;
        *began = Some(now);
        if inbound + outbound + unknown == 0 {
            return Ok(None);
        }
        let at_least = [inbound, outbound, unknown].contains(&MAX_COUNTED);
        self.world.events.emit(BotEvent::PurgingDead { inbound, outbound, unknown, at_least, before });
        Ok(Some(Round { before, inbound: None, outbound: None, unknown: None }))
    }
}

/// Removes the records of one page. Returns whether more is left, and is worth to go on at once.
async fn purge<R: Record>(
    open: &OpenJournal,
    state: R::State,
    before: Timestamp,
    place: &mut Place,
) -> Result<bool, StoreError> {
    let purged = open.journal.purge::<R>(state, before, place.as_ref(), PAGE).await?;
    *place = purged.next;
    Ok(purged.removed > 0 && place.is_some())
}
