//! What a replica leaves in a chat when it dies or stands still goes before what arrived after it.

use std::time::Duration;

use botmesh::BotBuilder;
use botmesh::prelude::*;
use botmesh_testing::{TestBot, WritePoint};

/// Counts the messages of a user.
fn counting(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move {
        let n = c.user().increment("messages", 1).await?;
        c.reply(format!("{n}: {}", c.text())).await?;
        Ok::<_, botmesh::Error>(())
    })
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
