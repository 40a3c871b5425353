//! Waits whose time runs out where nobody waits any more.

use botmesh::HandoverConfig;
use botmesh::prelude::*;

use super::tools::{Ground, NAME, Signup, WHAT, desk, done, how_old, take_name, talk};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_timer_of_a_dead_replica_fires_elsewhere: "the other replica finds the wait that ran out, and not before its time",
        a_timer_moves_with_its_conversation: "a wait that was answered elsewhere does not run out, and its successor does once",
        a_timer_waits_for_a_restart: "a wait that ran out while no replica was there ends when one starts",
    ]
}

fn timed() -> Flow<Signup> {
    let wait = Duration::from_secs(600);
    let timed = flow::<Signup>("signup").ask("name", NAME, take_name).timeout(wait);
    let timed = timed.ask("age", how_old, |_, _| Ok(())).timeout(wait).say(done);
    timed.on_timeout("Too late.").persistent()
}

async fn a_timer_of_a_dead_replica_fires_elsewhere(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), |_, bot| desk(bot, timed()));
    talk(&ana, 1, "sign up", &[NAME]).await;
    let due = ground.existing_row().await?.due;
    ensure!(due.is_some(), "the checkpoint is not due at any time");
    bot.replica(1).crash();
    bot.advance("9m").await;
    ana.expect_silence().await;
    bot.advance("2m").await;
    ana.expect_reply("Too late.").await;
    ana.expect_silence().await;
    ensure!(ground.row().await?.is_none(), "the row of a conversation that ran out is there");
    talk(&ana, 2, "Ana", &[WHAT]).await;
    PASSED
}

async fn a_timer_moves_with_its_conversation(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), |_, bot| desk(bot, timed()));
    talk(&ana, 1, "sign up", &[NAME]).await;
    bot.advance("6m").await;
    talk(&ana, 2, "Ana", &["How old are you, Ana?"]).await;
    bot.advance("9m").await;
    ana.expect_silence().await;
    bot.advance("2m").await;
    ana.expect_reply("Too late.").await;
    bot.advance("15m").await;
    ana.expect_silence().await;
    PASSED
}

async fn a_timer_waits_for_a_restart(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), |_, bot| desk(bot, timed()));
    talk(&ana, 1, "sign up", &[NAME]).await;
    talk(&ana, 1, "Ana", &["How old are you, Ana?"]).await;
    bot.replica(1).crash();
    bot.replica(2).stop().await;
    bot.advance("30m").await;
    ana.expect_silence().await;
    bot.replica(2).restart().await;
    ana.expect_reply("Too late.").await;
    ana.expect_silence().await;
    ensure_eq!(ground.row().await?, None, "the row of a conversation that ran out");
    PASSED
}
