use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::Scheduler;
use super::context::{BoxedTask, TaskCtx};
use super::occurrence::Occurrence;
use super::schedule::Plan;
use crate::core::time::Timestamp;
use crate::dispatch::panic_text;
use crate::events::describe;

/// How long a task sleeps at most before it looks at the clock again, which may have been set.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// A task in memory.
pub(crate) struct PlainTask {
    pub(super) plan: Plan,
    pub(super) run: BoxedTask,
}

/// Runs a task in memory again and again, until the bot stops.
pub(super) async fn repeat(scheduler: Arc<Scheduler>, task: Arc<PlainTask>) {
    let world = &scheduler.world;
    let mut next = task.plan.next(world.now());
    while let Some(at) = next {
        let left = at.since(world.now());
        tokio::select! {
            biased;
            () = world.stopping.cancelled() => return,
            () = world.seams.clock.sleep(left.min(LONGEST_SLEEP)) => {}
        }
        let mut now = world.now();
        if now >= at {
            let running = run(&scheduler, &task, at);
            if world.abort.run_until_cancelled(running).await.is_none() {
                return;
            }
            // What came meanwhile is not made up for.
            now = world.now();
        }
        // Earlier than before if the clock was set back.
        next = task.plan.next(now);
    }
}

async fn run(scheduler: &Arc<Scheduler>, task: &PlainTask, at: Timestamp) {
    let occurrence = Occurrence {
        task: task.plan.text().to_owned(),
        id: None,
        at,
        missed: 0,
        plan: None,
        schedule: None,
        payload: serde_json::Value::Null,
        last: None,
    };
    let ctx = TaskCtx::new(Arc::clone(scheduler), None, occurrence, 1);
    let error = match AssertUnwindSafe(async { (task.run)(ctx).await }).catch_unwind().await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => describe(&*error),
        Err(panic) => panic_text(&*panic),
    };
    scheduler.world.events.failure(format!("task `{}`", task.plan.text()), error);
}
