//! A journal backend that fails when told to.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use botmesh_core::Bytes;
use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_core::journal::WritePoint;
use botmesh_core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use botmesh_core::time::{Clock, Timestamp};
use tokio::sync::watch;

use crate::Crash;

const BACKEND: &str = "lossy";

/// What goes wrong with one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nothing is applied; the error says so.
    FailBefore,
    /// Everything is applied, but the error says only that the effect is unknown.
    LoseAnswer,
    /// The call stands still until [`LossyKv::release`], and is then carried out. If it is dropped before, nothing is
    /// applied.
    Hang,
    /// Everything is applied; the answer stands still until [`LossyKv::release`].
    HangAfter,
    /// Nothing is applied, and every later call fails: the process died before the write.
    CrashBefore,
    /// Everything is applied, no answer arrives, and every later call fails: the process died after the write.
    CrashAfter,
    /// Of the commit's writes only one is applied, and every later call fails: the process died halfway. It is the write
    /// that the fault was chosen for, else the last one. Writes of one commit are independent, so any of them may be.
    CrashAmid,
}

impl Fault {
    /// All of them, for tests that try each.
    pub const ALL: [Self; 7] = [
        Self::FailBefore,
        Self::LoseAnswer,
        Self::Hang,
        Self::HangAfter,
        Self::CrashBefore,
        Self::CrashAfter,
        Self::CrashAmid,
    ];

    /// Whether the process is dead after it.
    pub fn is_crash(self) -> bool {
        match self {
            Self::CrashBefore | Self::CrashAfter | Self::CrashAmid => true,
            Self::FailBefore | Self::LoseAnswer | Self::Hang | Self::HangAfter => false,
        }
    }
}

/// Wraps a backend so that the process that uses it can be crashed at any write of its journals:
/// [`crash_before`](LossyKv::crash_before), [`crash_after`](LossyKv::crash_after). The backend itself stays usable by the
/// next process.
pub fn crashable(backend: Arc<dyn DurableKv>) -> LossyKv {
    LossyKv::new(backend)
}

/// Wraps a backend and makes chosen commits fail. All scopes of one value share faults and counts.
///
/// Commits are numbered from 1, in the order in which they were called. Reads work until a crash.
#[derive(Clone)]
pub struct LossyKv {
    inner: Arc<dyn DurableKv>,
    plan: Arc<Plan>,
    time: Time,
}

/// Where the backend's time comes from.
#[derive(Clone)]
enum Time {
    Backend,
    Clock(Arc<dyn Clock>),
    /// From the clock, if the backend has one of its own.
    InPlace(Arc<dyn Clock>),
}

struct Plan {
    state: Mutex<State>,
    crash: Crash,
    calling: AtomicUsize,
    released: watch::Sender<u64>,
    hanging: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    commits: u64,
    ops: u64,
    reads: u64,
    down: bool,
    numbered: BTreeMap<u64, Fault>,
    matching: Vec<(Predicate, Fault)>,
    points: BTreeMap<WritePoint, u64>,
    /// The fault at the write of this number at its point.
    at_points: BTreeMap<(WritePoint, u64), Fault>,
    strange: u64,
}

type Predicate = Box<dyn Fn(&[Op]) -> bool + Send + Sync>;

/// What goes wrong with a commit, and with which of its writes.
struct Hit {
    fault: Fault,
    write: usize,
}

impl LossyKv {
    /// Wraps `inner`. Until told otherwise, it does just what `inner` does.
    pub fn new(inner: Arc<dyn DurableKv>) -> Self {
        Self::of_process(inner, Crash::new())
    }

    /// As [`new`](Self::new), for a process that may crash elsewhere too.
    pub fn of_process(inner: Arc<dyn DurableKv>, crash: Crash) -> Self {
        let plan = Plan {
            state: Mutex::default(),
            crash,
            calling: AtomicUsize::new(0),
            released: watch::Sender::new(0),
            hanging: watch::Sender::new(0),
        };
        Self { inner, plan: Arc::new(plan), time: Time::Backend }
    }

