//! The parts of the journals that are not functions of their arguments, run for real: who is dead, and what the committer
//! makes of a write whose answer was lost.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use botmesh_core::async_trait;
use botmesh_core::entropy::{Entropy, SeededEntropy};
use botmesh_core::error::{Cas, StoreError, StoreErrorKind};
use botmesh_core::id::InstanceId;
use botmesh_core::journal::{Change, Journal, KvDurability, Sessions};
use botmesh_core::kv::{Caps, Cursor, Durable, DurableKv, Entry, Expect, Index, Op, Outcome, Range, Version};
use botmesh_core::memory::MemoryKv;
use botmesh_core::scope::Scope;
use botmesh_core::spawn::{Seams, Spawner, Task};
use botmesh_core::time::{Clock, Timestamp};

use crate::setting::NOW;
use crate::state::{Lease, Put, Session, Write};
use crate::steps::Who;

pub(crate) const INSTANCES: [&str; 2] = ["a", "b"];

/// More starts of one instance than any setting permits.
const MAX_EPOCH: u64 = 6;

/// A clock that stands still: whoever sleeps wakes at once.
struct StillClock;

#[async_trait]
impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        NOW
    }
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
    async fn sleep(&self, _: Duration) {}
}

struct NoTasks;

impl Spawner for NoTasks {
    fn spawn(&self, _: &'static str, _: Task) {}
}

fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing here waits"),
    }
}

fn open(kv: Arc<dyn DurableKv>, instance: &str, entropy: Arc<dyn Entropy>) -> Journal {
    let seams = Seams { clock: Arc::new(StillClock), entropy, spawner: Arc::new(NoTasks) };
    let (journals, scope) = (KvDurability::new(kv), Scope::default());
    ready(journals.open(&scope, instance.into(), Duration::from_secs(1), seams)).expect("a session")
}

/// Every view that an instance can have of the two sessions, as the journals give it.
pub(crate) struct Views(HashMap<(Who, [Session; 2]), Sessions>);

impl Views {
    /// The same for all settings.
    pub(crate) fn all() -> &'static Self {
        static VIEWS: LazyLock<Views> = LazyLock::new(Views::new);
        &VIEWS
    }

    fn new() -> Self {
        let of_epoch =
            |epoch| [Lease::Held, Lease::RunOut, Lease::Removed].map(|lease| Session { epoch, lease });
        let each: Vec<Session> = (1..=MAX_EPOCH).flat_map(of_epoch).collect();
        let pairs = each.iter().flat_map(|a| each.iter().map(|b| [*a, *b]));
        let views =
            pairs.flat_map(|pair| Self::of(pair).into_iter().map(move |(who, seen)| ((who, pair), seen)));
        Self(views.collect())
    }

    /// What each process that was ever started sees.
    fn of(sessions: [Session; 2]) -> Vec<(Who, Sessions)> {
        let kv: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
        let entropy: Arc<dyn Entropy> = Arc::new(SeededEntropy::new(1));
        let start = |instance: usize| -> Vec<(Who, Journal)> {
            let start = |epoch| {
                let journal = open(Arc::clone(&kv), INSTANCES[instance], Arc::clone(&entropy));
                assert_eq!(journal.owner().epoch, epoch);
                (Who { instance, epoch }, journal)
            };
            (1..=sessions[instance].epoch).map(start).collect()
        };
        let journals = [start(0), start(1)];
        let other = open(Arc::clone(&kv), "other", Arc::clone(&entropy));
        for lease in [Lease::Removed, Lease::RunOut] {
            for (journals, _) in journals.iter().zip(sessions).filter(|(_, session)| session.lease == lease) {
                ready(journals.last().expect("a start").1.end_session()).expect("an end");
            }
            if lease == Lease::Removed {
                let seen = ready(other.sessions()).expect("sessions");
                let _ = ready(other.remove_expired(&seen)).expect("a removal");
            }
        }
        let views = journals.iter().flatten();
        views.map(|(who, journal)| (*who, ready(journal.sessions()).expect("sessions"))).collect()
    }

    pub(crate) fn seen_by(&self, asker: Who, sessions: &[Session; 2]) -> &Sessions {
        self.0.get(&(asker, *sessions)).expect("a view of every pair of sessions")
    }
}

pub(crate) fn instance(index: usize) -> InstanceId {
    INSTANCES[index].into()
}

/// What became of a write whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It had taken effect, as this version.
    Recognised(u64),
    /// It had not, and does now.
    Wrote,
    /// Another one was first.
    Lost,
}

