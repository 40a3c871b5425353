//! Replicas under faults: what they did is recorded, and checked against what turns promise.

pub mod check;
pub mod history;
pub mod link;
pub mod mutations;
pub mod replica;
pub mod world;
