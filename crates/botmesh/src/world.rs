use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bot::{Durability, OnHandlerError};
use crate::core::error::{Cas, LeaseLost, LeaseLostReason, StoreError};
use crate::core::id::{ChatId, MessageId, ParticipantId};
use crate::core::journal::{Change, InboxRecord, Journal, Leased};
use crate::core::kv::Version;
use crate::core::provider::Provider;
use crate::core::spawn::Seams;
use crate::core::store::{Direction, LogEntry, Store};
use crate::core::time::Timestamp;
use crate::egress::{Backlog, Broadcasts, Echoes, Pace, Slot, Unrecorded};
use crate::events::{BotEvent, DeadKind, EventBus};
use crate::health::Health;
use crate::identities::Identities;
use crate::lanes::Lanes;
use crate::leadership::{ChannelLead, Replicas};
use crate::metrics::Metrics;
use crate::texts::Texts;

/// What every part of a running bot shares.
pub(crate) struct World {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) seams: Seams,
    pub(crate) events: EventBus,
    pub(crate) metrics: Arc<Metrics>,
    /// `None` without durability.
    pub(crate) journal: Option<OpenJournal>,
    /// What the bot says of itself.
    pub(crate) texts: Texts,
    /// Whether there may be other replicas.
    pub(crate) coordinated: bool,
    pub(crate) replicas: Replicas,
    /// Whether this one may use the channel.
    pub(crate) lead: ChannelLead,
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
    /// Cancelled when the session has ended.
    pub(crate) heart_stopped: CancellationToken,
    /// Cancelled when another process took this one's session over.
    pub(crate) superseded: CancellationToken,
    /// Whether it was told that the lease is lost, and is not held again.
    pub(crate) lapsed: AtomicBool,
    /// Background work that a stop waits for.
    pub(crate) tracker: TaskTracker,
    /// The chats that may have unfinished sends.
    pub(crate) backlog: Backlog,
    /// How fast the channel may be called.
    pub(crate) pace: Pace,
    /// Whose progress is to be told.
    pub(crate) broadcasts: Broadcasts,
    /// What the channel sent back before it answered.
    pub(crate) echoes: Echoes,
    /// Who changes the state of a user: messages of several chats may run at the same time.
    pub(crate) users: Lanes<ParticipantId>,
    /// Who got another id.
    pub(crate) identities: Identities,
}

/// The journals and how to use them.
pub(crate) struct OpenJournal {
    pub(crate) journal: Journal,
    pub(crate) config: Durability,
    pub(crate) health: Arc<Health>,
}

impl OpenJournal {
    /// The largest content, as JSON, that goes through the outbox: what is configured, if the backend takes it.
    pub(crate) fn max_payload(&self) -> usize {
        /// What a record has besides its content: ids, an error, what operators did.
        const REST: usize = 64 << 10;
        self.config.outbox.max_payload_bytes.min(self.journal.caps().max_value.saturating_sub(REST))
    }
}

