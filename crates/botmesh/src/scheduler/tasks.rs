use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use super::Scheduler;
use super::occurrence::{LastRun, Occurrence};
use super::schedule::Schedule;
use crate::core::error::{Cas, ConfigError, StoreError};
use crate::core::id::RecordId;
use crate::core::journal::{Change, InboxRecord, InboxState, Journal, Stored};
use crate::core::kv::Cursor;
use crate::core::time::Timestamp;

const MAX_ID: usize = 256;
const MAX_PAYLOAD: usize = 256 * 1024;
/// How often a change is tried that others are faster with.
const RACES: usize = 16;

/// What durable tasks are to run and when: put down, look at, cancel.
///
/// ```
/// use botmesh::prelude::*;
///
/// async fn book(c: Ctx) -> Result {
///     let text = format!("You wrote `{}` an hour ago.", c.text());
///     c.tasks().after(Duration::from_secs(3600), "reminder", c.chat().as_str(), &text).await?;
///     Ok(())
/// }
/// # let _ = book;
/// ```
#[derive(Clone)]
pub struct Tasks {
    scheduler: Arc<Scheduler>,
    /// What `after` counts from.
    from: Option<Timestamp>,
}

/// What was put down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Put {
    /// When it runs.
    pub at: Timestamp,
    /// Whether it was put down before; then nothing changed.
    pub known: bool,
    /// Where it stands.
    pub state: InboxState,
}

/// Why nothing was put down, found or cancelled.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The bot has no such task.
    #[error("there is no task `{task}`; register it with `.task(\"{task}\", …)`")]
    UnknownTask {
        /// The name.
        task: String,
    },
    /// The task is not repeated.
    #[error("the task `{task}` has no schedule; cancel what was put down by its id")]
    NotRepeated {
        /// The name.
        task: String,
    },
    /// What is to be repeated cannot be, as its schedule is.
    #[error(transparent)]
    Schedule(#[from] ConfigError),
    /// The bot does not run yet.
    #[error(
        "the bot does not run yet; wait until `bot.tasks()` gives something, or put it down in a handler"
    )]
    NotRunning,
    /// The id is empty or too long.
    #[error("an id of {length} bytes is not possible; give 1 to 256")]
    InvalidId {
        /// Its length in bytes.
        length: usize,
    },
    /// The payload is not JSON or too large.
    #[error("the payload for task `{task}` cannot be kept: {problem}")]
    Payload {
        /// The name.
        task: String,
        /// What is wrong.
        problem: String,
    },
    /// Others changed the record all the time.
    #[error("`{record}` is being changed by others; try again")]
    Busy {
        /// The record.
        record: String,
    },
    /// The journal failed.
    #[error(transparent)]
    Journal(#[from] StoreError),
}

/// What cancelling came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Cancel {
    /// It does not run.
    Cancelled,
    /// It runs already, or is about to, and is not stopped.
    Running,
    /// Nothing waits: it ran, was given up, or was never put down.
    Nothing,
}

/// An occurrence of a task.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TaskInfo {
    /// The task.
    pub task: String,
    /// The id it was put down under; `None` if it comes by the task's own schedule.
    pub id: Option<String>,
    /// When it is or was to run.
    pub scheduled: Timestamp,
    /// Where it stands.
    pub state: InboxState,
    /// Attempts so far.
    pub attempts: u32,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// How the occurrence before ended, if it is repeated.
    pub last: Option<LastRun>,
}

/// A page of what waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskPage {
    /// What waits, the earliest first.
    pub tasks: Vec<TaskInfo>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<Cursor>,
}

impl TaskInfo {
    fn of(record: &InboxRecord) -> Option<Self> {
        let Occurrence { task, id, at, last, .. } = Occurrence::of(&record.inbound)?;
        let (state, attempts, error) = (record.state, record.attempts, record.error.clone());
        Some(Self { task, id, scheduled: at, state, attempts, error, last })
    }
}

impl Tasks {
    pub(crate) fn new(scheduler: Arc<Scheduler>) -> Self {
        Self { scheduler, from: None }
    }

    /// `after` counts from this moment.
    pub(crate) fn counting_from(self, from: Timestamp) -> Self {
        Self { from: Some(from), ..self }
    }

