//! What becomes of conversations that are kept in the store when another replica takes their chat.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use botmesh::core::coordinator::MemoryHub;
use botmesh::core::inbound::Inbound;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Fallback, HandoverConfig, HandoverOutcome};

use crate::fleet::{Fleet, MINUTE, Signup, routes, signup, with};

/// A step that asks twice.
fn asks_twice() -> Flow<Signup> {
    flow::<Signup>("signup").do_("names", |c: FlowCtx<Signup>| async move {
        let first = c.ask("First name?").await?;
        let last = c.ask("Last name?").await?;
        c.say(format!("{} {}", first.text(), last.text())).await?;
        Ok(Step::Next)
    })
}

#[tokio::test]
async fn a_persistent_flow_goes_on_elsewhere_and_asks_nothing_twice() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (a, mut b) = fleet.pair(|bot| with(signup().persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"]);
        assert_eq!(b.outcomes(), [HandoverOutcome::Resumed]);
        assert_eq!(a.hears("3", "30").await, ["Done, Ana."]);
        assert_eq!(a.hears("4", "30").await, ["What?"]);
        assert_eq!(b.hears("5", "30").await, ["What?"]);
    }
}

#[tokio::test]
async fn the_first_question_of_a_step_is_not_asked_again_elsewhere() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (a, b) = fleet.pair(|bot| with(asks_twice().persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["First name?"]);
        assert_eq!(b.hears("2", "Ana").await, ["Last name?"]);
        assert_eq!(b.hears("3", "Paz").await, ["Ana Paz"]);
    }
}

#[tokio::test]
async fn a_step_parked_on_a_later_question_begins_again_elsewhere() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (a, mut b) = fleet.pair(|bot| with(asks_twice().persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["First name?"]);
        assert_eq!(a.hears("2", "Ana").await, ["Last name?"]);
        assert_eq!(b.hears("3", "Paz").await, ["First name?"]);
        assert_eq!(b.outcomes(), [HandoverOutcome::Resumed]);
        assert_eq!(b.hears("4", "Bea").await, ["Last name?"]);
        assert_eq!(b.hears("5", "Sol").await, ["Bea Sol"]);
    }
}

#[tokio::test]
async fn a_replica_drops_its_copy_the_next_time_it_gets_the_chat() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| with(asks_twice().persistent())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["First name?"]);
    assert_eq!(a.hears("2", "Ana").await, ["Last name?"]);
    assert_eq!(b.hears("3", "Paz").await, ["First name?"]);
    assert_eq!(a.hears("4", "Bea").await, ["Last name?"], "the copy took it for a last name");
    assert_eq!(a.hears("5", "Sol").await, ["Bea Sol"]);
}

#[tokio::test]
async fn a_flow_goes_on_with_a_coordinator_that_lost_everything_and_whose_clock_was_set_back() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        fleet.hub.clock_jump(3_600_000);
        let a = fleet.start(with(signup().persistent()));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        a.dies().await;
        fleet.hub = MemoryHub::new(Arc::new(fleet.stage.clock.clone()));
        let b = fleet.start(with(signup().persistent()));
        assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"], "the store refuses smaller numbers");
    }
}

#[tokio::test]
async fn a_flow_that_is_not_persistent_is_lost_by_default() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, mut b) = fleet.pair(|bot| with(signup())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    assert_eq!(b.hears("2", "Ana").await, ["What?"]);
    assert_eq!(b.outcomes(), []);
    assert_eq!(a.hears("3", "Ana").await, ["What?"], "a stale copy answers");
    assert_eq!(fleet.store.writes(), []);
}

#[tokio::test]
async fn a_flow_that_is_not_persistent_goes_on_while_its_replica_keeps_the_chat() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let a = fleet.start(with(signup()));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.coordinator.lose();
    assert_eq!(a.hears("2", "Ana").await, ["How old are you, Ana?"], "nobody took the chat in between");
}

/// A flow whose first step never asks in its first run.
fn slow_to_ask(bot: BotBuilder, runs: &Arc<AtomicUsize>) -> BotBuilder {
    let runs = Arc::clone(runs);
    let flow = flow::<Signup>("signup").do_("name", move |c: FlowCtx<Signup>| {
        let first = runs.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            let name = c.ask("What is your name?").await?;
            c.say(format!("Done, {}.", name.text())).await?;
            Ok(Step::Next)
        }
    });
    with(flow.persistent())(bot)
}

#[tokio::test]
async fn a_persistent_flow_survives_from_the_moment_it_is_entered() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let runs = Arc::default();
        let (a, b) = fleet.pair(|bot| slow_to_ask(bot, &runs));
        a.is_stuck_at("1", "sign up", 0).await;
        a.dies().await;
        assert_eq!(b.hears("2", "hello?").await, ["What is your name?"], "durable: {durable}");
        fleet.pass(5 * MINUTE).await;
        assert_eq!(fleet.said(), ["What is your name?"], "durable: {durable}");
        assert_eq!(b.hears("3", "Ana").await, ["Done, Ana."]);
    }
}

