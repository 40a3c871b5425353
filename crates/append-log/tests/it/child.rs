//! This test binary once more, as a process of its own that can be killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use botmesh_append_log::{AppendLog, AppendLogError, Options, SyncPolicy};

use crate::support::{entries, payload};

const ROLE: &str = "BOTMESH_APPEND_LOG_ROLE";
const PATH: &str = "BOTMESH_APPEND_LOG_PATH";

/// A running child. It is killed when dropped.
pub(crate) struct Process {
    child: Child,
    lines: BufReader<ChildStderr>,
}

impl Process {
    pub(crate) fn start(role: &str, path: &Path) -> Self {
        Self::start_under(&[], role, path)
    }

    /// Starts the child with a command before its own, such as `unshare`.
    pub(crate) fn start_under(wrapper: &[&str], role: &str, path: &Path) -> Self {
        let binary = std::env::current_exe().unwrap();
        let arguments = ["--exact", "child::process", "--ignored", "--nocapture", "--test-threads=1"];
        let mut words = wrapper.iter().map(AsRef::as_ref).chain([binary.as_os_str()]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .args(arguments)
            .env(ROLE, role)
            .env(PATH, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Self { child, lines }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that the child says; empty at its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Kills the child with SIGKILL, waits for its end and returns what it had still said.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "the process that other tests start"]
fn process() {
    let (Ok(role), Some(path)) = (std::env::var(ROLE), std::env::var_os(PATH)) else {
        return;
    };
    let path = PathBuf::from(path);
    match role.as_str() {
        "append" => append_for_ever(&path, SyncPolicy::PowerLoss),
        "append-os" => append_for_ever(&path, SyncPolicy::Os),
        "append-bulk" => append_bulk(&path),
        "hold" => hold(&path),
        "fill" => fill(&path),
        _ => panic!("{role}"),
    }
}

/// One write, so that a line is never torn.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Appends in batches of one to four, compacts now and then, and says each sequence number once it is
/// acknowledged.
fn append_for_ever(path: &Path, sync: SyncPolicy) {
    let options = Options::default().with_compact_entries(24).with_sync(sync);
    let mut log = AppendLog::open(path, options).unwrap();
    let mut state: Vec<Vec<u8>> = log.snapshot().unwrap().into_iter().flatten().map(Result::unwrap).collect();
    state.extend(entries(&log).into_iter().map(|(_, payload)| payload));
    loop {
        let first = log.last_sequence() + 1;
        let batch: Vec<_> = (first..=first + first % 4).map(payload).collect();
        let sequences = log.append_batch(&batch).unwrap();
        say(&format!("ack {}", sequences.end - 1));
        state.extend(batch);
        if log.needs_compaction() {
            log.compact(&state).unwrap();
        }
    }
}

/// Appends batches so large that a kill falls into the middle of a write.
fn append_bulk(path: &Path) {
    let mut log = AppendLog::open(path, Options::default().with_sync(SyncPolicy::Os)).unwrap();
    loop {
        let first = log.last_sequence() + 1;
        let sequences = log.append_batch(&[bulk(first), bulk(first + 1), bulk(first + 2)]).unwrap();
        say(&format!("ack {}", sequences.end - 1));
    }
}

/// What entry `number` of [`append_bulk`] holds.
pub(crate) fn bulk(number: u64) -> Vec<u8> {
    vec![number as u8; 1_000_000 + (number as usize * 7919) % 100_000]
}

/// Says whether the journal could be opened, and keeps it until its input ends.
fn hold(path: &Path) {
    match AppendLog::open(path, Options::default()) {
        Ok(_log) => {
            say("open");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        Err(AppendLogError::Locked { .. }) => say("locked"),
        Err(error) => say(&format!("{error:?}")),
    }
}

/// Appends until there is no more room, and once more.
fn fill(path: &Path) {
    let mut log = AppendLog::open(path, Options::default()).unwrap();
    let error = loop {
        if let Err(error) = log.append(&[7; 1000]) {
            break error;
        }
    };
    let kind =
        if matches!(error, AppendLogError::Full { .. }) { "full".into() } else { format!("{error:?}") };
    let length = std::fs::metadata(crate::support::with_suffix(path, ".log")).unwrap().len();
    let after = log.append(b"small").unwrap();
    say(&format!("{kind} {length} {after}"));
}
