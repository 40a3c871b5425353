//! Users who are known by a phone number beside an id of their own: one conversation, whichever of the two names it.

use std::time::Duration;

use botmesh::core::inbound::{Inbound, Participant};
use botmesh::core::provider::Resolve;
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Broadcast};
use botmesh_testing::MockProvider;

use crate::fleet::{Fleet, forward, signup};
use crate::support::{Life, Stage};

const NUMBER: &str = "15551234567";
const ANA: &str = "US.1";
const BEN: &str = "US.2";

fn stage() -> Stage {
    let mut stage = Stage::new(Resolve::Never);
    stage.channel = MockProvider::new().with_moves();
    stage
}

fn desk(bot: BotBuilder) -> BotBuilder {
    bot.when("count", |c: Ctx| async move {
        let count = c.user().increment("count", 1).await?;
        c.reply(format!("{count}")).await?;
        Ok::<_, botmesh::Error>(())
    })
    .otherwise(|c: Ctx| async move { c.reply(format!("{}: {}", c.chat(), c.text())).await })
    .flow(signup().persistent())
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_795_950_000_000 + seconds * 1000)
}

/// A message of a user whose number is told too.
fn both(event: &str, user: &str, number: &str, text: &str) -> Inbound {
    let mut sender = Participant::new(user);
    sender.aliases = vec![number.into()];
    Inbound { sender: Some(sender), ..Inbound::text(event, user, text) }
}

fn written(seconds: i64, inbound: Inbound) -> Inbound {
    Inbound { written_at: Some(at(seconds)), ..inbound }
}

async fn takes(life: &Life, inbound: Inbound) {
    assert!(life.deliver(inbound).await, "not taken over");
    life.settled().await;
}

/// A bot in its second life, which has something of the number if there is a `state`.
async fn restarted(stage: &Stage, state: bool) -> Life {
    let life = stage.start(desk);
    if state {
        takes(&life, Inbound::text("0", NUMBER, "count")).await;
    }
    life.kill().await;
    let life = stage.start(desk);
    life.started().await;
    life
}

#[tokio::test]
async fn a_flow_that_began_at_a_number_gets_the_answers_of_its_user_also_after_a_restart() {
    for restart in [false, true] {
        let stage = stage();
        let mut life = stage.start(desk);
        life.started().await;
        life.bot
            .enter(NUMBER, "signup", &serde_json::json!({ "name": "", "age": 0 }))
            .await
            .expect("entered");
        life.settled().await;
        assert_eq!(stage.channel.texts_to(NUMBER), ["What is your name?"]);
        if restart {
            life.kill().await;
            life = stage.start(desk);
        }
        takes(&life, both("1", ANA, NUMBER, "Ana")).await;
        if restart {
            life.kill().await;
            life = stage.start(desk);
        }
        takes(&life, Inbound::text("2", NUMBER, "40")).await;
        takes(&life, Inbound::text("3", ANA, "hi")).await;
        let said = stage.channel.texts_to(ANA);
        assert_eq!(
            said,
            ["How old are you, Ana?", "Done, Ana.", &format!("{NUMBER}: hi")],
            "restart: {restart}"
        );
        life.stop().await;
    }
}

#[tokio::test]
async fn what_goes_to_the_number_of_a_known_user_is_of_their_chat() {
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, both("1", ANA, NUMBER, "count")).await;
    takes(&life, Inbound::text("2", NUMBER, "count")).await;
    life.bot.send(NUMBER, "reminder").await.expect("sent");
    life.bot.enter(NUMBER, "signup", &serde_json::json!({ "name": "", "age": 0 })).await.expect("entered");
    life.settled().await;
    takes(&life, both("3", ANA, NUMBER, "Ana")).await;
    takes(&life, Inbound::text("4", ANA, "40")).await;
    takes(&life, Inbound::text("5", NUMBER, "hi")).await;
    let said = stage.channel.texts_to(ANA);
    let flow = ["What is your name?", "How old are you, Ana?", "Done, Ana.", "US.1: hi"];
    assert_eq!(said[..3], ["1", "2", "reminder"]);
    assert_eq!(said[3..], flow);
    assert_eq!(stage.channel.texts_to(NUMBER), [""; 0]);
    life.stop().await;
}