/// A replayable conversation that counts how often it really looks something up.
fn desk(bot: BotBuilder, lookups: &Arc<AtomicUsize>) -> BotBuilder {
    let lookups = Arc::clone(lookups);
    let run = move |c: Conv| {
        let lookups = Arc::clone(&lookups);
        async move {
            let name = c.ask("What is your name?").await?;
            let number =
                c.run("look up", || async { Ok(lookups.fetch_add(1, Ordering::SeqCst) + 1) }).await?;
            c.say(format!("Hello, {}, you are number {number}.", name.text())).await?;
            let trouble = c.ask("What is the matter?").await?;
            c.say(format!("{}, number {number}: {}", name.text(), trouble.text())).await?;
            Ok::<_, botmesh::Error>(())
        }
    };
    routes(bot).add_conversation(conversation("signup", run).replayable())
}

#[tokio::test]
async fn a_replayable_conversation_goes_on_elsewhere() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let lookups = Arc::default();
        let (a, mut b) = fleet.pair(|bot| desk(bot, &lookups));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        let expected = ["Hello, Ana, you are number 1.", "What is the matter?"];
        assert_eq!(b.hears("2", "Ana").await, expected);
        assert_eq!(b.outcomes(), [HandoverOutcome::Resumed]);
        b.dies().await;
        assert_eq!(a.hears("3", "smoke").await, ["Ana, number 1: smoke"]);
        fleet.pass(5 * MINUTE).await;
        assert_eq!(lookups.load(Ordering::SeqCst), 1);
        assert_eq!(fleet.said().len(), 4);
        assert_eq!(a.hears("4", "?").await, ["What?"]);
    }
}

#[tokio::test]
async fn a_replayable_conversation_that_a_deploy_changed_is_told_and_falls_back() {
    let changed = |c: Conv| async move {
        c.say("Welcome!").await?;
        let name = c.ask("What is your name?").await?;
        c.say(format!("Hello, {}.", name.text())).await?;
        Ok::<_, botmesh::Error>(())
    };
    for (fallback, answers) in [
        (Fallback::Drop, ["What?"].as_slice()),
        (Fallback::Notify, &["Sorry"]),
        (Fallback::Restart, &["Welcome!", "What is your name?"]),
    ] {
        let mut fleet = Fleet::new(HandoverConfig::default().with_fallback(fallback.clone()));
        let a = fleet.start(|bot| desk(bot, &Arc::default()));
        let mut b =
            fleet.start(|bot| routes(bot).add_conversation(conversation("signup", changed).replayable()));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        let said = b.hears("2", "Ana").await;
        assert_eq!(said.len(), answers.len(), "{fallback:?}: {said:?}");
        assert!(
            said.iter().zip(answers).all(|(said, begin)| said.starts_with(begin)),
            "{fallback:?}: {said:?}"
        );
        let told = b.events().into_iter().any(|event| {
            matches!(event, BotEvent::FlowIncompatible { reason, .. }
                if reason.contains("What is your name?") && reason.contains("Welcome!"))
        });
        assert!(told, "{fallback:?}: both histories are told");
        let next = if matches!(fallback, Fallback::Restart) { "Hello, Ana." } else { "What?" };
        assert_eq!(b.hears("3", "Ana").await, [next], "{fallback:?}: it is stuck");
    }
}

#[tokio::test]
async fn a_message_that_only_woke_a_step_which_then_ended_the_flow_is_routed() {
    let build = |bot: BotBuilder, runs: &Arc<AtomicUsize>| {
        let runs = Arc::clone(runs);
        let book = flow::<Signup>("signup")
            .ask("name", "What is your name?", |_, _| Ok(()))
            .do_("check", |_| async { Ok(Step::Next) })
            .do_("book", move |c: FlowCtx<Signup>| {
                let first = runs.fetch_add(1, Ordering::SeqCst) == 0;
                async move {
                    if first {
                        std::future::pending::<()>().await;
                    }
                    c.say("Booked.").await?;
                    Ok(Step::Next)
                }
            });
        with(book.persistent())(bot)
    };
    let runs = Arc::default();
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| build(bot, &runs));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.is_stuck_at("2", "Ana", 0).await;
    a.life.until("the booking", || runs.load(Ordering::SeqCst) == 1).await;
    a.dies().await;
    assert_eq!(b.hears("3", "Hello?").await, ["Booked.", "What?"]);
    fleet.pass(2 * MINUTE).await;
    assert_eq!(b.said(), ["Booked.", "What?"], "the answer that was left is handled again");
}

#[tokio::test]
async fn an_answer_to_a_question_whose_replica_died_before_it_wrote_that_it_waits_is_an_answer() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| with(signup().persistent())(bot));
    // It writes that the flow begins, asks, and dies.
    a.life.store.crash_before_write(2);
    a.takes(Inbound::text("1", "ana", "sign up")).await;
    a.life.until("the crash", || a.life.journal.crashed()).await;
    assert_eq!(a.said(), ["What is your name?"]);
    a.dies().await;
    assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"]);
    fleet.pass(2 * MINUTE).await;
    assert_eq!(b.hears("3", "30").await, ["Done, Ana."]);
}
