//! Processes of different hosts place what arrives by the clock of the backend that they share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::Bytes;
use botmesh_core::entropy::SeededEntropy;
use botmesh_core::error::StoreError;
use botmesh_core::journal::{Beat, Journal, KvDurability, Leases};
use botmesh_core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use botmesh_core::memory::MemoryKv;
use botmesh_core::scope::Scope;
use botmesh_core::spawn::Seams;
use botmesh_core::time::{Clock, Timestamp};

use crate::journal_writes::NoTasks;

const LEASE: Duration = Duration::from_secs(60);

/// How long a question and its answer take together.
const ROUND_TRIP: Duration = Duration::from_micros(130);

/// Time that passes when it is told to.
#[derive(Debug, Default)]
struct ManualClock(AtomicU64);

impl ManualClock {
    fn pass(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_micros()).unwrap(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    /// A host's clock that was set wrong.
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(5) + self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    fn sleep<'a, 'b>(
        &'a self,
        duration: Duration,
    ) -> std::pin::Pin<Box<dyn Future<Output = ()> + std::marker::Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.pass(duration);
        Box::pin(std::future::ready(()))
    }
}

/// A backend with a clock.
#[derive(Clone)]
struct Clocked {
    inner: Arc<dyn DurableKv>,
    clock: Arc<ManualClock>,
    /// What its clock shows at the beginning, in microseconds.
    began: Arc<AtomicI64>,
    /// For how long who asked for the time stands still before it has the answer.
    standstill: Arc<AtomicU64>,
}

impl Clocked {
    fn new() -> Self {
        let inner: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
        let (clock, standstill) = Default::default();
        Self { inner, clock, began: Arc::new(AtomicI64::new(1_700_000_000_000_000)), standstill }
    }

    fn micros(&self) -> i64 {
        self.began.load(Ordering::Relaxed) + i64::try_from(self.clock.monotonic().as_micros()).unwrap()
    }

    async fn open(&self, instance: &str) -> Journal {
        let seams = Seams {
            clock: Arc::<ManualClock>::clone(&self.clock),
            entropy: Arc::new(SeededEntropy::new(1)),
            spawner: Arc::new(NoTasks),
        };
        let durability = KvDurability::new(Arc::new(self.clone()));
        durability.open(&Scope::default(), instance.into(), Leases::from(LEASE), seams).await.unwrap()
    }
}

#[async_trait]
impl DurableKv for Clocked {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { inner: self.inner.scoped(scope), ..self.clone() })
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
        self.inner.scan(range, after, limit).await
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.clock.pass(ROUND_TRIP / 2);
        let now = Timestamp::from_millis(self.micros().div_euclid(1000));
        self.clock.pass(ROUND_TRIP / 2 + Duration::from_micros(self.standstill.load(Ordering::Relaxed)));
        Ok(Some(now))
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }
}

/// How far the place that a message gets now is behind the backend's clock.
fn behind(kv: &Clocked, journal: &Journal) -> i64 {
    kv.micros() - journal.next_order(journal.estimated_now())
}

#[tokio::test]
async fn who_stood_still_while_it_was_told_the_time_places_what_arrives_then_no_earlier() {
    let kv = Clocked::new();
    let journal = kv.open("desk").await;
    kv.standstill.store(7_000_000, Ordering::Relaxed);
    assert_eq!(journal.beat().await.unwrap(), Beat::Alive);
    assert!((0..1_000).contains(&behind(&kv, &journal)), "it places a message before what came seconds ago");
    journal.sessions().await.unwrap();
    assert!((0..1_000).contains(&behind(&kv, &journal)));
}

#[tokio::test]
async fn what_came_to_two_processes_in_one_millisecond_has_its_place_in_the_order_in_which_it_came() {
    let kv = Clocked::new();
    let journals = [kv.open("a").await, kv.open("b").await];
    let mut last = i64::MIN;
    for n in 0..40 {
        let journal = &journals[n % 2];
        let order = journal.next_order(journal.estimated_now());
        assert!(order > last, "the {n}th comes at {order}, after {last}");
        last = order;
        // To be journaled and acknowledged takes longer.
        kv.clock.pass(2 * ROUND_TRIP);
    }
}

#[tokio::test]
async fn when_the_clock_of_the_backend_is_set_the_processes_follow_it() {
    let kv = Clocked::new();
    let journal = kv.open("desk").await;
    for by in [-3_600_000_000, 60_000_000] {
        kv.began.fetch_add(by, Ordering::Relaxed);
        assert_eq!(journal.beat().await.unwrap(), Beat::Alive);
        let estimated = kv.micros() - journal.estimated_now().as_millis() * 1_000;
        assert!((-1_200..2_200).contains(&estimated), "{estimated} µs behind");
    }
}
