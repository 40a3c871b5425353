//! Choices that a seed repeats, and the list of what was done.

use std::fmt::Display;

use botmesh_core::entropy::{Entropy, SeededEntropy};

use crate::Failure;

pub(super) struct Random(SeededEntropy);

impl Random {
    pub(super) fn new(entropy: SeededEntropy) -> Self {
        Self(entropy)
    }

    /// A number from 0 to `end`, `end` excluded.
    pub(super) fn below(&self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.0.next_u64() % end).unwrap_or(0)
    }

    pub(super) fn pick<T: Clone>(&self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    pub(super) fn chance(&self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What was done so far, one operation a line.
#[derive(Default)]
pub(super) struct History(Vec<String>);

impl History {
    pub(super) fn push(&mut self, operation: impl Display) {
        self.0.push(operation.to_string());
    }

    /// The failure of the last operation, with everything that led to it.
    pub(super) fn failed(&self, failure: &Failure) -> Failure {
        let lines = self.0.iter().enumerate().map(|(n, line)| format!("\n      {:>3}. {line}", n + 1));
        Failure::new(format!("{failure}\n    after these operations:{}", lines.collect::<String>()))
    }
}
