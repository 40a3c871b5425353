//! One process of the desk, fed through a pipe.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::child::Place;

/// It is killed when dropped.
pub(super) struct Replica {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    pub(super) frozen: bool,
}

/// Where and how replicas run.
pub(super) struct Setting<'a> {
    pub(super) place: &'a Place,
    pub(super) url: &'a str,
    pub(super) lease: Duration,
    /// Hears of each message that a replica took over.
    pub(super) taken: mpsc::Sender<usize>,
}

impl Replica {
    pub(super) fn start(setting: &Setting<'_>, name: &'static str) -> Self {
        let Setting { place, url, lease, taken } = setting;
        let mut command = place.bare_command();
        command.args(["--redis", url, "--instance", name, "--lease", &format!("{}ms", lease.as_millis())]);
        command.args(["--from", "-", "--to"]).arg(place.path("out")).stdin(Stdio::piped());
        let mut child = command.spawn().expect("the example starts");
        let lines = BufReader::new(child.stdout.take().expect("the output is piped")).lines();
        let taken = taken.clone();
        let listen = move || {
            // A line that was cut off is no number.
            for id in lines.map_while(Result::ok).filter_map(|line| line.parse().ok()) {
                if taken.send(id).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().spawn(listen).expect("a thread");
        let input = child.stdin.take();
        Self { name, child, input, frozen: false }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// A process that is gone takes nothing: the message is then given again.
    pub(super) fn give(&mut self, id: usize, chat: &str, text: &str) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{id}\t{chat}\t{text}");
        }
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().expect("the replica can be killed");
        self.child.wait().expect("the replica can be waited for");
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the replica can be waited for").is_some()
    }

    pub(super) fn freeze(&mut self) {
        self.signal("STOP");
        self.frozen = true;
    }

    pub(super) fn thaw(&mut self) {
        self.signal("CONT");
        self.frozen = false;
    }

    pub(super) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "the signal cannot be sent");
    }

    /// Ends its input, or waits for the end that it was asked for otherwise; it must end well.
    pub(super) fn end(&mut self, place: &Place) {
        self.input = None;
        let status = place.wait(&mut self.child);
        // After standing still it may find that others took over all it owned.
        let superseded = || place.complaints().contains("other processes took over what it owned");
        assert!(status.success() || superseded(), "{}: {status}\n{}", self.name, place.complaints());
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
