//! Background work, as a seam: the bot starts tasks only through a [`Spawner`].

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use crate::entropy::{Entropy, OsEntropy};
use crate::time::{Clock, SystemClock};

/// A boxed task.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Runs tasks in the background.
pub trait Spawner: Send + Sync + 'static {
    /// Starts `task` at once and never blocks. `name` is for logs and simulations.
    fn spawn(&self, name: &'static str, task: Task);

    /// Starts `task` where no other task can delay it: on a thread of its own. The default runs it beside the others,
    /// which is right for simulations alone.
    ///
    /// # Errors
    /// The thread cannot be started.
    fn spawn_thread(&self, name: &'static str, task: Task) -> io::Result<()> {
        self.spawn(name, task);
        Ok(())
    }
}

/// Time, randomness and spawning in one value: everything a bot asks of the world outside its channel and its store.
#[derive(Clone)]
pub struct Seams {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Background tasks.
    pub spawner: Arc<dyn Spawner>,
}

impl Seams {
    /// The operating system's time and randomness, with tasks run by `spawner`.
    pub fn system(spawner: Arc<dyn Spawner>) -> Self {
        Self { clock: Arc::new(SystemClock::new()), entropy: Arc::new(OsEntropy::new()), spawner }
    }

    /// Starts a task in the background.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawner.spawn(name, Box::pin(task));
    }
}

impl std::fmt::Debug for Seams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seams")
    }
}
