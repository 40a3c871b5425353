//! What went wrong for others who do this job. Each test names its case.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::id::ChatId;
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::OutboxState;
use botmesh::core::provider::{Capabilities, Resolve};
use botmesh::core::time::Clock;
use botmesh::core::webhook;
use botmesh::prelude::*;
use botmesh::{BotBuilder, BotEvent, InboxConfig, TurnsConfig};
use botmesh_testing::{MockProvider, SendFault, SendOutcome};
use serde::Deserialize;
use tokio::sync::Notify;

use crate::support::Stage;

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

/// Case B05. A thousand sends that a channel puts off at once are not repeated at once.
#[tokio::test]
async fn sends_that_were_put_off_together_come_back_apart_and_never_early() {
    const SENDS: usize = 1000;
    const WAIT: Duration = Duration::from_secs(60);
    /// As much as a sweep takes up at a time.
    const PAGE: usize = 200;
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    let calls: Arc<Mutex<Vec<(ChatId, Duration)>>> = Arc::default();
    let (noted, clock) = (Arc::clone(&calls), stage.clock.clone());
    stage.channel.fault_when(move |sent| {
        noted.lock().expect("no panic").push((sent.chat.clone(), clock.monotonic()));
        let error = ChannelError::new(ErrorClass::RateLimited, Phase::Answered, "slow down");
        (sent.attempt == 1).then(|| SendFault::Fail(error.with_retry_after(WAIT)))
    });
    let sends = (0..SENDS).map(|n| life.bot.enqueue(format!("k{n}"), format!("chat-{n}"), "news"));
    futures_util::future::try_join_all(sends).await.expect("journaled sends");
    life.until("all deliveries", || stage.channel.delivered().len() > SENDS).await;
    let calls = calls.lock().expect("no panic").clone();
    let first: HashMap<_, _> = calls[..SENDS].iter().cloned().collect();
    let mut retries: Vec<Duration> = calls[SENDS..].iter().map(|(_, at)| *at).collect();
    assert_eq!((first.len(), retries.len()), (SENDS, SENDS), "not one call and one retry each");
    let early = calls[SENDS..].iter().filter(|(chat, at)| *at < first[chat] + WAIT).count();
    assert_eq!(early, 0, "calls before the channel's time");
    retries.sort();
    let spread = retries[SENDS * 3 / 4] - retries[SENDS / 4];
    assert!(spread >= Duration::from_secs(3), "half of them within {spread:?}");
    for start in &retries {
        let end = *start + Duration::from_millis(10);
        let busy = retries.iter().filter(|call| (start..&end).contains(call)).count();
        assert!(busy <= PAGE, "{busy} calls within 10 ms");
    }
    life.stop().await;
}

/// Case B07. One owner of retries, and one id for the channel whatever happens to the attempts and the process.
#[tokio::test]
async fn a_send_has_one_token_across_attempts_and_restarts() {
    let stage = Stage::new(Resolve::Dedupe { window: Duration::from_secs(3600) });
    let life = stage.start(echo);
    stage.channel.lose_answer_next();
    stage.channel.lose_answer_next();
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.until("three calls", || stage.channel.sent().len() == 3).await;
    life.settled().await;
    let journal = life.bot.durability().expect("a durable bot");
    let sent = journal.outbox().list(OutboxState::Sent, None, 10).await.expect("a listing").records;
    assert_eq!(sent.len(), 1);
    assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
    // And with a death between each two calls.
    for call in 4..7 {
        stage.channel.hang_next();
        if call == 4 {
            life.bot.enqueue("k", "bob", "news").await.expect("a journaled send");
        }
    }
    life.until("the fourth call", || stage.channel.sent().len() == 4).await;
    let mut life = life;
    for call in 5..7 {
        life.kill().await;
        life = stage.start(echo);
        life.until("another call", || stage.channel.sent().len() == call).await;
    }
    life.kill().await;
    life = stage.start(echo);
    life.until("the delivery", || stage.channel.texts_to("bob") == ["news"]).await;
    life.settled().await;
    let calls = stage.channel.sent();
    let tokens: Vec<&str> =
        calls.iter().map(|call| call.token.as_ref().map_or("", |token| token.as_str())).collect();
    assert_eq!(tokens, [["m/ana/m1:0"; 3].as_slice(), &["k"; 4]].concat());
    assert!(matches!(calls[2].outcome, SendOutcome::Deduplicated(_)), "{:?}", calls[2].outcome);
    life.stop().await;
}

