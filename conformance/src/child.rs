//! A process of its own that a case can kill.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Place;

/// How to start this program again as a process that a case stops or kills.
#[derive(Clone, Debug)]
pub struct Child {
    program: PathBuf,
    args: Vec<OsString>,
}

/// What a child is told: which backend, where, and what to do there.
pub(crate) const CHILD_FLAG: &str = "child-of-a-case";

impl Child {
    /// `program` with `args`, and after them those of the child. The program must hand all of its arguments to
    /// [`cli::Command::main`](crate::cli::Command::main).
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = OsString>) -> Self {
        Self { program: program.into(), args: args.into_iter().collect() }
    }

    /// The command of a child that does `work` over the data of `backend` at `place`.
    pub(crate) fn command(&self, backend: &str, place: &Place, folder: &Path, work: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .arg(format!("--{CHILD_FLAG}"))
            .arg(backend)
            .arg(place.id())
            .arg(folder)
            .arg(work);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}
