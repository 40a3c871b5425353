//! Expectations and versions.

use botmesh_core::kv::{Expect, Version};

use super::tools::{
    applied, commit, create, create_at, delete, due, due_until, existing, get, keys, kv, list, listed, put,
    put_at, refused,
};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, NOT_CLAIMED, PASSED};
use botmesh_core::kv::Outcome;

pub(super) fn cases() -> Vec<Case> {
    cases![
        absent_means_no_entry: "a put that expects no entry is applied once and then conflicts",
        the_current_version_is_expected: "a put that expects the current version is applied, any other conflicts",
        a_conflict_reports_the_current_version: "a conflict names the version that is there, or none",
        a_conflict_changes_nothing: "after a conflict value, version and indexes are as before",
        versions_grow_with_each_write: "each write of a key has a larger version than the one before",
        versions_never_restart_after_a_delete: "a key that is made again has a larger version than ever before",
        versions_never_restart_after_a_reopen: "the same, when the data is closed and opened in between",
        a_delete_needs_the_current_version: "a delete of a stale version or of no entry conflicts",
        a_delete_reports_the_removed_version: "the outcome of a delete is the version that was removed",
        a_deleted_entry_is_gone_everywhere: "a deleted entry is found neither by key nor in an index",
        versions_that_never_were_conflict: "zero, the largest number and other keys' versions are conflicts",
    ]
}

async fn absent_means_no_entry(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    ensure!(get(&kv, "k").await?.is_none(), "the case does not start empty");
    let version = create(&kv, "k", "one").await?;
    ensure_eq!(refused(&kv, put("k", Expect::Absent, "two")).await?, Some(version), "the reported version");
    ensure_eq!(existing(&kv, "k").await?.value, "one", "the value");
    PASSED
}

async fn the_current_version_is_expected(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let first = create(&kv, "k", "one").await?;
    let second = applied(&kv, put("k", Expect::Version(first), "two")).await?;
    ensure_eq!(refused(&kv, put("k", Expect::Version(first), "three")).await?, Some(second), "stale");
    let found = existing(&kv, "k").await?;
    ensure_eq!((found.version, &found.value[..]), (second, &b"two"[..]), "the entry");
    PASSED
}

async fn a_conflict_reports_the_current_version(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let version = create(&kv, "k", "one").await?;
    let stale = Version(version.0.wrapping_sub(1));
    ensure_eq!(refused(&kv, put("k", Expect::Version(stale), "x")).await?, Some(version), "of a put");
    ensure_eq!(refused(&kv, put("k", Expect::Absent, "x")).await?, Some(version), "of a put of a new entry");
    ensure_eq!(refused(&kv, delete("k", stale)).await?, Some(version), "of a delete");
    ensure_eq!(refused(&kv, put("none", Expect::Version(version), "x")).await?, None, "of no entry");
    PASSED
}

async fn a_conflict_changes_nothing(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let first = create(&kv, "k", "one").await?;
    let second = applied(&kv, put_at("k", Expect::Version(first), "two", due(10))).await?;
    refused(&kv, put_at("k", Expect::Version(first), "three", listed(1, 1))).await?;
    refused(&kv, put_at("k", Expect::Absent, "three", listed(1, 1))).await?;
    refused(&kv, delete("k", first)).await?;
    refused(&kv, put_at("none", Expect::Version(first), "three", due(1))).await?;
    let found = existing(&kv, "k").await?;
    ensure_eq!((found.version, &found.value[..], found.index), (second, &b"two"[..], due(10)), "the entry");
    ensure_eq!(keys(&kv, due_until(100)).await?, ["k"], "what is due");
    ensure!(keys(&kv, list(1, 0, 10)).await?.is_empty(), "a refused put is in a list");
    ensure!(get(&kv, "none").await?.is_none(), "a refused put made an entry");
    PASSED
}

async fn versions_grow_with_each_write(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let mut last = create(&kv, "k", "0").await?;
    for n in 1..20 {
        let next = applied(&kv, put("k", Expect::Version(last), n.to_string())).await?;
        ensure!(next > last, "write {n} has version {next:?} after {last:?}");
        ensure_eq!(existing(&kv, "k").await?.version, next, "the version that is read");
        last = next;
    }
    PASSED
}

