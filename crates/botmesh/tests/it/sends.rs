//! Retries, deferral, dead letters, and what a replay sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use botmesh::core::content::ContentBody;
use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::OutboxState;
use botmesh::core::provider::{AdmitError, Resolve};
use botmesh::core::time::Clock;
use botmesh::prelude::*;
use botmesh::{BotBuilder, OnAmbiguous, OnDiverged, OutboxConfig};
use botmesh_testing::SendFault;

use crate::support::{Life, Stage};

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

fn failure(class: ErrorClass) -> ChannelError {
    ChannelError::new(class, Phase::Answered, "no")
}

async fn in_outbox(life: &Life, state: OutboxState) -> Vec<botmesh::core::journal::OutboxRecord> {
    let journal = life.bot.durability().expect("a durable bot");
    let page = journal.outbox().list(state, None, 100).await.expect("a listing");
    page.records.into_iter().map(|stored| stored.record).collect()
}

#[tokio::test]
async fn a_failed_send_is_tried_again_until_it_arrives() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    for _ in 0..3 {
        stage.channel.fail_next(failure(ErrorClass::Transient));
    }
    assert_eq!(life.say("m1", "hi", 1).await, ["hi"]);
    assert_eq!(stage.channel.sent().len(), 4);
    life.stop().await;
}

#[tokio::test]
async fn a_rate_limit_is_never_called_earlier_than_it_says() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    stage.channel.fail_next(failure(ErrorClass::RateLimited).with_retry_after(Duration::from_secs(10)));
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    stage.channel.wait_for_sends(1).await;
    stage.clock.advance(Duration::from_millis(9_900)).await;
    assert_eq!(stage.channel.sent().len(), 1);
    life.until("the retry", || stage.channel.texts_to("ana").len() == 1).await;
    life.stop().await;
}

#[tokio::test]
async fn a_channel_that_asks_to_wait_for_ever_is_asked_again_a_day_later() {
    const HOUR: Duration = Duration::from_secs(3600);
    let stage = Stage::new(Resolve::Never);
    // So that a day is little work.
    let mut rare = Durability::default().with_instance_id("bot");
    (rare.poll, rare.inbox.lease, rare.outbox.lease) = (HOUR / 6, 4 * HOUR, 4 * HOUR);
    let life = stage.start_with(rare, echo);
    let for_ever = failure(ErrorClass::RateLimited).with_retry_after(Duration::MAX);
    stage.channel.fail_next(for_ever.for_all_chats());
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    stage.channel.wait_for_sends(1).await;
    stage.clock.advance(23 * HOUR).await;
    assert_eq!(stage.channel.sent().len(), 1, "not within a day");
    // With jitter and a look at the outbox.
    stage.clock.advance(7 * HOUR).await;
    assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
    life.stop().await;
}

#[tokio::test]
async fn a_final_error_goes_to_the_dead_letters_at_once() {
    for error in [
        failure(ErrorClass::UnsupportedContent),
        failure(ErrorClass::PayloadTooLarge),
        failure(ErrorClass::OutsideSessionWindow),
        failure(ErrorClass::RecipientUnreachable),
        failure(ErrorClass::Transient).not_retryable(),
        failure(ErrorClass::RateLimited).with_retry_after(Duration::from_secs(1)).not_retryable(),
    ] {
        let stage = Stage::new(Resolve::Never);
        let mut life = stage.start(echo);
        stage.channel.fail_next(error);
        assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
        life.settled().await;
        stage.clock.advance(Duration::from_secs(600)).await;
        assert_eq!(stage.channel.sent().len(), 1);
        assert_eq!(in_outbox(&life, OutboxState::Dead).await.len(), 1);
        assert!(life.event_names().contains(&"durability:dead"));
        life.stop().await;
    }
}

