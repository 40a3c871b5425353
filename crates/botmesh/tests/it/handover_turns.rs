//! How long a turn lasts, what timers do under it, and what a replica trusts of its memory.

use std::sync::Arc;
use std::time::Duration;

use botmesh::core::inbound::{Inbound, InboundBody};
use botmesh::core::store::CheckpointPhase;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Fallback, HandoverConfig, HookVerdict};
use tokio::sync::Semaphore;

use crate::fleet::{Fleet, MINUTE, SETTLE, Signup, Write, forward, routes, signup, with};

const NOTHING: [&str; 0] = [];

/// A conversation that enters a flow, whose first step stands still until this has a permit.
fn enters(bot: BotBuilder, gate: &Arc<Semaphore>) -> BotBuilder {
    let gate = Arc::clone(gate);
    let flow = flow::<Signup>("second").do_("wait", move |c: FlowCtx<Signup>| {
        let gate = Arc::clone(&gate);
        async move {
            c.say("One moment...").await?;
            drop(gate.acquire().await?);
            let name = c.ask("What is your name?").await?;
            c.say(format!("Done, {}.", name.text())).await?;
            Ok(Step::Next)
        }
    });
    let first = |c: Conv| async move {
        c.enter("second");
        Ok::<_, botmesh::Error>(())
    };
    routes(bot).conversation("signup", first).flow(flow.persistent())
}

#[tokio::test]
async fn a_turn_is_held_until_the_conversation_waits_again_also_across_an_entry() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let gate = Arc::new(Semaphore::new(0));
        let (a, b) = fleet.pair(|bot| enters(bot, &gate));
        a.is_stuck_at("1", "sign up", 1).await;
        b.takes(Inbound::text("2", "ana", "Ana")).await;
        fleet.pass(MINUTE).await;
        assert_eq!(b.said(), NOTHING, "it saw a flow halfway through a step");
        gate.add_permits(1);
        b.life.settled().await;
        assert_eq!(a.said(), ["One moment...", "What is your name?"]);
        // The step runs again; what it said is in the outbox.
        let expected: &[&str] = if durable { &["Done, Ana."] } else { &["One moment...", "Done, Ana."] };
        assert_eq!(b.said(), expected, "durable: {durable}");
    }
}

#[tokio::test]
async fn settle_bounds_how_long_a_step_holds_the_turn() {
    let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(false);
    let gate = Arc::new(Semaphore::new(0));
    let (a, b) = fleet.pair(|bot| enters(bot, &gate));
    a.is_stuck_at("1", "sign up", 1).await;
    b.takes(Inbound::text("2", "ana", "Ana")).await;
    fleet.pass(SETTLE - MINUTE).await;
    assert_eq!(b.said(), NOTHING);
    fleet.pass(MINUTE).await;
    b.life.until("the step runs again", || b.said() == ["One moment..."]).await;
    // The first run is stopped, so that it never runs beside the second one.
    gate.add_permits(1);
    b.life.settled().await;
    assert_eq!(
        (a.said().len(), b.said()),
        (1, vec!["One moment...".to_owned(), "What is your name?".to_owned()])
    );
}

#[tokio::test]
async fn a_message_that_does_not_get_its_turn_is_told_and_tried_again_with_durability() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        fleet.turn_wait = MINUTE;
        let gate = Arc::new(Semaphore::new(0));
        let (a, mut b) = fleet.pair(|bot| enters(bot, &gate));
        a.is_stuck_at("1", "sign up", 1).await;
        b.takes(Inbound::text("2", "ana", "Ana")).await;
        fleet.pass(MINUTE + Duration::from_secs(1)).await;
        let told = |event| matches!(event, BotEvent::Error { context, error } if context == "taking a turn" && error.contains("turn"));
        assert!(b.events().into_iter().any(told), "durable: {durable}");
        gate.add_permits(1);
        b.life.settled().await;
        let said: &[&str] = if durable { &["Done, Ana."] } else { &[] };
        assert_eq!(b.said(), said, "durable: {durable}");
    }
}

fn brief(wait: Duration) -> Flow<Signup> {
    flow::<Signup>("signup")
        .ask("name", "What is your name?", |_, _| Ok(()))
        .timeout(wait)
        .say("Done.")
        .on_timeout("Too late.")
}

/// A step that asks on its own, and waits for each answer for so long.
fn brief_step(wait: Duration) -> Flow<Signup> {
    let flow = flow::<Signup>("signup").do_("names", move |c: FlowCtx<Signup>| async move {
        c.idle(MINUTE, "Are you there?");
        c.ask("First name?").timeout(wait).await?;
        c.ask("Last name?").timeout(wait).await?;
        c.say("Done.").await?;
        Ok(Step::Next)
    });
    flow.on_timeout("Too late.")
}

#[tokio::test]
async fn the_timeout_of_a_dead_replica_is_fired_by_another_one() {
    for flow in
        [|| brief(3 * MINUTE).persistent(), || brief(3 * MINUTE), || brief_step(3 * MINUTE).persistent()]
    {
        for durable in [true, false] {
            let mut fleet = Fleet::new(forward()).with_durability(durable);
            let (a, b) = fleet.pair(|bot| with(flow())(bot));
            assert_eq!(a.hears("1", "sign up").await.len(), 1);
            a.dies().await;
            fleet.pass(2 * MINUTE).await;
            assert_eq!(b.said(), NOTHING);
            fleet.pass(2 * MINUTE).await;
            assert_eq!(b.said(), ["Too late."], "durable: {durable}");
            assert_eq!(b.hears("2", "Ana").await, ["What?"]);
        }
    }
}

