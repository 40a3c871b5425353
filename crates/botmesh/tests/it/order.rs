//! One message of a chat at a time, chats side by side, and a stop that loses nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use botmesh::core::inbound::{Inbound, Participant};
use botmesh::core::journal::InboxState;
use botmesh::core::provider::{AdmitError, Resolve};
use botmesh::core::spawn::Spawner;
use botmesh::prelude::*;
use botmesh::{BotBuilder, InboxConfig, OnHandlerError, TurnsConfig};
use botmesh_testing::Fault;
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
    let journal = life.bot.durability().expect("a durable bot");
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
    let journal = life.bot.durability().expect("a durable bot");
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

#[tokio::test]
async fn one_slow_member_of_a_group_does_not_hold_back_the_others() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let life = stage.start(slow(&gate));
    for (n, (who, text)) in
        [("ana", "slow"), ("bob", "b"), ("ana", "2"), ("bob", "c")].into_iter().enumerate()
    {
        let mut inbound = Inbound::text(format!("m{n}"), "group", text);
        inbound.group = true;
        inbound.sender = Some(Participant::new(who));
        assert!(life.deliver(inbound).await);
    }
    life.until("bob's replies", || stage.channel.texts_to("group").len() == 2).await;
    gate.add_permits(1);
    life.until("ana's replies", || stage.channel.texts_to("group").len() == 4).await;
    assert_eq!(stage.channel.texts_to("group"), ["b", "c", "slow", "2"]);
    life.stop().await;
}

#[tokio::test]
async fn more_unfinished_messages_than_there_is_room_for_are_all_answered_in_order() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(slow(&Arc::new(Semaphore::new(0))));
    let texts: Vec<String> =
        std::iter::once("slow".to_owned()).chain((1..300).map(|n| n.to_string())).collect();
    for text in &texts {
        assert!(life.deliver(Inbound::text(format!("m{text}"), "ana", text)).await);
    }
    life.kill().await;
    let limits = TurnsConfig { max_backlog: 2, max_concurrent: 1, ..TurnsConfig::default() };
    let life = stage.start(|bot| slow(&Arc::new(Semaphore::new(1)))(bot).turns(limits));
    assert!(life.deliver(Inbound::text("last", "ana", "last")).await);
    life.until("all replies", || stage.channel.texts_to("ana").len() == 301).await;
    let replies = stage.channel.texts_to("ana");
    assert_eq!(replies[..300], texts);
    assert_eq!(replies[300], "last");
    life.stop().await;
}

#[tokio::test]
async fn many_chats_share_one_place_to_run() {
    let stage = Stage::new(Resolve::Never);
    let limits = TurnsConfig { max_concurrent: 1, ..TurnsConfig::default() };
    let life = stage.start(|bot| slow(&Arc::new(Semaphore::new(0)))(bot).turns(limits));
    for n in 0..40 {
        assert!(life.deliver(Inbound::text(format!("m{n}"), format!("chat-{}", n % 20), "hi")).await);
    }
    life.until("all replies", || stage.channel.delivered().len() == 40).await;
    life.settled().await;
    life.stop().await;
}

#[tokio::test]
async fn a_channel_that_waits_for_room_is_told_of_the_stop() {
    let stage = Stage::new(Resolve::Never);
    let limits = TurnsConfig { max_backlog: 1, ..TurnsConfig::default() };
    let life = stage.start(|bot| slow(&Arc::new(Semaphore::new(0)))(bot).turns(limits));
    assert!(life.deliver(Inbound::text("m1", "ana", "slow")).await);
    let waits = stage.channel.deliver(Inbound::text("m2", "bob", "b"));
    let (admitted, ()) = tokio::join!(waits, life.stop());
    assert!(matches!(admitted, Err(AdmitError::Stopping)), "{admitted:?}");
    let life = stage.start(slow(&Arc::new(Semaphore::new(1))));
    assert!(life.deliver(Inbound::text("m2", "bob", "b")).await);
    life.until("both replies", || stage.channel.delivered().len() == 2).await;
    life.stop().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_message_that_is_to_be_tried_later() {
    let stage = Stage::new(Resolve::Never);
    let inbox = InboxConfig { on_handler_error: OnHandlerError::Retry, ..InboxConfig::default() };
    let durability = || Durability::default().with_instance_id("bot").with_inbox(inbox.clone());
    let life = stage.start_with(durability(), |bot| {
        bot.otherwise(|_: Ctx| async { Result::<()>::Err("not yet".into()) })
    });
    for n in 1..=2 {
        assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", n.to_string())).await);
    }
    stage.clock.advance(Duration::from_millis(10)).await;
    life.bot.stop();
    stage.clock.advance(Duration::from_millis(10)).await;
    assert!(life.ended.get().is_some(), "it waits");
    let journal = life.bot.durability().expect("a durable bot");
    life.stop().await;
    let queued = journal.inbox().list(InboxState::Queued, None, 10).await.expect("a listing").records;
    assert_eq!(queued.iter().map(|stored| stored.record.attempts).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(queued[0].record.error.as_deref(), Some("not yet"));
    let life = stage.start_with(durability(), slow(&Arc::new(Semaphore::new(0))));
    life.until("both replies", || stage.channel.texts_to("ana") == ["1", "2"]).await;
    life.stop().await;
}

#[tokio::test]
async fn what_a_person_does_in_two_chats_at_once_is_counted_in_both() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&gate);
    let life = stage.start(|bot| {
        bot.otherwise(move |c: Ctx| {
            let gate = Arc::clone(&waits);
            async move {
                let before: i64 = c.user().get("times").await?.unwrap_or(0);
                drop(gate.acquire().await);
                c.user().increment("times", 1).await?;
                let times = c.user().increment("times", 1).await?;
                c.reply(format!("{before} {times}")).await?;
                Result::<()>::Ok(())
            }
        })
    });
    for (n, chat) in ["ana", "group-1", "group-2"].into_iter().enumerate() {
        let mut inbound = Inbound::text(format!("m{n}"), chat, "hi");
        inbound.group = chat != "ana";
        inbound.sender = Some(Participant::new("ana"));
        assert!(life.deliver(inbound).await);
    }
    stage.clock.advance(Duration::ZERO).await;
    gate.add_permits(1);
    life.until("all replies", || stage.channel.delivered().len() == 3).await;
    let mut replies: Vec<String> =
        stage.channel.delivered().iter().map(|sent| sent.text().to_owned()).collect();
    replies.sort();
    assert!(replies[0].starts_with("0 ") && replies[2] == "0 6", "{replies:?}");
    life.stop().await;
}