#[tokio::test]
async fn a_send_that_fails_long_is_left_to_the_background_and_still_arrives() {
    let stage = Stage::new(Resolve::Never);
    let deferred = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&deferred);
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| {
            let seen = Arc::clone(&seen);
            async move {
                let result = c.reply("late").await;
                seen.store(matches!(result, Err(SendError::Deferred { .. })), Ordering::Relaxed);
            }
        })
    });
    for _ in 0..5 {
        stage.channel.fail_next(failure(ErrorClass::Transient));
    }
    assert_eq!(life.say("m1", "hi", 1).await, ["late"]);
    assert!(deferred.load(Ordering::Relaxed));
    assert_eq!(life.bot.metrics().outbox_deferred, 1);
    life.stop().await;
}

/// An error of a bot author's own.
#[derive(Debug)]
struct ShopError(SendError);

impl std::fmt::Display for ShopError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the shop is closed")
    }
}

impl std::error::Error for ShopError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test]
async fn a_handler_that_returns_a_deferred_send_is_told_apart() {
    for wrapped in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let mut life = stage.start(move |bot| {
            bot.otherwise(move |c: Ctx| async move {
                match c.reply("late").await {
                    Err(error) if wrapped => return Err(ShopError(error).into()),
                    sent => sent?,
                };
                c.reply("never").await?;
                Result::<()>::Ok(())
            })
        });
        stage.fail_text("late", 5);
        assert_eq!(life.say("m1", "hi", 1).await, ["late"]);
        life.settled().await;
        stage.clock.advance(Duration::from_secs(600)).await;
        assert_eq!(stage.channel.texts_to("ana"), ["late"]);
        let errors: Vec<String> = std::iter::from_fn(|| life.events.try_recv().ok())
            .filter(|event| event.name() == "error")
            .map(|event| event.to_string())
            .collect();
        let [error] = &errors[..] else { panic!("not one error: {errors:?}") };
        for part in ["what comes after it is not done", "`enqueue`", "m/ana/m1:0"] {
            assert!(error.contains(part), "{error}");
        }
        life.stop().await;
    }
}

#[tokio::test]
async fn a_place_that_is_none_is_refused_before_it_is_journaled() {
    for durable in [true, false] {
        let stage = Stage::new(Resolve::Never);
        let life = if durable { stage.start(echo) } else { stage.start_plain(echo) };
        life.say("m0", "hi", 1).await;
        for (latitude, longitude) in [(f64::NAN, 0.0), (0.0, f64::NEG_INFINITY)] {
            let nowhere = ContentBody::Location { latitude, longitude, name: None };
            let refused = life.bot.send("bob", nowhere.clone()).await.expect_err("a refusal");
            assert!(matches!(&refused, SendError::Channel(error) if error.detail.contains("no place at")));
            life.bot.enqueue("k", "bob", nowhere).await.expect_err("a refusal");
        }
        assert_eq!(life.bot.metrics().outbox_journaled, u64::from(durable));
        assert!(stage.channel.texts_to("bob").is_empty());
        life.stop().await;
    }
}

#[tokio::test]
async fn a_send_is_given_up_after_its_retries() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    stage.channel.fault_when(|_| Some(SendFault::Fail(failure(ErrorClass::Transient))));
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.until("six calls", || stage.channel.sent().len() == 6).await;
    life.settled().await;
    stage.clock.advance(Duration::from_secs(600)).await;
    assert_eq!(stage.channel.sent().len(), 6);
    assert_eq!(in_outbox(&life, OutboxState::Dead).await.len(), 1);
    life.stop().await;
}

#[tokio::test]
async fn a_lost_answer_follows_the_policy_in_a_living_process() {
    for (policy, sends, state) in
        [(OnAmbiguous::Skip, 1, OutboxState::Unknown), (OnAmbiguous::Resend, 2, OutboxState::Sent)]
    {
        let stage = Stage::new(Resolve::Never);
        let durability = Durability::default().with_instance_id("bot").with_on_ambiguous(policy);
        let mut life = stage.start_with(durability, echo);
        stage.channel.lose_answer_next();
        assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
        life.settled().await;
        assert_eq!(stage.channel.sent().len(), sends);
        assert_eq!(in_outbox(&life, state).await.len(), 1);
        assert!(life.event_names().contains(&"durability:ambiguous"));
        life.stop().await;
    }
}

