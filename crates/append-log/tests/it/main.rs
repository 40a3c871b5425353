//! What a journal keeps, refuses and survives, against real files.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod child;
mod compaction;
mod corruption;
mod filesystem;
mod golden;
mod kill;
mod lock;
mod power;
mod room;
mod snapshot;
mod support;
mod torn;
