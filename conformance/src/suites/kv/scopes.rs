//! Several bots in one backend.

use botmesh_core::kv::{Expect, Index, Outcome};

use super::tools::{
    applied, commit, create, create_at, delete, due, due_until, existing, get, keys, list, paged, put,
    refused,
};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, PASSED};

/// Names that patterns, text comparisons or a missing escape confuse.
const NAMES: &[&str] = &[
    "a_c", "abc", "a%", "a*", "a[b]", "a:b", "a", "A", "a/b", "a%2Fb", "a ", "a?", "a\\", "a\\b", "a'b",
    "a{b}", "a\u{301}", "á", "a\0", "",
];

pub(super) fn cases() -> Vec<Case> {
    cases![
        scopes_see_only_their_own: "look-alike scopes hold one key each and read, list and page their own only",
        one_key_in_two_scopes_is_two_entries: "writes and deletes in one scope do not touch the other",
        versions_of_another_scope_conflict: "a version that was read in one scope is none in the other",
        views_of_one_scope_share_it: "two handles of the same scope see the same entries",
    ]
}

async fn scopes_see_only_their_own(context: &mut Context) -> CaseResult {
    for name in NAMES {
        let kv = context.kv_in(name)?;
        ensure!(get(&kv, "k").await?.is_none(), "the scope {name:?} sees the key of another scope");
        create(&kv, name, "own").await?;
        let op =
            super::tools::put_at("k", Expect::Absent, name, Index { due: due(1).due, list: Some((1, 1)) });
        applied(&kv, op).await?;
    }
    for name in NAMES {
        let kv = context.kv_in(name)?;
        ensure_eq!(existing(&kv, "k").await?.value, *name, "the entry of the scope {name:?}");
        for other in NAMES.iter().filter(|other| *other != name) {
            ensure!(get(&kv, other).await?.is_none(), "the scope {name:?} sees the key of {other:?}");
        }
        for range in [due_until(10), list(1, 0, 10)] {
            let found: Vec<_> = paged(&kv, range, 1).await?.into_iter().map(|entry| entry.value).collect();
            ensure_eq!(found, [*name], "{range:?} in the scope {name:?}");
        }
    }
    PASSED
}

async fn one_key_in_two_scopes_is_two_entries(context: &mut Context) -> CaseResult {
    let (one, two) = (context.kv_in("one")?, context.kv_in("two")?);
    let first = create_at(&one, "k", due(1)).await?;
    let second = create_at(&two, "k", due(1)).await?;
    applied(&one, delete("k", first)).await?;
    ensure!(get(&one, "k").await?.is_none(), "the deleted entry is there");
    ensure_eq!(existing(&two, "k").await?.version, second, "the entry of the other scope");
    ensure_eq!(keys(&two, due_until(10)).await?, ["k"], "what is due in the other scope");
    applied(&two, put("k", Expect::Version(second), "changed")).await?;
    create(&one, "k", "again").await?;
    ensure_eq!(existing(&two, "k").await?.value, "changed", "the entry of the other scope");
    PASSED
}

async fn versions_of_another_scope_conflict(context: &mut Context) -> CaseResult {
    let (one, two) = (context.kv_in("one")?, context.kv_in("two")?);
    let version = create(&one, "k", "value").await?;
    ensure_eq!(refused(&two, put("k", Expect::Version(version), "x")).await?, None, "a put");
    ensure_eq!(refused(&two, delete("k", version)).await?, None, "a delete");
    ensure_eq!(existing(&one, "k").await?.version, version, "the entry");
    PASSED
}

async fn views_of_one_scope_share_it(context: &mut Context) -> CaseResult {
    let (one, other) = (context.kv_in("same")?, context.kv_in("same")?);
    let version = create(&one, "k", "value").await?;
    ensure_eq!(existing(&other, "k").await?.version, version, "the entry through the other handle");
    let next = applied(&other, put("k", Expect::Version(version), "changed")).await?;
    let stale = commit(&one, put("k", Expect::Version(version), "stale")).await?;
    ensure_eq!(stale, Outcome::Conflict(Some(next)), "a stale write through the first handle");
    PASSED
}
