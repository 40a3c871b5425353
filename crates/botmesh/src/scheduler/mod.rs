//! Tasks: code that runs at a time instead of for a message.
//!
//! The occurrences of durable tasks are records of the inbox that are due later. So everything that holds for messages
//! holds for them, and nobody has to lead.

mod context;
mod occurrence;
mod plain;
mod registry;
mod schedule;
mod tasks;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;

use crate::core::error::StoreError;
use crate::core::id::RecordId;
use crate::core::inbound::Inbound;
use crate::core::journal::{Change, InboxRecord, InboxState, Owner, Stored};
use crate::core::time::Timestamp;
use crate::dispatch::panic_text;
use crate::egress::{Egress, TurnScope};
use crate::events::{BotEvent, describe};
use crate::world::{OpenJournal, World};
pub use context::{TaskCtx, TaskHandler};
pub use occurrence::LastRun;
use occurrence::Occurrence;
pub(crate) use occurrence::{is_task, key_base};
use plain::PlainTask;
use registry::Task;
pub(crate) use registry::{Registered, Registry};
use schedule::{Decision, Plan};
pub use schedule::{Missed, Schedule};
pub use tasks::{Cancel, Put, ScheduleError, TaskInfo, TaskPage, Tasks};

/// How long an occurrence of a task that this process does not have is left to others, each time, and in all.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(60);
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3600);
/// By how much the clock must have been set back for a repeated task to begin again from the present.
const SET_BACK: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct Scheduler {
    world: Arc<World>,
    egress: Arc<Egress>,
    tasks: HashMap<String, Task>,
    plain: Vec<Arc<PlainTask>>,
    /// Wakes the sweeper.
    wake: Arc<Notify>,
    /// When it was last made sure that every repeated task has its record, on the monotonic clock.
    ensured: Mutex<Option<Duration>>,
}

/// What becomes of a record that is taken up.
pub(crate) struct Taken {
    pub(crate) record: InboxRecord,
    /// What is kept of an occurrence that was given up, where the record goes on to the next one.
    pub(crate) letter: Option<InboxRecord>,
    /// What is told, and how many occurrences do not run.
    pub(crate) missed: Option<(BotEvent, u32)>,
}

impl Taken {
    fn plain(record: InboxRecord) -> Self {
        Self { record, letter: None, missed: None }
    }
}

impl Scheduler {
    pub(crate) fn new(world: Arc<World>, egress: Arc<Egress>, registered: Registered) -> Arc<Self> {
        let Registered { tasks, plain } = registered;
        let (wake, ensured) = Default::default();
        Arc::new(Self { world, egress, tasks, plain, wake, ensured })
    }

    pub(crate) fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    /// Starts the tasks in memory.
    pub(crate) fn start(self: &Arc<Self>) {
        for task in &self.plain {
            self.world.spawn_tracked("task", plain::repeat(Arc::clone(self), Arc::clone(task)));
        }
    }

    /// Runs an occurrence.
    ///
    /// # Errors
    /// Why it is to run again.
    pub(crate) async fn run(
        self: &Arc<Self>,
        scope: &Arc<TurnScope>,
        inbound: &Inbound,
        attempt: u32,
    ) -> Result<(), String> {
        let Some(occurrence) = Occurrence::of(inbound) else {
            return Err("this version cannot read the occurrence; upgrade, and replay it".to_owned());
        };
        let Some(task) = self.tasks.get(&occurrence.task) else {
            return Err(not_registered(&occurrence.task));
        };
        self.world.metrics.task_runs.increment();
        let name = occurrence.task.clone();
        let ctx = TaskCtx::new(Arc::clone(self), Some(Arc::clone(scope)), occurrence, attempt);
        let ran = AssertUnwindSafe(async { (task.run)(ctx).await }).catch_unwind().await;
        let error = match ran {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => describe(&*error),
            Err(panic) => panic_text(&*panic),
        };
        self.world.events.failure(format!("task `{name}`"), error.clone());
        Err(error)
    }

