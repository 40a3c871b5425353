//! What is guaranteed when the process dies, moment by moment, and what of it a bot author has to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{InboxState, OutboxState};
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, OnAmbiguous, OnDiverged, OutboxConfig};
use botmesh_testing::Fault;

use crate::support::{Life, Stage};

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

fn hi() -> Inbound {
    Inbound::text("m1", "ana", "hi")
}

/// Replies as often as told and then ends, or stands still; counts its runs.
fn replies(
    texts: &'static [&'static str],
    ends: bool,
    runs: &Arc<AtomicU32>,
) -> impl FnOnce(BotBuilder) -> BotBuilder + use<> {
    let runs = Arc::clone(runs);
    move |bot| {
        bot.otherwise(move |c: Ctx| {
            runs.fetch_add(1, Ordering::Relaxed);
            async move {
                for text in texts {
                    c.reply(*text).await?;
                }
                if !ends {
                    std::future::pending::<()>().await;
                }
                Result::<()>::Ok(())
            }
        })
    }
}

async fn inbox(life: &Life, state: InboxState) -> usize {
    let journal = life.bot.durability().expect("a durable bot");
    journal.inbox().list(state, None, 100).await.expect("a listing").records.len()
}

async fn outbox(life: &Life, state: OutboxState) -> Vec<String> {
    let journal = life.bot.durability().expect("a durable bot");
    let page = journal.outbox().list(state, None, 100).await.expect("a listing");
    page.records.iter().map(|stored| stored.record.key.to_string()).collect()
}

/// Nothing was recorded, and the channel was told so. The message is processed if it is delivered again.
#[tokio::test]
async fn death_before_the_message_is_journaled_leaves_it_to_the_channel() {
    for delivered_again in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(echo);
        life.started().await;
        life.journal.fail_next(Fault::CrashBefore);
        assert!(!life.deliver(hi()).await, "it was confirmed to the channel");
        life.kill().await;
        let life = stage.start(echo);
        life.started().await;
        if delivered_again {
            assert!(life.deliver(hi()).await);
        }
        life.settled().await;
        stage.clock.advance(Duration::from_secs(120)).await;
        assert_eq!(stage.channel.texts_to("ana").len(), usize::from(delivered_again));
        assert_eq!(inbox(&life, InboxState::Done).await, usize::from(delivered_again));
        life.stop().await;
    }
}

/// The message is replayed, before its handler ran or in the middle of it. Replies that went out are answered from the
/// outbox, the missing ones are sent.
#[tokio::test]
async fn death_after_the_message_is_journaled_replays_it_and_sends_what_is_missing() {
    const ALL: [&str; 3] = ["one", "two", "three"];
    for (first, answered) in [(&[][..], 0), (&ALL[..1], 1), (&ALL[..2], 2)] {
        let stage = Stage::new(Resolve::Never);
        let runs = Arc::new(AtomicU32::new(0));
        let life = stage.start(replies(first, false, &runs));
        assert!(life.deliver(hi()).await);
        life.until("the first replies", || stage.channel.texts_to("ana") == first).await;
        life.settled_but_for_turns().await;
        life.kill().await;
        let life = stage.start(replies(&ALL, true, &runs));
        life.until("all replies", || stage.channel.texts_to("ana").len() >= 3).await;
        life.settled().await;
        assert_eq!(stage.channel.texts_to("ana"), ALL);
        assert_eq!((life.bot.metrics().inbound_replayed, life.bot.metrics().outbox_deduped), (1, answered));
        // Handlers run at least once; only what they send is recognised.
        assert_eq!(runs.load(Ordering::Relaxed), 2);
        life.stop().await;
    }
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.started().await;
    life.journal.fail_next(Fault::CrashAfter);
    assert!(!life.deliver(hi()).await, "the process died before it could say so");
    life.kill().await;
    let life = stage.start(echo);
    life.until("the reply", || stage.channel.texts_to("ana") == ["hi"]).await;
    life.stop().await;
}

/// When the process dies, seen from the call of the channel.
#[derive(Clone, Copy, Debug)]
enum Call {
    Before,
    During,
    After,
}