/// Case C01. A key that is known is never dropped in silence, and means a new send once its record is gone.
#[tokio::test]
async fn enqueueing_a_known_key_tells_so_until_its_record_is_gone() {
    for discarded in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let durability =
            Durability::default().with_instance_id("bot").with_retention(Duration::from_secs(3600));
        let life = stage.start_with(durability, echo);
        life.started().await;
        let enqueue = |text: &'static str| life.bot.enqueue("k", "bob", text);
        let first = enqueue("one").await.expect("a journaled send");
        assert_eq!((first.known, first.state, first.sent), (false, OutboxState::Waiting, None));
        life.until("the first", || stage.channel.texts_to("bob") == ["one"]).await;
        life.settled().await;
        stage.clock.advance(Duration::from_secs(1800)).await;
        let second = enqueue("two").await.expect("an answer");
        assert_eq!((second.key.as_str(), second.known, second.state), ("k", true, OutboxState::Sent));
        let ago = stage.clock.now().since(second.sent.expect("a time"));
        assert!((1790..1810).contains(&ago.as_secs()), "sent {ago:?} ago");
        match discarded {
            true => drop(life.journals().discard_send("k").await.expect("a decision")),
            false => stage.clock.advance(Duration::from_secs(1900)).await,
        }
        let third = enqueue("three").await.expect("a journaled send");
        assert!(!third.known);
        life.until("the third", || stage.channel.texts_to("bob") == ["one", "three"]).await;
        life.stop().await;
    }
}

/// Case 11. A channel that delivers for a week, and delivers something again after six days.
#[tokio::test]
async fn a_late_redelivery_is_not_answered_again_and_a_shorter_memory_is_told() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let durability = || Durability::default().with_instance_id("bot");
    for (durability, answers, told) in [
        (durability(), 1, vec![]),
        (durability().with_retention(Duration::ZERO), 1, vec![]),
        (durability().with_retention(5 * DAY), 2, vec!["durability.retention"]),
        (durability().with_dead_retention(DAY), 1, vec!["durability.dead_retention"]),
    ] {
        let mut capabilities = Capabilities::default();
        capabilities.redelivery = Some(7 * DAY);
        let mut stage = Stage::new(Resolve::Never);
        stage.channel = MockProvider::with_capabilities(capabilities);
        let mut life = stage.start_with(durability, echo);
        life.say("m1", "hi", 1).await;
        life.settled().await;
        stage.clock.jump(6 * DAY);
        stage.clock.advance(Duration::from_secs(5)).await;
        assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
        life.settled().await;
        assert_eq!(stage.channel.texts_to("ana").len(), answers, "{told:?}");
        let events: Vec<_> = std::iter::from_fn(|| life.events.try_recv().ok()).collect();
        let context = |event: &BotEvent| match event {
            BotEvent::Error { context, .. } => Some(context.clone()),
            _ => None,
        };
        assert_eq!(events.iter().filter_map(context).collect::<Vec<_>>(), told);
        life.stop().await;
    }
}

#[derive(Deserialize)]
struct Posted {
    id: String,
    text: String,
}

/// Case J02. The channel's server cut a text within an emoji.
#[tokio::test]
async fn a_posted_message_with_half_a_character_is_handled_once() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    let body = br#"{"id":"m1","text":"hello \ud83d"}"#;
    assert!(serde_json::from_slice::<Posted>(body).is_err(), "there is nothing to mend");
    for _ in 0..2 {
        let posted: Posted = webhook::parse(body).expect("a readable body");
        assert!(life.deliver(Inbound::text(posted.id, "ana", posted.text)).await);
        life.settled().await;
    }
    assert_eq!(stage.channel.texts_to("ana"), ["hello \u{fffd}"]);
    assert_eq!(life.bot.metrics().inbound_duplicates, 1);
    life.stop().await;
}

