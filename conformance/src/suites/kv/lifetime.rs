//! What is left when the data is opened again, and who may open it.

use botmesh_core::kv::{Expect, Index, Outcome};

use super::tools::{
    applied, commit, create, delete, due, due_until, existing, get, keys, kv, list, put, put_at,
};
use crate::case::{cases, ensure, ensure_eq};
use crate::suites::parallel::parallel;
use crate::{Case, CaseResult, Context, Failure, PASSED, REFUSED, Sharing};
use std::sync::Arc;

pub(super) fn cases() -> Vec<Case> {
    cases![
        the_capabilities_are_those_claimed: "what the backend reports of itself is what it claims here",
        acknowledged_writes_survive_a_reopen: "what was acknowledged is there when opened again, or nothing is",
        acknowledged_deletes_survive_a_reopen: "what was deleted stays deleted when opened again",
        a_second_opening_shares_or_is_refused: "data that is shared may be opened twice; other data refuses it",
        two_openings_lose_no_increment: "tasks of two openings increment one counter and lose nothing",
        a_dedicated_connection_has_the_same_entries: "a connection for heartbeats reads and writes the same entries",
        the_clock_is_readable: "the backend's clock, if it has one, gives times that do not run away",
    ]
}

async fn the_capabilities_are_those_claimed(context: &mut Context) -> CaseResult {
    let (caps, claims) = (kv(context)?.caps(), context.claims());
    ensure_eq!(caps.durable, claims.survives, "what committed data survives");
    ensure_eq!(caps.shared, claims.sharing > Sharing::Process, "whether the data is shared");
    ensure_eq!(context.kv_in("other")?.caps(), caps, "the capabilities of another scope");
    PASSED
}

async fn acknowledged_writes_survive_a_reopen(context: &mut Context) -> CaseResult {
    let survives = context.claims().survives_reopen();
    let index = Index { due: due(5).due, list: Some((1, 5)) };
    let written = {
        let kv = kv(context)?;
        let first = applied(&kv, put_at("k", Expect::Absent, "first", due(1))).await?;
        applied(&kv, put_at("k", Expect::Version(first), b"last\0\xff", index)).await?;
        kv.commit((0..100).map(|n| put_at(format!("{n:02}"), Expect::Absent, "many", due(9))).collect())
            .await?;
        existing(&kv, "k").await?
    };
    context.reopen().await?;
    let kv = kv(context)?;
    let found = get(&kv, "k").await?;
    if !survives {
        ensure!(found.is_none(), "the backend claims that nothing survives, yet an entry did");
        ensure!(keys(&kv, due_until(100)).await?.is_empty(), "an entry is still due");
        return REFUSED;
    }
    ensure_eq!(found.as_ref(), Some(&written), "the entry after it was opened again");
    ensure_eq!(keys(&kv, due_until(8)).await?, ["k"], "what is due");
    ensure_eq!(keys(&kv, list(1, 0, 9)).await?, ["k"], "what is listed");
    ensure_eq!(keys(&kv, due_until(9)).await?.len(), 101, "the entries of the batch");
    ensure!(get(&context.kv_in("other")?, "k").await?.is_none(), "another scope sees the entry");
    applied(&kv, put("k", Expect::Version(written.version), "goes on")).await?;
    PASSED
}

async fn acknowledged_deletes_survive_a_reopen(context: &mut Context) -> CaseResult {
    if !context.claims().survives_reopen() {
        return crate::NOT_CLAIMED;
    }
    let old = {
        let kv = kv(context)?;
        let version = create(&kv, "k", "value").await?;
        let version = applied(&kv, put_at("k", Expect::Version(version), "value", due(1))).await?;
        applied(&kv, delete("k", version)).await?;
        version
    };
    context.reopen().await?;
    let kv = kv(context)?;
    ensure!(get(&kv, "k").await?.is_none(), "the deleted entry is back");
    ensure!(keys(&kv, due_until(10)).await?.is_empty(), "the deleted entry is due");
    let stale = commit(&kv, put("k", Expect::Version(old), "stale")).await?;
    ensure_eq!(stale, Outcome::Conflict(None), "a write that expects the deleted entry");
    PASSED
}

