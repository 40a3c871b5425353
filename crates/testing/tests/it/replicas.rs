use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use botmesh::prelude::*;
use botmesh::{BotBuilder, Fallback, HandoverConfig, HandoverFlows, HandoverOutcome};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::memory::MemoryStore;
use botmesh_testing::{CrashPoint, Fault, TestBot, TestUser, WritePoint, containing};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Signup {
    name: String,
}

impl FlowState for Signup {}

/// A bot that says which replica it is.
fn club(replica: usize, bot: BotBuilder) -> BotBuilder {
    let signup = flow("signup")
        .ask(
            "name",
            |_: &Signup| "Your name?",
            |state: &mut Signup, answer| {
                state.name = answer.text().to_owned();
                Ok(())
            },
        )
        .do_("think", |c| async move {
            c.sleep(Duration::from_secs(10)).await?;
            Ok(Step::Next)
        })
        .do_("greet", move |c| async move {
            let name = c.get(|state: &Signup| state.name.clone());
            c.say(format!("Welcome, {name}, says {replica}")).await?;
            Ok(Step::Next)
        })
        .persistent();
    bot.when("join", |c: Ctx| async move { c.enter("signup") })
        .otherwise(move |c: Ctx| async move { c.reply(format!("{} at {replica}", c.text())).await })
        .flow(signup)
}

/// What a step panics with, if it does.
async fn failure(step: impl Future) -> String {
    match AssertUnwindSafe(step).catch_unwind().await {
        Ok(_) => "(it did not fail)".to_owned(),
        Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
    }
}

/// Begins a signup through replica 1, up to where it thinks.
async fn joins(bot: &TestBot) -> TestUser {
    let ana = bot.user("ana").through(1);
    ana.says("join").await;
    ana.expect_reply("Your name?").await;
    ana.says("Ana").await;
    ana.expect_silence().await;
    ana
}

#[tokio::test]
async fn replicas_serve_a_chat_in_turn_and_one_conversation_wherever_its_messages_arrive() {
    let bot = TestBot::replicas(3).start_each(club);
    let ana = bot.user("ana");
    for replica in [1, 2, 3, 2, 1] {
        ana.through(replica).says("hi").await;
        ana.expect_reply(format!("hi at {replica}")).await;
    }
    let replicas: Vec<_> = bot.channel().sent().iter().map(|sent| sent.replica).collect();
    assert_eq!(replicas, [1, 2, 3, 2, 1]);
    ana.through(2).says("join").await;
    ana.expect_reply("Your name?").await;
    ana.through(3).says("Ana").await;
    ana.expect_reply("Welcome, Ana, says 3").await;
    let transcript = bot.transcript();
    assert!(transcript.contains("ana: Ana (through replica-3)\n"), "{transcript}");
    assert!(transcript.contains("replica-3 to ana: Welcome, Ana, says 3\n"), "{transcript}");
}

#[tokio::test]
async fn a_chat_of_a_crashed_replica_goes_on_elsewhere_from_its_checkpoint() {
    let bot = TestBot::replicas(2).start_each(club);
    let ana = bot.user("ana");
    ana.says("join").await;
    ana.expect_reply("Your name?").await;
    bot.replica(1).crash();
    ana.says("Ana").await;
    ana.expect_reply("Welcome, Ana, says 2").await;
    assert_eq!(bot.expect_handover(&ana, "signup", HandoverOutcome::Resumed).await, 2);
    bot.expect_no_handover().await;
    assert!(!bot.replica(1).is_running() && bot.replica(2).is_running());
    bot.replica(1).restart().await;
    ana.through(1).says("hi").await;
    ana.expect_reply("hi at 1").await;
}

