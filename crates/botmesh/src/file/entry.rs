//! The bytes of one entry of the log, and of one record of the snapshot: a format, a scope, and changes in it.
//!
//! Numbers are little-endian. Format 1 is one byte; a scope is its length (4) and its text. A change is a tag and
//!
//! - `1`, an entry: key length (2), key, version (8), index, value length (4), value;
//! - `2`, a removal: key length (2), key;
//! - `3`, the largest version ever given (8), which a snapshot starts with.
//!
//! An index is a byte whose bit 0 says that a due time (8) follows, and bit 1 that a bucket (1) and a place (8) do.

use bytes::{Buf, BufMut, Bytes, TryGetError};

use crate::core::kv::{Entry, Index, Version};
use crate::core::time::Timestamp;

const FORMAT: u8 = 1;

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const LAST_VERSION: u8 = 3;

const DUE: u8 = 1;
const LIST: u8 = 2;

/// What an entry takes besides its keys and values: at most so much for itself, and for each change.
pub(super) const OVERHEAD: usize = 8;
pub(super) const CHANGE_OVERHEAD: usize = 40;

/// One thing that an entry says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Put(Entry),
    Remove(Bytes),
    LastVersion(Version),
}

/// Why an entry says nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Written by a later version of this program.
    Newer(u8),
    Damaged,
}

impl From<TryGetError> for Unreadable {
    fn from(_: TryGetError) -> Self {
        Self::Damaged
    }
}

/// Builds one entry.
pub(super) struct Writing(Vec<u8>);

impl Writing {
    pub(super) fn of(scope: &str) -> Self {
        let mut bytes = vec![FORMAT];
        bytes.put_u32_le(scope.len() as u32);
        bytes.put_slice(scope.as_bytes());
        Self(bytes)
    }

    /// The key and the value must be of the sizes that the store takes.
    pub(super) fn put(&mut self, key: &[u8], version: Version, index: Index, value: &[u8]) {
        self.0.put_u8(PUT);
        self.key(key);
        self.0.put_u64_le(version.0);
        let due = if index.due.is_some() { DUE } else { 0 };
        let list = if index.list.is_some() { LIST } else { 0 };
        self.0.put_u8(due | list);
        if let Some(due) = index.due {
            self.0.put_i64_le(due.as_millis());
        }
        if let Some((bucket, place)) = index.list {
            self.0.put_u8(bucket);
            self.0.put_i64_le(place);
        }
        self.0.put_u32_le(value.len() as u32);
        self.0.put_slice(value);
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        self.0.put_u8(REMOVE);
        self.key(key);
    }

    pub(super) fn last_version(&mut self, version: Version) {
        self.0.put_u8(LAST_VERSION);
        self.0.put_u64_le(version.0);
    }

    fn key(&mut self, key: &[u8]) {
        self.0.put_u16_le(key.len() as u16);
        self.0.put_slice(key);
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Reads one entry, its scope and then its changes in order. Keys and values are copied, so that a small one keeps no
/// large entry in memory.
pub(super) fn read(mut bytes: &[u8]) -> Result<(&str, Vec<Change>), Unreadable> {
    let format = bytes.try_get_u8()?;
    if format > FORMAT {
        return Err(Unreadable::Newer(format));
    }
    let length = bytes.try_get_u32_le()?;
    let scope = std::str::from_utf8(take(&mut bytes, length as usize)?).map_err(|_| Unreadable::Damaged)?;
    let mut changes = Vec::new();
    while bytes.has_remaining() {
        changes.push(change(&mut bytes)?);
    }
    Ok((scope, changes))
}

fn change(bytes: &mut &[u8]) -> Result<Change, Unreadable> {
    match bytes.try_get_u8()? {
        PUT => {
            let key = key(bytes)?;
            let version = Version(bytes.try_get_u64_le()?);
            let index = index(bytes)?;
            let length = bytes.try_get_u32_le()?;
            let value = Bytes::copy_from_slice(take(bytes, length as usize)?);
            Ok(Change::Put(Entry { key, version, value, index }))
        }
        REMOVE => Ok(Change::Remove(key(bytes)?)),
        LAST_VERSION => Ok(Change::LastVersion(Version(bytes.try_get_u64_le()?))),
        _ => Err(Unreadable::Damaged),
    }
}

fn key(bytes: &mut &[u8]) -> Result<Bytes, Unreadable> {
    let length = bytes.try_get_u16_le()?;
    Ok(Bytes::copy_from_slice(take(bytes, length.into())?))
}

fn index(bytes: &mut &[u8]) -> Result<Index, Unreadable> {
    let flags = bytes.try_get_u8()?;
    if flags & !(DUE | LIST) != 0 {
        return Err(Unreadable::Damaged);
    }
    let due = if flags & DUE > 0 { Some(Timestamp::from_millis(bytes.try_get_i64_le()?)) } else { None };
    let list = if flags & LIST > 0 { Some((bytes.try_get_u8()?, bytes.try_get_i64_le()?)) } else { None };
    Ok(Index { due, list })
}

fn take<'b>(bytes: &mut &'b [u8], length: usize) -> Result<&'b [u8], Unreadable> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(Unreadable::Damaged)?;
    *bytes = rest;
    Ok(taken)
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
