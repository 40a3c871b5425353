//! Servers as a test uses them.

mod cluster;
mod environment;
mod proxy;
mod redis;
mod sentinel;
mod survivors;

use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "it waits for real processes")]
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
