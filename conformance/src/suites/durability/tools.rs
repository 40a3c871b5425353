//! Words for the cases about journals.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use botmesh_core::content::Content;
use botmesh_core::entropy::SeededEntropy;
use botmesh_core::error::Cas;
use botmesh_core::id::{ChatId, InstanceId, RecordId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::journal::{
    Change, InboxRecord, Journal, KvDurability, OutboxRecord, Record, Refused, Send, Stored,
};
use botmesh_core::kv::{DurableKv, Version};
use botmesh_core::scope::Scope;
use botmesh_core::spawn::Seams;
use botmesh_core::time::{Clock, Timestamp};
use botmesh_testing::{LossyKv, TestSpawner, VirtualClock};

use crate::{Context, Failure};

pub(super) type Done<T = ()> = Result<T, Failure>;

pub(super) const LEASE: Duration = Duration::from_secs(60);
pub(super) const MAX_ATTEMPTS: u32 = 3;

/// One time for every process of a case, and the backend's data.
pub(super) struct World {
    pub(super) clock: VirtualClock,
    pub(super) kv: Arc<dyn DurableKv>,
    pub(super) scope: Scope,
    seed: u64,
}

/// One process: its journals, and the faults of its backend.
pub(super) struct Life {
    pub(super) journal: Journal,
    pub(super) kv: LossyKv,
    spawner: TestSpawner,
    clock: VirtualClock,
}

impl World {
    pub(super) fn new(context: &Context) -> Done<Self> {
        let (clock, kv, scope) = (VirtualClock::new(), context.unscoped_kv()?, context.bot("bot"));
        Ok(Self { clock, kv, scope, seed: 0 })
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A process starts as `instance`.
    pub(super) async fn start(&mut self, instance: &str) -> Done<Life> {
        let kv = LossyKv::new(Arc::clone(&self.kv));
        self.start_on(instance, kv).await
    }

    /// A process starts as `instance`, on a backend that may fail.
    pub(super) async fn start_on(&mut self, instance: &str, kv: LossyKv) -> Done<Life> {
        self.seed += 1;
        let kv = kv.with_clock(Arc::new(self.clock.clone()));
        let spawner = TestSpawner::new();
        let seams = Seams {
            clock: Arc::new(self.clock.clone()),
            entropy: Arc::new(SeededEntropy::new(self.seed)),
            spawner: Arc::new(spawner.clone()),
        };
        let journals = KvDurability::new(Arc::new(kv.clone()));
        let opening = journals.open(&self.scope, InstanceId::from(instance), LEASE, seams);
        let journal = driven(&self.clock, opening).await?;
        Ok(Life { journal, kv, spawner, clock: self.clock.clone() })
    }
}

impl Life {
    /// Commits changes; the virtual clock goes on while the journal waits to try again.
    pub(super) async fn commit(&self, changes: Vec<Change>) -> Done<Vec<Cas<Version>>> {
        Ok(driven(&self.clock, self.journal.commit(changes)).await?)
    }

    /// Commits one change.
    pub(super) async fn try_one(&self, change: Change) -> Done<Cas<Version>> {
        Ok(driven(&self.clock, self.journal.commit_one(change)).await?)
    }

    /// Commits one change that must be applied.
    pub(super) async fn one(&self, change: Change) -> Done<Version> {
        let outcome = self.try_one(change).await?;
        outcome.applied().ok_or_else(|| Failure::new("a change lost that nobody competes with"))
    }

    /// Writes a new record.
    pub(super) async fn insert<R: Record>(&self, record: R) -> Done<Stored<R>> {
        let version = self.one(Change::insert(&record)).await?;
        Ok(Stored { record, version })
    }

    /// Replaces a record by what a transition makes of it.
    pub(super) async fn step<R: Record>(
        &self,
        stored: &Stored<R>,
        next: Result<R, Refused>,
    ) -> Done<Stored<R>> {
        let record = next.map_err(|refused| Failure::new(refused.to_string()))?;
        let version = self.one(Change::update(stored.version, &record)).await?;
        Ok(Stored { record, version })
    }

    pub(super) async fn inbox(&self, id: &RecordId) -> Done<Stored<InboxRecord>> {
        let found = self.journal.inbox().get(id).await?;
        found.ok_or_else(|| Failure::new(format!("there is no inbound record {id}")))
    }

    pub(super) async fn outbox(&self, key: &str) -> Done<Stored<OutboxRecord>> {
        let found = self.journal.outbox().get(&SendKey::from(key)).await?;
        found.ok_or_else(|| Failure::new(format!("there is no send {key}")))
    }

    /// An event that arrives and starts at once.
    pub(super) fn working(&self, inbound: Inbound) -> InboxRecord {
        let now = self.clock.now();
        InboxRecord::working(Arc::new(inbound), self.journal.next_order(now), self.journal.owner(), now)
    }

    /// A send whose first attempt begins at once.
    pub(super) fn in_flight(&self, key: &str) -> OutboxRecord {
        let now = self.clock.now();
        OutboxRecord::in_flight(send(key), self.journal.next_order(now), self.journal.owner(), now)
    }

    /// The process is gone, without a chance to clean up.
    pub(super) async fn kill(self) {
        self.spawner.kill_all().await;
    }
}

pub(super) fn send(key: &str) -> Send {
    Send {
        key: SendKey::from(key),
        chat: ChatId::from("ana"),
        content: Content::text("hello"),
        fingerprint: Some(u64::MAX),
        source: None,
    }
}

pub(super) fn event(id: &str) -> Inbound {
    Inbound::text(id, "ana", "hi")
}

/// Runs `future`; whenever somebody sleeps, the clock goes to the end of the sleep.
pub(super) async fn driven<T>(clock: &VirtualClock, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        tokio::select! {
            biased;
            value = &mut future => return value,
            () = clock.wait_for_sleepers(1) => clock.jump(clock.until_next_wake().unwrap_or_default()),
        }
    }
}
