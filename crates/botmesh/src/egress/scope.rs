use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;

use crate::core::coordinator::Turn;
use crate::core::error::{LeaseLost, LeaseLostReason, SendError};
use crate::core::id::{RecordId, SendKey};
use crate::core::journal::{Change, Leased};
use crate::core::kv::Version;
use crate::world::World;

/// What the sends of one turn have in common: the turn itself, the record they answer, and what of them is not durable
/// yet.
///
/// That a send arrived need not be durable before the handler goes on, but every moment of delay widens the window in
/// which a crash leaves it ambiguous. So it is committed with the turn's next commit if that comes before the handler
/// waits for anything, and on its own otherwise.
pub(crate) struct TurnScope {
    world: Arc<World>,
    turn: Turn,
    record: Option<RecordId>,
    key_base: Option<String>,
    /// Keys that stand in for the turn's own: those of an earlier turn whose work runs again.
    borrowed: Mutex<Option<KeyPosition>>,
    replay: bool,
    sends: AtomicU32,
    journal_failed: AtomicBool,
    lease_lost: AtomicBool,
    sent_anew: AtomicBool,
    past: AtomicBool,
    /// The record's version, if it has one, and how often the lease had lapsed when this process was sure to own it.
    version: Option<Version>,
    lapses: AtomicU64,
    /// How long the message waited for the journals, in microseconds.
    waited: AtomicU64,
    pending: Mutex<Pending>,
    driver: AtomicWaker,
}

/// A place in a row of derived keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyPosition {
    pub(crate) base: String,
    pub(crate) next: u32,
}

#[derive(Default)]
struct Pending {
    unrecorded: Unrecorded,
    closed: bool,
}

/// That messages were sent, before it is durable.
#[derive(Debug, Default)]
pub(crate) struct Unrecorded {
    pub(crate) changes: Vec<Change>,
    /// When the channel had taken them over, on the monotonic clock.
    pub(crate) answered: Vec<Duration>,
}

impl TurnScope {
    /// `key_base` is what derived keys begin with; without one, keys are random.
    pub(crate) fn new(
        world: Arc<World>,
        turn: Turn,
        record: Option<RecordId>,
        key_base: Option<String>,
        replay: bool,
    ) -> Self {
        Self {
            world,
            turn,
            record,
            key_base,
            borrowed: Mutex::default(),
            replay,
            sends: AtomicU32::new(0),
            journal_failed: AtomicBool::new(false),
            lease_lost: AtomicBool::new(false),
            sent_anew: AtomicBool::new(false),
            past: AtomicBool::new(false),
            version: None,
            lapses: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            pending: Mutex::default(),
            driver: AtomicWaker::new(),
        }
    }

    /// The turn's message was begun by writing this version of its record, when the lease had lapsed so often.
    pub(crate) fn begun(self, version: Option<Version>, lapses: u64) -> Self {
        Self { version, lapses: AtomicU64::new(lapses), ..self }
    }

    /// Whether the turn's message is handled although the inbox could not be written. Then it does without the outbox too,
    /// and no lease stands for it: nobody else can have it.
    pub(crate) fn is_unjournaled(&self) -> bool {
        self.world.journal.is_some() && self.record.is_none() && self.key_base.is_none()
    }

