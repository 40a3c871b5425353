//! Answers of which the work was cut short, and messages whose acknowledgement was lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use botmesh::prelude::*;
use botmesh::{BotBuilder, HandoverConfig, HandoverOutcome};
use botmesh_core::inbound::InboundMedia;
use botmesh_core::store::CheckpointPhase;
use botmesh_testing::WritePoint;

use super::tools::{Ground, NAME, Signup, WHAT, desk, done, how_old, signup, talk};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, NOT_CLAIMED, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_step_cut_short_keeps_its_answer: "a replica dies in a step, and the other one gives the step its answer again",
        an_answer_is_kept_without_journals: "so it is without journals, where the checkpoint itself has the answer",
        a_picture_is_kept_without_journals: "an answer that is a picture comes back with its caption, type and content",
        a_message_is_acknowledged_after_its_checkpoint: "a replica dies between the two, and the message is no answer a second time",
        messages_before_the_last_are_remembered: "so it is if the user said more before the message came again",
    ]
}

/// A bot whose step after the first question never ends the first time.
fn slow() -> impl Fn(usize, BotBuilder) -> BotBuilder + Send + Sync {
    let runs = Arc::new(AtomicUsize::new(0));
    move |_, bot| {
        let runs = Arc::clone(&runs);
        let slow = flow::<Signup>("signup")
            .do_("name", move |c: FlowCtx<Signup>| {
                let runs = Arc::clone(&runs);
                async move {
                    let name = c.ask(NAME).await?;
                    let what = match name.media() {
                        Some(media) => {
                            let bytes = c.ctx().load_media().await.unwrap_or_default();
                            format!("{:?} of {} bytes, {}", media.mime, bytes.len(), name.text())
                        }
                        None => name.text().to_owned(),
                    };
                    c.say(format!("Looking for {what}...")).await?;
                    if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                        std::future::pending::<()>().await;
                    }
                    c.update(|signup| signup.name = what);
                    Ok(Step::Next)
                }
            })
            .ask("age", how_old, |_, _| Ok(()))
            .say(done)
            .persistent();
        desk(bot, slow)
    }
}

async fn a_step_cut_short_keeps_its_answer(context: &mut Context) -> CaseResult {
    if !context.has_kv() {
        return NOT_CLAIMED;
    }
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), slow());
    talk(&ana, 1, "sign up", &[NAME]).await;
    talk(&ana, 1, "Ana", &["Looking for Ana..."]).await;
    let row = ground.existing_row().await?;
    ensure_eq!(row.phase, CheckpointPhase::Running, "the phase of the row");
    let record = row.answer.and_then(|answer| answer.record);
    ensure!(record.is_some(), "the checkpoint does not say which record the step works on");
    bot.replica(1).crash();
    talk(&ana, 2, "30", &["How old are you, Ana?", "Done, Ana."]).await;
    bot.expect_handover(&ana, "signup", HandoverOutcome::Resumed).await;
    bot.advance("5m").await;
    talk(&ana, 2, "hello", &[WHAT]).await;
    PASSED
}

async fn an_answer_is_kept_without_journals(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?.without_journals();
    let (bot, ana) = ground.start(HandoverConfig::default(), slow());
    talk(&ana, 1, "sign up", &[NAME]).await;
    talk(&ana, 1, "Ana", &["Looking for Ana..."]).await;
    bot.replica(1).crash();
    talk(&ana, 2, "30", &["Looking for Ana...", "How old are you, Ana?", "Done, Ana."]).await;
    talk(&ana, 2, "hello", &[WHAT]).await;
    PASSED
}

async fn a_picture_is_kept_without_journals(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?.without_journals();
    let (bot, ana) = ground.start(HandoverConfig::default(), slow());
    talk(&ana, 1, "sign up", &[NAME]).await;
    let picture = ana.upload(vec![7; 5000], "image/png");
    let picture = InboundMedia { caption: Some("my caf\u{e9}".to_owned()), ..picture };
    ana.through(1).sends(InboundBody::Image(picture)).await;
    let seen = "Some(\"image/png\") of 5000 bytes, my caf\u{e9}";
    ana.expect_reply(format!("Looking for {seen}...")).await;
    bot.replica(1).crash();
    let replies = [&*format!("Looking for {seen}..."), &*format!("How old are you, {seen}?")];
    talk(&ana, 2, "30", &[&replies[..], &[&*format!("Done, {seen}.")]].concat()).await;
    PASSED
}

async fn a_message_is_acknowledged_after_its_checkpoint(context: &mut Context) -> CaseResult {
    if !context.has_kv() {
        return NOT_CLAIMED;
    }
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), |_, bot| desk(bot, signup().persistent()));
    talk(&ana, 1, "sign up", &[NAME]).await;
    bot.replica(1).crash_before(WritePoint::InboxFinish);
    talk(&ana, 1, "Ana", &["How old are you, Ana?"]).await;
    ensure!(bot.replica(1).has_crashed(), "the first replica is alive");
    ensure_eq!(ground.existing_row().await?.step, "age", "the step of the row");
    // The message comes again in the other replica, when the journals' lease of the first one ran out.
    bot.advance("5m").await;
    ana.expect_silence().await;
    talk(&ana, 2, "30", &["Done, Ana."]).await;
    PASSED
}

async fn messages_before_the_last_are_remembered(context: &mut Context) -> CaseResult {
    if !context.has_kv() {
        return NOT_CLAIMED;
    }
    for ends in [false, true] {
        let ground = Ground::new(context, if ends { "ended" } else { "waiting" })?;
        let (bot, ana) = ground.start(HandoverConfig::default(), move |_, bot| {
            let signup =
                if ends { signup() } else { signup().ask("town", "Where do you live?", |_, _| Ok(())) };
            desk(bot, signup.persistent())
        });
        talk(&ana, 1, "sign up", &[NAME]).await;
        bot.replica(1).crash_before(WritePoint::InboxFinish);
        talk(&ana, 1, "Ana", &["How old are you, Ana?"]).await;
        let next: &[&'static str] =
            if ends { &["Done, Ana."] } else { &["Done, Ana.", "Where do you live?"] };
        ana.through(2).says("30").await;
        ensure_eq!(ground.existing_row().await?.earlier.len(), 1, "the messages that may come again");
        // What the first replica had in flight holds the chat back until its lease of the journals ran out. Then its message
        // comes again.
        bot.advance("5m").await;
        for reply in next {
            ana.expect_reply(*reply).await;
        }
        ana.expect_silence().await;
        talk(&ana, 2, "Rome", if ends { &[WHAT] } else { &[] }).await;
        talk(&ana, 2, "hello", &[WHAT]).await;
    }
    PASSED
}