/// Ambiguous. Skipping never doubles and may lose, resending never loses and may double; either way an operator is told.
#[tokio::test]
async fn death_between_the_call_of_the_channel_and_its_record_is_for_the_policy() {
    for (policy, moment, arrived) in [
        (OnAmbiguous::Skip, Call::Before, 0),
        (OnAmbiguous::Skip, Call::During, 0),
        (OnAmbiguous::Skip, Call::After, 1),
        (OnAmbiguous::Resend, Call::Before, 1),
        (OnAmbiguous::Resend, Call::During, 1),
        (OnAmbiguous::Resend, Call::After, 2),
    ] {
        let stage = Stage::new(Resolve::Never);
        let durability = || Durability::default().with_instance_id("bot").with_on_ambiguous(policy);
        let life = stage.start_with(durability(), echo);
        life.started().await;
        let (message, begins, sent) = (1, 2, 3);
        let journaled = life.journal.commits() + message;
        match moment {
            Call::Before => life.journal.fail_commit(journaled - message + begins, Fault::CrashAfter),
            Call::During => stage.channel.hang_next(),
            Call::After => life.journal.fail_commit(journaled - message + sent, Fault::CrashBefore),
        }
        assert!(life.deliver(hi()).await);
        let called = usize::from(!matches!(moment, Call::Before));
        let died = || matches!(moment, Call::During) || life.journal.crashed();
        life.until("the death", || stage.channel.sent().len() == called && died()).await;
        life.kill().await;
        let mut life = stage.start_with(durability(), echo);
        life.until("the replay", || life.bot.metrics().inbound_replayed == 1).await;
        life.settled().await;
        stage.clock.advance(Duration::from_secs(120)).await;
        let transcript = stage.channel.transcript();
        assert_eq!(stage.channel.texts_to("ana").len(), arrived, "{policy:?} {moment:?}\n{transcript}");
        let told = life.event_names().iter().filter(|name| **name == "durability:ambiguous").count();
        let metrics = life.bot.metrics();
        assert_eq!(
            (told, metrics.outbox_ambiguous, metrics.stale_leases),
            (1, 1, 0),
            "{policy:?} {moment:?}"
        );
        let ended = if policy == OnAmbiguous::Skip { OutboxState::Unknown } else { OutboxState::Sent };
        assert_eq!(outbox(&life, ended).await, ["m/ana/m1:0"], "{policy:?} {moment:?}");
        assert_eq!(inbox(&life, InboxState::Done).await, 1);
        life.stop().await;
    }
}

/// The message is replayed; every reply is answered from the outbox.
#[tokio::test]
async fn death_before_the_message_is_acknowledged_sends_nothing_again() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    let life = stage.start(replies(&["one", "two"], false, &runs));
    life.say("m1", "hi", 2).await;
    life.settled_but_for_turns().await;
    life.kill().await;
    let life = stage.start(replies(&["one", "two"], true, &runs));
    life.until("the second run", || runs.load(Ordering::Relaxed) == 2).await;
    life.settled().await;
    assert_eq!(stage.channel.sent().len(), 2);
    assert_eq!(life.bot.metrics().outbox_deduped, 2);
    assert_eq!(inbox(&life, InboxState::Done).await, 1);
    life.stop().await;
}

/// Asks for a name and greets.
fn greeter(persistent: bool) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| {
        let greeter = flow::<()>("greeter").ask("name", "name?", |(), _| Ok(())).say("welcome");
        let greeter = if persistent { greeter.persistent() } else { greeter };
        bot.when("start", |c: Ctx| async move { c.enter("greeter") })
            .otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await })
            .flow(greeter)
    }
}

/// The flow resumes from its checkpoint: its question is not repeated, and the next message is the answer.
#[tokio::test]
async fn death_while_a_persistent_flow_waits_leaves_it_waiting() {
    for settled in [false, true] {
        let stage = Stage::new(Resolve::Lookup);
        let life = stage.start(greeter(true));
        life.say("m1", "start", 1).await;
        if settled {
            life.settled().await;
        }
        life.kill().await;
        let life = stage.start(greeter(true));
        life.started().await;
        life.settled().await;
        stage.clock.advance(Duration::from_secs(60)).await;
        assert_eq!(stage.channel.texts_to("ana"), ["name?"]);
        assert_eq!(life.say("m2", "Ana", 1).await, ["welcome"]);
        life.stop().await;
    }
}

/// The conversation lived in memory and is gone: the next message is a new one, through the normal routes.
#[tokio::test]
async fn death_while_another_flow_waits_makes_the_answer_a_new_message() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(greeter(false));
    life.say("m1", "start", 1).await;
    life.settled().await;
    life.kill().await;
    let life = stage.start(greeter(false));
    assert_eq!(life.say("m2", "Ana", 1).await, ["? Ana"]);
    life.stop().await;
}

