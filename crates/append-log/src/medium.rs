//! The three operations that the log does on its file, behind a trait so that tests can make them fail.

use std::fs::File;
use std::io;

use crate::sys;

pub(crate) trait Medium: Send {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts or grows the file to `length` bytes.
    fn set_len(&mut self, length: u64) -> io::Result<()>;
    /// Returns once the data, and what is needed to find it again, is on stable storage.
    fn sync(&mut self) -> io::Result<()>;
}

impl Medium for File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        sys::write_all_at(self, bytes, offset)
    }

    fn set_len(&mut self, length: u64) -> io::Result<()> {
        File::set_len(self, length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
