//! What a bot measures of itself, on the clock that the test owns.

use std::time::Duration;

use botmesh::BotBuilder;
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh_testing::Fault;

use crate::support::Stage;

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

#[tokio::test]
async fn it_is_measured_how_long_a_message_waited_for_the_journals_and_a_send_was_in_doubt() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    life.settled().await;
    let next = life.journal.commits() + 1;
    // The message, the send, and that both are done.
    for n in 0..3 {
        life.journal.fail_commit(next + n, Fault::Hang);
    }
    let delivery = life.deliver(Inbound::text("m1", "ana", "there"));
    let hangs = async {
        for (nth, seconds) in (next..).zip([2, 3, 5]) {
            let stands_still = || life.journal.commits() == nth && life.journal.hanging() == 1;
            life.until("a commit that stands still", stands_still).await;
            stage.clock.advance(Duration::from_secs(seconds)).await;
            life.journal.release();
        }
    };
    assert!(futures_util::join!(delivery, hangs).0);
    life.settled().await;
    let metrics = life.bot.metrics();
    let about =
        |seconds: u128, found: Duration| (seconds * 1000..seconds * 1000 + 2500).contains(&found.as_millis());
    assert_eq!(
        (metrics.durable_wait.count, metrics.ambiguous_window.count, metrics.handling.count),
        (2, 2, 2)
    );
    assert!(about(5, metrics.durable_wait.max), "waited {}", metrics.durable_wait);
    assert!(about(5, metrics.ambiguous_window.max), "in doubt {}", metrics.ambiguous_window);
    assert!(about(3, metrics.handling.max), "handled {}", metrics.handling);
    assert!(metrics.durable_wait.quantile(0.4) < Duration::from_secs(1));
    life.stop().await;
}

#[tokio::test]
async fn the_oldest_message_without_an_end_is_known() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    assert_eq!(life.bot.metrics().oldest_unfinished, None);
    stage.channel.hang_next();
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    stage.channel.wait_for_hanging(1).await;
    stage.clock.advance(Duration::from_secs(5)).await;
    assert!(life.deliver(Inbound::text("m2", "ana", "and?")).await);
    let metrics = life.bot.metrics();
    assert_eq!(metrics.unfinished, 2);
    assert!(metrics.oldest_unfinished.is_some_and(|age| age >= Duration::from_secs(5)));
    assert!(metrics.to_string().contains("unfinished             2\n"), "{metrics}");
    stage.channel.release();
    life.until("both replies", || stage.channel.texts_to("ana").len() == 2).await;
    life.settled().await;
    let metrics = life.bot.metrics();
    assert_eq!((metrics.unfinished, metrics.oldest_unfinished), (0, None));
    life.stop().await;
}
