//! A replica's process.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::real;

/// How to start a replica.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// What it says of itself goes to the end of this file.
    pub(super) log: PathBuf,
}

/// It is killed when this is dropped.
pub(super) struct Process {
    child: Child,
    stands_still: bool,
}

impl Process {
    /// The thread that starts it must live as long as it does: the process ends with it.
    pub(super) fn start(spec: &Spec) -> io::Result<Self> {
        let log = File::options().create(true).append(true).open(&spec.log)?;
        let child = Command::new(&spec.program)
            .args(&spec.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Self { child, stands_still: false })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    pub(super) fn stands_still(&self) -> bool {
        self.stands_still
    }

    /// SIGKILL, and waits until it is gone.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// SIGSTOP. When this returns it does nothing more.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        self.stands_still = true;
        waitid(
            WaitId::Pid(self.pid()?),
            WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        )?;
        Ok(())
    }

    pub(super) fn go_on(&mut self) -> io::Result<()> {
        self.stands_still = false;
        self.signal(Signal::CONT)
    }

    /// SIGTERM, and waits until it has ended; its status, or none if it takes longer than `limit`.
    pub(super) fn terminate(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        self.signal(Signal::TERM)?;
        let mut status = None;
        real::within(limit, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        Ok(status)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(self.pid()?, signal)?)
    }

    fn pid(&self) -> io::Result<Pid> {
        let number = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        number.ok_or_else(|| io::Error::other("the process has no number"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It fails only if it has ended already.
        drop(self.kill());
    }
}
