//! A bot under test, its replicas, and the users who talk to it.

mod diary;
mod expect;
mod handover;
mod life;
mod options;
mod post;
mod replica;
mod stage;
mod step;
mod tasks;
mod user;

use std::sync::Arc;
use std::time::Duration;

use botmesh::{Bot, BotBuilder, BotEvent};
use botmesh_core::journal::WritePoint;
use botmesh_core::time::Clock;

use crate::{CrashableStore, LossyKv, MockProvider, VirtualClock};
use stage::Stage;

pub use expect::{Containing, Expected, Matching, containing, matching};
pub use options::TestBotOptions;
pub use replica::Replica;
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
///
/// Several [replicas](Self::replicas) share journals, store, channel and turns; what this type says of *the bot* itself is
/// then about the first one, and [`replica`](Self::replica) is any of them.
pub struct TestBot {
    stage: Arc<Stage>,
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

impl TestBot {
    /// A bot with the routes, flows and hooks that `build` gives it; channel, store, journals and seams are the test's.
    /// `build` is called again for each [`restart`](Self::restart).
    ///
    /// # Panics
    /// If the bot cannot be built.
    #[track_caller]
    pub fn new(build: impl Fn(BotBuilder) -> BotBuilder + Send + Sync + 'static) -> Self {
        Self::options().start(build)
    }

    /// Options for a bot that does not run on memory and defaults.
    pub fn options() -> TestBotOptions {
        TestBotOptions::alone()
    }

    /// Options for `count` replicas of a bot: `replica-1`, `replica-2` and so on, each a process of its own, over the same
    /// journals, store and channel, which take turns by one coordinator. What users say goes to the first replica that
    /// runs, unless they choose one; see [`TestUser::through`].
    ///
    /// # Panics
    /// If `count` is 0.
    #[track_caller]
    pub fn replicas(count: usize) -> TestBotOptions {
        assert!(count > 0, "a bot has at least one replica");
        TestBotOptions::replicas(count)
    }

    /// A replica, counted from 1.
    ///
    /// # Panics
    /// If there is no such replica.
    #[track_caller]
    pub fn replica(&self, number: usize) -> Replica {
        let replicas = self.stage.replicas();
        assert!((1..=replicas).contains(&number), "there is no replica {number}; there are 1 to {replicas}");
        Replica::new(Arc::clone(&self.stage), number)
    }

    fn first(&self) -> Replica {
        Replica::new(Arc::clone(&self.stage), 1)
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
        self.first().does(work)
    }

    /// The bot dies right before it next comes to `point`: a [`WritePoint`], or [`CrashPoint::Send`]. Nothing that it does
    /// afterwards reaches anybody. [`restart`](Self::restart) starts it again.
    pub fn crash_before(&self, point: impl Into<CrashPoint>) {
        self.first().crash_before(point);
    }

    /// The bot dies right after it next came through `point`, before it hears of it.
    pub fn crash_after(&self, point: impl Into<CrashPoint>) {
        self.first().crash_after(point);
    }

    /// The bot dies now, wherever it stands.
    pub fn crash(&self) {
        self.first().crash();
    }

    /// Whether the bot has crashed.
    pub fn has_crashed(&self) -> bool {
        self.first().has_crashed()
    }

    /// Whether the bot runs: it has neither crashed nor ended.
    pub fn is_running(&self) -> bool {
        self.first().is_running()
    }

    /// Starts the bot again: after a crash, as a supervisor would; else it is stopped first, as for a new version. What the
    /// users said meanwhile, and what the dead bot had not taken over, is delivered now.
    ///
    /// # Panics
    /// The step panics if the bot does not stop, or if it was to crash and has not.
    pub fn restart(&self) -> Step<'_> {
        self.first().restart()
    }

    /// As [`restart`](Self::restart), under another instance id, as on another host: what the old instance owned is taken
    /// over when its lease ran out.
    pub fn restart_as(&self, instance: impl Into<String>) -> Step<'_> {
        self.first().restart_as(instance)
    }

    /// Stops the bot in good order: what is in flight is finished.
    ///
    /// # Panics
    /// The step panics if the bot does not stop in a minute of virtual time, or ends with an error.
    pub fn stop(&self) -> Step<'_> {
        self.first().stop()
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
        self.first().backend()
    }

    /// The store as the bot of this life sees it, to let writes fail.
    pub fn store(&self) -> CrashableStore {
        self.first().store()
    }

    /// The bot of this life. To await what it does, use [`does`](Self::does).
    pub fn bot(&self) -> Bot {
        self.first().bot()
    }

    /// What the bots of all lives of all replicas told so far.
    pub fn events(&self) -> Vec<BotEvent> {
        self.stage.told().into_iter().map(|(_, event)| event).collect()
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