#[tokio::test]
async fn what_a_crashed_replica_had_taken_over_is_taken_up_by_another() {
    for point in [CrashPoint::from(WritePoint::OutboxInsertInFlight), CrashPoint::Send] {
        let bot = TestBot::replicas(2).start_each(club);
        let ana = bot.user("ana");
        // Only where it had the chat before does it know that nobody left anything unfinished.
        ana.says("hello").await;
        ana.expect_reply("hello at 1").await;
        bot.replica(1).crash_before(point);
        ana.says("hi").await;
        assert!(bot.replica(1).has_crashed() && !bot.replica(2).has_crashed());
        bot.advance("2m").await;
        let told = bot.replica(2).events();
        let ambiguous = told.iter().any(|event| matches!(event, BotEvent::Ambiguous { .. }));
        match point {
            CrashPoint::Send => assert!(ambiguous, "{}", bot.transcript()),
            CrashPoint::Write(_) => assert_eq!(bot.channel().texts_to("ana"), ["hello at 1", "hi at 2"]),
        }
    }
}

#[tokio::test]
async fn a_reply_of_a_frozen_replica_never_reaches_the_channel() {
    let bot = TestBot::replicas(2).start_each(club);
    let ana = joins(&bot).await;
    bot.replica(1).freeze();
    assert!(!bot.replica(1).is_running());
    bot.advance("3m").await;
    ana.expect_reply("Welcome, Ana, says 2").await;
    bot.replica(1).thaw().await;
    bot.advance("3m").await;
    ana.expect_silence().await;
    ana.through(2).says("hi").await;
    ana.expect_reply("hi at 2").await;
}

#[tokio::test]
async fn a_replica_that_thaws_before_anybody_took_its_chat_is_refused_as_well() {
    let bot = TestBot::replicas(2).without_durability().start_each(club);
    let ana = joins(&bot).await;
    bot.replica(1).freeze();
    bot.advance("5s").await;
    bot.replica(1).thaw().await;
    bot.advance("30s").await;
    ana.expect_silence().await;
    assert!(bot.replica(1).is_running());
}

#[tokio::test]
async fn what_users_say_reaches_a_replica_that_runs() {
    let bot = TestBot::replicas(3).start_each(club);
    let ana = bot.user("ana");
    bot.replica(2).freeze();
    ana.through(2).says("one").await;
    ana.expect_reply("one at 1").await;
    bot.replica(1).crash();
    bot.replica(3).stop().await;
    ana.through(2).says("two").await;
    ana.says("three").await;
    let nobody = failure(ana.expect_reply("two")).await;
    let ends = "ana: expected a reply, but replica-1 has crashed; `restart` it, replica-2 stands still; `thaw` it, \
                replica-3 has stopped; `restart` it\n";
    assert!(nobody.starts_with(ends), "{nobody}");
    bot.replica(3).restart().await;
    ana.expect_reply("two at 3").await;
    ana.expect_reply("three at 3").await;
    bot.replica(2).thaw().await;
    ana.through(2).says("four").await;
    ana.expect_reply("four at 2").await;
    ana.expect_silence().await;
    let transcript = bot.transcript();
    assert!(transcript.contains("! replica-3 gets \"ana: two\"\n"), "{transcript}");
}

#[tokio::test]
async fn a_message_on_its_way_into_a_replica_that_freezes_reaches_another() {
    let bot = TestBot::replicas(2).start_each(club);
    let ana = bot.user("ana");
    ana.says("hi").await;
    ana.expect_reply("hi at 1").await;
    bot.replica(1).backend().fault_at(WritePoint::InboxInsertWorking, 1, Fault::Hang);
    ana.says("where?").await;
    ana.expect_silence().await;
    bot.replica(1).freeze();
    ana.expect_reply("where? at 2").await;
    bot.replica(1).thaw().await;
    bot.replica(1).backend().release();
    bot.advance("2m").await;
    ana.expect_silence().await;
}

#[tokio::test]
async fn a_replica_that_stops_finishes_what_it_handles_and_leaves_its_chats() {
    let bot = TestBot::replicas(2).start_each(club);
    let ana = joins(&bot).await;
    bot.replica(1).stop().await;
    ana.expect_reply("Welcome, Ana, says 1").await;
    ana.says("hi").await;
    ana.expect_reply("hi at 2").await;
    bot.replica(2).stop().await;
    assert!(!bot.replica(2).is_running() && !bot.replica(2).has_crashed());
}

