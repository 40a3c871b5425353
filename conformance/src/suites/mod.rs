//! The suites, one module each.

mod kv;
mod model;
mod parallel;
mod store;

use crate::Suite;

/// Every suite.
pub fn suites() -> Vec<Suite> {
    vec![kv::suite(), store::suite(), model::suite()]
}
