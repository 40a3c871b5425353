//! What outlives a process: users, channel, journals, state and time.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use botmesh::{Bot, BotBuilder, BotEvent, Durability};
use botmesh_core::entropy::SeededEntropy;
use botmesh_core::error::ConfigError;
use botmesh_core::id::{ChatId, EventId};
use botmesh_core::inbound::Inbound;
use botmesh_core::kv::DurableKv;
use botmesh_core::spawn::Seams;
use botmesh_core::store::Store;
use botmesh_core::time::Clock;

use super::diary::Diary;
use super::life::{Events, Life, Outstanding, hanging};
use super::tasks::Tasks;
use crate::{Crash, CrashableProvider, CrashableStore, LossyKv, MockProvider, Sent, VirtualClock};

/// How long virtual time may pass while a reply is expected.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How long the bot may wait for something outside of it, such as a server that a handler calls, in real time.
const REAL_PATIENCE: Duration = Duration::from_secs(30);

/// How often the bot may go on without coming to rest.
const MAX_ROUNDS: usize = 100_000;

/// How many steps an advance takes, as long as none is longer than `LONGEST_STEP`.
const STEPS: u32 = 2_000;
const LONGEST_STEP: Duration = Duration::from_secs(15);

pub(super) type Build = Box<dyn Fn(BotBuilder) -> BotBuilder + Send + Sync>;
pub(super) type EachLife = Box<dyn Fn(u64, &LossyKv) + Send + Sync>;

pub(super) struct Stage {
    pub(super) mock: MockProvider,
    pub(super) clock: VirtualClock,
    pub(super) kv: Arc<dyn DurableKv>,
    pub(super) store: Arc<dyn Store>,
    pub(super) durability: Durability,
    pub(super) each_life: EachLife,
    pub(super) build: Build,
    pub(super) outstanding: Arc<Outstanding>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    life: Option<Arc<Life>>,
    lives: u64,
    events: u64,
    /// How many messages of each chat were expected.
    read: HashMap<ChatId, usize>,
    diary: Diary,
    told: Vec<BotEvent>,
    /// A crash that was asked for and has not happened.
    pub(super) armed: Option<String>,
}

impl Stage {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn mock(&self) -> &MockProvider {
        &self.mock
    }

    pub(super) fn life(&self) -> Arc<Life> {
        let life = self.state().life.clone();
        life.unwrap_or_else(|| unreachable!("a stage begins with a life"))
    }

    /// Starts the next life.
    pub(super) fn start(&self, instance: Option<&str>) -> Result<(), ConfigError> {
        // Starting takes its time.
        self.clock.jump(Duration::from_millis(10));
        let seed = {
            let mut state = self.state();
            state.lives += 1;
            state.lives
        };
        let process = Crash::new();
        let journal = LossyKv::of_process(Arc::clone(&self.kv), process.clone());
        (self.each_life)(seed, &journal);
        let store = CrashableStore::new(Arc::clone(&self.store), process.clone());
        let provider = CrashableProvider::new(Arc::new(self.mock.clone()), process.clone());
        let tasks = Arc::new(Tasks::default());
        let seams = Seams {
            clock: Arc::new(self.clock.clone()),
            entropy: Arc::new(SeededEntropy::new(seed)),
            spawner: Arc::<Tasks>::clone(&tasks),
        };
        let kv: Arc<dyn DurableKv> = Arc::new(journal.clone());
        let mut durability = self.durability.clone().with_backend(kv);
        if let Some(instance) = instance {
            durability = durability.with_instance_id(instance);
        }
        let bot = (self.build)(Bot::builder())
            .provider(provider.clone())
            .store(store.clone())
            .durability(durability)
            .seams(seams)
            .build()?;
        let events = Events::new(bot.events());
        let ended = Arc::new(OnceLock::new());
        let hung_before = hanging(&self.mock);
        let life = Life { bot, process, journal, store, provider, tasks, events, ended, hung_before };
        life.begin(&self.mock, &self.clock, &self.outstanding);
        self.state().life = Some(Arc::new(life));
        Ok(())
    }

    pub(super) fn next_event(&self) -> EventId {
        let mut state = self.state();
        state.events += 1;
        EventId::from(format!("event-{}", state.events))
    }

    /// A user says something; the bot hears of it in the next step.
    pub(super) fn deliver(&self, inbound: Inbound) {
        self.note(said(&inbound));
        self.outstanding.push(inbound);
    }

