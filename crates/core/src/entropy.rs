//! Randomness, as a seam: the whole bot draws it from an [`Entropy`], so that a run can be repeated from a seed.

use std::sync::{Mutex, PoisonError};

/// Where random bits come from. [`OsEntropy`] in production; [`SeededEntropy`] in tests and simulations.
pub trait Entropy: Send + Sync + 'static {
    /// 64 random bits.
    fn next_u64(&self) -> u64;
}

/// A random text of 16 hexadecimal digits.
pub fn random_hex(entropy: &dyn Entropy) -> String {
    format!("{:016x}", entropy.next_u64())
}

/// A random fraction from 0 (included) to 1 (excluded).
pub fn random_fraction(entropy: &dyn Entropy) -> f64 {
    const BITS: u32 = 53;
    (entropy.next_u64() >> (64 - BITS)) as f64 / (1u64 << BITS) as f64
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same seed gives the same bits.
#[derive(Debug)]
pub struct SeededEntropy {
    state: Mutex<u64>,
}

impl SeededEntropy {
    /// Starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: Mutex::new(seed) }
    }
}

impl Entropy for SeededEntropy {
    fn next_u64(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = *state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }
}

/// A generator seeded once by the operating system. Good for ids and jitter; not for secrets.
#[derive(Debug)]
pub struct OsEntropy(SeededEntropy);

impl OsEntropy {
    /// Asks the operating system for a seed.
    ///
    /// # Panics
    /// If the operating system has no random source, which no supported system lacks.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that asks the operating system for randomness"
    )]
    pub fn new() -> Self {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).expect("the operating system provides randomness");
        Self(SeededEntropy::new(u64::from_le_bytes(seed)))
    }
}

impl Default for OsEntropy {
    fn default() -> Self {
        Self::new()
    }
}

impl Entropy for OsEntropy {
    fn next_u64(&self) -> u64 {
        self.0.next_u64()
    }
}
