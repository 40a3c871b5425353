//! One life of a bot under test, from its start to its stop or crash.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Context;

use botmesh::{Bot, BotEvent};
use botmesh_core::coordinator::MemoryCoordinator;
use botmesh_core::provider::{ConnectionState, Provider};
use botmesh_core::spawn::Spawner;
use tokio::sync::broadcast;

use super::post::Post;
use super::tasks::Tasks;
use crate::{Crash, CrashableProvider, CrashableStore, LossyKv, MockProvider, SendOutcome, VirtualClock};

/// The tasks of a bot that has nothing to do, and which of them sleep then.
const IDLE: [&str; 5] = ["bot", "session", "sweeper", "group-commit", DELIVERY];
const RESTING: [&str; 2] = ["session", "sweeper"];

/// The task by which the channel hands over what users say.
const DELIVERY: &str = "delivery";

pub(super) struct Life {
    /// The number of the life, from 1, over all replicas.
    pub(super) number: u64,
    pub(super) bot: Bot,
    pub(super) process: Crash,
    pub(super) journal: LossyKv,
    pub(super) store: CrashableStore,
    pub(super) provider: CrashableProvider,
    /// The channel below, and the clock, as this life has them.
    pub(super) channel: MockProvider,
    pub(super) clock: VirtualClock,
    pub(super) coordinator: Option<MemoryCoordinator>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) events: Mutex<Events>,
    /// What running the bot came to.
    pub(super) ended: Arc<OnceLock<Result<(), String>>>,
    /// Calls of the channel that stood still before this life.
    pub(super) hung_before: usize,
    /// Whether it was asked to stop, and whether it stands still.
    pub(super) stopping: AtomicBool,
    pub(super) frozen: AtomicBool,
    /// After how many more polls of its tasks it stands still; `u64::MAX` if it does not.
    pub(super) freezes_in: AtomicU64,
}

/// What the bot told, and what of it the test has not taken down.
pub(super) struct Events {
    told: broadcast::Receiver<BotEvent>,
    new: Vec<BotEvent>,
    has_lease: bool,
}

impl Events {
    pub(super) fn new(told: broadcast::Receiver<BotEvent>) -> Mutex<Self> {
        Mutex::new(Self { told, new: Vec::new(), has_lease: true })
    }

    fn receive(&mut self) {
        while let Ok(event) = self.told.try_recv() {
            match event {
                BotEvent::InstanceLeaseLost { .. } => self.has_lease = false,
                BotEvent::InstanceLeaseRenewed => self.has_lease = true,
                _ => {}
            }
            self.new.push(event);
        }
    }
}

impl Life {
    /// Starts the tasks of the bot and of the channel; they run during the test's steps.
    pub(super) fn begin(&self, post: &Arc<Post>) {
        let (bot, ended) = (self.bot.clone(), Arc::clone(&self.ended));
        let run = async move {
            let result = bot.run().await.map_err(|error| botmesh::describe(&*error));
            debug_assert!(ended.set(result).is_ok(), "a bot runs once");
        };
        self.tasks.spawn("bot", Box::pin(run));
        let (post, life) = (Arc::clone(post), self.number);
        let (channel, clock) = (self.channel.clone(), self.clock.clone());
        let deliver = async move { post.deliver_to(life, channel, clock).await };
        self.tasks.spawn(DELIVERY, Box::pin(deliver));
    }

    /// Whether the bot can do nothing before time passes or somebody says something.
    pub(super) fn is_settled(&self) -> bool {
        if self.is_frozen() {
            return true;
        }
        if self.calls_under_way() > 0 {
            return false;
        }
        let alive = self.tasks.alive();
        let busy = alive.keys().any(|task| !IDLE.contains(task));
        let resting: usize = RESTING.iter().filter_map(|task| alive.get(task)).sum();
        let waits = || {
            self.clock.own_sleepers() > resting
                || self.has_no_lease()
                || self.journal.hanging() > 0
                || hanging(&self.channel) > self.hung_before
        };
        self.is_over() || !busy || waits()
    }

    pub(super) fn is_over(&self) -> bool {
        self.process.happened() || self.ended.get().is_some()
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    /// Whether it takes messages over.
    pub(super) fn is_open(&self) -> bool {
        !self.is_over() && !self.is_frozen() && !self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn is_connected(&self) -> bool {
        *self.channel.connection().borrow() == ConnectionState::Open
    }

    /// Whether its tasks are run. Those of a dead life only until the backend has answered what it was asked before.
    pub(super) fn is_polled(&self) -> bool {
        !self.is_frozen() && (!self.process.happened() || self.calls_under_way() > 0)
    }

    fn calls_under_way(&self) -> usize {
        self.journal.calls_under_way() + self.store.calls_under_way()
    }

    /// Runs its tasks for at most so many polls. Whether any could go on.
    pub(super) fn run(&self, context: &mut Context<'_>, polls: u64) -> bool {
        let left = self.freezes_in.load(Ordering::Relaxed);
        let taken = self.tasks.run(context, polls.min(left), || self.is_polled());
        if left != u64::MAX {
            self.freezes_in.store(left - taken, Ordering::Relaxed);
            if left == taken {
                self.freeze();
            }
        }
        if self.process.happened() {
            self.bury();
        }
        taken > 0
    }

    /// Stands still, and loses its turns. Whether it ran.
    pub(super) fn freeze(&self) -> bool {
        if self.is_over() || self.frozen.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.freezes_in.store(u64::MAX, Ordering::Relaxed);
        if let Some(coordinator) = &self.coordinator {
            coordinator.lose();
        }
        true
    }

    /// Lets the others know that it is dead. Its tasks end as soon as the backend has answered what it was asked before.
    pub(super) fn bury(&self) {
        if let Some(coordinator) = &self.coordinator {
            coordinator.crash();
        }
        if self.calls_under_way() == 0 {
            self.tasks.kill();
        }
    }

    /// Why nothing more is to be expected of this life.
    pub(super) fn end(&self) -> Option<String> {
        if self.process.happened() {
            return Some("has crashed; `restart` it".to_owned());
        }
        match self.ended.get() {
            Some(Ok(())) => Some("has stopped; `restart` it".to_owned()),
            Some(Err(error)) => Some(format!("has ended: {error}")),
            None => self.is_frozen().then(|| "stands still; `thaw` it".to_owned()),
        }
    }

    pub(super) fn new_events(&self) -> Vec<BotEvent> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.receive();
        std::mem::take(&mut events.new)
    }

    /// Whether the bot waits until it can renew its lease, which takes time.
    fn has_no_lease(&self) -> bool {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.receive();
        !events.has_lease
    }

    /// What keeps the bot from coming to rest.
    pub(super) fn describe_work(&self) -> String {
        format!("tasks: {:?}, calls of the backend: {}", self.tasks.alive(), self.calls_under_way())
    }

    /// The end of the process, wherever it stands.
    pub(super) fn kill(&self) {
        self.process.now();
        if let Some(coordinator) = &self.coordinator {
            coordinator.crash();
        }
        self.tasks.kill();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // The tasks hold the bot, and the bot holds the tasks.
        self.kill();
    }
}

/// How many calls of this replica stand still.
pub(super) fn hanging(channel: &MockProvider) -> usize {
    let replica = channel.number();
    let hangs = |sent: &&crate::Sent| sent.replica == replica && sent.outcome == SendOutcome::Hanging;
    channel.view(|sent| sent.iter().filter(hangs).count())
}