#[tokio::test]
async fn what_was_kept_under_either_id_is_found_when_both_are_known() {
    for (first, name) in [(NUMBER, NUMBER), (ANA, ANA)] {
        let stage = stage();
        let life = stage.start(desk);
        takes(&life, Inbound::text("1", first, "count")).await;
        takes(&life, both("2", ANA, NUMBER, "count")).await;
        takes(&life, Inbound::text("3", NUMBER, "count")).await;
        takes(&life, Inbound::text("4", ANA, "count")).await;
        takes(&life, both("5", ANA, NUMBER, "hi")).await;
        let said = [stage.channel.texts_to(NUMBER), stage.channel.texts_to(ANA)].concat();
        assert_eq!(said, ["1", "2", "3", "4", &format!("{name}: hi")], "first {first}");
        life.stop().await;
    }
}

#[tokio::test]
async fn of_what_was_kept_under_both_ids_that_of_the_user_goes_on() {
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, Inbound::text("1", NUMBER, "count")).await;
    takes(&life, Inbound::text("2", ANA, "count")).await;
    takes(&life, Inbound::text("3", ANA, "count")).await;
    takes(&life, both("4", ANA, NUMBER, "count")).await;
    takes(&life, Inbound::text("5", NUMBER, "count")).await;
    assert_eq!(stage.channel.texts_to(ANA), ["1", "2", "3", "4"]);
    life.stop().await;
}

#[tokio::test]
async fn a_number_that_somebody_else_has_now_is_theirs_and_the_chat_of_who_had_it_is_not() {
    // Whether the bot knew the number before its first owner.
    for named in [false, true] {
        let stage = stage();
        let life = stage.start(desk);
        if named {
            takes(&life, written(0, Inbound::text("0", NUMBER, "count"))).await;
        }
        takes(&life, written(1, both("1", ANA, NUMBER, "count"))).await;
        takes(&life, written(100, both("2", BEN, NUMBER, "count"))).await;
        takes(&life, written(101, Inbound::text("3", NUMBER, "count"))).await;
        life.bot.send(NUMBER, "to the number").await.expect("sent");
        assert_eq!(stage.channel.texts_to(BEN), ["1", "2", "to the number"], "named: {named}");
        // What was written before and is delivered late is answered to who wrote it.
        takes(&life, written(2, both("4", ANA, NUMBER, "count"))).await;
        takes(&life, written(3, Inbound::text("5", ANA, "count"))).await;
        let counted = if named { ["2", "3", "4"] } else { ["1", "2", "3"] };
        assert_eq!(stage.channel.texts_to(ANA), counted, "named: {named}");
        takes(&life, written(102, Inbound::text("6", NUMBER, "count"))).await;
        assert_eq!(stage.channel.texts_to(BEN).last().map(String::as_str), Some("3"), "named: {named}");
        life.kill().await;
        let life = stage.start(desk);
        takes(&life, written(103, both("7", BEN, NUMBER, "count"))).await;
        assert_eq!(stage.channel.texts_to(BEN).last().map(String::as_str), Some("4"), "named: {named}");
        life.stop().await;
    }
}

