//! What the handles of a coordinator share with its thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use botmesh_core::coordinator::Fence;
use botmesh_core::coordinator::machine::{Liveness, Standing};
use botmesh_core::error::{LeaseLost, LeaseLostReason, StoreError};
use botmesh_core::id::SessionId;
use botmesh_core::time::Clock;
use tokio::sync::{Notify, OwnedMutexGuard, mpsc};
use tokio_util::sync::CancellationToken;

use super::config::RedisCoordinatorConfig;
use super::session::{Grant, Session, until_poll};
use super::wire::{Answer, Push, Wire};

/// What the thread is to do.
pub(super) enum Job {
    /// Give a ticket back, until the server has taken it.
    Leave { session: Arc<Session>, key: Arc<str>, seq: u64 },
    /// Tell the server of the end of a session.
    End(Arc<Session>),
}

pub(super) struct Shared {
    pub(super) config: RedisCoordinatorConfig,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) wire: Wire,
    pub(super) margin: Duration,
    pub(super) incarnation: String,
    /// Cancelled when the coordinator is closed or dropped.
    pub(super) stop: CancellationToken,
    /// The thread ends without a word to the server.
    pub(super) crashed: AtomicBool,
    /// Cancelled when the thread has told the server.
    pub(super) stopped: CancellationToken,
    /// Tells of a new session.
    pub(super) opened: Notify,
    /// Tells of a ticket that asks before all others.
    pub(super) sooner: Notify,
    pub(super) jobs: mpsc::UnboundedSender<Job>,
    session: Mutex<Arc<Session>>,
    generations: AtomicU64,
    largest: AtomicU64,
    /// When the thread last looked at its clock, in microseconds.
    looked: AtomicU64,
    order: Order,
}

/// What a session needs to begin.
pub(super) struct First {
    pub(super) incarnation: String,
    pub(super) session: Session,
    pub(super) margin: Duration,
}

impl Shared {
    pub(super) fn new(
        config: RedisCoordinatorConfig,
        clock: Arc<dyn Clock>,
        wire: Wire,
        first: First,
        jobs: mpsc::UnboundedSender<Job>,
    ) -> Self {
        let now = clock.monotonic();
        Self {
            largest: AtomicU64::new(config.floor.0),
            config,
            clock,
            wire,
            margin: first.margin,
            incarnation: first.incarnation,
            stop: CancellationToken::new(),
            crashed: AtomicBool::new(false),
            stopped: CancellationToken::new(),
            opened: Notify::new(),
            sooner: Notify::new(),
            jobs,
            session: Mutex::new(Arc::new(first.session)),
            generations: AtomicU64::new(1),
            looked: AtomicU64::new(u64::try_from(now.as_micros()).unwrap_or(0)),
            order: Order::default(),
        }
    }

    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a session may act. Compares numbers; one whose time is over ends here at the latest.
    pub(super) fn check(&self, session: &Arc<Session>) -> Result<(), LeaseLost> {
        if let Some(lost) = session.end() {
            return Err(lost);
        }
        let now = self.clock.monotonic();
        if now < session.valid_until() {
            return Ok(());
        }
        let looked = Duration::from_micros(self.looked.load(Ordering::Acquire));
        let reason = if now.saturating_sub(looked) > self.config.lease / 2 {
            LeaseLostReason::Stalled
        } else {
            LeaseLostReason::CoordinatorLost
        };
        self.lose(session, reason);
        Err(session.end().unwrap_or(LeaseLost { reason }))
    }

    /// The thread looks at its clock.
    pub(super) fn look(&self) -> Duration {
        let now = self.clock.monotonic();
        self.looked.store(u64::try_from(now.as_micros()).unwrap_or(0), Ordering::Release);
        now
    }

    pub(super) fn lose(&self, session: &Arc<Session>, reason: LeaseLostReason) {
        if !session.finish(reason) {
            return;
        }
        if reason != LeaseLostReason::Released {
            tracing::warn!(
                session = session.id.as_str(),
                ?reason,
                server = self.wire.client.place(),
                "the session of this replica is lost with all its turns; it goes on under a new one"
            );
        }
        drop(self.jobs.send(Job::End(Arc::clone(session))));
    }

    /// Whether an answer is of a session's epoch. If not, the server lost what the session knows.
    pub(super) fn is_of<T>(&self, session: &Arc<Session>, answer: &Answer<T>) -> bool {
        let same = answer.epoch.as_ref() == Some(&session.epoch);
        if !same {
            self.lose(session, LeaseLostReason::DataLoss);
        }
        same
    }

    pub(super) fn saw(&self, fence: Fence) {
        self.largest.fetch_max(fence.0, Ordering::AcqRel);
    }

    /// A new session, if the server opens it.
    pub(super) async fn reopen(&self, wire: &Wire, known: &str) -> Result<(), StoreError> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        let id = SessionId::from(format!("{}.{generation}", self.incarnation));
        let floor = Fence(self.largest.load(Ordering::Acquire));
        let sent = self.clock.monotonic();
        let answer = wire.open(&id, self.config.lease, Some(known), floor).await?;
        let (Some(epoch), Liveness::Alive) = (answer.epoch, answer.what) else { return Ok(()) };
        if &*epoch != known {
            tracing::warn!(
                known,
                epoch = &*epoch,
                server = wire.client.place(),
                "the server lost the data of the turns; fences go on growing, and turns are given again after a lease"
            );
        }
        let session = Session::new(id, epoch, sent + self.config.lease - self.margin);
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(session);
        self.opened.notify_waiters();
        Ok(())
    }

    /// What the server pushed. Nothing of another epoch or of an earlier session is of interest: its tickets are gone.
    pub(super) fn pushed(&self, push: Push) {
        let session = self.session();
        if push.epoch != session.epoch || push.session != session.id {
            return;
        }
        let known = if push.grants {
            self.saw(push.fence);
            session.grant(push.seq, Grant { previous: push.previous })
        } else {
            session.knows(push.seq)
        };
        if !known {
            drop(self.jobs.send(Job::Leave { session, key: push.key, seq: push.seq }));
        }
    }

    /// What the answer to a poll means.
    pub(super) fn polled(&self, session: &Arc<Session>, seq: u64, answer: Answer<Standing>) {
        // A ticket that was given back meanwhile may be unknown.
        if !session.knows(seq) || session.end().is_some() || !self.is_of(session, &answer) {
            return;
        }
        match answer.what {
            Standing::Granted { fence, previous } => {
                self.saw(fence);
                session.grant(seq, Grant { previous });
            }
            Standing::Waiting { remaining, .. } => {
                session.ask_at(seq, self.clock.monotonic() + until_poll(remaining, self.config.lease));
            }
            Standing::Dead => self.lose(session, LeaseLostReason::Expired),
            // A failover lost what had been acknowledged.
            Standing::Unknown if session.entered().iter().any(|(known, _)| *known == seq) => {
                self.lose(session, LeaseLostReason::DataLoss);
            }
            Standing::Unknown | Standing::Busy { .. } | Standing::Overloaded => {}
        }
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
