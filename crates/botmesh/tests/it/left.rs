//! What a replica leaves in a chat when it dies or stands still goes before what arrived after it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use botmesh::core::error::Cas;
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::Change;
use botmesh::core::time::Clock as _;
use botmesh::prelude::*;
use botmesh::{BotBuilder, HandoverConfig};
use botmesh_testing::{TestBot, WritePoint};
use tokio::sync::{Notify, Semaphore};

use crate::fleet::{Fleet, MINUTE};

/// Counts the messages of a user.
fn counting(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move {
        let n = c.user().increment("messages", 1).await?;
        c.reply(format!("{n}: {}", c.text())).await?;
        Ok::<_, botmesh::Error>(())
    })
}

/// Echoes each message at once, but waits at a gate where that text is begun for the so many-th time; remembers what was begun.
fn gated(
    begun: &Arc<Mutex<Vec<String>>>,
    gates: &'static [(&'static str, usize)],
    open: &Arc<Notify>,
) -> impl Fn(BotBuilder) -> BotBuilder + use<> {
    let (begun, open) = (Arc::clone(begun), Arc::clone(open));
    move |bot| {
        let (begun, open) = (Arc::clone(&begun), Arc::clone(&open));
        bot.otherwise(move |c: Ctx| {
            let text = c.text().to_owned();
            let times = {
                let mut begun = begun.lock().expect("nobody panics with it");
                begun.push(text.clone());
                begun.iter().filter(|other| **other == text).count()
            };
            let open = Arc::clone(&open);
            async move {
                if gates.contains(&(&*text, times)) {
                    open.notified().await;
                }
                c.reply(text).await
            }
        })
    }
}

/// Answers after 10 s.
fn slow(bot: BotBuilder) -> BotBuilder {
    let answer = |c: Conv| async move {
        let asked: String = c.input()?;
        c.sleep(Duration::from_secs(10)).await?;
        c.say(asked).await?;
        Ok::<_, botmesh::Error>(())
    };
    bot.conversation("slow", answer)
        .otherwise(|c: Ctx| async move { c.enter_with("slow", &c.text().to_owned()) })
}

#[tokio::test]
async fn a_message_that_was_answered_when_its_replica_died_is_not_answered_otherwise_after_the_next_one() {
    let bot = TestBot::replicas(2).start(counting);
    let ana = bot.user("ana");
    bot.replica(1).crash_before(WritePoint::InboxFinish);
    ana.through(1).says("one").await;
    ana.expect_reply("1: one").await;
    bot.advance("1ms").await;
    ana.through(2).says("two").await;
    ana.expect_reply("2: two").await;
    bot.advance("5m").await;
    ana.expect_silence().await;
}

#[tokio::test]
async fn what_waited_at_a_replica_that_died_is_answered_before_what_came_to_another_one_later() {
    let bot = TestBot::replicas(3).start(slow);
    let ana = bot.user("ana");
    for (text, replica) in [("one", 1), ("two", 1), ("three", 2), ("four", 3), ("five", 2)] {
        ana.through(replica).says(text).await;
        bot.advance("1ms").await;
    }
    bot.replica(1).crash();
    for expected in ["one", "two", "three", "four", "five"] {
        ana.expect_reply(expected).await;
    }
    bot.advance("5m").await;
    ana.expect_silence().await;
}

#[tokio::test]
async fn what_waited_at_a_replica_that_stood_still_is_answered_once_and_in_its_place() {
    let bot = TestBot::replicas(2).start(slow);
    let ana = bot.user("ana");
    for (text, replica) in [("one", 1), ("two", 1), ("three", 2), ("four", 1)] {
        ana.through(replica).says(text).await;
        bot.advance("1ms").await;
    }
    bot.replica(1).freeze();
    for expected in ["one", "two"] {
        ana.expect_reply(expected).await;
    }
    bot.replica(1).thaw().await;
    for expected in ["three", "four"] {
        ana.expect_reply(expected).await;
    }
    bot.advance("5m").await;
    ana.expect_silence().await;
}

