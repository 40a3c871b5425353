//! Looks at what goes through a backend: counts commits and scans, and tells a chat when its message is done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use botmesh::core::Bytes;
use botmesh::core::error::StoreError;
use botmesh::core::journal::{InboxRecord, InboxState, Record};
use botmesh::core::kv::{Caps, Cursor, DurableKv, Entry, Expect, Op, Outcome, Range};
use botmesh::core::time::Timestamp;
use tokio::sync::Notify;

use crate::host::now;
use crate::message::chat_of;

/// What was scanned.
#[derive(Debug, Default)]
struct Scans {
    calls: AtomicU64,
    /// Those that begin a sweep.
    sweeps: AtomicU64,
    entries: AtomicU64,
    /// How long each took, once it is asked for.
    times: OnceLock<Mutex<Vec<Duration>>>,
}

/// What was scanned so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scanned {
    pub(crate) calls: u64,
    pub(crate) sweeps: u64,
    pub(crate) entries: u64,
}

type Note = Box<dyn Fn(&[Op]) + Send + Sync>;

pub(crate) struct Probe {
    commits: AtomicU64,
    writes: AtomicU64,
    scans: Scans,
    taken_up: AtomicU64,
    done_records: AtomicU64,
    most_held: AtomicU64,
    /// One for each message in flight; chat `n` uses lane `n % lanes`.
    done: Vec<Notify>,
    note: OnceLock<Note>,
}

impl Probe {
    pub(crate) fn new(lanes: u32) -> Arc<Self> {
        let done = (0..lanes).map(|_| Notify::new()).collect();
        let [commits, writes, taken_up, done_records, most_held] = Default::default();
        let (scans, note) = Default::default();
        Arc::new(Self { commits, writes, scans, taken_up, done_records, most_held, done, note })
    }

    pub(crate) fn watch(self: &Arc<Self>, kv: Arc<dyn DurableKv>) -> Arc<dyn DurableKv> {
        Arc::new(Watched { kv, probe: Arc::clone(self) })
    }

    /// Commits and single writes so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.commits.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed))
    }

    pub(crate) fn scanned(&self) -> Scanned {
        let Scans { calls, sweeps, entries, .. } = &self.scans;
        let [calls, sweeps, entries] = [calls, sweeps, entries].map(|count| count.load(Ordering::Relaxed));
        Scanned { calls, sweeps, entries }
    }

    /// How long each scan took since this was called before.
    pub(crate) fn scan_times(&self) -> Vec<Duration> {
        let times = self.scans.times.get_or_init(Mutex::default);
        std::mem::take(&mut times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Messages that are done.
    pub(crate) fn done_records(&self) -> u64 {
        self.done_records.load(Ordering::Relaxed)
    }

    /// The most records of earlier processes that were taken up and not done, at any time.
    pub(crate) fn most_held(&self) -> u64 {
        self.most_held.load(Ordering::Relaxed)
    }

    /// Notes what a commit did to the inbox.
    fn note_inbox(&self, taken_up: u64, done: bool) {
        let taken_up = self.taken_up.fetch_add(taken_up, Ordering::Relaxed) + taken_up;
        let done = self.done_records.fetch_add(done.into(), Ordering::Relaxed) + u64::from(done);
        self.most_held.fetch_max(taken_up.saturating_sub(done), Ordering::Relaxed);
    }

    pub(crate) fn note_commits(&self, note: impl Fn(&[Op]) + Send + Sync + 'static) {
        let first = self.note.set(Box::new(note)).is_ok();
        assert!(first, "only one may take notes");
    }

    /// Returns when the commit returned that made the chat's message done.
    pub(crate) async fn done(&self, chat: u32) {
        self.lane(chat).notified().await;
    }

    fn lane(&self, chat: u32) -> &Notify {
        &self.done[chat as usize % self.done.len()]
    }
}

struct Watched {
    kv: Arc<dyn DurableKv>,
    probe: Arc<Probe>,
}

fn finished_chat(op: &Op) -> Option<u32> {
    let Op::Put { key, index, .. } = op else { return None };
    let (bucket, _) = index.list?;
    (bucket == InboxRecord::bucket(InboxState::Done)).then(|| chat_of(key)).flatten()
}

/// Whether it makes a record of an earlier process this one's own.
fn takes_up(op: &Op) -> bool {
    let queued = InboxRecord::bucket(InboxState::Queued);
    matches!(op, Op::Put { expect: Expect::Version(_), index, .. } if index.list.is_some_and(|(bucket, _)| bucket == queued))
}

#[async_trait]
impl DurableKv for Watched {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        self.probe.watch(self.kv.scoped(scope))
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        if let Some(note) = self.probe.note.get() {
            note(&ops);
        }
        self.probe.commits.fetch_add(1, Ordering::Relaxed);
        self.probe.writes.fetch_add(ops.len() as u64, Ordering::Relaxed);
        let mut finished = ops.iter().filter_map(finished_chat);
        let first = finished.next();
        assert!(finished.next().is_none(), "a commit finishes one message");
        let taken_up = ops.iter().filter(|op| takes_up(op)).count() as u64;
        let outcomes = self.kv.commit(ops).await?;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Applied(_))), "nobody interferes");
        self.probe.note_inbox(taken_up, first.is_some());
        if let Some(chat) = first {
            self.probe.lane(chat).notify_one();
        }
        Ok(outcomes)
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.kv.get(keys).await
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let begun = now();
        let found = self.kv.scan(range, after, limit).await;
        let Scans { calls, sweeps, entries, times } = &self.probe.scans;
        if let Some(times) = times.get() {
            times.lock().unwrap_or_else(PoisonError::into_inner).push(begun.elapsed());
        }
        calls.fetch_add(1, Ordering::Relaxed);
        let begins = matches!(range, Range::Due { .. }) && after.is_none();
        sweeps.fetch_add(begins.into(), Ordering::Relaxed);
        entries.fetch_add(found.as_ref().map_or(0, Vec::len) as u64, Ordering::Relaxed);
        found
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.kv.now().await
    }

    fn caps(&self) -> Caps {
        self.kv.caps()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.kv.close().await
    }
}
