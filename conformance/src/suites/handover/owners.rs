//! Replicas that lost a conversation and do not know it yet, and numbers that never restart.

use botmesh::HandoverConfig;
use botmesh_core::error::Cas;
use botmesh_core::store::Checkpoint;
use botmesh_testing::TestUser;

use super::tools::{Ground, NAME, WHAT, ana, desk, signup, talk};
use crate::case::{cases, ensure, ensure_eq};
use crate::suites::store::turn;
use crate::{Case, CaseResult, Context, Failure, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_late_write_is_refused: "what a replica wrote under a turn that it lost is refused, and the conversation goes on",
        a_late_clear_leaves_the_newer_row: "so is its clear, and the row of the replica that went on stays",
        a_replica_that_stood_still_says_nothing: "it goes on under a new session, and neither answers nor writes for the old one",
        turns_follow_what_the_store_has_seen: "after a start with a clock that stepped back, the conversation still goes on",
        revisions_go_on_after_a_conversation: "a conversation that begins after another one ended has greater revisions",
    ]
}

/// A conversation that the second replica took over from the first, the row that the first one had written, and the newer
/// one.
async fn taken_over(ground: &Ground) -> Result<(TestUser, Checkpoint, Checkpoint), Failure> {
    let (bot, ana) = ground.start(HandoverConfig::default(), |_, bot| desk(bot, signup().persistent()));
    talk(&ana, 1, "sign up", &[NAME]).await;
    let old = ground.existing_row().await?;
    bot.replica(1).freeze();
    talk(&ana, 2, "Ana", &["How old are you, Ana?"]).await;
    let new = ground.existing_row().await?;
    ensure!(new.fence > old.fence, "the fence {:?} of a later turn is not above {:?}", new.fence, old.fence);
    ensure!(new.session != old.session, "both rows are of one session");
    Ok((ana, old, new))
}

async fn a_late_write_is_refused(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (user, old, new) = taken_over(&ground).await?;
    let late = turn(old.fence.0, old.session.as_str());
    let row = Checkpoint { step: "late".to_owned(), ..old.clone() };
    for expect in [old.revision, new.revision] {
        let written = ground.store().set_checkpoint(&late, &ana(), Some(expect), &row).await?;
        ensure_eq!(written, Cas::Lost, "the late write that expects {expect:?}");
    }
    ensure_eq!(ground.existing_row().await?, new, "the row after the late writes");
    talk(&user, 2, "30", &["Done, Ana."]).await;
    PASSED
}

async fn a_late_clear_leaves_the_newer_row(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (user, old, new) = taken_over(&ground).await?;
    let late = turn(old.fence.0, old.session.as_str());
    for expect in [old.revision, new.revision] {
        let cleared = ground.store().clear_checkpoint(&late, &ana(), expect).await?;
        ensure_eq!(cleared, Cas::Lost, "the late clear that expects {expect:?}");
    }
    ensure_eq!(ground.existing_row().await?, new, "the row after the late clears");
    talk(&user, 2, "30", &["Done, Ana."]).await;
    PASSED
}

async fn a_replica_that_stood_still_says_nothing(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), |_, bot| desk(bot, signup().persistent()));
    talk(&ana, 1, "sign up", &[NAME]).await;
    bot.replica(1).freeze();
    talk(&ana, 2, "Ana", &["How old are you, Ana?"]).await;
    let row = ground.existing_row().await?;
    bot.replica(1).thaw().await;
    bot.advance("1m").await;
    ana.expect_silence().await;
    ensure_eq!(ground.existing_row().await?, row, "the row after the first replica went on");
    talk(&ana, 1, "30", &["Done, Ana."]).await;
    PASSED
}

async fn turns_follow_what_the_store_has_seen(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let build = |bot| desk(bot, signup().persistent());
    {
        let (bot, ana) = ground.start_alone(build);
        bot.advance("10m").await;
        talk(&ana, 1, "sign up", &[NAME]).await;
        bot.stop().await;
    }
    let row = ground.existing_row().await?;
    ensure_eq!(ground.store().last_fence().await?, row.fence, "the largest fence");
    // Its clock begins where that of the first one began.
    let (_bot, ana) = ground.start_alone(build);
    talk(&ana, 1, "Ana", &["How old are you, Ana?"]).await;
    talk(&ana, 1, "30", &["Done, Ana."]).await;
    PASSED
}

async fn revisions_go_on_after_a_conversation(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (_bot, ana) = ground.start(HandoverConfig::default(), |_, bot| desk(bot, signup().persistent()));
    talk(&ana, 1, "sign up", &[NAME]).await;
    talk(&ana, 1, "Ana", &["How old are you, Ana?"]).await;
    let old = ground.existing_row().await?;
    talk(&ana, 1, "30", &["Done, Ana."]).await;
    talk(&ana, 1, "hello", &[WHAT]).await;
    ensure!(ground.row().await?.is_none(), "the row of a conversation that ended is there");
    let fence = ground.store().last_fence().await?;
    ensure!(fence.0 == 0 || fence >= old.fence, "the largest fence went back to {fence:?} after a clear");
    // The smallest turn that there may be, as of a replica with another clock.
    let (late, conversation) = (turn(1, "other"), super::tools::ana());
    let written = ground.store().set_checkpoint(&late, &conversation, None, &old).await?;
    let Cas::Applied(revision) = written else {
        return Err(Failure::new("the next conversation is refused, though there is no row"));
    };
    ensure!(revision > old.revision, "{revision:?} comes after {:?}", old.revision);
    PASSED
}
