//! The names of keys, and places in indexes.
//!
//! Everything of one scope has one hash tag, `{prefix:scope}`, so that each script finds all of its keys on one node of a
//! Cluster.

use botmesh_core::Bytes;
use botmesh_core::id::ConversationKey;
use botmesh_core::kv::{Cursor, Entry, Index, Range, Version};
use botmesh_core::time::Timestamp;

/// The digits of a stored version.
const VERSION: usize = 16;

/// The bytes of a time, or of a place in a list.
pub(crate) const PLACE: usize = 8;

/// The keys of one scope.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    tag: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, scope: &str) -> Self {
        let mut tag = format!("{{{prefix}:");
        for c in scope.chars() {
            match c {
                '%' => tag.push_str("%25"),
                '{' => tag.push_str("%7B"),
                '}' => tag.push_str("%7D"),
                c => tag.push(c),
            }
        }
        tag.push('}');
        Self { tag }
    }

    fn named(&self, name: &str) -> Bytes {
        format!("{}:{name}", self.tag).into()
    }

    /// The hash of the journals' entries.
    pub(crate) fn journal(&self) -> Bytes {
        self.named("journal")
    }

    pub(crate) fn journal_due(&self) -> Bytes {
        self.named("journal:due")
    }

    pub(crate) fn journal_lists(&self) -> Bytes {
        self.named("journal:lists")
    }

    /// The last number that was given as a version or a position in a log.
    pub(crate) fn clock(&self) -> Bytes {
        self.named("clock")
    }

    /// The hash of what is known of chats.
    pub(crate) fn chats(&self) -> Bytes {
        self.named("chats")
    }

    /// The hash of one user's values.
    pub(crate) fn user(&self, user: &str) -> Bytes {
        self.named(&format!("user:{user}"))
    }

    pub(crate) fn checkpoint(&self, conversation: &str) -> Bytes {
        self.named(&format!("checkpoint:{conversation}"))
    }

    pub(crate) fn checkpoints_due(&self) -> Bytes {
        self.named("checkpoints:due")
    }

    /// The largest fence, and the largest revision of a removed checkpoint.
    pub(crate) fn checkpoint_bounds(&self) -> Bytes {
        self.named("checkpoints:bounds")
    }

    /// The stream of a chat's messages.
    pub(crate) fn log(&self, chat: &str) -> Bytes {
        self.named(&format!("log:{chat}"))
    }
}

/// The record of how the keys under a prefix are laid out.
pub(crate) fn layout(prefix: &str) -> Bytes {
    format!("{{{prefix}}}:layout").into()
}

/// The record of how the keys of the turns are laid out.
pub(crate) fn turns_layout(prefix: &str) -> Bytes {
    format!("{{{prefix}}}:layout:turns").into()
}

/// Keys that only the start-up probe uses, for a moment.
pub(crate) fn scratch(prefix: &str) -> Vec<Bytes> {
    ["hash", "index", "number", "log"].map(|name| format!("{{{prefix}:}}:probe:{name}").into()).to_vec()
}

/// The conversation that [`ConversationKey::encode`] made `text` of; `None` if it did not.
pub(crate) fn conversation(text: &str) -> Option<ConversationKey> {
    let unescape = |part: &str| part.replace("%2F", "/").replace("%25", "%");
    let mut parts = text.strip_prefix("c/")?.split('/').map(unescape);
    let key = ConversationKey { chat: parts.next()?.into(), participant: parts.next().map(Into::into) };
    (parts.next().is_none() && key.encode() == text).then_some(key)
}

/// A number as bytes whose order is that of the numbers.
pub(crate) fn place(number: i64) -> [u8; PLACE] {
    (number ^ i64::MIN).to_be_bytes()
}

/// The number that [`place`] made into the first bytes; `None` if there are too few.
pub(crate) fn placed(bytes: &[u8]) -> Option<i64> {
    let bytes = bytes.get(..PLACE)?.try_into().ok()?;
    Some(i64::from_be_bytes(bytes) ^ i64::MIN)
}

fn list_place(bucket: u8, number: i64) -> Vec<u8> {
    [&[bucket][..], &place(number)].concat()
}

/// A version as it is stored. No stored one is longer than its digits.
pub(crate) fn version(version: Version) -> Bytes {
    format!("{:0VERSION$}", version.0).into()
}

/// The version that a script answered; `None` if it is none.
pub(crate) fn read_version(digits: &[u8]) -> Option<Version> {
    std::str::from_utf8(digits).ok()?.parse().ok().map(Version)
}

/// What is stored behind an entry's version: which places follow, the places, and the value.
pub(crate) fn stored(value: &[u8], index: Index) -> Bytes {
    let which = u8::from(index.due.is_some()) + 2 * u8::from(index.list.is_some());
    let mut stored = Vec::with_capacity(1 + PLACE + 1 + PLACE + value.len());
    stored.push(b'0' + which);
    if let Some(due) = index.due {
        stored.extend(place(due.as_millis()));
    }
    if let Some((bucket, number)) = index.list {
        stored.extend(list_place(bucket, number));
    }
    stored.extend(value);
    stored.into()
}

/// An entry as it is stored; `None` if it is damaged.
pub(crate) fn entry(key: Bytes, stored: &Bytes) -> Option<Entry> {
    let version = read_version(stored.get(..VERSION)?)?;
    let which = stored.get(VERSION)?.checked_sub(b'0').filter(|which| *which < 4)?;
    let mut at = VERSION + 1;
    let mut index = Index::default();
    if which & 1 != 0 {
        index.due = Some(Timestamp::from_millis(placed(stored.get(at..)?)?));
        at += PLACE;
    }
    if which & 2 != 0 {
        index.list = Some((*stored.get(at)?, placed(stored.get(at + 1..)?)?));
        at += 1 + PLACE;
    }
    Some(Entry { key, version, value: stored.slice(at..), index })
}

/// Where a page of an index begins and ends, as `ZRANGEBYLEX` takes it.
pub(crate) struct Bounds {
    pub(crate) from: Bytes,
    pub(crate) until: Bytes,
    /// The bytes before the key in a member of the index.
    pub(crate) place: usize,
}

impl Bounds {
    pub(crate) fn new(range: Range, after: Option<&Cursor>) -> Self {
        let (first, last) = match range {
            Range::Due { until } => (place(i64::MIN).to_vec(), place(until.as_millis()).to_vec()),
            Range::List { bucket, from, until } => (list_place(bucket, from), list_place(bucket, until)),
        };
        let after = after.map(|after| {
            let place = match range {
                Range::Due { .. } => place(after.place).to_vec(),
                Range::List { bucket, .. } => list_place(bucket, after.place),
            };
            [&place[..], &after.key].concat()
        });
        let from = match after {
            Some(after) if after >= first => Self::behind(&after),
            _ => [b"[", &first[..]].concat().into(),
        };
        Self { from, until: Self::before_successor(&last), place: first.len() }
    }

    /// Begins after this member.
    pub(crate) fn behind(member: &[u8]) -> Bytes {
        [b"(", member].concat().into()
    }

    /// Ends after every member that begins with `place`.
    pub(crate) fn before_successor(place: &[u8]) -> Bytes {
        let mut end = place.to_vec();
        while let Some(last) = end.pop() {
            if let Some(next) = last.checked_add(1) {
                end.push(next);
                return [b"(", &end[..]].concat().into();
            }
        }
        Bytes::from_static(b"+")
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