    /// Whether the turn may go on: its turn and its message are still this process's.
    pub(crate) async fn check(&self) -> Result<(), SendError> {
        loop {
            self.turn.confirm().await?;
            if self.is_unjournaled() {
                return Ok(());
            }
            self.world.check_lease(Leased::Messages)?;
            let Some(open) = &self.world.journal else { return Ok(()) };
            let lapses = open.journal.lease().lapses();
            let (Some(record), Some(version)) = (&self.record, self.version) else { return Ok(()) };
            if self.lapses.load(Ordering::Relaxed) == lapses {
                return Ok(());
            }
            // The lease was lost and renewed meanwhile: only the record itself tells whether somebody took it over.
            let stored = open.journal.inbox().get(record).await?;
            if stored.is_none_or(|stored| stored.version != version) {
                return Err(LeaseLost { reason: LeaseLostReason::Expired }.into());
            }
            self.lapses.store(lapses, Ordering::Relaxed);
        }
    }

    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
    }

    pub(crate) fn record(&self) -> Option<&RecordId> {
        self.record.as_ref()
    }

    /// Whether the turn's work was attempted before, so that its sends may be in the outbox.
    pub(crate) fn is_replay(&self) -> bool {
        self.replay || self.borrowed.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The key of the turn's next send.
    pub(crate) fn next_key(&self) -> Option<SendKey> {
        if let Some(borrowed) = &mut *self.borrowed.lock().unwrap_or_else(PoisonError::into_inner) {
            let n = borrowed.next;
            borrowed.next += 1;
            return Some(SendKey::from(format!("{}:{n}", borrowed.base)));
        }
        let base = self.key_base.as_ref()?;
        let n = self.sends.fetch_add(1, Ordering::Relaxed);
        Some(SendKey::from(format!("{base}:{n}")))
    }

    /// The key of the first send of the turn's message.
    pub(crate) fn first_key(&self) -> Option<SendKey> {
        self.key_base.as_ref().map(|base| SendKey::from(format!("{base}:0")))
    }

    /// The key of the turn's send of this name. No name gives a key of [`next_key`](Self::next_key).
    pub(crate) fn named_key(&self, name: &str) -> Option<SendKey> {
        let base = self.key_position()?.base;
        Some(SendKey::from(format!("{base}:={name}")))
    }

    /// Where the next key comes from; `None` if keys are random.
    pub(crate) fn key_position(&self) -> Option<KeyPosition> {
        let borrowed = self.borrowed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        borrowed.or_else(|| Some(KeyPosition { base: self.key_base.clone()?, next: self.sends() }))
    }

    /// Gives out these keys in place of the turn's own, until they are given back.
    pub(crate) fn borrow_keys(&self, position: KeyPosition) {
        *self.borrowed.lock().unwrap_or_else(PoisonError::into_inner) = Some(position);
    }

    /// Goes back to the turn's own keys.
    pub(crate) fn return_keys(&self) {
        *self.borrowed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Goes on for an earlier message whose work was done under the same turn.
    pub(crate) fn take_over(&self, earlier: &Self) {
        self.world.record_in_background(earlier.close());
        self.journal_failed.fetch_or(earlier.journal_failed(), Ordering::Relaxed);
        self.lease_lost.fetch_or(earlier.lease_lost(), Ordering::Relaxed);
    }

    /// The message waited for the journals.
    pub(crate) fn note_wait(&self, wait: Duration) {
        self.waited.fetch_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn waited(&self) -> Duration {
        Duration::from_micros(self.waited.load(Ordering::Relaxed))
    }

    /// How many keys were given out.
    pub(crate) fn sends(&self) -> u32 {
        self.sends.load(Ordering::Relaxed)
    }

    /// Goes on counting where an earlier run of the same record stood.
    pub(crate) fn resume_sends(&self, sends: u32) {
        self.sends.store(sends, Ordering::Relaxed);
    }

    /// The outbox could not be written: the record must not be acknowledged.
    pub(crate) fn note_journal_failure(&self) {
        self.journal_failed.store(true, Ordering::Relaxed);
    }

    /// Something was refused because the lease or the turn is lost: the attempt does not count.
    pub(crate) fn note_lease_lost(&self) {
        self.lease_lost.store(true, Ordering::Relaxed);
    }

    /// The turn's message was handled before, and a later one since: what it sent then stands, though it may send something
    /// else now.
    pub(crate) fn note_past(&self) {
        self.past.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_past(&self) -> bool {
        self.past.load(Ordering::Relaxed)
    }

    /// Something was sent that an earlier run had not sent.
    pub(crate) fn note_new_send(&self) {
        self.sent_anew.store(true, Ordering::Relaxed);
    }

    pub(crate) fn sent_anew(&self) -> bool {
        self.sent_anew.load(Ordering::Relaxed)
    }

    pub(crate) fn lease_lost(&self) -> bool {
        self.lease_lost.load(Ordering::Relaxed)
    }

    pub(crate) fn journal_failed(&self) -> bool {
        self.journal_failed.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a change to the turn's next commit; gives it back if the turn has made its last one.
    pub(crate) fn defer(&self, change: Change, answered: Duration) -> Option<Change> {
        let mut pending = self.lock();
        if pending.closed {
            return Some(change);
        }
        pending.unrecorded.changes.push(change);
        pending.unrecorded.answered.push(answered);
        drop(pending);
        self.driver.wake();
        None
    }

    /// What was deferred so far.
    pub(crate) fn take_pending(&self) -> Unrecorded {
        std::mem::take(&mut self.lock().unrecorded)
    }

    /// What was deferred so far; nothing can be deferred any more.
    pub(crate) fn close(&self) -> Unrecorded {
        let mut pending = self.lock();
        pending.closed = true;
        std::mem::take(&mut pending.unrecorded)
    }

    /// Runs the turn's work. Whenever it waits for something, what was deferred is committed in the background.
    pub(crate) fn drive<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> impl Future<Output = T> {
        std::future::poll_fn(move |context| {
            self.driver.register(context.waker());
            match work.as_mut().poll(context) {
                Poll::Ready(value) => Poll::Ready(value),
                Poll::Pending => {
                    self.world.record_in_background(self.take_pending());
                    Poll::Pending
                }
            }
        })
    }
}
