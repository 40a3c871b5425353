//! A backend that is away for a while, from any of its writes on, costs no message and doubles none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use botmesh::core::Bytes;
use botmesh::core::error::{ChannelError, ErrorClass, Phase, StoreError, StoreErrorKind};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{InboxState, OutboxState};
use botmesh::core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::Resolve;
use botmesh::core::time::{Clock, Timestamp};
use botmesh::{Ctx, Durability, OutboxConfig};
use botmesh_testing::VirtualClock;

use crate::journals::{MESSAGES, REPLIES, desk};
use crate::support::Stage;

/// Longer than any retry of a single write, shorter than the lease.
const OUTAGE: Duration = Duration::from_secs(20);

/// A backend that is away for a while.
#[derive(Clone)]
struct ShakyKv {
    inner: Arc<dyn DurableKv>,
    plan: Arc<Plan>,
}

#[derive(Default)]
struct Plan {
    clock: OnceLock<VirtualClock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    commits: u64,
    /// The commit at which it goes away, and whether that one is still carried out.
    breaks: Option<(u64, bool)>,
    back: Option<Timestamp>,
}

impl ShakyKv {
    fn stage(resolve: Resolve) -> (Stage, Self) {
        let kv = Self { inner: Arc::new(MemoryKv::new()), plan: Arc::default() };
        let stage = Stage::with_kv(resolve, Arc::new(kv.clone()));
        assert!(kv.plan.clock.set(stage.clock.clone()).is_ok());
        (stage, kv)
    }

    /// Goes away at the `nth` commit from now.
    fn break_at(&self, nth: u64, carried_out: bool) {
        let mut state = self.plan.state.lock().expect("no panic");
        state.breaks = Some((state.commits + nth, carried_out));
    }

    /// Goes away no more. Whether it has.
    fn mend(&self) -> bool {
        let mut state = self.plan.state.lock().expect("no panic");
        state.breaks = None;
        state.back.is_some()
    }
}

impl Plan {
    fn check(&self) -> Result<(), StoreError> {
        let now = self.clock.get().expect("a clock").now();
        match self.state.lock().expect("no panic").back {
            Some(back) if now < back => Err(away()),
            _ => Ok(()),
        }
    }

    /// `None` for a commit that goes well, else whether it is carried out.
    fn count(&self) -> Option<bool> {
        let mut state = self.state.lock().expect("no panic");
        state.commits += 1;
        let (nth, carried_out) = state.breaks?;
        (state.commits == nth).then(|| {
            state.back = Some(self.clock.get().expect("a clock").now() + OUTAGE);
            carried_out
        })
    }
}

fn away() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "shaky", "call", "away for a while")
}

/// Journals that refuse every write from some moment on, as files do after a failed sync.
struct BreakingKv {
    inner: Arc<dyn DurableKv>,
    broken: Arc<AtomicBool>,
}

#[async_trait]
impl DurableKv for BreakingKv {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { inner: self.inner.scoped(scope), broken: Arc::clone(&self.broken) })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Corrupt, "test", "commit", "the disk gave up"));
        }
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

    fn caps(&self) -> Caps {
        self.inner.caps()
    }
}

#[tokio::test]
async fn a_bot_whose_journals_break_ends_and_says_why() {
    let broken = Arc::new(AtomicBool::new(false));
    let inner: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
    let kv = BreakingKv { inner: Arc::clone(&inner), broken: Arc::clone(&broken) };
    let stage = Stage::with_kv(Resolve::Never, Arc::new(kv));
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await }));
    life.say("m1", "hi", 1).await;
    life.settled().await;
    broken.store(true, Ordering::Relaxed);
    assert!(!life.deliver(Inbound::text("m2", "ana", "lost?")).await, "the channel keeps it");
    life.until("the end of the bot", || life.ended.get().is_some()).await;
    let why = life.ended.get().and_then(|ended| ended.clone().err()).expect("an error");
    assert!(why.contains("the disk gave up") && why.contains("start again"), "{why}");
    broken.store(false, Ordering::Relaxed);
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await }));
    assert_eq!(life.say("m2", "lost?", 1).await, ["lost?"]);
    life.stop().await;
}

#[async_trait]
impl DurableKv for ShakyKv {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { inner: self.inner.scoped(scope), plan: Arc::clone(&self.plan) })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        self.plan.check()?;
        match self.plan.count() {
            None => self.inner.commit(ops).await,
            Some(false) => Err(away()),
            Some(true) => {
                drop(self.inner.commit(ops).await?);
                Err(away().with_unknown_effect())
            }
        }
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.plan.check()?;
        self.inner.get(keys).await
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.plan.check()?;
        self.inner.scan(range, after, limit).await
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.plan.check()?;
        self.inner.now().await
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

/// Plays the whole dialogue, with the backend away from the `nth` write on; `false` if there is no such write.
async fn survives(resolve: Resolve, fails: bool, paced: bool, nth: u64, carried_out: bool) -> bool {
    let (stage, kv) = ShakyKv::stage(resolve);
    // So that no reply is left to the background only because it took long.
    let outbox = OutboxConfig { inline_max: OUTAGE * 2, ..OutboxConfig::default() };
    let durability = Durability::default().with_instance_id("bot").with_outbox(outbox);
    let mut life = stage.start_with(durability, desk);
    life.until("a running bot", || life.bot.durability().is_some()).await;
    kv.break_at(nth, carried_out);
    for _ in 0..if fails { 3 } else { 0 } {
        stage.channel.fail_next(ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy"));
    }
    for (n, text) in MESSAGES.iter().enumerate() {
        let mut tries = 0;
        while !life.deliver(Inbound::text(format!("m{n}"), "ana", *text)).await {
            stage.clock.advance(Duration::from_secs(1)).await;
            tries += 1;
            assert!(tries < 100, "`{text}` is never taken over");
        }
        if paced {
            life.settled().await;
        }
    }
    life.settled().await;
    let was_away = kv.mend();
    stage.clock.advance(OUTAGE * 3).await;
    life.settled().await;
    let case = format!(
        "{resolve:?}, failing channel: {fails}, paced: {paced}, write {nth}, carried out: {carried_out}\n{}",
        stage.channel.transcript()
    );
    assert_eq!(stage.channel.texts_to("ana"), REPLIES, "{case}");
    assert!(!life.event_names().contains(&"durability:ambiguous"), "{case}");
    let journal = life.bot.durability().expect("a durable bot");
    let flying = journal.outbox().list(OutboxState::InFlight, None, 9).await.expect("a listing");
    assert_eq!(flying.records, [], "{case}");
    let done = journal.inbox().list(InboxState::Done, None, 99).await.expect("a listing");
    assert_eq!(done.records.len(), MESSAGES.len(), "{case}");
    life.stop().await;
    was_away
}

#[tokio::test]
async fn every_reply_comes_exactly_once_from_whichever_write_on_the_backend_is_away() {
    for (resolve, fails) in [(Resolve::Lookup, false), (Resolve::Never, false), (Resolve::Never, true)] {
        for (paced, carried_out) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut nth = 1;
            while survives(resolve, fails, paced, nth, carried_out).await {
                nth += 1;
            }
            assert!(nth > 16, "the dialogue has only {nth} writes");
        }
    }
}
