//! One life of a bot under test, from its start to its stop or crash.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use botmesh::{Bot, BotEvent};
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{AdmitError, ConnectionState, Provider};
use botmesh_core::spawn::Spawner;
use botmesh_core::time::Clock;
use tokio::sync::{Notify, broadcast};

use super::tasks::Tasks;
use crate::{Crash, CrashableProvider, CrashableStore, LossyKv, MockProvider, SendOutcome, VirtualClock};

/// The tasks of a bot that has nothing to do, and which of them sleep then.
const IDLE: [&str; 5] = ["bot", "session", "sweeper", "group-commit", DELIVERY];
const RESTING: [&str; 2] = ["session", "sweeper"];

/// The task by which the channel hands over what users say.
const DELIVERY: &str = "delivery";

/// After how long the channel delivers again what the bot did not take over.
const REDELIVERY: Duration = Duration::from_secs(1);

pub(super) struct Life {
    pub(super) bot: Bot,
    pub(super) process: Crash,
    pub(super) journal: LossyKv,
    pub(super) store: CrashableStore,
    pub(super) provider: CrashableProvider,
    pub(super) tasks: Arc<Tasks>,
    pub(super) events: Mutex<Events>,
    /// What running the bot came to.
    pub(super) ended: Arc<OnceLock<Result<(), String>>>,
    /// Calls of the channel that stood still before this life.
    pub(super) hung_before: usize,
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

/// What users said and the bot has not taken over, in order.
#[derive(Default)]
pub(super) struct Outstanding {
    events: Mutex<VecDeque<Inbound>>,
    more: Notify,
    /// Why the bot refused events for good.
    refused: Mutex<Vec<String>>,
}

impl Outstanding {
    pub(super) fn push(&self, inbound: Inbound) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(inbound);
        self.more.notify_one();
    }

    fn front(&self) -> Option<Inbound> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).front().cloned()
    }

    fn pop(&self) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    }

    pub(super) fn take_refused(&self) -> Vec<String> {
        std::mem::take(&mut self.refused.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn refuse(&self, problem: String) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }
}

impl Life {
    /// Starts the tasks of the bot and of the channel; they run during the test's steps.
    pub(super) fn begin(&self, channel: &MockProvider, clock: &VirtualClock, outstanding: &Arc<Outstanding>) {
        let (bot, ended) = (self.bot.clone(), Arc::clone(&self.ended));
        let run = async move {
            let result = bot.run().await.map_err(|error| botmesh::describe(&*error));
            debug_assert!(ended.set(result).is_ok(), "a bot runs once");
        };
        self.tasks.spawn("bot", Box::pin(run));
        let deliver =
            deliver_all(channel.clone(), clock.clone(), self.process.clone(), Arc::clone(outstanding));
        self.tasks.spawn(DELIVERY, Box::pin(deliver));
    }

    /// Whether the bot can do nothing before time passes or somebody says something.
    pub(super) fn is_settled(&self, channel: &MockProvider, clock: &VirtualClock) -> bool {
        if self.journal.calls_under_way() + self.store.calls_under_way() > 0 {
            return false;
        }
        let alive = self.tasks.alive();
        let busy = alive.keys().any(|task| !IDLE.contains(task));
        let resting: usize = RESTING.iter().filter_map(|task| alive.get(task)).sum();
        let waits = || {
            clock.sleepers() > resting
                || self.has_no_lease()
                || self.journal.hanging() > 0
                || hanging(channel) > self.hung_before
        };
        self.is_over() || !busy || waits()
    }

    pub(super) fn is_over(&self) -> bool {
        self.process.happened() || self.ended.get().is_some()
    }

    /// Why nothing more is to be expected of this life.
    pub(super) fn end(&self) -> Option<String> {
        if self.process.happened() {
            return Some("the bot has crashed; `restart` it".to_owned());
        }
        Some(match self.ended.get()? {
            Ok(()) => "the bot has stopped; `restart` it".to_owned(),
            Err(error) => format!("the bot has ended: {error}"),
        })
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
        let calls = self.journal.calls_under_way() + self.store.calls_under_way();
        format!("tasks: {:?}, calls of the backend: {calls}", self.tasks.alive())
    }

    /// The end of the process, wherever it stands.
    pub(super) fn kill(&self) {
        self.process.now();
        self.tasks.kill();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // The tasks hold the bot, and the bot holds the tasks.
        self.kill();
    }
}

pub(super) fn hanging(channel: &MockProvider) -> usize {
    channel.sent().iter().filter(|sent| sent.outcome == SendOutcome::Hanging).count()
}

/// Hands over what users say, in order. What the bot does not take over is delivered again, by the next life if this one
/// is over.
async fn deliver_all(
    channel: MockProvider,
    clock: VirtualClock,
    process: Crash,
    outstanding: Arc<Outstanding>,
) {
    let mut connection = channel.connection();
    loop {
        let Some(inbound) = outstanding.front() else {
            outstanding.more.notified().await;
            continue;
        };
        if connection.wait_for(|state| *state == ConnectionState::Open).await.is_err() {
            return;
        }
        match channel.deliver(inbound).await {
            Ok(_) => outstanding.pop(),
            Err(AdmitError::Invalid(problem)) => {
                outstanding.pop();
                outstanding.refuse(problem);
            }
            Err(_) if process.happened() => return,
            Err(_) => clock.sleep(REDELIVERY).await,
        }
    }
}
