//! Channels that send back what they delivered: a lost answer is no riddle for long.

use std::time::Duration;

use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::OutboxState;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, OnAmbiguous};
use botmesh_testing::SendFault;

use crate::support::{Life, Stage};

const WAIT: Duration = Duration::from_secs(30);

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

fn stage() -> Stage {
    Stage::new(Resolve::Echo { wait: WAIT })
}

fn start(stage: &Stage, policy: OnAmbiguous) -> Life {
    let durability = Durability::default().with_instance_id("bot").with_on_ambiguous(policy);
    stage.start_with(durability, echo)
}

async fn state(life: &Life) -> OutboxState {
    let journal = life.bot.durability().expect("a durable bot");
    let stored = journal.outbox().get(&"m/ana/m1:0".into()).await.expect("a read");
    stored.expect("the reply").record.state
}

#[tokio::test]
async fn an_echo_resolves_a_lost_answer_and_nobody_is_bothered() {
    for policy in [OnAmbiguous::Auto, OnAmbiguous::Resend] {
        let stage = stage();
        let mut life = start(&stage, policy);
        stage.channel.lose_answer_next();
        assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
        life.settled().await;
        stage.clock.advance(Duration::from_secs(10)).await;
        assert_eq!(state(&life).await, OutboxState::Unknown);
        stage.channel.echo("ana").await.expect("an echo");
        assert_eq!(state(&life).await, OutboxState::Sent);
        stage.clock.advance(WAIT * 2).await;
        assert_eq!(stage.channel.sent().len(), 1);
        assert_eq!(life.bot.metrics().outbox_ambiguous, 0);
        let events = life.event_names();
        assert!(!events.iter().any(|name| name.starts_with("durability")), "{events:?}");
        life.stop().await;
    }
}

#[tokio::test]
async fn without_an_echo_the_policy_decides_and_an_operator_is_told() {
    for (policy, calls, end) in
        [(OnAmbiguous::Auto, 1, OutboxState::Unknown), (OnAmbiguous::Resend, 2, OutboxState::Sent)]
    {
        let stage = stage();
        let mut life = start(&stage, policy);
        stage.channel.lose_answer_next();
        assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
        life.settled().await;
        stage.clock.advance(WAIT - Duration::from_secs(5)).await;
        assert_eq!(stage.channel.sent().len(), 1, "{policy:?}");
        assert_eq!(life.bot.metrics().outbox_ambiguous, 0);
        stage.clock.advance(Duration::from_secs(20)).await;
        assert_eq!(stage.channel.sent().len(), calls, "{policy:?}");
        assert_eq!(life.bot.metrics().outbox_ambiguous, 1);
        assert_eq!(state(&life).await, end);
        assert!(life.event_names().contains(&"durability:ambiguous"));
        life.stop().await;
    }
}

#[tokio::test]
async fn an_echo_that_comes_late_resolves_what_was_given_up() {
    let stage = stage();
    let mut life = start(&stage, OnAmbiguous::Skip);
    stage.channel.lose_answer_next();
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.settled().await;
    assert_eq!(state(&life).await, OutboxState::Unknown);
    for _ in 0..2 {
        stage.channel.echo("ana").await.expect("an echo");
    }
    assert_eq!(state(&life).await, OutboxState::Sent);
    let events = life.event_names();
    assert_eq!(events.iter().filter(|name| **name == "durability:resolved").count(), 1, "{events:?}");
    life.stop().await;
}

#[tokio::test]
async fn an_echo_that_comes_while_the_channel_is_called_counts_when_the_answer_is_lost() {
    let stage = stage();
    let mut life = start(&stage, OnAmbiguous::Skip);
    stage.channel.fault_next(SendFault::HangAnswer);
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.until("the call", || stage.channel.sent().len() == 1).await;
    let answered = async {
        stage.channel.release();
        life.settled().await;
        stage.clock.advance(Duration::from_secs(1)).await;
    };
    // It is taken over when the journal has it.
    let (echo, ()) = tokio::join!(stage.channel.echo("ana"), answered);
    echo.expect("an echo");
    assert_eq!(state(&life).await, OutboxState::Sent);
    assert!(!life.event_names().contains(&"durability:ambiguous"));
    life.stop().await;
}

#[tokio::test]
async fn an_echo_of_a_call_that_stands_still_is_asked_for_again() {
    let stage = stage();
    let life = start(&stage, OnAmbiguous::Auto);
    stage.channel.fault_next(SendFault::HangAnswer);
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.until("the call", || stage.channel.sent().len() == 1).await;
    let (echo, ()) = tokio::join!(stage.channel.echo("ana"), stage.clock.advance(Duration::from_secs(6)));
    // If the process died now, nobody else would know of it.
    assert!(echo.is_err(), "it is not journaled");
    stage.channel.release();
    life.settled().await;
    stage.channel.echo("ana").await.expect("an echo");
    assert_eq!(state(&life).await, OutboxState::Sent);
    life.stop().await;
}

#[tokio::test]
async fn an_echo_ends_the_retries_of_a_message_that_had_arrived() {
    let stage = stage();
    let life = start(&stage, OnAmbiguous::Resend);
    stage.channel.lose_answer_next();
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.settled().await;
    for _ in 0..3 {
        let busy = ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy");
        stage.channel.fail_next(busy);
    }
    stage.clock.advance(WAIT + Duration::from_secs(5)).await;
    assert!(stage.channel.sent().len() > 1, "the send is tried again");
    stage.channel.echo("ana").await.expect("an echo");
    stage.clock.advance(WAIT * 4).await;
    assert_eq!(stage.channel.delivered().len(), 1);
    assert_eq!(state(&life).await, OutboxState::Sent);
    life.stop().await;
}

#[tokio::test]
async fn a_send_that_a_dead_process_left_is_resolved_by_its_echo() {
    let stage = stage();
    let life = start(&stage, OnAmbiguous::Auto);
    stage.channel.lose_answer_next();
    // Killed when the channel has the message and the journal does not know.
    life.journal.fail_commit(4, botmesh_testing::Fault::CrashBefore);
    let _ = life.deliver(Inbound::text("m1", "ana", "hi")).await;
    life.until("the crash", || life.journal.crashed()).await;
    life.kill().await;
    let mut life = start(&stage, OnAmbiguous::Auto);
    life.until("the replay", || life.bot.metrics().inbound_replayed == 1).await;
    life.settled().await;
    stage.channel.echo("ana").await.expect("an echo");
    assert_eq!(state(&life).await, OutboxState::Sent);
    stage.clock.advance(WAIT * 2).await;
    assert_eq!(stage.channel.sent().len(), 1);
    assert!(!life.event_names().contains(&"durability:ambiguous"));
    life.stop().await;
}

#[tokio::test]
async fn echoes_of_unknown_messages_are_nobodys_business() {
    let stage = stage();
    let plain = stage.start_plain(echo);
    plain.say("m1", "hi", 1).await;
    plain.stop().await;
    let life = start(&stage, OnAmbiguous::Auto);
    life.say("m2", "ho", 1).await;
    stage.channel.echo("ana").await.expect("an echo");
    assert_eq!(life.bot.metrics().stale_leases, 0);
    life.stop().await;
}
