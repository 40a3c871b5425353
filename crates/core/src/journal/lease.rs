use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::{LeaseLost, LeaseLostReason};
use crate::time::Clock;

/// No beat is waited for: one is under way.
const BEATING: u64 = u64::MAX;

/// How long a silent process keeps what it owns, before others take it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The messages it is handling or has queued.
    pub messages: Duration,
    /// The sends it has in flight.
    pub sends: Duration,
}

impl Leases {
    /// The shorter one.
    pub fn shorter(self) -> Duration {
        self.messages.min(self.sends)
    }

    pub(super) fn longer(self) -> Duration {
        self.messages.max(self.sends)
    }
}

impl From<Duration> for Leases {
    /// The same for messages and sends.
    fn from(lease: Duration) -> Self {
        Self { messages: lease, sends: lease }
    }
}

/// What a process owns under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leased {
    /// Messages.
    Messages,
    /// Sends.
    Sends,
}

/// Until when this process may act on what it owns, as far as it knows without asking: a lease after it began the last
/// beat that was acknowledged, on the monotonic clock. Others take over no sooner, so that a process that stood still or
/// was cut off finds out by itself before it does anything.
pub struct Lease {
    clock: Arc<dyn Clock>,
    leases: Leases,
    messages_until: AtomicU64,
    sends_until: AtomicU64,
    /// When the next beat begins.
    next_beat: AtomicU64,
    lapses: AtomicU64,
    over: OnceLock<LeaseLostReason>,
    renewed: watch::Sender<()>,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Lease {
    /// Held since `asked`, when the write that opened the session began.
    pub(super) fn new(clock: Arc<dyn Clock>, leases: Leases, asked: Duration) -> Self {
        Self {
            messages_until: AtomicU64::new(millis(asked + leases.messages)),
            sends_until: AtomicU64::new(millis(asked + leases.sends)),
            next_beat: AtomicU64::new(BEATING),
            lapses: AtomicU64::new(0),
            over: OnceLock::new(),
            renewed: watch::Sender::new(()),
            clock,
            leases,
        }
    }

    pub(super) fn leases(&self) -> Leases {
        self.leases
    }

    /// Whether the lease is held. Compares numbers; asks nobody.
    ///
    /// # Errors
    /// [`Stalled`](LeaseLostReason::Stalled) if this process stood still instead of beating,
    /// [`Expired`](LeaseLostReason::Expired) if its beats were not acknowledged in time, or others removed its session,
    /// and [`Superseded`](LeaseLostReason::Superseded) if another process took its place.
    pub fn check(&self, leased: Leased) -> Result<(), LeaseLost> {
        if let Some(&reason) = self.over.get() {
            return Err(LeaseLost { reason });
        }
        let until = match leased {
            Leased::Messages => &self.messages_until,
            Leased::Sends => &self.sends_until,
        };
        let now = millis(self.clock.monotonic());
        if now < until.load(Ordering::Acquire) {
            return Ok(());
        }
        let overslept = now >= self.next_beat.load(Ordering::Relaxed);
        let reason = if overslept { LeaseLostReason::Stalled } else { LeaseLostReason::Expired };
        Err(LeaseLost { reason })
    }

    /// How often it ran out and was renewed later. What was begun before a lapse may be another's since.
    pub fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::Acquire)
    }

    /// Returns when both leases are held. Cancel safe.
    pub async fn held(&self) {
        let mut renewed = self.renewed.subscribe();
        while self.check(Leased::Messages).and(self.check(Leased::Sends)).is_err() {
            if renewed.changed().await.is_err() {
                return;
            }
        }
    }

    /// No beat is expected for `rest` from now.
    pub fn rest(&self, rest: Duration) {
        self.next_beat.store(millis(self.clock.monotonic() + rest), Ordering::Relaxed);
    }

    pub(super) fn beating(&self) {
        self.next_beat.store(BEATING, Ordering::Relaxed);
    }

    /// A beat that began at `asked` was acknowledged.
    pub(super) fn renew(&self, asked: Duration) {
        let now = millis(self.clock.monotonic());
        let lapsed = |until: &AtomicU64| until.load(Ordering::Relaxed) <= now;
        if lapsed(&self.messages_until) || lapsed(&self.sends_until) {
            // First, so that whoever sees the lease held again sees that it was not.
            self.lapses.fetch_add(1, Ordering::Release);
        }
        self.messages_until.store(millis(asked + self.leases.messages), Ordering::Release);
        self.sends_until.store(millis(asked + self.leases.sends), Ordering::Release);
        self.renewed.send_replace(());
    }

    /// It will never be held again.
    pub(super) fn end(&self, reason: LeaseLostReason) {
        let _ = self.over.set(reason);
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("leases", &self.leases)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}
