//! What users and operators do to the bot, and what must come of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use botmesh::prelude::*;
use botmesh::{BotBuilder, InboxConfig, OnAmbiguous, OnHandlerError, OutboxConfig, Schedule, TaskCtx};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::provider::{Capabilities, Resolve, TextLimit, TextUnit};
use botmesh_core::split::split;
use botmesh_testing::{MockProvider, SendFault, Sent};
use serde::{Deserialize, Serialize};

pub(super) const LEASE: Duration = Duration::from_secs(60);
/// Longer than all that a scenario does before what is finished is removed.
pub(super) const RETENTION: Duration = Duration::from_secs(15 * 60);
const POLL: Duration = Duration::from_secs(5);
/// More than a scenario can lose to the faults of one run.
const MAX_ATTEMPTS: u32 = 6;

const LIMIT: TextLimit = TextLimit { max: 40, unit: TextUnit::CodePoints };
const LONG: &str =
    "This is the first of three parts. Here the second one of them begins. And this is the last one.";
/// What the channel refuses for good.
pub(super) const REFUSED: &str = "refused";

/// What becomes of a send whose outcome nobody can say, and what the channel knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Skip,
    Resend,
    Auto,
    /// `auto` on a channel that delivers each token once.
    AutoWithTokens,
}

impl Policy {
    pub(super) const ALL: [Self; 4] = [Self::Skip, Self::Resend, Self::Auto, Self::AutoWithTokens];

    pub(super) fn may_double(self) -> bool {
        self == Self::Resend
    }

    pub(super) fn may_lose(self) -> bool {
        matches!(self, Self::Skip | Self::Auto)
    }

    pub(super) fn durability(self) -> Durability {
        let policy = match self {
            Self::Skip => OnAmbiguous::Skip,
            Self::Resend => OnAmbiguous::Resend,
            Self::Auto | Self::AutoWithTokens => OnAmbiguous::Auto,
        };
        let on_handler_error = OnHandlerError::Retry;
        let inbox = InboxConfig {
            lease: LEASE,
            max_attempts: MAX_ATTEMPTS,
            on_handler_error,
            ..InboxConfig::default()
        };
        let outbox = OutboxConfig { lease: LEASE, ..OutboxConfig::default() };
        Durability::default()
            .with_inbox(inbox)
            .with_outbox(outbox)
            .with_on_ambiguous(policy)
            .with_poll(POLL)
            .with_retention(RETENTION)
    }

    /// A channel that is busy, refuses and loses an answer when the bot says so.
    pub(super) fn channel(self) -> MockProvider {
        let mut capabilities = Capabilities::default();
        capabilities.text_limit = Some(LIMIT);
        if self == Self::AutoWithTokens {
            capabilities.resolve = Resolve::Dedupe { window: Duration::from_secs(24 * 3600) };
        }
        let channel = MockProvider::with_capabilities(capabilities);
        let (busy, lost) = (AtomicU32::new(0), AtomicBool::new(false));
        channel.fault_when(move |sent: &Sent| match sent.text() {
            "busy" if busy.fetch_add(1, Ordering::Relaxed) < 2 => {
                Some(SendFault::Fail(ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy")))
            }
            REFUSED => {
                let unreachable = ErrorClass::RecipientUnreachable;
                Some(SendFault::Fail(ChannelError::new(unreachable, Phase::Answered, "blocked")))
            }
            "lost" if !lost.swap(true, Ordering::Relaxed) => Some(SendFault::LoseAnswer),
            _ => None,
        });
        channel
    }
}

/// Something that happens to the bot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// A user writes.
    Says(&'static str, &'static str),
    /// The application sends something in the background, under the key of the text.
    Enqueues(&'static str, &'static str),
    /// So many seconds pass.
    Waits(u64),
    /// What made a handler fail is mended, and an operator has the dead messages processed again.
    Replays,
    /// The bot stops, and another instance takes its place.
    Moves,
}

/// A whole story.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) acts: &'static [Act],
    /// What each chat is told, in order. `LONG` stands for its parts.
    replies: &'static [(&'static str, &'static [&'static str])],
    /// How many messages users write, and tasks run.
    pub(super) messages: usize,
    /// Whether the story goes on until what is finished is removed.
    pub(super) purges: bool,
}

