//! A server's process: start, kill, freeze and thaw.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use crate::watchdog::Watchdog;
use crate::{Error, Result, failed};

/// How much of its log is shown when a server does not start.
const LOG_LINES: usize = 20;

/// Waits for a line before it becomes the server. If the starting process dies first, it ends; once the line is there, the
/// watchdog knows of it.
const GATE: &str = r#"read -r _ && exec "$@""#;

/// A running process. It is killed when dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
    frozen: bool,
}

impl Process {
    /// Starts `program` with its output appended to `log`.
    pub(crate) fn start(program: &Path, args: &[OsString], log: &Path) -> Result<Self> {
        let watchdog = Watchdog::get()?;
        let what = format!("{} cannot be started", program.display());
        let output = File::options().create(true).append(true).open(log).map_err(failed(&what))?;
        let errors = output.try_clone().map_err(failed(&what))?;
        let mut child = Command::new("sh")
            .args(["-c", GATE, "botmesh-server"])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(failed(&what))?;
        let gate = child.stdin.take();
        let process = Self { child, log: log.into(), frozen: false };
        watchdog.watch(process.child.id())?;
        gate.ok_or_else(|| Error(what.clone()))?.write_all(b"\n").map_err(failed(&what))?;
        Ok(process)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error with the end of its log, if it is not running any more.
    pub(crate) fn check(&mut self) -> Result {
        match self.child.try_wait().map_err(failed("a server's process cannot be asked for its state"))? {
            None => Ok(()),
            Some(status) => {
                Err(Error(format!("the server ended ({status}); its log ends with:\n{}", self.log())))
            }
        }
    }

    /// The last lines of its log.
    pub(crate) fn log(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().collect::<Vec<_>>();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Stops it where it stands, with its connections open. When this returns it does nothing more.
    pub(crate) fn freeze(&mut self) -> Result {
        self.frozen = true;
        self.signal(Signal::STOP)?;
        let until = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()?), until).map(drop).map_err(failed("the server did not stop"))
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Lets it go on.
    pub(crate) fn thaw(&mut self) -> Result {
        self.frozen = false;
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result {
        kill_process(self.pid()?, signal).map_err(failed("the server cannot be sent a signal"))
    }

    fn pid(&self) -> Result<Pid> {
        let number = i32::try_from(self.id()).ok();
        number.and_then(Pid::from_raw).ok_or_else(|| Error("the server has no process number".into()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // With those that it started to write its files. Once it is reaped its number may be another's.
        if let (Ok(None), Ok(pid)) = (self.child.try_wait(), self.pid()) {
            kill_process_group(pid, Signal::KILL).ok();
        }
        if let Ok(watchdog) = Watchdog::get() {
            watchdog.forget(self.id());
        }
        drop(self.child.wait());
    }
}

/// Looks for `name` in the folders of `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