#[tokio::test]
async fn one_event_delivered_many_times_at_once_is_handled_once() {
    for durable in [true, false] {
        let stage = Stage::new(Resolve::Never);
        let build = slow(&Arc::new(Semaphore::new(0)));
        let life = if durable { stage.start(build) } else { stage.start_plain(build) };
        let deliveries = (0..10).map(|_| stage.channel.deliver(Inbound::text("m1", "ana", "hi")));
        let admitted = futures_util::future::join_all(deliveries).await;
        let fresh = admitted.iter().filter(|admitted| admitted.as_ref().is_ok_and(|a| !a.duplicate)).count();
        assert_eq!((fresh, admitted.iter().all(Result::is_ok)), (1, true));
        life.settled().await;
        assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
        assert_eq!(life.bot.metrics().inbound_duplicates, 9);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_handler_may_stop_the_bot_and_still_answers() {
    let stage = Stage::new(Resolve::Never);
    let bot = Arc::new(std::sync::OnceLock::<Bot>::new());
    let stops = Arc::clone(&bot);
    let life = stage.start(move |builder| {
        builder.otherwise(move |c: Ctx| {
            stops.get().expect("a bot").stop();
            async move { c.reply("good night").await }
        })
    });
    assert!(bot.set(life.bot.clone()).is_ok());
    assert_eq!(life.say("m1", "sleep", 1).await, ["good night"]);
    life.until("the end of the bot", || life.ended.get().is_some()).await;
    assert_eq!(life.ended.get(), Some(&Ok(())));
    life.stop().await;
}

#[tokio::test]
async fn an_attempt_begins_after_the_sends_of_the_one_before_are_durable() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let inbox = InboxConfig { on_handler_error: OnHandlerError::Retry, ..InboxConfig::default() };
    let durability = Durability::default().with_instance_id("bot").with_inbox(inbox);
    let life = stage.start_with(durability, move |bot| {
        bot.otherwise(move |c: Ctx| {
            let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                c.reply("one").await?;
                if first {
                    return Err("broken once".into());
                }
                c.reply("two").await?;
                Result::<()>::Ok(())
            }
        })
    });
    // The session, the message, the send; then that it was sent.
    life.journal.fail_commit(4, Fault::Hang);
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.journal.wait_for_hanging(1).await;
    stage.clock.advance(Duration::from_secs(5)).await;
    life.journal.release();
    life.until("both replies", || stage.channel.texts_to("ana").len() == 2).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["one", "two"]);
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    life.stop().await;
}

#[tokio::test]
async fn a_message_that_never_began_before_the_stop_costs_no_attempt() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await }));
    life.say("m0", "hi", 1).await;
    life.settled().await;
    life.journal.fail_commit(life.journal.commits() + 1, Fault::HangAfter);
    let channel = stage.channel.clone();
    let delivery = async move { drop(channel.deliver(Inbound::text("m1", "ana", "late")).await) };
    life.spawner.spawn("delivery", Box::pin(delivery));
    stage.clock.advance(Duration::from_millis(10)).await;
    life.bot.stop();
    stage.clock.advance(Duration::from_millis(10)).await;
    life.journal.release();
    life.until("the end of the bot", || life.spawner.running().is_empty()).await;
    let journals = life.bot.durability().expect("a durable bot");
    let queued = journals.inbox().list(InboxState::Queued, None, 9).await.expect("a listing").records;
    let attempts: Vec<_> = queued.iter().map(|stored| stored.record.attempts).collect();
    assert_eq!(attempts, [0]);
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await }));
    life.until("the reply", || stage.channel.texts_to("ana") == ["hi", "late"]).await;
    life.stop().await;
}
