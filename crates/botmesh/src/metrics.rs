use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters since the bot was built.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            $(pub(crate) $name: Counter,)*
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct MetricsSnapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Metrics {
            pub(crate) fn snapshot(&self) -> MetricsSnapshot {
                MetricsSnapshot { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

counters! {
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
    /// Sends made without the outbox: too large for it, or replies to a message that was handled without the inbox.
    outbox_bypassed,
    /// Completions that came too late, after somebody else took the record over.
    stale_leases,
    /// Replays that sent something else under the same key.
    outbox_diverged,
}