#[tokio::test]
async fn a_timeout_is_fired_once_by_whoever_is_first() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (a, _b) = fleet.pair(|bot| with(brief(3 * MINUTE).persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        fleet.pass(10 * MINUTE).await;
        assert_eq!(fleet.said(), ["What is your name?", "Too late."], "durable: {durable}");
    }
}

#[tokio::test]
async fn a_timer_waits_for_the_turn_of_its_chat() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| with(brief(3 * MINUTE).persistent())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    // The other one has the turn, and an answer that came in time.
    let gate = fleet.store.hold(Write::Set(CheckpointPhase::Running));
    b.is_stuck_at("2", "Ana", 0).await;
    fleet.pass(5 * MINUTE).await;
    assert_eq!(fleet.said(), ["What is your name?"]);
    gate.notify_one();
    b.life.settled().await;
    fleet.pass(MINUTE).await;
    assert_eq!(fleet.said(), ["What is your name?", "Done."]);
}

#[tokio::test]
async fn a_timer_drops_a_stale_copy_in_place_of_messaging_the_user() {
    for (persistent, answers) in
        [(true, ["First name?", "Are you there?", "Too late."].as_slice()), (false, &["What?"])]
    {
        let mut fleet = Fleet::new(HandoverConfig::default());
        let flow = || if persistent { brief_step(3 * MINUTE).persistent() } else { brief_step(3 * MINUTE) };
        let (a, b) = fleet.pair(|bot| with(flow())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["First name?"]);
        assert_eq!(a.hears("2", "Ana").await, ["Last name?"]);
        b.hears("3", "hello?").await;
        fleet.pass(10 * MINUTE).await;
        assert_eq!(a.said(), ["First name?", "Last name?"], "persistent: {persistent}");
        assert_eq!(b.said(), answers, "persistent: {persistent}");
    }
}

#[tokio::test]
async fn a_stale_copy_is_dropped_by_whatever_gives_its_replica_the_chat() {
    let stopping = |bot: BotBuilder| {
        bot.before_message(|c: Ctx| async move {
            Ok(if c.text() == "psst" { HookVerdict::Stop } else { HookVerdict::Continue })
        })
    };
    let reaction = InboundBody::Reaction { message: "m".into(), emoji: Some("👍".to_owned()) };
    for inbound in [Inbound::text("4", "ana", "psst"), Inbound::private("4", "ana", reaction)] {
        let mut fleet = Fleet::new(HandoverConfig::default());
        let (a, b) = fleet.pair(|bot| with(signup())(stopping(bot)));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        assert_eq!(b.hears("2", "hello?").await, ["What?"]);
        assert_eq!(a.gets(inbound).await, NOTHING);
        assert_eq!(a.hears("5", "Ana").await, ["What?"], "the stale copy took the answer");
    }
}

#[tokio::test]
async fn a_watchdog_of_a_stale_copy_does_not_bark_and_the_code_that_runs_again_arms_it_anew() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| with(brief_step(30 * MINUTE).persistent())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["First name?"]);
    fleet.pass(MINUTE / 2).await;
    assert_eq!(b.hears("2", "Ana").await, ["Last name?"]);
    fleet.pass(MINUTE * 3 / 4).await;
    assert_eq!((a.said(), b.said()), (vec!["First name?".to_owned()], vec!["Last name?".to_owned()]));
    fleet.pass(MINUTE / 2).await;
    assert_eq!(b.said(), ["Last name?", "Are you there?"]);
    b.dies().await;
    fleet.pass(10 * MINUTE).await;
    assert_eq!(a.said(), ["First name?"], "nobody runs the code, so nobody arms it");
}

#[tokio::test]
async fn a_timeout_begins_anew_on_the_new_replica() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (a, b) = fleet.pair(|bot| with(brief_step(3 * MINUTE).persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["First name?"]);
        assert_eq!(a.hears("2", "Ana").await, ["Last name?"]);
        a.dies().await;
        fleet.pass(2 * MINUTE).await;
        assert_eq!(b.hears("3", "Paz").await, ["First name?"]);
        fleet.pass(2 * MINUTE).await;
        assert!(!b.said().contains(&"Too late.".to_owned()), "durable: {durable}");
        fleet.pass(2 * MINUTE).await;
        assert_eq!(b.said().last().map(String::as_str), Some("Too late."), "durable: {durable}");
    }
}

#[tokio::test]
async fn a_replica_does_not_trust_its_memory_if_it_is_forgotten_who_had_the_chat() {
    for (handover, answers) in
        [(HandoverConfig::default(), ["What?"]), (forward(), ["How old are you, Ana?"])]
    {
        let mut fleet = Fleet::new(handover);
        fleet.hub = fleet.hub.clone().with_max_idle_keys(0);
        let a = fleet.start(with(signup()));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        assert_eq!(a.hears("2", "Ana").await, answers);
    }
}

#[tokio::test]
async fn a_stub_of_its_own_tells_a_replica_that_its_memory_is_the_latest() {
    let chat = |c: Conv| async move {
        let name = c.ask("What is your name?").await?;
        c.say(format!("Hello, {}.", name.text())).await?;
        Ok::<_, botmesh::Error>(())
    };
    let mut fleet = Fleet::new(HandoverConfig::default().with_fallback(Fallback::Notify));
    fleet.hub = fleet.hub.clone().with_max_idle_keys(0);
    let a = fleet.start(|bot| routes(bot).conversation("signup", chat));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    assert_eq!(a.hears("2", "Ana").await, ["Hello, Ana."]);
}
