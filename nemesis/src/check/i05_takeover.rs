//! I5. A chat whose replica died or stood still goes on when its lease is over, and at once after a clean end.

use super::run::Run;
use super::waits::{Behind, Wait};
use super::{Invariant, Violation};

pub(super) fn check(run: &Run<'_>, waits: &[Wait]) -> Vec<Violation> {
    let found = waits.iter().filter_map(|wait| {
        let (other, how) = match wait.behind {
            Behind::Dead(other) => (other, "whose process died or stood still"),
            Behind::Down(other) => (other, "whose process ended"),
            Behind::Nobody | Behind::Ended(_) => return None,
        };
        let why = format!("it was behind a ticket of {}, {how}", run.replica(run.calls[other].process));
        wait.violation(run, Invariant::I5Takeover, &why)
    });
    found.collect()
}
