//! What is read: a file, or messages that come over a pipe.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::error::TranscriptError;
use crate::lines::{BadLine, Lines, Problem};

/// The longest id that a bot takes.
const MAX_ID: usize = 512;

/// What errors call a pipe.
const PIPE: &str = "the piped messages";
const PIPED: &str = "write the id, a TAB, the chat, a TAB and the text";

/// One message of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) event: String,
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
            let refuse = |(problem, fix)| TranscriptError::new(self.path, problem, fix).at(line);
            if line == 1 && text.starts_with('\u{feff}') {
                let problem = "it begins with a byte order mark".to_owned();
                return Err(refuse((problem, "save the file as UTF-8 without one")));
            }
            let form = "write the chat, a TAB and the text";
            return split(line.to_string(), &text, form).map(Some).map_err(refuse);
        }
    }

    fn bad_line(&self, bad: BadLine) -> TranscriptError {
        bad_line(self.path, bad)
    }
}

/// Messages that come over a pipe, with their ids.
pub(super) struct Piped<R>(Lines<R>);

impl<R: BufRead> Piped<R> {
    pub(super) fn new(input: R) -> Self {
        Self(Lines::new(input))
    }

    /// The next message; nothing follows an error.
    pub(super) fn next(&mut self) -> Result<Option<Message>, TranscriptError> {
        let path = Path::new(PIPE);
        loop {
            let Some((line, text)) = self.0.next().map_err(|bad| bad_line(path, bad))? else {
                return Ok(None);
            };
            if text.is_empty() {
                continue;
            }
            let refuse = |(problem, fix)| TranscriptError::new(path, problem, fix).at(line);
            let Some((event, message)) = text.split_once('\t') else {
                return Err(refuse(("there is no TAB".into(), PIPED)));
            };
            must_be_id("id", event, PIPED).map_err(refuse)?;
            return split(event.to_owned(), message, PIPED).map(Some).map_err(refuse);
        }
    }
}

fn bad_line(path: &Path, bad: BadLine) -> TranscriptError {
    match bad.problem {
        Problem::Unreadable(error) => TranscriptError::io(path, "read", error),
        problem => TranscriptError::new(path, problem.to_string(), problem.fix()),
    }
    .at(bad.number)
}

type Refused = (String, &'static str);

fn split(event: String, text: &str, form: &'static str) -> Result<Message, Refused> {
    let Some((chat, text)) = text.split_once('\t') else {
        return Err(("there is no TAB".into(), form));
    };
    must_be_id("chat", chat, form)?;
    Ok(Message { event, chat: chat.into(), text: text.into() })
}

fn must_be_id(what: &str, id: &str, form: &'static str) -> Result<(), Refused> {
    if id.is_empty() {
        return Err((format!("there is no {what} before the TAB"), form));
    }
    if id.len() > MAX_ID {
        return Err((format!("the {what} is longer than {MAX_ID} bytes"), "use a shorter name"));
    }
    Ok(())
}
