//! Buckets: the parts into which the keys of the turns are divided. All of one bucket is on one node of a Cluster.

use std::sync::atomic::{AtomicU64, Ordering};

use botmesh_core::Bytes;
use botmesh_core::hash::stable_hash;
use fred::util::redis_keyslot;

/// How many there are on a Cluster, so that a few nodes have about the same work.
pub(super) const ON_A_CLUSTER: usize = 64;

/// What [`place_of`] is called in the record of the layout.
pub(super) const HASH: &str = "fnv1a64-folded";

/// The bucket of a key: FNV-1a, both halves folded into one, since the lowest bits alone are uneven.
pub(super) fn place_of(key: &str, buckets: usize) -> usize {
    let hash = stable_hash(key.bytes());
    let folded = (hash ^ (hash >> 32)) & u64::from(u32::MAX);
    usize::try_from(folded).map_or(0, |folded| folded % buckets)
}

/// The names of a bucket's keys. All have one hash tag.
#[derive(Debug)]
pub(super) struct Bucket {
    tag: String,
    state: Bytes,
    /// Where it is on a Cluster.
    slot: u16,
    /// When the last answered request that wrote the clocks was sent, in microseconds of the clock; 0 for none. Of all
    /// connections.
    witnessed: AtomicU64,
}

impl Bucket {
    pub(super) fn new(prefix: &str, number: usize) -> Self {
        let tag = format!("{{{prefix}:turns:{number}}}:");
        let (state, slot) = (format!("{tag}state").into(), redis_keyslot(tag.as_bytes()));
        Self { tag, state, slot, witnessed: AtomicU64::new(0) }
    }

    pub(super) fn slot(&self) -> u16 {
        self.slot
    }

    pub(super) fn named(&self, name: &str) -> Bytes {
        format!("{}{name}", self.tag).into()
    }

    /// The keys of the calls about a key: the state, who has its turn, and the tickets behind it.
    pub(super) fn turn(&self, key: &str) -> [Bytes; 3] {
        let names = Bytes::from([&*self.tag, "queue:", key, &*self.tag, "behind:", key].concat());
        let end = self.tag.len() + "queue:".len() + key.len();
        [self.state(), names.slice(..end), names.slice(end..)]
    }

    /// Who has the turn of a key.
    pub(super) fn queue(&self, key: &str) -> Bytes {
        self.named(&format!("queue:{key}"))
    }

    pub(super) fn state(&self) -> Bytes {
        self.state.clone()
    }

    pub(super) fn lock(&self, key: &str) -> Bytes {
        self.named(&format!("lock:{key}"))
    }

    /// How long ago the last answered request that wrote the clocks was sent, in microseconds; `None` if there was none.
    pub(super) fn elapsed(&self, sent: u64) -> Option<u64> {
        let last = self.witnessed.load(Ordering::Acquire);
        (last != 0).then(|| sent.saturating_sub(last))
    }

    pub(super) fn witness(&self, sent: u64) {
        self.witnessed.fetch_max(sent, Ordering::AcqRel);
    }
}

/// The channel of a replica, for the pushes of all buckets.
pub(super) fn wake(prefix: &str, incarnation: &str) -> String {
    format!("{{{prefix}:turns:wake}}:{incarnation}")
}
