//! What replicas say whose channel is connected elsewhere.

use std::time::Duration;

use botmesh::prelude::*;
use botmesh::{BotBuilder, TurnsConfig};
use botmesh_testing::{TestBot, WritePoint};

use crate::leadership::exclusive;

/// Answers after a while.
fn slow(takes: Duration) -> impl Fn(usize, BotBuilder) -> BotBuilder {
    move |replica, bot| {
        let answer = move |c: Conv| async move {
            let asked: String = c.input()?;
            c.sleep(takes).await?;
            c.say(format!("{asked} at {replica}")).await?;
            Ok::<_, botmesh::Error>(())
        };
        bot.conversation("slow", answer)
            .otherwise(|c: Ctx| async move { c.enter_with("slow", &c.text().to_owned()) })
    }
}

/// Asks for a name, also by itself.
fn club(bot: BotBuilder) -> BotBuilder {
    let greet = conversation("greet", async |c: Conv| {
        let name = c.ask("Your name?").await?;
        c.say(format!("Welcome, {}", name.text())).await?;
        Ok::<_, botmesh::Error>(())
    });
    bot.add_conversation(greet.replayable()).otherwise(async |c: Ctx| c.reply("?").await)
}

#[tokio::test]
async fn a_standby_sends_nothing_by_itself_and_leaves_what_is_enqueued_to_the_leader() {
    let bot = TestBot::replicas(2).channel(exclusive()).start(club);
    let sent = bot.replica(2).does(|bot| async move { bot.send("ana", "direct").await }).await.unwrap();
    assert!(matches!(sent, Err(SendError::NotLeader(_))), "{sent:?}");
    let enqueued = bot.replica(2).does(|bot| async move { bot.enqueue("key", "ana", "left").await });
    enqueued.await.unwrap().unwrap();
    bot.advance("3s").await;
    assert_eq!(bot.channel().texts_to("ana"), ["left"]);
    assert_eq!(bot.channel().sent().iter().map(|sent| sent.replica).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn without_an_outbox_a_standby_sends_nothing_at_all() {
    let bot = TestBot::replicas(2).channel(exclusive()).without_durability().start(club);
    let sent = bot.replica(2).does(|bot| async move { bot.send("ana", "direct").await }).await.unwrap();
    assert!(matches!(sent, Err(SendError::NotLeader(_))), "{sent:?}");
    let enqueued = bot.replica(2).does(|bot| async move { bot.enqueue("key", "ana", "left").await });
    assert!(matches!(enqueued.await.unwrap(), Err(SendError::NotLeader(_))));
    bot.advance("1m").await;
    assert_eq!(bot.channel().sent().len(), 0);
}

#[tokio::test]
async fn what_a_turn_of_a_standby_says_goes_out_through_the_leader() {
    let bot = TestBot::replicas(2).channel(exclusive()).start(club);
    let ana = bot.user("ana");
    bot.replica(2).does(|bot| async move { bot.enter("ana", "greet", &()).await.unwrap() }).await;
    ana.expect_reply("Your name?").await;
    ana.says("Ana").await;
    ana.expect_reply("Welcome, Ana").await;
    assert!(bot.channel().sent().iter().all(|sent| sent.replica == 1), "{}", bot.transcript());
}

#[tokio::test]
async fn what_a_crashed_leader_leaves_unanswered_is_answered_once_and_through_the_next_one() {
    let bot = TestBot::replicas(3).channel(exclusive()).start(club);
    bot.user("ana").says("hi").await;
    bot.replica(1).crash_before(WritePoint::OutboxInsertInFlight);
    bot.user("ana").says("hi").await;
    assert!(bot.replica(1).has_crashed());
    bot.advance("3m").await;
    let sent: Vec<_> = bot.channel().sent().iter().map(|sent| sent.replica).collect();
    assert_eq!(sent, [1, 2], "{}", bot.transcript());
}

#[tokio::test]
async fn a_leader_that_stands_still_anywhere_answers_once_or_leaves_it_to_the_next_one() {
    let mut through = [0; 3];
    for polls in 1..=12 {
        let bot = TestBot::replicas(3).channel(exclusive()).start(club);
        bot.advance("1s").await;
        bot.replica(1).freeze_after(polls);
        bot.user("ana").says("hi").await;
        bot.advance("3m").await;
        bot.replica(1).thaw().await;
        bot.advance("3m").await;
        assert_eq!(bot.channel().texts_to("ana"), ["?"], "after {polls}: {}", bot.transcript());
        assert_eq!(bot.channel().connected(), [2]);
        through[bot.channel().sent()[0].replica] += 1;
    }
    assert!(through[1] > 0 && through[2] > 0, "{through:?}");
}

#[tokio::test]
async fn a_reply_that_comes_before_the_leader_has_left_goes_out_through_it_and_a_later_one_through_the_next()
{
    for (takes, through) in [(300, 1), (2_000, 2)] {
        let takes = Duration::from_millis(takes);
        let bot = TestBot::replicas(2).channel(exclusive()).start_each(slow(takes));
        let ana = bot.user("ana");
        ana.says("hi").await;
        bot.replica(1).stop().await;
        ana.expect_reply("hi at 1").await;
        assert_eq!(bot.channel().sent().last().unwrap().replica, through, "{}", bot.transcript());
        assert_eq!(bot.channel().overlaps(), 0);
    }
}

#[tokio::test]
async fn without_an_outbox_a_leader_answers_everything_before_it_leaves() {
    let bot = TestBot::replicas(2)
        .channel(exclusive())
        .without_durability()
        .start_each(slow(Duration::from_secs(2)));
    let ana = bot.user("ana");
    ana.says("one").await;
    ana.says("two").await;
    bot.replica(1).stop().await;
    ana.expect_reply("one at 1").await;
    ana.expect_reply("two at 1").await;
    bot.advance("1s").await;
    assert_eq!(bot.channel().connected(), [2]);
}

#[tokio::test]
async fn h07_a_clean_stop_hands_50_held_and_1000_waiting_turns_over_and_loses_none() {
    let turns = TurnsConfig { max_concurrent: 50, ..TurnsConfig::default() };
    let build = slow(Duration::from_millis(200));
    let bot = TestBot::replicas(2)
        .channel(exclusive())
        .start_each(move |replica, bot| build(replica, bot).turns(turns));
    for message in 0..21 {
        for user in 0..50 {
            bot.user(format!("user-{user}")).says(format!("m{message}")).await;
        }
    }
    assert_eq!(bot.channel().sent().len(), 0, "the first of each is held");
    let before = bot.elapsed();
    bot.replica(1).stop().await;
    bot.advance("1s").await;
    assert_eq!(bot.channel().connections(), [1, 2]);
    assert!(bot.elapsed() - before < Duration::from_millis(1_500), "{}", bot.transcript());
    bot.advance("10s").await;
    for user in 0..50 {
        let expected: Vec<_> =
            (0..21).map(|message| format!("m{message} at {}", if message == 0 { 1 } else { 2 })).collect();
        assert_eq!(bot.channel().texts_to(&format!("user-{user}")), expected);
    }
}
