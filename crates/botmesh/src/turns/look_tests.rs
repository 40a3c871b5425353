use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use botmesh_testing::LossyKv;
use futures_util::future::join_all;

use super::look::{Looks, MOST, PAGE};
use crate::TokioSpawner;
use crate::core::Bytes;
use crate::core::error::{Cas, StoreError};
use crate::core::id::{ConversationKey, InstanceId, RecordId};
use crate::core::inbound::Inbound;
use crate::core::journal::{Change, InboxRecord, Journal, KvDurability, Leases, Owner, Stored};
use crate::core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use crate::core::memory::MemoryKv;
use crate::core::scope::Scope;
use crate::core::spawn::Seams;
use crate::core::time::Timestamp;

const LEASE: Duration = Duration::from_secs(60);

/// A journal with so many unfinished messages of each of some chats, in turn, and how it is read.
async fn journal(chats: usize, each: usize) -> (Journal, LossyKv) {
    let kv = LossyKv::new(Arc::new(MemoryKv::new()));
    let (scope, seams) = (Scope::default(), Seams::system(Arc::new(TokioSpawner)));
    let durability = KvDurability::new(Arc::new(kv.clone()));
    let journal = durability
        .open(&scope, InstanceId::from("busy"), Leases { messages: LEASE, sends: LEASE }, seams)
        .await
        .unwrap();
    let now = Timestamp::from_millis(0);
    let messages = (0..each).flat_map(|message| (0..chats).map(move |chat| (chat, message)));
    let insert = |(chat, message): (usize, usize)| {
        let inbound = Arc::new(Inbound::text(format!("{chat}-{message}"), format!("chat{chat}"), "hi"));
        let new = if message == 0 { InboxRecord::working } else { InboxRecord::queued };
        Change::insert(&new(inbound, journal.next_order(now), journal.owner(), now))
    };
    journal.commit(messages.map(insert).collect()).await.unwrap();
    (journal, kv)
}

fn key(chat: usize) -> ConversationKey {
    Inbound::text("", format!("chat{chat}"), "").conversation()
}

#[tokio::test]
async fn a_look_finds_the_earliest_of_its_chat_and_keeps_nothing() {
    let (journal, kv) = journal(10, 150).await;
    let (looks, before) = (Looks::default(), kv.reads());
    let found = looks.of(&journal, &key(3), i64::MAX).await.unwrap();
    let ids: Vec<_> = found.messages.iter().map(|stored| stored.record.inbound.event.to_string()).collect();
    assert_eq!(ids, (0..MOST).map(|message| format!("3-{message}")).collect::<Vec<_>>());
    assert!(found.more);
    // A page of those at work, the pages of those that wait, and all of it once more.
    assert!(kv.reads() - before <= 2 * (1 + 1500 / PAGE + 1) as u64, "{} reads", kv.reads() - before);
    assert_eq!(looks.kept(), 0);
    assert!(looks.of(&journal, &key(99), i64::MAX).await.unwrap().messages.is_empty());
}

#[tokio::test]
async fn a_look_reads_no_further_than_what_it_is_asked_for_arrived() {
    let (journal, kv) = journal(10, 150).await;
    let (looks, before) = (Looks::default(), kv.reads());
    // The messages of a chat come every ten.
    let found = looks.of(&journal, &key(0), 25).await.unwrap();
    assert_eq!(found.messages.len(), 3);
    assert!(!found.more);
    assert_eq!(kv.reads() - before, 4, "one page of each kind, and once more");
}

#[tokio::test]
async fn one_look_serves_all_who_asked_before_it_began() {
    let (journal, kv) = journal(50, 20).await;
    let (looks, before) = (Looks::default(), kv.reads());
    let one = 2 * (1 + 1000 / PAGE + 1) as u64;
    let keys: Vec<_> = (0..50).chain(0..50).map(key).collect();
    let all = join_all(keys.iter().map(|key| looks.of(&journal, key, i64::MAX)));
    let others = looks.hold().await;
    let (found, ()) = tokio::join!(all, async { drop(others) });
    for found in found {
        assert_eq!(found.unwrap().messages.len(), 20);
    }
    assert!(kv.reads() - before <= one, "{} reads", kv.reads() - before);
    assert_eq!(looks.kept(), 0);
}

type New = fn(Arc<Inbound>, i64, Owner, Timestamp) -> InboxRecord;
type Step = fn(&InboxRecord, &Owner) -> InboxRecord;

/// What another replica does with a message while pages are read: something before each, or nothing.
struct Busy {
    journal: Journal,
    message: RecordId,
    steps: Mutex<VecDeque<Option<Step>>>,
}

impl Busy {
    async fn step(&self) {
        let Some(step) = self.steps.lock().unwrap().pop_front().flatten() else { return };
        let Stored { record, version } = self.journal.inbox().get(&self.message).await.unwrap().unwrap();
        let next = step(&record, &self.journal.owner());
        let outcome = self.journal.commit_one(Change::update(version, &next)).await.unwrap();
        assert!(matches!(outcome, Cas::Applied(_)));
    }
}

struct Meanwhile {
    inner: Arc<dyn DurableKv>,
    busy: Arc<Busy>,
}

#[async_trait]
impl DurableKv for Meanwhile {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { inner: self.inner.scoped(scope), busy: Arc::clone(&self.busy) })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        self.inner.commit(ops).await
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.inner.get(keys).await
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.busy.step().await;
        self.inner.scan(range, after, limit).await
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }
}

async fn opened(kv: Arc<dyn DurableKv>, instance: &str) -> Journal {
    let leases = Leases { messages: LEASE, sends: LEASE };
    let seams = Seams::system(Arc::new(TokioSpawner));
    KvDurability::new(kv).open(&Scope::default(), InstanceId::from(instance), leases, seams).await.unwrap()
}

#[tokio::test]
async fn a_look_finds_what_begins_or_goes_back_while_it_looks() {
    let now = Timestamp::from_millis(0);
    let begins: Step = |record, owner| record.start(owner, Timestamp::from_millis(1)).unwrap();
    let goes_back: Step = |record, _| record.release(Timestamp::from_millis(1)).unwrap();
    let (waits, works): (New, New) = (InboxRecord::queued, InboxRecord::working);
    let changes: [(New, Vec<Option<Step>>); 8] = [
        (waits, vec![None, Some(begins)]),
        (works, vec![None, Some(goes_back)]),
        (waits, vec![None, None, Some(begins)]),
        (works, vec![None, None, Some(goes_back)]),
        (works, vec![None, Some(goes_back), Some(begins)]),
        (waits, vec![Some(begins), Some(goes_back)]),
        (waits, vec![None, Some(begins), Some(goes_back)]),
        (works, vec![Some(goes_back), Some(begins), Some(goes_back)]),
    ];
    for (case, (new, steps)) in changes.into_iter().enumerate() {
        let kv: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
        let other = opened(Arc::clone(&kv), "other").await;
        let record = new(Arc::new(Inbound::text("m", "chat0", "hi")), 1, other.owner(), now);
        other.commit(vec![Change::insert(&record)]).await.unwrap();
        let busy = Arc::new(Busy { journal: other, message: record.id.clone(), steps: Mutex::default() });
        let journal = opened(Arc::new(Meanwhile { inner: kv, busy: Arc::clone(&busy) }), "own").await;
        *busy.steps.lock().unwrap() = steps.into();
        let found = Looks::default().of(&journal, &key(0), i64::MAX).await.unwrap();
        assert_eq!(found.messages.len(), 1, "case {case}");
    }
}
