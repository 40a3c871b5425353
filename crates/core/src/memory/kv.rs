use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{StoreError, StoreErrorKind};
use crate::kv::{Caps, Cursor, Durable, DurableKv, Entry, MAX_KEY, Op, Outcome, Range, Version};

use super::Table;

const MAX_VALUE: usize = 16 << 20;

/// A [`DurableKv`] in this process's memory. Clones and scoped views share one set of data, which lives as long as the
/// last of them.
#[derive(Clone)]
pub struct MemoryKv {
    data: Arc<Mutex<Data>>,
    scope: Arc<str>,
}

#[derive(Default)]
struct Data {
    last_version: u64,
    tables: HashMap<Arc<str>, Table>,
}

impl MemoryKv {
    /// An empty store, in a scope of its own: the empty text.
    pub fn new() -> Self {
        Self { data: Arc::default(), scope: Arc::from("") }
    }

    fn lock(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryKv {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MemoryKv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryKv").field("scope", &self.scope).finish_non_exhaustive()
    }
}

#[async_trait]
impl DurableKv for MemoryKv {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { data: Arc::clone(&self.data), scope: Arc::from(scope) })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        refuse_oversized(&ops)?;
        let mut data = self.lock();
        let Data { last_version, tables } = &mut *data;
        if !tables.contains_key(&self.scope) {
            tables.insert(Arc::clone(&self.scope), Table::default());
        }
        let Some(table) = tables.get_mut(&self.scope) else { return Ok(Vec::new()) };
        Ok(ops.into_iter().map(|op| apply(table, op, last_version)).collect())
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        let data = self.lock();
        let table = data.tables.get(&self.scope);
        Ok(keys.iter().map(|key| table?.get(key)).collect())
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let data = self.lock();
        Ok(data.tables.get(&self.scope).map_or_else(Vec::new, |table| table.scan(range, after, limit)))
    }

    fn caps(&self) -> Caps {
        Caps { durable: Durable::Process, shared: false, max_value: MAX_VALUE, groups_commits: true }
    }
}

fn refuse_oversized(ops: &[Op]) -> Result<(), StoreError> {
    let refuse = |what: &str, size: usize, limit: usize| {
        let message = format!("a {what} of {size} bytes; at most {limit} are taken");
        Err(StoreError::new(StoreErrorKind::TooLarge, "memory", "commit", message))
    };
    for op in ops {
        if op.key().len() > MAX_KEY {
            return refuse("key", op.key().len(), MAX_KEY);
        }
        match op {
            Op::Put { value, .. } if value.len() > MAX_VALUE => {
                return refuse("value", value.len(), MAX_VALUE);
            }
            Op::Put { .. } | Op::Delete { .. } => {}
        }
    }
    Ok(())
}

fn apply(table: &mut Table, op: Op, last_version: &mut u64) -> Outcome {
    let found = table.version(op.key());
    if !op.fits(found) {
        return Outcome::Conflict(found);
    }
    match op {
        Op::Put { key, value, index, .. } => {
            *last_version += 1;
            let version = Version(*last_version);
            table.put(Entry { key, version, value, index });
            Outcome::Applied(version)
        }
        Op::Delete { key, expect } => {
            table.remove(&key);
            Outcome::Applied(expect)
        }
    }
}
