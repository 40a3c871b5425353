//! `crash`: a real bot over the backend, with every write of its journals failing in every way, and killed.

mod drive;
mod kill;
mod matrix;
mod scenario;
mod verify;
#[cfg(feature = "cli")]
mod victim;

#[cfg(feature = "cli")]
pub(crate) use victim::run_child;

use crate::Suite;
use crate::case::Needs;

pub(crate) fn suite() -> Suite {
    let tables = [matrix::cases(), kill::cases()];
    Suite {
        name: "crash",
        meaning: "a bot at work: every write of its journals failing in every way, under every policy, and killed",
        needs: Needs::Journals,
        cases: tables.into_iter().flatten().collect(),
    }
}
