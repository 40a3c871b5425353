use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{PAGE, Sweeper};
use crate::core::error::StoreError;
use crate::core::id::ChatId;
use crate::core::journal::{Leased, OutboxRecord, OutboxState, Sessions, Stored};
use crate::world::OpenJournal;

/// How long a sweep waits for room to call the channel, before it leaves the rest to the next one.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(1);

impl Sweeper {
    /// Takes up what is due in the outbox.
    pub(super) async fn take_sends(
        &self,
        open: &OpenJournal,
        due: Vec<Stored<OutboxRecord>>,
        until: Duration,
    ) -> Result<(), StoreError> {
        let mut chats: BTreeMap<ChatId, Vec<Stored<OutboxRecord>>> = BTreeMap::new();
        for stored in due {
            if stored.record.awaits_echo() {
                self.egress.stop_waiting_for_echo(open, &stored).await?;
            } else {
                chats.entry(stored.record.chat.clone()).or_default().push(stored);
            }
        }
        self.send_to(chats, until).await;
        Ok(())
    }

    /// Brings the sends of chats to an end, several chats at a time, in order for each. It waits for room until `until`, on
    /// the monotonic clock; what is left is due at the next sweep.
    async fn send_to(&self, chats: BTreeMap<ChatId, Vec<Stored<OutboxRecord>>>, until: Duration) {
        for (chat, due) in chats {
            if self.world.pace.is_paused(self.world.monotonic()) {
                return;
            }
            let about = chat.clone();
            let send = |sweeper: Self| async move {
                let Some(open) = &sweeper.world.journal else { return Ok(()) };
                if sweeper.egress.send_due(open, &about, due).await? {
                    sweeper.wake.notify_one();
                }
                Ok(())
            };
            if !self.call_channel(&chat, until, send).await {
                return;
            }
        }
    }

    /// Starts work that calls the channel for a chat, unless such work is under way. `false` if there is no room for it.
    async fn call_channel<F>(&self, chat: &ChatId, until: Duration, work: impl FnOnce(Self) -> F) -> bool
    where
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        let about = format!("sending to {chat}");
        let Some(begun) = self.busy.begin(about.clone()) else { return true };
        tokio::select! {
            biased;
            Ok(permit) = Arc::clone(&self.sending).acquire_owned() => {
                self.start(about, (begun, permit), work);
                true
            }
            () = self.world.seams.clock.sleep(until.saturating_sub(self.world.monotonic())) => false,
        }
    }

    /// Finds out what becomes of what dead processes left in flight. Returns whether there is any.
    pub(super) async fn settle_orphaned_sends(
        &self,
        open: &OpenJournal,
        sessions: &Sessions,
    ) -> Result<bool, StoreError> {
        let mut after = None;
        let mut found = false;
        loop {
            let page = open.journal.outbox().list(OutboxState::InFlight, after.as_ref(), PAGE).await?;
            self.tell_unreadable(&page.unreadable);
            let mut chats: BTreeMap<ChatId, Vec<Stored<OutboxRecord>>> = BTreeMap::new();
            for stored in page.records {
                if sessions.is_orphan(stored.record.owner.as_ref(), Leased::Sends) {
                    chats.entry(stored.record.chat.clone()).or_default().push(stored);
                }
            }
            found |= !chats.is_empty();
            self.send_to(chats, self.world.monotonic() + WAIT_FOR_ROOM).await;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Makes known which chats have unfinished sends: at the start, and again, once in a lease, when they were too many.
    pub(super) async fn note_chats_with_sends(&self, open: &OpenJournal) -> Result<(), StoreError> {
        let (backlog, now) = (&self.world.backlog, self.world.seams.clock.monotonic());
        let (tried, terms) =
            (*self.noted.lock().unwrap_or_else(PoisonError::into_inner), self.world.lead.terms());
        let recently = tried
            .is_some_and(|(tried, of)| now.saturating_sub(tried) < open.config.inbox.lease && of == terms);
        if backlog.is_complete() || recently {
            return Ok(());
        }
        let overflows = backlog.overflows();
        for state in [OutboxState::InFlight, OutboxState::Waiting] {
            let mut after = None;
            while overflows == backlog.overflows() {
                let page = open.journal.outbox().list(state, after.as_ref(), PAGE).await?;
                for stored in &page.records {
                    backlog.note(&stored.record.chat);
                }
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        backlog.complete(overflows);
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, terms));
        Ok(())
    }
}