#[tokio::test]
async fn what_another_replica_handled_in_place_of_one_that_lost_its_place_is_not_handled_again() {
    let bot = TestBot::replicas(3).start_each(|replica, bot| {
        let answer = move |c: Conv| async move {
            let asked: String = c.input()?;
            c.sleep(Duration::from_secs(10)).await?;
            c.say(format!("{asked} at {replica}")).await?;
            Ok::<_, botmesh::Error>(())
        };
        bot.conversation("slow", answer)
            .otherwise(|c: Ctx| async move { c.enter_with("slow", &c.text().to_owned()) })
    });
    let ana = bot.user("ana");
    for (text, replica) in [("one", 2), ("two", 3), ("three", 2), ("four", 1)] {
        ana.through(replica).says(text).await;
        bot.advance("1ms").await;
    }
    ana.expect_reply("one at 2").await;
    // The third message has begun to wait for its turn; now it stands behind the fourth.
    bot.replica(2).freeze();
    bot.replica(2).thaw().await;
    bot.replica(3).crash();
    for expected in ["two at 1", "three at 1", "four at 1"] {
        ana.expect_reply(expected).await;
    }
    bot.advance("5m").await;
    ana.expect_silence().await;
}

#[tokio::test]
async fn what_waited_at_a_replica_that_stops_is_answered_before_what_came_to_another_one_later() {
    // At 1 the first one, which it finishes; or one that waits for 2; or one of each, with a message of 2 between them.
    for through in [[1, 1, 2, 2], [2, 1, 2, 2], [1, 2, 1, 2], [2, 1, 1, 2]] {
        let bot = TestBot::replicas(2).start(slow);
        let ana = bot.user("ana");
        for (text, replica) in ["one", "two", "three", "four"].into_iter().zip(through) {
            ana.through(replica).says(text).await;
            bot.advance("1ms").await;
        }
        bot.replica(1).stop().await;
        for expected in ["one", "two", "three", "four"] {
            ana.expect_reply(expected).await;
        }
        bot.advance("5m").await;
        ana.expect_silence().await;
    }
}

#[tokio::test]
async fn what_arrived_between_a_message_that_is_begun_again_and_the_next_one_is_not_overtaken() {
    let (begun, never) = Default::default();
    let answer = gated(&begun, &[("one", 1)], &never);
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(&answer);
    a.is_stuck_at("1", "one", 0).await;
    fleet.pass(Duration::from_millis(1)).await;
    b.takes(Inbound::text("2", "ana", "two")).await;
    b.dies().await;
    a.dies().await;
    // It begins the first message again, while nobody knows yet that the second one is left.
    let a = fleet.start_as("replica-1", &answer);
    a.life.until("the first reply", || fleet.said() == ["one"]).await;
    a.takes(Inbound::text("3", "ana", "three")).await;
    a.life.until("the replies", || fleet.said().len() == 3).await;
    assert_eq!(fleet.said(), ["one", "two", "three"]);
}

#[tokio::test]
async fn a_message_that_waits_for_its_turn_is_not_blamed_for_the_ends_of_its_process() {
    let (begun, gate) = Default::default();
    let answer = gated(&begun, &[("one", 1)], &gate);
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, mut b) = fleet.pair(&answer);
    a.is_stuck_at("1", "one", 0).await;
    fleet.pass(Duration::from_millis(1)).await;
    b.takes(Inbound::text("2", "ana", "two")).await;
    for _ in 0..8 {
        b.life.settled_but_for_turns().await;
        b.dies().await;
        b = fleet.start_as("replica-2", &answer);
    }
    b.takes(Inbound::text("3", "ana", "three")).await;
    gate.notify_one();
    b.life.until("the replies", || fleet.said().len() == 3).await;
    assert_eq!(fleet.said(), ["one", "two", "three"]);
}

