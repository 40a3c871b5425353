//! Words for the cases about key-value stores.

use std::sync::Arc;

use botmesh_core::Bytes;
use botmesh_core::error::StoreError;
use botmesh_core::kv::{Cursor, DurableKv, Entry, Expect, Index, Op, Outcome, Range, Version};
use botmesh_core::time::Timestamp;

use crate::case::{ensure, ensure_eq};
use crate::{Context, Failure};

pub(super) type Kv = Arc<dyn DurableKv>;
pub(super) type Done<T = ()> = Result<T, Failure>;

pub(super) const NOWHERE: Index = Index { due: None, list: None };

pub(super) fn due(millis: i64) -> Index {
    Index { due: Some(Timestamp::from_millis(millis)), list: None }
}

pub(super) fn listed(bucket: u8, place: i64) -> Index {
    Index { due: None, list: Some((bucket, place)) }
}

pub(super) fn due_until(millis: i64) -> Range {
    Range::Due { until: Timestamp::from_millis(millis) }
}

pub(super) fn list(bucket: u8, from: i64, until: i64) -> Range {
    Range::List { bucket, from, until }
}

pub(super) fn key(key: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(key.as_ref())
}

pub(super) fn put(name: impl AsRef<[u8]>, expect: Expect, value: impl AsRef<[u8]>) -> Op {
    put_at(name, expect, value, NOWHERE)
}

pub(super) fn put_at(name: impl AsRef<[u8]>, expect: Expect, value: impl AsRef<[u8]>, index: Index) -> Op {
    Op::Put { key: key(name), expect, value: key(value), index }
}

pub(super) fn delete(name: impl AsRef<[u8]>, expect: Version) -> Op {
    Op::Delete { key: key(name), expect }
}

/// Commits one write.
pub(super) async fn commit(kv: &Kv, op: Op) -> Done<Outcome> {
    let outcomes = kv.commit(vec![op]).await?;
    ensure_eq!(outcomes.len(), 1, "one outcome for one write");
    Ok(outcomes[0])
}

/// Commits one write that must be applied, and returns the version.
pub(super) async fn applied(kv: &Kv, op: Op) -> Done<Version> {
    let what = format!("{op:?}");
    match commit(kv, op).await? {
        Outcome::Applied(version) => Ok(version),
        Outcome::Conflict(current) => Err(Failure::new(format!(
            "a write whose expectation holds was refused with a conflict (current {current:?}): {what}"
        ))),
    }
}

/// Commits one write that must conflict, and returns the version that is reported.
pub(super) async fn refused(kv: &Kv, op: Op) -> Done<Option<Version>> {
    let what = format!("{op:?}");
    match commit(kv, op).await? {
        Outcome::Conflict(current) => Ok(current),
        Outcome::Applied(_) => {
            Err(Failure::new(format!("a write was applied although its expectation does not hold: {what}")))
        }
    }
}

/// Creates an entry.
pub(super) async fn create(kv: &Kv, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Done<Version> {
    applied(kv, put(name, Expect::Absent, value)).await
}

/// Creates an entry in an index.
pub(super) async fn create_at(kv: &Kv, name: impl AsRef<[u8]>, index: Index) -> Done<Version> {
    applied(kv, put_at(name, Expect::Absent, "value", index)).await
}

pub(super) async fn get(kv: &Kv, name: impl AsRef<[u8]>) -> Done<Option<Entry>> {
    let mut entries = kv.get(&[key(name)]).await?;
    ensure_eq!(entries.len(), 1, "one answer for one key");
    Ok(entries.remove(0))
}

/// Reads an entry that must be there.
pub(super) async fn existing(kv: &Kv, name: impl AsRef<[u8]>) -> Done<Entry> {
    let name = key(name);
    get(kv, &name).await?.ok_or_else(|| Failure::new(format!("there is no entry {name:?}")))
}

/// The keys of a page, as text.
pub(super) async fn page(kv: &Kv, range: Range, after: Option<&Cursor>, limit: usize) -> Done<Vec<String>> {
    let entries = kv.scan(range, after, limit).await?;
    ensure!(entries.len() <= limit, "a page of {limit} has {} entries", entries.len());
    Ok(entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned()).collect())
}

/// All keys of a range, as text.
pub(super) async fn keys(kv: &Kv, range: Range) -> Done<Vec<String>> {
    page(kv, range, None, 10_000).await
}

/// All entries of a range, read page by page.
pub(super) async fn paged(kv: &Kv, range: Range, limit: usize) -> Done<Vec<Entry>> {
    const MOST: usize = 100_000;
    let mut found: Vec<Entry> = Vec::new();
    let mut after = None;
    loop {
        let page = kv.scan(range, after.as_ref(), limit).await?;
        ensure!(page.len() <= limit, "a page of {limit} has {} entries", page.len());
        let short = page.len() < limit;
        found.extend(page);
        ensure!(found.len() <= MOST, "paging does not come to an end");
        if short {
            return Ok(found);
        }
        let Some(last) = found.last() else { return Ok(found) };
        after = range.cursor(last);
        ensure!(after.is_some(), "the entry {:?} is not in the range {range:?}", last.key);
    }
}

pub(super) async fn is_refused_whole(kv: &Kv, ops: Vec<Op>) -> Done<StoreError> {
    match kv.commit(ops).await {
        Err(error) => Ok(error),
        Ok(outcomes) => Err(Failure::new(format!("a batch was taken that must be refused: {outcomes:?}"))),
    }
}

pub(super) fn kv(context: &Context) -> Done<Kv> {
    context.kv()
}
