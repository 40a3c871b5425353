//! The journals' key-value store: the table `durable`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use botmesh_core::Bytes;
use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_core::kv::{
    Caps, Cursor, Durable, DurableKv, Entry, Expect, Index, MAX_KEY, Op, Outcome, Range, Version,
};
use botmesh_core::time::Timestamp;
use rusqlite::{CachedStatement, OptionalExtension, Params, Row, params};

use crate::client::{Client, Lane, Reading, Tx, weight};
use crate::config::Synchronous;
use crate::error::{BACKEND, Fault};
use crate::keys::near;

/// The largest value of an entry in bytes: 16 MiB.
pub const MAX_VALUE: usize = 16 << 20;

const INSERT: &str = "INSERT INTO durable (scope, key, version, due, bucket, place, value, near) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING";
const UPDATE: &str = "UPDATE durable SET version = ?3, due = ?4, bucket = ?5, place = ?6, value = ?7 \
     WHERE scope = ?1 AND near = ?9 AND key = ?2 AND version = ?8";
const DELETE: &str = "DELETE FROM durable WHERE scope = ?1 AND near = ?4 AND key = ?2 AND version = ?3";
const CURRENT: &str = "SELECT version FROM durable WHERE scope = ?1 AND near = ?3 AND key = ?2";
const GET: &str = "SELECT key, version, due, bucket, place, value FROM durable \
     WHERE scope = ?1 AND near = ?3 AND key = ?2";

/// Ranges differ in where they start: at a place, or behind a cursor.
const DUE: &str = "SELECT key, version, due, bucket, place, value FROM durable \
     WHERE scope = ?1 AND due <= ?2 ORDER BY due, key LIMIT ?3";
const DUE_AFTER: &str = "SELECT key, version, due, bucket, place, value FROM durable \
     WHERE scope = ?1 AND due <= ?2 AND (due, key) > (?4, ?5) ORDER BY due, key LIMIT ?3";
const LIST: &str = "SELECT key, version, due, bucket, place, value FROM durable \
     WHERE scope = ?1 AND bucket = ?4 AND place <= ?2 AND place >= ?5 ORDER BY place, key LIMIT ?3";
const LIST_AFTER: &str = "SELECT key, version, due, bucket, place, value FROM durable \
     WHERE scope = ?1 AND bucket = ?4 AND place <= ?2 AND (place, key) > (?5, ?6) ORDER BY place, key LIMIT ?3";

/// The journals' side of a store; made by [`SqliteStore::durability`](crate::SqliteStore::durability).
#[derive(Debug)]
pub(crate) struct SqliteKv {
    client: Arc<Client>,
    scope: Arc<str>,
    closed: Arc<AtomicBool>,
    /// Whether the client is this handle's alone.
    dedicated: bool,
}

impl SqliteKv {
    pub(crate) fn new(client: Arc<Client>, scope: Arc<str>) -> Self {
        Self { client, scope, closed: Arc::default(), dedicated: false }
    }

    fn open(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(self.client.closed(operation)) } else { Ok(()) }
    }
}