/// Takes a message over as a replica does that does not know yet that it has no turn.
async fn taken_without_a_turn(fleet: &Fleet, inbound: &Inbound) {
    let ghost = fleet.stage.journal("ghost").await;
    let found = ghost.inbox().get(&inbound.record_id()).await.expect("an answer").expect("a record");
    let taken = found.record.adopt(&ghost.owner(), 5, fleet.stage.clock.now()).expect("an unfinished one");
    let outcome = ghost.commit_one(Change::update(found.version, &taken)).await.expect("an answer");
    assert!(matches!(outcome, Cas::Applied(_)));
}

#[tokio::test]
async fn what_is_taken_over_by_who_has_no_turn_is_handled_by_who_has_it_and_not_overtaken() {
    let (begun, gate) = Default::default();
    let mut fleet = Fleet::new(HandoverConfig::default());
    let b = fleet.start(gated(&begun, &[("one", 1)], &gate));
    b.is_stuck_at("1", "one", 0).await;
    for (event, text) in [("2", "two"), ("3", "three")] {
        b.takes(Inbound::text(event, "ana", text)).await;
    }
    taken_without_a_turn(&fleet, &Inbound::text("2", "ana", "two")).await;
    gate.notify_one();
    b.life.settled().await;
    assert_eq!(fleet.said(), ["one", "two", "three"]);
}

#[tokio::test]
async fn what_is_taken_over_while_it_waits_for_its_turn_is_handled_when_that_comes() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let b = fleet.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text().to_owned()).await }));
    let turn = fleet.turn("ana").await;
    for (event, text) in [("1", "one"), ("2", "two")] {
        b.takes(Inbound::text(event, "ana", text)).await;
    }
    taken_without_a_turn(&fleet, &Inbound::text("1", "ana", "one")).await;
    turn.1.release();
    b.life.settled().await;
    assert_eq!(fleet.said(), ["one", "two"]);
}

#[tokio::test]
async fn what_waits_for_its_turn_holds_back_no_others_that_may_have_ended_the_process() {
    let begun = Arc::<Mutex<Vec<String>>>::default();
    let stuck = |bot: BotBuilder| {
        let begun = Arc::clone(&begun);
        bot.otherwise(move |c: Ctx| {
            begun.lock().expect("nobody panics with it").push(c.chat().to_string());
            std::future::pending::<()>()
        })
    };
    let count = || begun.lock().expect("nobody panics with it").len();
    let mut fleet = Fleet::new(HandoverConfig::default());
    let mut b = fleet.start_as("replica-2", stuck);
    for chat in ["ana", "bea", "cem"] {
        b.takes(Inbound::text("1", chat, "hi")).await;
    }
    b.life.until("all of them", || count() == 3).await;
    b.dies().await;
    b = fleet.start_as("replica-2", stuck);
    b.life.until("all of them again", || count() == 6).await;
    b.dies().await;
    // As if the server had not noticed yet that the process is dead.
    let _turn = fleet.turn("ana").await;
    b = fleet.start_as("replica-2", stuck);
    b.life.until("one of the others", || count() == 7).await;
    b.life.settled_but_for_turns().await;
    assert_eq!(begun.lock().expect("nobody panics with it")[6..], ["bea"]);
}

#[tokio::test]
async fn a_message_that_the_channel_delivers_again_goes_before_the_next_one_though_its_replica_is_not_known_to_be_dead()
 {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text().to_owned()).await }));
    a.life.journal.crash_after(WritePoint::InboxInsertWorking);
    a.takes(Inbound::text("1", "ana", "one")).await;
    assert!(a.life.journal.crashed());
    a.dies().await;
    fleet.pass(Duration::from_millis(1)).await;
    b.takes(Inbound::text("1", "ana", "one")).await;
    b.takes(Inbound::text("2", "ana", "two")).await;
    b.life.settled().await;
    assert_eq!(fleet.said(), ["one", "two"]);
    fleet.pass(10 * MINUTE).await;
    assert_eq!(fleet.said(), ["one", "two"]);
}

