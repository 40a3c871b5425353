//! Real time and threads: the world steers real processes.

use std::io;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Waits.
#[expect(clippy::disallowed_methods, reason = "real processes need real time")]
pub(super) fn pause(duration: Duration) {
    thread::sleep(duration);
}

/// Time that passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch(Instant);

impl Watch {
    #[expect(clippy::disallowed_methods, reason = "real processes need real time")]
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Starts a thread.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(run)
}

/// Whether something holds within `limit`.
pub(super) fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let watch = Watch::start();
    loop {
        if holds() {
            return true;
        }
        if watch.elapsed() > limit {
            return false;
        }
        pause(Duration::from_millis(5));
    }
}
