//! Delays between attempts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::entropy::{Entropy, random_fraction};

/// Exponential delays with a cap, and jitter that only ever adds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// The delay after the first failure. Default 1 s.
    #[serde(with = "crate::duration")]
    pub base: Duration,
    /// The largest delay before jitter. Default 60 s.
    #[serde(with = "crate::duration")]
    pub cap: Duration,
    /// The largest share of the delay that is added at random, from 0 to 1. Default 0.2.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), cap: Duration::from_secs(60), jitter: 0.2 }
    }
}

impl Backoff {
    /// The delay after `failures` failed attempts (1 or more): `base · 2^(failures − 1)`, at most `cap`, at least
    /// `retry_after`, plus jitter. A channel that said how long to wait is never called earlier than that.
    pub fn delay(&self, failures: u32, retry_after: Option<Duration>, entropy: &dyn Entropy) -> Duration {
        let doubled = self.base.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(31)));
        let floor = doubled.min(self.cap).max(retry_after.unwrap_or(Duration::ZERO));
        floor.saturating_add(floor.mul_f64(self.jitter.clamp(0.0, 1.0) * random_fraction(entropy)))
    }
}