#[tokio::test]
async fn a_replica_that_freezes_while_it_stops_is_stopped_when_it_thaws_or_killed_by_a_restart() {
    let bot = TestBot::replicas(2).start_each(club);
    joins(&bot).await;
    let replica = bot.replica(1);
    replica.freeze_after(2);
    replica.stop().await;
    assert!(bot.transcript().ends_with("! replica-1 stands still\n"), "{}", bot.transcript());
    replica.thaw().await;
    bot.advance("1m").await;
    assert!(!replica.is_running() && !replica.has_crashed());
    replica.restart().await;
    assert!(replica.is_running());
    replica.freeze();
    replica.restart().await;
    assert!(replica.is_running());
    assert!(bot.transcript().contains("! replica-1 is killed\n"), "{}", bot.transcript());
}

#[tokio::test]
async fn a_new_version_is_deployed_to_one_replica_and_then_to_the_other() {
    let bot = TestBot::replicas(2).start_each(club);
    let ana = bot.user("ana");
    ana.through(1).says("join").await;
    ana.expect_reply("Your name?").await;
    bot.replica(2).deploy(|bot| club(22, bot)).await;
    ana.through(2).says("Ana").await;
    ana.expect_reply("Welcome, Ana, says 22").await;
    ana.through(1).says("hi").await;
    ana.expect_reply("hi at 1").await;
    bot.replica(2).crash();
    bot.replica(2).restart().await;
    ana.through(2).says("hi").await;
    ana.expect_reply("hi at 22").await;
    bot.replica(1).deploy(|bot| club(11, bot)).await;
    ana.through(1).says("hi").await;
    ana.expect_reply("hi at 11").await;
}

#[tokio::test]
async fn replicas_without_journals_share_what_their_store_holds() {
    let bot = TestBot::replicas(2).without_durability().handover(HandoverConfig::default()).start_each(club);
    let ana = bot.user("ana");
    ana.through(2).says("join").await;
    ana.expect_reply("Your name?").await;
    bot.replica(2).crash();
    ana.says("Ana").await;
    ana.expect_reply(containing("says 1")).await;
    bot.replica(1).stop().await;
}

#[tokio::test]
async fn what_an_earlier_bot_left_in_the_store_goes_on_though_time_begins_anew() {
    let store = Arc::new(MemoryStore::new());
    let options =
        || TestBot::replicas(2).without_durability().shared_store(Arc::<MemoryStore>::clone(&store));
    let bot = options().start_each(club);
    bot.advance("1h").await;
    bot.user("ana").says("join").await;
    drop(bot);
    let bot = options().start_each(club);
    let ana = bot.user("ana");
    ana.through(2).says("Ana").await;
    ana.expect_reply("Welcome, Ana, says 2").await;
    bot.expect_handover(&ana, "signup", HandoverOutcome::Resumed).await;
}

