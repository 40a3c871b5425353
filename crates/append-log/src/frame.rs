//! The log's bytes: a header, then one frame an entry. All numbers are little-endian.
//!
//! Header, 32 bytes, the same in every format version: magic 8, version 4, base 8, salt 8, CRC32 of the
//! bytes before 4. The base is the last sequence number of the snapshot that the log goes on from.
//!
//! Frame, 20 bytes and the payload: CRC32 4, payload length 4, sequence number 8, unsynced 4, payload. The
//! CRC covers the header's salt and everything after itself; the salt is new whenever the log starts afresh,
//! so neither a frame of an earlier log nor a log inside a payload passes for a frame of this one.
//! `unsynced` is how many entries before this one were not known to be on stable storage when it was
//! written: it tells a tail that nobody was promised from damage to what was.

use std::hash::{BuildHasher, RandomState};

/// The format version that is written, and the highest that is read.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes that one entry takes in the log beside its payload.
pub const FRAME_OVERHEAD: usize = 20;

/// The most that one append may write, frames included: 64 MiB. A torn tail can therefore not be longer.
pub const MAX_BATCH_BYTES: u64 = 64 * 1024 * 1024;

pub(crate) const LOG_HEADER: usize = 32;
pub(crate) const LOG_MAGIC: [u8; 8] = *b"BMLOG\r\n\x1a";

/// What the start of a log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHeader {
    pub(crate) base: u64,
    pub(crate) salt: u64,
}

/// Why the start of a log says nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    Foreign,
    Damaged,
    Newer(u32),
}

impl LogHeader {
    /// A header for a log that starts afresh after entry `base`.
    pub(crate) fn after(base: u64) -> Self {
        // The standard library's hash keys are the operating system's randomness.
        Self { base, salt: RandomState::new().hash_one(base) }
    }

    pub(crate) fn encode(self) -> [u8; LOG_HEADER] {
        let mut bytes = [0; LOG_HEADER];
        bytes[..8].copy_from_slice(&LOG_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.base.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; LOG_HEADER]) -> Result<Self, HeaderFault> {
        if bytes[..8] != LOG_MAGIC && bytes.iter().any(|&byte| byte != 0) {
            // One damaged byte is damage; more of them are somebody else's file.
            let differing = bytes.iter().zip(LOG_MAGIC).filter(|&(&byte, magic)| byte != magic).count();
            return Err(if differing > 1 { HeaderFault::Foreign } else { HeaderFault::Damaged });
        }
        if u32_at(bytes, 28) != crc32fast::hash(&bytes[..28]) {
            return Err(HeaderFault::Damaged);
        }
        match u32_at(bytes, 8) {
            FORMAT_VERSION => Ok(Self { base: u64_at(bytes, 12), salt: u64_at(bytes, 20) }),
            0 => Err(HeaderFault::Damaged),
            version => Err(HeaderFault::Newer(version)),
        }
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    crc: u32,
    pub(crate) length: u32,
    pub(crate) sequence: u64,
    pub(crate) unsynced: u32,
}

impl FrameHead {
    /// Reads the head at the start of `bytes`, which must hold one.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self {
            crc: u32_at(bytes, 0),
            length: u32_at(bytes, 4),
            sequence: u64_at(bytes, 8),
            unsynced: u32_at(bytes, 16),
        }
    }

    /// Bytes of the whole frame.
    pub(crate) fn size(self) -> u64 {
        FRAME_OVERHEAD as u64 + u64::from(self.length)
    }

    /// The last entry that was on stable storage when this one was written.
    pub(crate) fn synced_through(self) -> u64 {
        self.sequence.saturating_sub(1).saturating_sub(u64::from(self.unsynced))
    }

    pub(crate) fn matches(self, salt: u64, payload: &[u8]) -> bool {
        self.crc == checksum(salt, self.length, self.sequence, self.unsynced, payload)
    }
}

/// Adds one frame to `buffer`. The payload is at most [`MAX_BATCH_BYTES`], so its length fits.
pub(crate) fn encode(buffer: &mut Vec<u8>, salt: u64, sequence: u64, unsynced: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let crc = checksum(salt, length, sequence, unsynced, payload);
    buffer.extend_from_slice(&crc.to_le_bytes());
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&sequence.to_le_bytes());
    buffer.extend_from_slice(&unsynced.to_le_bytes());
    buffer.extend_from_slice(payload);
}

fn checksum(salt: u64, length: u32, sequence: u64, unsynced: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(&length.to_le_bytes());
    hasher.update(&sequence.to_le_bytes());
    hasher.update(&unsynced.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}
