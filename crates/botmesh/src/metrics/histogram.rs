use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Five buckets for each power of ten, from 1 µs to about 12 minutes, and one for what is longer.
const BOUNDS: usize = 45;
const BUCKETS: usize = BOUNDS + 1;

/// The largest value of each bucket but the last, in microseconds.
const UPPER: [u64; BOUNDS] = {
    let steps = [1, 2, 3, 5, 7];
    let mut upper = [0; BOUNDS];
    let (mut i, mut power) = (0, 1);
    while i < BOUNDS {
        upper[i] = steps[i % 5] * power;
        i += 1;
        if i % 5 == 0 {
            power *= 10;
        }
    }
    upper
};

/// How long something took. Lock-free; the buckets are fixed.
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
    emitted: ::metrics::Histogram,
}

impl Histogram {
    pub(super) fn new(emitted: ::metrics::Histogram) -> Self {
        let buckets = std::array::from_fn(|_| AtomicU64::new(0));
        Self { buckets, sum: AtomicU64::new(0), max: AtomicU64::new(0), emitted }
    }

    pub(crate) fn observe(&self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        let bucket = UPPER.partition_point(|upper| *upper < micros);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(micros, Ordering::Relaxed);
        self.max.fetch_max(micros, Ordering::Relaxed);
        self.emitted.record(value.as_secs_f64());
    }

    pub(super) fn snapshot(&self) -> HistogramSnapshot {
        let buckets = std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed));
        HistogramSnapshot {
            buckets,
            count: buckets.iter().sum(),
            sum: Duration::from_micros(self.sum.load(Ordering::Relaxed)),
            max: Duration::from_micros(self.max.load(Ordering::Relaxed)),
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// How long something took, at one moment. Resolved to microseconds.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistogramSnapshot {
    buckets: [u64; BUCKETS],
    /// How many times were measured.
    pub count: u64,
    /// All of them together.
    pub sum: Duration,
    /// The longest.
    pub max: Duration,
}

impl HistogramSnapshot {
    /// The mean; zero if nothing was measured.
    pub fn mean(&self) -> Duration {
        self.sum.checked_div(u32::try_from(self.count).unwrap_or(u32::MAX)).unwrap_or_default()
    }

    /// An estimate of the time that the share `q`, from 0 to 1, of the measured ones did not exceed. It lies in the same
    /// bucket as the true one: at most half or twice of it. Zero if nothing was measured.
    ///
    /// ```
    /// let metrics = botmesh::MetricsSnapshot::default();
    /// assert!(metrics.durable_wait.quantile(0.99).is_zero());
    /// ```
    #[expect(clippy::cast_precision_loss, reason = "an estimate: counts beyond 2^53 may be rounded")]
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = q.clamp(0.0, 1.0) * self.count as f64;
        let mut below = 0;
        for (i, &inside) in self.buckets.iter().enumerate().filter(|(_, inside)| **inside > 0) {
            if (below + inside) as f64 >= rank {
                let lower = Duration::from_micros(i.checked_sub(1).map_or(0, |i| UPPER[i]));
                let upper =
                    UPPER.get(i).map_or(self.max, |upper| Duration::from_micros(*upper)).min(self.max);
                let share = ((rank - below as f64) / inside as f64).clamp(0.0, 1.0);
                return lower + upper.saturating_sub(lower).mul_f64(share);
            }
            below += inside;
        }
        self.max
    }
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], count: 0, sum: Duration::ZERO, max: Duration::ZERO }
    }
}

impl fmt::Display for HistogramSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, median, p99] = [self.mean(), self.quantile(0.5), self.quantile(0.99)];
        let Self { count, max, .. } = self;
        write!(f, "{count} times, mean {mean:.1?}, p50 {median:.1?}, p99 {p99:.1?}, max {max:.1?}")
    }
}

impl fmt::Debug for HistogramSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_in_the_bucket_of_the_true_ones() {
        let histogram = Histogram::new(::metrics::Histogram::noop());
        for micros in 1..=10_000 {
            histogram.observe(Duration::from_micros(micros));
        }
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.count, snapshot.max), (10_000, Duration::from_millis(10)));
        assert_eq!(snapshot.mean(), Duration::from_nanos(5_000_500));
        for (q, micros) in [(0.0, 0), (0.01, 100), (0.5, 5_000), (0.9, 9_000), (0.99, 9_900), (1.0, 10_000)] {
            let (found, exact) = (snapshot.quantile(q), Duration::from_micros(micros));
            assert!(found.abs_diff(exact) <= exact / 10, "{q}: {found:?} is far from {exact:?}");
        }
    }

    #[test]
    fn what_is_too_long_and_what_is_nothing_are_counted_too() {
        let histogram = Histogram::new(::metrics::Histogram::noop());
        assert_eq!(histogram.snapshot().quantile(0.5), Duration::ZERO);
        histogram.observe(Duration::ZERO);
        histogram.observe(Duration::from_secs(100_000));
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.quantile(1.0), Duration::from_secs(100_000));
        assert_eq!(snapshot.count, 2);
    }
}
