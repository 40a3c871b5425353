//! Ends the servers when the process that started them ends, even by SIGKILL.
//!
//! A parent-death signal would not do: it is bound to the thread that started the server, and the threads of tests are
//! short-lived. So one `sh` for each process reads from a pipe which servers there are; when the pipe closes, it kills
//! them and removes their files.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use tempfile::TempDir;

use crate::{Error, Result, failed};

/// Signals of the terminal reach it as little as its servers: it ends when its pipe does.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
pids=
while read -r verb pid; do
    kept=
    for other in $pids; do [ "$other" = "$pid" ] || kept="$kept $other"; done
    pids=$kept
    [ "$verb" = forget ] || pids="$pids $pid"
done
for pid in $pids; do kill -9 "-$pid"; done
rm -rf "$1"
"#;

pub(crate) struct Watchdog {
    pipe: Mutex<ChildStdin>,
    root: TempDir,
}

static WATCHDOG: OnceLock<Result<Watchdog>> = OnceLock::new();

impl Watchdog {
    /// The one of this process.
    pub(crate) fn get() -> Result<&'static Self> {
        WATCHDOG.get_or_init(Self::start).as_ref().map_err(Error::clone)
    }

    fn start() -> Result<Self> {
        let root = tempfile::Builder::new()
            .prefix("botmesh-servers-")
            .tempdir()
            .map_err(failed("no temporary folder for the servers"))?;
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "botmesh-watchdog"])
            .arg(root.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()
            .map_err(failed("the watchdog of the servers, a `sh`, cannot be started"))?;
        let pipe = child.stdin.take().ok_or_else(|| Error("the watchdog has no pipe".into()))?;
        Ok(Self { pipe: Mutex::new(pipe), root })
    }

    /// Where the servers of this process have their folders; removed when it ends.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// From now on `pid` does not outlive this process.
    pub(crate) fn watch(&self, pid: u32) -> Result {
        self.tell("watch", pid).map_err(failed("the watchdog of the servers is gone"))
    }

    /// To be called before the process is reaped, when its number may become another's.
    pub(crate) fn forget(&self, pid: u32) {
        // Without a watchdog nobody would kill it.
        drop(self.tell("forget", pid));
    }

    fn tell(&self, verb: &str, pid: u32) -> io::Result<()> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        pipe.write_all(format!("{verb} {pid}\n").as_bytes())
    }
}
