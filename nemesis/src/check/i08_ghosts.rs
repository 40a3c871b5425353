//! I8. A ticket that its process does not know (of a call that was given up before the answer came) is given back as soon as
//! it holds up others.

use super::run::Run;
use super::waits::{Behind, Wait};
use super::{Invariant, Violation};

pub(super) fn check(run: &Run<'_>, waits: &[Wait]) -> Vec<Violation> {
    let found = waits.iter().filter_map(|wait| {
        let ghost = wait.ghost?;
        if matches!(wait.behind, Behind::Dead(_) | Behind::Down(_)) {
            return None;
        }
        let who = run.replica(run.calls[ghost].process);
        let why = format!(
            "everybody before it was gone, but a call of {who} that was given up may have left a ticket"
        );
        wait.violation(run, Invariant::I8Ghosts, &why)
    });
    found.collect()
}
