use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{StoreError, StoreErrorKind};
use crate::kv::{
    Caps, Cursor, Durable, DurableKv, Entry, Expect, Index, MAX_KEY, Op, Outcome, Range, Version,
};

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
    spaces: HashMap<Arc<str>, Space>,
}

/// The entries of one scope.
#[derive(Default)]
struct Space {
    entries: HashMap<Bytes, Stored>,
    due: BTreeSet<(i64, Bytes)>,
    list: BTreeSet<(u8, i64, Bytes)>,
}

struct Stored {
    version: Version,
    value: Bytes,
    index: Index,
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
        let Data { last_version, spaces } = &mut *data;
        if !spaces.contains_key(&self.scope) {
            spaces.insert(Arc::clone(&self.scope), Space::default());
        }
        let Some(space) = spaces.get_mut(&self.scope) else { return Ok(Vec::new()) };
        Ok(ops.into_iter().map(|op| space.apply(op, last_version)).collect())
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        let data = self.lock();
        let space = data.spaces.get(&self.scope);
        Ok(keys.iter().map(|key| space?.entry(key)).collect())
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let data = self.lock();
        Ok(data.spaces.get(&self.scope).map_or_else(Vec::new, |space| space.scan(range, after, limit)))
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

impl Space {
    fn apply(&mut self, op: Op, last_version: &mut u64) -> Outcome {
        let found = self.entries.get(op.key()).map(|stored| stored.version);
        match op {
            Op::Put { key, expect, value, index } => {
                let expected = match expect {
                    Expect::Absent => None,
                    Expect::Version(version) => Some(version),
                };
                if found != expected {
                    return Outcome::Conflict(found);
                }
                *last_version += 1;
                let version = Version(*last_version);
                self.index(&key, index);
                let replaced = self.entries.insert(key.clone(), Stored { version, value, index });
                if let Some(old) = replaced {
                    self.unindex(&key, old.index, index);
                }
                Outcome::Applied(version)
            }
            Op::Delete { key, expect } => {
                if found != Some(expect) {
                    return Outcome::Conflict(found);
                }
                if let Some(old) = self.entries.remove(&key) {
                    self.unindex(&key, old.index, Index::default());
                }
                Outcome::Applied(expect)
            }
        }
    }

    fn index(&mut self, key: &Bytes, index: Index) {
        if let Some(due) = index.due {
            self.due.insert((due.as_millis(), key.clone()));
        }
        if let Some((bucket, place)) = index.list {
            self.list.insert((bucket, place, key.clone()));
        }
    }

    /// Removes the places of `old` that are not places of `new` too.
    fn unindex(&mut self, key: &Bytes, old: Index, new: Index) {
        if let Some(due) = old.due.filter(|_| old.due != new.due) {
            self.due.remove(&(due.as_millis(), key.clone()));
        }
        if let Some((bucket, place)) = old.list.filter(|_| old.list != new.list) {
            self.list.remove(&(bucket, place, key.clone()));
        }
    }

    fn entry(&self, key: &Bytes) -> Option<Entry> {
        let stored = self.entries.get(key)?;
        Some(Entry {
            key: key.clone(),
            version: stored.version,
            value: stored.value.clone(),
            index: stored.index,
        })
    }

    fn scan(&self, range: Range, after: Option<&Cursor>, limit: usize) -> Vec<Entry> {
        match range {
            Range::Due { until } => {
                let start = match after {
                    Some(after) => Bound::Excluded((after.place, after.key.clone())),
                    None => Bound::Unbounded,
                };
                self.due
                    .range((start, Bound::Unbounded))
                    .take_while(|(due, _)| *due <= until.as_millis())
                    .filter_map(|(_, key)| self.entry(key))
                    .take(limit)
                    .collect()
            }
            Range::List { bucket, from, until } => {
                let start = match after.filter(|after| after.place >= from) {
                    Some(after) => Bound::Excluded((bucket, after.place, after.key.clone())),
                    None => Bound::Included((bucket, from, Bytes::new())),
                };
                self.list
                    .range((start, Bound::Unbounded))
                    .take_while(|(found, place, _)| *found == bucket && *place <= until)
                    .filter_map(|(_, _, key)| self.entry(key))
                    .take(limit)
                    .collect()
            }
        }
    }
}
