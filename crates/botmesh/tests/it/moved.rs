//! Chats and users that get another id: they go on where they were.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use botmesh::core::inbound::{Inbound, InboundBody, Participant};
use botmesh::core::provider::{AdmitError, Resolve};
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use botmesh::{BotBuilder, BotEvent};
use botmesh_testing::{CrashableStore, MockProvider};

use crate::fleet::{Fleet, Replica, forward, signup};
use crate::support::{Life, Stage};

const OLD: &str = "-4012345678";
const NEW: &str = "-1001557912345";

fn stage() -> Stage {
    let mut stage = Stage::new(Resolve::Never);
    stage.channel = MockProvider::new().with_moves();
    stage
}

/// What needs no journals.
fn talk(bot: BotBuilder) -> BotBuilder {
    bot.when("sign up", |c: Ctx| async move { c.enter("signup") })
        .when("count", |c: Ctx| async move {
            let count = c.user().increment("count", 1).await?;
            c.reply(format!("{count}")).await?;
            Ok::<_, botmesh::Error>(())
        })
        .when(SYSTEM, |c: Ctx| async move { c.reply(format!("{} moved", c.chat())).await })
        .otherwise(|c: Ctx| async move { c.reply(format!("{}: {}", c.chat(), c.text())).await })
        .flow(signup().persistent())
}

fn desk(bot: BotBuilder) -> BotBuilder {
    let remind = async |c: TaskCtx| {
        c.send(c.payload::<String>()?, "reminder").await?;
        Ok::<_, botmesh::Error>(())
    };
    let bot = bot.task("reminder", Schedule::on_demand(), remind).when("remind me", |c: Ctx| async move {
        c.tasks().after(Duration::from_secs(600), "reminder", "1", c.chat().as_str()).await?;
        Ok::<_, botmesh::Error>(())
    });
    talk(bot)
}

/// Ana writes in a group.
fn group(event: &str, chat: &str, text: &str) -> Inbound {
    let sender = Some(Participant::new("ana"));
    Inbound { sender, group: true, ..Inbound::text(event, chat, text) }
}

/// What a group says of its move in this chat.
fn service(event: &str, chat: &str) -> Inbound {
    let body = InboundBody::System { event: "migrated".to_owned(), detail: serde_json::Value::Null };
    Inbound { group: true, ..Inbound::private(event, chat, body) }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_795_950_000_000 + seconds * 1000)
}

/// The bot takes this and has nothing more to do.
async fn takes(life: &Life, inbound: Inbound) {
    assert!(life.deliver(inbound).await, "not taken over");
    life.settled().await;
}

async fn moves(life: &Life, channel: &MockProvider, from: &str, to: &str, seconds: i64) {
    life.settled().await;
    channel.moves(from, to, at(seconds)).await.expect("recorded");
}

#[tokio::test]
async fn c43_a_flow_goes_on_in_the_group_that_moved_whichever_chat_tells_first() {
    for reversed in [false, true] {
        let stage = stage();
        let life = stage.start(desk);
        takes(&life, group("1", OLD, "sign up")).await;
        takes(&life, group("2", OLD, "Ana")).await;
        let mut told = [service("3", OLD), service("1", NEW)];
        if reversed {
            told.reverse();
        }
        for service in told {
            moves(&life, &stage.channel, OLD, NEW, 0).await;
            takes(&life, service).await;
        }
        takes(&life, group("2", NEW, "31")).await;
        assert_eq!(stage.channel.texts_to(OLD), ["What is your name?", "How old are you, Ana?"]);
        let moved = format!("{OLD} moved");
        assert_eq!(stage.channel.texts_to(NEW), [&moved, &moved, "Done, Ana."], "reversed: {reversed}");
        life.stop().await;
    }
}

#[tokio::test]
async fn e83_what_is_kept_of_a_user_goes_on_under_their_new_number() {
    let stage = stage();
    let mut life = stage.start(desk);
    takes(&life, Inbound::text("1", "US.1", "count")).await;
    takes(&life, Inbound::text("2", "US.1", "sign up")).await;
    moves(&life, &stage.channel, "US.1", "US.2", 0).await;
    moves(&life, &stage.channel, "US.1", "US.2", 0).await;
    takes(&life, Inbound::text("3", "US.2", "Ana")).await;
    takes(&life, Inbound::text("4", "US.2", "40")).await;
    takes(&life, Inbound::text("5", "US.2", "count")).await;
    takes(&life, Inbound::text("6", "US.2", "hi")).await;
    assert_eq!(stage.channel.texts_to("US.2"), ["How old are you, Ana?", "Done, Ana.", "2", "US.1: hi"]);
    let told = std::iter::from_fn(|| life.events.try_recv().ok());
    let moved: Vec<String> =
        told.filter(|e| matches!(e, BotEvent::Moved { .. })).map(|e| e.to_string()).collect();
    assert_eq!(moved, ["chat:moved US.1: now US.2"], "told once");
    life.stop().await;
}

