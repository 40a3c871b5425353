//! `durability`: the journals over a key-value store.

mod faults;
mod inbox;
mod outbox;
mod sessions;
mod tools;

use crate::Suite;
use crate::case::Needs;

pub(crate) fn suite() -> Suite {
    let tables = [inbox::cases(), outbox::cases(), sessions::cases(), faults::cases()];
    Suite {
        name: "durability",
        meaning: "inbox, outbox and sessions over a key-value store, and every write failing in every way",
        needs: Needs::Journals,
        cases: tables.into_iter().flatten().collect(),
    }
}