#[tokio::test]
async fn a_message_that_the_channel_delivers_to_two_replicas_is_answered_once() {
    let gate = Arc::new(Semaphore::new(0));
    let answer = |bot: BotBuilder| {
        let gate = Arc::clone(&gate);
        bot.otherwise(move |c: Ctx| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.expect("it stays open").forget();
                c.reply(c.text().to_owned()).await
            }
        })
    };
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(answer);
    for replica in [&a, &b, &a] {
        replica.takes(Inbound::text("1", "ana", "one")).await;
    }
    b.takes(Inbound::text("2", "ana", "two")).await;
    gate.add_permits(10);
    b.life.until("the replies", || fleet.said().len() == 2).await;
    fleet.pass(10 * MINUTE).await;
    assert_eq!(fleet.said(), ["one", "two"]);
    assert_eq!(gate.available_permits(), 8, "each is handled once");
    assert_eq!(b.life.bot.metrics().inbound_duplicates, 1);
}

#[tokio::test]
async fn a_message_that_came_again_keeps_its_place_though_it_cannot_be_taken_over_at_once() {
    let (begun, gate) = Default::default();
    let answer = gated(&begun, &[("zero", 1)], &gate);
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(&answer);
    let c = fleet.start(&answer);
    c.is_stuck_at("0", "zero", 0).await;
    fleet.pass(Duration::from_millis(1)).await;
    // It dies before it has a ticket.
    a.life.journal.crash_after(WritePoint::InboxInsertWorking);
    a.takes(Inbound::text("1", "ana", "one")).await;
    a.dies().await;
    fleet.pass(Duration::from_millis(1)).await;
    b.takes(Inbound::text("1", "ana", "one")).await;
    b.life.journal.set_down(true);
    gate.notify_one();
    c.life.until("the first reply", || fleet.said() == ["zero"]).await;
    fleet.pass(Duration::from_millis(100)).await;
    b.life.journal.set_down(false);
    b.takes(Inbound::text("2", "ana", "two")).await;
    b.life.until("the replies", || fleet.said().len() == 3).await;
    assert_eq!(fleet.said(), ["zero", "one", "two"]);
}

#[tokio::test]
async fn more_than_can_be_looked_at_in_one_go_is_answered_in_order() {
    let gate = Arc::new(Semaphore::new(0));
    let answer = |bot: BotBuilder| {
        let gate = Arc::clone(&gate);
        bot.otherwise(move |c: Ctx| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.expect("it stays open").forget();
                c.reply(c.text().to_owned()).await
            }
        })
    };
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(answer);
    let texts: Vec<_> = (0..250).map(|n| n.to_string()).collect();
    let (last, first) = texts.split_last().expect("some");
    for text in first {
        a.takes(Inbound::text(text.as_str(), "ana", text)).await;
    }
    a.dies().await;
    fleet.pass(Duration::from_millis(1)).await;
    gate.add_permits(texts.len());
    b.takes(Inbound::text(last.as_str(), "ana", last)).await;
    b.life.until("the replies", || fleet.said().len() == texts.len()).await;
    assert_eq!(fleet.said(), texts);
}

#[tokio::test]
async fn nothing_overtakes_what_is_left_while_nobody_can_look_for_it() {
    let bot = TestBot::replicas(2).start(slow);
    let ana = bot.user("ana");
    for (text, replica) in [("one", 1), ("two", 1), ("three", 2)] {
        ana.through(replica).says(text).await;
        bot.advance("1ms").await;
    }
    let backend = bot.replica(2).backend();
    backend.set_down(true);
    bot.replica(1).crash();
    bot.advance("10s").await;
    backend.set_down(false);
    for expected in ["one", "two", "three"] {
        ana.expect_reply(expected).await;
    }
    bot.advance("5m").await;
    ana.expect_silence().await;
}

