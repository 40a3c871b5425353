//! Conversations that cannot go on elsewhere: what their user is told, and what is kept of them.

use std::sync::{Arc, Mutex};

use botmesh::core::inbound::Inbound;
use botmesh::core::journal::WritePoint;
use botmesh::core::store::CheckpointPhase;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Fallback, HandoverConfig, HandoverOutcome, InterruptedReason, OnIncompatible};

use crate::fleet::{Fleet, MINUTE, Replica, Write, routes};

const SORRY: &str = "Sorry, our conversation was interrupted";

async fn chat(c: Conv) -> Result {
    let greeting: String = c.input().unwrap_or_default();
    c.say(format!("Welcome{greeting}!")).await?;
    let name = c.ask("What is your name?").await?;
    let age = c.ask("How old are you?").await?;
    c.say(format!("{} is {}.", name.text(), age.text())).await?;
    Ok(())
}

fn talks(bot: BotBuilder) -> BotBuilder {
    routes(bot)
        .when("greet", |c: Ctx| async move { c.enter_with("signup", &" back") })
        .conversation("signup", chat)
}

fn falling_back_to(fallback: Fallback) -> HandoverConfig {
    HandoverConfig::default().with_fallback(fallback)
}

/// A conversation that waits on the first of two replicas.
async fn interrupted(
    fallback: Fallback,
    build: impl Fn(BotBuilder) -> BotBuilder,
) -> (Fleet, Replica, Replica) {
    let mut fleet = Fleet::new(falling_back_to(fallback));
    let (a, b) = fleet.pair(build);
    assert_eq!(a.hears("1", "sign up").await, ["Welcome!", "What is your name?"]);
    (fleet, a, b)
}

#[tokio::test]
async fn by_default_nothing_happens_and_the_message_is_routed_as_a_new_one() {
    let (fleet, _a, mut b) = interrupted(Fallback::Drop, talks).await;
    assert_eq!(b.hears("2", "Ana").await, ["What?"]);
    assert_eq!(b.outcomes(), []);
    assert_eq!(fleet.store.writes(), [], "there is no stub of what nothing is done about");
}

#[tokio::test]
async fn notify_tells_the_user_and_consumes_the_message() {
    let (_fleet, a, mut b) = interrupted(Fallback::Notify, talks).await;
    let said = b.hears("2", "sign up").await;
    assert!(said.len() == 1 && said[0].starts_with(SORRY), "the message is handled as well: {said:?}");
    assert_eq!(b.outcomes(), [HandoverOutcome::Notified]);
    assert_eq!(b.hears("3", "Ana").await, ["What?"], "it is told once");
    assert_eq!(a.hears("4", "Ana").await, ["What?"]);
}

#[tokio::test]
async fn notify_speaks_the_language_of_the_chat() {
    for (language, begin) in [("en", "Sorry"), ("es-AR", "Lo "), ("pt-BR", "Desculpe")] {
        let (_fleet, _a, b) = interrupted(Fallback::Notify, talks).await;
        let mut inbound = Inbound::text("2", "ana", "Ana");
        inbound.sender.as_mut().expect("a sender").language = Some(language.to_owned());
        let said = b.gets(inbound).await;
        assert!(said.len() == 1 && said[0].starts_with(begin), "{language}: {said:?}");
    }
}

#[tokio::test]
async fn notify_says_the_message_of_the_configuration() {
    let handover = falling_back_to(Fallback::Notify).with_notify_message("Where were we?");
    let mut fleet = Fleet::new(handover);
    let (a, b) = fleet.pair(talks);
    a.hears("1", "sign up").await;
    assert_eq!(b.hears("2", "Ana").await, ["Where were we?"]);
}

#[tokio::test]
async fn restart_begins_with_what_it_was_entered_with_and_what_ran_before_its_first_wait_runs_again() {
    let mut fleet = Fleet::new(falling_back_to(Fallback::Restart));
    let (a, mut b) = fleet.pair(talks);
    assert_eq!(a.hears("1", "greet").await, ["Welcome back!", "What is your name?"]);
    assert_eq!(a.hears("2", "Ana").await, ["How old are you?"]);
    assert_eq!(b.hears("3", "30").await, ["Welcome back!", "What is your name?"]);
    assert_eq!(b.outcomes(), [HandoverOutcome::Restarted]);
    assert_eq!(b.hears("4", "Bea").await, ["How old are you?"]);
    assert_eq!(b.hears("5", "40").await, ["Bea is 40."]);
}

#[tokio::test]
async fn a_function_decides_and_knows_what_was_interrupted() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let function = Fallback::function(move |info, c: Ctx| {
        tell.lock().expect("a lock").push((info.name, info.reason, info.state));
        async move {
            c.reply(format!("lost at {}", c.text())).await?;
            Ok(c.text() == "Ana")
        }
    });
    for (text, answers, outcome) in [
        ("Ana", ["lost at Ana"].as_slice(), HandoverOutcome::Taken),
        ("hello", &["lost at hello", "What?"], HandoverOutcome::Dropped),
    ] {
        let mut fleet = Fleet::new(falling_back_to(function.clone()));
        let (a, mut b) = fleet.pair(talks);
        a.hears("1", "greet").await;
        assert_eq!(b.hears("2", text).await, answers);
        assert_eq!(b.outcomes(), [outcome]);
        assert_eq!(b.hears("3", text).await, ["What?"], "it is asked once");
    }
    let input = Some(serde_json::json!(" back"));
    let expected = ("signup".to_owned(), InterruptedReason::InMemory, input);
    assert_eq!(*told.lock().expect("a lock"), [expected.clone(), expected]);
}