    /// Takes the time from `clock` in place of the backend's own, so that a lease expires on a real server too without
    /// waiting.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.time = Time::Clock(clock);
        self
    }

    /// Takes the time from `clock` if the backend has a clock of its own, and gives none if it has none.
    #[must_use]
    pub fn with_clock_in_place(mut self, clock: Arc<dyn Clock>) -> Self {
        self.time = Time::InPlace(clock);
        self
    }

    /// The backend below, as the next process would find it after a crash.
    pub fn inner(&self) -> Arc<dyn DurableKv> {
        Arc::clone(&self.inner)
    }

    /// Makes the `nth` commit fail, counted from 1 since this value was made.
    pub fn fail_commit(&self, nth: u64, fault: Fault) {
        self.plan.lock().numbered.insert(nth, fault);
    }

    /// Makes the next commit fail.
    pub fn fail_next(&self, fault: Fault) {
        let mut state = self.plan.lock();
        let next = state.commits + 1;
        state.numbered.insert(next, fault);
    }

    /// Makes the first commit fail whose writes fulfil `predicate`. Several rules are tried in the order in which they
    /// were given, and each is used once.
    pub fn fail_when(&self, predicate: impl Fn(&[Op]) -> bool + Send + Sync + 'static, fault: Fault) {
        self.plan.lock().matching.push((Box::new(predicate), fault));
    }

    /// The process dies right before the next write at `point`.
    pub fn crash_before(&self, point: WritePoint) {
        self.fault_at(point, 1, Fault::CrashBefore);
    }

    /// The process dies right after the next write at `point`, before it hears of it.
    pub fn crash_after(&self, point: WritePoint) {
        self.fault_at(point, 1, Fault::CrashAfter);
    }

    /// Makes the commit fail that holds the `nth` write at `point` from now on, counted from 1.
    pub fn fault_at(&self, point: WritePoint, nth: u64, fault: Fault) {
        let mut state = self.plan.lock();
        let nth = state.points.get(&point).copied().unwrap_or(0) + nth;
        state.at_points.insert((point, nth), fault);
    }

    /// How often each write of the journals was called, whatever became of it.
    pub fn points(&self) -> BTreeMap<WritePoint, u64> {
        self.plan.lock().points.clone()
    }

    /// How many writes were called that the journals never make.
    pub fn strange_writes(&self) -> u64 {
        self.plan.lock().strange
    }

    /// How many faults have not happened yet.
    pub fn pending_faults(&self) -> usize {
        let state = self.plan.lock();
        state.numbered.len() + state.matching.len() + state.at_points.len()
    }

    /// How many calls the backend is answering now. Commits that stand still are not among them.
    pub fn calls_under_way(&self) -> usize {
        self.plan.calling.load(Ordering::Relaxed)
    }

    /// While `down`, every call fails as if the backend could not be reached, and nothing is applied.
    pub fn set_down(&self, down: bool) {
        self.plan.lock().down = down;
    }

    /// Makes every later call fail, as after a crash. Commits that stand still fail at once.
    pub fn crash(&self) {
        self.plan.crash.now();
    }

    /// Whether a crash has happened.
    pub fn crashed(&self) -> bool {
        self.plan.crash.happened()
    }

    /// The process that uses this value.
    pub fn process(&self) -> &Crash {
        &self.plan.crash
    }

    /// Lets the commits go on that stand still now.
    pub fn release(&self) {
        self.plan.released.send_modify(|times| *times += 1);
    }

    /// How many commits were called, whatever became of them.
    pub fn commits(&self) -> u64 {
        self.plan.lock().commits
    }

    /// How many writes the commits held.
    pub fn ops(&self) -> u64 {
        self.plan.lock().ops
    }

    /// How many gets and scans were called.
    pub fn reads(&self) -> u64 {
        self.plan.lock().reads
    }

    /// How many commits stand still.
    pub fn hanging(&self) -> usize {
        *self.plan.hanging.borrow()
    }

    /// Returns when at least `count` commits stand still.
    pub async fn wait_for_hanging(&self, count: usize) {
        let mut hanging = self.plan.hanging.subscribe();
        let enough = hanging.wait_for(|hanging| *hanging >= count).await;
        debug_assert!(enough.is_ok(), "this value holds the sender");
    }

    async fn stand_still(&self) -> Result<(), StoreError> {
        let mut released = self.plan.released.subscribe();
        let _hanging = Hanging::new(&self.plan);
        tokio::select! {
            biased;
            () = self.plan.crash.wait() => {}
            answered = released.changed() => debug_assert!(answered.is_ok(), "this value holds the sender"),
        }
        self.plan.check("commit")
    }

    async fn call<T>(&self, call: impl Future<Output = T>) -> T {
        let _calling = Calling::new(&self.plan);
        call.await
    }

    async fn carry_out(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        self.call(self.inner.commit(ops)).await
    }
}

