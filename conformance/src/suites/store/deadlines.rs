//! Checkpoints that are due.

use botmesh_core::error::Cas;
use botmesh_core::store::{Checkpoint, Revision};
use botmesh_core::time::Timestamp;

use super::tools::{Done, Held, applied, conversation, is_lost, plain_checkpoint, turn};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        due_checkpoints_come_earliest_first: "those due come in the order of their deadlines, up to and with the time",
        due_checkpoints_are_limited: "no more than the limit come, and they are the earliest",
        equal_deadlines_are_all_due: "many checkpoints of one deadline are all found",
        a_deadline_moves_with_the_checkpoint: "a later write moves or removes the deadline",
        a_cleared_checkpoint_is_not_due: "a clear takes the deadline away",
        a_refused_write_sets_no_deadline: "a write that is refused changes no deadline",
    ]
}

async fn write(store: &Held, chat: &str, expect: Option<Revision>, deadline: Option<i64>) -> Done<Revision> {
    let due = deadline.map(Timestamp::from_millis);
    let checkpoint = Checkpoint { due, ..plain_checkpoint("name") };
    applied(store, &turn(7, "s1"), &conversation(chat), expect, &checkpoint).await
}

async fn due(store: &Held, until: i64, limit: usize) -> Done<Vec<(String, i64)>> {
    let due = store.due_checkpoints(Timestamp::from_millis(until), limit).await?;
    Ok(due.into_iter().map(|(key, deadline)| (key.chat.to_string(), deadline.as_millis())).collect())
}

fn pairs(pairs: &[(&str, i64)]) -> Vec<(String, i64)> {
    pairs.iter().map(|(chat, deadline)| ((*chat).to_owned(), *deadline)).collect()
}

async fn due_checkpoints_come_earliest_first(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    for (chat, deadline) in
        [("c", Some(30)), ("a", Some(10)), ("never", None), ("b", Some(20)), ("old", Some(-5))]
    {
        write(&store, chat, None, deadline).await?;
    }
    ensure_eq!(due(&store, 20, 10).await?, pairs(&[("old", -5), ("a", 10), ("b", 20)]), "until 20");
    ensure_eq!(due(&store, 19, 10).await?, pairs(&[("old", -5), ("a", 10)]), "until 19");
    let all = pairs(&[("old", -5), ("a", 10), ("b", 20), ("c", 30)]);
    ensure_eq!(due(&store, i64::MAX, usize::MAX).await?, all, "until the end of time");
    ensure!(due(&store, -6, 10).await?.is_empty(), "something is due before everything");
    PASSED
}

async fn due_checkpoints_are_limited(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    for n in (0..20).rev() {
        write(&store, &format!("{n:02}"), None, Some(n)).await?;
    }
    ensure_eq!(due(&store, 100, 3).await?, pairs(&[("00", 0), ("01", 1), ("02", 2)]), "three");
    ensure!(due(&store, 100, 0).await?.is_empty(), "a limit of none");
    ensure_eq!(due(&store, 100, 100).await?.len(), 20, "a limit above the number");
    PASSED
}

async fn equal_deadlines_are_all_due(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    for n in 0..25 {
        write(&store, &format!("{n:02}"), None, Some(5)).await?;
    }
    let mut found = due(&store, 5, 25).await?;
    found.sort();
    let expected: Vec<_> = (0..25).map(|n| (format!("{n:02}"), 5)).collect();
    ensure_eq!(found, expected, "the checkpoints of one deadline");
    PASSED
}

async fn a_deadline_moves_with_the_checkpoint(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let revision = write(&store, "ana", None, Some(10)).await?;
    let revision = write(&store, "ana", Some(revision), Some(20)).await?;
    ensure!(due(&store, 19, 10).await?.is_empty(), "it is due at its old deadline");
    ensure_eq!(due(&store, 20, 10).await?, pairs(&[("ana", 20)]), "at its new one");
    let revision = write(&store, "ana", Some(revision), Some(20)).await?;
    ensure_eq!(due(&store, 20, 10).await?, pairs(&[("ana", 20)]), "written again with the same deadline");
    write(&store, "ana", Some(revision), None).await?;
    ensure!(due(&store, i64::MAX, 10).await?.is_empty(), "it is due without a deadline");
    PASSED
}

async fn a_cleared_checkpoint_is_not_due(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let revision = write(&store, "ana", None, Some(10)).await?;
    write(&store, "bea", None, Some(10)).await?;
    let cleared = store.clear_checkpoint(&turn(7, "s1"), &conversation("ana"), revision).await?;
    ensure_eq!(cleared, Cas::Applied(()), "the clear");
    ensure_eq!(due(&store, 100, 10).await?, pairs(&[("bea", 10)]), "what is due");
    write(&store, "ana", None, None).await?;
    ensure_eq!(due(&store, 100, 10).await?, pairs(&[("bea", 10)]), "what is due after it was made again");
    PASSED
}

async fn a_refused_write_sets_no_deadline(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let revision = write(&store, "ana", None, None).await?;
    let checkpoint = Checkpoint { deadline: Some(Timestamp::from_millis(1)), ..plain_checkpoint("refused") };
    let key = conversation("ana");
    let stale = store.set_checkpoint(&turn(7, "s1"), &key, None, &checkpoint).await?;
    let fenced = store.set_checkpoint(&turn(6, "s1"), &key, Some(revision), &checkpoint).await?;
    ensure_eq!((stale, fenced), (Cas::Lost, Cas::Lost), "the refused writes");
    ensure!(is_lost(&store, &turn(7, "s1"), &conversation("bea"), Some(revision)).await?, "a write of none");
    ensure!(due(&store, i64::MAX, 10).await?.is_empty(), "a refused write set a deadline");
    PASSED
}
