//! What a message costs: three commits for one with one reply, whatever the backend.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use botmesh::core::Bytes;
use botmesh::core::error::StoreError;
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{InboxRecord, InboxState, Record};
use botmesh::core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use botmesh::core::memory::{MemoryKv, MemoryStore};
use botmesh::core::time::{Clock, SystemClock, Timestamp};
use botmesh::{Bot, Ctx, Durability};
use botmesh_sqlite_store::SqliteStore;
use botmesh_testing::MockProvider;

use crate::tools::{Place, block_on};

const MESSAGES: usize = 40;

/// Notes the writes of each commit that returned.
#[derive(Clone)]
struct Counting {
    kv: Arc<dyn DurableKv>,
    commits: Arc<Mutex<Vec<Vec<Op>>>>,
}

impl Counting {
    fn new(kv: Arc<dyn DurableKv>) -> Self {
        Self { kv, commits: Arc::default() }
    }

    /// How many writes of messages each commit had, without those that had none.
    fn of_messages(&self) -> Vec<usize> {
        let commits = self.commits.lock().unwrap();
        let of_messages = |ops: &Vec<Op>| ops.iter().filter(|op| b"io".contains(&op.key()[0])).count();
        commits.iter().map(of_messages).filter(|&writes| writes > 0).collect()
    }

    fn done(&self) -> usize {
        let done = InboxRecord::bucket(InboxState::Done);
        let is_done = |op: &Op| matches!(op, Op::Put { index, .. } if index.list.is_some_and(|(bucket, _)| bucket == done));
        self.commits.lock().unwrap().iter().flatten().filter(|op| is_done(op)).count()
    }

    /// Looks for a minute whether `messages` are done.
    async fn wait_for(&self, messages: usize) {
        let clock = SystemClock::new();
        for _ in 0..60_000 {
            if self.done() == messages {
                return;
            }
            clock.sleep(Duration::from_millis(1)).await;
        }
        panic!("{} of {messages} messages are done after a minute", self.done());
    }
}

#[async_trait]
impl DurableKv for Counting {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { kv: self.kv.scoped(scope), commits: Arc::clone(&self.commits) })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        let outcomes = self.kv.commit(ops.clone()).await?;
        self.commits.lock().unwrap().push(ops);
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
}

/// Lets a bot answer one message after the other, each when the one before is done, and of a chat that is idle.
fn count(kv: Arc<dyn DurableKv>) {
    let counting = Counting::new(kv);
    block_on(async {
        let channel = MockProvider::new();
        let kv: Arc<dyn DurableKv> = Arc::new(counting.clone());
        let bot = Bot::builder()
            .provider(channel.clone())
            .store(MemoryStore::new())
            .durability(Durability::new(kv).with_instance_id("bot-1"))
            .otherwise(async |c: Ctx| c.reply("yes").await)
            .build()
            .unwrap();
        let life = async {
            for n in 0..MESSAGES {
                let inbound = Inbound::text("1", format!("ana-{n}"), "hi");
                assert!(!channel.deliver(inbound).await.unwrap().duplicate);
                counting.wait_for(n + 1).await;
            }
            bot.stop();
        };
        let (ended, ()) = tokio::join!(bot.run(), life);
        ended.unwrap();
    });
    // The event, born working; the send, born in flight; both finished together.
    assert_eq!(counting.of_messages(), [1, 1, 2].repeat(MESSAGES));
}

#[test]
fn a_message_with_one_reply_is_three_commits_in_memory() {
    count(Arc::new(MemoryKv::new()));
}

#[test]
fn a_message_with_one_reply_is_three_commits_and_three_entries_in_a_file() {
    let place = Place::new();
    let file = place.open().unwrap();
    count(Arc::new(file));
    // As it is before closing folds it.
    std::fs::copy(place.file(".log"), place.file("-copy.log")).unwrap();
    let log = botmesh_append_log::AppendLog::open(place.file("-copy"), Default::default()).unwrap();
    let entries = log.entries().unwrap().map(|entry| entry.unwrap().payload);
    let of_messages = |entry: &Vec<u8>| {
        entry.windows(7).any(|bytes| [b"im/ana-", b"om/ana-"].contains(&bytes.try_into().unwrap()))
    };
    assert_eq!(entries.filter(of_messages).count(), 3 * MESSAGES);
}

#[test]
fn a_message_with_one_reply_is_three_commits_in_sqlite() {
    let place = Place::new();
    let store = block_on(SqliteStore::open(place.file(".db"))).unwrap();
    count(store.durability());
}
