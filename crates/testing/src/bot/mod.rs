//! A bot under test, and the users who talk to it.

mod diary;
mod expect;
mod life;
mod stage;
mod step;
mod tasks;
mod user;

use std::sync::Arc;
use std::time::Duration;

use botmesh::{Bot, BotBuilder, BotEvent, Durability};
use botmesh_core::journal::WritePoint;
use botmesh_core::kv::DurableKv;
use botmesh_core::memory::{MemoryKv, MemoryStore};
use botmesh_core::spawn::Spawner;
use botmesh_core::store::Store;
use botmesh_core::time::Clock;
use tokio::sync::oneshot;

use crate::{CrashableStore, Fault, LossyKv, MockProvider, VirtualClock};
use stage::{Build, EachLife, PATIENCE, Stage};

pub use expect::{Containing, Expected, Matching, containing, matching};
pub use step::Step;
pub use user::TestUser;

/// A running bot, and everything it needs: a channel, journals, state, and time that passes only when the test says so.
///
/// The bot runs while a step of the test is awaited, and nothing happens between the steps. A step that is not fulfilled
/// panics in the test's own line, with everything that was said so far. It works in a plain `#[tokio::test]`.
///
/// ```
/// use botmesh::prelude::*;
/// use botmesh_testing::TestBot;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let bot = TestBot::new(|bot| bot.when("hi", |c: Ctx| async move { c.reply("Hello!").await }));
/// let ana = bot.user("ana");
/// ana.says("hi").await;
/// ana.expect_reply("Hello!").await;
/// ana.expect_silence().await;
/// # }
/// ```
pub struct TestBot {
    stage: Arc<Stage>,
}

/// What a [`TestBot`] runs on, where that is not to be memory and defaults.
#[must_use]
pub struct TestBotOptions {
    channel: MockProvider,
    kv: Arc<dyn DurableKv>,
    store: Arc<dyn Store>,
    durability: Durability,
    each_life: EachLife,
}

/// Where a bot can crash: at a write of its journals, or at a call of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// A write of the journals.
    Write(WritePoint),
    /// A call of the channel that sends a message.
    Send,
}

impl From<WritePoint> for CrashPoint {
    fn from(point: WritePoint) -> Self {
        Self::Write(point)
    }
}

impl std::fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Write(point) => write!(f, "the write {point}"),
            Self::Send => f.write_str("a call of the channel"),
        }
    }
}

/// A span of time: a [`Duration`], or a text such as `"5m"`.
pub trait Span {
    /// How long it is.
    ///
    /// # Errors
    /// A text that is no duration.
    fn duration(&self) -> Result<Duration, String>;
}

impl Span for Duration {
    fn duration(&self) -> Result<Duration, String> {
        Ok(*self)
    }
}

impl Span for &str {
    fn duration(&self) -> Result<Duration, String> {
        botmesh_core::duration::parse(self)
    }
}

impl TestBotOptions {
    fn new() -> Self {
        Self {
            channel: MockProvider::new(),
            kv: Arc::new(MemoryKv::new()),
            store: Arc::new(MemoryStore::new()),
            durability: Durability::default().with_instance_id("test-bot"),
            each_life: Box::new(|_, _| ()),
        }
    }

    /// With journals in this backend. They are the bot's as they are in production; what is in them already, the bot
    /// takes up.
    pub fn backend(mut self, backend: Arc<dyn DurableKv>) -> Self {
        self.kv = backend;
        self
    }

    /// With its state in this store.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Arc::new(store);
        self
    }

    /// As [`store`](Self::store), for one that is shared.
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = store;
        self
    }

    /// With these settings of the journals. A backend in them is not used; see [`backend`](Self::backend).
    pub fn durability(mut self, durability: Durability) -> Self {
        let id = self.durability.instance_id;
        self.durability = durability;
        self.durability.instance_id = self.durability.instance_id.or(id);
        self
    }

    /// With this channel, for one with other capabilities. Default: [`MockProvider::new`].
    pub fn channel(mut self, channel: MockProvider) -> Self {
        self.channel = channel;
        self
    }

    /// Calls `prepare` at the start of each life with its number, from 1, and its backend, before the bot runs: to let
    /// writes of the start itself fail.
    pub fn each_life(mut self, prepare: impl Fn(u64, &LossyKv) + Send + Sync + 'static) -> Self {
        self.each_life = Box::new(prepare);
        self
    }

    /// Starts the bot; see [`TestBot::new`].
    ///
    /// # Panics
    /// If the bot cannot be built.
    #[track_caller]
    pub fn start(self, build: impl Fn(BotBuilder) -> BotBuilder + Send + Sync + 'static) -> TestBot {
        TestBot::start(self, Box::new(build))
    }
}

