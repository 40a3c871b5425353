//! One content to many chats: as fast as the channel takes it, once each, whatever happens meanwhile.

use std::collections::HashMap;
use std::time::Duration;

use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::{Capabilities, Rate, Resolve};
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use botmesh::{Broadcast, BroadcastProgress};
use botmesh_testing::{MockProvider, SendFault};

use crate::support::{Life, Stage};

const SECOND: Duration = Duration::from_secs(1);

fn stage(rate: Option<Rate>) -> Stage {
    // A process that died in a call asks the channel, so that what is sent once and twice is told apart.
    let mut stage = Stage::new(Resolve::Lookup);
    let mut capabilities = Capabilities::default();
    (capabilities.rate, capabilities.resolve) = (rate, Resolve::Lookup);
    stage.channel = MockProvider::with_capabilities(capabilities);
    stage
}

fn echo(bot: botmesh::BotBuilder) -> botmesh::BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

fn list(count: usize) -> Broadcast {
    Broadcast::new("news", (0..count).map(|number| format!("chat{number}")))
}

/// Lets time pass until nothing of the broadcast is to come.
async fn finish(stage: &Stage, life: &Life, chats: usize, seconds: usize) {
    for _ in 0..seconds {
        if stage.channel.delivered().len() >= chats {
            break;
        }
        stage.clock.advance(SECOND).await;
    }
    life.settled().await;
}

/// How many chats got how many messages.
fn received(stage: &Stage) -> HashMap<usize, usize> {
    let mut of_chat: HashMap<String, usize> = HashMap::new();
    for sent in stage.channel.delivered() {
        *of_chat.entry(sent.chat.to_string()).or_default() += 1;
    }
    let mut counts = HashMap::new();
    for count in of_chat.into_values() {
        *counts.entry(count).or_default() += 1;
    }
    counts
}

async fn progress(life: &Life) -> BroadcastProgress {
    life.bot.broadcast_progress("news").await.expect("a reading")
}

#[tokio::test]
async fn a_broadcast_to_ten_thousand_burns_no_retry_and_holds_no_reply_up() {
    let stage = stage(Some(Rate::new(500, SECOND)));
    let mut life = stage.start(echo);
    life.started().await;
    let begun = life.bot.broadcast(list(10_000), "news").await.expect("a broadcast");
    assert_eq!((begun.chats, begun.known), (10_000, 0));
    assert_eq!(begun.takes.as_secs(), 24, "at four fifths of the rate");
    for _ in 0..5 {
        stage.clock.advance(SECOND).await;
    }
    let sent = stage.channel.sent().len();
    assert!((1_000..=2_500).contains(&sent), "{sent} after 5 s");
    // Somebody whose turn would come last, and somebody who is on no list.
    assert!(life.deliver(Inbound::text("m1", "chat9999", "hi")).await);
    assert!(life.deliver(Inbound::text("m2", "ana", "hi")).await);
    life.until("both replies", || {
        stage.channel.texts_to("chat9999") == ["news", "hi"] && stage.channel.texts_to("ana") == ["hi"]
    })
    .await;
    finish(&stage, &life, 10_002, 60).await;
    assert_eq!(received(&stage), HashMap::from([(1, 10_000), (2, 1)]));
    assert_eq!(stage.channel.sent().len(), 10_002, "each send is one call");
    assert_eq!((life.bot.metrics().outbox_retried, life.bot.metrics().outbox_dead), (0, 0));
    let expected = (0, 10_000, 0, 0);
    let now = progress(&life).await;
    assert_eq!((now.waiting, now.sent, now.unknown, now.dead), expected);
    for _ in 0..12 {
        stage.clock.advance(SECOND).await;
    }
    let told = life.event_names();
    assert!(told.contains(&"broadcast:progress"), "{told:?}");
    assert_eq!(told.last(), Some(&"broadcast:done"), "{told:?}");
    life.stop().await;
}

#[tokio::test]
async fn a_broadcast_goes_on_where_a_kill_stopped_it_and_reaches_nobody_twice() {
    let stage = stage(Some(Rate::new(100, SECOND)));
    let life = stage.start(echo);
    life.started().await;
    life.bot.broadcast(list(1_000), "news").await.expect("a broadcast");
    let mut life = life;
    for kill in 1..=4 {
        for _ in 0..2 {
            stage.clock.advance(SECOND).await;
        }
        // Dies in the middle of a call that arrived.
        stage.channel.fault_next(SendFault::HangAnswer);
        stage.clock.advance(SECOND).await;
        let sent = stage.channel.sent().len();
        life.kill().await;
        stage.channel.release();
        assert!(sent > 100 * kill && sent < 1_000, "{sent} after {kill} kills");
        life = stage.start(echo);
        life.started().await;
    }
    finish(&stage, &life, 1_000, 200).await;
    assert_eq!(received(&stage), HashMap::from([(1, 1_000)]));
    // As a handler does that runs again.
    let again = life.bot.broadcast(list(1_000), "news").await.expect("the same broadcast");
    assert_eq!((again.chats, again.known), (1_000, 1_000));
    finish(&stage, &life, 1_001, 20).await;
    assert_eq!(stage.channel.delivered().len(), 1_000);
    life.stop().await;
}