#[async_trait]
impl DurableKv for SqliteKv {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        let (client, closed) = (Arc::clone(&self.client), Arc::clone(&self.closed));
        Arc::new(Self { client, scope: scope.into(), closed, dedicated: false })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        self.open("commit")?;
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        check_sizes(&ops)?;
        let weight = weight(ops.len(), ops.iter().map(Op::size).sum());
        let scope = Arc::clone(&self.scope);
        self.client.write("commit", weight, move |tx| apply(tx, &scope, &ops)).await
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.open("get")?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (scope, keys) = (Arc::clone(&self.scope), keys.to_vec());
        self.client.read(Lane::Rows, "get", move |reading| get(reading, &scope, &keys)).await
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.open("scan")?;
        let (scope, after) = (Arc::clone(&self.scope), after.cloned());
        let run = move |reading: &mut Reading<'_>| scan(reading, &scope, range, after.as_ref(), limit);
        self.client.read(Lane::Ranges, "scan", run).await
    }

    async fn dedicated(&self) -> Result<Option<Arc<dyn DurableKv>>, StoreError> {
        self.open("open")?;
        let client = Arc::new(self.client.beside().await?);
        let own = Self { dedicated: true, ..Self::new(client, Arc::clone(&self.scope)) };
        Ok(Some(Arc::new(own)))
    }

    fn caps(&self) -> Caps {
        let durable = match self.client.config().synchronous {
            Synchronous::Full => Durable::PowerLoss,
            Synchronous::Normal => Durable::ProcessCrash,
        };
        Caps { durable, shared: true, max_value: MAX_VALUE, groups_commits: true }
    }

    /// Waits for the commits that were called before, and refuses later calls on this handle and its scopes. The file
    /// itself is closed by the store, or here if the connection is this handle's own.
    async fn close(&self) -> Result<(), StoreError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if self.dedicated {
            return self.client.close().await;
        }
        match self.client.write("close", 1, |_| Ok(())).await {
            Err(error) if error.kind() == StoreErrorKind::Misuse => Ok(()),
            outcome => outcome,
        }
    }
}

fn check_sizes(ops: &[Op]) -> Result<(), StoreError> {
    for op in ops {
        let (what, size, most) = match op {
            Op::Put { value, .. } if value.len() > MAX_VALUE => ("value", value.len(), MAX_VALUE),
            op if op.key().len() > MAX_KEY => ("key", op.key().len(), MAX_KEY),
            _ => continue,
        };
        let message =
            format!("a {what} of {size} bytes is larger than the {most} that are taken; nothing was written");
        return Err(StoreError::new(StoreErrorKind::TooLarge, BACKEND, "commit", message));
    }
    Ok(())
}

