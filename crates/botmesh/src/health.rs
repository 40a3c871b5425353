//! Whether the backend of the journals can be used, told once for each change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::core::Bytes;
use crate::core::error::{StoreError, StoreErrorKind};
use crate::core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use crate::core::time::{Clock, Timestamp};
use crate::events::{BotEvent, EventBus, describe};

/// Knows whether calls of the backend succeed. Reading and writing are two things: on a full disk one of them works.
pub(crate) struct Health {
    events: EventBus,
    clock: Arc<dyn Clock>,
    /// Spares the lock as long as everything works.
    down: AtomicBool,
    outage: Mutex<Outage>,
    /// Why nothing can be written any more, whoever waits.
    broken: OnceLock<String>,
    breaks: CancellationToken,
}

#[derive(Default)]
struct Outage {
    reading: bool,
    writing: bool,
    failures: u64,
    since: Duration,
}

#[derive(Clone, Copy)]
enum Call {
    Read,
    Write,
}

impl Health {
    pub(crate) fn new(events: EventBus, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            events,
            clock,
            down: AtomicBool::new(false),
            outage: Mutex::default(),
            broken: OnceLock::new(),
            breaks: CancellationToken::new(),
        })
    }

    /// The same backend, whose calls are watched.
    pub(crate) fn watch(self: &Arc<Self>, kv: Arc<dyn DurableKv>) -> Arc<dyn DurableKv> {
        Arc::new(Watched { kv, health: Arc::clone(self) })
    }

    /// Whether it was told that the journals are unavailable.
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Returns when nothing can be written any more.
    pub(crate) async fn breaks(&self) {
        self.breaks.cancelled().await;
    }

    /// Why nothing can be written any more.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    fn note<T>(&self, call: Call, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match &result {
            Ok(_) if self.is_down() => self.worked(call),
            Ok(_) => {}
            Err(error) if is_outage(error) => self.failed(call, error),
            // A damaged record is found when it is read; a write is refused so only by a backend that is damaged.
            Err(error) if matches!(call, Call::Write) && error.kind() == StoreErrorKind::Corrupt => {
                let _ = self.broken.set(describe(error));
                self.breaks.cancel();
            }
            Err(_) => {}
        }
        result
    }

    fn failed(&self, call: Call, error: &StoreError) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = !outage.reading && !outage.writing;
        if begins {
            *outage = Outage { since: self.clock.monotonic(), ..Outage::default() };
        }
        outage.failures += 1;
        match call {
            Call::Read => outage.reading = true,
            Call::Write => outage.writing = true,
        }
        self.down.store(true, Ordering::Relaxed);
        if begins {
            self.events.emit(BotEvent::JournalUnavailable { error: describe(error) });
        }
    }

    fn worked(&self, call: Call) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        match call {
            Call::Read => outage.reading = false,
            Call::Write => outage.writing = false,
        }
        if outage.reading || outage.writing || !self.down.swap(false, Ordering::Relaxed) {
            return;
        }
        let after = self.clock.monotonic().saturating_sub(outage.since);
        self.events.emit(BotEvent::JournalAvailable { failures: outage.failures, after });
    }
}

fn is_outage(error: &StoreError) -> bool {
    matches!(error.kind(), StoreErrorKind::Unavailable | StoreErrorKind::Full | StoreErrorKind::Denied)
}

struct Watched {
    kv: Arc<dyn DurableKv>,
    health: Arc<Health>,
}

#[async_trait]
impl DurableKv for Watched {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        self.health.watch(self.kv.scoped(scope))
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        self.health.note(Call::Write, self.kv.commit(ops).await)
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.health.note(Call::Read, self.kv.get(keys).await)
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.health.note(Call::Read, self.kv.scan(range, after, limit).await)
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.kv.now().await
    }

    /// Unwatched: that the session is not renewed is told as such.
    async fn dedicated(&self) -> Result<Option<Arc<dyn DurableKv>>, StoreError> {
        self.kv.dedicated().await
    }

    fn caps(&self) -> Caps {
        self.kv.caps()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.kv.close().await
    }
}
