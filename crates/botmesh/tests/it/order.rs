//! One message of a chat at a time, chats side by side, and a stop that loses nothing.

use std::sync::Arc;
use std::time::Duration;

use botmesh::core::inbound::Inbound;
use botmesh::core::journal::InboxState;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, TurnsConfig};
use tokio::sync::Semaphore;

use crate::support::Stage;

/// Echoes; `slow` waits for a permit first.
fn slow(gate: &Arc<Semaphore>) -> impl FnOnce(BotBuilder) -> BotBuilder + use<> {
    let gate = Arc::clone(gate);
    move |bot| {
        bot.otherwise(move |c: Ctx| {
            let gate = Arc::clone(&gate);
            async move {
                if c.text().starts_with("slow") {
                    gate.acquire().await?.forget();
                }
                c.reply(c.text()).await?;
                Result::<()>::Ok(())
            }
        })
    }
}

#[tokio::test]
async fn a_slow_message_holds_back_its_chat_and_no_other() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let life = stage.start(slow(&gate));
    for (n, (chat, text)) in
        [("ana", "slow"), ("ana", "2"), ("ana", "3"), ("bob", "b")].into_iter().enumerate()
    {
        assert!(life.deliver(Inbound::text(format!("m{n}"), chat, text)).await);
    }
    life.until("bob's reply", || stage.channel.texts_to("bob") == ["b"]).await;
    assert!(stage.channel.texts_to("ana").is_empty());
    gate.add_permits(1);
    life.until("ana's replies", || stage.channel.texts_to("ana").len() == 3).await;
    assert_eq!(stage.channel.texts_to("ana"), ["slow", "2", "3"]);
    life.stop().await;
}

#[tokio::test]
async fn messages_taken_over_side_by_side_keep_the_order_of_the_calls() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(slow(&Arc::new(Semaphore::new(0))));
    life.say("first", "0", 1).await;
    let texts: Vec<String> = (1..=50).map(|n| n.to_string()).collect();
    let deliveries =
        texts.iter().map(|text| stage.channel.deliver(Inbound::text(format!("m{text}"), "ana", text)));
    futures_util::future::join_all(deliveries).await;
    life.until("all replies", || stage.channel.texts_to("ana").len() == 51).await;
    assert_eq!(stage.channel.texts_to("ana")[1..], texts);
    life.stop().await;
}

#[tokio::test]
async fn a_full_backlog_makes_the_channel_wait() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let limits = TurnsConfig { max_backlog: 2, ..TurnsConfig::default() };
    let life = stage.start(|bot| slow(&gate)(bot).turns(limits));
    for n in 0..2 {
        assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", "slow")).await);
    }
    let mut third = std::pin::pin!(stage.channel.deliver(Inbound::text("m2", "bob", "b")));
    let waits = async {
        tokio::select! {
            biased;
            _ = &mut third => false,
            () = stage.clock.advance(Duration::from_secs(5)) => true,
        }
    };
    assert!(waits.await, "it was taken over without room");
    gate.add_permits(2);
    assert!(third.await.is_ok(), "not taken over though there is room");
    life.until("all replies", || stage.channel.delivered().len() == 3).await;
    life.stop().await;
}

#[tokio::test]
async fn a_stop_finishes_what_runs_and_leaves_the_rest_uncharged() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let life = stage.start(slow(&gate));
    for (n, text) in ["slow", "2", "3"].into_iter().enumerate() {
        assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", text)).await);
    }
    life.bot.stop();
    stage.clock.advance(Duration::from_secs(1)).await;
    gate.add_permits(1);
    let journal = life.bot.journal().expect("a durable bot");
    life.stop().await;
    assert_eq!(stage.channel.texts_to("ana"), ["slow"]);
    let queued = journal.inbox().list(InboxState::Queued, None, 10).await.expect("a listing").records;
    assert_eq!(queued.iter().map(|stored| stored.record.attempts).collect::<Vec<_>>(), [0, 0]);
    let life = stage.start(slow(&gate));
    life.until("the rest", || stage.channel.texts_to("ana").len() == 3).await;
    assert_eq!(stage.channel.texts_to("ana"), ["slow", "2", "3"]);
    life.stop().await;
}

#[tokio::test]
async fn a_handler_that_outlasts_the_stop_is_released_and_runs_again() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let life = stage.start(slow(&gate));
    assert!(life.deliver(Inbound::text("m1", "ana", "slow")).await);
    let journal = life.bot.journal().expect("a durable bot");
    life.stop().await;
    let queued = journal.inbox().list(InboxState::Queued, None, 10).await.expect("a listing").records;
    assert_eq!(queued.iter().map(|stored| stored.record.attempts).collect::<Vec<_>>(), [0]);
    gate.add_permits(1);
    let life = stage.start(slow(&gate));
    life.until("the reply", || stage.channel.texts_to("ana") == ["slow"]).await;
    life.stop().await;
}

#[tokio::test]
async fn without_durability_a_stop_finishes_everything() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let life = stage.start_plain(slow(&gate));
    for (n, text) in ["slow", "2", "3"].into_iter().enumerate() {
        assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", text)).await);
    }
    life.bot.stop();
    stage.clock.advance(Duration::from_secs(1)).await;
    gate.add_permits(1);
    life.stop().await;
    assert_eq!(stage.channel.texts_to("ana"), ["slow", "2", "3"]);
}