#[tokio::test]
async fn what_waits_for_the_first_owner_of_a_number_does_not_go_to_the_next() {
    let stage = stage();
    stage.fail_text("secret", 3);
    let life = stage.start(|bot| {
        desk(bot).when("later", |c: Ctx| async move {
            c.reply("secret").await.map(drop).or_else(|_| Ok::<_, botmesh::Error>(()))
        })
    });
    takes(&life, written(0, Inbound::text("0", NUMBER, "count"))).await;
    takes(&life, written(1, both("1", ANA, NUMBER, "later"))).await;
    takes(&life, written(100, both("2", BEN, NUMBER, "count"))).await;
    stage.clock.advance(Duration::from_secs(700)).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to(ANA), ["secret"]);
    assert_eq!(stage.channel.texts_to(BEN), ["1"]);
    life.stop().await;
}

#[tokio::test]
async fn a_user_who_keeps_their_id_with_another_number_goes_on_and_who_gets_the_former_is_a_stranger() {
    const NEXT: &str = "15557654321";
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, written(0, both("1", ANA, NUMBER, "count"))).await;
    takes(&life, written(100, both("2", ANA, NEXT, "count"))).await;
    takes(&life, written(101, Inbound::text("3", NEXT, "count"))).await;
    life.bot.send(NEXT, "to the new number").await.expect("sent");
    let late = written(10, Inbound::text("4", NUMBER, "count"));
    takes(&life, late).await;
    assert_eq!(stage.channel.texts_to(ANA), ["1", "2", "3", "to the new number", "4"]);
    takes(&life, written(90 * 24 * 3600, Inbound::text("5", NUMBER, "count"))).await;
    assert_eq!(stage.channel.texts_to(NUMBER), ["1"], "somebody else");
    // They are back.
    takes(&life, written(91 * 24 * 3600, both("6", ANA, NUMBER, "count"))).await;
    takes(&life, written(92 * 24 * 3600, Inbound::text("7", NUMBER, "count"))).await;
    assert_eq!(stage.channel.texts_to(ANA).last().map(String::as_str), Some("6"));
    life.stop().await;
}

#[tokio::test]
async fn a_user_who_gets_another_number_and_with_it_another_id_goes_on_under_all_of_them() {
    const NEXT: &str = "15557654321";
    // What the bot had of them before: a message with both ids, or with the number alone.
    let known = [None, Some(both("0", ANA, NUMBER, "hi")), Some(Inbound::text("0", NUMBER, "count"))];
    for known in known {
        let stage = stage();
        let life = stage.start(desk);
        life.started().await;
        let counted = known.as_ref().is_some_and(|inbound| inbound.readable_text() == "count");
        if let Some(inbound) = known {
            takes(&life, written(0, inbound)).await;
        }
        // As WhatsApp tells it.
        stage.channel.moves(ANA, BEN, at(100)).await.expect("recorded");
        takes(&life, written(100, both("1", ANA, NUMBER, "count"))).await;
        stage.channel.moves(NUMBER, NEXT, at(100)).await.expect("recorded");
        life.bot.send(NUMBER, "old number").await.expect("sent");
        life.bot.send(NEXT, "new number").await.expect("sent");
        takes(&life, written(200, both("2", BEN, NEXT, "count"))).await;
        takes(&life, written(201, Inbound::text("3", NEXT, "count"))).await;
        let said = stage.channel.texts_to(BEN);
        let counts = if counted { ["2", "3", "4"] } else { ["1", "2", "3"] };
        let [first, second, third] = counts;
        assert_eq!(said, [first, "old number", "new number", second, third]);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_post_with_both_ids_asks_the_store_once_and_writes_nothing_twice() {
    let stage = stage();
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await }));
    takes(&life, both("1", ANA, NUMBER, "one")).await;
    assert_eq!(life.store.writes(), 2, "the number of the user, and whose it is");
    life.store.set_down(true);
    takes(&life, both("2", ANA, NUMBER, "two")).await;
    life.store.set_down(false);
    life.kill().await;
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await }));
    takes(&life, both("3", ANA, NUMBER, "three")).await;
    assert_eq!(life.store.writes(), 0, "known from before");
    assert_eq!(stage.channel.texts_to(ANA), ["one", "two", "three"]);
    life.stop().await;
}

