//! What can be wrong with the files of a transcript.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use botmesh_core::error::{ChannelError, ErrorClass, Phase};

/// A file of a transcript cannot be used. Says which file (and line), what is wrong with it and what to do.
#[derive(Debug)]
pub struct TranscriptError {
    path: PathBuf,
    line: Option<u64>,
    problem: String,
    fix: &'static str,
    source: Option<io::Error>,
}

impl TranscriptError {
    pub(crate) fn new(path: &Path, problem: impl Into<String>, fix: &'static str) -> Self {
        Self { path: path.to_owned(), line: None, problem: problem.into(), fix, source: None }
    }

    pub(crate) fn io(path: &Path, doing: &str, error: io::Error) -> Self {
        let (problem, fix) = match error.kind() {
            io::ErrorKind::NotFound => ("it does not exist".into(), "check the path"),
            io::ErrorKind::PermissionDenied => {
                (format!("no permission to {doing} it"), "change its permissions or give another file")
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                ("the file system is read-only".into(), "give a file in a folder that can be written")
            }
            io::ErrorKind::StorageFull => ("no space is left".into(), "free some space and start again"),
            _ => (format!("cannot {doing} it"), "check the file and its disk"),
        };
        Self { source: Some(error), ..Self::new(path, problem, fix) }
    }

    pub(crate) fn at(mut self, line: u64) -> Self {
        self.line = Some(line);
        self
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The line, counted from 1, if it is about one.
    pub fn line(&self) -> Option<u64> {
        self.line
    }
}

impl fmt::Display for TranscriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        write!(f, "{}; {}", self.problem, self.fix)
    }
}

impl Error for TranscriptError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|error| error as &(dyn Error + 'static))
    }
}

impl From<TranscriptError> for ChannelError {
    fn from(error: TranscriptError) -> Self {
        ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, error.to_string())
    }
}
