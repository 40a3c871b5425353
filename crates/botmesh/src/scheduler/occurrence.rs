use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schedule::{Plan, Schedule};
use crate::core::error::ConfigError;
use crate::core::id::ChatId;
use crate::core::inbound::{Inbound, InboundBody};
use crate::core::time::Timestamp;

/// What the chats of tasks begin with. No channel may have such a chat.
const CHAT: &str = "botmesh:task:";
const KIND: &str = "task";

/// The events of the one record of a task with a schedule, and of what was put down by its id.
const NEXT: &str = "next";
const ONCE: &str = "once";

/// Whether a chat stands for a task and is no channel's.
pub(crate) fn is_task(chat: &ChatId) -> bool {
    chat.as_str().starts_with(CHAT)
}

/// What the inbox keeps of a task's occurrence.
///
/// A repeated task has one record, which is always that of its next or running occurrence: so nothing has to be found or
/// led, two of them never run at the same time, and what ran leaves nothing behind. One that was given up leaves a record
/// under its own time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Occurrence {
    pub(super) task: String,
    /// Of an occurrence that was put down by its id; `None` for a repeated task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    pub(super) at: Timestamp,
    /// How many before it did not run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) missed: u32,
    /// What the time of a task with a schedule of its own was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) plan: Option<String>,
    /// When what was put down is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) schedule: Option<Schedule>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) payload: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<LastRun>,
}

/// How the occurrence before ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LastRun {
    /// When it was to run.
    pub scheduled: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// How many attempts it took.
    pub attempts: u32,
    /// Why it was given up; `None` if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Occurrence {
    /// `None` if the event is no task's, or of a version that is not known.
    pub(super) fn of(inbound: &Inbound) -> Option<Self> {
        let InboundBody::System { event, detail } = &inbound.body else { return None };
        let known = is_task(&inbound.chat) && event == KIND;
        known.then(|| Self::deserialize(detail).ok()).flatten()
    }

    /// Whether its record, of this event, goes from occurrence to occurrence.
    pub(super) fn is_repeated(&self, inbound: &Inbound) -> bool {
        self.schedule.is_some() || inbound.event.as_str() == NEXT
    }

    /// The schedule it was put down with, if it has one.
    ///
    /// # Errors
    /// It has none any more in this process, whose database of time zones is another one.
    pub(super) fn own_plan(&self, now: Timestamp) -> Result<Option<Plan>, ConfigError> {
        let field = format!("task `{}`", self.task);
        self.schedule.as_ref().map(|schedule| schedule.compile(&field, now)).transpose()
    }

    /// As the event of its record.
    pub(super) fn to_event(&self) -> Result<Arc<Inbound>, serde_json::Error> {
        self.to_inbound(if self.id.is_some() { ONCE } else { NEXT })
    }

    /// As the event of what is kept when a repeated task gives it up.
    pub(super) fn to_letter(&self) -> Result<Arc<Inbound>, serde_json::Error> {
        Self { last: None, schedule: None, ..self.clone() }.to_inbound(&self.at.to_string())
    }

    /// What the keys of its sends begin with: its own, also where its record is another's before and after.
    pub(super) fn key_base(&self) -> String {
        Self::record_id(&self.task, self.id.as_deref(), &self.at.to_string())
    }

    /// The id of the record of a task, or of what was put down under `id`.
    pub(super) fn id_of(task: &str, id: Option<&str>) -> String {
        Self::record_id(task, id, if id.is_some() { ONCE } else { NEXT })
    }

    fn record_id(task: &str, id: Option<&str>, event: &str) -> String {
        let body = InboundBody::System { event: KIND.to_owned(), detail: Value::Null };
        event_of(task, id, event, body).record_id().to_string()
    }

    fn to_inbound(&self, event: &str) -> Result<Arc<Inbound>, serde_json::Error> {
        let body = InboundBody::System { event: KIND.to_owned(), detail: serde_json::to_value(self)? };
        Ok(Arc::new(event_of(&self.task, self.id.as_deref(), event, body)))
    }
}

fn event_of(task: &str, id: Option<&str>, event: &str, body: InboundBody) -> Inbound {
    let chat = match id {
        Some(id) => format!("{CHAT}{task}:{id}"),
        None => format!("{CHAT}{task}"),
    };
    Inbound {
        event: event.into(),
        chat: chat.into(),
        sender: None,
        group: false,
        written_at: None,
        message: None,
        reply_to: None,
        extra: serde_json::Value::Null,
        origin: None,
        body,
    }
}

/// What the keys of an event's sends begin with, if it is a task's.
pub(crate) fn key_base(inbound: &Inbound) -> Option<String> {
    Occurrence::of(inbound).map(|occurrence| occurrence.key_base())
}
