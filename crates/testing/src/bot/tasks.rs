//! The tasks of a bot under test, run by the test itself: they make progress only during its steps, and it is known
//! exactly when none of them can go on.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use botmesh_core::spawn::{Spawner, Task};
use futures_util::Stream;
use futures_util::stream::FuturesUnordered;

/// How often the tasks are polled in one go before others have their turn.
const ROUNDS: usize = 10_000;

#[derive(Default)]
pub(super) struct Tasks {
    spawned: Mutex<Vec<Named>>,
    running: Mutex<FuturesUnordered<Named>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    polls: AtomicU64,
    /// How many more polls there may be in this run.
    left: AtomicU64,
    alive: Mutex<BTreeMap<&'static str, usize>>,
}

struct Named {
    name: &'static str,
    task: Task,
    counts: Arc<Counts>,
}

impl Tasks {
    /// Runs the tasks while `alive`, as far as they come or for so many polls. How many polls it took.
    pub(super) fn run(&self, context: &mut Context<'_>, polls: u64, alive: impl Fn() -> bool) -> u64 {
        let before = self.counts.polls.load(Ordering::Relaxed);
        self.counts.left.store(polls, Ordering::Relaxed);
        let woken = Arc::new(Woken { test: context.waker().clone(), again: AtomicBool::new(true) });
        let waker = Waker::from(Arc::clone(&woken));
        let mut running = lock(&self.running);
        for _ in 0..ROUNDS {
            if !alive() || self.counts.left.load(Ordering::Relaxed) == 0 {
                break;
            }
            let spawned = std::mem::take(&mut *lock(&self.spawned));
            if spawned.is_empty() && !woken.again.swap(false, Ordering::Relaxed) {
                break;
            }
            running.extend(spawned);
            let ended = Pin::new(&mut *running).poll_next(&mut Context::from_waker(&waker));
            if matches!(ended, Poll::Ready(Some(()))) {
                woken.again.store(true, Ordering::Relaxed);
            }
        }
        self.counts.polls.load(Ordering::Relaxed) - before
    }

    /// Ends every task where it stands, as a crash does.
    pub(super) fn kill(&self) {
        loop {
            // What is dropped may start tasks.
            let (running, spawned) =
                (std::mem::take(&mut *lock(&self.running)), std::mem::take(&mut *lock(&self.spawned)));
            if running.is_empty() && spawned.is_empty() {
                return;
            }
        }
    }

    /// The names of the tasks that have not ended, and how many there are of each.
    pub(super) fn alive(&self) -> BTreeMap<&'static str, usize> {
        lock(&self.counts.alive).clone()
    }
}

impl Spawner for Tasks {
    fn spawn(&self, name: &'static str, task: Task) {
        *lock(&self.counts.alive).entry(name).or_default() += 1;
        lock(&self.spawned).push(Named { name, task, counts: Arc::clone(&self.counts) });
    }
}

impl Future for Named {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let left = self.counts.left.load(Ordering::Relaxed);
        if left == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.counts.left.store(left - 1, Ordering::Relaxed);
        self.counts.polls.fetch_add(1, Ordering::Relaxed);
        self.task.as_mut().poll(context)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut alive = lock(&self.counts.alive);
        if let Some(count) = alive.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                alive.remove(self.name);
            }
        }
    }
}

/// Wakes the test, and tells that a task woke while the tasks were polled.
struct Woken {
    test: Waker,
    again: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.again.store(true, Ordering::Relaxed);
        self.test.wake_by_ref();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