impl TestBot {
    /// A bot with the routes, flows and hooks that `build` gives it; channel, store, journals and seams are the test's.
    /// `build` is called again for each [`restart`](Self::restart).
    ///
    /// # Panics
    /// If the bot cannot be built.
    #[track_caller]
    pub fn new(build: impl Fn(BotBuilder) -> BotBuilder + Send + Sync + 'static) -> Self {
        Self::start(Self::options(), Box::new(build))
    }

    /// Options for a bot that does not run on memory and defaults.
    pub fn options() -> TestBotOptions {
        TestBotOptions::new()
    }

    #[track_caller]
    fn start(options: TestBotOptions, build: Build) -> Self {
        let TestBotOptions { channel, kv, store, durability, each_life } = options;
        let stage = Arc::new(Stage {
            mock: channel,
            clock: VirtualClock::new(),
            kv,
            store,
            durability,
            each_life,
            build,
            outstanding: Arc::default(),
            state: std::sync::Mutex::default(),
        });
        if let Err(error) = stage.start(None) {
            panic!("the bot cannot be built: {error}");
        }
        Self { stage }
    }

    /// A user who talks to the bot in a chat of their own, whose id is the user's.
    pub fn user(&self, name: impl Into<String>) -> TestUser {
        TestUser::new(Arc::clone(&self.stage), name.into())
    }

    /// Lets virtual time pass: a [`Duration`], or a text such as `"5m"`. Whatever becomes due meanwhile happens in its
    /// order; in more than half an hour, up to 15 s too late.
    pub fn advance(&self, span: impl Span + Send + 'static) -> Step<'_> {
        Step::new(async move { self.stage.advance(span.duration()?).await })
    }

    /// Does something with the bot itself, such as a send outside of any message. Virtual time passes while it waits, up
    /// to a minute. `None` if the bot crashed before it was done.
    ///
    /// # Panics
    /// The step panics if it is not done by then.
    pub fn does<T, F>(&self, work: impl FnOnce(Bot) -> F + Send + 'static) -> Step<'_, Option<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        Step::new(async move {
            self.stage.settle().await?;
            let life = self.stage.life();
            let (done, mut result) = oneshot::channel();
            let work = work(life.bot.clone());
            life.tasks.spawn("test", Box::pin(async move { drop(done.send(work.await)) }));
            let mut value = None;
            let done = self.stage.wait_for(PATIENCE, || {
                value = result.try_recv().ok();
                (value.is_some() || life.is_over()).then_some(())
            });
            match done.await? {
                Some(()) => Ok(value),
                None => Err(self.stage.failure(&format!("it is not done in {PATIENCE:?}"))),
            }
        })
    }

    /// The bot dies right before it next comes to `point`: a [`WritePoint`], or [`CrashPoint::Send`]. Nothing that it does
    /// afterwards reaches anybody. [`restart`](Self::restart) starts it again.
    pub fn crash_before(&self, point: impl Into<CrashPoint>) {
        self.arm(point.into(), Fault::CrashBefore);
    }

    /// The bot dies right after it next came through `point`, before it hears of it.
    pub fn crash_after(&self, point: impl Into<CrashPoint>) {
        self.arm(point.into(), Fault::CrashAfter);
    }

    fn arm(&self, point: CrashPoint, fault: Fault) {
        let life = self.stage.life();
        match (point, fault) {
            (CrashPoint::Write(point), fault) => life.journal.fault_at(point, 1, fault),
            (CrashPoint::Send, Fault::CrashBefore) => life.provider.crash_before_send(1),
            (CrashPoint::Send, _) => life.provider.crash_after_send(1),
        }
        let when = if fault == Fault::CrashBefore { "before" } else { "after" };
        self.stage.state().armed = Some(format!("{when} {point}"));
    }

    /// The bot dies now, wherever it stands.
    pub fn crash(&self) {
        self.stage.note("  ! the bot is killed".to_owned());
        self.stage.life().process.now();
    }

    /// Whether the bot has crashed.
    pub fn has_crashed(&self) -> bool {
        self.stage.life().process.happened()
    }

    /// Whether the bot runs: it has neither crashed nor ended.
    pub fn is_running(&self) -> bool {
        !self.stage.life().is_over()
    }

    /// Starts the bot again: after a crash, as a supervisor would; else it is stopped first, as for a new version. What the
    /// users said meanwhile, and what the dead bot had not taken over, is delivered now.
    ///
    /// # Panics
    /// The step panics if the bot does not stop, or if it was to crash and has not.
    pub fn restart(&self) -> Step<'_> {
        Step::new(self.next_life(None))
    }