    /// A record that is due or has no owner any more, as this process makes it its own; `None` if it is finished.
    pub(crate) fn take(
        &self,
        record: &InboxRecord,
        owner: &Owner,
        max_attempts: u32,
        now: Timestamp,
    ) -> Option<Taken> {
        if record.state != InboxState::Scheduled {
            let (record, letter) = self.conclude(record.adopt(owner, max_attempts, now).ok()?, now);
            return Some(Taken { record, letter, missed: None });
        }
        let Some(occurrence) = Occurrence::of(&record.inbound) else {
            return Some(Taken::plain(record.adopt(owner, max_attempts, now).ok()?));
        };
        let Some(Task { plan, .. }) = self.tasks.get(&occurrence.task) else {
            let waited = now.since(occurrence.at) < GIVEN_UP_AFTER;
            let next = match waited {
                true => record.reschedule(Arc::clone(&record.inbound), now + LEFT_TO_OTHERS, now),
                false => record.abandon(&not_registered(&occurrence.task), now),
            };
            return Some(Taken::plain(next.ok()?));
        };
        let own = match occurrence.own_plan(now) {
            Ok(own) => own,
            Err(error) => return Some(Taken::plain(record.abandon(&error.to_string(), now).ok()?)),
        };
        let plan = own.as_ref().unwrap_or(plan);
        let taken = match occurrence.is_repeated(&record.inbound) {
            false => take_single(record, &occurrence, plan, now),
            true => take_repeated(record, occurrence, plan, now),
        };
        let Taken { record, letter, missed } = taken?;
        // What is not skipped is due.
        let due = record.state == InboxState::Scheduled && record.due.is_some_and(|due| due <= now);
        let record = if due { record.adopt(owner, max_attempts, now).ok()? } else { record };
        Some(Taken { record, letter, missed })
    }

    /// What becomes of a record whose occurrence is over, with what is kept of it: a repeated task's goes on to the next
    /// one. Other records stay as they are.
    pub(crate) fn conclude(&self, record: InboxRecord, now: Timestamp) -> (InboxRecord, Option<InboxRecord>) {
        if !matches!(record.state, InboxState::Done | InboxState::Dead) {
            return (record, None);
        }
        match self.next_of(&record, now) {
            Some((next, letter)) => (next, letter),
            None => (record, None),
        }
    }

    fn next_of(&self, record: &InboxRecord, now: Timestamp) -> Option<(InboxRecord, Option<InboxRecord>)> {
        let over = Occurrence::of(&record.inbound).filter(|over| over.is_repeated(&record.inbound))?;
        let own = over.own_plan(now).inspect_err(|error| {
            self.world.events.failure(format!("task `{}`", over.task), error.to_string());
        });
        let own = own.ok()?;
        let plan = own.as_ref().unwrap_or(&self.tasks.get(&over.task)?.plan);
        let dead = record.state == InboxState::Dead;
        let letter = match dead {
            true => Some(record.for_event(over.to_letter().ok()?)),
            false => None,
        };
        let last = LastRun {
            scheduled: over.at,
            ended: now,
            attempts: record.attempts,
            error: record.error.clone().filter(|_| dead),
        };
        let at = plan.next(over.at)?;
        let planned = over.schedule.is_none().then(|| plan.text().to_owned());
        let next = Occurrence { at, missed: 0, plan: planned, last: Some(last), ..over };
        Some((record.reschedule(next.to_event().ok()?, at, now).ok()?, letter))
    }

    /// Has the sweeper look at once if the record is due already.
    pub(crate) fn wake_if_due(&self, record: &InboxRecord) {
        if record.state == InboxState::Scheduled && record.due.is_some_and(|due| due <= self.world.now()) {
            self.wake.notify_one();
        }
    }

    /// Makes sure, once in a lease, that every repeated task has its record, and one of its present schedule.
    pub(crate) async fn ensure(&self, open: &OpenJournal) -> Result<(), StoreError> {
        let (clock, lease) = (self.world.seams.clock.monotonic(), open.config.leases().shorter());
        let ensured = *self.ensured.lock().unwrap_or_else(PoisonError::into_inner);
        if ensured.is_some_and(|at| clock.saturating_sub(at) < lease) {
            return Ok(());
        }
        let now = self.world.now();
        for (name, Task { plan, .. }) in self.tasks.iter().filter(|(_, task)| task.plan.is_recurring()) {
            let stored = open.journal.inbox().get(&RecordId::from(Occurrence::id_of(name, None))).await?;
            if let Some(change) = self.missing(name, plan, stored, now) {
                // Whoever else did it first did the same.
                let _ = open.journal.commit_one(change).await?;
            }
        }
        *self.ensured.lock().unwrap_or_else(PoisonError::into_inner) = Some(clock);
        Ok(())
    }