#[tokio::test]
async fn a_lost_answer_is_looked_up_where_the_channel_can_tell() {
    let stage = Stage::new(Resolve::Lookup);
    let mut life = stage.start(echo);
    stage.channel.lose_answer_next();
    assert_eq!(life.say("m1", "hi", 1).await, ["hi"]);
    life.settled().await;
    assert_eq!(in_outbox(&life, OutboxState::Sent).await.len(), 1);
    assert!(!life.event_names().contains(&"durability:ambiguous"));
    life.stop().await;
}

#[tokio::test]
async fn only_a_channel_that_asks_sees_the_key() {
    for (resolve, sees) in [(Resolve::Never, false), (Resolve::Lookup, true)] {
        let stage = Stage::new(resolve);
        let life = stage.start(echo);
        life.say("m1", "hi", 1).await;
        assert_eq!(stage.channel.sent()[0].token.is_some(), sees);
        life.stop().await;
    }
}

#[tokio::test]
async fn an_explicit_key_is_one_message_whatever_it_says() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    life.bot.send_keyed("invoice:42", "bob", "first").await.expect("a send");
    let again = life.bot.send_keyed("invoice:42", "bob", "second").await.expect("an answer");
    assert!(again.deduped);
    assert_eq!(stage.channel.texts_to("bob"), ["first"]);
    life.stop().await;
}

#[tokio::test]
async fn enqueue_tells_where_a_known_key_stands() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    let first = life.bot.enqueue("reminder:1", "bob", "tomorrow at 9").await.expect("a journaled send");
    assert_eq!((first.known, first.state, first.sent), (false, OutboxState::Waiting, None));
    life.until("the reminder", || stage.channel.texts_to("bob").len() == 1).await;
    life.settled().await;
    let second = life.bot.enqueue("reminder:1", "bob", "tomorrow at 9").await.expect("an answer");
    assert_eq!((second.known, second.state), (true, OutboxState::Sent));
    assert!(second.sent.is_some_and(|sent| sent <= stage.clock.now()));
    assert_eq!(stage.channel.texts_to("bob"), ["tomorrow at 9"]);
    life.stop().await;
}

#[tokio::test]
async fn later_sends_of_a_chat_wait_while_an_earlier_one_is_retried() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    stage.channel.fail_next(failure(ErrorClass::Transient));
    let (bot, later) = (life.bot.clone(), life.bot.clone());
    let both = async { tokio::join!(bot.send("bob", "first"), later.send("bob", "second")) };
    let mut both = std::pin::pin!(both);
    loop {
        tokio::select! {
            biased;
            (first, second) = &mut both => { first.expect("sent"); second.expect("sent"); break }
            () = stage.clock.advance(Duration::from_millis(100)) => {}
        }
    }
    assert_eq!(stage.channel.texts_to("bob"), ["first", "second"]);
    life.stop().await;
}

#[tokio::test]
async fn a_replay_that_says_something_else_follows_the_policy() {
    for (policy, expected) in
        [(OnDiverged::Send, ["before", "after"].as_slice()), (OnDiverged::Skip, ["before"].as_slice())]
    {
        let stage = Stage::new(Resolve::Never);
        let durability = || {
            let outbox = OutboxConfig { on_diverged: policy, ..OutboxConfig::default() };
            Durability::default().with_instance_id("bot").with_outbox(outbox)
        };
        let life = stage.start_with(durability(), |bot| {
            bot.otherwise(|c: Ctx| async move {
                c.reply("before").await?;
                std::future::pending::<Result>().await
            })
        });
        life.say("m1", "hi", 1).await;
        life.settled_but_for_turns().await;
        life.kill().await;
        let life = stage
            .start_with(durability(), |bot| bot.otherwise(|c: Ctx| async move { c.reply("after").await }));
        life.settled().await;
        life.say("m2", "x", 1).await;
        assert_eq!(stage.channel.texts_to("ana")[..expected.len()], *expected);
        assert_eq!(stage.channel.texts_to("ana").len(), expected.len() + 1);
        assert_eq!(life.bot.metrics().outbox_diverged, 1);
        life.stop().await;
    }
}