    /// Lets the bot do what it can do without time passing.
    pub(super) async fn settle(&self) -> Result<(), String> {
        let life = self.life();
        let mut calm = 0;
        for _ in 0..MAX_ROUNDS {
            let went_on = poll_fn(|context| Poll::Ready(life.tasks.run(context))).await;
            calm = if went_on { 0 } else { calm + 1 };
            if calm < 2 {
                // What only gave way goes on when this task gives way too.
                tokio::task::yield_now().await;
                continue;
            }
            if life.is_settled(&self.mock, &self.clock) {
                return self.look(&life);
            }
            let woken = poll_fn(|context| match life.tasks.run(context) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            });
            if in_real_time(woken).await.is_none() {
                let work = life.describe_work();
                return Err(
                    self.failure(&format!("the bot does not come to rest in {REAL_PATIENCE:?} ({work})"))
                );
            }
            calm = 0;
        }
        Err(self.failure(&format!("the bot never comes to rest ({})", life.describe_work())))
    }

    /// Takes down what happened.
    fn look(&self, life: &Life) -> Result<(), String> {
        let now = self.clock.monotonic();
        let mut sent = self.mock.sent();
        let mut state = self.state();
        for sent in sent.drain(state.diary.sends..) {
            state.diary.sends += 1;
            let chat = &sent.chat;
            let buttons: Vec<_> =
                sent.content.buttons.iter().map(|button| format!("[{}]", button.title)).collect();
            let text = [sent.text(), &buttons.join(" ")].join(" ");
            let note = if sent.is_delivery() { String::new() } else { format!(" ({:?})", sent.outcome) };
            state.diary.write(now, format!("    bot to {chat}: {}{note}", text.trim_end()));
        }
        for event in life.new_events() {
            if !matches!(event, BotEvent::Started | BotEvent::Stopped) {
                state.diary.write(now, format!("  ! {event}"));
            }
            state.told.push(event);
        }
        let armed = if life.process.happened() { state.armed.take() } else { None };
        if let Some(crash) = armed {
            state.diary.write(now, format!("  ! the bot crashes {crash}"));
        }
        drop(state);
        match self.outstanding.take_refused().first() {
            Some(problem) => Err(self.failure(&format!("the bot refused an event: {problem}"))),
            None => Ok(()),
        }
    }

    /// Everything the bots told so far.
    pub(super) fn told(&self) -> Vec<BotEvent> {
        self.state().told.clone()
    }

    /// Moves time on to when the first sleeper wakes, if that is not after `until` on the monotonic clock.
    async fn pass_time(&self, until: Duration) -> Result<bool, String> {
        let left = until.saturating_sub(self.clock.monotonic());
        match self.clock.until_next_wake().filter(|wake| *wake <= left) {
            None => Ok(false),
            Some(wake) => {
                self.clock.jump(wake);
                self.settle().await?;
                Ok(true)
            }
        }
    }

    /// Lets time pass until `condition` gives something, at most for `patience`.
    pub(super) async fn wait_for<T>(
        &self,
        patience: Duration,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, String> {
        self.settle().await?;
        let until = self.clock.monotonic() + patience;
        loop {
            if let Some(value) = condition() {
                return Ok(Some(value));
            }
            if !self.pass_time(until).await? {
                return Ok(None);
            }
        }
    }

    /// Lets so much time pass. In small steps at first; in coarser ones the longer it is.
    pub(super) async fn advance(&self, duration: Duration) -> Result<(), String> {
        self.settle().await?;
        let until = self.clock.monotonic() + duration;
        let coarse = (duration / STEPS).min(LONGEST_STEP);
        loop {
            let left = until.saturating_sub(self.clock.monotonic());
            if left.is_zero() {
                return Ok(());
            }
            let wake = self.clock.until_next_wake().unwrap_or(left);
            self.clock.jump(wake.max(coarse).min(left));
            self.settle().await?;
        }
    }

    /// The next message to a chat that was not expected yet. Time passes until there is one.
    pub(super) async fn next_reply(&self, chat: &ChatId) -> Result<Option<Sent>, String> {
        let life = self.life();
        let reply = self.wait_for(PATIENCE, || {
            let reply = self.take_reply(chat);
            match reply {
                None if life.is_over() => Some(None),
                None => None,
                reply => Some(reply),
            }
        });
        match (reply.await?.flatten(), life.end()) {
            (None, Some(end)) => Err(self.failure(&format!("{chat}: expected a reply, but {end}"))),
            (reply, _) => Ok(reply),
        }
    }

    pub(super) fn take_reply(&self, chat: &ChatId) -> Option<Sent> {
        let mut state = self.state();
        let read = state.read.entry(chat.clone()).or_default();
        let reply = self.mock.delivered().into_iter().filter(|sent| sent.chat == *chat).nth(*read)?;
        *read += 1;
        Some(reply)
    }

    pub(super) fn note(&self, entry: String) {
        let now = self.clock.monotonic();
        self.state().diary.write(now, entry);
    }

    pub(super) fn transcript(&self) -> String {
        self.state().diary.read()
    }

    /// What a failed step panics with.
    pub(super) fn failure(&self, what: &str) -> String {
        format!("{what}\n{}", self.transcript())
    }
}

fn said(inbound: &Inbound) -> String {
    let who = inbound.sender.as_ref().map_or("somebody", |sender| sender.id.as_str());
    let place = if inbound.group { format!(" in {}", inbound.chat) } else { String::new() };
    match inbound.readable_text() {
        "" => format!("{who}{place}: {:?}", inbound.body),
        text => format!("{who}{place}: {text}"),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "what the bot waits for outside of it, and a bot that hangs, know only real time"
)]
async fn in_real_time<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(REAL_PATIENCE, future).await.ok()
}