#[tokio::test]
async fn a_function_may_enter_a_conversation() {
    let function = Fallback::function(|_, c: Ctx| async move {
        c.enter_with("signup", &" again")?;
        Ok(true)
    });
    let (_fleet, _a, b) = interrupted(function, talks).await;
    assert_eq!(b.hears("2", "Ana").await, ["Welcome again!", "What is your name?"]);
    assert_eq!(b.hears("3", "Ana").await, ["How old are you?"]);
}

#[tokio::test]
async fn an_error_of_the_function_is_one_of_the_handler() {
    let function = Fallback::function(|_, _| async { Err("no idea".into()) });
    let (_fleet, _a, mut b) = interrupted(function, talks).await;
    assert_eq!(b.hears("2", "Ana").await, Vec::<String>::new());
    let told = |event| matches!(event, BotEvent::Error { error, .. } if error.contains("no idea"));
    assert!(b.events().into_iter().any(told));
}

#[tokio::test]
async fn what_a_conversation_says_of_itself_wins_over_the_fallback_of_the_bot() {
    for (own, answers) in [
        (OnIncompatible::Drop, ["What?"].as_slice()),
        (OnIncompatible::Restart, &["Welcome!", "What is your name?"]),
        (OnIncompatible::Notify(Box::new("We lost you.".into())), &["We lost you."]),
    ] {
        let build = |bot: BotBuilder| {
            routes(bot).add_conversation(conversation("signup", chat).on_interrupted(own.clone()))
        };
        for fallback in [Fallback::Drop, Fallback::Notify] {
            let (_fleet, _a, b) = interrupted(fallback, build).await;
            assert_eq!(b.hears("2", "Ana").await, answers, "{own:?}");
        }
    }
}

#[tokio::test]
async fn a_conversation_costs_two_writes_of_the_store() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(falling_back_to(Fallback::Notify)).with_durability(durable);
        let a = fleet.start(talks);
        assert_eq!(a.hears("1", "sign up").await, ["Welcome!", "What is your name?"]);
        assert_eq!(fleet.store.writes(), [Write::Set(CheckpointPhase::Stub)], "durable: {durable}");
        assert_eq!(a.hears("2", "Ana").await, ["How old are you?"]);
        assert_eq!(fleet.store.writes(), [], "durable: {durable}");
        assert_eq!(a.hears("3", "30").await, ["Ana is 30."]);
        assert_eq!(fleet.store.writes(), [Write::Clear], "durable: {durable}");
        fleet.pass(60 * MINUTE).await;
        assert_eq!((fleet.store.writes(), fleet.row()), (Vec::new(), None), "durable: {durable}");
    }
}

#[tokio::test]
async fn a_conversation_that_times_out_clears_its_stub() {
    let brief = |c: Conv| async move {
        c.ask("What is your name?").timeout(MINUTE).await?;
        Ok::<_, botmesh::Error>(())
    };
    let mut fleet = Fleet::new(falling_back_to(Fallback::Notify));
    let (a, b) = fleet.pair(|bot| routes(bot).conversation("signup", brief));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    fleet.pass(2 * MINUTE).await;
    assert_eq!(fleet.row(), None);
    assert_eq!(b.hears("2", "Ana").await, ["What?"]);
}

#[tokio::test]
async fn a_stub_is_kept_after_a_graceful_stop() {
    let (fleet, a, mut b) = interrupted(Fallback::Notify, talks).await;
    a.life.stop().await;
    fleet.pass(60 * MINUTE).await;
    let said = b.hears("2", "Ana").await;
    assert!(said.len() == 1 && said[0].starts_with(SORRY), "{said:?}");
    assert_eq!(b.outcomes(), [HandoverOutcome::Notified]);
}

#[tokio::test]
async fn a_conversation_whose_replica_lost_its_lease_goes_on_there_if_nobody_took_the_chat() {
    let (_fleet, a, _b) = interrupted(Fallback::Notify, talks).await;
    a.coordinator.lose();
    assert_eq!(a.hears("2", "Ana").await, ["How old are you?"]);
    assert_eq!(a.hears("3", "30").await, ["Ana is 30."]);
}

#[tokio::test]
async fn it_is_told_once_though_the_first_message_of_the_conversation_may_come_again() {
    let handover = falling_back_to(Fallback::Notify).with_notify_message("It is gone.");
    let asks = async |c: Conv| c.ask("What is your name?").await.map(drop);
    let mut fleet = Fleet::new(handover);
    let (a, b) = fleet.pair(|bot| routes(bot).conversation("signup", asks));
    a.life.journal.crash_before(WritePoint::InboxFinish);
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    assert!(a.life.journal.crashed());
    a.dies().await;
    assert_eq!(b.hears("2", "Ana").await, ["It is gone."]);
    assert_eq!(b.hears("3", "Ana").await, ["What?"]);
    fleet.pass(5 * MINUTE).await;
    assert_eq!(b.said(), ["It is gone.", "What?"], "the conversation begins again");
}
