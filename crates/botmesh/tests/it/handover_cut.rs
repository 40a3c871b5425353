//! Steps that are cut short: their answer is kept, and they do nothing any more.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use botmesh::core::inbound::Inbound;
use botmesh::prelude::*;
use botmesh::{BotBuilder, HandoverConfig, HandoverOutcome, HookVerdict};
use botmesh_testing::{SendFault, image};
use tokio::sync::Notify;

use crate::fleet::{Fleet, MINUTE, Replica, SETTLE, Signup, with};

/// A flow whose first step never ends in its first run, after it had its answer.
fn slow(runs: &Arc<AtomicUsize>) -> Flow<Signup> {
    let runs = Arc::clone(runs);
    flow::<Signup>("signup")
        .do_("name", move |c: FlowCtx<Signup>| {
            let runs = Arc::clone(&runs);
            async move {
                let name = c.ask("What is your name?").await?;
                c.user().increment("signups", 1).await?;
                c.say(format!("Looking for {}...", name.text())).await?;
                if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                    std::future::pending::<()>().await;
                }
                c.update(|s| s.name = name.text().to_owned());
                Ok(Step::Next)
            }
        })
        .ask("age", |s: &Signup| format!("How old are you, {}?", s.name), |_, _| Ok(()))
        .do_("done", |c: FlowCtx<Signup>| async move {
            let signups: i64 = c.user().get("signups").await?.unwrap_or(0);
            c.say(format!("Done, {} ({signups}).", c.get(|s| s.name.clone()))).await?;
            Ok(Step::Next)
        })
        .persistent()
}

/// How a replica comes to leave a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    LostTurn,
    Crash,
}

/// Two replicas, whose first one left a step that had its answer `Ana`.
async fn cut_short(
    fleet: &mut Fleet,
    left: Left,
    build: impl Fn(BotBuilder) -> BotBuilder,
) -> (Option<Replica>, Replica) {
    let (a, b) = fleet.pair(build);
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.is_stuck_at("2", "Ana", 1).await;
    assert_eq!(a.said().last().map(String::as_str), Some("Looking for Ana..."));
    match left {
        Left::LostTurn => {
            a.coordinator.lose();
            (Some(a), b)
        }
        Left::Crash => {
            a.dies().await;
            (None, b)
        }
    }
}

#[tokio::test]
async fn a_step_cut_short_keeps_its_answer_and_the_waking_message_is_for_the_next_question() {
    for left in [Left::LostTurn, Left::Crash] {
        for durable in [true, false] {
            let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
            let runs = Arc::default();
            let (a, mut b) = cut_short(&mut fleet, left, |bot| with(slow(&runs))(bot)).await;
            let answers = b.hears("3", "30").await;
            // With durability, neither is said twice nor counted twice.
            let expected: &[&str] = match durable {
                true => &["How old are you, Ana?", "Done, Ana (1)."],
                false => &["Looking for Ana...", "How old are you, Ana?", "Done, Ana (2)."],
            };
            assert_eq!(answers, expected, "{left:?}, durable: {durable}");
            assert_eq!(b.outcomes(), [HandoverOutcome::Resumed]);
            fleet.pass(2 * SETTLE).await;
            assert_eq!(
                a.map_or(2, |a| a.said().len()),
                2,
                "{left:?}, durable: {durable}: a stale owner answers"
            );
            assert_eq!(runs.load(Ordering::SeqCst), 2, "{left:?}, durable: {durable}");
            assert_eq!(b.hears("4", "?").await, ["What?"]);
        }
    }
}