#[tokio::test]
async fn messages_keep_their_order_while_it_is_recorded_that_their_ids_are_of_one_user() {
    for (state, other) in [(false, ANA), (false, NUMBER), (true, ANA), (true, NUMBER)] {
        let stage = stage();
        let life = restarted(&stage, state).await;
        let inbound = |n: usize| {
            let (event, text) = (format!("e{n}"), format!("{n}"));
            if n % 3 == 1 { Inbound::text(event, other, text) } else { both(&event, ANA, NUMBER, &text) }
        };
        let together = (0..30).map(|n| life.deliver(inbound(n)));
        assert!(futures_util::future::join_all(together).await.into_iter().all(|taken| taken));
        life.settled().await;
        let name = if state { NUMBER } else { ANA };
        let expected: Vec<String> = (0..30).map(|n| format!("{name}: {n}")).collect();
        assert_eq!(stage.channel.texts_to(ANA), expected, "{name}, {other}");
        life.stop().await;
    }
}

#[tokio::test]
async fn a_record_that_is_cut_short_anywhere_is_made_whole_by_the_redelivery() {
    for (write, state) in (1..=4).flat_map(|write| [(write, false), (write, true)]) {
        let stage = stage();
        let life = restarted(&stage, state).await;
        life.store.fail_write(write);
        let whole = life.deliver(both("1", ANA, NUMBER, "hi")).await;
        assert_eq!(whole, write > if state { 4 } else { 2 }, "write {write}, state: {state}");
        life.kill().await;
        let life = stage.start(desk);
        takes(&life, both("1", ANA, NUMBER, "hi")).await;
        takes(&life, Inbound::text("2", NUMBER, "there")).await;
        let name = if state { NUMBER } else { ANA };
        assert_eq!(stage.channel.texts_to(ANA), [format!("{name}: hi"), format!("{name}: there")], "{write}");
        life.stop().await;
    }
}

#[tokio::test]
async fn what_waits_for_a_number_goes_out_before_the_answer_to_its_user() {
    let stage = stage();
    stage.fail_text("first", 2);
    let life = stage.start(desk);
    life.started().await;
    life.bot.enqueue("k", NUMBER, "first").await.expect("journaled");
    life.until("an attempt", || stage.channel.sent().len() == 1).await;
    assert!(life.deliver(both("1", ANA, NUMBER, "second")).await);
    stage.clock.advance(Duration::from_secs(60)).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to(ANA), ["first".to_owned(), format!("{NUMBER}: second")]);
    life.stop().await;
}

#[tokio::test]
async fn a_broadcast_reaches_a_user_once_by_whichever_ids_the_lists_name_them() {
    let stage = stage();
    let life = stage.start(desk);
    life.started().await;
    let broadcast = async |ids: &[&str]| {
        let list = Broadcast::new("news", ids.iter().copied());
        life.bot.broadcast(list, "news").await.expect("a broadcast");
        stage.clock.advance(Duration::from_secs(60)).await;
        life.settled().await;
    };
    broadcast(&[NUMBER]).await;
    takes(&life, both("1", ANA, NUMBER, "hi")).await;
    broadcast(&[ANA]).await;
    broadcast(&[NUMBER, ANA]).await;
    let said = [stage.channel.texts_to(NUMBER), stage.channel.texts_to(ANA)].concat();
    assert_eq!(said, ["news", "US.1: hi"]);
    life.stop().await;
}

#[tokio::test]
async fn a_broadcast_reaches_who_has_a_number_also_if_it_is_the_name_of_another_chat() {
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, written(0, Inbound::text("0", NUMBER, "count"))).await;
    takes(&life, written(1, both("1", ANA, NUMBER, "count"))).await;
    takes(&life, written(100, both("2", BEN, NUMBER, "count"))).await;
    for ids in [[ANA], [BEN]] {
        life.bot.broadcast(Broadcast::new("news", ids), "news").await.expect("a broadcast");
        stage.clock.advance(Duration::from_secs(60)).await;
        life.settled().await;
    }
    for (user, count) in [(ANA, "2"), (BEN, "1")] {
        assert_eq!(stage.channel.texts_to(user), [count, "news"]);
    }
    life.stop().await;
}