#[tokio::test]
async fn what_waits_and_what_is_scheduled_goes_to_the_new_id() {
    let stage = stage();
    stage.fail_text("later", 3);
    let life = stage.start(desk);
    life.started().await;
    takes(&life, group("1", OLD, "remind me")).await;
    life.bot.enqueue("k", OLD, "later").await.expect("journaled");
    stage.clock.advance(Duration::from_millis(100)).await;
    assert_eq!(stage.channel.texts_to(OLD), [""; 0], "it failed for now");
    moves(&life, &stage.channel, OLD, NEW, 0).await;
    stage.clock.advance(Duration::from_secs(700)).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to(NEW), ["later", "reminder"]);
    assert_eq!(stage.channel.texts_to(OLD), [""; 0]);
    let sent = life.bot.send(NEW, "by the new id").await.expect("sent");
    assert!(!sent.deduped);
    assert_eq!(stage.channel.texts_to(NEW).last().map(String::as_str), Some("by the new id"));
    life.stop().await;
}

#[tokio::test]
async fn a_move_outlives_the_process_that_was_told_of_it() {
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, group("1", OLD, "sign up")).await;
    moves(&life, &stage.channel, OLD, NEW, 0).await;
    life.kill().await;
    let life = stage.start(desk);
    takes(&life, group("1", NEW, "Ana")).await;
    assert_eq!(stage.channel.texts_to(NEW), ["How old are you, Ana?"]);
    life.kill().await;
    // Also without journals: it is kept where the conversations are.
    let life = stage.start_plain(talk);
    assert!(life.deliver(group("2", NEW, "31")).await);
    life.until("the end", || stage.channel.texts_to(NEW).len() == 2).await;
    assert_eq!(stage.channel.texts_to(NEW)[1], "Done, Ana.");
    life.stop().await;
}

#[tokio::test]
async fn a_chat_is_followed_through_all_its_ids_in_any_order_and_back() {
    let orders: [&[(&str, &str, i64)]; 3] = [
        &[("a", "b", 1), ("b", "c", 2)],
        &[("b", "c", 2), ("a", "b", 1)],
        &[("a", "b", 1), ("b", "c", 2), ("a", "b", 1), ("b", "c", 2)],
    ];
    for order in orders {
        let stage = stage();
        let life = stage.start(desk);
        for (from, to, seconds) in order {
            moves(&life, &stage.channel, from, to, *seconds).await;
        }
        for id in ["a", "b", "c"] {
            takes(&life, Inbound::text(id, id, id)).await;
        }
        assert_eq!(stage.channel.texts_to("c"), ["a: a", "a: b", "a: c"], "{order:?}");
        moves(&life, &stage.channel, "c", "a", 3).await;
        takes(&life, Inbound::text("4", "c", "late")).await;
        takes(&life, Inbound::text("5", "a", "back")).await;
        assert_eq!(stage.channel.texts_to("a"), ["a: late", "a: back"], "{order:?}");
        life.stop().await;
    }
}

#[tokio::test]
async fn moves_in_a_circle_are_one_chat() {
    let stage = stage();
    let life = stage.start(desk);
    // Told in the wrong order.
    moves(&life, &stage.channel, "b", "a", 2).await;
    moves(&life, &stage.channel, "a", "b", 1).await;
    takes(&life, Inbound::text("1", "a", "x")).await;
    takes(&life, Inbound::text("2", "b", "y")).await;
    let texts = stage.channel.texts_to("a");
    let first = texts[0].split(':').next().unwrap_or_default();
    assert_eq!(texts, [format!("{first}: x"), format!("{first}: y")]);
    life.stop().await;
}

