//! Looks at what goes through a backend: counts commits, and tells a chat when its message is done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use botmesh::core::Bytes;
use botmesh::core::error::StoreError;
use botmesh::core::journal::{InboxRecord, InboxState, Record};
use botmesh::core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use botmesh::core::time::Timestamp;
use tokio::sync::Notify;

use crate::message::chat_of;

type Note = Box<dyn Fn(&[Op]) + Send + Sync>;

pub(crate) struct Probe {
    commits: AtomicU64,
    writes: AtomicU64,
    /// One for each message in flight; chat `n` uses lane `n % lanes`.
    done: Vec<Notify>,
    note: OnceLock<Note>,
}

impl Probe {
    pub(crate) fn new(lanes: u32) -> Arc<Self> {
        let done = (0..lanes).map(|_| Notify::new()).collect();
        Arc::new(Self { commits: AtomicU64::new(0), writes: AtomicU64::new(0), done, note: OnceLock::new() })
    }

    pub(crate) fn watch(self: &Arc<Self>, kv: Arc<dyn DurableKv>) -> Arc<dyn DurableKv> {
        Arc::new(Watched { kv, probe: Arc::clone(self) })
    }

    /// Commits and single writes so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.commits.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed))
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
        let outcomes = self.kv.commit(ops).await?;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Applied(_))), "nobody interferes");
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
        self.kv.scan(range, after, limit).await
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
