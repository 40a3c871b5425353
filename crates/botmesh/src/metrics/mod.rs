//! Numbers about a running bot: kept here for [`Bot::metrics`](crate::Bot::metrics), and emitted through the `metrics`
//! facade for whatever recorder the process has installed.

mod histogram;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::core::time::Timestamp;
use histogram::Histogram;
pub use histogram::HistogramSnapshot;

macro_rules! metrics {
    (
        counters { $($(#[doc = $counter_doc:literal])* $counter:ident),* $(,)? }
        histograms { $($(#[doc = $histogram_doc:literal])* $histogram:ident),* $(,)? }
    ) => {
        /// Numbers since the bot was built.
        #[derive(Debug)]
        pub(crate) struct Metrics {
            $(pub(crate) $counter: Counter,)*
            $(pub(crate) $histogram: Histogram,)*
            unfinished: Mutex<Entries>,
            unfinished_gauge: ::metrics::Gauge,
            oldest_gauge: ::metrics::Gauge,
        }

        /// The numbers at one moment.
        #[derive(Clone, Debug, Default, PartialEq)]
        #[non_exhaustive]
        pub struct MetricsSnapshot {
            $($(#[doc = $counter_doc])* pub $counter: u64,)*
            $($(#[doc = $histogram_doc])* pub $histogram: HistogramSnapshot,)*
            /// Messages that were taken over and are neither acknowledged nor given up.
            pub unfinished: usize,
            /// The time since the oldest of them arrived.
            pub oldest_unfinished: Option<Duration>,
        }

        impl Metrics {
            /// `bot` is the only label.
            pub(crate) fn new(bot: &str) -> Self {
                describe_gauges();
                $(::metrics::describe_counter!(
                    concat!("botmesh_", stringify!($counter), "_total"),
                    concat!($($counter_doc),*).trim()
                );)*
                $(::metrics::describe_histogram!(
                    concat!("botmesh_", stringify!($histogram), "_seconds"),
                    ::metrics::Unit::Seconds,
                    concat!($($histogram_doc),*).trim()
                );)*
                Self {
                    $($counter: Counter::new(::metrics::counter!(
                        concat!("botmesh_", stringify!($counter), "_total"), "bot" => bot.to_owned()
                    )),)*
                    $($histogram: Histogram::new(::metrics::histogram!(
                        concat!("botmesh_", stringify!($histogram), "_seconds"), "bot" => bot.to_owned()
                    )),)*
                    unfinished: Mutex::default(),
                    unfinished_gauge: ::metrics::gauge!(UNFINISHED, "bot" => bot.to_owned()),
                    oldest_gauge: ::metrics::gauge!(OLDEST, "bot" => bot.to_owned()),
                }
            }

            /// `now` is `None` before the bot runs.
            pub(crate) fn snapshot(&self, now: Option<Timestamp>) -> MetricsSnapshot {
                let (unfinished, oldest_unfinished) = self.unfinished(now);
                MetricsSnapshot {
                    $($counter: self.$counter.value.load(Ordering::Relaxed),)*
                    $($histogram: self.$histogram.snapshot(),)*
                    unfinished,
                    oldest_unfinished,
                }
            }
        }

        impl fmt::Display for MetricsSnapshot {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "{:<22} {}", stringify!($counter), self.$counter)?;)*
                $(writeln!(f, "{:<22} {}", stringify!($histogram), self.$histogram)?;)*
                writeln!(f, "{:<22} {}", "unfinished", self.unfinished)?;
                let oldest = self.oldest_unfinished.unwrap_or_default();
                write!(f, "{:<22} {oldest:.1?}", "oldest_unfinished")
            }
        }
    };
}

metrics! {
    counters {
        /// Inbound events written to the inbox.
        inbound_journaled,
        /// Redeliveries that were recognised.
        inbound_duplicates,
        /// Unfinished events taken up again.
        inbound_replayed,
        /// Inbound events given up.
        inbound_dead,
        /// Sends written to the outbox.
        outbox_journaled,
        /// Sends answered from the outbox.
        outbox_deduped,
        /// Attempts after the first.
        outbox_retried,
        /// Sends left to the background.
        outbox_deferred,
        /// Sends given up.
        outbox_dead,
        /// Sends whose outcome nobody could say.
        outbox_ambiguous,
        /// Sends too large for the outbox, sent without it.
        outbox_bypassed,
        /// Completions that came too late, after somebody else took the record over.
        stale_leases,
        /// Runs of durable tasks, each attempt counted.
        task_runs,
        /// Occurrences of durable tasks that did not run because their time had gone by.
        tasks_missed,
        /// Replays that sent something else under the same key.
        outbox_diverged,
    }
    histograms {
        /// How long a message waited for the journals, from its arrival to the end of its handler.
        durable_wait,
        /// How long a send had arrived before that was durable: a crash in this time leaves it ambiguous.
        ambiguous_window,
        /// How long the handler of a message ran, with its sends.
        handling,
    }
}

const UNFINISHED: &str = "botmesh_unfinished";
const OLDEST: &str = "botmesh_oldest_unfinished_seconds";

fn describe_gauges() {
    ::metrics::describe_gauge!(UNFINISHED, "Messages that are neither acknowledged nor given up.");
    let age = "The time since the oldest message arrived that is neither acknowledged nor given up.";
    ::metrics::describe_gauge!(OLDEST, ::metrics::Unit::Seconds, age);
}

pub(crate) struct Counter {
    value: AtomicU64,
    emitted: ::metrics::Counter,
}

impl Counter {
    fn new(emitted: ::metrics::Counter) -> Self {
        Self { value: AtomicU64::new(0), emitted }
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, n: u64) {
        self.value.fetch_add(n, Ordering::Relaxed);
        self.emitted.increment(n);
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The messages that are not finished, by arrival.
#[derive(Debug, Default)]
struct Entries {
    entries: BTreeSet<(Timestamp, u64)>,
    next: u64,
}

/// A message that is not finished, until this is dropped.
pub(crate) struct Unfinished {
    metrics: Arc<Metrics>,
    entry: (Timestamp, u64),
}

impl Metrics {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(self: &Arc<Self>, received: Timestamp) -> Unfinished {
        let mut entries = self.entries();
        let entry = (received, entries.next);
        entries.next += 1;
        entries.entries.insert(entry);
        Unfinished { metrics: Arc::clone(self), entry }
    }

    fn unfinished(&self, now: Option<Timestamp>) -> (usize, Option<Duration>) {
        let entries = self.entries();
        let oldest = entries.entries.first().zip(now).map(|((received, _), now)| now.since(*received));
        (entries.entries.len(), oldest)
    }

    /// Emits the gauges.
    pub(crate) fn tell_gauges(&self, now: Timestamp) {
        let (unfinished, oldest) = self.unfinished(Some(now));
        self.unfinished_gauge.set(f64::from(u32::try_from(unfinished).unwrap_or(u32::MAX)));
        self.oldest_gauge.set(oldest.unwrap_or_default().as_secs_f64());
    }

    /// Sends that the channel had taken over at these times are recorded at `now`; all on the monotonic clock.
    pub(crate) fn note_recorded(&self, answered: &[Duration], now: Duration) {
        for answered in answered {
            self.ambiguous_window.observe(now.saturating_sub(*answered));
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.metrics.entries().entries.remove(&self.entry);
    }
}
