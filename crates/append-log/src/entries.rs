//! Reading the log back.

use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use crate::AppendLogError;
use crate::frame::LOG_HEADER;
use crate::scan::read_frame;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its sequence number, from 1; it goes on over compactions and never restarts.
    pub sequence: u64,
    /// The bytes that were appended.
    pub payload: Vec<u8>,
}

/// The entries that the snapshot does not hold, oldest first: [`AppendLog::entries`](crate::AppendLog::entries).
///
/// Ends after the first error.
#[derive(Debug)]
pub struct Entries {
    file: PathBuf,
    reader: BufReader<File>,
    salt: u64,
    /// Entries up to this one are in the snapshot.
    covered: u64,
    line: u64,
    offset: u64,
    end: u64,
}

impl Entries {
    pub(crate) fn open(file: PathBuf, salt: u64, covered: u64, end: u64) -> Result<Self, AppendLogError> {
        let offset = LOG_HEADER as u64;
        let mut log = File::open(&file).map_err(|error| AppendLogError::io(&file, "open", error))?;
        log.seek(SeekFrom::Start(offset)).map_err(|error| AppendLogError::io(&file, "read", error))?;
        Ok(Self { file, reader: BufReader::new(log), salt, covered, line: 0, offset, end })
    }

    fn read(&mut self) -> Result<Option<Entry>, AppendLogError> {
        while self.offset < self.end {
            self.line += 1;
            let mut payload = Vec::new();
            let head = read_frame(&mut self.reader, self.salt, self.end - self.offset, &mut payload)
                .map_err(|error| AppendLogError::io(&self.file, "read", error))?
                .ok_or_else(|| AppendLogError::corrupt(&self.file, self.line, self.offset))?;
            self.offset += head.size();
            if head.sequence > self.covered {
                return Ok(Some(Entry { sequence: head.sequence, payload }));
            }
        }
        Ok(None)
    }
}

impl Iterator for Entries {
    type Item = Result<Entry, AppendLogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.read().transpose();
        if matches!(entry, Some(Err(_))) {
            self.end = self.offset;
        }
        entry
    }
}
