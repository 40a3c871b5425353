//! The order of a chat whose messages arrive at several replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use botmesh::prelude::*;
use botmesh::{BotBuilder, OnHandlerError};
use botmesh_testing::TestBot;

/// Answers after 10 s.
fn slow(replica: usize, bot: BotBuilder) -> BotBuilder {
    let answer = move |c: Conv| async move {
        let asked: String = c.input()?;
        c.sleep(Duration::from_secs(10)).await?;
        c.say(format!("{asked} at {replica}")).await?;
        Ok::<_, botmesh::Error>(())
    };
    bot.conversation("slow", answer)
        .otherwise(|c: Ctx| async move { c.enter_with("slow", &c.text().to_owned()) })
}

#[tokio::test]
async fn messages_that_wait_at_one_replica_come_before_those_that_arrive_at_another_later() {
    for options in [TestBot::replicas(2), TestBot::replicas(2).without_durability()] {
        let bot = options.start_each(slow);
        let ana = bot.user("ana");
        for (text, replica) in [("one", 1), ("two", 1), ("three", 1), ("four", 2), ("five", 1), ("six", 2)] {
            ana.through(replica).says(text).await;
        }
        for expected in ["one at 1", "two at 1", "three at 1", "four at 2", "five at 1", "six at 2"] {
            ana.expect_reply(expected).await;
        }
        assert!(bot.elapsed() < Duration::from_secs(61), "nobody waits for a ticket of nobody's");
    }
}

#[tokio::test]
async fn a_message_that_rests_after_the_end_of_another_replica_is_left_alone() {
    let failed = Arc::new(AtomicBool::new(false));
    let mut durability = Durability::default();
    durability.inbox.on_handler_error = OnHandlerError::Retry;
    let bot = TestBot::replicas(3).durability(durability).start_each(move |replica, bot| {
        let failed = Arc::clone(&failed);
        let slow = |c: Conv| async move { c.sleep(Duration::from_secs(10)).await };
        bot.conversation("slow", slow).otherwise(move |c: Ctx| {
            let fails = c.text() == "one" && !failed.swap(true, Ordering::Relaxed);
            async move {
                if fails {
                    return Err("not yet".into());
                }
                if replica == 3 {
                    c.enter("slow");
                    return Ok(());
                }
                c.reply(format!("{} at {replica}", c.text())).await?;
                Ok::<_, botmesh::Error>(())
            }
        })
    });
    let ana = bot.user("ana");
    for (text, replica) in [("zero", 3), ("one", 1), ("two", 1), ("three", 2)] {
        ana.through(replica).says(text).await;
        bot.advance("1ms").await;
    }
    bot.replica(3).crash();
    for expected in ["zero at 1", "three at 2", "one at 1", "two at 1"] {
        ana.expect_reply(expected).await;
    }
}

#[tokio::test]
async fn while_a_message_rests_before_its_next_attempt_another_replica_has_the_chat() {
    let failed = Arc::new(AtomicBool::new(false));
    let mut durability = Durability::default();
    durability.inbox.on_handler_error = OnHandlerError::Retry;
    let bot = TestBot::replicas(2).durability(durability).start_each(move |replica, bot| {
        let failed = Arc::clone(&failed);
        bot.otherwise(move |c: Ctx| {
            let fails = c.text() == "one" && !failed.swap(true, Ordering::Relaxed);
            async move {
                if fails {
                    return Err("not yet".into());
                }
                c.reply(format!("{} at {replica}", c.text())).await?;
                Ok::<_, botmesh::Error>(())
            }
        })
    });
    let ana = bot.user("ana");
    for (text, replica) in [("one", 1), ("two", 1), ("three", 2)] {
        ana.through(replica).says(text).await;
    }
    for expected in ["three at 2", "one at 1", "two at 1"] {
        ana.expect_reply(expected).await;
    }
}
