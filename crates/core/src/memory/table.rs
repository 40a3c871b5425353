use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use bytes::Bytes;

use crate::kv::{Cursor, Entry, Index, Range, Version};

/// The entries of one scope with their two indexes, in memory: what [`MemoryKv`](super::MemoryKv) is made of, for other
/// backends that keep in memory what they hold.
///
/// It checks nothing: whether a write may happen is [`Op::fits`](crate::kv::Op::fits).
#[derive(Debug, Default)]
pub struct Table {
    entries: HashMap<Bytes, Stored>,
    due: BTreeSet<(i64, Bytes)>,
    list: BTreeSet<(u8, i64, Bytes)>,
}

#[derive(Debug)]
struct Stored {
    version: Version,
    value: Bytes,
    index: Index,
}

impl Table {
    /// The version of the entry under `key`, if there is one.
    pub fn version(&self, key: &[u8]) -> Option<Version> {
        self.entries.get(key).map(|stored| stored.version)
    }

    /// Adds an entry, or replaces the one of the same key.
    pub fn put(&mut self, entry: Entry) {
        let Entry { key, version, value, index } = entry;
        if let Some(due) = index.due {
            self.due.insert((due.as_millis(), key.clone()));
        }
        if let Some((bucket, place)) = index.list {
            self.list.insert((bucket, place, key.clone()));
        }
        let replaced = self.entries.insert(key.clone(), Stored { version, value, index });
        if let Some(old) = replaced {
            self.unindex(&key, old.index, index);
        }
    }

    /// Removes the entry under `key`, if there is one.
    pub fn remove(&mut self, key: &Bytes) {
        if let Some(old) = self.entries.remove(key) {
            self.unindex(key, old.index, Index::default());
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

    /// The entry under `key`.
    pub fn get(&self, key: &[u8]) -> Option<Entry> {
        self.entries.get_key_value(key).map(|(key, stored)| stored.entry(key))
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        self.entries.iter().map(|(key, stored)| stored.entry(key))
    }

    /// A page of a range, as [`DurableKv::scan`](crate::kv::DurableKv::scan) promises it.
    pub fn scan(&self, range: Range, after: Option<&Cursor>, limit: usize) -> Vec<Entry> {
        match range {
            Range::Due { until } => {
                let start = match after {
                    Some(after) => Bound::Excluded((after.place, after.key.clone())),
                    None => Bound::Unbounded,
                };
                self.due
                    .range((start, Bound::Unbounded))
                    .take_while(|(due, _)| *due <= until.as_millis())
                    .filter_map(|(_, key)| self.get(key))
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
                    .filter_map(|(_, _, key)| self.get(key))
                    .take(limit)
                    .collect()
            }
        }
    }
}

impl Stored {
    fn entry(&self, key: &Bytes) -> Entry {
        Entry { key: key.clone(), version: self.version, value: self.value.clone(), index: self.index }
    }
}
