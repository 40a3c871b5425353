//! A journal backend that fails when told to.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use botmesh_core::Bytes;
use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use botmesh_core::time::{Clock, Timestamp};
use tokio::sync::watch;

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
}

impl Fault {
    /// All of them, for tests that try each.
    pub const ALL: [Self; 6] = [
        Self::FailBefore,
        Self::LoseAnswer,
        Self::Hang,
        Self::HangAfter,
        Self::CrashBefore,
        Self::CrashAfter,
    ];
}

/// Wraps a backend and makes chosen commits fail. All scopes of one value share faults and counts.
///
/// Commits are numbered from 1, in the order in which they were called. Reads work until a crash.
#[derive(Clone)]
pub struct LossyKv {
    inner: Arc<dyn DurableKv>,
    plan: Arc<Plan>,
    clock: Option<Arc<dyn Clock>>,
}

struct Plan {
    state: Mutex<State>,
    released: watch::Sender<u64>,
    hanging: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    commits: u64,
    ops: u64,
    reads: u64,
    down: bool,
    crashed: bool,
    numbered: BTreeMap<u64, Fault>,
    matching: Vec<(Predicate, Fault)>,
}

type Predicate = Box<dyn Fn(&[Op]) -> bool + Send + Sync>;

impl LossyKv {
    /// Wraps `inner`. Until told otherwise, it does just what `inner` does.
    pub fn new(inner: Arc<dyn DurableKv>) -> Self {
        let plan =
            Plan { state: Mutex::default(), released: watch::Sender::new(0), hanging: watch::Sender::new(0) };
        Self { inner, plan: Arc::new(plan), clock: None }
    }

    /// Takes the time from `clock` in place of the backend's own, so that a lease expires on a real server too without
    /// waiting.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
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

    /// While `down`, every call fails as if the backend could not be reached, and nothing is applied.
    pub fn set_down(&self, down: bool) {
        self.plan.lock().down = down;
    }

    /// Makes every later call fail, as after a crash. Commits that stand still fail at once.
    pub fn crash(&self) {
        self.plan.lock().crashed = true;
        self.release();
    }

    /// Whether a crash has happened.
    pub fn crashed(&self) -> bool {
        self.plan.lock().crashed
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
        let answered = released.changed().await;
        debug_assert!(answered.is_ok(), "this value holds the sender");
        self.plan.lock().check("commit")
    }
}

impl Plan {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, operation: &'static str) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.reads += 1;
        state.check(operation)
    }

    /// Counts a commit and says what goes wrong with it.
    fn commit(&self, ops: &[Op]) -> Result<Option<Fault>, StoreError> {
        let mut state = self.lock();
        state.check("commit")?;
        state.commits += 1;
        state.ops += u64::try_from(ops.len()).unwrap_or(u64::MAX);
        let number = state.commits;
        let matching = |state: &mut State| {
            let place = state.matching.iter().position(|(predicate, _)| predicate(ops))?;
            Some(state.matching.remove(place).1)
        };
        let fault = state.numbered.remove(&number).or_else(|| matching(&mut state));
        if matches!(fault, Some(Fault::CrashBefore)) {
            state.crashed = true;
        }
        Ok(fault)
    }
}

impl State {
    fn check(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.crashed {
            return Err(unavailable(operation, "crashed: the process of this handle is dead"));
        }
        if self.down {
            return Err(unavailable(operation, "the test took the backend down"));
        }
        Ok(())
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
        match self.plan.commit(&ops)? {
            None => self.inner.commit(ops).await,
            Some(Fault::FailBefore) => Err(unavailable("commit", "the test failed it before the write")),
            Some(Fault::CrashBefore) => Err(unavailable("commit", "crashed before the write")),
            Some(Fault::Hang) => {
                self.stand_still().await?;
                self.inner.commit(ops).await
            }
            Some(Fault::HangAfter) => {
                let outcomes = self.inner.commit(ops).await;
                self.stand_still().await.map_err(StoreError::with_unknown_effect)?;
                outcomes
            }
            Some(Fault::LoseAnswer) => {
                drop(self.inner.commit(ops).await?);
                Err(unavailable("commit", "the test lost the answer").with_unknown_effect())
            }
            Some(Fault::CrashAfter) => {
                let applied = self.inner.commit(ops).await;
                self.crash();
                drop(applied?);
                Err(unavailable("commit", "crashed after the write").with_unknown_effect())
            }
        }
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.plan.read("get")?;
        self.inner.get(keys).await
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.plan.read("scan")?;
        self.inner.scan(range, after, limit).await
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.plan.lock().check("now")?;
        match &self.clock {
            Some(clock) => Ok(Some(clock.now())),
            None => self.inner.now().await,
        }
    }

    async fn dedicated(&self) -> Result<Option<Arc<dyn DurableKv>>, StoreError> {
        let wrap = |inner| -> Arc<dyn DurableKv> { Arc::new(Self { inner, ..self.clone() }) };
        Ok(self.inner.dedicated().await?.map(wrap))
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
            .field("crashed", &state.crashed)
            .finish_non_exhaustive()
    }
}
