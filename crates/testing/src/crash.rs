use std::sync::Arc;

use tokio::sync::watch;

/// Whether a process has crashed, shared by everything that it uses: its journals ([`LossyKv`](crate::LossyKv)), its
/// state ([`CrashableStore`](crate::CrashableStore)) and its channel ([`CrashableProvider`](crate::CrashableProvider)).
/// After the crash nothing that the process still does reaches any of them. Clones are the same process.
#[derive(Clone, Debug)]
pub struct Crash {
    crashed: Arc<watch::Sender<bool>>,
}

impl Crash {
    /// A process that lives.
    pub fn new() -> Self {
        Self { crashed: Arc::new(watch::Sender::new(false)) }
    }

    /// The process dies now.
    pub fn now(&self) {
        self.crashed.send_replace(true);
    }

    /// Whether it is dead.
    pub fn happened(&self) -> bool {
        *self.crashed.borrow()
    }

    /// Returns when it is dead.
    pub async fn wait(&self) {
        let mut crashed = self.crashed.subscribe();
        let happened = crashed.wait_for(|crashed| *crashed).await;
        debug_assert!(happened.is_ok(), "this value holds the sender");
    }
}

impl Default for Crash {
    fn default() -> Self {
        Self::new()
    }
}
