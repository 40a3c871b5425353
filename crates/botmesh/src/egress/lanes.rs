use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::core::id::ChatId;

/// One send at a time for each chat, so that sends keep their order while one of them is being retried. Chats without a
/// send cost nothing.
#[derive(Default)]
pub(crate) struct Lanes {
    chats: Mutex<HashMap<ChatId, Arc<AsyncMutex<()>>>>,
}

/// The right to send to a chat.
pub(crate) struct Lane<'a> {
    lanes: &'a Lanes,
    chat: ChatId,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Lanes {
    pub(crate) async fn enter(&self, chat: &ChatId) -> Lane<'_> {
        let lane = {
            let mut chats = self.chats.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(chats.entry(chat.clone()).or_default())
        };
        // Made before the wait, so that a dropped wait cleans up as well.
        let mut entered = Lane { lanes: self, chat: chat.clone(), guard: None };
        entered.guard = Some(lane.lock_owned().await);
        entered
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut chats = self.lanes.chats.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits for the lane or holds it keeps a clone.
        if chats.get(&self.chat).is_some_and(|lane| Arc::strong_count(lane) == 1) {
            chats.remove(&self.chat);
        }
    }
}