    /// As [`restart`](Self::restart), under another instance id, as on another host: what the old instance owned is taken
    /// over when its lease ran out.
    pub fn restart_as(&self, instance: impl Into<String>) -> Step<'_> {
        let instance = instance.into();
        Step::new(async move { self.next_life(Some(&instance)).await })
    }

    async fn next_life(&self, instance: Option<&str>) -> Result<(), String> {
        let life = self.stage.life();
        if !life.is_over() {
            let armed = self.stage.state().armed.take();
            if let Some(crash) = armed {
                return Err(self
                    .stage
                    .failure(&format!("the bot was to crash {crash}, but it never comes to it")));
            }
            self.end().await?;
        }
        life.kill();
        drop(life);
        self.stage.note("  ! the bot starts again".to_owned());
        self.stage.start(instance).map_err(|error| format!("the bot cannot be built: {error}"))?;
        self.stage.settle().await
    }

    /// Stops the bot in good order: what is in flight is finished.
    ///
    /// # Panics
    /// The step panics if the bot does not stop in a minute of virtual time, or ends with an error.
    pub fn stop(&self) -> Step<'_> {
        Step::new(self.end())
    }

    async fn end(&self) -> Result<(), String> {
        let life = self.stage.life();
        life.bot.stop();
        match self.stage.wait_for(PATIENCE, || life.is_over().then_some(())).await? {
            None => Err(self.stage.failure(&format!("the bot does not stop ({})", life.describe_work()))),
            Some(()) => match life.ended.get() {
                Some(Err(error)) => Err(self.stage.failure(&format!("the bot has ended: {error}"))),
                _ => Ok(()),
            },
        }
    }

    /// The channel, to let sends fail, and for assertions about what was sent.
    pub fn channel(&self) -> &MockProvider {
        self.stage.mock()
    }

    /// The clock. Moving it by hand wakes nobody before the next step.
    pub fn clock(&self) -> &VirtualClock {
        &self.stage.clock
    }

    /// The journals' backend as the bot of this life sees it, to let writes fail.
    pub fn backend(&self) -> LossyKv {
        self.stage.life().journal.clone()
    }

    /// The store as the bot of this life sees it, to let writes fail.
    pub fn store(&self) -> CrashableStore {
        self.stage.life().store.clone()
    }

    /// The bot of this life. To await what it does, use [`does`](Self::does).
    pub fn bot(&self) -> Bot {
        self.stage.life().bot.clone()
    }

    /// What the bots of all lives told so far.
    pub fn events(&self) -> Vec<BotEvent> {
        self.stage.told()
    }

    /// Everything that happened so far: virtual time since the beginning, and who said what.
    pub fn transcript(&self) -> String {
        self.stage.transcript()
    }

    /// How much virtual time has passed since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.stage.clock.monotonic()
    }
}

impl std::fmt::Debug for TestBot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestBot").field("crashed", &self.has_crashed()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for TestBotOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestBotOptions").field("durability", &self.durability).finish_non_exhaustive()
    }
}
