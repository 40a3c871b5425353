//! What a user of the contracts and of their in-memory implementations notices.
#![expect(clippy::unwrap_used, reason = "a test fails where it does not hold")]

mod backend_clock;
mod coordinator;
mod journal;
mod journal_writes;
mod leases;
mod lives;
mod markup;
mod memory_kv;
mod memory_store;
mod split;
mod stored;
mod time;
mod webhook;