#[tokio::test]
async fn who_gets_a_number_that_somebody_left_is_somebody_else() {
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, Inbound::text("1", "100", "count")).await;
    moves(&life, &stage.channel, "100", "200", 0).await;
    let late = Inbound { written_at: Some(at(-5)), ..Inbound::text("2", "100", "count") };
    takes(&life, late).await;
    assert_eq!(stage.channel.texts_to("200"), ["2"], "written before, delivered after");
    for (n, event) in ["3", "4"].into_iter().enumerate() {
        let written_at = Some(at(90 * 24 * 3600 + n as i64));
        takes(&life, Inbound { written_at, ..Inbound::text(event, "100", "count") }).await;
    }
    assert_eq!(stage.channel.texts_to("100"), ["1", "1", "2"], "the first one is who left");
    takes(&life, Inbound::text("5", "200", "count")).await;
    assert_eq!(stage.channel.texts_to("200"), ["2", "3"]);
    // So it is with a number in the middle.
    moves(&life, &stage.channel, "200", "300", 3600).await;
    let written_at = Some(at(180 * 24 * 3600));
    takes(&life, Inbound { written_at, ..Inbound::text("6", "200", "count") }).await;
    assert_eq!(stage.channel.texts_to("200"), ["2", "3", "1"]);
    takes(&life, Inbound::text("7", "300", "count")).await;
    assert_eq!(stage.channel.texts_to("300"), ["4"]);
    // What the bot calls the first one is still the first one.
    life.bot.send("100", "for the first").await.expect("sent");
    assert_eq!(stage.channel.texts_to("300"), ["4", "for the first"]);
    life.stop().await;
}

#[tokio::test]
async fn an_event_that_came_before_the_move_was_known_and_comes_again_is_the_same() {
    for durable in [true, false] {
        let stage = stage();
        let life = if durable { stage.start(desk) } else { stage.start_plain(talk) };
        takes(&life, group("1", NEW, "hi")).await;
        moves(&life, &stage.channel, OLD, NEW, 0).await;
        takes(&life, group("1", NEW, "hi")).await;
        takes(&life, group("2", NEW, "there")).await;
        assert_eq!(stage.channel.texts_to(NEW), [format!("{NEW}: hi"), format!("{OLD}: there")]);
        life.stop().await;
    }
}

#[tokio::test]
async fn nothing_is_taken_over_while_nobody_knows_whose_it_is() {
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, group("1", OLD, "sign up")).await;
    life.store.set_down(true);
    let refused = stage.channel.moves(OLD, NEW, at(0)).await;
    assert!(matches!(refused, Err(AdmitError::Journal(_))), "{refused:?}");
    assert!(!life.deliver(group("1", NEW, "Ana")).await);
    life.store.set_down(false);
    moves(&life, &stage.channel, OLD, NEW, 0).await;
    takes(&life, group("1", NEW, "Ana")).await;
    assert_eq!(stage.channel.texts_to(NEW), ["How old are you, Ana?"]);
    life.kill().await;
    let life = stage.start(desk);
    life.started().await;
    life.store.set_down(true);
    life.bot.send_keyed("k", OLD, "now?").await.expect_err("to whom?");
    life.store.set_down(false);
    life.bot.send_keyed("k", OLD, "now?").await.expect("sent");
    assert_eq!(stage.channel.texts_to(NEW)[1..], ["now?"]);
    life.stop().await;
}

/// Longer than all the attempts of a send take.
async fn outage(stage: &Stage) {
    for _ in 0..120 {
        stage.clock.advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn what_waits_outlives_a_store_that_is_away_for_longer_than_all_its_attempts() {
    let stage = stage();
    stage.fail_text("later", 3);
    let life = stage.start(desk);
    life.started().await;
    life.bot.enqueue("k", OLD, "later").await.expect("journaled");
    life.until("three attempts", || stage.channel.sent().len() == 3).await;
    life.settled().await;
    life.kill().await;
    // This process knows of no id yet, and the next attempt is due in some seconds.
    let life = stage.start(desk);
    life.started().await;
    life.store.set_down(true);
    outage(&stage).await;
    assert_eq!(
        (life.bot.metrics().outbox_retried, life.bot.metrics().outbox_dead),
        (0, 0),
        "no call, no attempt"
    );
    life.kill().await;
    let life = stage.start(desk);
    life.until("the message", || stage.channel.texts_to(OLD) == ["later"]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_send_whose_chat_cannot_be_looked_up_any_more_waits_for_the_store() {
    let stage = stage();
    let life = stage.start(desk);
    moves(&life, &stage.channel, OLD, NEW, 0).await;
    life.kill().await;
    let store: Arc<OnceLock<CrashableStore>> = Arc::default();
    let hooked = Arc::clone(&store);
    let life = stage.start(|bot| {
        desk(bot).before_send(move |_, content| {
            hooked.get().expect("a store").set_down(true);
            async move { Ok(content) }
        })
    });
    assert!(store.set(life.store.clone()).is_ok());
    life.started().await;
    tokio::select! {
        sent = life.bot.send(NEW, "hi") => drop(sent.expect_err("to whom?")),
        () = outage(&stage) => {}
    }
    life.store.set_down(false);
    life.until("the message", || stage.channel.texts_to(NEW) == ["hi"]).await;
    assert_eq!(life.bot.metrics().outbox_retried, 0, "it was called once");
    life.stop().await;
}

#[tokio::test]
async fn a_move_that_is_told_again_is_believed_also_if_it_was_written_before() {
    let mut stage = stage();
    let life = stage.start(desk);
    takes(&life, group("1", OLD, "count")).await;
    takes(&life, group("1", NEW, "early")).await;
    // Written by a process of which this one does not know, as is a write whose answer was lost.
    let told = std::mem::replace(&mut stage.channel, MockProvider::new().with_moves());
    let other = stage.start_plain(talk);
    moves(&other, &stage.channel, OLD, NEW, 0).await;
    other.stop().await;
    moves(&life, &told, OLD, NEW, 0).await;
    takes(&life, group("2", NEW, "hi")).await;
    assert_eq!(told.texts_to(NEW), [format!("{NEW}: early"), format!("{OLD}: hi")]);
    life.stop().await;
}

#[tokio::test]
async fn a_channel_whose_ids_stay_never_asks_the_store() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await }));
    life.started().await;
    life.store.set_down(true);
    assert!(life.deliver(Inbound::text("1", "ana", "hi")).await, "taken over without the store");
    life.bot.send("ben", "there").await.expect("sent without the store");
    life.store.set_down(false);
    life.stop().await;
}

