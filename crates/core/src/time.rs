//! Time, as a seam: the whole bot reads it from a [`Clock`], so that tests and simulations can own it.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// The last millisecond that RFC 3339 has a form for.
const LAST_OF_9999: i64 = 253_402_300_799_999;

/// Milliseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Far enough in the future for every comparison.
    pub const MAX: Self = Self(i64::MAX);

    /// From milliseconds since the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The time from `earlier` to this one; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u64::try_from(self.0) {
            Ok(millis) if self.0 <= LAST_OF_9999 => {
                write!(f, "{}", humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(millis)))
            }
            Ok(millis) => write!(f, "{millis} ms after 1970"),
            Err(_) => write!(f, "{} ms before 1970", self.0.unsigned_abs()),
        }
    }
}

/// Where time comes from. [`SystemClock`] in production; a virtual clock in tests and simulations.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// The wall clock. It may step backwards.
    fn now(&self) -> Timestamp;

    /// Time since some fixed point of this process; never steps backwards. Goes on while the machine is suspended, where
    /// the operating system can tell.
    fn monotonic(&self) -> Duration;

    /// Returns after `duration` of the time in which the machine runs. Cancel safe.
    async fn sleep(&self, duration: Duration);
}

/// The operating system's clocks and Tokio's timer.
#[derive(Debug)]
pub struct SystemClock {
    started: Duration,
}

/// Time since some fixed point, with the time in which the machine was suspended.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "ios"))]
fn running() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(any(target_os = "macos", target_os = "ios"))]
    let clock = ClockId::Monotonic;
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "ios")))]
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the operating system's clock"
)]
fn running() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    pub fn new() -> Self {
        Self { started: running() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the operating system's clock"
    )]
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp(millis(since)),
            Err(before) => Timestamp(-millis(before.duration())),
        }
    }

    fn monotonic(&self) -> Duration {
        running().saturating_sub(self.started)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place that uses the runtime's timer")]
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
