//! What a hand-over does not promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use botmesh::core::store::CheckpointPhase;
use botmesh::prelude::*;
use botmesh::{Fallback, HandoverConfig, HandoverOutcome};

use crate::fleet::{Fleet, MINUTE, SETTLE, Signup, WatchedStore, Write, forward, routes, signup, with};

#[tokio::test]
async fn the_unit_of_hand_over_is_the_step_whose_work_runs_again_up_to_its_first_wait() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let work = Arc::new(AtomicUsize::new(0));
        let flow = || {
            let work = Arc::clone(&work);
            let flow = flow::<Signup>("signup").do_("before", |c: FlowCtx<Signup>| async move {
                c.say("Welcome!").await?;
                Ok(Step::Next)
            });
            flow.do_("name", move |c: FlowCtx<Signup>| {
                let work = Arc::clone(&work);
                async move {
                    work.fetch_add(1, Ordering::SeqCst);
                    c.say("One moment...").await?;
                    let name = c.ask("What is your name?").await?;
                    c.say(format!("Done, {}.", name.text())).await?;
                    Ok(Step::Next)
                }
            })
        };
        let (a, b) = fleet.pair(|bot| with(flow().persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["Welcome!", "One moment...", "What is your name?"]);
        // An earlier step does not run again; what the step itself says is in the outbox, if there is one.
        let expected: &[&str] = if durable { &["Done, Ana."] } else { &["One moment...", "Done, Ana."] };
        assert_eq!(b.hears("2", "Ana").await, expected, "durable: {durable}");
        assert_eq!(work.load(Ordering::SeqCst), 2, "its work is done at least once");
    }
}

#[tokio::test]
async fn a_form_begins_again_elsewhere() {
    let form = || {
        let fields = [field("first", "First name?"), field("last", "Last name?")];
        let flow = flow::<Signup>("signup").form("names", fields, |s: &mut Signup, filled| {
            s.name = format!("{} {}", filled.text("first"), filled.text("last"));
            Ok(())
        });
        flow.say(|s: &Signup| format!("Done, {}.", s.name)).persistent()
    };
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| with(form())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["First name?"]);
    assert_eq!(b.hears("2", "Ana").await, ["Last name?"], "its first question is not asked again");
    assert_eq!(a.hears("3", "Paz").await, ["First name?"], "the answer to a later question is not forwarded");
    assert_eq!(a.hears("4", "Bea").await, ["Last name?"]);
    assert_eq!(a.hears("5", "Sol").await, ["Done, Bea Sol."]);
}

#[tokio::test]
async fn answers_to_later_questions_of_a_step_are_not_forwarded() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let runs = Arc::new(AtomicUsize::new(0));
        let flow = || {
            let runs = Arc::clone(&runs);
            flow::<Signup>("signup").do_("names", move |c: FlowCtx<Signup>| {
                let runs = Arc::clone(&runs);
                async move {
                    let first = c.ask("First name?").await?;
                    let last = c.ask("Last name?").await?;
                    c.say("Looking...").await?;
                    if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                        std::future::pending::<()>().await;
                    }
                    c.say(format!("{} {}", first.text(), last.text())).await?;
                    Ok(Step::Next)
                }
            })
        };
        let (a, b) = fleet.pair(|bot| with(flow().persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["First name?"]);
        assert_eq!(a.hears("2", "Ana").await, ["Last name?"]);
        a.is_stuck_at("3", "Paz", 1).await;
        a.coordinator.lose();
        assert_eq!(b.hears("4", "hello?").await, ["First name?"], "durable: {durable}");
        fleet.pass(2 * SETTLE).await;
        // No checkpoint held that answer, so with durability its message was not acknowledged, and comes again.
        assert_eq!(
            fleet.said().last().map(String::as_str),
            Some(if durable { "Last name?" } else { "First name?" })
        );
    }
}

