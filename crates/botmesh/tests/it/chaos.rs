//! Many chats, many faults, many lives: at the end everybody has every reply once, in order.

use std::time::Duration;

use botmesh::core::backoff::Backoff;
use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, InboxConfig, OutboxConfig, TurnsConfig};
use botmesh_testing::{Fault, SendFault};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use crate::support::{Life, Stage};

#[derive(Default, Serialize, Deserialize)]
struct Order {
    what: String,
}

impl FlowState for Order {}

const TEXTS: [&str; 6] = ["count", "order", "tea", "yes", "count", "count"];

fn shop(bot: BotBuilder) -> BotBuilder {
    let order = flow("order")
        .ask("what", "what?", |order: &mut Order, answer| {
            order.what = answer.text().to_owned();
            Ok(())
        })
        .do_("reserve", |c| async move {
            let reserved = c.user().increment("reserved", 1).await?;
            c.say(format!("reserved {reserved}")).await?;
            Ok(Step::Next)
        })
        .ask("sure", |order: &Order| format!("{}, sure?", order.what), |_, _| Ok(()))
        .do_("save", |c| async move {
            c.user().increment("orders", 1).await?;
            Ok(Step::Next)
        })
        .say("ordered")
        .persistent();
    bot.when("order", |c: Ctx| async move { c.enter("order") })
        .when("count", |c: Ctx| async move {
            let times = c.user().increment("times", 1).await?;
            c.reply(format!("times {times}")).await?;
            let orders: i64 = c.user().get("orders").await?.unwrap_or(0);
            c.reply(format!("orders {orders}")).await?;
            Result::<()>::Ok(())
        })
        .otherwise(|c: Ctx| async move { c.reply("what?").await })
        .flow(order)
}

const REPLIES: [&str; 10] = [
    "times 1",
    "orders 0",
    "what?",
    "reserved 1",
    "tea, sure?",
    "ordered",
    "times 2",
    "orders 1",
    "times 3",
    "orders 1",
];

struct Dice(SeededEntropy);

impl Dice {
    fn below(&self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }
}

async fn deliver_all(life: &Life, chats: usize) {
    let deliveries = (0..chats).map(async |chat| {
        for (n, text) in TEXTS.iter().enumerate() {
            while !life.deliver(Inbound::text(format!("{chat}-{n}"), format!("chat-{chat}"), *text)).await {
                if life.journal.crashed() {
                    return;
                }
            }
        }
    });
    join_all(deliveries).await;
}

async fn run(seed: u64, resolve: Resolve) {
    const CHATS: usize = 4;
    let dice = Dice(SeededEntropy::new(seed));
    let stage = Stage::new(resolve);
    // What is given up or left to the background after long failures is not what is tested here.
    let inbox = || InboxConfig { max_attempts: 100, ..InboxConfig::default() };
    let outbox = || {
        let backoff = Backoff { cap: Duration::from_secs(2), ..Backoff::default() };
        OutboxConfig {
            retries: 100,
            inline_max: Duration::from_secs(600),
            backoff,
            ..OutboxConfig::default()
        }
    };
    let limits = TurnsConfig {
        max_backlog: 1 + usize::try_from(dice.below(30)).expect("a small number"),
        ..TurnsConfig::default()
    };
    for life_number in 0.. {
        let durability =
            Durability::default().with_instance_id("bot").with_inbox(inbox()).with_outbox(outbox());
        let life = stage.start_with(durability, |bot| shop(bot).turns(limits));
        let last = life_number > 5;
        if !last {
            for fault in [Fault::FailBefore, Fault::LoseAnswer, Fault::LoseAnswer] {
                life.journal.fail_commit(1 + dice.below(60), fault);
            }
            match dice.below(3) {
                0 => life.journal.fail_commit(2 + dice.below(60), Fault::CrashBefore),
                1 => life.journal.fail_commit(2 + dice.below(60), Fault::CrashAfter),
                _ => {
                    let write = 1 + dice.below(20);
                    match dice.below(2) {
                        0 => life.store.crash_after_write(write),
                        _ => life.store.crash_before_write(write),
                    }
                }
            }
            for _ in 0..dice.below(4) {
                stage.channel.fault_next(match dice.below(2) {
                    0 => SendFault::LoseAnswer,
                    _ => SendFault::Fail(ChannelError::new(ErrorClass::Transient, Phase::NotWritten, "no")),
                });
            }
        }
        deliver_all(&life, CHATS).await;
        life.settled().await;
        if life.journal.crashed() {
            life.kill().await;
        } else if last {
            stage.clock.advance(Duration::from_secs(300)).await;
            life.stop().await;
            break;
        } else {
            life.stop().await;
        }
    }
    for chat in 0..CHATS {
        let replies = stage.channel.texts_to(&format!("chat-{chat}"));
        assert_eq!(replies, REPLIES, "seed {seed}, chat {chat}\n{}", stage.channel.transcript());
    }
}

#[tokio::test]
async fn everybody_has_every_reply_once_and_in_order_whatever_fails() {
    for seed in 0..40 {
        run(seed, Resolve::Lookup).await;
    }
}

#[tokio::test]
async fn a_channel_that_knows_its_tokens_needs_no_lookup() {
    for seed in 1000..1020 {
        run(seed, Resolve::Dedupe { window: Duration::from_secs(3600) }).await;
    }
}