#[tokio::test]
async fn named_replies_are_recognised_in_any_order_and_number() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| {
        bot.otherwise(|c: Ctx| async move {
            c.reply_named("weather", "sunny").await?;
            c.reply_named("news", "none").await?;
            std::future::pending::<Result>().await
        })
    });
    life.say("m1", "hi", 2).await;
    life.settled_but_for_turns().await;
    life.kill().await;
    let life = stage.start(|bot| {
        bot.otherwise(|c: Ctx| async move {
            c.reply("hello").await?;
            c.reply_named("news", "still none").await?;
            c.reply_named("0", "zero").await?;
            c.reply_named("weather", "rainy").await
        })
    });
    life.until("the replay", || stage.channel.texts_to("ana").len() == 4).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["sunny", "none", "hello", "zero"]);
    assert_eq!((life.bot.metrics().outbox_diverged, life.bot.metrics().outbox_deduped), (0, 2));
    life.stop().await;
}

/// Case B11.
#[tokio::test]
async fn an_error_of_any_length_is_kept_short() {
    for (class, state) in
        [(ErrorClass::Rejected, OutboxState::Dead), (ErrorClass::Transient, OutboxState::Waiting)]
    {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(echo);
        let detail = format!("bad\0\u{feff}{}", "ü".repeat(5 << 20));
        stage.channel.fail_next(ChannelError::new(class, Phase::Answered, detail));
        assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
        stage.channel.wait_for_sends(1).await;
        stage.clock.advance(Duration::from_millis(500)).await;
        let failed = in_outbox(&life, state).await;
        let note = failed[0].error.as_ref().expect("what the channel said");
        assert!(note.detail.starts_with("bad\0\u{feff}ü") && note.detail.len() < 1100);
        assert_eq!((failed[0].attempts, failed[0].due.is_some()), (1, state == OutboxState::Waiting));
        stage.clock.advance(Duration::from_secs(5)).await;
        assert_eq!(stage.channel.texts_to("ana").len(), usize::from(state == OutboxState::Waiting));
        life.stop().await;
    }
}

#[tokio::test]
async fn content_too_large_for_the_outbox_goes_around_it() {
    let stage = Stage::new(Resolve::Never);
    let after = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&after);
    let life = stage.start(|bot| {
        bot.otherwise(|c: Ctx| async move { c.reply("x".repeat(2 << 20)).await }).after_send(
            move |_, _, _| {
                seen.store(true, Ordering::Relaxed);
                async {}
            },
        )
    });
    life.say("m1", "hi", 1).await;
    life.settled().await;
    assert_eq!(life.bot.metrics().outbox_bypassed, 1);
    assert_eq!(life.bot.metrics().outbox_journaled, 0);
    assert!(after.load(Ordering::Relaxed), "no hook after the send");
    life.stop().await;
}

/// Case F04.
#[tokio::test]
async fn content_too_large_for_the_backend_goes_around_it_whatever_the_outbox_permits() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    let started = Arc::clone(&runs);
    let mut durability = Durability::default().with_instance_id("bot");
    durability.outbox.max_payload_bytes = 64 << 20;
    let life = stage.start_with(durability, |bot| {
        bot.otherwise(move |c: Ctx| {
            started.fetch_add(1, Ordering::Relaxed);
            async move { c.reply("x".repeat(17 << 20)).await }
        })
    });
    life.say("m1", "hi", 1).await;
    life.settled().await;
    assert_eq!((runs.load(Ordering::Relaxed), life.bot.metrics().outbox_bypassed), (1, 1));
    // An event that no journal takes is not asked for again.
    let error = stage.channel.deliver(Inbound::text("m2", "ana", "x".repeat(17 << 20))).await.unwrap_err();
    assert!(matches!(&error, AdmitError::Invalid(problem) if problem.contains("bytes")), "{error}");
    life.say("m3", "hi", 1).await;
    life.stop().await;
}

