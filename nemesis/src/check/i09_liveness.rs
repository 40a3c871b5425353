//! I9. Who is next has its turn as soon as the one before has given it back; if pushes are lost, after a third of the lease.

use super::run::Run;
use super::waits::{Behind, Wait};
use super::{Invariant, Violation};

pub(super) fn check(run: &Run<'_>, waits: &[Wait]) -> Vec<Violation> {
    let found = waits.iter().filter_map(|wait| {
        if wait.ghost.is_some() || matches!(wait.behind, Behind::Dead(_) | Behind::Down(_)) {
            return None;
        }
        let why = if wait.without_pushes { "only pushes were lost" } else { "nothing was in its way" };
        wait.violation(run, Invariant::I9Liveness, why)
    });
    found.collect()
}