async fn a_second_opening_shares_or_is_refused(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let version = create(&kv, "k", "value").await?;
    let claims = context.claims();
    let second = match context.open_again().await {
        Ok(second) => second,
        Err(_) if claims.sharing == Sharing::Process => {
            ensure_eq!(existing(&kv, "k").await?.version, version, "the entry after a refused opening");
            create(&kv, "still works", "value").await?;
            return REFUSED;
        }
        Err(error) => return Err(Failure::from(error).during("the second opening of shared data")),
    };
    let Some(other) = second.kv.as_ref().map(|kv| kv.scoped(&context.scope(""))) else {
        return Err(Failure::new("the second opening has no journals"));
    };
    if claims.sharing == Sharing::Process {
        let seen = get(&other, "k").await?.is_some();
        ensure!(!seen, "the backend claims that its data is not shared, yet a second opening sees it");
        second.close().await?;
        return REFUSED;
    }
    ensure_eq!(existing(&other, "k").await?.version, version, "the entry through the second opening");
    let next = applied(&other, put_at("k", Expect::Version(version), "changed", due(1))).await?;
    ensure_eq!(existing(&kv, "k").await?.version, next, "the entry through the first opening");
    ensure_eq!(keys(&kv, due_until(1)).await?, ["k"], "what is due through the first opening");
    let stale = commit(&kv, put("k", Expect::Version(version), "stale")).await?;
    ensure_eq!(stale, Outcome::Conflict(Some(next)), "a stale write through the first opening");
    drop(other);
    second.close().await?;
    ensure_eq!(existing(&kv, "k").await?.version, next, "the entry after the second opening was closed");
    PASSED
}

async fn a_dedicated_connection_has_the_same_entries(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let Some(own) = kv.dedicated().await? else { return crate::NOT_CLAIMED };
    let first = create(&kv, "k", "first").await?;
    let second = applied(&own, put_at("k", Expect::Version(first), "second", due(1))).await?;
    ensure!(second > first, "the version did not grow");
    ensure_eq!(get(&kv, "k").await?, get(&own, "k").await?, "the entry over both connections");
    ensure_eq!(keys(&kv, due_until(9)).await?, ["k"], "what is due");
    let stale = commit(&kv, put("k", Expect::Version(first), "stale")).await?;
    ensure_eq!(stale, Outcome::Conflict(Some(second)), "a write that expects the first version");
    ensure!(get(&context.kv_in("other")?, "k").await?.is_none(), "another scope sees the entry");
    own.close().await?;
    ensure!(commit(&own, put("late", Expect::Absent, "")).await.is_err(), "it writes after it was closed");
    applied(&kv, put("k", Expect::Version(second), "goes on")).await?;
    PASSED
}

async fn two_openings_lose_no_increment(context: &mut Context) -> CaseResult {
    const TASKS: usize = 4;
    const EACH: usize = 25;
    if context.claims().sharing == Sharing::Process {
        return crate::NOT_CLAIMED;
    }
    let kv = kv(context)?;
    let second = context.open_again().await?;
    let Some(other) = second.kv.as_ref().map(|kv| kv.scoped(&context.scope(""))) else {
        return Err(Failure::new("the second opening has no journals"));
    };
    let tasks = (0..TASKS).flat_map(|_| [&kv, &other]).map(|kv| {
        let kv = Arc::clone(kv);
        async move {
            let mut done = 0;
            while done < EACH {
                let current = get(&kv, "log").await?;
                let (expect, mut value) = match current {
                    Some(entry) => (Expect::Version(entry.version), entry.value.to_vec()),
                    None => (Expect::Absent, Vec::new()),
                };
                value.push(b'+');
                tokio::task::yield_now().await;
                if let Outcome::Applied(_) = commit(&kv, put("log", expect, value)).await? {
                    done += 1;
                }
            }
            Ok(())
        }
    });
    parallel(tasks.collect::<Vec<_>>()).await?;
    ensure_eq!(existing(&kv, "log").await?.value.len(), 2 * TASKS * EACH, "the increments");
    drop(other);
    second.close().await?;
    PASSED
}

async fn the_clock_is_readable(context: &mut Context) -> CaseResult {
    const MINUTE: u128 = 60_000;
    let kv = kv(context)?;
    let (Some(first), Some(second)) = (kv.now().await?, kv.now().await?) else { return crate::NOT_CLAIMED };
    let apart = second.since(first).max(first.since(second)).as_millis();
    ensure!(apart < MINUTE, "two readings in a row are {apart} ms apart");
    ensure!(first.as_millis() > 0, "the clock says {first}");
    PASSED
}
