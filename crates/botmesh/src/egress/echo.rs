//! Channels that send back what they delivered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Egress, Sent};
use crate::core::error::{Cas, StoreError};
use crate::core::id::SendKey;
use crate::core::journal::{Change, OutboxState};
use crate::core::provider::SendReceipt;
use crate::events::BotEvent;

/// How often a confirmation is written again when somebody else changed the record meanwhile.
const TRIES: usize = 5;

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
    fn offer(&self, key: &SendKey, receipt: &SendReceipt) -> bool {
        self.lock().get_mut(key).map(|slot| *slot = Some(receipt.clone())).is_some()
    }
}

impl Egress {
    /// The channel has the message of this token.
    pub(crate) async fn confirm(&self, token: &SendKey, receipt: &SendReceipt) -> Result<(), StoreError> {
        let Some(open) = &self.world.journal else { return Ok(()) };
        if self.world.echoes.offer(token, receipt) {
            return Ok(());
        }
        for _ in 0..TRIES {
            let Some(stored) = open.journal.outbox().get(token).await? else { return Ok(()) };
            // In flight of this process: it has its answer, which is being recorded.
            let known = stored.record.state == OutboxState::Sent
                || stored.record.owner.as_ref() == Some(&open.journal.owner());
            if known {
                return Ok(());
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
        Ok(())
    }
}