impl Scenario {
    pub(super) const ALL: [Self; 4] = [
        Self {
            name: "a conversation",
            acts: &[
                Act::Says("ana", "busy"),
                Act::Says("ana", "two"),
                Act::Says("ana", "long"),
                Act::Waits(10),
                Act::Says("ana", "order"),
                Act::Says("ana", "tea"),
                Act::Says("ben", "count"),
                Act::Says("ben", "count"),
            ],
            replies: &[
                ("ana", &["busy", "two: one", "two: two", LONG, "what?", "tea, thank you"]),
                ("ben", &["count 1", "count 2"]),
            ],
            messages: 7,
            purges: false,
        },
        Self {
            name: "sends of every outcome",
            acts: &[
                Act::Enqueues("ana", "reminder 1"),
                Act::Enqueues("ana", "reminder 2"),
                Act::Waits(5),
                Act::Says("ana", "refuse"),
                Act::Says("ana", "lose"),
                Act::Waits(30),
                Act::Says("ana", "count"),
            ],
            replies: &[("ana", &["reminder 1", "reminder 2", "lost", "count 1"])],
            messages: 3,
            purges: false,
        },
        Self {
            name: "operation",
            acts: &[
                Act::Says("ben", "poison"),
                Act::Waits(90),
                Act::Replays,
                Act::Waits(10),
                Act::Moves,
                Act::Says("ben", "count"),
                Act::Waits(60),
            ],
            replies: &[("ben", &["healed", "count 1"])],
            messages: 2,
            purges: true,
        },
        Self {
            name: "tasks",
            acts: &[
                Act::Says("ana", "later"),
                Act::Waits(60),
                Act::Says("ana", "later again"),
                Act::Waits(60),
            ],
            replies: &[("ana", &["later", "later again"]), ("ben", &["reminder"])],
            messages: 3,
            purges: false,
        },
    ];

    /// What each chat is told, in order.
    pub(super) fn replies(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let parts = |text: &&'static str| split(text, LIMIT);
        let of_chat = |texts: &[&'static str]| texts.iter().flat_map(parts).collect();
        self.replies.iter().map(|(chat, texts)| (*chat, of_chat(texts))).collect()
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Order {
    what: String,
}

impl FlowState for Order {}

/// The bot of all scenarios. `healed` says whether the handler of `poison` works.
pub(super) fn bot(bot: BotBuilder, healed: &Arc<AtomicBool>) -> BotBuilder {
    let order = flow("order")
        .ask("what", "what?", |order: &mut Order, answer| {
            order.what = answer.text().to_owned();
            Ok(())
        })
        .say(|order: &Order| format!("{}, thank you", order.what))
        .persistent();
    let healed = Arc::clone(healed);
    bot.when("busy", |c: Ctx| async move { say(&c, "busy").await })
        .when("two", |c: Ctx| async move {
            say(&c, "two: one").await?;
            say(&c, "two: two").await
        })
        .when("long", |c: Ctx| async move { say(&c, LONG).await })
        .when("order", |c: Ctx| async move { c.enter("order") })
        .when("count", |c: Ctx| async move {
            let count = c.user().increment("count", 1).await?;
            say(&c, &format!("count {count}")).await
        })
        .when("refuse", |c: Ctx| async move { say(&c, REFUSED).await })
        .when("lose", |c: Ctx| async move { say(&c, "lost").await })
        .when("poison", move |c: Ctx| {
            let healed = healed.load(Ordering::Relaxed);
            async move {
                if !healed {
                    return Err("not mended yet".into());
                }
                say(&c, "healed").await
            }
        })
        .when("later", |c: Ctx| async move { remind(&c, "later", true).await })
        .when("later again", |c: Ctx| async move { remind(&c, "later again", false).await })
        .task("reminder", Schedule::on_demand(), |task: TaskCtx| async move {
            match task.payload::<bool>()? {
                true => told(task.send("ben", "reminder").await),
                false => Ok(()),
            }
        })
        .flow(order)
}

/// Schedules the one reminder there is. Only the first has something to say: a second one that comes before the first has
/// run changes nothing.
async fn remind(c: &Ctx, text: &str, tells: bool) -> Result {
    c.tasks().after(Duration::from_secs(10), "reminder", "ben", &tells).await?;
    say(c, text).await
}

/// Replies. What is left to the background, or given up, needs no further care of the handler.
async fn say(c: &Ctx, text: &str) -> Result {
    told(c.reply(text).await)
}

fn told(result: Result<botmesh::Sent, SendError>) -> Result {
    match result {
        Ok(_) | Err(SendError::Deferred { .. } | SendError::Dead { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
