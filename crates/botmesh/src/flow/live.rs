use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::run::AnyFlow;
use super::talk::Idle;
use crate::core::id::ConversationKey;
use crate::core::store::Revision;
use crate::core::time::Timestamp;

/// Code in the middle of its work.
pub(crate) type Task = Box<dyn Any + Send>;

/// A conversation whose code waits for the user.
pub(crate) struct Live {
    pub(crate) task: Task,
    pub(crate) flow: Arc<dyn AnyFlow>,
    /// The checkpoint it wrote when it began to wait. If there is a newer one, this copy is stale.
    pub(crate) revision: Revision,
    /// What is said if the user is silent, and when.
    pub(crate) idle: Option<(Timestamp, Idle)>,
    /// When the wait ends.
    pub(crate) deadline: Option<Timestamp>,
}

impl Live {
    /// When something is to be done without a message of the user.
    fn due(&self) -> Option<Timestamp> {
        let idle = self.idle.as_ref().map(|(at, _)| *at);
        idle.into_iter().chain(self.deadline).min()
    }
}

/// The conversations that wait for the user with code in memory; the others cost nothing.
pub(crate) struct LiveConversations {
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// With the number of its last activity.
    live: HashMap<Arc<ConversationKey>, (u64, Live)>,
    /// By their last activity, oldest first.
    order: BTreeMap<u64, Arc<ConversationKey>>,
    due: BTreeMap<(Timestamp, u64), Arc<ConversationKey>>,
    next: u64,
}

impl LiveConversations {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a conversation out, to drive it under its chat's turn.
    pub(crate) fn take(&self, key: &ConversationKey) -> Option<Live> {
        self.lock().remove(key)
    }

    /// Puts a conversation back. Returns the one that was dropped for it, if there was no room: the one that was silent for
    /// longest.
    pub(crate) fn put(&self, key: ConversationKey, live: Live) -> Option<(ConversationKey, Live)> {
        let mut inner = self.lock();
        let stale = inner.remove(&key);
        let (key, number) = (Arc::new(key), inner.next);
        inner.next += 1;
        inner.order.insert(number, Arc::clone(&key));
        if let Some(at) = live.due() {
            inner.due.insert((at, number), Arc::clone(&key));
        }
        inner.live.insert(key, (number, live));
        let mut dropped = None;
        if inner.live.len() > self.capacity
            && let Some(oldest) = inner.order.first_entry().map(|oldest| Arc::clone(oldest.get()))
        {
            dropped = inner.remove(&oldest).map(|live| (ConversationKey::clone(&oldest), live));
        }
        drop(inner);
        drop(stale);
        dropped
    }

    /// The checkpoint at which a conversation waits.
    pub(crate) fn revision(&self, key: &ConversationKey) -> Option<Revision> {
        self.lock().live.get(key).map(|(_, live)| live.revision)
    }

    /// Conversations in which something is due, at most `limit`.
    pub(crate) fn due(&self, now: Timestamp, limit: usize) -> Vec<ConversationKey> {
        let inner = self.lock();
        let due = inner.due.range(..=(now, u64::MAX)).take(limit);
        due.map(|(_, key)| ConversationKey::clone(key)).collect()
    }
}

impl Inner {
    fn remove(&mut self, key: &ConversationKey) -> Option<Live> {
        let (number, live) = self.live.remove(key)?;
        self.order.remove(&number);
        if let Some(at) = live.due() {
            self.due.remove(&(at, number));
        }
        Some(live)
    }
}