#[tokio::test]
async fn finished_records_are_purged_after_their_retention() {
    let stage = Stage::new(Resolve::Never);
    let durability = Durability::default().with_instance_id("bot").with_retention(Duration::from_secs(3600));
    let life = stage.start_with(durability, echo);
    life.say("m1", "hi", 1).await;
    life.settled().await;
    stage.clock.advance(Duration::from_secs(3000)).await;
    assert_eq!(in_outbox(&life, OutboxState::Sent).await.len(), 1);
    stage.clock.advance(Duration::from_secs(700)).await;
    assert!(in_outbox(&life, OutboxState::Sent).await.is_empty());
    life.stop().await;
}

#[tokio::test]
async fn an_enqueued_send_outlives_the_process() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    life.bot.enqueue("reminder:1", "bob", "tomorrow at 9").await.expect("a journaled send");
    life.kill().await;
    let life = stage.start(echo);
    life.until("the reminder", || stage.channel.texts_to("bob") == ["tomorrow at 9"]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_process_that_dies_while_it_sends_is_cleared_up_by_the_next() {
    for (resolve, policy, calls) in [
        (Resolve::Lookup, OnAmbiguous::Skip, 2),
        (Resolve::Never, OnAmbiguous::Resend, 2),
        (Resolve::Never, OnAmbiguous::Skip, 1),
        (Resolve::Dedupe { window: Duration::from_secs(60) }, OnAmbiguous::Skip, 2),
    ] {
        let stage = Stage::new(resolve);
        let durability = || Durability::default().with_instance_id("bot").with_on_ambiguous(policy);
        let life = stage.start_with(durability(), echo);
        stage.channel.hang_next();
        assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
        life.until("the call", || stage.channel.sent().len() == 1).await;
        life.kill().await;
        let mut life = stage.start_with(durability(), echo);
        life.until("a calm bot", || life.bot.metrics().inbound_replayed == 1).await;
        life.settled().await;
        stage.clock.advance(Duration::from_secs(10)).await;
        assert_eq!(stage.channel.sent().len(), calls, "{resolve:?} {policy:?}");
        assert_eq!(life.event_names().contains(&"durability:ambiguous"), resolve == Resolve::Never);
        assert!(in_outbox(&life, OutboxState::InFlight).await.is_empty());
        life.stop().await;
    }
}

#[tokio::test]
async fn a_key_means_a_new_message_after_its_retention() {
    let stage = Stage::new(Resolve::Never);
    let durability = Durability::default().with_instance_id("bot").with_retention(Duration::from_secs(60));
    let life = stage.start_with(durability, echo);
    life.say("m0", "hi", 1).await;
    for n in 1..=2 {
        let enqueued = life.bot.enqueue("daily", "bob", "good morning").await.expect("a journaled send");
        assert!(!enqueued.known);
        life.until("the send", || stage.channel.texts_to("bob").len() == n).await;
        stage.clock.advance(Duration::from_secs(100)).await;
    }
    assert_eq!(life.bot.metrics().outbox_deduped, 0);
    life.stop().await;
}

#[tokio::test]
async fn one_key_sent_from_many_places_at_once_goes_out_once() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    let sends = (0..10).map(|n| life.bot.send_keyed("invoice:7", "bob", format!("text {n}")));
    let sent = futures_util::future::join_all(sends).await;
    assert_eq!(sent.iter().filter(|sent| sent.as_ref().is_ok_and(|sent| !sent.deduped)).count(), 1);
    assert!(sent.iter().all(Result::is_ok));
    assert_eq!(stage.channel.texts_to("bob").len(), 1);
    assert_eq!(life.bot.metrics().outbox_diverged, 0);
    life.stop().await;
}

#[tokio::test]
async fn a_send_after_its_message_is_done_is_refused() {
    let stage = Stage::new(Resolve::Never);
    let kept = Arc::new(std::sync::Mutex::new(None));
    let keep = Arc::clone(&kept);
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| {
            *keep.lock().expect("no panic") = Some(c.clone());
            async move { c.reply("in time").await }
        })
    });
    life.say("m1", "hi", 1).await;
    life.settled().await;
    let ctx = kept.lock().expect("no panic").take().expect("the message");
    let late = ctx.reply("too late").await;
    assert!(matches!(late, Err(SendError::LeaseLost(_))), "{late:?}");
    assert_eq!(stage.channel.texts_to("ana"), ["in time"]);
    life.stop().await;
}
