//! Several writes in one commit.

use botmesh_core::kv::{Expect, Outcome, Version};

use super::tools::{applied, create, delete, due, due_until, existing, get, key, keys, kv, put, put_at};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, Failure, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        outcomes_are_in_the_order_of_the_writes: "the n-th outcome is that of the n-th write",
        one_conflict_leaves_the_others_applied: "of ten writes the one that conflicts is alone refused",
        writes_of_one_key_apply_in_order: "two writes of one key in a batch see each other, in order",
        a_delete_and_a_new_entry_fit_in_one_batch: "a key is deleted and made again by one batch",
        an_empty_batch_is_no_write: "a batch without writes succeeds with no outcomes",
        a_thousand_writes_fit_in_one_batch: "a batch of 1,000 writes is applied, and so is one of 1,000 deletes",
    ]
}

fn version(outcome: Outcome) -> Result<Version, Failure> {
    match outcome {
        Outcome::Applied(version) => Ok(version),
        Outcome::Conflict(current) => Err(Failure::new(format!("a conflict (current {current:?})"))),
    }
}

async fn outcomes_are_in_the_order_of_the_writes(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let taken = create(&kv, "m", "taken").await?;
    let names = ["z", "m", "a", "k", "b"];
    let outcomes = kv.commit(names.map(|name| put(name, Expect::Absent, name)).to_vec()).await?;
    ensure_eq!(outcomes.len(), names.len(), "the number of outcomes");
    for (name, outcome) in names.into_iter().zip(outcomes) {
        if name == "m" {
            ensure_eq!(outcome, Outcome::Conflict(Some(taken)), "the outcome of {name}");
        } else {
            let found = existing(&kv, name).await?;
            ensure_eq!(outcome, Outcome::Applied(found.version), "the outcome of {name}");
            ensure_eq!(found.value, name, "the value of {name}");
        }
    }
    PASSED
}

/// Case K07.
async fn one_conflict_leaves_the_others_applied(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let taken = create(&kv, "5", "taken").await?;
    let ops = (0..10).map(|n| put_at(n.to_string(), Expect::Absent, "new", due(n))).collect();
    let outcomes = kv.commit(ops).await?;
    let conflicts: Vec<_> =
        (0..).zip(&outcomes).filter(|(_, outcome)| matches!(outcome, Outcome::Conflict(_))).collect();
    ensure_eq!(conflicts, [(5, &Outcome::Conflict(Some(taken)))], "the conflicts");
    ensure_eq!(existing(&kv, "5").await?.value, "taken", "the entry of the conflict");
    ensure_eq!(
        keys(&kv, due_until(100)).await?,
        ["0", "1", "2", "3", "4", "6", "7", "8", "9"],
        "the entries that are due"
    );
    PASSED
}

async fn writes_of_one_key_apply_in_order(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let outcomes = kv.commit(vec![put("k", Expect::Absent, "one"), put("k", Expect::Absent, "two")]).await?;
    let first = version(outcomes[0]).map_err(|failure| failure.during("the first write"))?;
    ensure_eq!(outcomes[1], Outcome::Conflict(Some(first)), "the second write sees the first");
    ensure_eq!(existing(&kv, "k").await?.value, "one", "the value");

    let expect = Expect::Version(first);
    let batch = vec![put("k", expect, "three"), put("other", Expect::Absent, "x"), put("k", expect, "four")];
    let outcomes = kv.commit(batch).await?;
    let second = version(outcomes[0])?;
    ensure_eq!(outcomes[2], Outcome::Conflict(Some(second)), "the last write sees the first");
    ensure_eq!(existing(&kv, "k").await?.value, "three", "the value");

    let outcomes = kv.commit(vec![delete("k", second), delete("k", second)]).await?;
    ensure_eq!(outcomes, [Outcome::Applied(second), Outcome::Conflict(None)], "two deletes");
    PASSED
}

async fn a_delete_and_a_new_entry_fit_in_one_batch(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let old = applied(&kv, put_at("k", Expect::Absent, "old", due(1))).await?;
    let batch = vec![
        put("k", Expect::Absent, "too early"),
        delete("k", old),
        put_at("k", Expect::Absent, "new", due(9)),
    ];
    let outcomes = kv.commit(batch).await?;
    ensure_eq!(outcomes[..2], [Outcome::Conflict(Some(old)), Outcome::Applied(old)], "the first two");
    let new = version(outcomes[2])?;
    ensure!(new > old, "the new entry has version {new:?}, the deleted one had {old:?}");
    let found = existing(&kv, "k").await?;
    ensure_eq!((found.version, &found.value[..], found.index), (new, &b"new"[..], due(9)), "the entry");
    ensure!(keys(&kv, due_until(8)).await?.is_empty(), "the old entry is still due");
    PASSED
}

async fn an_empty_batch_is_no_write(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    ensure!(kv.commit(Vec::new()).await?.is_empty(), "outcomes of no writes");
    create(&kv, "k", "one").await?;
    PASSED
}

async fn a_thousand_writes_fit_in_one_batch(context: &mut Context) -> CaseResult {
    const COUNT: i64 = 1_000;
    let kv = kv(context)?;
    let name = |n: i64| format!("{n:04}");
    let ops = (0..COUNT).map(|n| put_at(name(n), Expect::Absent, name(n), due(n))).collect();
    let outcomes = kv.commit(ops).await?;
    let versions = outcomes.into_iter().map(version).collect::<Result<Vec<_>, _>>()?;
    let asked: Vec<_> = (0..COUNT).map(|n| key(name(n))).collect();
    let found = kv.get(&asked).await?;
    ensure_eq!(found.len(), versions.len(), "the number of answers");
    for ((n, entry), written) in (0..).zip(found).zip(&versions) {
        let Some(entry) = entry else { return Err(Failure::new(format!("entry {n} is missing"))) };
        ensure_eq!((entry.version, entry.value), (*written, key(name(n))), "entry {n}");
    }
    let deletes = (0..).zip(versions).map(|(n, version)| delete(name(n), version)).collect();
    let outcomes = kv.commit(deletes).await?;
    ensure!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Applied(_))), "a delete conflicts");
    ensure!(get(&kv, name(0)).await?.is_none(), "a deleted entry is there");
    ensure!(keys(&kv, due_until(COUNT)).await?.is_empty(), "a deleted entry is due");
    PASSED
}
