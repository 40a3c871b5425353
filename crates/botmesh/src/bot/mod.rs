//! The bot itself: put together, run, stopped.

mod broadcasts;
mod builder;
mod channel;
mod config;
mod coordination;
mod enter;
mod hosted;
mod journals;
mod lead;
mod leader;
mod lifecycle;
mod sink;
mod spawner;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use crate::core::content::Content;
use crate::core::error::SendError;
use crate::core::id::{ChatId, SendKey};
use crate::core::journal::OutboxState;
use crate::core::provider::Provider;
use crate::core::scope::Scope;
use crate::core::spawn::Seams;
use crate::core::store::Store;
use crate::core::time::Timestamp;
use crate::dispatch::Routes;
use crate::egress::{Egress, SendHooks, Sent};
use crate::events::{BotEvent, EventBus};
use crate::flow::AnyFlow;
use crate::intake::Intake;
use crate::metrics::{Metrics, MetricsSnapshot};
use crate::scheduler::{Put, Registered, ScheduleError, Tasks};
use crate::sweeper::Sweeper;
use crate::texts::Texts;
use crate::turns::Turns;
use crate::world::World;
pub use broadcasts::{Broadcast, BroadcastProgress, Broadcasting};
pub use builder::BotBuilder;
pub use config::{Durability, InboxConfig, OnDiverged, OnHandlerError, OutboxConfig, TurnsConfig};
pub use coordination::{Coordination, CoordinationConfig, ProviderSession};
pub use enter::EnterError;
pub use journals::{Journals, OperateError};
pub use lead::{CoordinationStatus, ReplicaRole};
use lifecycle::Stop;
pub use spawner::TokioSpawner;

/// Everything that was registered, until the bot starts.
struct Definition {
    provider: Arc<dyn Provider>,
    store: Arc<dyn Store>,
    scope: Scope,
    durability: Option<Durability>,
    coordination: Option<Coordination>,
    turns: TurnsConfig,
    texts: Texts,
    log_messages: bool,
    max_media_bytes: usize,
    seams: Seams,
    routes: Routes,
    sends: SendHooks,
    flows: HashMap<String, Arc<dyn AnyFlow>>,
    tasks: Registered,
}

/// A bot. Cheap to clone; clones are the same bot.
///
/// ```no_run
/// use botmesh::prelude::*;
/// # async fn run(provider: impl botmesh::core::provider::Provider) -> Result {
/// let bot = Bot::builder()
///     .provider(provider)
///     .when("ping", async |c: Ctx| c.reply("pong").await)
///     .build()?;
/// bot.run().await
/// # }
/// ```
#[derive(Clone)]
pub struct Bot {
    shared: Arc<Shared>,
}

struct Shared {
    definition: Mutex<Option<Definition>>,
    running: OnceLock<Running>,
    events: EventBus,
    metrics: Arc<Metrics>,
    stop: Stop,
    /// Cancelled when the bot runs.
    started: CancellationToken,
    /// Cancelled when its run is over.
    ended: CancellationToken,
}

/// What sends need of a running bot.
struct Running {
    world: Arc<World>,
    egress: Arc<Egress>,
    intake: Arc<Intake>,
    turns: Arc<Turns>,
    wake: Arc<Notify>,
}

impl Running {
    fn of(sweeper: &Sweeper) -> Self {
        Self {
            world: Arc::clone(&sweeper.world),
            egress: Arc::clone(&sweeper.egress),
            intake: Arc::clone(&sweeper.intake),
            turns: Arc::clone(&sweeper.turns),
            wake: Arc::clone(&sweeper.wake),
        }
    }
}

/// A send that was left to the background.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The send's key.
    pub key: SendKey,
    /// Whether a send of this key was known before; then nothing new was enqueued.
    pub known: bool,
    /// Where the send of this key stands.
    pub state: OutboxState,
    /// When it was sent, if it was.
    pub sent: Option<Timestamp>,
}

impl Bot {
    /// Begins to put a bot together.
    pub fn builder() -> BotBuilder {
        BotBuilder::new()
    }

