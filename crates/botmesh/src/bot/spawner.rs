use std::io;
use std::thread;

use crate::core::spawn::{Spawner, Task};

/// Runs tasks on the Tokio runtime of the caller, and those that nothing may delay on threads of their own.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioSpawner;

impl Spawner for TokioSpawner {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts tasks")]
    fn spawn(&self, _name: &'static str, task: Task) {
        tokio::spawn(task);
    }

    fn spawn_thread(&self, name: &'static str, task: Task) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name(format!("bot-{name}")).spawn(move || runtime.block_on(task))?;
        Ok(())
    }
}
