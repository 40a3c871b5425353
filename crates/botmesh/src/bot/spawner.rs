use crate::core::spawn::{Spawner, Task};

/// Runs tasks on the Tokio runtime of the caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioSpawner;

impl Spawner for TokioSpawner {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts tasks")]
    fn spawn(&self, _name: &'static str, task: Task) {
        tokio::spawn(task);
    }
}
