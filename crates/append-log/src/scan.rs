//! Reads a whole log and says what of it counts: up to where it is good, and whether what comes after was
//! torn off by a crash (to be cut) or is damage (to be refused).
//!
//! A crash can only tear what was written since the last sync, which is one batch. So a bad frame is damage
//! when a later, valid frame says that the bad one was synced before it was written. It is damage too when
//! the later frames are of the same unsynced run, unless a block in between never reached the disk (it reads
//! as zeros): a power cut may write the blocks of one batch in any order.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use crate::AppendLogError;
use crate::frame::{
    FORMAT_VERSION, FRAME_OVERHEAD, FrameHead, HeaderFault, LOG_HEADER, LOG_MAGIC, LogHeader, MAX_BATCH_BYTES,
};

/// The unit in which a disk loses data.
const SECTOR: u64 = 512;

/// Checksummed bytes after which the search for a later frame gives up and calls it damage.
const CHECK_BUDGET: u64 = 16 * MAX_BATCH_BYTES;

/// What a log holds.
#[derive(Debug)]
pub(crate) struct Scan {
    /// `None` when the log ends within its header: it was being created, or started afresh.
    pub(crate) header: Option<LogHeader>,
    /// Entries in the file.
    pub(crate) entries: u64,
    /// The sequence number of the last one; the header's base when there is none.
    pub(crate) last: u64,
    /// Where the good part ends, in bytes.
    pub(crate) end: u64,
    /// The length of the file, in bytes.
    pub(crate) length: u64,
    /// Where the last run starts that no later frame says was synced.
    pub(crate) run_start: u64,
    /// Entries in that run.
    pub(crate) run_entries: u32,
}

/// Reads the log from its start.
pub(crate) fn scan(file: &File, path: &Path) -> Result<Scan, AppendLogError> {
    let fail = |error| AppendLogError::io(path, "read", error);
    let length = file.metadata().map_err(fail)?.len();
    let mut reader = BufReader::with_capacity(256 * 1024, file);
    reader.seek(SeekFrom::Start(0)).map_err(fail)?;
    let Some(header) = read_header(&mut reader, length, path)? else {
        return Ok(Scan { header: None, entries: 0, last: 0, end: 0, length, run_start: 0, run_entries: 0 });
    };
    let start = LOG_HEADER as u64;
    let mut scan = Scan {
        header: Some(header),
        entries: 0,
        last: header.base,
        end: start,
        length,
        run_start: start,
        run_entries: 0,
    };
    let mut payload = Vec::new();
    while scan.end < length {
        let head = read_frame(&mut reader, header.salt, length - scan.end, &mut payload).map_err(fail)?;
        let Some(head) = head else {
            if is_torn(file, &scan, header).map_err(fail)? {
                break;
            }
            return Err(AppendLogError::corrupt(path, scan.entries + 1, scan.end));
        };
        if head.sequence != scan.last + 1 {
            return Err(AppendLogError::corrupt(path, scan.entries + 1, scan.end));
        }
        if head.unsynced == 0 {
            (scan.run_start, scan.run_entries) = (scan.end, 0);
        }
        scan.run_entries = scan.run_entries.saturating_add(1);
        scan.entries += 1;
        scan.last = head.sequence;
        scan.end += head.size();
    }
    Ok(scan)
}

/// The header, or `None` when the file ends before it was written whole.
fn read_header(
    reader: &mut impl Read,
    length: u64,
    path: &Path,
) -> Result<Option<LogHeader>, AppendLogError> {
    let mut bytes = [0; LOG_HEADER];
    let have = usize::try_from(length).unwrap_or(usize::MAX).min(LOG_HEADER);
    reader.read_exact(&mut bytes[..have]).map_err(|error| AppendLogError::io(path, "read", error))?;
    let zero = bytes.iter().all(|&byte| byte == 0);
    if have < LOG_HEADER {
        let magic = have.min(LOG_MAGIC.len());
        return if zero || bytes[..magic] == LOG_MAGIC[..magic] {
            Ok(None)
        } else {
            Err(AppendLogError::NotAnAppendLog { file: path.to_path_buf() })
        };
    }
    if zero && length == LOG_HEADER as u64 {
        return Ok(None);
    }
    match LogHeader::decode(&bytes) {
        Ok(header) => Ok(Some(header)),
        Err(HeaderFault::Foreign) => Err(AppendLogError::NotAnAppendLog { file: path.to_path_buf() }),
        Err(HeaderFault::Damaged) => Err(AppendLogError::corrupt(path, 0, 0)),
        Err(HeaderFault::Newer(found)) => {
            Err(AppendLogError::NewerFormat { file: path.to_path_buf(), found, supported: FORMAT_VERSION })
        }
    }
}

