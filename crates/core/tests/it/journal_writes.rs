//! What the journals do with answers that are lost and with records that they do not know.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::Bytes;
use botmesh_core::content::Content;
use botmesh_core::entropy::SeededEntropy;
use botmesh_core::error::{Cas, Effect, StoreError, StoreErrorKind};
use botmesh_core::inbound::Inbound;
use botmesh_core::journal::{
    Beat, Change, InboxRecord, InboxState, Journal, KvDurability, Leases, OutboxRecord, OutboxState, Owner,
    Send, Unreadable,
};
use botmesh_core::kv::{Caps, Cursor, DurableKv, Entry, Expect, Index, Op, Outcome, Range, Version};
use botmesh_core::memory::MemoryKv;
use botmesh_core::scope::Scope;
use botmesh_core::spawn::{Seams, Spawner, Task};
use botmesh_core::time::{Clock, Timestamp};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const LEASE: Duration = Duration::from_secs(60);

/// Time that passes only when somebody sleeps.
#[derive(Debug, Default)]
pub(crate) struct SleepyClock(std::sync::atomic::AtomicI64);

impl Clock for SleepyClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_000_000 + self.0.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed).unsigned_abs())
    }

    fn sleep<'a, 'b>(
        &'a self,
        duration: Duration,
    ) -> std::pin::Pin<Box<dyn Future<Output = ()> + std::marker::Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.0.fetch_add(i64::try_from(duration.as_millis()).unwrap(), Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }
}

pub(crate) struct NoTasks;

impl Spawner for NoTasks {
    fn spawn(&self, name: &'static str, _: Task) {
        panic!("nothing is to run in the background, but {name} is");
    }
}

/// Carries commits out and loses their answers, as often as it is told.
#[derive(Clone)]
pub(crate) struct Forgetful {
    pub(crate) inner: Arc<dyn DurableKv>,
    lose: Arc<AtomicU32>,
    /// How many commits are held back and told as unknown, and what is held: it takes effect just before the next one.
    hold: Arc<AtomicU32>,
    held: Arc<Mutex<Vec<Op>>>,
    fail: Arc<AtomicU32>,
    deaf: Arc<AtomicBool>,
}

fn take(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
}

fn unavailable() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "forgetful", "commit", "told to")
}

#[async_trait]
impl DurableKv for Forgetful {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { inner: self.inner.scoped(scope), ..self.clone() })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        if take(&self.fail) {
            return Err(unavailable());
        }
        if take(&self.hold) {
            self.held.lock().unwrap().extend(ops);
            return Err(unavailable().with_unknown_effect());
        }
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        let _ = self.inner.commit(held).await?;
        let outcomes = self.inner.commit(ops).await?;
        if take(&self.lose) { Err(unavailable().with_unknown_effect()) } else { Ok(outcomes) }
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        if self.deaf.load(Ordering::Relaxed) { Err(unavailable()) } else { self.inner.get(keys).await }
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.inner.scan(range, after, limit).await
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.inner.now().await
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

/// A backend, and what opens journals in it.
pub(crate) struct Desk {
    pub(crate) kv: Forgetful,
    pub(crate) clock: Arc<SleepyClock>,
    seed: AtomicU32,
}

impl Desk {
    pub(crate) fn new() -> Self {
        let inner: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
        let (lose, hold, held, fail, deaf) = Default::default();
        let kv = Forgetful { inner, lose, hold, held, fail, deaf };
        Self { kv, clock: Arc::default(), seed: AtomicU32::new(1) }
    }

    pub(crate) async fn open(&self, instance: &str) -> Journal {
        self.open_for(instance, LEASE.into()).await
    }

    pub(crate) async fn open_for(&self, instance: &str, leases: Leases) -> Journal {
        let entropy = Arc::new(SeededEntropy::new(u64::from(self.seed.fetch_add(1, Ordering::Relaxed))));
        let seams =
            Seams { clock: Arc::<SleepyClock>::clone(&self.clock), entropy, spawner: Arc::new(NoTasks) };
        let durability = KvDurability::new(Arc::new(self.kv.clone()));
        durability.open(&Scope::default(), instance.into(), leases, seams).await.unwrap()
    }

    /// Writes what another version of the program wrote.
    pub(crate) async fn plant(&self, key: &str, record: &[u8], bucket: u8) {
        let value = [&[0; 16], record].concat();
        let index = Index { due: Some(Timestamp::from_millis(0)), list: Some((bucket, 1)) };
        let op = Op::Put {
            key: Bytes::copy_from_slice(key.as_bytes()),
            expect: Expect::Absent,
            value: value.into(),
            index,
        };
        let kv = self.kv.inner.scoped(&Scope::default().id());
        assert!(matches!(kv.commit(vec![op]).await.unwrap()[0], Outcome::Applied(_)));
    }
}

fn message(journal: &Journal, event: &str) -> InboxRecord {
    let now = Timestamp::from_millis(1_000_000);
    InboxRecord::working(
        Arc::new(Inbound::text(event, "ana", "hi")),
        journal.next_order(now),
        journal.owner(),
        now,
    )
}

