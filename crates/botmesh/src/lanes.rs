use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::core::id::ChatId;

/// One at a time for each key: sends of a chat, so that they keep their order while one of them is being retried, and
/// changes of a user's state. Keys that nobody uses cost nothing.
pub(crate) struct Lanes<K> {
    lanes: Mutex<HashMap<K, Arc<AsyncMutex<()>>>>,
}

/// The right to go on.
pub(crate) struct Lane<'a, K: Eq + Hash = ChatId> {
    lanes: &'a Lanes<K>,
    key: K,
    guard: Option<OwnedMutexGuard<()>>,
}

impl<K> Default for Lanes<K> {
    fn default() -> Self {
        Self { lanes: Mutex::default() }
    }
}

impl<K: Eq + Hash + Clone> Lanes<K> {
    pub(crate) async fn enter(&self, key: &K) -> Lane<'_, K> {
        let (lane, mut entered) = self.approach(key);
        entered.guard = Some(lane.lock_owned().await);
        entered
    }

    /// Two different ones at once: nobody gets between, and who wants the same two does not wait for who waits for them.
    pub(crate) async fn enter_both(&self, keys: [&K; 2]) -> [Lane<'_, K>; 2] {
        let mut entering = {
            let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            keys.map(|key| {
                let lane = Arc::clone(lanes.entry(key.clone()).or_default());
                let mut wait = Box::pin(lane.lock_owned());
                // Takes a place in the lane.
                let guard = wait.as_mut().now_or_never();
                // The wait goes first: it keeps the lane in use.
                (wait, Lane { lanes: self, key: key.clone(), guard })
            })
        };
        for (wait, lane) in &mut entering {
            if lane.guard.is_none() {
                lane.guard = Some(wait.await);
            }
        }
        entering.map(|(_, lane)| lane)
    }

    /// `None` if somebody is in the lane.
    pub(crate) fn try_enter(&self, key: &K) -> Option<Lane<'_, K>> {
        let (lane, mut entered) = self.approach(key);
        entered.guard = Some(lane.try_lock_owned().ok()?);
        Some(entered)
    }

    /// The lane, and what cleans up after a wait for it that was dropped as well.
    fn approach(&self, key: &K) -> (Arc<AsyncMutex<()>>, Lane<'_, K>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = Arc::clone(lanes.entry(key.clone()).or_default());
        (lane, Lane { lanes: self, key: key.clone(), guard: None })
    }
}

impl<K: Eq + Hash> Drop for Lane<'_, K> {
    fn drop(&mut self) {
        self.guard = None;
        let mut lanes = self.lanes.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits for the lane or holds it keeps a clone.
        if lanes.get(&self.key).is_some_and(|lane| Arc::strong_count(lane) == 1) {
            lanes.remove(&self.key);
        }
    }
}
