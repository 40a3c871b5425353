//! The suites, one module each.

mod coordination;
pub(crate) mod crash;
mod durability;
pub(crate) mod handover;
mod kv;
mod model;
mod parallel;
mod store;

use crate::Suite;

/// Every suite.
pub fn suites() -> Vec<Suite> {
    vec![
        kv::suite(),
        store::suite(),
        durability::suite(),
        model::suite(),
        crash::suite(),
        handover::suite(),
        coordination::suite(),
    ]
}