    /// Whether the task waits for a time that a clock far ahead led to. It would wait for it for as long.
    fn was_set_back(&self, name: &str, record: &InboxRecord, now: Timestamp) -> bool {
        let ahead = record.changed > now + SET_BACK;
        if ahead {
            let problem = format!("the clock was set back from {} to {now}", record.changed);
            self.world.events.failure(format!("task `{name}`"), problem);
        }
        ahead
    }

    /// What gives a repeated task its record; `None` if it has it.
    fn missing(
        &self,
        name: &str,
        plan: &Plan,
        stored: Option<Stored<InboxRecord>>,
        now: Timestamp,
    ) -> Option<Change> {
        let before = stored.as_ref().and_then(|stored| Occurrence::of(&stored.record.inbound));
        if let Some(Stored { record, .. }) = &stored {
            let planned = before.as_ref().and_then(|before| before.plan.as_deref()) == Some(plan.text());
            match record.state {
                InboxState::Queued | InboxState::Working | InboxState::Waiting => return None,
                InboxState::Scheduled if planned && !self.was_set_back(name, record, now) => return None,
                InboxState::Scheduled | InboxState::Done | InboxState::Dead => {}
            }
        }
        let Some(at) = plan.next(now) else {
            self.world
                .events
                .failure(format!("task `{name}`"), format!("`{}` never comes again", plan.text()));
            return None;
        };
        let occurrence = Occurrence {
            task: name.to_owned(),
            id: None,
            at,
            missed: 0,
            plan: Some(plan.text().to_owned()),
            schedule: None,
            payload: serde_json::Value::Null,
            last: before.and_then(|before| before.last),
        };
        let event = occurrence.to_event().ok()?;
        match stored {
            None => Some(Change::insert(&InboxRecord::scheduled(event, at, now))),
            Some(Stored { record, version }) => {
                Some(Change::update(version, &record.reschedule(event, at, now).ok()?))
            }
        }
    }
}

fn not_registered(task: &str) -> String {
    format!("no task `{task}` is registered; register it, and replay the occurrence")
}

fn missed(occurrence: &Occurrence, missed: u32, runs: Option<Timestamp>) -> (BotEvent, u32) {
    let (task, id) = (occurrence.task.clone(), occurrence.id.clone());
    (BotEvent::TaskMissed { task, id, scheduled: occurrence.at, missed, runs }, missed)
}

/// An occurrence that was put down by its id and is due: as it is, or skipped.
fn take_single(record: &InboxRecord, occurrence: &Occurrence, plan: &Plan, now: Timestamp) -> Option<Taken> {
    if plan.is_on_time(occurrence.at, now) {
        return Some(Taken::plain(record.clone()));
    }
    match plan.decide(occurrence.at, now) {
        Decision::Run { .. } => {
            let missed = Some(missed(occurrence, 0, Some(occurrence.at)));
            Some(Taken { missed, ..Taken::plain(record.clone()) })
        }
        Decision::Skip { .. } => {
            let missed = Some(missed(occurrence, 1, None));
            Some(Taken { missed, ..Taken::plain(record.skip(now).ok()?) })
        }
    }
}

/// The due occurrence of a repeated task: the one that runs in its place, or the next one.
fn take_repeated(record: &InboxRecord, occurrence: Occurrence, plan: &Plan, now: Timestamp) -> Option<Taken> {
    let (at, count, told) = match plan.decide(occurrence.at, now) {
        Decision::Run { at, missed: count } => {
            let told = count > 0 || !plan.is_on_time(at, now);
            (at, count, told.then(|| missed(&occurrence, count, Some(at))))
        }
        Decision::Skip { missed: count } => {
            let told = Some(missed(&occurrence, count, None));
            let Some(at) = plan.next(now) else {
                return Some(Taken { missed: told, ..Taken::plain(record.skip(now).ok()?) });
            };
            (at, 0, told)
        }
    };
    let next = Occurrence { at, missed: count, ..occurrence };
    let record = record.reschedule(next.to_event().ok()?, at, now).ok()?;
    Some(Taken { missed: told, ..Taken::plain(record) })
}