#[tokio::test]
async fn a_list_that_was_journaled_in_part_is_completed_by_the_same_call() {
    let stage = stage(None);
    let life = stage.start(echo);
    life.started().await;
    life.bot.broadcast(list(30), "news").await.expect("a part of it");
    let whole = life.bot.broadcast(list(100), "news").await.expect("all of it");
    assert_eq!((whole.chats, whole.known), (100, 30));
    finish(&stage, &life, 100, 30).await;
    assert_eq!(received(&stage), HashMap::from([(1, 100)]));
    life.stop().await;
}

#[tokio::test]
async fn a_limit_of_the_channel_in_the_middle_costs_no_attempt_and_what_fails_is_counted() {
    let stage = stage(None);
    let life = stage.start(echo);
    life.started().await;
    let failure = |class| ChannelError::new(class, Phase::Answered, "no");
    stage.channel.fault_when(move |sent| {
        (sent.chat.as_str() == "chat7").then(|| SendFault::Fail(failure(ErrorClass::RecipientUnreachable)))
    });
    for _ in 0..8 {
        let limited = failure(ErrorClass::RateLimited).with_retry_after(5 * SECOND).for_all_chats();
        stage.channel.fault_next(SendFault::Fail(limited));
    }
    life.bot.broadcast(list(200), "news").await.expect("a broadcast");
    finish(&stage, &life, 199, 120).await;
    assert_eq!(received(&stage), HashMap::from([(1, 199)]));
    let now = progress(&life).await;
    assert_eq!((now.waiting, now.sent, now.dead), (0, 199, 1));
    assert_eq!(life.bot.metrics().outbox_dead, 1);
    life.stop().await;
}

#[tokio::test]
async fn long_content_goes_out_whole_and_in_order() {
    let mut stage = stage(None);
    let mut capabilities = Capabilities::default();
    capabilities.text_limit =
        Some(botmesh::core::provider::TextLimit { max: 10, unit: botmesh::core::provider::TextUnit::Utf16 });
    stage.channel = MockProvider::with_capabilities(capabilities);
    let life = stage.start(echo);
    life.started().await;
    life.bot.broadcast(list(20), "part one. part two. part 3.").await.expect("a broadcast");
    finish(&stage, &life, 60, 30).await;
    for chat in 0..20 {
        assert_eq!(stage.channel.texts_to(&format!("chat{chat}")), ["part one.", "part two.", "part 3."]);
    }
    assert_eq!(progress(&life).await.sent, 20);
    life.stop().await;
}

#[tokio::test]
async fn a_chat_that_moved_gets_a_broadcast_once_under_whichever_ids_and_before_its_answer() {
    let mut stage = stage(None);
    stage.channel = stage.channel.with_moves();
    let life = stage.start(echo);
    life.started().await;
    let to = async |name: &str, chats: &[&str]| {
        let list = Broadcast::new(name, chats.iter().copied()).with_rate(Rate::new(1, 60 * SECOND));
        let begun = life.bot.broadcast(list, name).await.expect("a broadcast");
        (begun.chats, begun.known)
    };
    assert_eq!(to("early", &["new"]).await, (1, 0));
    life.until("the first", || stage.channel.texts_to("new") == ["early"]).await;
    stage.channel.moves("old", "new", Timestamp::from_millis(1)).await.expect("recorded");
    for again in [["old"], ["new"]] {
        assert_eq!(to("early", &again).await, (1, 1), "{again:?} had it");
    }
    assert_eq!(to("news", &["ben", "new", "old"]).await, (3, 1));
    assert!(life.deliver(Inbound::text("m1", "new", "hi")).await);
    life.until("the answer", || stage.channel.texts_to("new") == ["early", "news", "hi"]).await;
    assert_eq!(to("more", &["ben", "new"]).await, (2, 0));
    assert!(life.deliver(Inbound::text("m2", "new", "ho")).await);
    finish(&stage, &life, 99, 180).await;
    assert_eq!(stage.channel.texts_to("new"), ["early", "news", "hi", "more", "ho"]);
    life.stop().await;
}

#[tokio::test]
async fn a_hook_leaves_out_whom_it_stops() {
    let stage = stage(None);
    let life = stage.start(|bot| {
        echo(bot).before_send(|chat, content| async move {
            match chat.as_str() {
                "chat3" => Err("opted out".to_owned()),
                _ => Ok(content),
            }
        })
    });
    life.started().await;
    let begun = life.bot.broadcast(list(10), "news").await.expect("a broadcast");
    assert_eq!((begun.chats, begun.known, begun.stopped), (10, 0, 1));
    finish(&stage, &life, 9, 30).await;
    assert_eq!(stage.channel.texts_to("chat3"), [""; 0]);
    assert_eq!(received(&stage), HashMap::from([(1, 9)]));
    life.stop().await;
}

#[tokio::test]
async fn a_list_that_cannot_be_kept_is_refused() {
    let stage = stage(None);
    let life = stage.start_plain(echo);
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    for (broadcast, reason) in [
        (list(1), "needs durability"),
        (Broadcast::new("", ["ana"]), "the name of a broadcast"),
        (Broadcast::new("a/b", ["ana"]), "the name of a broadcast"),
    ] {
        let refused = life.bot.broadcast(broadcast, "news").await.expect_err("a refusal");
        assert!(refused.to_string().contains(reason), "{refused}");
    }
    life.stop().await;
}