/// So is an answer that is replayed. What it now sends differs from what was recorded for it, which the policy for that
/// decides: the reply to it is sent, or left.
#[tokio::test]
async fn an_answer_that_is_replayed_after_its_conversation_is_gone_is_a_new_message_too() {
    let stands_still = |bot: BotBuilder| {
        let greeter = flow::<()>("greeter")
            .ask("name", "name?", |(), _| Ok(()))
            .say("welcome")
            .do_("think", |_| std::future::pending());
        bot.otherwise(|c: Ctx| async move { c.enter("greeter") }).flow(greeter)
    };
    for (policy, more) in [(OnDiverged::Send, &["? Ana"][..]), (OnDiverged::Skip, &[])] {
        let stage = Stage::new(Resolve::Never);
        let outbox = OutboxConfig { on_diverged: policy, ..OutboxConfig::default() };
        let durability = || Durability::default().with_instance_id("bot").with_outbox(outbox.clone());
        let life = stage.start_with(durability(), stands_still);
        life.say("m1", "start", 1).await;
        life.settled().await;
        life.say("m2", "Ana", 1).await;
        life.settled_but_for_turns().await;
        life.kill().await;
        let life = stage.start_with(durability(), greeter(false));
        life.until("the replay", || life.bot.metrics().outbox_diverged == 1).await;
        life.settled().await;
        assert_eq!(stage.channel.texts_to("ana"), [&["name?", "welcome"], more].concat());
        life.stop().await;
    }
}

/// It is given up after its attempts instead of ending the next start again, and an operator is told.
#[tokio::test]
async fn death_at_every_run_of_a_message_gives_it_up() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    let poisoned = |bot: BotBuilder| {
        let runs = Arc::clone(&runs);
        bot.when("poison", move |_: Ctx| {
            runs.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>()
        })
        .otherwise(|c: Ctx| async move { c.reply("fine").await })
    };
    for start in 0..5 {
        let life = stage.start(poisoned);
        if start == 0 {
            assert!(life.deliver(Inbound::text("m1", "eve", "poison")).await);
        }
        life.until("a run", || runs.load(Ordering::Relaxed) == start + 1).await;
        life.say(&format!("other-{start}"), "hi", 1).await;
        life.kill().await;
    }
    for start in 5..8 {
        let mut life = stage.start(poisoned);
        life.say(&format!("other-{start}"), "hi", 1).await;
        life.settled().await;
        assert_eq!(life.event_names().contains(&"durability:dead"), start == 5);
        assert_eq!(life.bot.metrics().inbound_dead, u64::from(start == 5));
        assert_eq!(inbox(&life, InboxState::Dead).await, 1);
        // A redelivery does not bring it back.
        assert!(life.deliver(Inbound::text("m1", "eve", "poison")).await);
        life.settled().await;
        assert_eq!(life.bot.metrics().inbound_duplicates, 1);
        life.stop().await;
    }
    assert_eq!(runs.load(Ordering::Relaxed), 5);
}

/// What fails before the handlers, because the store is away, is tried again with delays, and given up after its attempts.
/// No handler ran, and other chats are not held up.
#[tokio::test]
async fn a_message_that_fails_before_its_handler_is_tried_again_and_given_up_after_its_attempts() {
    for away in [Duration::from_secs(10), Duration::from_secs(60)] {
        let stage = Stage::new(Resolve::Never);
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let mut life = stage.start(move |bot| {
            let other = flow::<()>("other").ask("x", "x?", |(), _| Ok(())).persistent();
            bot.otherwise(move |c: Ctx| {
                counted.fetch_add(1, Ordering::Relaxed);
                async move { c.reply("at last").await }
            })
            .flow(other)
        });
        life.started().await;
        life.store.set_down(true);
        assert!(life.deliver(hi()).await);
        stage.clock.advance(Duration::from_secs(8)).await;
        assert_eq!((runs.load(Ordering::Relaxed), life.bot.metrics().inbound_dead), (0, 0));
        stage.clock.advance(away - Duration::from_secs(8)).await;
        life.store.set_down(false);
        stage.clock.advance(Duration::from_secs(60)).await;
        let in_time = away < Duration::from_secs(15);
        assert_eq!(runs.load(Ordering::Relaxed), u32::from(in_time), "away for {away:?}");
        assert_eq!(stage.channel.texts_to("ana").len(), usize::from(in_time));
        assert_eq!(life.event_names().contains(&"durability:dead"), !in_time);
        let journal = life.bot.durability().expect("a durable bot");
        let state = if in_time { InboxState::Done } else { InboxState::Dead };
        let page = journal.inbox().list(state, None, 10).await.expect("a listing");
        let record = &page.records[0].record;
        assert_eq!((record.attempts, record.error.is_some()), if in_time { (5, false) } else { (5, true) });
        life.stop().await;
    }
}
