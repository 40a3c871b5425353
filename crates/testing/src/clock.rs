//! Time that a test owns.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use botmesh_core::time::{Clock, Timestamp};
use tokio::sync::watch;

/// How often [`VirtualClock::advance`] lets other tasks run after each wake-up, so that what they wake in turn runs too.
const YIELDS: usize = 32;

/// A clock that moves only when told to. Clones share one time.
///
/// Wall clock and monotonic clock are separate: [`advance`](Self::advance) moves both, while
/// [`step_wall`](Self::step_wall) and [`set_now`](Self::set_now) move only the wall clock, as an operator or NTP does, and
/// wake nobody. A sleep is registered when [`Clock::sleep`] is called, not when it is first polled; sleepers wake in the
/// order of their deadlines, and in the order of their calls where these are equal.
#[derive(Clone)]
pub struct VirtualClock {
    shared: Arc<Shared>,
    /// Whose sleeps are counted together.
    sleeper: Sleeper,
}

/// Who sleeps: the number of a bot's life, or 0 for anybody else.
type Sleeper = u64;

struct Shared {
    state: Mutex<State>,
    sleeping: watch::Sender<usize>,
}

struct State {
    wall_at_zero: i64,
    monotonic: Duration,
    next: u64,
    sleepers: BTreeMap<Deadline, (Sleeper, Option<Waker>)>,
}

/// When a sleeper wakes, and the number of its call.
type Deadline = (Duration, u64);

impl VirtualClock {
    /// A clock whose wall time is 2026-01-01 00:00:00 UTC.
    pub fn new() -> Self {
        const YEAR_2026: i64 = 1_767_225_600_000;
        Self::at(Timestamp::from_millis(YEAR_2026))
    }

    /// A clock whose wall time is `now`.
    pub fn at(now: Timestamp) -> Self {
        let state = State {
            wall_at_zero: now.as_millis(),
            monotonic: Duration::ZERO,
            next: 0,
            sleepers: BTreeMap::new(),
        };
        let shared = Shared { state: Mutex::new(state), sleeping: watch::Sender::new(0) };
        Self { shared: Arc::new(shared), sleeper: 0 }
    }

    /// The same clock, whose sleeps are `sleeper`'s.
    pub(crate) fn of(&self, sleeper: Sleeper) -> Self {
        Self { shared: Arc::clone(&self.shared), sleeper }
    }

    /// How many sleeps are under way that are this value's, or nobody's in particular.
    pub(crate) fn own_sleepers(&self) -> usize {
        let state = self.shared.lock();
        state.sleepers.values().filter(|(sleeper, _)| [0, self.sleeper].contains(sleeper)).count()
    }

    /// Sets the wall clock. The monotonic clock and the sleepers do not notice.
    pub fn set_now(&self, now: Timestamp) {
        let mut state = self.shared.lock();
        state.wall_at_zero = now.as_millis().saturating_sub(millis(state.monotonic));
    }

    /// Steps the wall clock by so many milliseconds, forwards or backwards. The monotonic clock and the sleepers do not
    /// notice.
    pub fn step_wall(&self, millis: i64) {
        let mut state = self.shared.lock();
        state.wall_at_zero = state.wall_at_zero.saturating_add(millis);
    }

    /// Moves both clocks on, from deadline to deadline: each sleeper wakes at its own time, and other tasks of a
    /// single-threaded runtime run before the clock goes on, so that a loop that sleeps again within `duration` wakes
    /// again.
    pub async fn advance(&self, duration: Duration) {
        let target = self.monotonic().saturating_add(duration);
        self.let_others_run().await;
        while let Some(waker) = self.shared.wake_next(target) {
            if let Some(waker) = waker {
                waker.wake();
            }
            self.let_others_run().await;
        }
    }

    /// Moves both clocks on at once, as a machine does that was suspended: all sleepers that are due wake at the new time.
    pub fn jump(&self, duration: Duration) {
        let wakers = {
            let mut state = self.shared.lock();
            let now = state.monotonic.saturating_add(duration);
            state.monotonic = now;
            let later = state.sleepers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut state.sleepers, later)
        };
        self.shared.announce();
        wakers.into_values().filter_map(|(_, waker)| waker).for_each(Waker::wake);
    }

    /// How many sleeps are under way.
    pub fn sleepers(&self) -> usize {
        self.shared.lock().sleepers.len()
    }

    /// How long until the first sleeper wakes.
    pub fn until_next_wake(&self) -> Option<Duration> {
        let state = self.shared.lock();
        let (deadline, _) = state.sleepers.keys().next()?;
        Some(deadline.saturating_sub(state.monotonic))
    }

    /// Returns when at least `count` sleeps are under way, which is how a test knows that a task has gone to sleep.
    pub async fn wait_for_sleepers(&self, count: usize) {
        let mut sleeping = self.shared.sleeping.subscribe();
        let enough = sleeping.wait_for(|sleeping| *sleeping >= count).await;
        debug_assert!(enough.is_ok(), "this clock holds the sender");
    }

    async fn let_others_run(&self) {
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves on to the next deadline up to `target` and returns who sleeps until it; with nobody left, moves to `target`.
    fn wake_next(&self, target: Duration) -> Option<Option<Waker>> {
        let waker = {
            let mut state = self.lock();
            let next = state.sleepers.first_entry().filter(|entry| entry.key().0 <= target);
            let Some(entry) = next else {
                state.monotonic = state.monotonic.max(target);
                return None;
            };
            let ((deadline, _), (_, waker)) = entry.remove_entry();
            state.monotonic = state.monotonic.max(deadline);
            waker
        };
        self.announce();
        Some(waker)
    }

    fn announce(&self) {
        let sleeping = self.lock().sleepers.len();
        self.sleeping.send_replace(sleeping);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let state = self.shared.lock();
        Timestamp::from_millis(state.wall_at_zero.saturating_add(millis(state.monotonic)))
    }

    fn monotonic(&self) -> Duration {
        self.shared.lock().monotonic
    }

    fn sleep<'a, 'b>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let deadline = {
            let mut state = self.shared.lock();
            let deadline = (state.monotonic.saturating_add(duration), state.next);
            state.next += 1;
            if !duration.is_zero() {
                state.sleepers.insert(deadline, (self.sleeper, None));
            }
            deadline
        };
        self.shared.announce();
        Box::pin(Sleep { shared: Arc::clone(&self.shared), deadline })
    }
}

struct Sleep {
    shared: Arc<Shared>,
    deadline: Deadline,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.shared.lock().sleepers.get_mut(&self.deadline) {
            Some((_, waker)) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if self.shared.lock().sleepers.remove(&self.deadline).is_some() {
            self.shared.announce();
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("VirtualClock")
            .field("monotonic", &state.monotonic)
            .field("sleepers", &state.sleepers.len())
            .finish_non_exhaustive()
    }
}
