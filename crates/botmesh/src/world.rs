use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bot::{Durability, OnHandlerError};
use crate::core::error::Cas;
use crate::core::id::{ChatId, MessageId, ParticipantId};
use crate::core::journal::{Change, Journal};
use crate::core::kv::Version;
use crate::core::provider::Provider;
use crate::core::spawn::Seams;
use crate::core::store::{Direction, LogEntry, Store};
use crate::core::time::Timestamp;
use crate::egress::{Backlog, Echoes};
use crate::events::{BotEvent, EventBus};
use crate::lanes::Lanes;
use crate::metrics::Metrics;

/// What every part of a running bot shares.
pub(crate) struct World {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) seams: Seams,
    pub(crate) events: EventBus,
    pub(crate) metrics: Arc<Metrics>,
    /// `None` without durability.
    pub(crate) journal: Option<OpenJournal>,
    /// Whether messages are written to the store's log.
    pub(crate) log_messages: bool,
    /// The most bytes of one message's media that a handler may load.
    pub(crate) max_media_bytes: usize,
    /// Cancelled when nothing new may begin.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when what still runs is given up.
    pub(crate) abort: CancellationToken,
    /// Cancelled when everything is done or given up, right before the session ends.
    pub(crate) ended: CancellationToken,
    /// Cancelled when another process took this one's session over.
    pub(crate) superseded: CancellationToken,
    /// Background work that a stop waits for.
    pub(crate) tracker: TaskTracker,
    /// The chats that may have unfinished sends.
    pub(crate) backlog: Backlog,
    /// What the channel sent back before it answered.
    pub(crate) echoes: Echoes,
    /// Who changes the state of a user: messages of several chats may run at the same time.
    pub(crate) users: Lanes<ParticipantId>,
}

/// The journals and how to use them.
pub(crate) struct OpenJournal {
    pub(crate) journal: Journal,
    pub(crate) config: Durability,
}

impl World {
    pub(crate) fn now(&self) -> Timestamp {
        self.seams.clock.now()
    }

    /// Whether a message is tried again when its handler fails.
    pub(crate) fn retries_handlers(&self) -> bool {
        let policy = self.journal.as_ref().map(|open| open.config.inbox.on_handler_error);
        policy == Some(OnHandlerError::Retry)
    }

    /// Starts work in the background that a stop waits for.
    pub(crate) fn spawn_tracked(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        // Not within an `async` block: that would hold the task twice, and large tasks are copied often.
        self.seams.spawn(name, self.tracker.track_future(task));
    }

    /// Writes a message to the store's log, if the bot keeps one.
    pub(crate) async fn log_message(
        &self,
        direction: Direction,
        chat: &ChatId,
        message: MessageId,
        text: &str,
    ) {
        if !self.log_messages {
            return;
        }
        let entry =
            LogEntry { chat: chat.clone(), direction, at: self.now(), message, text: text.to_owned() };
        if let Err(error) = self.store.append_log(&[entry]).await {
            self.events.error("writing the message log", &error);
        }
    }

    /// Another process runs under this instance id: this one takes nothing new and ends.
    pub(crate) fn note_superseded(&self) {
        let Some(open) = self.journal.as_ref().filter(|_| !self.superseded.is_cancelled()) else { return };
        self.superseded.cancel();
        self.events.emit(BotEvent::Superseded { instance: open.journal.owner().instance.to_string() });
    }

    /// Counts completions that came too late.
    pub(crate) fn count_stale(&self, outcomes: &[Cas<Version>]) {
        for _ in outcomes.iter().filter(|outcome| matches!(outcome, Cas::Lost)) {
            self.metrics.stale_leases.increment();
        }
    }

    /// Commits changes that nobody waits for.
    pub(crate) fn commit_in_background(self: &Arc<Self>, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let world = Arc::clone(self);
        self.spawn_tracked("record-sent", async move { world.commit_sent(changes).await });
    }

    /// Commits that messages were sent.
    pub(crate) async fn commit_sent(&self, changes: Vec<Change>) {
        let Some(open) = self.journal.as_ref().filter(|_| !changes.is_empty()) else { return };
        match open.journal.commit_patiently(changes, &self.abort).await {
            Ok(outcomes) => self.count_stale(&outcomes),
            Err(error) => self.events.error("recording that a message was sent", &error),
        }
    }
}
