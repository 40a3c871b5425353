//! Texts in parts at the worst moments: two at once, halves that nobody finishes.

use std::time::Duration;

use botmesh::core::journal::OutboxState;
use botmesh::core::provider::{Capabilities, Resolve, TextLimit, TextUnit};
use botmesh::core::spawn::Spawner;
use botmesh::prelude::*;
use botmesh::{BotBuilder, OutboxConfig};
use botmesh_testing::{Fault, MockProvider};

use crate::support::Stage;

const LONG: &str = "part one. part two. part 3.";
const PARTS: [&str; 3] = ["part one.", "part two.", "part 3."];

fn stage(max: usize) -> Stage {
    let mut stage = Stage::new(Resolve::Never);
    stage.channel = channel(max);
    stage
}

fn channel(max: usize) -> MockProvider {
    let mut capabilities = Capabilities::default();
    capabilities.text_limit = Some(TextLimit { max, unit: TextUnit::Utf16 });
    MockProvider::with_capabilities(capabilities)
}

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

#[tokio::test]
async fn a_text_that_is_enqueued_twice_at_once_goes_out_once_whoever_journals_which_part() {
    for hung in [2, 3] {
        let stage = stage(10);
        let life = stage.start(echo);
        life.say("m0", "ready", 1).await;
        life.settled().await;
        let next = life.journal.commits() + 1;
        // Both find nothing journaled; then one journals the later parts, and the other is the first with the first one.
        for commit in [next, next + 1, next + hung] {
            life.journal.fail_commit(commit, Fault::Hang);
        }
        let enqueue = || {
            let bot = life.bot.clone();
            async move { bot.enqueue("k", "ana", LONG).await.expect("a journaled send") }
        };
        let orchestrate = async {
            life.journal.wait_for_hanging(2).await;
            life.journal.release();
            life.until("the third", || life.journal.hanging() == 1).await;
            stage.clock.advance(Duration::from_millis(500)).await;
            life.journal.release();
        };
        let (one, other, ()) = tokio::join!(enqueue(), enqueue(), orchestrate);
        assert_ne!(one.known, other.known);
        life.until("the text", || stage.channel.texts_to("ana").len() == 4).await;
        assert_eq!(stage.channel.texts_to("ana")[1..], PARTS, "{}", stage.channel.transcript());
        assert_eq!(life.say("m1", "there?", 1).await, ["there?"]);
        life.stop().await;
    }
}

#[tokio::test]
async fn many_parts_that_a_crash_left_without_a_first_one_hold_back_nothing() {
    let stage = stage(1);
    let durability = || Durability::default().with_instance_id("bot").with_dead_retention(Duration::ZERO);
    let life = stage.start_with(durability(), echo);
    life.say("m0", "1", 1).await;
    life.settled().await;
    let next = life.journal.commits() + 1;
    life.journal.fail_commit(next, Fault::CrashAfter);
    let (bot, spawner) = (life.bot.clone(), life.spawner.clone());
    let enqueue = async move { drop(bot.enqueue("k", "ana", "x".repeat(250)).await) };
    spawner.spawn("enqueue", Box::pin(enqueue));
    life.until("the crash", || life.journal.crashed()).await;
    life.kill().await;
    let life = stage.start_with(durability(), echo);
    life.started().await;
    let reads = life.journal.reads();
    stage.clock.advance(Duration::from_secs(5)).await;
    assert!(life.journal.reads() - reads < 500, "{} reads in 5 s", life.journal.reads() - reads);
    assert_eq!(life.say("m1", "2", 1).await, ["2"]);
    life.stop().await;
}

#[tokio::test]
async fn a_part_that_is_over_the_limit_now_is_cut_again() {
    let mut stage = stage(10);
    let outbox = OutboxConfig { inline_max: Duration::ZERO, ..OutboxConfig::default() };
    let durability = || Durability::default().with_instance_id("bot").with_outbox(outbox.clone());
    let life = stage.start_with(durability(), echo);
    life.say("m0", "ready", 1).await;
    stage.fail_text("part two.", usize::MAX);
    life.bot.enqueue("k", "ana", LONG).await.expect("a journaled send");
    life.until("the first part", || stage.channel.texts_to("ana").len() == 2).await;
    life.kill().await;
    stage.channel = channel(5);
    let life = stage.start_with(durability(), echo);
    life.until("all", || stage.channel.texts_to("ana").len() >= 4).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["part", "two.", "part", "3."]);
    let journals = life.bot.durability().expect("a durable bot");
    for (key, previous) in [("k#2", "k"), ("k#2#2", "k#2"), ("k#3", "k#2#2"), ("k#3#2", "k#3")] {
        let record = journals.outbox().get(&key.into()).await.expect("a read").expect(key).record;
        assert_eq!(record.state, OutboxState::Sent);
        assert_eq!(record.previous_part().map(|key| key.as_str()), Some(previous), "{key}");
    }
    life.stop().await;
}
