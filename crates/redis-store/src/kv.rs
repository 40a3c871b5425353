//! The journals' key-value store: one hash of entries and two indexes in a scope.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use botmesh_core::Bytes;
use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_core::kv::{Caps, Cursor, Durable, DurableKv, Entry, Expect, MAX_KEY, Op, Outcome, Range};
use botmesh_core::time::Timestamp;

use crate::client::{Client, Unexpected};
use crate::config::Persistence;
use crate::error::{Access, BACKEND, after_a_part};
use crate::keys::{self, Bounds, Keys};
use crate::scripts::{COMMIT, NOW, SCAN};

/// The largest value of an entry in bytes: 16 MiB.
pub const MAX_VALUE: usize = 16 << 20;

/// Bounds of one call, so that no script holds up the server for long. A larger batch is several calls.
const MOST_OPS: usize = 512;
const MOST_BYTES: usize = 4 << 20;
const MOST_ENTRIES: usize = 512;

/// The journals' side of a store; made by [`RedisStore::durability`](crate::RedisStore::durability).
#[derive(Debug)]
pub(crate) struct RedisKv {
    client: Arc<Client>,
    keys: Keys,
    closed: Arc<AtomicBool>,
    /// Whether the client is this handle's alone.
    dedicated: bool,
}

impl RedisKv {
    pub(crate) fn new(client: Arc<Client>, scope: &str) -> Self {
        let keys = Keys::new(&client.config().prefix, scope);
        Self { client, keys, closed: Arc::default(), dedicated: false }
    }

    fn open(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(self.client.closed(operation)) } else { Ok(()) }
    }

    fn strange(&self, operation: &'static str, access: Access, what: Unexpected) -> StoreError {
        what.error(operation, self.client.place(), access)
    }

    fn damaged(&self, operation: &'static str, key: &Bytes) -> StoreError {
        let message = format!(
            "{}: the entry {key:?} in {:?} is damaged; restore a backup",
            self.client.place(),
            self.keys.journal()
        );
        StoreError::new(StoreErrorKind::Corrupt, BACKEND, operation, message)
    }

    /// Applies so many writes as one script may.
    async fn apply(&self, ops: &[Op]) -> Result<Vec<Outcome>, StoreError> {
        let keys =
            [self.keys.journal(), self.keys.journal_due(), self.keys.journal_lists(), self.keys.clock()];
        let args = ops.iter().flat_map(arguments).collect();
        let reply = self.client.script("commit", Access::Write, &COMMIT, &keys, args).await?;
        let strange = |what| self.strange("commit", Access::Write, what);
        let texts = reply.texts().map_err(strange)?;
        let outcomes: Option<Vec<_>> = texts.iter().map(|text| outcome(text)).collect();
        let outcomes = outcomes.filter(|outcomes| outcomes.len() == ops.len());
        outcomes.ok_or_else(|| strange(Unexpected::new("other outcomes than there were writes")))
    }

    /// A part of a page: the entries, and the place after which it goes on if it does.
    async fn page(
        &self,
        index: &Bytes,
        bounds: &Bounds,
        from: &Bytes,
        most: usize,
    ) -> Result<(Vec<Entry>, Option<Bytes>), StoreError> {
        let args = vec![
            from.clone(),
            bounds.until.clone(),
            most.to_string().into(),
            bounds.place.to_string().into(),
            MOST_BYTES.to_string().into(),
        ];
        let keys = [self.keys.journal(), index.clone()];
        let reply = self.client.script("scan", Access::Read, &SCAN, &keys, args).await?;
        let strange = |what| self.strange("scan", Access::Read, what);
        let texts = reply.texts().map_err(strange)?;
        let [stopped, last, rest @ ..] = &texts[..] else {
            return Err(strange(Unexpected::new("no page")));
        };
        let entries = rest.chunks_exact(2).map(|pair| self.entry("scan", &pair[0], &pair[1]));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        // Without a stop there may be more only if as much was found as was asked for.
        let goes_on = &stopped[..] == b"1" || entries.len() == most;
        Ok((entries, goes_on.then(|| last.clone())))
    }

    fn entry(&self, operation: &'static str, key: &Bytes, stored: &Bytes) -> Result<Entry, StoreError> {
        keys::entry(key.clone(), stored).ok_or_else(|| self.damaged(operation, key))
    }
}

