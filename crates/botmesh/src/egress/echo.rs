//! Channels that send back what they delivered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Egress, Sent};
use crate::core::error::{Cas, StoreError, StoreErrorKind};
use crate::core::id::SendKey;
use crate::core::journal::{Change, OutboxState};
use crate::core::provider::SendReceipt;
use crate::events::BotEvent;

/// How long a confirmation waits, again and again, for the call of this process that it is about. As often it is written
/// again when somebody else changed the record meanwhile. Together 5 s.
const PAUSES: [Duration; 10] = {
    let mut pauses = [Duration::from_millis(5); 10];
    let mut n = 1;
    while n < pauses.len() {
        pauses[n] = pauses[n - 1].saturating_mul(2);
        n += 1;
    }
    pauses
};

/// The calls of the channel that are under way, and the echoes that came before their answers.
#[derive(Debug, Default)]
pub(crate) struct Echoes(Mutex<HashMap<SendKey, Option<SendReceipt>>>);

impl Echoes {
    fn lock(&self) -> MutexGuard<'_, HashMap<SendKey, Option<SendReceipt>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn expect(&self, key: &SendKey) {
        self.lock().insert(key.clone(), None);
    }

    /// What came since [`expect`](Self::expect).
    pub(super) fn take(&self, key: &SendKey) -> Option<SendReceipt> {
        let mut calls = self.lock();
        // A key is not even hashed where the channel has no echoes.
        if calls.is_empty() { None } else { calls.remove(key).flatten() }
    }

    /// Leaves an echo to the call that is under way, if there is one.
    fn offer(&self, key: &SendKey, receipt: &SendReceipt) {
        if let Some(slot) = self.lock().get_mut(key) {
            *slot = Some(receipt.clone());
        }
    }
}

impl Egress {
    /// The channel has the message of this token. Returns when that is durable: the channel does not tell it again.
    pub(crate) async fn confirm(&self, token: &SendKey, receipt: &SendReceipt) -> Result<(), StoreError> {
        let Some(open) = &self.world.journal else { return Ok(()) };
        self.world.echoes.offer(token, receipt);
        for pause in PAUSES {
            let Some(stored) = open.journal.outbox().get(token).await? else { return Ok(()) };
            if stored.record.state == OutboxState::Sent {
                return Ok(());
            }
            if stored.record.owner.as_ref() == Some(&open.journal.owner()) {
                // In flight of this process: its call has the receipt now, and records it.
                self.world.seams.clock.sleep(pause).await;
                continue;
            }
            let Ok(record) = stored.record.confirm(receipt.message.clone(), self.world.now()) else {
                return Ok(());
            };
            let was_told = stored.record.state == OutboxState::Unknown && !stored.record.awaits_echo();
            if let Cas::Applied(_) = open.journal.commit_one(Change::update(stored.version, &record)).await? {
                if was_told {
                    let (key, chat) = (record.key.clone(), record.chat.clone());
                    self.world.events.emit(BotEvent::Resolved { key, chat });
                }
                let sent = Sent { key: record.key, message: record.message, deduped: false };
                self.after_sent(&record.chat, &record.content, &sent).await;
                return Ok(());
            }
        }
        let problem = "the send is still under way; let the channel tell it again";
        Err(StoreError::new(StoreErrorKind::Unavailable, "outbox", "confirm", problem))
    }
}