    /// Has a task run once at an instant, at once if it is past. What is known under the id is left as it is, so a handler may
    /// put it down again; after it ran or was given up, another instant is another occurrence.
    ///
    /// # Errors
    /// The task is not known, the id or the payload (at most 256 KiB as JSON) is not possible, or the journal failed.
    pub async fn at(
        &self,
        at: Timestamp,
        task: &str,
        id: &str,
        payload: &(impl Serialize + ?Sized + Sync),
    ) -> Result<Put, ScheduleError> {
        self.put(at, task, id, payload, None).await
    }

    /// Has a task run again and again, by a schedule that is kept with what is put down: for what each user chooses, such as a
    /// reminder every morning. It runs until it is [cancelled](Self::cancel). What is known under the id is left as it is; to
    /// change it, cancel it first.
    ///
    /// What was missed is up to the schedule given here, not to the task's own.
    ///
    /// # Errors
    /// As [`at`](Self::at); or the schedule is impossible, on demand, or of a period shorter than `durability.poll`.
    pub async fn repeat(
        &self,
        schedule: &Schedule,
        task: &str,
        id: &str,
        payload: &(impl Serialize + ?Sized + Sync),
    ) -> Result<Put, ScheduleError> {
        let from = self.from.unwrap_or_else(|| self.scheduler.world.now());
        let field = format!("task `{task}`");
        let plan = schedule.compile(&field, from)?;
        let poll = self.scheduler.world.journal.as_ref().map(|open| open.config.poll);
        plan.check_period(&field, poll.unwrap_or_default())?;
        let Some(at) = plan.next(from) else {
            let fix = "give `Schedule::cron` or `Schedule::every`, or use `at` or `after`";
            return Err(
                ConfigError::new(field, "is to be repeated, but its schedule has no times", fix).into()
            );
        };
        self.put(at, task, id, payload, Some(schedule.clone())).await
    }

    async fn put(
        &self,
        at: Timestamp,
        task: &str,
        id: &str,
        payload: &(impl Serialize + ?Sized + Sync),
        schedule: Option<Schedule>,
    ) -> Result<Put, ScheduleError> {
        let journal = self.journal(task)?;
        if id.is_empty() || id.len() > MAX_ID {
            return Err(ScheduleError::InvalidId { length: id.len() });
        }
        let event = occurrence(task, id, at, payload, schedule)?;
        let record = InboxRecord::scheduled(event, at, self.scheduler.world.now());
        for _ in 0..RACES {
            let change = match journal.inbox().get(&record.id).await? {
                None => Change::insert(&record),
                Some(Stored { record: known, version }) => {
                    let before = Occurrence::of(&known.inbound).map_or(at, |known| known.at);
                    let over = matches!(known.state, InboxState::Done | InboxState::Dead);
                    if !over || before == at {
                        return Ok(Put { at: before, known: true, state: known.state });
                    }
                    Change::update(version, &record)
                }
            };
            if let Cas::Applied(_) = journal.commit_one(change).await? {
                self.scheduler.wake_if_due(&record);
                return Ok(Put { at, known: false, state: record.state });
            }
        }
        Err(ScheduleError::Busy { record: record.id.to_string() })
    }