/// Reads the next frame of the `left` bytes; `None` when they do not start with a valid one.
pub(crate) fn read_frame(
    reader: &mut impl Read,
    salt: u64,
    left: u64,
    payload: &mut Vec<u8>,
) -> io::Result<Option<FrameHead>> {
    if left < FRAME_OVERHEAD as u64 {
        return Ok(None);
    }
    let mut bytes = [0; FRAME_OVERHEAD];
    reader.read_exact(&mut bytes)?;
    let head = FrameHead::decode(&bytes);
    if head.size() > left.min(MAX_BATCH_BYTES) {
        return Ok(None);
    }
    payload.resize(head.length as usize, 0);
    reader.read_exact(payload)?;
    Ok(head.matches(salt, payload).then_some(head))
}

/// Whether what follows the good part was torn off by a crash.
fn is_torn(file: &File, scan: &Scan, header: LogHeader) -> io::Result<bool> {
    if is_zero_from(file, scan.end)? {
        return Ok(true);
    }
    let length = scan.length - scan.end;
    if length > MAX_BATCH_BYTES {
        return Ok(false);
    }
    let mut tail = Vec::new();
    let mut from = file;
    from.seek(SeekFrom::Start(scan.end))?;
    from.take(length).read_to_end(&mut tail)?;
    Ok(judge(&tail, scan.end, scan.last + 1, header) == Verdict::Torn)
}

/// What the bytes from a bad frame on are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Torn,
    Damaged,
}

/// Judges the bytes from a bad frame to the end of the file: they start at `offset`, where entry `expected`
/// belongs.
pub(crate) fn judge(tail: &[u8], offset: u64, expected: u64, header: LogHeader) -> Verdict {
    let mut budget = CHECK_BUDGET;
    let mut first = None;
    let mut at = 1;
    while tail.len() - at.min(tail.len()) >= FRAME_OVERHEAD {
        let rest = &tail[at..];
        let head = FrameHead::decode(rest);
        if !is_plausible(head, rest.len(), tail.len(), expected, header) {
            at += 1;
            continue;
        }
        let Some(left) = budget.checked_sub(head.size()) else {
            return Verdict::Damaged;
        };
        budget = left;
        let end = FRAME_OVERHEAD + head.length as usize;
        if !head.matches(header.salt, &rest[FRAME_OVERHEAD..end]) {
            at += 1;
            continue;
        }
        if head.synced_through() >= expected {
            return Verdict::Damaged;
        }
        first.get_or_insert(at);
        at += end;
    }
    match first {
        Some(next) if !lost_a_block(&tail[..next], offset) => Verdict::Damaged,
        _ => Verdict::Torn,
    }
}

/// Whether a head could be one of this log, from `expected` on.
fn is_plausible(head: FrameHead, rest: usize, tail: usize, expected: u64, header: LogHeader) -> bool {
    let most = (tail / FRAME_OVERHEAD) as u64;
    head.sequence >= expected
        && head.sequence - expected <= most
        && head.size() <= rest as u64
        && head.synced_through() >= header.base
}

/// Whether the bytes between the bad frame and the next good one have a hole of zeros such as a block leaves
/// that was never written: all of a sector of the file, from the bad frame on.
fn lost_a_block(hole: &[u8], offset: u64) -> bool {
    let zero = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(|&byte| byte == 0);
    let first = (SECTOR - offset % SECTOR) as usize;
    match hole.split_at_checked(first) {
        Some((first, rest)) => zero(first) || rest.chunks_exact(SECTOR as usize).any(zero),
        None => false,
    }
}

/// Whether the file has only zeros from `offset` on.
fn is_zero_from(mut file: &File, offset: u64) -> io::Result<bool> {
    file.seek(SeekFrom::Start(offset))?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(read) if buffer[..read].iter().all(|&byte| byte == 0) => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
