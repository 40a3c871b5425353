//! The journals in one file against real files: damaged, locked, torn, full and killed.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod commits;
mod damage;
mod kill;
mod life;
mod lock;
mod processes;
mod room;
mod tools;
