//! Which process answers: one, and another one when it is gone.

use std::sync::Arc;
use std::time::Duration;

use botmesh::BotBuilder;
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{Change, InboxRecord, Journal};
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use tokio::sync::Semaphore;

use crate::support::Stage;

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

fn stuck(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|_: Ctx| std::future::pending::<()>())
}

fn named(instance: &str) -> Durability {
    Durability::default().with_instance_id(instance)
}

#[tokio::test]
async fn a_second_process_of_the_instance_stops_the_first() {
    let stage = Stage::new(Resolve::Never);
    let mut first = stage.start(echo);
    first.say("m1", "hi", 1).await;
    let second = stage.start(echo);
    first.until("the end of the first", || first.ended.get().is_some()).await;
    let error = first.ended.get().expect("an end").as_ref().expect_err("a reason");
    assert!(error.contains("`bot`") && error.contains("instance id of its own"), "{error}");
    assert!(first.event_names().contains(&"durability:superseded"));
    second.say("m2", "ho", 1).await;
    second.stop().await;
}

#[tokio::test]
async fn what_a_dead_instance_left_is_taken_over_when_its_lease_ran_out() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(stuck);
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.kill().await;
    let other = stage.start_with(named("other"), echo);
    stage.clock.advance(Duration::from_secs(50)).await;
    assert!(stage.channel.texts_to("ana").is_empty(), "taken over within the lease");
    other.until("the reply", || stage.channel.texts_to("ana") == ["hi"]).await;
    other.stop().await;
}

#[tokio::test]
async fn what_a_stopped_instance_left_is_taken_over_at_once() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(stuck);
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.stop().await;
    let other = stage.start_with(named("other"), echo);
    stage.clock.advance(Duration::from_secs(2)).await;
    assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
    other.stop().await;
}

#[tokio::test]
async fn two_processes_that_find_the_same_work_do_it_once() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(stuck);
    for n in 0..20 {
        assert!(life.deliver(Inbound::text(format!("m{n}"), format!("chat-{n}"), "hi")).await);
    }
    life.kill().await;
    let others = [stage.start_with(named("one"), echo), stage.start_with(named("two"), echo)];
    others[0].until("all replies", || stage.channel.delivered().len() >= 20).await;
    stage.clock.advance(Duration::from_secs(120)).await;
    assert_eq!(stage.channel.sent().len(), 20);
    let replayed: u64 = others.iter().map(|life| life.bot.metrics().inbound_replayed).sum();
    assert_eq!(replayed, 20);
    for life in others {
        life.stop().await;
    }
}

#[tokio::test]
async fn a_process_that_was_silent_too_long_says_nothing_twice() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&gate);
    let silent = stage.start(|bot| {
        bot.otherwise(move |c: Ctx| {
            let gate = Arc::clone(&waits);
            async move {
                drop(gate.acquire().await);
                c.reply(c.text()).await
            }
        })
    });
    assert!(silent.deliver(Inbound::text("m1", "ana", "hi")).await);
    silent.journal.set_down(true);
    let other = stage.start_with(named("other"), echo);
    other.until("the other one's reply", || stage.channel.texts_to("ana") == ["hi"]).await;
    silent.journal.set_down(false);
    gate.add_permits(1);
    silent.until("the end of the silent one", || silent.ended.get().is_some()).await;
    assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
    assert_eq!(silent.bot.metrics().stale_leases, 1);
    other.stop().await;
}

#[tokio::test]
async fn a_backend_that_is_away_for_a_while_costs_no_message() {
    let stage = Stage::new(Resolve::Lookup);
    let life = stage.start(echo);
    life.say("m0", "0", 1).await;
    life.settled().await;
    life.journal.set_down(true);
    assert!(!life.deliver(Inbound::text("m1", "ana", "1")).await, "taken over without a journal");
    stage.clock.advance(Duration::from_secs(30)).await;
    life.journal.set_down(false);
    assert_eq!(life.say("m1", "1", 1).await, ["1"]);
    assert_eq!(life.say("m2", "2", 1).await, ["2"]);
    life.stop().await;
}

/// Case A11.
#[tokio::test]
async fn what_a_dead_process_left_is_found_behind_ten_thousand_messages_that_others_handle() {
    let stage = Stage::new(Resolve::Never);
    let (busy, dead) = (stage.journal("busy").await, stage.journal("dead").await);
    let now = busy.now().await.expect("the time");
    let working = |journal: &Journal, chat: String| {
        let inbound = Arc::new(Inbound::text("m1", chat, "hi"));
        Change::insert(&InboxRecord::working(inbound, busy.next_order(now), journal.owner(), now))
    };
    for thousand in 0..10 {
        let changes = (0..1000).map(|n| working(&busy, format!("chat-{thousand}-{n}"))).collect();
        let _ = busy.commit(changes).await.expect("a commit");
    }
    let _ = dead.commit_one(working(&dead, "ana".to_owned())).await.expect("a commit");
    dead.end_session().await.expect("an end");
    let life = stage.start(echo);
    life.until("the reply", || stage.channel.texts_to("ana") == ["hi"]).await;
    life.settled().await;
    assert_eq!(stage.channel.sent().len(), 1, "what others handle is theirs");
    life.stop().await;
}