/// Case B01. Who is handled at the same time is not given up with the message that ends the process.
#[tokio::test]
async fn messages_beside_one_that_ends_the_process_are_answered_in_the_end() {
    for max_attempts in 2..=6 {
        let stage = Stage::new(Resolve::Never);
        let poison = Arc::new(AtomicU32::new(0));
        let inbox = InboxConfig { max_attempts, ..InboxConfig::default() };
        let bot = || {
            let (poison, clock) = (Arc::clone(&poison), stage.clock.clone());
            let durability = Durability::default().with_instance_id("bot").with_inbox(inbox.clone());
            stage.start_with(durability, |bot| {
                bot.otherwise(move |c: Ctx| {
                    let (poison, clock) = (Arc::clone(&poison), clock.clone());
                    async move {
                        if c.text() == "poison" {
                            poison.fetch_add(1, Ordering::Relaxed);
                            std::future::pending::<()>().await;
                        }
                        clock.sleep(Duration::from_secs(10)).await;
                        c.reply(c.text()).await
                    }
                })
            })
        };
        let mut delivered = 0;
        for start in 1.. {
            let life = bot();
            for n in 0..3 {
                delivered +=
                    usize::from(life.deliver(Inbound::text("m", format!("{start}-{n}"), "hi")).await);
                if (start, n) == (1, 0) {
                    assert!(life.deliver(Inbound::text("m", "eve", "poison")).await);
                }
            }
            let dies = || poison.load(Ordering::Relaxed) == start;
            life.until("poison or its end", || dies() || life.bot.metrics().inbound_dead > 0).await;
            if life.bot.metrics().inbound_dead > 0 {
                life.until("all replies", || stage.channel.delivered().len() == delivered).await;
                life.settled().await;
                assert_eq!(life.bot.metrics().inbound_dead, 1);
                life.stop().await;
                break;
            }
            life.kill().await;
        }
        assert_eq!(poison.load(Ordering::Relaxed), max_attempts);
    }
}

/// A bot that ends no message, and notes each that begins.
fn stuck(runs: &Arc<Mutex<Vec<String>>>) -> impl FnOnce(BotBuilder) -> BotBuilder + use<> {
    let runs = Arc::clone(runs);
    move |bot| {
        bot.otherwise(move |c: Ctx| {
            runs.lock().expect("no panic").push(c.chat().to_string());
            std::future::pending::<()>()
        })
    }
}

/// Messages that were being handled when the process ended twice.
async fn suspects(stage: &Stage, count: usize) {
    for life in 0..2 {
        let runs = Arc::default();
        let bot = stage.start(stuck(&runs));
        for n in (0..count).filter(|_| life == 0) {
            assert!(bot.deliver(Inbound::text("m", format!("chat-{n}"), "hi")).await);
        }
        bot.until("all of them", || runs.lock().expect("no panic").len() == count).await;
        bot.kill().await;
    }
}

#[tokio::test]
async fn a_suspect_that_stands_still_holds_back_the_others_for_a_lease_at_most() {
    let stage = Stage::new(Resolve::Never);
    suspects(&stage, 4).await;
    let runs: Arc<Mutex<Vec<String>>> = Arc::default();
    let life = stage.start(stuck(&runs));
    let count = || runs.lock().expect("no panic").len();
    stage.clock.advance(Duration::from_secs(50)).await;
    assert_eq!(count(), 1);
    stage.clock.advance(Duration::from_secs(15)).await;
    assert_eq!(count(), 4);
    life.kill().await;
}

#[tokio::test]
async fn suspects_that_take_their_time_run_one_by_one() {
    let stage = Stage::new(Resolve::Never);
    suspects(&stage, 4).await;
    let (runs, go_on) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Notify::new()));
    let (seen, wait) = (Arc::clone(&runs), Arc::clone(&go_on));
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| {
            seen.lock().expect("no panic").push(c.chat().to_string());
            let wait = Arc::clone(&wait);
            async move { wait.notified().await }
        })
    });
    for begun in 1..=4 {
        life.until("the next one", || runs.lock().expect("no panic").len() == begun).await;
        // Less than a lease each, and much more together.
        stage.clock.advance(Duration::from_secs(50)).await;
        assert_eq!(runs.lock().expect("no panic").len(), begun);
        go_on.notify_one();
    }
    life.stop().await;
}

#[tokio::test]
async fn suspects_hold_up_neither_others_nor_a_stop() {
    let stage = Stage::new(Resolve::Never);
    suspects(&stage, 4).await;
    let runs: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&runs);
    let limits =
        TurnsConfig { max_concurrent: 2, stop_timeout: Duration::from_secs(1), ..TurnsConfig::default() };
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| {
            seen.lock().expect("no panic").push(c.chat().to_string());
            async move {
                if c.text() == "hi" {
                    std::future::pending::<()>().await;
                }
                c.reply(c.text()).await
            }
        })
        .turns(limits)
    });
    assert_eq!(life.say("m1", "others", 1).await, ["others"]);
    life.bot.stop();
    life.until("the end", || life.ended.get().is_some()).await;
    assert_eq!(
        runs.lock().expect("no panic").len(),
        2,
        "a suspect began while another ran, or the bot stopped"
    );
    life.stop().await;
    let life = stage.start(echo);
    life.until("all replies", || stage.channel.delivered().len() == 5).await;
    life.stop().await;
}
