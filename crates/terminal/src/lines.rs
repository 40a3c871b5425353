//! Lines of text from a reader, with a limit, so that a file without line ends is never held in memory.

use std::fmt;
use std::io::{self, BufRead, Read};

/// The longest line that is taken, without its line end.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// Reads lines that end with `\n` or `\r\n`; the last one may end with the input.
pub(crate) struct Lines<R> {
    input: R,
    number: u64,
}

/// A line that is no text, or the failure to read it.
#[derive(Debug)]
pub(crate) struct BadLine {
    pub(crate) number: u64,
    pub(crate) problem: Problem,
}

#[derive(Debug)]
pub(crate) enum Problem {
    TooLong,
    NotUtf8 { byte: usize },
    Unreadable(io::Error),
}

impl Problem {
    pub(crate) fn fix(&self) -> &'static str {
        match self {
            Self::TooLong => "split it into shorter messages",
            Self::NotUtf8 { .. } => "convert the input to UTF-8",
            Self::Unreadable(_) => "check where the input comes from",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "it is longer than {} MiB", MAX_LINE >> 20),
            Self::NotUtf8 { byte } => write!(f, "byte {byte} of it is not valid UTF-8"),
            Self::Unreadable(_) => f.write_str("it cannot be read"),
        }
    }
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, number: 0 }
    }

    /// The next line and its number, counted from 1.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, String)>, BadLine> {
        self.number += 1;
        let number = self.number;
        let bad = |problem| BadLine { number, problem };
        let mut bytes = Vec::new();
        let longest = MAX_LINE as u64 + 2;
        let read = self.input.by_ref().take(longest).read_until(b'\n', &mut bytes);
        if read.map_err(|error| bad(Problem::Unreadable(error)))? == 0 {
            return Ok(None);
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if bytes.len() > MAX_LINE {
            return Err(bad(Problem::TooLong));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some((number, text))),
            Err(error) => {
                let byte = error.utf8_error().valid_up_to() + 1;
                Err(bad(Problem::NotUtf8 { byte }))
            }
        }
    }
}