#[async_trait]
impl DurableKv for RedisKv {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        let (client, closed) = (Arc::clone(&self.client), Arc::clone(&self.closed));
        let keys = Keys::new(&client.config().prefix, scope);
        Arc::new(Self { client, keys, closed, dedicated: false })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        self.open("commit")?;
        check_sizes(&ops)?;
        let mut outcomes = Vec::with_capacity(ops.len());
        for part in parts(&ops) {
            let applied = self.apply(part).await;
            outcomes.extend(applied.map_err(|e| if outcomes.is_empty() { e } else { after_a_part(e) })?);
        }
        Ok(outcomes)
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.open("get")?;
        let strange = |what| self.strange("get", Access::Read, what);
        let mut entries = Vec::with_capacity(keys.len());
        for names in keys.chunks(MOST_ENTRIES) {
            let args = std::iter::once(self.keys.journal()).chain(names.iter().cloned()).collect();
            let reply = self.client.command("get", Access::Read, "HMGET", args).await?;
            let found = reply.list().map_err(strange)?;
            if found.len() != names.len() {
                return Err(strange(Unexpected::new("other entries than were asked for")));
            }
            for (name, reply) in names.iter().zip(found) {
                let stored = reply.bytes().map_err(strange)?;
                entries.push(stored.map(|stored| self.entry("get", name, &stored)).transpose()?);
            }
        }
        Ok(entries)
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.open("scan")?;
        let index = match range {
            Range::Due { .. } => self.keys.journal_due(),
            Range::List { .. } => self.keys.journal_lists(),
        };
        let bounds = Bounds::new(range, after);
        let (mut entries, mut from) = (Vec::new(), bounds.from.clone());
        while entries.len() < limit {
            let most = (limit - entries.len()).min(MOST_ENTRIES);
            let (page, last) = self.page(&index, &bounds, &from, most).await?;
            entries.extend(page);
            match last {
                Some(last) => from = Bounds::behind(&last),
                None => break,
            }
        }
        Ok(entries)
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.open("now")?;
        let reply = self.client.script("now", Access::Read, &NOW, &[self.keys.clock()], Vec::new()).await?;
        let strange = |what| self.strange("now", Access::Read, what);
        let time = reply.texts().map_err(strange)?;
        let millis = match &time[..] {
            [seconds, micros] => number(seconds).zip(number(micros)),
            _ => None,
        };
        let millis =
            millis.and_then(|(seconds, micros)| seconds.checked_mul(1000)?.checked_add(micros / 1000));
        let millis = millis.ok_or_else(|| strange(Unexpected::new("no time")))?;
        Ok(Some(Timestamp::from_millis(millis)))
    }

    async fn dedicated(&self) -> Result<Option<Arc<dyn DurableKv>>, StoreError> {
        self.open("open")?;
        let client = Arc::new(self.client.beside().await?);
        let (keys, closed) = (self.keys.clone(), Arc::default());
        Ok(Some(Arc::new(Self { client, keys, closed, dedicated: true })))
    }

    fn caps(&self) -> Caps {
        let durable = match self.client.persistence() {
            Persistence::Always => Durable::PowerLoss,
            Persistence::EverySecond | Persistence::None => Durable::ProcessCrash,
        };
        Caps { durable, shared: true, max_value: MAX_VALUE, groups_commits: false }
    }

    /// Waits for the commits that were called before, and refuses later calls on this handle and its scopes. The
    /// connection itself is closed by the store, or here if it is this handle's own.
    async fn close(&self) -> Result<(), StoreError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if self.dedicated { self.client.close().await } else { self.client.settle("close").await }
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

/// The writes in portions of a script each.
fn parts(ops: &[Op]) -> impl Iterator<Item = &[Op]> {
    let mut rest = ops;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |op: &&Op| {
            bytes += op.size();
            bytes <= MOST_BYTES
        };
        let count = rest.iter().take(MOST_OPS).take_while(fits).count().max(1).min(rest.len());
        let (part, others) = rest.split_at(count);
        rest = others;
        (!part.is_empty()).then_some(part)
    })
}

/// What `commit.lua` takes for a write.
fn arguments(op: &Op) -> [Bytes; 3] {
    let expected = |expect: &Expect| match expect {
        Expect::Absent => Bytes::new(),
        Expect::Version(version) => keys::version(*version),
    };
    match op {
        Op::Put { key, expect, value, index } => [key.clone(), expected(expect), keys::stored(value, *index)],
        Op::Delete { key, expect } => [key.clone(), keys::version(*expect), Bytes::new()],
    }
}

/// What `commit.lua` answers for a write; `None` for anything else.
fn outcome(text: &[u8]) -> Option<Outcome> {
    match text.split_first()? {
        (b'-', []) => Some(Outcome::Conflict(None)),
        (b'-', digits) => Some(Outcome::Conflict(Some(keys::read_version(digits)?))),
        (b'+', digits) => Some(Outcome::Applied(keys::read_version(digits)?)),
        _ => None,
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
