//! Nothing is lost and nothing comes twice, whichever write fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use botmesh::core::inbound::Inbound;
use botmesh::core::journal::InboxState;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, OnAmbiguous};
use botmesh_testing::Fault;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};

use crate::support::{Life, Stage};

#[derive(Default, Serialize, Deserialize)]
struct Booking {
    name: String,
    day: String,
}

impl FlowState for Booking {}

async fn go(c: Ctx) -> Result {
    c.reply("one").await?;
    let times = c.user().increment("times", 1).await?;
    c.reply(format!("two {times}")).await?;
    Ok(())
}

fn desk(bot: BotBuilder) -> BotBuilder {
    let booking = flow("booking")
        .ask("name", "name?", |booking: &mut Booking, answer| {
            booking.name = answer.text().to_owned();
            Ok(())
        })
        .ask("day", "day?", |booking: &mut Booking, answer| {
            booking.day = answer.text().to_owned();
            Ok(())
        })
        .do_("save", |c| async move {
            c.user().increment("bookings", 1).await?;
            Ok(Step::Next)
        })
        .say(|booking: &Booking| format!("booked {} {}", booking.name, booking.day))
        .persistent();
    bot.when("go", go).when("book", |c: Ctx| async move { c.enter("booking") }).flow(booking)
}

const MESSAGES: [&str; 5] = ["go", "book", "Ana", "monday", "go"];
const REPLIES: [&str; 7] = ["one", "two 1", "name?", "day?", "booked Ana monday", "one", "two 2"];

/// Delivers every message, as a channel does that goes on where it was not confirmed.
async fn deliver_all(life: &Life, first: usize) -> usize {
    for (n, text) in MESSAGES.iter().enumerate().skip(first) {
        while !life.deliver(Inbound::text(format!("m{n}"), "ana", *text)).await {
            if life.journal.crashed() {
                return n;
            }
        }
    }
    MESSAGES.len()
}

/// Runs the dialogue with `fault` at the n-th commit, in a second life if the first one dies. `None` when the dialogue
/// has fewer commits.
async fn dialogue(
    fault: Fault,
    n: u64,
    resolve: Resolve,
    policy: OnAmbiguous,
) -> Option<(Stage, Vec<String>)> {
    let stage = Stage::new(resolve);
    let durability = || Durability::default().with_instance_id("bot").with_on_ambiguous(policy);
    let life = stage.start_with(durability(), desk);
    life.journal.fail_commit(n, fault);
    let done = deliver_all(&life, 0).await;
    if done == MESSAGES.len() && !life.journal.crashed() {
        life.settled().await;
    }
    let reached = life.journal.commits() >= n;
    if life.journal.crashed() {
        life.kill().await;
        let life = stage.start_with(durability(), desk);
        // Everything again: what had been taken over is recognised.
        deliver_all(&life, 0).await;
        life.settled().await;
        life.stop().await;
    } else {
        life.stop().await;
    }
    let replies = stage.channel.texts_to("ana");
    reached.then_some((stage, replies))
}

#[tokio::test]
async fn every_reply_comes_exactly_once_whichever_write_fails() {
    for fault in [Fault::FailBefore, Fault::LoseAnswer, Fault::CrashBefore, Fault::CrashAfter] {
        let mut commits = 0;
        while let Some((stage, replies)) =
            dialogue(fault, commits + 1, Resolve::Lookup, OnAmbiguous::Skip).await
        {
            commits += 1;
            assert_eq!(replies, REPLIES, "{fault:?} at commit {commits}\n{}", stage.channel.transcript());
        }
        assert!(commits > 12, "the dialogue has only {commits} commits");
    }
}

#[tokio::test]
async fn skipping_never_doubles_and_resending_never_loses() {
    for (policy, fault) in [
        (OnAmbiguous::Skip, Fault::CrashBefore),
        (OnAmbiguous::Skip, Fault::CrashAfter),
        (OnAmbiguous::Resend, Fault::CrashBefore),
        (OnAmbiguous::Resend, Fault::CrashAfter),
    ] {
        let mut commits = 0;
        while let Some((stage, replies)) = dialogue(fault, commits + 1, Resolve::Never, policy).await {
            commits += 1;
            let mut distinct = replies.clone();
            distinct.dedup();
            let transcript = stage.channel.transcript();
            let expected =
                if policy == OnAmbiguous::Skip { replies.as_slice() } else { &REPLIES.map(str::to_owned) };
            assert_eq!(distinct, expected, "{policy:?} at commit {commits}\n{transcript}");
        }
    }
}

#[tokio::test]
async fn a_message_with_one_reply_costs_three_commits() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.when("hi", |c: Ctx| async move { c.reply("hello").await }));
    life.say("m1", "hi", 1).await;
    life.settled().await;
    let before = life.journal.commits();
    life.say("m2", "hi", 1).await;
    life.settled().await;
    assert_eq!(life.journal.commits() - before, 3);
    life.stop().await;
}

