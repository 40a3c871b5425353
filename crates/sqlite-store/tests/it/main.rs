//! What only this backend has: its file, its processes and its write-ahead log. What every backend must do is in the
//! conformance suites.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod crash;
mod dedicated;
mod file;
#[cfg(target_os = "linux")]
mod fuse;
mod log;
mod processes;
mod refusals;
mod rows;
mod space;
mod tools;
