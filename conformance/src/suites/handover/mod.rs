//! `handover`: conversations that go from replica to replica over the backend.

mod answers;
mod flows;
mod memory;
mod owners;
mod processes;
mod timers;
mod tools;
#[cfg(feature = "cli")]
mod victim;

#[cfg(feature = "cli")]
pub(crate) use processes::WORK;
#[cfg(feature = "cli")]
pub(crate) use victim::run_child;

use crate::Suite;
use crate::case::Needs;

pub(crate) fn suite() -> Suite {
    let tables = [
        flows::cases(),
        memory::cases(),
        answers::cases(),
        owners::cases(),
        timers::cases(),
        processes::cases(),
    ];
    Suite {
        name: "handover",
        meaning: "conversations that go from replica to replica over the store, and from process to process",
        needs: Needs::Store,
        cases: tables.into_iter().flatten().collect(),
    }
}
