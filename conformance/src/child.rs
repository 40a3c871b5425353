//! A process of its own that a case can kill.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Place;

/// How to start this program again as a process that a case kills in the middle of a handler.
#[derive(Clone, Debug)]
pub struct Child {
    program: PathBuf,
    args: Vec<OsString>,
}

/// What a child is told: which backend, where, and what to do there.
pub(crate) const CHILD_FLAG: &str = "child-of-the-crash-suite";

impl Child {
    /// `program` with `args`, and after them those of the child. The program must hand all of its arguments to
    /// [`cli::Command::main`](crate::cli::Command::main).
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = OsString>) -> Self {
        Self { program: program.into(), args: args.into_iter().collect() }
    }

    /// The command of a child over the data of `backend` at `place`.
    pub(crate) fn command(&self, backend: &str, place: &Place, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).arg(format!("--{CHILD_FLAG}")).arg(backend).arg(place.id()).arg(folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}
