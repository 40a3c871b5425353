//! The snapshot's bytes: a header, then records. All numbers are little-endian.
//!
//! Header, 40 bytes: magic 8, version 4, zero 4, covered 8, payload length 8, CRC32 of the payload 4, CRC32
//! of the bytes before 4. `covered` is the last sequence number that the snapshot holds. The payload is a
//! row of records, each a length of 4 bytes and its bytes.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::frame::{FORMAT_VERSION, u32_at, u64_at};
use crate::{AppendLogError, SnapshotDamage, sys};

const HEADER: usize = 40;
const MAGIC: [u8; 8] = *b"BMSNP\r\n\x1a";
const BUFFER: usize = 256 * 1024;

#[derive(Clone, Copy, Debug)]
struct Header {
    covered: u64,
    length: u64,
    crc: u32,
}

impl Header {
    fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.covered.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..36]);
        bytes[36..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn read(reader: &mut impl Read, found: u64, file: &Path) -> Result<Self, AppendLogError> {
        let damaged = |reason| Err(AppendLogError::damaged(file, reason));
        let mut bytes = [0; HEADER];
        let have = usize::try_from(found).unwrap_or(usize::MAX).min(HEADER);
        reader.read_exact(&mut bytes[..have]).map_err(|error| AppendLogError::io(file, "read", error))?;
        let magic = have.min(MAGIC.len());
        if have == 0 {
            return damaged(SnapshotDamage::Empty);
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return damaged(SnapshotDamage::Zeroed);
        }
        let differing = bytes.iter().zip(MAGIC).take(magic).filter(|&(&byte, magic)| byte != magic).count();
        if differing > 1 {
            return damaged(SnapshotDamage::NotASnapshot);
        }
        if have < HEADER {
            return damaged(SnapshotDamage::Truncated { expected: HEADER as u64, found });
        }
        if differing > 0 || u32_at(&bytes, 36) != crc32fast::hash(&bytes[..36]) {
            return damaged(SnapshotDamage::Header);
        }
        let version = u32_at(&bytes, 8);
        if version > FORMAT_VERSION {
            let file = file.to_path_buf();
            return Err(AppendLogError::NewerFormat { file, found: version, supported: FORMAT_VERSION });
        }
        Ok(Self { covered: u64_at(&bytes, 16), length: u64_at(&bytes, 24), crc: u32_at(&bytes, 32) })
    }
}

/// Opens the snapshot and reads its header; `None` when there is no snapshot.
fn open(file: &Path) -> Result<Option<(BufReader<File>, Header)>, AppendLogError> {
    let fail = |operation| move |error| AppendLogError::io(file, operation, error);
    let snapshot = match File::open(file) {
        Ok(snapshot) => snapshot,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail("open")(error)),
    };
    let found = snapshot.metadata().map_err(fail("read"))?.len();
    let mut reader = BufReader::with_capacity(BUFFER, snapshot);
    let header = Header::read(&mut reader, found, file)?;
    let expected = (HEADER as u64).saturating_add(header.length);
    match found.cmp(&expected) {
        std::cmp::Ordering::Less => {
            Err(AppendLogError::damaged(file, SnapshotDamage::Truncated { expected, found }))
        }
        std::cmp::Ordering::Greater => {
            Err(AppendLogError::damaged(file, SnapshotDamage::TooLong { expected, found }))
        }
        std::cmp::Ordering::Equal => Ok(Some((reader, header))),
    }
}

/// Reads the whole snapshot against its checksums and returns the last sequence number that it covers, and
/// the file.
pub(crate) fn verify(file: &Path) -> Result<Option<(u64, File)>, AppendLogError> {
    let Some((mut reader, header)) = open(file)? else {
        return Ok(None);
    };
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; BUFFER];
    let mut left = header.length;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER);
        reader.read_exact(&mut buffer[..part]).map_err(|error| AppendLogError::io(file, "read", error))?;
        hasher.update(&buffer[..part]);
        left -= part as u64;
    }
    if hasher.finalize() != header.crc {
        return Err(AppendLogError::damaged(file, SnapshotDamage::Checksum));
    }
    Ok(Some((header.covered, reader.into_inner())))
}

/// The records of the snapshot, in the order in which they were written:
/// [`AppendLog::snapshot`](crate::AppendLog::snapshot).
///
/// Their checksum was verified when the log was opened. Ends after the first error.
#[derive(Debug)]
pub struct SnapshotReader {
    file: PathBuf,
    reader: BufReader<File>,
    covered: u64,
    left: u64,
}

impl SnapshotReader {
    pub(crate) fn open(file: &Path) -> Result<Option<Self>, AppendLogError> {
        Ok(open(file)?.map(|(reader, header)| Self {
            file: file.to_path_buf(),
            reader,
            covered: header.covered,
            left: header.length,
        }))
    }

    /// The last sequence number that the snapshot holds.
    #[must_use]
    pub fn covered(&self) -> u64 {
        self.covered
    }

    fn read(&mut self) -> Result<Vec<u8>, AppendLogError> {
        let fail = |error| AppendLogError::io(&self.file, "read", error);
        let damaged = || AppendLogError::damaged(&self.file, SnapshotDamage::Checksum);
        let mut length = [0; 4];
        let left = self.left.checked_sub(4).ok_or_else(damaged)?;
        self.reader.read_exact(&mut length).map_err(fail)?;
        let length = u32::from_le_bytes(length);
        self.left = left.checked_sub(u64::from(length)).ok_or_else(damaged)?;
        let mut record = vec![0; length as usize];
        self.reader.read_exact(&mut record).map_err(fail)?;
        Ok(record)
    }
}

impl Iterator for SnapshotReader {
    type Item = Result<Vec<u8>, AppendLogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let record = self.read();
        if record.is_err() {
            self.left = 0;
        }
        Some(record)
    }
}

/// Takes the records of a new snapshot: [`AppendLog::compact_with`](crate::AppendLog::compact_with).
#[derive(Debug)]
pub struct SnapshotWriter {
    writer: BufWriter<File>,
    hasher: crc32fast::Hasher,
    length: u64,
}

impl SnapshotWriter {
    /// Adds one record: any bytes, also none at all.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a record of 4 GiB or more; else whatever the operating system says, which is to
    /// be handed on.
    pub fn record(&mut self, record: &[u8]) -> io::Result<()> {
        let length = u32::try_from(record.len())
            .map_err(|_| io::Error::new(ErrorKind::InvalidInput, "a record has to be shorter than 4 GiB"))?;
        self.write(&length.to_le_bytes())?;
        self.write(record)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        self.writer.write_all(bytes)
    }

    fn create(tmp: &Path) -> io::Result<Self> {
        let file = sys::private().write(true).create(true).truncate(true).open(tmp)?;
        let mut writer = BufWriter::with_capacity(BUFFER, file);
        writer.write_all(&[0; HEADER])?;
        Ok(Self { writer, hasher: crc32fast::Hasher::new(), length: 0 })
    }

    fn finish(self, covered: u64) -> io::Result<()> {
        let mut file = self.writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        let header = Header { covered, length: self.length, crc: self.hasher.finalize() };
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header.encode())?;
        file.sync_all()
    }
}

/// Writes a whole snapshot to `tmp` and syncs it. `old` lends its permissions if it is there.
pub(crate) fn write(
    tmp: &Path,
    old: &Path,
    covered: u64,
    records: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
) -> io::Result<()> {
    let mut writer = SnapshotWriter::create(tmp)?;
    records(&mut writer)?;
    if let Ok(old) = fs::metadata(old) {
        fs::set_permissions(tmp, old.permissions())?;
    }
    writer.finish(covered)
}