impl World {
    /// A bot without journals that is alone and says nothing of itself.
    pub(crate) fn new(
        provider: Arc<dyn Provider>,
        store: Arc<dyn Store>,
        seams: Seams,
        (events, metrics): (EventBus, Arc<Metrics>),
        replicas: Replicas,
        lead: ChannelLead,
    ) -> Self {
        Self {
            provider,
            store,
            seams,
            events,
            metrics,
            journal: None,
            texts: Texts::default(),
            coordinated: false,
            replicas,
            lead,
            log_messages: false,
            max_media_bytes: 0,
            stopping: CancellationToken::new(),
            abort: CancellationToken::new(),
            ended: CancellationToken::new(),
            heart_stopped: CancellationToken::new(),
            lapsed: AtomicBool::new(false),
            superseded: CancellationToken::new(),
            tracker: TaskTracker::new(),
            backlog: Backlog::default(),
            pace: Pace::default(),
            broadcasts: Broadcasts::default(),
            echoes: Echoes::default(),
            users: Lanes::default(),
            identities: Identities::default(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.journal.as_ref().map_or_else(|| self.seams.clock.now(), |open| open.journal.estimated_now())
    }

    /// Takes a place for a message to `chat`, as fast as the channel takes them.
    pub(crate) fn take_slot(&self, chat: &ChatId) -> Slot {
        let (rate, of_chat) = (self.provider.capabilities().rate, self.provider.chat_rate(chat));
        self.pace.take(chat, rate, of_chat, self.monotonic())
    }

    /// For measuring how long something takes.
    pub(crate) fn monotonic(&self) -> Duration {
        self.seams.clock.monotonic()
    }

    /// Whether this process may act on what it owns. Costs no more than a look at the clock.
    pub(crate) fn check_lease(&self, leased: Leased) -> Result<(), LeaseLost> {
        let Some(open) = &self.journal else { return Ok(()) };
        open.journal.lease().check(leased).inspect_err(|lost| {
            let lapsed = matches!(lost.reason, LeaseLostReason::Stalled | LeaseLostReason::Expired);
            if lapsed && !self.lapsed.swap(true, Ordering::Relaxed) {
                self.events.emit(BotEvent::InstanceLeaseLost { reason: lost.reason });
            }
        })
    }

    pub(crate) fn note_renewed(&self) {
        if self.lapsed.swap(false, Ordering::Relaxed) {
            self.events.emit(BotEvent::InstanceLeaseRenewed);
        }
    }

    /// A backend failed at something that is tried again. That the journals are unavailable is told as such.
    pub(crate) fn trouble(&self, context: &str, error: &StoreError) {
        let told = self.journal.as_ref().is_some_and(|open| open.health.is_down());
        if told && error.retry() {
            tracing::debug!(context, %error, "the journals are unavailable");
        } else {
            self.events.trouble(context, error);
        }
    }

    /// Returns when nothing can be journaled any more.
    pub(crate) async fn journal_breaks(&self) {
        match &self.journal {
            Some(open) => open.health.breaks().await,
            None => std::future::pending().await,
        }
    }

    /// Why nothing can be journaled any more.
    pub(crate) fn why_broken(&self) -> Option<&str> {
        self.journal.as_ref()?.health.broken()
    }

    /// Whether a message is tried again when its handler fails.
    pub(crate) fn retries_handlers(&self) -> bool {
        let policy = self.journal.as_ref().map(|open| open.config.inbox.on_handler_error);
        policy == Some(OnHandlerError::Retry)
    }

    /// Starts work in the background that a stop waits for.
    pub(crate) fn spawn_tracked(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        // Boxed before anything else holds it: large tasks are slow to copy.
        self.seams.spawn(name, self.tracker.track_future(Box::pin(task)));
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
        const CONTEXT: &str = "writing the message log";
        match self.store.append_log(&[entry]).await {
            Ok(()) => self.events.over(CONTEXT),
            Err(error) => self.trouble(CONTEXT, &error),
        }
    }

    /// Another process took this one's place: this one takes nothing new and ends.
    pub(crate) fn note_superseded(&self) {
        let Some(open) = self.journal.as_ref().filter(|_| !self.superseded.is_cancelled()) else { return };
        self.superseded.cancel();
        self.stopping.cancel();
        self.events.emit(BotEvent::Superseded { instance: open.journal.owner().instance.to_string() });
    }

    /// Why the run ends after that, and what to do.
    pub(crate) fn why_superseded(&self) -> String {
        let Some(open) = &self.journal else { return String::new() };
        let instance = open.journal.owner().instance;
        match open.journal.lease().check(Leased::Messages) {
            Err(LeaseLost { reason: LeaseLostReason::Expired | LeaseLostReason::Stalled }) => format!(
                "the lease of `{instance}` ran out, and other processes took over what it owned: it stood still or could \
                 not reach its journals for longer than durability.inbox.lease and durability.outbox.lease; start it again"
            ),
            _ => format!(
                "another process started under this one's instance id `{instance}`; give each process an instance id of \
                 its own"
            ),
        }
    }

    /// Counts completions that came too late.
    pub(crate) fn count_stale(&self, outcomes: &[Cas<Version>]) {
        for _ in outcomes.iter().filter(|outcome| matches!(outcome, Cas::Lost)) {
            self.metrics.stale_leases.increment();
        }
    }

    /// A message was given up.
    pub(crate) fn tell_dead_message(&self, record: InboxRecord) {
        self.metrics.inbound_dead.increment();
        let (id, error) = (record.id.to_string(), record.error.unwrap_or_default());
        self.events.emit(BotEvent::Dead { kind: DeadKind::Inbound, id, error });
    }

    /// Commits changes that nobody waits for.
    pub(crate) fn commit_in_background(self: &Arc<Self>, changes: Vec<Change>) {
        self.record_in_background(Unrecorded { changes, ..Unrecorded::default() });
    }

    /// Commits that messages were sent, while nobody waits for it.
    pub(crate) fn record_in_background(self: &Arc<Self>, unrecorded: Unrecorded) {
        if unrecorded.changes.is_empty() {
            return;
        }
        let world = Arc::clone(self);
        self.spawn_tracked("record-sent", async move { world.commit_sent(unrecorded).await });
    }

    /// Commits that messages were sent.
    pub(crate) async fn commit_sent(&self, Unrecorded { changes, answered }: Unrecorded) {
        let Some(open) = self.journal.as_ref().filter(|_| !changes.is_empty()) else { return };
        match open.journal.commit_patiently(changes, &self.abort).await {
            Ok(outcomes) => {
                self.metrics.note_recorded(&answered, self.monotonic());
                self.count_stale(&outcomes);
            }
            Err(error) => self.events.error("recording that a message was sent", &error),
        }
    }
}