#[tokio::test]
async fn without_durability_a_step_cut_short_at_settle_keeps_its_answer() {
    for elsewhere in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(false);
        let runs = Arc::default();
        let (a, b) = fleet.pair(|bot| with(slow(&runs))(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        a.is_stuck_at("2", "Ana", 1).await;
        fleet.pass(2 * SETTLE).await;
        let next = if elsewhere { &b } else { &a };
        let expected = ["Looking for Ana...", "How old are you, Ana?", "Done, Ana (2)."];
        assert_eq!(next.hears("3", "30").await, expected, "elsewhere: {elsewhere}");
    }
}

#[tokio::test]
async fn with_durability_a_step_cut_short_at_settle_is_tried_again_in_its_place() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let runs = Arc::default();
    let (a, b) = fleet.pair(|bot| with(slow(&runs))(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.is_stuck_at("2", "Ana", 1).await;
    fleet.pass(2 * SETTLE).await;
    assert_eq!(a.said(), ["What is your name?", "Looking for Ana...", "How old are you, Ana?"]);
    assert_eq!(b.hears("3", "30").await, ["Done, Ana (1)."]);
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_kept_without_durability() {
    for left in [Left::LostTurn, Left::Crash] {
        for (bytes, answers) in [
            (10, ["What is your name?"].as_slice()),
            (16 << 10, &["Looking for Ana...", "How old are you, Ana?", "Done, Ana (2)."]),
        ] {
            let handover = HandoverConfig::default().with_max_answer_bytes(bytes);
            let mut fleet = Fleet::new(handover).with_durability(false);
            let runs = Arc::default();
            let (_a, b) = cut_short(&mut fleet, left, |bot| with(slow(&runs))(bot)).await;
            assert_eq!(b.hears("3", "30").await, answers, "{left:?}, {bytes} bytes");
        }
    }
    let handover = HandoverConfig::default().with_max_answer_bytes(10);
    let mut fleet = Fleet::new(handover);
    let runs = Arc::default();
    let (_a, b) = cut_short(&mut fleet, Left::LostTurn, |bot| with(slow(&runs))(bot)).await;
    let expected = ["How old are you, Ana?", "Done, Ana (1)."];
    assert_eq!(b.hears("3", "30").await, expected, "with durability, the inbox has it");
}

#[tokio::test]
async fn a_checkpoint_points_at_an_answer_in_the_inbox_and_embeds_one_that_is_nowhere_else() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let runs = Arc::default();
        let _left = cut_short(&mut fleet, Left::Crash, |bot| with(slow(&runs))(bot)).await;
        let answer = fleet.row().and_then(|row| row.answer).expect("the answer is recorded");
        assert_eq!((answer.record.is_some(), answer.inbound.is_some()), (durable, !durable));
    }
}

/// Hears what a note says, and remembers which messages it heard.
fn listening(bot: BotBuilder, heard: &Arc<Mutex<Vec<String>>>) -> BotBuilder {
    let heard = Arc::clone(heard);
    bot.before_message(move |c: Ctx| {
        heard.lock().expect("a lock").push(c.text().to_owned());
        async move {
            Ok(match c.text() {
                "(a voice note)" => HookVerdict::Text("Ana".to_owned()),
                _ => HookVerdict::Continue,
            })
        }
    })
}

#[tokio::test]
async fn what_the_hooks_made_of_an_answer_travels_with_it_and_they_do_not_run_again() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (runs, heard) = (Arc::default(), Arc::default());
        let (a, b) = fleet.pair(|bot| listening(with(slow(&runs))(bot), &heard));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        a.is_stuck_at("2", "(a voice note)", 1).await;
        a.coordinator.lose();
        assert_eq!(
            b.hears("3", "30").await.last().map(String::as_str),
            Some(if durable { "Done, Ana (1)." } else { "Done, Ana (2)." })
        );
        fleet.pass(2 * SETTLE).await;
        assert_eq!(*heard.lock().expect("a lock"), ["sign up", "(a voice note)", "30"], "durable: {durable}");
    }
}

#[tokio::test]
async fn the_hooks_do_not_run_again_when_the_answer_itself_runs_again() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (runs, heard) = (Arc::default(), Arc::default());
    let (a, b) = fleet.pair(|bot| listening(with(slow(&runs))(bot), &heard));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.is_stuck_at("2", "(a voice note)", 1).await;
    a.dies().await;
    // Its lease runs out, and the other one adopts it.
    fleet.pass(5 * MINUTE).await;
    assert_eq!(b.said(), ["How old are you, Ana?"]);
    assert_eq!(*heard.lock().expect("a lock"), ["sign up", "(a voice note)"]);
}

/// Says what the picture shows, but not in its first run.
fn pictures(runs: &Arc<AtomicUsize>) -> Flow<Signup> {
    let runs = Arc::clone(runs);
    flow::<Signup>("signup").do_("picture", move |c: FlowCtx<Signup>| {
        let runs = Arc::clone(&runs);
        async move {
            c.ask("A picture?").await?;
            c.say("Looking...").await?;
            if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                std::future::pending::<()>().await;
            }
            let bytes = c.ctx().try_load_media().await?;
            c.say(format!("I see {}.", String::from_utf8_lossy(&bytes))).await?;
            Ok(Step::Next)
        }
    })
}

#[tokio::test]
async fn the_media_of_an_answer_are_built_again() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let runs = Arc::default();
        let (a, b) = fleet.pair(|bot| with(pictures(&runs).persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["A picture?"]);
        let picture = fleet.channel.add_media("photo", "a cat");
        a.takes(Inbound::private("2", "ana", image(picture))).await;
        a.life.until("the step is at work", || a.said().len() == 2).await;
        a.life.settled_but_for_turns().await;
        a.dies().await;
        let said = b.hears("3", "well?").await;
        assert!(said.contains(&"I see a cat.".to_owned()), "durable: {durable}: {said:?}");
        assert_eq!(said.last().map(String::as_str), Some("What?"), "nothing asks for it: it is routed");
    }
}