impl Plan {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.crash.happened() {
            return Err(unavailable(operation, "crashed: the process of this handle is dead"));
        }
        if self.lock().down {
            return Err(unavailable(operation, "the test took the backend down"));
        }
        Ok(())
    }

    fn read(&self, operation: &'static str) -> Result<(), StoreError> {
        self.lock().reads += 1;
        self.check(operation)
    }

    /// Counts a commit and says what goes wrong with it.
    fn commit(&self, ops: &[Op]) -> Result<Option<Hit>, StoreError> {
        self.check("commit")?;
        let hit = self.lock().count(ops);
        if hit.as_ref().is_some_and(|hit| hit.fault == Fault::CrashBefore) {
            self.crash.now();
        }
        Ok(hit)
    }
}

impl State {
    fn count(&mut self, ops: &[Op]) -> Option<Hit> {
        self.commits += 1;
        self.ops += u64::try_from(ops.len()).unwrap_or(u64::MAX);
        let at_point = self.count_points(ops);
        let last = ops.len().saturating_sub(1);
        let whole = |fault| Hit { fault, write: last };
        let numbered = self.numbered.remove(&self.commits).map(whole);
        numbered.or(at_point).or_else(|| {
            let place = self.matching.iter().position(|(predicate, _)| predicate(ops))?;
            Some(whole(self.matching.remove(place).1))
        })
    }

    fn count_points(&mut self, ops: &[Op]) -> Option<Hit> {
        let mut hit = None;
        for (write, op) in ops.iter().enumerate() {
            let Some(point) = WritePoint::of(op) else {
                self.strange += 1;
                continue;
            };
            let times = self.points.entry(point).or_default();
            *times += 1;
            if let Some(fault) = self.at_points.remove(&(point, *times)) {
                hit.get_or_insert(Hit { fault, write });
            }
        }
        hit
    }
}

struct Calling<'a>(&'a Plan);

impl<'a> Calling<'a> {
    fn new(plan: &'a Plan) -> Self {
        plan.calling.fetch_add(1, Ordering::Relaxed);
        Self(plan)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.calling.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Hanging<'a>(&'a Plan);

impl<'a> Hanging<'a> {
    fn new(plan: &'a Plan) -> Self {
        plan.hanging.send_modify(|hanging| *hanging += 1);
        Self(plan)
    }
}

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        self.0.hanging.send_modify(|hanging| *hanging -= 1);
    }
}

fn unavailable(operation: &'static str, message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, BACKEND, operation, message)
}

#[async_trait]
impl DurableKv for LossyKv {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { inner: self.inner.scoped(scope), ..self.clone() })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        let Some(Hit { fault, write }) = self.plan.commit(&ops)? else {
            return self.carry_out(ops).await;
        };
        match fault {
            Fault::FailBefore => Err(unavailable("commit", "the test failed it before the write")),
            Fault::CrashBefore => Err(unavailable("commit", "crashed before the write")),
            Fault::Hang => {
                self.stand_still().await?;
                self.carry_out(ops).await
            }
            Fault::HangAfter => {
                let outcomes = self.carry_out(ops).await;
                self.stand_still().await.map_err(StoreError::with_unknown_effect)?;
                outcomes
            }
            Fault::LoseAnswer => {
                drop(self.carry_out(ops).await?);
                Err(unavailable("commit", "the test lost the answer").with_unknown_effect())
            }
            Fault::CrashAfter | Fault::CrashAmid => {
                let last = match fault {
                    Fault::CrashAmid => ops.into_iter().skip(write).take(1).collect(),
                    _ => ops,
                };
                let applied = self.carry_out(last).await;
                self.crash();
                drop(applied?);
                Err(unavailable("commit", "crashed after the write").with_unknown_effect())
            }
        }
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.plan.read("get")?;
        self.call(self.inner.get(keys)).await
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.plan.read("scan")?;
        self.call(self.inner.scan(range, after, limit)).await
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.plan.check("now")?;
        match &self.time {
            Time::Backend => self.call(self.inner.now()).await,
            Time::Clock(clock) => Ok(Some(clock.now())),
            Time::InPlace(clock) => Ok(self.call(self.inner.now()).await?.map(|_| clock.now())),
        }
    }

    async fn dedicated(&self) -> Result<Option<Arc<dyn DurableKv>>, StoreError> {
        let wrap = |inner| -> Arc<dyn DurableKv> { Arc::new(Self { inner, ..self.clone() }) };
        Ok(self.call(self.inner.dedicated()).await?.map(wrap))
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn close(&self) -> Result<(), StoreError> {
        if self.crashed() { Ok(()) } else { self.inner.close().await }
    }
}

impl fmt::Debug for LossyKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.plan.lock();
        f.debug_struct("LossyKv")
            .field("commits", &state.commits)
            .field("crashed", &self.plan.crash.happened())
            .finish_non_exhaustive()
    }
}