/// The committer of the journals over a backend that lost one answer.
pub(crate) struct RealCommitter {
    journal: Journal,
    backend: Arc<Backend>,
    ids: Arc<WriteIds>,
    one_at_a_time: Mutex<()>,
}

impl RealCommitter {
    pub(crate) fn new() -> Self {
        let (backend, ids) = (Arc::new(Backend::default()), Arc::new(WriteIds::default()));
        let kv: Arc<dyn DurableKv> = Arc::new(Shared(Arc::clone(&backend)));
        let journal = open(kv, "committer", ids.clone());
        Self { journal, backend, ids, one_at_a_time: Mutex::new(()) }
    }

    /// Commits `write` again, whose first answer was lost.
    pub(crate) fn find_out(&self, write: &Write, script: Script) -> Known {
        let _one = lock(&self.one_at_a_time);
        *lock(&self.backend.0) = Scene { script, id: write.id, loses_answer: true, ..Scene::default() };
        self.ids.0.store(write.id, Ordering::SeqCst);
        let change = match &write.put {
            Put::Inbox(_, put) => change(put.version, &*put.record),
            Put::Outbox(_, put) => change(put.version, &*put.record),
        };
        let outcome = ready(self.journal.commit_one(change)).expect("an outcome");
        match outcome {
            Cas::Lost => Known::Lost,
            Cas::Applied(_) if lock(&self.backend.0).wrote => Known::Wrote,
            Cas::Applied(version) => Known::Recognised(version.0),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change<R: botmesh_core::journal::Record>(version: u64, record: &R) -> Change {
    match version {
        0 => Change::insert(record),
        version => Change::update(Version(version), record),
    }
}

/// Both halves of each write id are this number.
#[derive(Default)]
struct WriteIds(AtomicU64);

impl Entropy for WriteIds {
    fn next_u64(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// How the backend behaves while the committer finds out.
#[derive(Clone, Copy, Default)]
pub(crate) struct Script {
    /// What it has: version and write id.
    pub(crate) there: Option<(u64, u64)>,
    /// The lost write takes effect just before the second attempt.
    pub(crate) lands: bool,
    /// It compares no versions.
    pub(crate) blind: bool,
    /// It forgets write ids.
    pub(crate) anonymous: bool,
}

#[derive(Default)]
struct Scene {
    script: Script,
    id: u64,
    loses_answer: bool,
    wrote: bool,
}

impl Scene {
    fn apply(&mut self, expect: Expect) -> Outcome {
        let there = self.script.there.map(|(version, _)| Version(version));
        let expected = match expect {
            Expect::Absent => there.is_none(),
            Expect::Version(version) => there == Some(version),
        };
        if !expected && !self.script.blind {
            return Outcome::Conflict(there);
        }
        let next = there.map_or(1, |version| version.0 + 1);
        self.script.there = Some((next, self.id));
        Outcome::Applied(Version(next))
    }
}

/// A backend with one entry.
#[derive(Default)]
struct Backend(Mutex<Scene>);

struct Shared(Arc<Backend>);

#[async_trait]
impl DurableKv for Shared {
    fn scoped(&self, _: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self(Arc::clone(&self.0)))
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        let mut scene = lock(&self.0.0);
        if std::mem::take(&mut scene.loses_answer) {
            let error = StoreError::new(StoreErrorKind::Unavailable, "model", "commit", "the answer is lost");
            return Err(error.with_unknown_effect());
        }
        let mut outcomes = Vec::new();
        for op in ops {
            let Op::Put { expect, .. } = op else { continue };
            if std::mem::take(&mut scene.script.lands) {
                let _ = scene.apply(expect);
            }
            let outcome = scene.apply(expect);
            scene.wrote |= matches!(outcome, Outcome::Applied(_));
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    async fn get(&self, keys: &[bytes::Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        let Script { there, anonymous, .. } = lock(&self.0.0).script;
        let entry = |key: &bytes::Bytes| {
            let (version, id) = there?;
            let id = if anonymous { 0 } else { id };
            let value = [id.to_be_bytes(), id.to_be_bytes()].concat().into();
            Some(Entry { key: key.clone(), version: Version(version), value, index: Index::default() })
        };
        Ok(keys.iter().map(entry).collect())
    }

    async fn scan(&self, _: Range, _: Option<&Cursor>, _: usize) -> Result<Vec<Entry>, StoreError> {
        Ok(Vec::new())
    }

    fn caps(&self) -> Caps {
        Caps { durable: Durable::Process, shared: true, max_value: 1 << 20, groups_commits: true }
    }
}