async fn versions_never_restart_after_a_delete(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let mut largest = create(&kv, "k", "0").await?;
    for n in 1..5 {
        for _ in 0..n {
            largest = applied(&kv, put("k", Expect::Version(largest), "again")).await?;
        }
        applied(&kv, delete("k", largest)).await?;
        let new = create(&kv, "k", "new").await?;
        ensure!(new > largest, "the new entry has version {new:?}, the deleted one had {largest:?}");
        ensure_eq!(
            refused(&kv, put("k", Expect::Version(largest), "stale")).await?,
            Some(new),
            "a writer that remembers the deleted entry"
        );
        largest = new;
    }
    PASSED
}

async fn versions_never_restart_after_a_reopen(context: &mut Context) -> CaseResult {
    if !context.claims().survives_reopen() {
        return NOT_CLAIMED;
    }
    let (mut largest, mut kept) = (Version(0), Version(0));
    for round in 0..3 {
        let kv = kv(context)?;
        if round > 0 {
            ensure_eq!(existing(&kv, "kept").await?.version, kept, "the version of an entry that stayed");
            let next = applied(&kv, put("kept", Expect::Version(kept), "again")).await?;
            ensure!(next > kept, "version {next:?} after {kept:?}");
            kept = next;
        } else {
            kept = create(&kv, "kept", "value").await?;
        }
        let new = create(&kv, "k", "value").await?;
        ensure!(new > largest, "the new entry has version {new:?}, a deleted one had {largest:?}");
        largest = applied(&kv, put("k", Expect::Version(new), "again")).await?;
        applied(&kv, delete("k", largest)).await?;
        drop(kv);
        context.reopen().await?;
    }
    PASSED
}

async fn a_delete_needs_the_current_version(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let first = create(&kv, "k", "one").await?;
    let second = applied(&kv, put("k", Expect::Version(first), "two")).await?;
    ensure_eq!(refused(&kv, delete("k", first)).await?, Some(second), "a stale delete");
    ensure_eq!(existing(&kv, "k").await?.value, "two", "the value after a stale delete");
    applied(&kv, delete("k", second)).await?;
    ensure_eq!(refused(&kv, delete("k", second)).await?, None, "a second delete");
    ensure_eq!(refused(&kv, delete("none", second)).await?, None, "a delete of no entry");
    PASSED
}

async fn a_delete_reports_the_removed_version(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let version = create(&kv, "k", "one").await?;
    ensure_eq!(commit(&kv, delete("k", version)).await?, Outcome::Applied(version), "the outcome");
    PASSED
}

async fn a_deleted_entry_is_gone_everywhere(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let index = botmesh_core::kv::Index { due: due(5).due, list: listed(3, 5).list };
    let version = create_at(&kv, "k", index).await?;
    create_at(&kv, "other", index).await?;
    applied(&kv, delete("k", version)).await?;
    ensure!(get(&kv, "k").await?.is_none(), "the deleted entry is read");
    ensure_eq!(keys(&kv, due_until(100)).await?, ["other"], "what is due");
    ensure_eq!(keys(&kv, list(3, 0, 100)).await?, ["other"], "what is listed");
    PASSED
}

async fn versions_that_never_were_conflict(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let version = create(&kv, "k", "one").await?;
    let other = create(&kv, "other", "one").await?;
    let other = applied(&kv, put("other", Expect::Version(other), "two")).await?;
    let odd = [0, version.0 + 1_000, 1 << 53, u64::MAX >> 1, 1 << 63, u64::MAX].map(Version);
    for wrong in odd.into_iter().chain([other]).filter(|wrong| *wrong != version) {
        ensure_eq!(refused(&kv, put("k", Expect::Version(wrong), "x")).await?, Some(version), "{wrong:?}");
        ensure_eq!(refused(&kv, put("none", Expect::Version(wrong), "x")).await?, None, "{wrong:?}");
        ensure_eq!(refused(&kv, delete("k", wrong)).await?, Some(version), "{wrong:?}");
    }
    PASSED
}
