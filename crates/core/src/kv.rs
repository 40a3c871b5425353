//! What a backend of the journals implements: a small key-value store with compare-and-set and two integer indexes.
//!
//! Everything else (inbox, outbox, leases, retries, dead letters, retention) is written once above it, in
//! [`journal`](crate::journal).

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::StoreError;
use crate::time::Timestamp;

/// The longest key, in bytes. Backends must take every key up to this length.
pub const MAX_KEY: usize = 2048;

/// The number of an entry's last write. Larger than every earlier version of the same key, also after a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// What a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No entry.
    Absent,
    /// An entry of this version.
    Version(Version),
}

/// Where an entry is found besides under its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// When the sweeper should look at it; `None` keeps it out of [`Range::Due`].
    pub due: Option<Timestamp>,
    /// Its bucket and its place there; `None` keeps it out of [`Range::List`].
    pub list: Option<(u8, i64)>,
}

/// One write. Atomic by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes an entry.
    Put {
        /// The key.
        key: Bytes,
        /// What must be there.
        expect: Expect,
        /// The value, opaque to the backend.
        value: Bytes,
        /// Where else it is found.
        index: Index,
    },
    /// Removes an entry.
    Delete {
        /// The key.
        key: Bytes,
        /// The version that must be there.
        expect: Version,
    },
}

impl Op {
    /// The key it writes.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// Whether it may happen where `found` is the version of the entry that is there.
    pub fn fits(&self, found: Option<Version>) -> bool {
        match self {
            Self::Put { expect: Expect::Absent, .. } => found.is_none(),
            Self::Put { expect: Expect::Version(expect), .. } | Self::Delete { expect, .. } => {
                found == Some(*expect)
            }
        }
    }

    /// The bytes of key and value, for bounds on batches.
    pub fn size(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Delete { key, .. } => key.len(),
        }
    }
}

/// What became of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It is durable. For a put, the entry's version; for a delete, the version that was removed.
    Applied(Version),
    /// The expectation did not hold; nothing changed. The version that is there instead.
    Conflict(Option<Version>),
}

/// An entry as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// The version.
    pub version: Version,
    /// The value.
    pub value: Bytes,
    /// Where else it is found.
    pub index: Index,
}

/// What to scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Entries whose `due` is not after `until`, ordered by due and key.
    Due {
        /// The latest due time, included.
        until: Timestamp,
    },
    /// Entries of a bucket, ordered by place and key.
    List {
        /// The bucket.
        bucket: u8,
        /// The first place, included.
        from: i64,
        /// The last place, included.
        until: i64,
    },
}

/// Where a scan goes on: after this place and key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The due time in milliseconds, or the place in the bucket.
    pub place: i64,
    /// The key.
    pub key: Bytes,
}

impl Range {
    /// The cursor of `entry` in this range; `None` if the entry is not in it.
    pub fn cursor(&self, entry: &Entry) -> Option<Cursor> {
        let place = match self {
            Self::Due { until } => entry.index.due.filter(|due| due <= until)?.as_millis(),
            Self::List { bucket, from, until } => {
                let (entry_bucket, place) = entry.index.list?;
                (entry_bucket == *bucket && (*from..=*until).contains(&place)).then_some(place)?
            }
        };
        Some(Cursor { place, key: entry.key.clone() })
    }
}

/// What survives which failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durable {
    /// Nothing outlives the process.
    Process,
    /// Committed data outlives a killed process.
    ProcessCrash,
    /// Committed data outlives a power failure.
    PowerLoss,
    /// Committed data outlives the loss of a host.
    Replicated,
}

/// What a backend claims; the conformance suites hold it to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// What committed data survives.
    pub durable: Durable,
    /// Whether several processes may use the data at the same time.
    pub shared: bool,
    /// The largest value in bytes.
    pub max_value: usize,
    /// Whether concurrent calls of [`DurableKv::commit`] already share one durable write. If not, the journals group
    /// them above it.
    pub groups_commits: bool,
}

/// A durable key-value store with compare-and-set.
///
/// Keys and values are opaque bytes: nothing is parsed, compared as text or converted.
#[async_trait]
pub trait DurableKv: Send + Sync + 'static {
    /// The same backend, restricted to what belongs to `scope`. Entries of other scopes are neither read nor written.
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv>;

    /// Applies independent writes, each atomic by itself, those of one key in the order given. When it returns `Ok`,
    /// every [`Outcome::Applied`] is durable; one that conflicts leaves the others unaffected. Outcomes are in the order
    /// of the writes.
    ///
    /// # Errors
    /// With [`Effect::None`](crate::error::Effect::None) no write happened; with
    /// [`Effect::Unknown`](crate::error::Effect::Unknown) any of them may have.
    ///
    /// # Cancel safety
    /// Each write of a dropped call happens wholly or not at all.
    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError>;

    /// Reads entries, in the order of the keys.
    ///
    /// # Errors
    /// The backend's failure.
    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError>;

    /// Reads a page of a range: at most `limit` entries after `after`, in order. A page shorter than `limit` is the
    /// last one. Costs as much as it returns, however large the rest of the store is.
    ///
    /// # Errors
    /// The backend's failure.
    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError>;

    /// The backend's clock where it has one of its own; `None` if this host's clock is as good.
    ///
    /// # Errors
    /// The backend's failure.
    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    /// The same entries over a connection of its own, which nothing that this handle does delays: heartbeats use it, on
    /// the thread that called this. What it writes need outlive this process only, not the machine. [`close`](Self::close) ends it. `None` if this handle is as good: because its
    /// calls do not wait for each other, or because only one process can use the data and nobody waits for heartbeats.
    ///
    /// # Errors
    /// There is no further connection.
    async fn dedicated(&self) -> Result<Option<Arc<dyn DurableKv>>, StoreError> {
        Ok(None)
    }

    /// What the backend claims.
    fn caps(&self) -> Caps;

    /// Finishes what was called and gives resources back.
    ///
    /// # Errors
    /// The backend's failure.
    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
