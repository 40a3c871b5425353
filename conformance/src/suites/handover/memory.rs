//! Conversations whose code waits in the memory of a replica, and their stubs.

use botmesh::prelude::*;
use botmesh::{BotBuilder, Fallback, HandoverConfig, HandoverOutcome};
use botmesh_core::store::CheckpointPhase;
use botmesh_testing::{WritePoint, containing};

use super::tools::{Ground, NAME, SORRY, WHAT, talk};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, NOT_CLAIMED, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_conversation_in_memory_is_told_of: "another replica finds that there was one, and does with it what the fallback says",
        a_conversation_in_memory_is_told_of_once: "so it is if the message that began it was never acknowledged and comes again",
        a_dropped_conversation_leaves_nothing: "where the fallback drops it, nothing is written of it",
        a_conversation_in_memory_writes_twice: "one row when it begins and its removal when it ends, however long it is",
    ]
}

fn chat(_: usize, bot: BotBuilder) -> BotBuilder {
    bot.when("talk", |c: Ctx| async move { c.enter_with("chat", &"Good morning") })
        .otherwise(|c: Ctx| async move { c.reply(WHAT).await })
        .conversation("chat", |c: Conv| async move {
            c.say(c.input::<String>()?).await?;
            let name = c.ask(NAME).await?;
            let town = c.ask("Where do you live?").await?;
            c.say(format!("{} of {}.", name.text(), town.text())).await?;
            Ok::<_, botmesh::Error>(())
        })
}

async fn a_conversation_in_memory_is_told_of(context: &mut Context) -> CaseResult {
    let function = Fallback::function(|interrupted, c: Ctx| async move {
        let began = interrupted.state.unwrap_or_default();
        c.reply(format!("{} is gone, which began with {began}", interrupted.name)).await?;
        Ok(true)
    });
    let told = "chat is gone, which began with \"Good morning\"";
    for (bot, fallback, replies, outcome) in [
        ("notice", Fallback::Notify, vec![SORRY], HandoverOutcome::Notified),
        ("restart", Fallback::Restart, vec!["Good morning", NAME], HandoverOutcome::Restarted),
        ("function", function, vec![told], HandoverOutcome::Taken),
    ] {
        let ground = Ground::new(context, bot)?;
        let (bot, ana) = ground.start(HandoverConfig::default().with_fallback(fallback), chat);
        talk(&ana, 1, "talk", &["Good morning", NAME]).await;
        ensure_eq!(ground.existing_row().await?.phase, CheckpointPhase::Stub, "the phase of the row");
        bot.replica(1).crash();
        ana.through(2).says("Ana").await;
        for reply in replies {
            ana.expect_reply(containing(reply)).await;
        }
        bot.expect_handover(&ana, "chat", outcome).await;
        let next = if outcome == HandoverOutcome::Restarted { "Where do you live?" } else { WHAT };
        talk(&ana, 2, "Ana", &[next]).await;
        bot.replica(1).restart().await;
    }
    PASSED
}

async fn a_conversation_in_memory_is_told_of_once(context: &mut Context) -> CaseResult {
    if !context.has_kv() {
        return NOT_CLAIMED;
    }
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default().with_fallback(Fallback::Notify), chat);
    bot.replica(1).crash_before(WritePoint::InboxFinish);
    talk(&ana, 1, "talk", &["Good morning", NAME]).await;
    ensure!(bot.replica(1).has_crashed(), "the first replica is alive");
    ana.through(2).says("Ana").await;
    // What the first replica had in flight holds the chat back until its lease of the journals ran out.
    bot.advance("5m").await;
    ana.expect_reply(containing(SORRY)).await;
    talk(&ana, 2, "Ana", &[WHAT]).await;
    ana.expect_silence().await;
    PASSED
}

async fn a_dropped_conversation_leaves_nothing(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), chat);
    talk(&ana, 1, "talk", &["Good morning", NAME]).await;
    ensure!(ground.row().await?.is_none(), "there is a row of a conversation that nobody would be told of");
    bot.replica(1).crash();
    talk(&ana, 2, "Ana", &[WHAT]).await;
    PASSED
}

async fn a_conversation_in_memory_writes_twice(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default().with_fallback(Fallback::Notify), chat);
    let before = bot.replica(1).store().writes();
    talk(&ana, 1, "talk", &["Good morning", NAME]).await;
    let begun = ground.existing_row().await?;
    talk(&ana, 1, "Ana", &["Where do you live?"]).await;
    ensure_eq!(ground.existing_row().await?, begun, "the row in the middle of the conversation");
    talk(&ana, 1, "Rome", &["Ana of Rome."]).await;
    ensure!(ground.row().await?.is_none(), "the row of a conversation that ended is there");
    ensure_eq!(bot.replica(1).store().writes() - before, 2, "the writes of a whole conversation");
    talk(&ana, 2, "hello", &[WHAT]).await;
    PASSED
}