#[tokio::test]
async fn a_prompt_and_its_marker_are_atomic_with_durability_alone() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (a, b) = fleet.pair(|bot| with(signup().persistent())(bot));
        let _never = fleet.store.hold(Write::Set(CheckpointPhase::Waiting));
        a.is_stuck_at("1", "sign up", 1).await;
        a.dies().await;
        let answers = b.hears("2", "Ana").await;
        if durable {
            assert_eq!(answers, ["How old are you, Ana?"], "the user saw the question, and answered it");
        } else {
            assert_eq!(answers, ["What is your name?"], "it is asked once more");
            assert_eq!(b.hears("3", "Ana").await, ["How old are you, Ana?"]);
        }
        fleet.pass(5 * MINUTE).await;
        assert_eq!(b.hears("4", "30").await, ["Done, Ana."], "durable: {durable}");
    }
}

#[tokio::test]
async fn a_forwarded_flow_without_a_timeout_is_bounded_by_its_lifetime_on_the_new_replica_too() {
    let mut fleet = Fleet::new(forward());
    let (a, b) = fleet.pair(|bot| with(signup())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    fleet.pass(4 * MINUTE).await;
    assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"]);
    b.dies().await;
    fleet.pass(6 * MINUTE).await;
    assert_eq!(a.hears("3", "30").await, ["What?"]);
}

#[tokio::test]
async fn a_conversation_suspended_before_its_first_wait_leaves_no_stub() {
    let stuck = |c: Conv| async move {
        c.say("One moment...").await?;
        std::future::pending::<()>().await;
        Ok::<_, botmesh::Error>(())
    };
    let mut fleet =
        Fleet::new(HandoverConfig::default().with_fallback(Fallback::Notify)).with_durability(false);
    let (a, mut b) = fleet.pair(|bot| routes(bot).conversation("signup", stuck));
    a.is_stuck_at("1", "sign up", 1).await;
    a.dies().await;
    assert_eq!(fleet.store.writes(), []);
    assert_eq!(b.hears("2", "Ana").await, ["What?"]);
    assert_eq!(b.outcomes(), []);
}

#[tokio::test]
async fn async_conversations_are_never_migrated() {
    let chat = |c: Conv| async move {
        c.ask("What is your name?").await?;
        Ok::<_, botmesh::Error>(())
    };
    for handover in [HandoverConfig::default(), forward()] {
        let mut fleet = Fleet::new(handover);
        let (a, b) = fleet.pair(|bot| routes(bot).conversation("signup", chat));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        assert_eq!(b.hears("2", "Ana").await, ["What?"]);
        assert_eq!(a.hears("3", "Ana").await, ["What?"]);
    }
}

#[tokio::test]
async fn a_store_that_does_not_compare_is_told_at_the_start_and_has_the_local_fence() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        fleet.store = WatchedStore::that_does_not_compare();
        fleet.stage.store = Arc::new(fleet.store.clone());
        let (mut a, mut b) = fleet.pair(|bot| with(signup().persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"]);
        assert_eq!(a.hears("3", "30").await, ["Done, Ana."]);
        assert_eq!(b.hears("4", "?").await, ["What?"]);
        let told = |event: &BotEvent| event.name() == "coordination:checkpoints-not-compared";
        for replica in [&mut a, &mut b] {
            assert_eq!(replica.events().iter().filter(|event| told(event)).count(), 1);
        }
        // The local fence: a look at the turn right before the write.
        assert_eq!(b.hears("5", "sign up").await, ["What is your name?"]);
        let gate = fleet.store.hold(Write::Set(CheckpointPhase::Running));
        b.is_stuck_at("6", "Bea", 0).await;
        b.coordinator.crash();
        fleet.store.writes();
        gate.notify_one();
        fleet.pass(MINUTE).await;
        assert_eq!(fleet.store.writes(), [], "durable: {durable}");
        assert_eq!(a.hears("7", "40").await.last().map(String::as_str), Some("Done, Bea."));
        assert_eq!(a.outcomes().last(), Some(&HandoverOutcome::Resumed));
    }
    let mut fleet = Fleet::new(HandoverConfig::default());
    let mut a = fleet.start(with(signup().persistent()));
    a.life.settled().await;
    assert!(a.events().iter().all(|event| event.name() != "coordination:checkpoints-not-compared"));
}