/// Everything that happens on it.
async fn busy_day(seed: u64) -> String {
    let bot = TestBot::replicas(3).seed(seed).start_each(club);
    let users = ["ana", "ben", "eva"].map(|name| bot.user(name));
    for round in 0..4 {
        // Tried again after a random delay.
        bot.channel().fail_next(ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy"));
        match round {
            0 => bot.replica(2).crash_after(WritePoint::InboxFinish),
            1 => bot.replica(1).freeze_after(20),
            2 => bot.replica(3).crash(),
            _ => {}
        }
        for (place, user) in (1..).zip(&users) {
            user.through((round + place) % 3 + 1).says(if round == 1 { "join" } else { "hi" }).await;
        }
        bot.advance("45s").await;
        if bot.replica(2).has_crashed() {
            bot.replica(2).restart().await;
        }
    }
    bot.replica(1).thaw().await;
    bot.advance("2m").await;
    bot.transcript()
}

#[tokio::test]
async fn the_same_steps_with_the_same_seed_give_the_same_transcript() {
    for seed in 0..10 {
        let first = busy_day(seed).await;
        assert!(first.contains("! replica-1 stands still\n"), "{first}");
        for _ in 0..3 {
            assert_eq!(busy_day(seed).await, first, "seed {seed}");
        }
        assert_ne!(busy_day(seed + 1).await, first, "seed {seed}");
    }
}

#[tokio::test]
async fn the_order_in_which_replicas_go_on_is_drawn_from_the_seed() {
    let mut orders = BTreeSet::new();
    for seed in 0..20 {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&heard);
        let bot = TestBot::replicas(2).seed(seed).start_each(move |replica, bot| {
            let seen = Arc::clone(&seen);
            bot.every(Duration::from_secs(1), move |_| {
                let seen = Arc::clone(&seen);
                async move {
                    seen.lock().unwrap().push(replica);
                    Result::<()>::Ok(())
                }
            })
            .otherwise(|c: Ctx| async move { c.reply("hi").await })
        });
        bot.advance("2s").await;
        let order = heard.lock().unwrap().clone();
        assert_eq!(order.len(), 4, "{order:?}");
        orders.insert(order);
    }
    assert_eq!(orders.len(), 4, "{orders:?}");
}

#[tokio::test]
async fn a_hand_over_that_was_not_expected_is_told() {
    let bot = TestBot::replicas(2).start_each(club);
    let (ana, ben) = (bot.user("ana"), bot.user("ben"));
    ana.through(1).says("join").await;
    bot.expect_no_handover().await;
    let nothing = failure(bot.expect_handover(&ana, "signup", HandoverOutcome::Resumed)).await;
    let wanted = "ana: expected a hand-over of `signup`: Resumed, but nothing is handed over\n";
    assert!(nothing.starts_with(wanted), "{nothing}");
    let team = ben.in_group("team");
    for user in [&team, &ben] {
        user.through(1).says("join").await;
    }
    for user in [&ana, &team, &ben] {
        user.through(2).says("Ana").await;
    }
    bot.expect_handover(&team, "signup", HandoverOutcome::Resumed).await;
    let dropped = failure(bot.expect_handover(&ben, "signup", HandoverOutcome::Dropped)).await;
    let wanted =
        "ben: expected a hand-over of `signup`: Dropped, but replica-2 tells that `signup` is Resumed\n";
    assert!(dropped.starts_with(wanted), "{dropped}");
    let unexpected = failure(bot.expect_no_handover()).await;
    let wanted = "expected no hand-over, but replica-2 tells that `signup` of ana is Resumed\n";
    assert!(unexpected.starts_with(wanted), "{unexpected}");
    bot.expect_no_handover().await;
}

#[tokio::test]
async fn hand_overs_follow_their_configuration() {
    let talk = |bot: BotBuilder, questions: &'static [&'static str]| {
        let mut survey = flow::<Signup>("survey");
        for &question in questions {
            survey = survey.ask(question, question, |_, _| Ok(()));
        }
        bot.when("survey", |c: Ctx| async move { c.enter("survey") }).flow(survey.say("Thanks."))
    };
    let config = HandoverConfig::default()
        .with_flows(HandoverFlows::Forward)
        .with_fallback(Fallback::Notify)
        .with_notify_message("Sorry, once more.");
    for durable in [true, false] {
        let options = TestBot::replicas(2).handover(config.clone());
        let options = if durable { options } else { options.without_durability() };
        let bot = options.start(move |bot| talk(bot, &["One?", "Two?"]));
        let ana = bot.user("ana");
        ana.through(1).says("survey").await;
        ana.expect_reply("One?").await;
        ana.through(2).says("1").await;
        ana.expect_reply("Two?").await;
        bot.expect_handover(&ana, "survey", HandoverOutcome::Resumed).await;
        bot.replica(1).deploy(move |bot| talk(bot, &["One?", "Two?", "Three?"])).await;
        ana.through(1).says("2").await;
        ana.expect_reply("Sorry, once more.").await;
        assert_eq!(bot.expect_handover(&ana, "survey", HandoverOutcome::Notified).await, 1);
    }
}