#[tokio::test]
async fn a_stranger_who_wrote_from_a_number_alone_goes_on_when_their_id_is_told() {
    const LATER: i64 = 90 * 24 * 3600;
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, written(0, both("1", ANA, NUMBER, "count"))).await;
    takes(&life, written(100, both("2", ANA, "15557654321", "count"))).await;
    takes(&life, written(LATER, Inbound::text("3", NUMBER, "count"))).await;
    takes(&life, written(LATER + 1, both("4", BEN, NUMBER, "count"))).await;
    takes(&life, written(LATER + 2, Inbound::text("5", NUMBER, "count"))).await;
    assert_eq!([stage.channel.texts_to(NUMBER), stage.channel.texts_to(BEN)].concat(), ["1", "2", "3"]);
    takes(&life, written(LATER + 3, Inbound::text("6", ANA, "count"))).await;
    assert_eq!(stage.channel.texts_to(ANA), ["1", "2", "3"]);
    life.stop().await;
}

#[tokio::test]
async fn a_number_of_which_is_told_late_is_the_users_no_more() {
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, written(100, both("1", ANA, "15557654321", "count"))).await;
    takes(&life, written(50, both("2", ANA, NUMBER, "count"))).await;
    takes(&life, written(90 * 24 * 3600, Inbound::text("3", NUMBER, "count"))).await;
    assert_eq!(stage.channel.texts_to(ANA), ["1", "2"]);
    assert_eq!(stage.channel.texts_to(NUMBER), ["1"], "somebody else");
    life.stop().await;
}

#[tokio::test]
async fn another_replica_joins_the_ids_at_once_where_a_message_has_both_and_within_ten_seconds_else() {
    let mut fleet = Fleet::new(forward());
    fleet.channel = MockProvider::new().with_moves();
    let (one, two) = fleet.pair(desk);
    let hears = async |replica: &crate::fleet::Replica, inbound| {
        replica.takes(inbound).await;
        replica.life.settled().await;
    };
    // Each knows one of the ids.
    hears(&two, Inbound::text("1", NUMBER, "count")).await;
    hears(&one, both("1", ANA, NUMBER, "count")).await;
    hears(&two, both("2", ANA, NUMBER, "count")).await;
    fleet.pass(Duration::from_secs(10)).await;
    hears(&two, Inbound::text("2", NUMBER, "count")).await;
    hears(&one, Inbound::text("3", ANA, "count")).await;
    let said = [fleet.channel.texts_to(NUMBER), fleet.channel.texts_to(ANA)].concat();
    assert_eq!(said, ["1", "2", "3", "4", "5"]);
    two.life.stop().await;
    one.life.stop().await;
}

#[tokio::test]
async fn who_had_a_number_first_keeps_the_chat_of_its_name_also_under_their_next_id() {
    let stage = stage();
    let life = stage.start(desk);
    takes(&life, written(0, Inbound::text("0", NUMBER, "count"))).await;
    takes(&life, written(1, both("1", ANA, NUMBER, "count"))).await;
    takes(&life, written(100, both("2", BEN, NUMBER, "count"))).await;
    stage.channel.moves(ANA, "US.3", at(200)).await.expect("recorded");
    takes(&life, written(201, Inbound::text("3", "US.3", "count"))).await;
    takes(&life, written(202, both("4", BEN, NUMBER, "count"))).await;
    assert_eq!(stage.channel.texts_to("US.3"), ["3"]);
    assert_eq!(stage.channel.texts_to(BEN), ["1", "2"]);
    life.stop().await;
}
