use std::time::Duration;

use crate::time::Timestamp;

/// Microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl From<Timestamp> for Micros {
    fn from(time: Timestamp) -> Self {
        Self(u64::try_from(time.as_millis()).unwrap_or(0).saturating_mul(1000))
    }
}

impl Micros {
    pub(super) fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)))
    }

    /// The time until `end`; zero if it is over.
    pub(super) fn until(self, end: Self) -> Duration {
        Duration::from_micros(end.0.saturating_sub(self.0))
    }
}

/// When a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The wall clock of the machine. It may have been set forward or back since the last request.
    pub now: Micros,
    /// The time since the caller sent its last request that was not to give a ticket back, on a clock of the caller that is
    /// never set. The machine noted its clock then or later, so no more time than this can have passed since; `None` if the
    /// caller has sent none yet.
    pub elapsed: Option<Duration>,
}

impl From<Micros> for Moment {
    fn from(now: Micros) -> Self {
        Self { now, elapsed: None }
    }
}

/// A clock for leases. It stands still while the wall clock is set back, so that leases keep their remaining time, and
/// when the wall clock is set forward it goes on by no more than the caller saw pass.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaseClock {
    wall: Option<u64>,
    lease: u64,
}

impl LeaseClock {
    pub(super) fn read(&mut self, at: Moment) -> Micros {
        let now = self.peek(at);
        (self.wall, self.lease) = (Some(at.now.0), now.0);
        now
    }

    /// What [`read`](Self::read) would tell, for a request that leaves the clock as it was.
    pub(super) fn peek(&self, at: Moment) -> Micros {
        let wall = at.now.0;
        let Some(last) = self.wall else { return Micros(wall) };
        let witnessed = at.elapsed.map(|elapsed| u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX));
        Micros(self.lease.saturating_add(wall.saturating_sub(last).min(witnessed.unwrap_or(u64::MAX))))
    }

    /// What was read last: the wall clock and the time of leases.
    pub(super) fn last(&self) -> (Option<u64>, Micros) {
        (self.wall, Micros(self.lease))
    }
}