    fn new(definition: Definition) -> Self {
        let metrics = Arc::new(Metrics::new(&definition.scope.id()));
        let events = EventBus::new(Arc::clone(&definition.seams.clock));
        let shared = Shared {
            definition: Mutex::new(Some(definition)),
            running: OnceLock::new(),
            events,
            metrics,
            stop: Stop::default(),
            started: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// What happens from now on. A listener that falls behind by more than 1,024 events misses the oldest.
    pub fn events(&self) -> broadcast::Receiver<BotEvent> {
        self.shared.events.subscribe()
    }

    /// Numbers since the bot was built. The same are emitted through the `metrics` facade, with the bot's scope as the only
    /// label `bot`: counters as `botmesh_inbound_journaled_total` and so on, histograms as `botmesh_durable_wait_seconds`,
    /// gauges at every sweep as `botmesh_unfinished`. Install a recorder before [`build`](BotBuilder::build).
    pub fn metrics(&self) -> MetricsSnapshot {
        let now = self.shared.running.get().map(|running| running.world.now());
        self.shared.metrics.snapshot(now)
    }

    /// The journals, to look at and to operate. `None` without durability or before the bot runs.
    pub fn durability(&self) -> Option<Journals> {
        let Running { world, wake, .. } = self.shared.running.get()?;
        let journal = world.journal.as_ref()?.journal.clone();
        Some(Journals::new(journal, Arc::clone(world), Arc::clone(wake)))
    }

    /// What durable tasks are to run and when. `None` before the bot runs.
    pub fn tasks(&self) -> Option<Tasks> {
        let running = self.shared.running.get()?;
        Some(Tasks::new(Arc::clone(running.turns.dispatcher().scheduler())))
    }

    /// Has a durable task run once at an instant; see [`Tasks::at`].
    ///
    /// # Errors
    /// As [`Tasks::at`], and [`ScheduleError::NotRunning`] before the bot runs.
    pub async fn at(
        &self,
        at: Timestamp,
        task: &str,
        id: &str,
        payload: &(impl Serialize + ?Sized + Sync),
    ) -> Result<Put, ScheduleError> {
        self.tasks().ok_or(ScheduleError::NotRunning)?.at(at, task, id, payload).await
    }

    /// Has a durable task run once after a time; see [`Tasks::after`].
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
        self.tasks().ok_or(ScheduleError::NotRunning)?.after(delay, task, id, payload).await
    }

    /// Asks the bot to stop; [`run`](Self::run) returns when it has. May be called from a handler.
    pub fn stop(&self) {
        self.shared.stop.request();
    }

    /// Sends outside of any message. Without `key` it has a random one: a second call is another message.
    ///
    /// # Errors
    /// As [`Ctx::reply`](crate::Ctx::reply), [`SendError::Stopped`] before the bot runs, and [`SendError::NotLeader`] on a
    /// replica that stands by: [`enqueue`](Self::enqueue) leaves the send to the one that leads.
    pub async fn send(
        &self,
        chat: impl Into<ChatId>,
        content: impl Into<Content>,
    ) -> Result<Sent, SendError> {
        self.running()?.egress.send(None, None, &chat.into(), content.into()).await
    }

    /// Sends outside of any message under a key: whoever sends it again is answered from the outbox.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_keyed(
        &self,
        key: impl Into<SendKey>,
        chat: impl Into<ChatId>,
        content: impl Into<Content>,
    ) -> Result<Sent, SendError> {
        self.running()?.egress.send(None, Some(key.into()), &chat.into(), content.into()).await
    }

    /// Leaves a send to the background and returns as soon as it is journaled. A second call with the same key enqueues
    /// nothing, for as long as the first is remembered: the retention, or until it is discarded. Without durability it is
    /// sent at once.
    ///
    /// # Errors
    /// [`SendError::Journal`] if the outbox cannot be written.
    pub async fn enqueue(
        &self,
        key: impl Into<SendKey>,
        chat: impl Into<ChatId>,
        content: impl Into<Content>,
    ) -> Result<Enqueued, SendError> {
        let running = self.running()?;
        let enqueued = running.egress.enqueue(key.into(), &chat.into(), content.into()).await?;
        running.wake.notify_one();
        Ok(enqueued)
    }

    fn running(&self) -> Result<&Running, SendError> {
        self.shared
            .running
            .get()
            .ok_or_else(|| SendError::Stopped { reason: "the bot is not running".to_owned() })
    }

    fn take_definition(&self) -> Option<Definition> {
        self.shared.definition.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl std::fmt::Debug for Bot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bot").field("metrics", &self.metrics()).finish_non_exhaustive()
    }
}
