use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::context::{BoxedTask, TaskHandler, boxed};
use super::plain::PlainTask;
use super::schedule::{Plan, Schedule};
use crate::core::error::ConfigError;
use crate::core::time::Timestamp;

const MAX_NAME: usize = 100;

/// The tasks of a bot that is being put together.
#[derive(Default)]
pub(crate) struct Registry {
    tasks: Vec<(String, Schedule, BoxedTask)>,
    plain: Vec<(&'static str, Schedule, BoxedTask)>,
}

/// The tasks of a bot, checked.
pub(crate) struct Registered {
    pub(super) tasks: HashMap<String, Task>,
    pub(super) plain: Vec<Arc<PlainTask>>,
}

/// A durable task.
pub(crate) struct Task {
    pub(super) plan: Plan,
    pub(super) run: BoxedTask,
}

impl Registry {
    pub(crate) fn add(&mut self, name: String, schedule: Schedule, handler: impl TaskHandler) {
        self.tasks.push((name, schedule, boxed(handler)));
    }

    /// `method` is the builder's, for errors.
    pub(crate) fn add_plain(&mut self, method: &'static str, schedule: Schedule, handler: impl TaskHandler) {
        self.plain.push((method, schedule, boxed(handler)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.plain.is_empty()
    }

    /// `poll` is how often a durable bot looks for what is due.
    pub(crate) fn check(self, poll: Option<Duration>, now: Timestamp) -> Result<Registered, ConfigError> {
        let mut tasks = HashMap::new();
        for (name, schedule, run) in self.tasks {
            let field = format!("task `{name}`");
            check_name(&field, &name)?;
            let Some(poll) = poll else {
                let fix = "call `.durability(…)`, or use `.every(…)` or `.cron(…)` for a task in memory";
                return Err(ConfigError::new(field, "is durable, but the bot is not", fix));
            };
            let plan = schedule.compile(&field, now)?;
            plan.check_period(&field, poll)?;
            if tasks.insert(name, Task { plan, run }).is_some() {
                return Err(ConfigError::new(field, "is registered twice", "rename one of them"));
            }
        }
        let mut plain = Vec::new();
        for (method, schedule, run) in self.plain {
            let plan = schedule.compile(method, now)?;
            plain.push(Arc::new(PlainTask { plan, run }));
        }
        Ok(Registered { tasks, plain })
    }
}

fn check_name(field: &str, name: &str) -> Result<(), ConfigError> {
    let simple = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(simple) {
        let problem = format!("is not a name of 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`");
        return Err(ConfigError::new(field, problem, "choose for example `daily-report`"));
    }
    Ok(())
}
