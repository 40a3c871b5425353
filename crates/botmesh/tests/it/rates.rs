//! A channel takes so many messages in a time, and the bot keeps to that.

use std::time::Duration;

use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::{Capabilities, Rate, Resolve};
use botmesh::prelude::*;
use botmesh_testing::{MockProvider, SendFault};

use crate::support::{Life, Stage};

fn stage(rate: Option<Rate>, chat_rate: Option<Rate>) -> Stage {
    let mut stage = Stage::new(Resolve::Never);
    let mut capabilities = Capabilities::default();
    (capabilities.rate, capabilities.chat_rate) = (rate, chat_rate);
    stage.channel = MockProvider::with_capabilities(capabilities);
    stage
}

fn echo(bot: botmesh::BotBuilder) -> botmesh::BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn write(life: &Life, chat: &str, texts: &[&str]) {
    for text in texts {
        assert!(life.deliver(Inbound::text(format!("{chat}-{text}"), chat, *text)).await);
    }
}

fn too_often(wait: u64) -> ChannelError {
    ChannelError::new(ErrorClass::RateLimited, Phase::Answered, "too many").with_retry_after(seconds(wait))
}

/// Lets time pass as a clock does.
async fn pass(stage: &Stage, seconds: u64) {
    for _ in 0..10 * seconds {
        stage.clock.advance(Duration::from_millis(100)).await;
    }
}

/// Every attempt that was charged.
async fn attempts(life: &Life) -> Vec<u32> {
    let journal = life.bot.durability().expect("a durable bot");
    let mut sent = journal.outbox().pages(botmesh::core::journal::OutboxState::Sent);
    let mut attempts = Vec::new();
    while let Some(page) = sent.next().await.expect("a page") {
        attempts.extend(page.records.iter().map(|stored| stored.record.attempts));
    }
    attempts
}

#[tokio::test]
async fn a_chat_gets_no_more_than_the_channel_takes_and_no_other_chat_waits() {
    let stage = stage(None, Some(Rate::new(2, seconds(60))));
    let life = stage.start(echo);
    write(&life, "ana", &["1", "2", "3", "4", "5"]).await;
    life.until("two replies", || stage.channel.texts_to("ana").len() == 2).await;
    write(&life, "ben", &["hi"]).await;
    life.until("a reply to ben", || stage.channel.texts_to("ben") == ["hi"]).await;
    for expected in [2, 4, 5] {
        stage.clock.advance(seconds(40)).await;
        assert_eq!(stage.channel.texts_to("ana").len(), expected);
        pass(&stage, 22).await;
    }
    assert_eq!(stage.channel.texts_to("ana"), ["1", "2", "3", "4", "5"]);
    life.settled().await;
    assert_eq!(attempts(&life).await, [1; 6]);
    assert_eq!((stage.channel.sent().len(), life.bot.metrics().outbox_retried), (6, 0));
    life.stop().await;
}

#[tokio::test]
async fn all_chats_together_get_no_more_than_the_channel_takes() {
    let stage = stage(Some(Rate::new(3, seconds(60))), None);
    let life = stage.start(echo);
    for chat in 0..10 {
        write(&life, &format!("chat{chat}"), &["hi"]).await;
    }
    for expected in [3, 6, 9, 10] {
        stage.clock.advance(seconds(40)).await;
        assert_eq!(stage.channel.sent().len(), expected);
        pass(&stage, 22).await;
    }
    life.settled().await;
    assert_eq!(attempts(&life).await, [1; 10]);
    life.stop().await;
}

#[tokio::test]
async fn a_channel_that_was_called_too_often_is_left_alone_as_long_as_it_says_and_no_attempt_counts() {
    let stage = stage(None, None);
    let life = stage.start(echo);
    for _ in 0..20 {
        stage.channel.fail_next(too_often(100));
    }
    write(&life, "ana", &["1", "2"]).await;
    life.until("a call", || stage.channel.sent().len() == 1).await;
    for round in 1..20 {
        stage.clock.advance(seconds(98)).await;
        assert_eq!(stage.channel.sent().len(), round, "it waits");
        life.until("another call", || stage.channel.sent().len() == round + 1).await;
    }
    pass(&stage, 122).await;
    life.until("both", || stage.channel.texts_to("ana") == ["1", "2"]).await;
    life.settled().await;
    assert_eq!(attempts(&life).await, [1, 1]);
    assert_eq!(life.bot.metrics().outbox_dead, 0);
    life.stop().await;
}

#[tokio::test]
async fn a_limit_of_one_chat_holds_no_other_back_and_one_of_all_chats_does() {
    for (error, others) in [(too_often(60), 1), (too_often(60).for_all_chats(), 0)] {
        let stage = stage(None, None);
        let life = stage.start(echo);
        stage.channel.fault_next(SendFault::Fail(error));
        write(&life, "ana", &["1"]).await;
        life.until("a call", || stage.channel.sent().len() == 1).await;
        write(&life, "ben", &["hi"]).await;
        if others == 1 {
            life.until("a reply to ben", || stage.channel.texts_to("ben") == ["hi"]).await;
        }
        stage.clock.advance(seconds(55)).await;
        assert_eq!(stage.channel.sent().len(), 1 + others);
        pass(&stage, 20).await;
        let told = || stage.channel.texts_to("ana").len() + stage.channel.texts_to("ben").len();
        life.until("both", || told() == 2).await;
        life.stop().await;
    }
}

#[tokio::test]
async fn what_is_sent_while_the_channel_refuses_the_credentials_waits_for_new_ones_and_it_is_told_once() {
    let stage = stage(None, None);
    let mut life = stage.start(echo);
    for _ in 0..10 {
        stage.channel.fail_next(ChannelError::new(
            ErrorClass::Auth,
            Phase::Answered,
            "the token has expired",
        ));
    }
    write(&life, "ana", &["1", "2"]).await;
    write(&life, "ben", &["3"]).await;
    pass(&stage, 300).await;
    let calls = stage.channel.sent().len();
    assert!(
        (2..10).contains(&calls),
        "{calls} calls in five minutes: the channel is left alone for one at a time"
    );
    assert_eq!((stage.channel.delivered().len(), life.bot.metrics().outbox_dead), (0, 0));
    let told = std::iter::from_fn(|| life.events.try_recv().ok()).map(|event| event.to_string());
    let told: Vec<String> = told.filter(|event| event.contains("the token has expired")).collect();
    assert!(told.len() == 1 && told[0].contains("credentials"), "{told:?}");
    pass(&stage, 900).await;
    assert_eq!(
        (stage.channel.texts_to("ana"), stage.channel.texts_to("ben")),
        (vec!["1".into(), "2".into()], vec!["3".into()])
    );
    life.settled().await;
    assert_eq!(attempts(&life).await, [1; 3]);
    assert!(life.event_names().contains(&"recovered"));
    life.stop().await;
}

#[tokio::test]
async fn without_an_outbox_a_message_waits_for_its_place() {
    let stage = stage(None, Some(Rate::new(1, seconds(50))));
    let life = stage.start_plain(echo);
    write(&life, "ana", &["1", "2"]).await;
    life.until("one reply", || stage.channel.texts_to("ana") == ["1"]).await;
    stage.clock.advance(seconds(40)).await;
    assert_eq!(stage.channel.sent().len(), 1);
    pass(&stage, 15).await;
    assert_eq!(stage.channel.texts_to("ana"), ["1", "2"]);
    life.stop().await;
}
