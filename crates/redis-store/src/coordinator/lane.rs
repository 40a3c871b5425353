//! A bucket in the eyes of one replica. It has a session of its own there, so that what becomes of the data of one bucket
//! ends the turns of that bucket alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use botmesh_core::coordinator::Fence;
use botmesh_core::coordinator::machine::Leaving;
use tokio::sync::{Notify, OwnedMutexGuard, mpsc};

use super::bucket::Bucket;
use super::failure::Failure;
use super::groups::Groups;
use super::session::Session;

/// What is to be done besides the calls.
pub(super) enum Job {
    /// Give a ticket back, until the server has taken it.
    Leave { session: Arc<Session>, key: Arc<str>, seq: u64, leaving: Leaving },
    /// Ask for every ticket of a session, those that hold too, until each is confirmed.
    Ask(Arc<Session>),
}

pub(super) struct Lane {
    pub(super) number: usize,
    pub(super) bucket: Bucket,
    /// Asks for a session where there is none.
    pub(super) wanted: Notify,
    /// Tells of a new session.
    pub(super) opened: Notify,
    /// Tells of a ticket that asks before all others.
    pub(super) sooner: Notify,
    pub(super) jobs: mpsc::UnboundedSender<Job>,
    /// Why no session can be opened.
    pub(super) refused: Failure,
    largest: AtomicU64,
    /// When a session ended whose tickets are to be removed, 0 for none.
    unswept: AtomicU64,
    /// For which end all nodes have been looked through.
    looked_for: AtomicU64,
    order: Order,
    pub(super) groups: Groups,
}

impl Lane {
    pub(super) fn new(number: usize, bucket: Bucket, floor: Fence, jobs: mpsc::UnboundedSender<Job>) -> Self {
        Self {
            number,
            bucket,
            wanted: Notify::new(),
            opened: Notify::new(),
            sooner: Notify::new(),
            jobs,
            refused: Failure::default(),
            largest: AtomicU64::new(floor.0),
            unswept: AtomicU64::new(0),
            looked_for: AtomicU64::new(0),
            order: Order::default(),
            groups: Groups::default(),
        }
    }

    pub(super) fn saw(&self, fence: Fence) {
        self.largest.fetch_max(fence.0, Ordering::AcqRel);
    }

    /// All later fences are larger.
    pub(super) fn floor(&self) -> Fence {
        Fence(self.largest.load(Ordering::Acquire))
    }

    pub(super) fn set_unswept(&self, ended: u64) {
        self.unswept.store(ended, Ordering::Release);
    }

    /// It has been done for this end.
    pub(super) fn set_swept(&self, ended: u64) {
        let _ = self.unswept.compare_exchange(ended, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// All nodes have been looked through for this end.
    pub(super) fn looked_for(&self, ended: u64) {
        self.looked_for.store(ended, Ordering::Release);
    }

    pub(super) fn was_looked_for(&self, ended: u64) -> bool {
        self.looked_for.load(Ordering::Acquire) == ended
    }

    pub(super) fn take_unswept(&self) -> Option<u64> {
        Some(self.unswept.swap(0, Ordering::AcqRel)).filter(|ended| *ended != 0)
    }

    /// For whoever serves the lane. When that has ended nobody is left who does it.
    pub(super) fn job(&self, job: Job) {
        drop(self.jobs.send(job));
    }

    /// Waits until no earlier call of this replica takes a ticket of the key, so that no retry lets a later one pass.
    pub(super) async fn in_order(&self, key: &Arc<str>) -> InOrder<'_> {
        let turn = {
            let mut keys = self.order.keys.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(keys.entry(Arc::clone(key)).or_default())
        };
        let mut order = InOrder { order: &self.order, key: Arc::clone(key), guard: None };
        order.guard = Some(turn.lock_owned().await);
        order
    }
}

#[derive(Default)]
struct Order {
    keys: Mutex<HashMap<Arc<str>, Arc<tokio::sync::Mutex<()>>>>,
}

/// Lets the next call go on when it is dropped.
pub(super) struct InOrder<'a> {
    order: &'a Order,
    key: Arc<str>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for InOrder<'_> {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut keys = self.order.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.get(&self.key).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            keys.remove(&self.key);
        }
    }
}