/// A step that leaves a task behind, which wakes up twice and tries everything.
#[expect(clippy::disallowed_methods, reason = "a bot's author may spawn where the bot does not")]
fn haunted(runs: &Arc<AtomicUsize>, wake: &Arc<Notify>, tried: &Arc<AtomicUsize>) -> Flow<Signup> {
    let (runs, wake, tried) = (Arc::clone(runs), Arc::clone(wake), Arc::clone(tried));
    let flow = flow::<Signup>("signup").do_("haunt", move |c: FlowCtx<Signup>| {
        let (runs, wake, tried) = (Arc::clone(&runs), Arc::clone(&wake), Arc::clone(&tried));
        async move {
            c.ask("What is your name?").await?;
            if runs.fetch_add(1, Ordering::SeqCst) > 0 {
                return Ok(Step::Next);
            }
            let (ghost, ctx) = (c.clone(), c.ctx());
            tokio::spawn(async move {
                for _ in 0..2 {
                    wake.notified().await;
                    assert!(ghost.say("boo").await.is_err(), "a ghost spoke");
                    assert!(ctx.reply("boo").await.is_err(), "a ghost spoke");
                    ghost.update(|s| s.name = "Ghost".to_owned());
                    ghost.enter("signup");
                    ctx.enter("signup");
                    let asking = ghost.ask("Who are you?");
                    assert!(
                        futures_util::FutureExt::now_or_never(asking.into_future())
                            .is_none_or(|asked| asked.is_err())
                    );
                    tried.fetch_add(1, Ordering::SeqCst);
                }
            });
            std::future::pending::<()>().await;
            Ok(Step::Next)
        }
    });
    flow.ask("age", "How old are you?", |_, _| Ok(()))
        .say(|s: &Signup| format!("Done{}.", s.name))
        .persistent()
}

#[tokio::test]
async fn a_suspended_step_that_keeps_running_never_sends_writes_or_clears() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (runs, wake, tried) = (Arc::default(), Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (a, b) = fleet.pair(|bot| with(haunted(&runs, &wake, &tried))(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        a.is_stuck_at("2", "Ana", 0).await;
        a.life.until("the step left a task behind", || runs.load(Ordering::SeqCst) == 1).await;
        a.coordinator.lose();
        assert_eq!(b.hears("3", "hello?").await, ["How old are you?", "Done."], "durable: {durable}");
        fleet.pass(2 * SETTLE).await;
        assert_eq!(a.hears("4", "sign up").await, ["What is your name?"]);
        assert_eq!(a.hears("5", "Ana").await, ["How old are you?"]);
        let (said, row) = (fleet.said(), fleet.row());
        fleet.store.writes();
        for wakes in 1..=2 {
            wake.notify_one();
            a.life.until("the ghost tried", || tried.load(Ordering::SeqCst) == wakes).await;
            a.life.settled().await;
            assert_eq!((fleet.said(), fleet.row()), (said.clone(), row.clone()), "durable: {durable}");
            assert_eq!(fleet.store.writes(), []);
        }
        assert_eq!(a.hears("6", "30").await, ["Done."], "the ghost changed the state");
    }
}

#[tokio::test]
async fn a_step_that_fails_at_its_answer_waits_for_another_one_also_elsewhere() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let failing = || {
        flow::<Signup>("signup").do_("name", |c: FlowCtx<Signup>| async move {
            let name = c.ask("What is your name?").await?;
            if name.text() == "?" {
                return Err("no name".into());
            }
            c.say(format!("Done, {}.", name.text())).await?;
            Ok(Step::Next)
        })
    };
    let (a, b) = fleet.pair(|bot| with(failing().persistent())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    assert_eq!(a.hears("2", "?").await, Vec::<String>::new());
    assert_eq!(b.hears("3", "Ana").await, ["Done, Ana."]);
}

#[tokio::test]
async fn a_step_whose_send_was_in_flight_waits_for_what_became_of_it() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    // So that it never stands still by itself.
    let runs = Arc::new(AtomicUsize::new(1));
    let (a, b) = fleet.pair(|bot| with(slow(&runs))(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    fleet.channel.fault_when(|sent| (sent.text() == "Looking for Ana...").then_some(SendFault::HangAnswer));
    a.takes(Inbound::text("2", "ana", "Ana")).await;
    a.life.until("the send is in flight", || fleet.said().len() == 2).await;
    a.dies().await;
    // The next message comes long before it is known that nobody hears the answer of that send any more.
    b.takes(Inbound::text("3", "ana", "30")).await;
    b.life.until("the end of the flow", || b.said().len() >= 2).await;
    b.life.settled().await;
    assert_eq!(b.said(), ["How old are you, Ana?", "Done, Ana (1)."]);
}