#[tokio::test]
async fn events_keep_their_order_while_it_is_looked_up_whose_they_are() {
    let stage = stage();
    let life = stage.start(desk);
    moves(&life, &stage.channel, OLD, NEW, 0).await;
    life.kill().await;
    let life = stage.start(desk);
    life.started().await;
    let texts: Vec<String> = (0..20).map(|n| format!("{n}")).collect();
    let together = texts.iter().map(|text| life.deliver(group(text, NEW, text)));
    assert!(futures_util::future::join_all(together).await.into_iter().all(|taken| taken));
    life.settled().await;
    let expected: Vec<String> = texts.iter().map(|text| format!("{OLD}: {text}")).collect();
    assert_eq!(stage.channel.texts_to(NEW), expected);
    life.stop().await;
}

fn fleet() -> Fleet {
    let mut fleet = Fleet::new(forward());
    fleet.channel = MockProvider::new().with_moves();
    fleet
}

async fn hears(replica: &Replica, inbound: Inbound) {
    replica.takes(inbound).await;
    replica.life.settled().await;
}

#[tokio::test]
async fn replicas_go_on_with_a_chat_of_which_another_one_was_told_that_it_moved() {
    let mut fleet = fleet();
    let (one, two) = fleet.pair(desk);
    // The other one knows where the chat was.
    hears(&two, group("1", OLD, "sign up")).await;
    moves(&one.life, &one.channel, OLD, NEW, 0).await;
    hears(&two, group("1", NEW, "Ana")).await;
    hears(&one, group("2", NEW, "31")).await;
    assert_eq!(fleet.channel.texts_to(NEW), ["How old are you, Ana?", "Done, Ana."]);
    two.life.stop().await;
    one.life.stop().await;
}

#[tokio::test]
async fn a_replica_that_knew_the_new_id_before_learns_of_the_move_within_ten_seconds() {
    let mut fleet = fleet();
    let (one, two) = fleet.pair(desk);
    hears(&one, group("1", OLD, "sign up")).await;
    hears(&two, group("1", NEW, "early")).await;
    moves(&one.life, &one.channel, OLD, NEW, 0).await;
    fleet.pass(Duration::from_secs(10)).await;
    hears(&two, group("2", NEW, "Ana")).await;
    let said = fleet.channel.texts_to(NEW);
    assert_eq!(said, [format!("{NEW}: early"), "How old are you, Ana?".to_owned()]);
    two.life.stop().await;
    one.life.stop().await;
}

#[tokio::test]
async fn both_ids_of_a_chat_wait_for_one_turn() {
    let mut fleet = fleet();
    let (one, two) = fleet.pair(desk);
    moves(&one.life, &one.channel, OLD, NEW, 0).await;
    fleet.channel.hang_next();
    one.takes(Inbound::text("1", OLD, "first")).await;
    fleet.channel.wait_for_hanging(1).await;
    two.takes(Inbound::text("1", NEW, "second")).await;
    fleet.pass(Duration::from_secs(5)).await;
    assert_eq!(fleet.channel.sent().len(), 1, "the second one waits");
    fleet.channel.release();
    one.life.settled().await;
    two.life.settled().await;
    assert_eq!(fleet.channel.texts_to(NEW), [format!("{OLD}: first"), format!("{OLD}: second")]);
    two.life.stop().await;
    one.life.stop().await;
}