    /// Has a task run once after a time, as [`at`](Self::at). In the handler of a message the time counts from when the message
    /// arrived, so that it is the same in each run of the handler.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    pub async fn after(
        &self,
        delay: Duration,
        task: &str,
        id: &str,
        payload: &(impl Serialize + ?Sized + Sync),
    ) -> Result<Put, ScheduleError> {
        let from = self.from.unwrap_or_else(|| self.scheduler.world.now());
        self.at(from + delay, task, id, payload).await
    }

    /// The occurrence of a task that was put down under `id`; without one, the next or running one of a repeated task.
    ///
    /// # Errors
    /// The task is not known, or the journal failed.
    pub async fn get(&self, task: &str, id: Option<&str>) -> Result<Option<TaskInfo>, ScheduleError> {
        let record = RecordId::from(Occurrence::id_of(task, id));
        let stored = self.journal(task)?.inbox().get(&record).await?;
        Ok(stored.and_then(|stored| TaskInfo::of(&stored.record)))
    }

    /// A page of what waits for its time, of all tasks, the earliest first: at most `limit`, and at most 1,000. What runs or is
    /// retried is not among it.
    ///
    /// # Errors
    /// The journal failed.
    pub async fn list(&self, after: Option<&Cursor>, limit: usize) -> Result<TaskPage, ScheduleError> {
        let Some(open) = &self.scheduler.world.journal else {
            return Ok(TaskPage { tasks: Vec::new(), next: None });
        };
        let page = open.journal.inbox().list(InboxState::Scheduled, after, limit).await?;
        let tasks = page.records.iter().filter_map(|stored| TaskInfo::of(&stored.record)).collect();
        Ok(TaskPage { tasks, next: page.next })
    }

    /// Removes what was put down under `id` and waits. What runs, finishes, its retries included.
    ///
    /// # Errors
    /// The task is not known, or the journal failed.
    pub async fn cancel(&self, task: &str, id: &str) -> Result<Cancel, ScheduleError> {
        self.cancel_record(task, Some(id), |stored| Some(Change::delete(stored))).await
    }

    /// Leaves out the next occurrence of a repeated task; the one after it runs again.
    ///
    /// # Errors
    /// The task is not known or not repeated, or the journal failed.
    pub async fn skip_next(&self, task: &str) -> Result<Cancel, ScheduleError> {
        let scheduler = &self.scheduler;
        let plan = scheduler.tasks.get(task).map(|task| &task.plan).filter(|plan| plan.is_recurring());
        if self.journal(task).is_ok() && plan.is_none() {
            return Err(ScheduleError::NotRepeated { task: task.to_owned() });
        }
        self.cancel_record(task, None, |Stored { record, version }| {
            let occurrence = Occurrence::of(&record.inbound)?;
            let at = plan?.next(occurrence.at)?;
            let event = Occurrence { at, missed: 0, ..occurrence }.to_event().ok()?;
            Some(Change::update(*version, &record.reschedule(event, at, scheduler.world.now()).ok()?))
        })
        .await
    }

    async fn cancel_record(
        &self,
        task: &str,
        id: Option<&str>,
        change: impl Fn(&Stored<InboxRecord>) -> Option<Change>,
    ) -> Result<Cancel, ScheduleError> {
        let journal = self.journal(task)?;
        let record = RecordId::from(Occurrence::id_of(task, id));
        for _ in 0..RACES {
            let Some(stored) = journal.inbox().get(&record).await? else { return Ok(Cancel::Nothing) };
            let change = match stored.record.state {
                InboxState::Queued | InboxState::Working => return Ok(Cancel::Running),
                InboxState::Done | InboxState::Dead => return Ok(Cancel::Nothing),
                InboxState::Scheduled | InboxState::Waiting => change(&stored),
            };
            let Some(change) = change else { return Ok(Cancel::Nothing) };
            if let Cas::Applied(_) = journal.commit_one(change).await? {
                return Ok(Cancel::Cancelled);
            }
        }
        Err(ScheduleError::Busy { record: record.to_string() })
    }

    fn journal(&self, task: &str) -> Result<&Journal, ScheduleError> {
        let open = self.scheduler.world.journal.as_ref();
        open.filter(|_| self.scheduler.tasks.contains_key(task))
            .map(|open| &open.journal)
            .ok_or_else(|| ScheduleError::UnknownTask { task: task.to_owned() })
    }
}

fn occurrence(
    task: &str,
    id: &str,
    at: Timestamp,
    payload: &(impl Serialize + ?Sized),
    schedule: Option<Schedule>,
) -> Result<Arc<crate::core::inbound::Inbound>, ScheduleError> {
    let refused = |problem: String| ScheduleError::Payload { task: task.to_owned(), problem };
    let payload = serde_json::to_value(payload).map_err(|error| refused(error.to_string()))?;
    let size = payload.to_string().len();
    if size > MAX_PAYLOAD {
        return Err(refused(format!("it has {size} bytes as JSON, more than {MAX_PAYLOAD}")));
    }
    let (task, id) = (task.to_owned(), Some(id.to_owned()));
    let occurrence = Occurrence { task, id, at, missed: 0, plan: None, schedule, payload, last: None };
    occurrence.to_event().map_err(|error| refused(error.to_string()))
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}
