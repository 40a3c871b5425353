//! The file that is read.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use crate::error::TranscriptError;
use crate::lines::{BadLine, Lines, Problem};

/// The longest id that a bot takes.
const MAX_CHAT: usize = 512;

/// One message of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) line: u64,
    pub(super) chat: String,
    pub(super) text: String,
}

#[derive(Debug)]
pub(super) struct Input {
    path: PathBuf,
}

impl Input {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole file and counts its messages.
    pub(super) fn check(&self) -> Result<u64, TranscriptError> {
        let mut messages = self.messages()?;
        let mut count = 0;
        while messages.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Reading a file while its own answers are appended to it would never end.
    pub(super) fn must_differ_from(&self, other: &Path) -> Result<(), TranscriptError> {
        let (Ok(this), Ok(that)) = (fs::canonicalize(&self.path), fs::canonicalize(other)) else {
            return Ok(());
        };
        if this == that {
            let problem = "it is both the transcript to read and the one to write";
            return Err(TranscriptError::new(other, problem, "give two different files"));
        }
        Ok(())
    }

    pub(super) fn messages(&self) -> Result<Messages<'_>, TranscriptError> {
        must_be_regular(&self.path)?;
        let file = File::open(&self.path).map_err(|error| TranscriptError::io(&self.path, "read", error))?;
        Ok(Messages { path: &self.path, lines: Lines::new(BufReader::with_capacity(1 << 16, file)) })
    }
}

/// A pipe or a device cannot be read twice, and opening one may wait forever.
pub(super) fn must_be_regular(path: &Path) -> Result<(), TranscriptError> {
    let kind = fs::metadata(path).map_err(|error| TranscriptError::io(path, "read", error))?.file_type();
    if kind.is_dir() {
        return Err(TranscriptError::new(path, "it is a folder", "give a file"));
    }
    if !kind.is_file() {
        return Err(TranscriptError::new(path, "it is a pipe or a device", "give a regular file"));
    }
    Ok(())
}

pub(super) struct Messages<'a> {
    path: &'a Path,
    lines: Lines<BufReader<File>>,
}

impl Messages<'_> {
    /// The next message; nothing follows an error.
    pub(super) fn next(&mut self) -> Result<Option<Message>, TranscriptError> {
        loop {
            let Some((line, text)) = self.lines.next().map_err(|bad| self.bad_line(bad))? else {
                return Ok(None);
            };
            if text.is_empty() {
                continue;
            }
            return split(line, &text)
                .map(Some)
                .map_err(|(problem, fix)| TranscriptError::new(self.path, problem, fix).at(line));
        }
    }

    fn bad_line(&self, bad: BadLine) -> TranscriptError {
        match bad.problem {
            Problem::Unreadable(error) => TranscriptError::io(self.path, "read", error),
            problem => TranscriptError::new(self.path, problem.to_string(), problem.fix()),
        }
        .at(bad.number)
    }
}

fn split(line: u64, text: &str) -> Result<Message, (String, &'static str)> {
    if line == 1 && text.starts_with('\u{feff}') {
        return Err(("it begins with a byte order mark".into(), "save the file as UTF-8 without one"));
    }
    let Some((chat, text)) = text.split_once('\t') else {
        return Err(("there is no TAB".into(), "write the chat, a TAB and the text"));
    };
    if chat.is_empty() {
        return Err(("there is no chat before the TAB".into(), "write the chat, a TAB and the text"));
    }
    if chat.len() > MAX_CHAT {
        return Err((format!("the chat is longer than {MAX_CHAT} bytes"), "use a shorter name"));
    }
    Ok(Message { line, chat: chat.into(), text: text.into() })
}