#[tokio::test]
async fn a_redelivery_is_recognised_also_after_a_restart() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(desk);
    life.say("m1", "go", 2).await;
    assert!(life.deliver(Inbound::text("m1", "ana", "go")).await);
    life.settled().await;
    life.stop().await;
    let life = stage.start(desk);
    assert!(life.deliver(Inbound::text("m1", "ana", "go")).await);
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["one", "two 1"]);
    assert_eq!(life.bot.metrics().inbound_duplicates, 1);
    life.stop().await;
}

#[tokio::test]
async fn the_same_id_of_two_people_or_two_kinds_is_not_a_redelivery() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply("yes").await }));
    for person in ["ana", "bob"] {
        let mut inbound = Inbound::text("3EB0AA", "group", "hi");
        inbound.group = true;
        inbound.sender = Some(botmesh::core::inbound::Participant::new(person));
        assert!(life.deliver(inbound).await);
    }
    let pressed = InboundBody::Interaction { id: "b".to_owned(), title: "B".to_owned() };
    assert!(life.deliver(Inbound::private("3EB0AA", "group", pressed)).await);
    life.until("three answers", || stage.channel.texts_to("group").len() == 3).await;
    life.stop().await;
}

#[tokio::test]
async fn a_message_that_kills_the_process_is_given_up_after_its_attempts() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    for start in 0..7 {
        let counted = Arc::clone(&runs);
        let life = stage.start(move |bot| {
            bot.when("poison", move |_: Ctx| {
                counted.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<()>()
            })
            .otherwise(|c: Ctx| async move { c.reply("fine").await })
        });
        if start == 0 {
            assert!(life.deliver(Inbound::text("m1", "eve", "poison")).await);
        }
        life.until("a run", || runs.load(Ordering::Relaxed) >= (start + 1).min(5)).await;
        life.say(&format!("other-{start}"), "hi", 1).await;
        life.kill().await;
    }
    assert_eq!(runs.load(Ordering::Relaxed), 5);
    let life = stage.start(desk);
    life.say("last", "go", 2).await;
    let journal = life.bot.journal().expect("a durable bot");
    let dead = journal.inbox().list(InboxState::Dead, None, 10).await.expect("a listing");
    assert_eq!(dead.records.len(), 1);
    // A redelivery does not bring it back.
    assert!(life.deliver(Inbound::text("m1", "eve", "poison")).await);
    life.settled().await;
    assert_eq!(life.bot.metrics().inbound_duplicates, 1);
    life.stop().await;
}

#[tokio::test]
async fn an_event_whose_delivery_was_cut_off_is_handled_once() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(desk);
        life.say("m0", "go", 2).await;
        life.settled().await;
        life.journal.fail_next(fault);
        let cut_off = stage.channel.deliver(Inbound::text("m1", "ana", "go")).now_or_never();
        assert!(cut_off.is_none(), "it was taken over at once");
        life.journal.release();
        assert!(life.deliver(Inbound::text("m1", "ana", "go")).await);
        life.until("its replies", || stage.channel.texts_to("ana").len() >= 4).await;
        life.settled().await;
        assert_eq!(stage.channel.texts_to("ana"), ["one", "two 1", "one", "two 2"], "{fault:?}");
        life.stop().await;
    }
}

#[tokio::test]
async fn a_failing_acknowledgement_does_not_run_the_handler_again() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(desk);
    life.say("m0", "go", 2).await;
    life.settled().await;
    let first = life.journal.commits() + 1;
    // One commit takes the event over, two begin the sends; the next three are tries to finish it.
    for n in 3..6 {
        life.journal.fail_commit(first + n, Fault::FailBefore);
    }
    life.say("m1", "go", 2).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["one", "two 1", "one", "two 2"]);
    let journal = life.bot.journal().expect("a durable bot");
    let working = journal.inbox().list(InboxState::Working, None, 10).await.expect("a listing");
    assert!(working.records.is_empty());
    life.stop().await;
}

#[tokio::test]
async fn a_second_process_of_the_instance_stops_the_first() {
    let stage = Stage::new(Resolve::Never);
    let mut first = stage.start(desk);
    first.say("m1", "go", 2).await;
    let second = stage.start(desk);
    first.until("the end of the first", || !first.spawner.running().contains(&"bot")).await;
    assert!(first.event_names().contains(&"durability:superseded"));
    second.say("m2", "go", 2).await;
    second.stop().await;
}

#[tokio::test]
async fn what_a_dead_instance_left_is_taken_over_when_its_lease_ran_out() {
    let stage = Stage::new(Resolve::Never);
    let stuck = stage.start(|bot| bot.when("go", |_: Ctx| std::future::pending::<()>()));
    assert!(stuck.deliver(Inbound::text("m1", "ana", "go")).await);
    stuck.kill().await;
    let other = stage.start_with(Durability::default().with_instance_id("other"), desk);
    stage.clock.advance(Duration::from_secs(50)).await;
    assert!(stage.channel.texts_to("ana").is_empty(), "taken over within the lease");
    other.until("the replies", || stage.channel.texts_to("ana").len() == 2).await;
    other.stop().await;
}
