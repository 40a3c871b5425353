//! A bounded queue from many tasks to one thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

/// How often a taker that finds nothing gives way before it sleeps: some 75 µs on an idle machine, nothing on a busy one.
/// The next write of a chat that is alone comes within that time even if the handler's thread has to wake up first, and
/// needs no system call to wake this one then.
const YIELDS: u32 = 150;

/// Holds jobs up to a total weight; a pusher waits for room without blocking its thread.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
    room: Semaphore,
    capacity: u32,
}

struct State<T> {
    jobs: VecDeque<(u32, T)>,
    closed: bool,
    waiting: bool,
}

/// The queue takes no more jobs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// What [`Queue::take`] found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Jobs.
    Jobs,
    /// None for as long as it was told to wait.
    Idle,
    /// None, and there will never be any.
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: u32) -> Self {
        let state = State { jobs: VecDeque::new(), closed: false, waiting: false };
        let room = Semaphore::new(capacity as usize);
        Self { state: Mutex::new(state), ready: Condvar::new(), room, capacity }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job when there is room for it. A job that is heavier than the whole queue waits until it is empty.
    pub(super) async fn push(&self, weight: u32, job: T) -> Result<(), Closed> {
        let weight = weight.min(self.capacity);
        self.room.acquire_many(weight).await.map_err(|_| Closed)?.forget();
        let mut state = self.state();
        if state.closed {
            return Err(Closed);
        }
        state.jobs.push_back((weight, job));
        let wake = std::mem::take(&mut state.waiting);
        drop(state);
        if wake {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Moves what is waiting to `jobs`, in order and up to the weight `bound` (at least one job), and says what it
    /// weighs together. Waits for the first job, at most for `patience` if it is given.
    pub(super) fn take(&self, bound: u32, patience: Option<Duration>, jobs: &mut Vec<T>) -> (Taken, u32) {
        let mut state = self.state();
        for _ in 0..YIELDS {
            if !state.jobs.is_empty() || state.closed {
                break;
            }
            drop(state);
            std::thread::yield_now();
            state = self.state();
        }
        loop {
            if let Some((weight, job)) = state.jobs.pop_front() {
                jobs.push(job);
                let mut total = weight;
                while let Some((weight, job)) =
                    state.jobs.pop_front_if(|(weight, _)| total.saturating_add(*weight) <= bound)
                {
                    total += weight;
                    jobs.push(job);
                }
                return (Taken::Jobs, total);
            }
            if state.closed {
                return (Taken::Closed, 0);
            }
            state.waiting = true;
            state = match patience {
                None => self.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let (mut state, timeout) =
                        self.ready.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && state.jobs.is_empty() && !state.closed {
                        state.waiting = false;
                        return (Taken::Idle, 0);
                    }
                    state
                }
            };
        }
    }

    /// Gives the room of finished jobs back.
    pub(super) fn finished(&self, weight: u32) {
        self.room.add_permits(weight as usize);
    }

    /// Takes no more jobs. What is queued can still be taken.
    pub(super) fn close(&self) {
        self.room.close();
        self.state().closed = true;
        self.ready.notify_one();
    }

    /// Takes no more jobs and drops the queued ones.
    fn abandon(&self) {
        self.close();
        let jobs = std::mem::take(&mut self.state().jobs);
        drop(jobs);
    }

    /// A guard for the thread that takes: however it ends, nobody waits for it for ever.
    pub(super) fn taker(&self) -> Taker<'_, T> {
        Taker(self)
    }
}

/// See [`Queue::taker`].
pub(super) struct Taker<'q, T>(&'q Queue<T>);

impl<T> Drop for Taker<'_, T> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