fn apply(tx: &mut Tx<'_>, scope: &Arc<str>, ops: &[Op]) -> Result<Vec<Outcome>, Fault> {
    let mut outcomes = Vec::with_capacity(ops.len());
    for op in ops {
        let outcome = match op {
            Op::Put { key, expect: Expect::Absent, value, index } => insert(tx, scope, key, value, *index)?,
            Op::Put { key, expect: Expect::Version(expect), value, index } => {
                update(tx, scope, key, *expect, value, *index)?
            }
            Op::Delete { key, expect } => delete(tx, scope, key, *expect)?,
        };
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// The columns `due`, `bucket` and `place`.
fn columns(index: Index) -> (Option<i64>, Option<u8>, Option<i64>) {
    let (bucket, place) = index.list.unzip();
    (index.due.map(Timestamp::as_millis), bucket, place)
}

fn insert(
    tx: &mut Tx<'_>,
    scope: &Arc<str>,
    key: &Bytes,
    value: &Bytes,
    index: Index,
) -> Result<Outcome, Fault> {
    let scope_id = tx.scope(scope)?;
    let version = tx.next_number()?;
    let (due, bucket, place) = columns(index);
    let rows = tx.statement(INSERT)?.execute(params![
        scope_id,
        &key[..],
        version,
        due,
        bucket,
        place,
        &value[..],
        near(key)
    ])?;
    if tx.changed(rows) { Ok(Outcome::Applied(as_version(version)?)) } else { conflict(tx, scope, key) }
}

fn update(
    tx: &mut Tx<'_>,
    scope: &Arc<str>,
    key: &Bytes,
    expect: Version,
    value: &Bytes,
    index: Index,
) -> Result<Outcome, Fault> {
    let Some((scope_id, expected)) = findable(tx, scope, expect)? else {
        return conflict(tx, scope, key);
    };
    let version = tx.next_number()?;
    let (due, bucket, place) = columns(index);
    let rows = tx.statement(UPDATE)?.execute(params![
        scope_id,
        &key[..],
        version,
        due,
        bucket,
        place,
        &value[..],
        expected,
        near(key)
    ])?;
    if tx.changed(rows) { Ok(Outcome::Applied(as_version(version)?)) } else { conflict(tx, scope, key) }
}

fn delete(tx: &mut Tx<'_>, scope: &Arc<str>, key: &Bytes, expect: Version) -> Result<Outcome, Fault> {
    let Some((scope_id, expected)) = findable(tx, scope, expect)? else {
        return conflict(tx, scope, key);
    };
    let rows = tx.statement(DELETE)?.execute(params![scope_id, &key[..], expected, near(key)])?;
    if tx.changed(rows) { Ok(Outcome::Applied(expect)) } else { conflict(tx, scope, key) }
}

/// The scope and version as stored; `None` if no such row can exist.
fn findable(tx: &mut Tx<'_>, scope: &Arc<str>, expect: Version) -> Result<Option<(i64, i64)>, Fault> {
    let Ok(expected) = i64::try_from(expect.0) else { return Ok(None) };
    Ok(tx.known_scope(scope)?.map(|scope| (scope, expected)))
}

fn conflict(tx: &mut Tx<'_>, scope: &Arc<str>, key: &Bytes) -> Result<Outcome, Fault> {
    let Some(scope) = tx.known_scope(scope)? else { return Ok(Outcome::Conflict(None)) };
    let current: Option<i64> =
        tx.statement(CURRENT)?.query_row(params![scope, &key[..], near(key)], |row| row.get(0)).optional()?;
    Ok(Outcome::Conflict(current.map(as_version).transpose()?))
}

fn as_version(number: i64) -> Result<Version, Fault> {
    u64::try_from(number)
        .map(Version)
        .map_err(|_| Fault::own(StoreErrorKind::Corrupt, "a stored version is negative; restore a backup"))
}

fn get(reading: &mut Reading<'_>, scope: &Arc<str>, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, Fault> {
    let Some(scope) = reading.scope(scope)? else { return Ok(vec![None; keys.len()]) };
    let mut statement = reading.statement(GET)?;
    keys.iter()
        .map(|key| {
            let columns = statement.query_row(params![scope, &key[..], near(key)], Columns::of).optional()?;
            columns.map(Columns::entry).transpose()
        })
        .collect()
}

fn scan(
    reading: &mut Reading<'_>,
    scope: &Arc<str>,
    range: Range,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Vec<Entry>, Fault> {
    let Some(scope) = reading.scope(scope)? else { return Ok(Vec::new()) };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let statement = |sql| reading.statement(sql);
    match (range, after) {
        (Range::Due { until }, None) => collect(statement(DUE)?, params![scope, until.as_millis(), limit]),
        (Range::Due { until }, Some(after)) => collect(
            statement(DUE_AFTER)?,
            params![scope, until.as_millis(), limit, after.place, &after.key[..]],
        ),
        (Range::List { bucket, from, until }, Some(after)) if after.place >= from => {
            collect(statement(LIST_AFTER)?, params![scope, until, limit, bucket, after.place, &after.key[..]])
        }
        (Range::List { bucket, from, until }, _) => {
            collect(statement(LIST)?, params![scope, until, limit, bucket, from])
        }
    }
}

fn collect(mut statement: CachedStatement<'_>, params: impl Params) -> Result<Vec<Entry>, Fault> {
    let mut entries = Vec::new();
    for columns in statement.query_map(params, Columns::of)? {
        entries.push(columns?.entry()?);
    }
    Ok(entries)
}

/// A row as SQLite has it.
struct Columns {
    key: Vec<u8>,
    version: i64,
    due: Option<i64>,
    bucket: Option<u8>,
    place: Option<i64>,
    value: Vec<u8>,
}

impl Columns {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            key: row.get(0)?,
            version: row.get(1)?,
            due: row.get(2)?,
            bucket: row.get(3)?,
            place: row.get(4)?,
            value: row.get(5)?,
        })
    }

    fn entry(self) -> Result<Entry, Fault> {
        let index = Index { due: self.due.map(Timestamp::from_millis), list: self.bucket.zip(self.place) };
        let version = as_version(self.version)?;
        Ok(Entry { key: self.key.into(), version, value: self.value.into(), index })
    }
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