#[tokio::test]
async fn a_message_without_a_place_is_not_acknowledged_and_another_replica_answers_it_at_once() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| bot.otherwise(|c: Ctx| async move { c.reply(c.text().to_owned()).await }));
    a.life.started().await;
    a.coordinator.partition();
    assert!(!a.life.deliver_to(&a.channel, Inbound::text("1", "ana", "one")).await, "nobody knows its place");
    b.takes(Inbound::text("1", "ana", "one")).await;
    b.takes(Inbound::text("2", "ana", "two")).await;
    b.life.until("the replies", || fleet.said().len() == 2).await;
    assert_eq!(fleet.said(), ["one", "two"]);
    a.coordinator.heal();
    fleet.pass(10 * MINUTE).await;
    assert_eq!(fleet.said(), ["one", "two"]);
}

#[tokio::test]
async fn what_goes_first_gives_its_place_back_so_that_nothing_later_comes_before_others() {
    let (begun, open) = Default::default();
    let answer = gated(&begun, &[("zero", 1), ("one", 1)], &open);
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(&answer);
    let c = fleet.start(&answer);
    b.is_stuck_at("0", "zero", 0).await;
    c.life.journal.crash_after(WritePoint::InboxInsertQueued);
    c.life.journal.crash_after(WritePoint::InboxInsertWorking);
    c.takes(Inbound::text("1", "ana", "one")).await;
    c.dies().await;
    fleet.pass(Duration::from_millis(1)).await;
    a.takes(Inbound::text("5", "ana", "five")).await;
    // One of them takes over what the third one left, behind what waits.
    fleet.pass(3 * MINUTE).await;
    open.notify_one();
    a.life.until("the first message", || begun.lock().unwrap().iter().any(|text| text == "one")).await;
    b.takes(Inbound::text("8", "ana", "eight")).await;
    fleet.pass(Duration::from_millis(1)).await;
    a.takes(Inbound::text("9", "ana", "nine")).await;
    open.notify_one();
    a.life.until("the replies", || fleet.said().len() == 5).await;
    assert_eq!(fleet.said(), ["zero", "one", "five", "eight", "nine"]);
}

#[tokio::test]
async fn what_a_replica_takes_up_again_at_its_start_is_handled_in_the_order_of_arrival() {
    let (begun, open) = Default::default();
    let answer = gated(&begun, &[("one", 1)], &open);
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(&answer);
    a.is_stuck_at("1", "one", 0).await;
    fleet.pass(Duration::from_millis(1)).await;
    a.takes(Inbound::text("2", "ana", "two")).await;
    fleet.pass(Duration::from_millis(1)).await;
    // It begins at once and waits for its turn; the one before waits behind the first.
    b.takes(Inbound::text("3", "ana", "three")).await;
    b.dies().await;
    a.dies().await;
    fleet.pass(3 * MINUTE).await;
    let a = fleet.start_as("replica-1", &answer);
    a.life.until("the replies", || fleet.said().len() == 3).await;
    assert_eq!(fleet.said(), ["one", "two", "three"]);
}

#[tokio::test]
async fn what_lost_its_turn_while_it_went_first_is_not_handled_again_after_somebody_else_did() {
    let (begun, open) = Default::default();
    let answer = gated(&begun, &[("one", 1), ("one", 2)], &open);
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(&answer);
    let c = fleet.start(&answer);
    c.is_stuck_at("1", "one", 0).await;
    fleet.pass(Duration::from_millis(1)).await;
    a.takes(Inbound::text("2", "ana", "two")).await;
    c.dies().await;
    a.life.until("the first message", || begun.lock().unwrap().len() == 2).await;
    a.coordinator.lose();
    b.takes(Inbound::text("1", "ana", "one")).await;
    b.life.until("the first reply", || fleet.said().len() == 1).await;
    open.notify_waiters();
    b.life.until("the replies", || fleet.said().len() == 2).await;
    fleet.pass(10 * MINUTE).await;
    assert_eq!(fleet.said(), ["one", "two"]);
    assert_eq!(*begun.lock().unwrap(), ["one", "one", "one", "two"]);
}