fn send(journal: &Journal, key: &str) -> OutboxRecord {
    let now = Timestamp::from_millis(1_000_000);
    let send = Send {
        key: key.into(),
        chat: "ana".into(),
        content: Content::text("x"),
        fingerprint: None,
        source: None,
    };
    OutboxRecord::in_flight(send, journal.next_order(now), journal.owner(), now)
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_known_as_ones_own() {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    for lost in 1..4 {
        let first = message(&journal, &format!("m{lost}"));
        desk.kv.lose.store(lost, Ordering::Relaxed);
        let version = journal.commit_one(Change::insert(&first)).await.unwrap().applied().unwrap();
        let done = first.finish(Timestamp::from_millis(2)).unwrap();
        desk.kv.lose.store(lost, Ordering::Relaxed);
        let next = journal.commit_one(Change::update(version, &done)).await.unwrap().applied().unwrap();
        let stored = journal.inbox().get(&first.id).await.unwrap().unwrap();
        assert_eq!((stored.record.state, stored.version), (InboxState::Done, next));
        desk.kv.lose.store(lost, Ordering::Relaxed);
        assert!(journal.commit_one(Change::delete(&stored)).await.unwrap().applied().is_some());
        assert!(journal.inbox().get(&first.id).await.unwrap().is_none());
        desk.kv.lose.store(0, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_write_of_somebody_else_is_never_taken_for_ones_own() {
    let desk = Desk::new();
    let (one, two) = (desk.open("one").await, desk.open("two").await);
    let theirs = message(&one, "m1");
    let version = one.commit_one(Change::insert(&theirs)).await.unwrap().applied().unwrap();
    // The very same record, but another write.
    desk.kv.lose.store(1, Ordering::Relaxed);
    assert_eq!(two.commit_one(Change::insert(&theirs)).await.unwrap(), Cas::Lost);
    let done = theirs.finish(Timestamp::from_millis(2)).unwrap();
    assert!(one.commit_one(Change::update(version, &done)).await.unwrap().applied().is_some());
    desk.kv.lose.store(1, Ordering::Relaxed);
    assert_eq!(two.commit_one(Change::update(version, &done)).await.unwrap(), Cas::Lost);
}

#[tokio::test]
async fn a_write_that_takes_effect_between_the_look_and_the_next_attempt_is_known_as_ones_own() {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    let mine = message(&journal, "m1");
    desk.kv.hold.store(1, Ordering::Relaxed);
    let version = journal.commit_one(Change::insert(&mine)).await.unwrap().applied();
    let stored = journal.inbox().get(&mine.id).await.unwrap().unwrap();
    assert_eq!(version, Some(stored.version));
    // Beside another one's: of two changes in one commit, each is told by itself.
    let other = message(&journal, "m1");
    desk.kv.hold.store(1, Ordering::Relaxed);
    let changes = vec![Change::insert(&other), Change::insert(&send(&journal, "k"))];
    let outcomes = journal.commit(changes).await.unwrap();
    let applied: Vec<bool> = outcomes.into_iter().map(|outcome| outcome.applied().is_some()).collect();
    assert_eq!(applied, [false, true]);
}

#[tokio::test]
async fn what_became_of_a_dropped_commit_is_told_by_the_write_and_not_by_what_it_wrote() {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    let never = CancellationToken::new();
    let begun = send(&journal, "k");
    // It never took effect: it does now, once.
    let change = journal.identified(Change::insert(&begun));
    let first = journal.find_out(change.clone(), &never).await.unwrap();
    assert!(first.applied().is_some());
    assert_eq!(journal.find_out(change, &never).await.unwrap(), first);
    // The very same record by another write of the same process: another attempt, which is under way.
    let twin = journal.identified(Change::insert(&begun));
    assert_eq!(journal.find_out(twin, &never).await.unwrap(), Cas::Lost);
}

#[tokio::test]
async fn of_a_commit_whose_answer_is_lost_each_change_is_told_by_itself() {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    let (known, new) = (message(&journal, "known"), message(&journal, "new"));
    assert!(journal.commit_one(Change::insert(&known)).await.unwrap().applied().is_some());
    desk.kv.lose.store(1, Ordering::Relaxed);
    let changes = vec![
        Change::insert(&known),
        Change::insert(&new),
        Change::insert(&send(&journal, "k")),
        Change::update(Version(u64::MAX), &known),
    ];
    let outcomes = journal.commit(changes).await.unwrap();
    let applied: Vec<bool> = outcomes.into_iter().map(|outcome| outcome.applied().is_some()).collect();
    assert_eq!(applied, [false, true, true, false]);
}

#[tokio::test]
async fn failures_are_tried_again_for_a_while_and_an_unknown_effect_stays_unknown() {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    desk.kv.fail.store(5, Ordering::Relaxed);
    assert!(journal.commit_one(Change::insert(&message(&journal, "m1"))).await.is_ok());
    desk.kv.fail.store(100, Ordering::Relaxed);
    let error = journal.commit_one(Change::insert(&message(&journal, "m2"))).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Unavailable, Effect::None));
    desk.kv.fail.store(0, Ordering::Relaxed);
    // The first attempt may have had an effect; that the later ones had none changes nothing about it.
    desk.kv.lose.store(1, Ordering::Relaxed);
    desk.kv.deaf.store(true, Ordering::Relaxed);
    let error = journal.commit_one(Change::insert(&message(&journal, "m3"))).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
}

#[tokio::test]
async fn a_session_whose_answers_are_lost_is_not_taken_for_superseded() {
    let desk = Desk::new();
    desk.kv.lose.store(2, Ordering::Relaxed);
    let first = desk.open("desk").await;
    desk.kv.lose.store(2, Ordering::Relaxed);
    assert_eq!(first.beat().await.unwrap(), Beat::Alive);
    let second = desk.open("desk").await;
    assert!(second.owner().epoch > first.owner().epoch);
    desk.kv.lose.store(1, Ordering::Relaxed);
    assert_eq!(first.beat().await.unwrap(), Beat::Superseded);
    assert_eq!(second.beat().await.unwrap(), Beat::Alive);
}

#[tokio::test]
async fn a_record_of_a_newer_format_is_refused_by_name_and_left_as_it_is() {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    let old = message(&journal, "old");
    assert!(journal.commit_one(Change::insert(&old)).await.unwrap().applied().is_some());
    // One that this version could not read, and two that it could but must not: they mean something else.
    desk.plant("im/ana/strange", &serde_json::to_vec(&json!({ "v": 2, "stage": "x" })).unwrap(), 2).await;
    let mut newer: Value = serde_json::to_value(message(&journal, "newer")).unwrap();
    newer["v"] = json!(2);
    desk.plant("im/ana/newer", &serde_json::to_vec(&newer).unwrap(), 2).await;
    let mut newer: Value = serde_json::to_value(send(&journal, "newer")).unwrap();
    newer["v"] = json!(2);
    desk.plant("onewer", &serde_json::to_vec(&newer).unwrap(), 11).await;

    let page = journal.inbox().list(InboxState::Working, None, 10).await.unwrap();
    assert_eq!(page.records.iter().map(|stored| &stored.record.id).collect::<Vec<_>>(), [&old.id]);
    let mut names: Vec<_> = page.unreadable.iter().map(|unreadable| unreadable.key.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["m/ana/newer", "m/ana/strange"]);
    for Unreadable { key, reason } in &page.unreadable {
        let expected = format!("the record {key} has format 2, this version reads up to 1; upgrade");
        assert!(reason.contains(&expected), "{reason}");
    }
    let error = journal.inbox().get(&"m/ana/newer".into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    let error = journal.outbox().get(&"newer".into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert_eq!(journal.outbox().list(OutboxState::InFlight, None, 10).await.unwrap().unreadable.len(), 1);
    let due = journal.due(Timestamp::from_millis(1), None, 10).await.unwrap();
    assert_eq!((due.inbox.unreadable.len(), due.outbox.unreadable.len()), (2, 1));
    // It is there, so it is a redelivery.
    let again = message(&journal, "newer");
    assert_eq!(journal.commit_one(Change::insert(&again)).await.unwrap(), Cas::Lost);
}

#[tokio::test]
async fn an_instance_of_a_newer_version_is_not_taken_for_dead() {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    let session = json!({ "v": 2, "instance": "newer", "epoch": 7, "expires": 1, "more": true });
    desk.plant("snewer", &serde_json::to_vec(&session).unwrap(), 21).await;
    let sessions = journal.sessions().await.unwrap();
    let owner = |instance: &str| Owner { instance: instance.into(), epoch: 7 };
    assert!(!sessions.is_dead(&owner("newer")));
    assert!(sessions.is_dead(&owner("never-seen")));
    assert_eq!(journal.remove_expired(&sessions).await.unwrap(), 0);
}

#[tokio::test]
async fn damaged_records_are_told_by_name_and_the_others_are_read() {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    for (name, body) in [
        ("empty", b"".as_slice()),
        ("null", b"null"),
        ("cut", br#"{"v":1,"id":"m/ana/cut""#),
        ("binary", &[0xff, 0, 0x80]),
        ("number", br#"{"v":-1}"#),
    ] {
        desk.plant(&format!("im/ana/{name}"), body, 2).await;
        let error = journal.inbox().get(&format!("m/ana/{name}").into()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{name}");
        assert!(error.to_string().contains(&format!("the record m/ana/{name} ")), "{error}");
    }
    let fine = message(&journal, "fine");
    assert!(journal.commit_one(Change::insert(&fine)).await.unwrap().applied().is_some());
    let page = journal.inbox().list(InboxState::Working, None, 10).await.unwrap();
    assert_eq!((page.records.len(), page.unreadable.len()), (1, 5));
}

#[tokio::test]
async fn the_order_of_arrival_never_goes_back() {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    let mut last = i64::MIN;
    for millis in [5, 5, 4, 1_000, 3, -7, 1_000, 1_001] {
        let next = journal.next_order(Timestamp::from_millis(millis));
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}
