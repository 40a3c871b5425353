//! Checkpoints: who may still write.

use botmesh_core::coordinator::Turn;
use botmesh_core::error::Cas;
use botmesh_core::store::Revision;

use super::tools::{Done, Held, applied, conversation, existing, is_lost, plain_checkpoint, turn};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_later_turn_may_write: "a greater fence writes and clears, of whatever session",
        the_same_turn_may_write_again: "an equal fence of the same session writes and clears",
        an_older_turn_is_refused: "a smaller fence is refused, also of the same session and the right revision",
        an_equal_fence_of_another_session_is_refused: "an equal fence of another session is refused",
        large_fences_are_compared_as_integers: "fences beyond 2^53 that differ by one are told apart",
    ]
}

/// A checkpoint written under fence 10 by the session `s1`.
async fn written(store: &Held, chat: &str) -> Done<Revision> {
    applied(store, &turn(10, "s1"), &conversation(chat), None, &plain_checkpoint("name")).await
}

async fn may(store: &Held, chat: &str, turn: &Turn) -> Done {
    let key = conversation(chat);
    let revision = written(store, chat).await?;
    let next = applied(store, turn, &key, Some(revision), &plain_checkpoint("day")).await?;
    let found = existing(store, &key).await?;
    ensure_eq!((found.fence, &found.session), (turn.fence(), turn.session()), "the fence and the session");
    ensure_eq!(store.clear_checkpoint(turn, &key, next).await?, Cas::Applied(()), "the clear under {turn:?}");
    Ok(())
}

async fn may_not(store: &Held, chat: &str, turn: &Turn) -> Done {
    let key = conversation(chat);
    let revision = written(store, chat).await?;
    let before = existing(store, &key).await?;
    ensure!(is_lost(store, turn, &key, Some(revision)).await?, "{turn:?} writes");
    ensure_eq!(store.clear_checkpoint(turn, &key, revision).await?, Cas::Lost, "{turn:?} clears");
    ensure_eq!(existing(store, &key).await?, before, "the checkpoint after a refused write");
    Ok(())
}

async fn a_later_turn_may_write(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    may(&store, "ana", &turn(11, "s1")).await?;
    may(&store, "bea", &turn(11, "s2")).await?;
    may(&store, "eva", &turn(1_000_000, "s2")).await?;
    PASSED
}

async fn the_same_turn_may_write_again(context: &mut Context) -> CaseResult {
    may(&context.store()?, "ana", &turn(10, "s1")).await?;
    PASSED
}

async fn an_older_turn_is_refused(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    may_not(&store, "ana", &turn(9, "s1")).await?;
    may_not(&store, "bea", &turn(9, "s2")).await?;
    may_not(&store, "eva", &turn(0, "s1")).await?;
    PASSED
}

async fn an_equal_fence_of_another_session_is_refused(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    for (chat, session) in [("ana", "s2"), ("bea", "S1"), ("eva", "s1 "), ("sol", "")] {
        may_not(&store, chat, &turn(10, session)).await?;
    }
    PASSED
}

async fn large_fences_are_compared_as_integers(context: &mut Context) -> CaseResult {
    const EDGE: u64 = 1 << 53;
    let store = context.store()?;
    let key = conversation("ana");
    let revision = applied(&store, &turn(EDGE + 1, "s1"), &key, None, &plain_checkpoint("name")).await?;
    ensure!(revision.0 > EDGE, "the revision {revision:?} is smaller than the fence");
    ensure!(is_lost(&store, &turn(EDGE, "s2"), &key, Some(revision)).await?, "a fence smaller by one writes");
    ensure!(is_lost(&store, &turn(EDGE + 1, "s2"), &key, Some(revision)).await?, "an equal fence writes");
    applied(&store, &turn(EDGE + 2, "s2"), &key, Some(revision), &plain_checkpoint("day")).await?;
    PASSED
}
