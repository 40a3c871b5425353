//! Real processes and servers: what each fault shows, one by one.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod clock;
mod leaders;
mod mutations;
mod tools;
mod turns;
