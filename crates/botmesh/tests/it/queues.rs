//! The sends of a chat keep their order, whatever happens to one of them.

use std::time::Duration;

use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::OutboxState;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, OnAmbiguous};

use crate::support::{Life, Stage};

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

async fn enqueue(life: &Life, chat: &str, texts: &[&str]) {
    life.started().await;
    for text in texts {
        life.bot.enqueue(format!("key-{text}"), chat, *text).await.expect("a journaled send");
    }
}

fn calls(stage: &Stage) -> Vec<String> {
    stage.channel.sent().iter().map(|sent| sent.text().to_owned()).collect()
}

/// Case D01.
#[tokio::test]
async fn a_send_that_fails_in_the_background_goes_out_before_those_after_it() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    stage.fail_text("A", 2);
    enqueue(&life, "ana", &["A", "B", "C"]).await;
    life.until("all", || stage.channel.texts_to("ana").len() == 3).await;
    assert_eq!(calls(&stage), ["A", "A", "A", "B", "C"]);
    life.stop().await;
}

#[tokio::test]
async fn a_reply_waits_for_what_its_chat_was_to_get_before() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "ready", 1).await;
    stage.fail_text("A", 2);
    enqueue(&life, "ana", &["A"]).await;
    life.until("the first call", || stage.channel.sent().len() == 2).await;
    assert_eq!(life.say("m1", "hi", 2).await, ["A", "hi"]);
    life.settled().await;
    assert_eq!(stage.channel.sent().len(), 5);
    life.stop().await;
}

#[tokio::test]
async fn a_reply_that_was_deferred_is_not_overtaken_by_the_next() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    stage.fail_text("one", 5);
    assert!(life.deliver(Inbound::text("m1", "ana", "one")).await);
    life.until("the deferral", || life.bot.metrics().outbox_deferred == 1).await;
    assert_eq!(life.say("m2", "two", 2).await, ["one", "two"]);
    life.stop().await;
}

#[tokio::test]
async fn what_waited_at_the_end_of_a_process_goes_out_before_what_the_next_one_sends() {
    for policy in [OnAmbiguous::Skip, OnAmbiguous::Resend] {
        let stage = Stage::new(Resolve::Never);
        let durability = || Durability::default().with_instance_id("bot").with_on_ambiguous(policy);
        let life = stage.start_with(durability(), echo);
        life.say("m0", "ready", 1).await;
        stage.fail_text("A", usize::MAX);
        enqueue(&life, "ana", &["A", "B"]).await;
        life.until("a call", || stage.channel.sent().len() == 2).await;
        life.kill().await;
        stage.fail_text("A", 1);
        let life = stage.start_with(durability(), echo);
        assert_eq!(life.say("m1", "hi", 3).await, ["A", "B", "hi"]);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_call_cut_off_by_a_crash_is_settled_before_what_the_next_process_sends() {
    let stage = Stage::new(Resolve::Never);
    let durability = || Durability::default().with_instance_id("bot").with_on_ambiguous(OnAmbiguous::Resend);
    let life = stage.start_with(durability(), echo);
    life.say("m0", "ready", 1).await;
    stage.channel.hang_next();
    enqueue(&life, "ana", &["A", "B"]).await;
    life.until("the call", || stage.channel.sent().len() == 2).await;
    life.kill().await;
    let life = stage.start_with(durability(), echo);
    assert_eq!(life.say("m1", "hi", 3).await, ["A", "B", "hi"]);
    life.stop().await;
}

/// Case B03.
#[tokio::test]
async fn waiting_behind_another_send_costs_no_attempt() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    let wait = ChannelError::new(ErrorClass::RateLimited, Phase::Answered, "later");
    stage.channel.fail_next(wait.with_retry_after(Duration::from_secs(30)));
    enqueue(&life, "ana", &["A", "B"]).await;
    life.until("the first call", || stage.channel.sent().len() == 1).await;
    stage.fail_text("B", 5);
    life.until("both", || stage.channel.texts_to("ana") == ["A", "B"]).await;
    assert_eq!(stage.channel.sent().len(), 2 + 6);
    assert_eq!(life.bot.metrics().outbox_dead, 0);
    life.stop().await;
}

#[tokio::test]
async fn a_send_that_is_given_up_holds_back_nothing_any_more() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    stage.fail_text("A", usize::MAX);
    enqueue(&life, "ana", &["A", "B"]).await;
    life.until("the second", || stage.channel.texts_to("ana") == ["B"]).await;
    assert_eq!(life.bot.metrics().outbox_dead, 1);
    assert_eq!(life.say("m1", "hi", 1).await, ["hi"]);
    life.stop().await;
}

#[tokio::test]
async fn a_chat_that_is_held_back_costs_a_sweep_the_same_however_much_waits_in_it() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "ready", 1).await;
    let wait = ChannelError::new(ErrorClass::RateLimited, Phase::Answered, "in an hour");
    stage.channel.fail_next(wait.with_retry_after(Duration::from_secs(3600)));
    enqueue(&life, "bob", &["A", "B"]).await;
    let reads_in_ten_sweeps = async || {
        stage.clock.advance(Duration::from_secs(3)).await;
        let before = life.journal.reads();
        stage.clock.advance(Duration::from_secs(10)).await;
        life.journal.reads() - before
    };
    let few = reads_in_ten_sweeps().await;
    for n in 0..600 {
        life.bot.enqueue(format!("more-{n}"), "bob", format!("{n}")).await.expect("a journaled send");
    }
    assert_eq!(reads_in_ten_sweeps().await, few);
    assert_eq!(life.say("m1", "hi", 1).await, ["hi"], "another chat");
    stage.clock.advance(Duration::from_secs(3600 + 60)).await;
    life.until("all", || stage.channel.texts_to("bob").len() == 602).await;
    let expected = ["A", "B"].map(str::to_owned).into_iter().chain((0..600).map(|n| n.to_string()));
    assert_eq!(stage.channel.texts_to("bob"), expected.collect::<Vec<_>>());
    life.stop().await;
}

#[tokio::test]
async fn a_record_says_what_it_waits_for() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    let wait = ChannelError::new(ErrorClass::RateLimited, Phase::Answered, "later");
    stage.channel.fail_next(wait.with_retry_after(Duration::from_secs(30)));
    enqueue(&life, "ana", &["A", "B"]).await;
    life.until("the first call", || stage.channel.sent().len() == 1).await;
    life.settled().await;
    stage.clock.advance(Duration::from_secs(5)).await;
    let journal = life.bot.durability().expect("a durable bot");
    let outbox = journal.outbox();
    let waiting = outbox.list_of(&"ana".into(), OutboxState::Waiting, None, 10).await.expect("a listing");
    let behind: Vec<_> = waiting.records.iter().map(|stored| stored.record.behind.clone()).collect();
    assert_eq!(behind, [None, Some("key-A".into())]);
    life.stop().await;
}

#[tokio::test]
async fn what_waited_behind_a_send_that_was_removed_waits_no_longer() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    let wait = ChannelError::new(ErrorClass::Transient, Phase::Answered, "in an hour");
    stage.channel.fail_next(wait.with_retry_after(Duration::from_secs(3600)));
    enqueue(&life, "ana", &["A", "B"]).await;
    life.until("the first call", || stage.channel.sent().len() == 1).await;
    stage.clock.advance(Duration::from_secs(5)).await;
    assert!(life.journals().discard_send("key-A").await.expect("a decision").applied().is_some());
    assert_eq!(life.say("m1", "hi", 2).await, ["B", "hi"]);
    life.stop().await;
}
