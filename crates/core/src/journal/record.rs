//! How records are stored: `16-byte write id ‖ JSON`, under a key with the journal's prefix.

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::error::{StoreError, StoreErrorKind};
use crate::id::InstanceId;
use crate::kv::{Cursor, Entry, Index, Range, Version};

/// Identifies one write, so that a writer whose answer was lost recognises its own.
pub(super) type WriteId = [u8; 16];

/// The format of the records that this version writes. Larger ones are refused by name.
pub(super) const FORMAT: u32 = 1;

/// A record of a journal.
pub trait Record: Serialize + DeserializeOwned {
    /// The states of the record's life.
    type State: Copy + std::fmt::Debug;
    /// The first byte of its keys.
    const PREFIX: u8;
    /// The name of the journal, for errors.
    const JOURNAL: &'static str;

    /// What the key is made of.
    fn id(&self) -> &str;
    /// Where else it is found.
    fn index(&self) -> Index;
    /// The bucket of a state.
    fn bucket(state: Self::State) -> u8;
}

/// A record as it was read, or as it was last written.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<R> {
    /// The record.
    pub record: R,
    /// The version to expect when it is changed.
    pub version: Version,
}

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Page<R> {
    /// The records.
    pub records: Vec<Stored<R>>,
    /// Records that this version cannot read. They are left as they are.
    pub unreadable: Vec<Unreadable>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<Cursor>,
}

/// A record that this version cannot read: of a newer format, or damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its id or key.
    pub key: String,
    /// Why, and what to do.
    pub reason: String,
}

impl<R: Record> Page<R> {
    pub(super) fn from_entries(range: Range, entries: &[Entry], limit: usize) -> Self {
        let next = entries.last().filter(|_| entries.len() >= limit).and_then(|last| range.cursor(last));
        let mut page = Self { records: Vec::with_capacity(entries.len()), unreadable: Vec::new(), next };
        for entry in entries.iter().filter(|entry| entry.key.first() == Some(&R::PREFIX)) {
            match decode(entry) {
                Ok(stored) => page.records.push(stored),
                Err(error) => page
                    .unreadable
                    .push(Unreadable { key: readable_key(&entry.key), reason: error.to_string() }),
            }
        }
        page
    }
}

/// Who owns a record: a process of an instance. The epoch grows with every start of the instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The instance.
    pub instance: InstanceId,
    /// The start.
    pub epoch: u64,
}

/// A transition that the record's state does not permit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the record {id} is {state} and cannot {transition}")]
pub struct Refused {
    /// The record.
    pub id: String,
    /// The state it is in.
    pub state: &'static str,
    /// What was asked of it.
    pub transition: &'static str,
}

pub(super) fn key<R: Record>(id: &str) -> Bytes {
    let mut key = BytesMut::with_capacity(1 + id.len());
    key.put_u8(R::PREFIX);
    key.put_slice(id.as_bytes());
    key.freeze()
}

pub(super) fn encode<R: Record>(record: &R) -> Result<Vec<u8>, StoreError> {
    let mut value = Vec::with_capacity(512);
    value.extend_from_slice(&WriteId::default());
    serde_json::to_writer(&mut value, record).map_err(|error| {
        StoreError::new(
            StoreErrorKind::Misuse,
            R::JOURNAL,
            "encode",
            format!("the record {} is not JSON", record.id()),
        )
        .with_source(error)
    })?;
    Ok(value)
}

pub(super) fn decode<R: Record>(entry: &Entry) -> Result<Stored<R>, StoreError> {
    #[derive(Deserialize)]
    struct Format {
        v: u32,
    }
    let name = || readable_key(&entry.key);
    let body = entry.value.get(size_of::<WriteId>()..).ok_or_else(|| {
        let message = format!("the record {} is shorter than its header", name());
        StoreError::new(StoreErrorKind::Corrupt, R::JOURNAL, "decode", message)
    })?;
    match serde_json::from_slice(body) {
        Ok(record) => Ok(Stored { record, version: entry.version }),
        Err(error) => {
            let format = serde_json::from_slice::<Format>(body).map(|format| format.v);
            let (kind, message) = match format {
                Ok(v) if v > FORMAT => (
                    StoreErrorKind::Incompatible,
                    format!(
                        "the record {} has format {v}, this version reads up to {FORMAT}; upgrade",
                        name()
                    ),
                ),
                _ => (StoreErrorKind::Corrupt, format!("the record {} cannot be read", name())),
            };
            Err(StoreError::new(kind, R::JOURNAL, "decode", message).with_source(error))
        }
    }
}

/// Reads a record's format. A larger one is refused although the rest may look readable: it means something else.
pub(super) fn format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        v if v > FORMAT => Err(D::Error::custom(format_args!("it has format {v}"))),
        v => Ok(v),
    }
}

pub(super) fn write_id(entry: &Entry) -> Option<&[u8]> {
    entry.value.get(..size_of::<WriteId>())
}

fn readable_key(key: &[u8]) -> String {
    String::from_utf8_lossy(key.get(1..).unwrap_or_default()).into_owned()
}

/// The longest text of an error, in bytes.
pub(super) const MAX_ERROR: usize = 1000;

/// The first `max` bytes of a text, cut where a character ends.
pub(super) fn truncated(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{}…", &text[..end])
}
