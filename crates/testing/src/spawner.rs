//! Background tasks of a test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use botmesh_core::entropy::SeededEntropy;
use botmesh_core::spawn::{Seams, Spawner, Task};
use tokio::task::JoinHandle;

use crate::VirtualClock;

/// Runs tasks on the test's Tokio runtime and remembers them, so that a test can kill all of them at once, as a crash
/// does, and can see that none panicked. Clones share the tasks.
#[derive(Clone, Debug, Default)]
pub struct TestSpawner {
    tasks: Arc<Mutex<Tasks>>,
}

type Tasks = Vec<(&'static str, JoinHandle<()>)>;

impl TestSpawner {
    /// A spawner without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// The names of the tasks that have not ended.
    pub fn running(&self) -> Vec<&'static str> {
        self.lock().iter().filter(|(_, task)| !task.is_finished()).map(|(name, _)| *name).collect()
    }

    /// Stops the tasks of this name where they wait, the next time that the runtime has time for it.
    pub fn kill(&self, name: &str) {
        for (_, task) in self.lock().iter().filter(|(of, _)| *of == name) {
            task.abort();
        }
    }

    /// Stops every task where it waits, without a chance to clean up by itself, and returns when all have ended.
    ///
    /// # Panics
    /// If a task had panicked, with its name.
    pub async fn kill_all(&self) {
        let tasks = std::mem::take(&mut *self.lock());
        for (_, task) in &tasks {
            task.abort();
        }
        join(tasks).await;
    }

    /// Waits for the end of every task, also of those that they start meanwhile.
    ///
    /// # Panics
    /// If a task panicked, with its name.
    pub async fn join_all(&self) {
        loop {
            let tasks = std::mem::take(&mut *self.lock());
            if tasks.is_empty() {
                return;
            }
            join(tasks).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn join(tasks: Tasks) {
    for (name, task) in tasks {
        if let Err(error) = task.await {
            assert!(!error.is_panic(), "the task {name} panicked: {error}");
        }
    }
}

impl Spawner for TestSpawner {
    #[expect(clippy::disallowed_methods, reason = "this is the spawner of tests")]
    fn spawn(&self, name: &'static str, task: Task) {
        let handle = tokio::spawn(task);
        self.lock().push((name, handle));
    }
}

/// Everything a bot asks of the world, owned by the test: a virtual clock, randomness from `seed`, and a [`TestSpawner`].
pub fn test_seams(seed: u64) -> (Seams, VirtualClock, TestSpawner) {
    let clock = VirtualClock::new();
    let spawner = TestSpawner::new();
    let seams = Seams {
        clock: Arc::new(clock.clone()),
        entropy: Arc::new(SeededEntropy::new(seed)),
        spawner: Arc::new(spawner.clone()),
    };
    (seams, clock, spawner)
}
