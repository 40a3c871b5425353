//! What becomes of conversations that nobody answers, when their code cannot go on or when they are kept no longer.

use std::time::Duration;

use botmesh::core::store::Store;
use botmesh::core::time::Clock;
use botmesh::prelude::*;
use botmesh::{BotBuilder, BotEvent, Conversation, Fallback, HandoverConfig, HandoverFlows, TurnsConfig};
use botmesh_testing::TestBot;

const MINUTE: Duration = Duration::from_secs(60);

fn with(conversation: Conversation) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| {
        bot.when("start", |c: Ctx| async move { c.enter("survey") })
            .otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await })
            .add_conversation(conversation.replayable().on_timeout("too late"))
    }
}

fn greeting(word: &'static str) -> impl Fn(BotBuilder) -> BotBuilder + Send + Sync + 'static {
    move |bot| {
        with(conversation("survey", move |c: Conv| async move {
            c.say(word).await?;
            c.ask("colour?").timeout(MINUTE).await?;
            Result::<()>::Ok(())
        }))(bot)
    }
}

fn names(bot: &TestBot) -> Vec<&'static str> {
    bot.events().iter().map(BotEvent::name).filter(|name| *name != "started").collect()
}

async fn due(bot: &TestBot) -> usize {
    bot.store().due_checkpoints(bot.clock().now(), 10).await.expect("the store works").len()
}

#[tokio::test]
async fn a_replayable_conversation_whose_code_was_changed_ends_when_its_wait_is_over() {
    let bot = TestBot::replicas(1).start(greeting("hello"));
    let ana = bot.user("ana");
    ana.says("start").await;
    ana.expect_reply("hello").await;
    ana.expect_reply("colour?").await;
    bot.replica(1).deploy(greeting("hola")).await;
    bot.advance("5m").await;
    ana.expect_reply("too late").await;
    assert!(names(&bot).ends_with(&["flow:incompatible", "flow:timeout"]), "{}", bot.transcript());
    assert_eq!(due(&bot).await, 0, "it is looked at again and again");
    ana.says("red").await;
    ana.expect_reply("? red").await;
}

#[tokio::test]
async fn a_replayable_conversation_that_does_not_settle_ends_when_its_wait_is_over() {
    let slow = |c: Conv| async move {
        if c.ask("colour?").timeout(MINUTE).await.is_err() {
            c.sleep(10 * MINUTE).await?;
        }
        Result::<()>::Ok(())
    };
    let bot = TestBot::new(move |bot| {
        let turns = TurnsConfig { settle: MINUTE, ..TurnsConfig::default() };
        with(conversation("survey", slow))(bot.turns(turns))
    });
    let ana = bot.user("ana");
    ana.says("start").await;
    ana.expect_reply("colour?").await;
    bot.advance("5m").await;
    ana.expect_reply("too late").await;
    assert_eq!(due(&bot).await, 0, "it is looked at again and again");
}

#[tokio::test]
async fn nobody_is_stuck_in_a_replayable_conversation_that_panics() {
    for answered in [true, false] {
        let bot = TestBot::new(|bot| {
            let panics = |c: Conv| async move {
                let answer = c.ask("colour?").timeout(MINUTE).await;
                assert!(answer.is_ok_and(|answer| answer.is(&["none"])), "no colours");
                Result::<()>::Ok(())
            };
            with(conversation("survey", panics))(bot)
        });
        let ana = bot.user("ana");
        ana.says("start").await;
        ana.expect_reply("colour?").await;
        if answered {
            ana.says("red").await;
        }
        bot.advance("5m").await;
        assert_eq!(names(&bot), ["error"], "answered: {answered}\n{}", bot.transcript());
        ana.says("hello").await;
        ana.expect_reply("? hello").await;
        assert_eq!(due(&bot).await, 0, "answered: {answered}");
    }
}

/// What is due and stays so is in the way of what is due later.
#[tokio::test]
async fn what_is_kept_no_longer_is_not_due_for_ever_though_its_code_still_waits() {
    let handover =
        HandoverConfig::default().with_flows(HandoverFlows::Forward).with_fallback(Fallback::Notify);
    let bot = TestBot::replicas(1).handover(handover).start(|bot| {
        let talk = |c: Conv| async move {
            let name = c.ask("name?").await?;
            c.say(format!("{}!", name.text())).await?;
            Result::<()>::Ok(())
        };
        let visit = flow::<()>("visit").do_("day", |c: FlowCtx<()>| async move {
            c.ask("day?").await?;
            Ok(Step::Next)
        });
        bot.when("talk", |c: Ctx| async move { c.enter("talk") })
            .when("visit", |c: Ctx| async move { c.enter("visit") })
            .otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await })
            .conversation("talk", talk)
            .flow(visit)
    });
    let (ana, ben) = (bot.user("ana"), bot.user("ben"));
    ana.says("talk").await;
    ana.expect_reply("name?").await;
    ben.says("visit").await;
    ben.expect_reply("day?").await;
    bot.clock().step_wall(10 * 24 * 3600 * 1000);
    bot.advance("1m").await;
    assert_eq!(due(&bot).await, 0);
    ana.says("Ana").await;
    ana.expect_reply("Ana!").await;
    ben.says("Friday").await;
    ben.expect_reply("? Friday").await;
}
