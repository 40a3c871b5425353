//! What the tests share.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::kv::{DurableKv, Entry, Expect, Index, Op, Outcome, Version};

/// Names the database to a test that runs as a child process.
const CHILD: &str = "BOTMESH_SQLITE_CHILD";

/// A command that runs the test `name` of this binary as a process of its own, on the database at `path`.
pub(crate) fn child(name: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, path);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// The database that this process was started for as a child.
pub(crate) fn for_child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap().block_on(future)
}

#[expect(clippy::disallowed_methods, reason = "the tests have no bot whose spawner they could use")]
pub(crate) fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

/// Looks until `holds`, for a minute at least.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if holds() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("{what} did not happen in a minute");
}

pub(crate) fn put_at(key: impl AsRef<[u8]>, expect: Expect, value: impl AsRef<[u8]>, index: Index) -> Op {
    let (key, value) = (Bytes::copy_from_slice(key.as_ref()), Bytes::copy_from_slice(value.as_ref()));
    Op::Put { key, expect, value, index }
}

pub(crate) fn create(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Op {
    put_at(key, Expect::Absent, value, Index::default())
}

/// The version of a write that must apply.
pub(crate) fn version(outcome: &Outcome) -> Version {
    match outcome {
        Outcome::Applied(version) => *version,
        conflict @ Outcome::Conflict(_) => panic!("{conflict:?}"),
    }
}

pub(crate) fn all_applied(outcomes: &[Outcome]) {
    for outcome in outcomes {
        version(outcome);
    }
}

pub(crate) async fn get(kv: &dyn DurableKv, key: impl AsRef<[u8]>) -> Option<Entry> {
    kv.get(&[Bytes::copy_from_slice(key.as_ref())]).await.unwrap().remove(0)
}

/// The file beside `path` whose name ends in `suffix`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

/// The length of a file; 0 if there is none.
pub(crate) fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |meta| meta.len())
}

/// A file system in memory, which is unmounted at the end.
pub(crate) struct Mount {
    folder: tempfile::TempDir,
}

impl Mount {
    /// `None`, with a word about it, where this process may not mount.
    pub(crate) fn tmpfs(test: &str, size: &str) -> Option<Self> {
        Self::new(test, "tmpfs", &format!("size={size}"))
    }

    /// As [`tmpfs`](Self::tmpfs), of any kind.
    pub(crate) fn new(test: &str, kind: &str, options: &str) -> Option<Self> {
        let mount = Self { folder: tempfile::tempdir().unwrap() };
        if mount.call("mount", &["-i", "-t", kind, "-o", options, "botmesh-test"]) {
            return Some(mount);
        }
        println!("not run: {test} ({kind} cannot be mounted here; it needs root)");
        None
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Whether it could be made read-only.
    pub(crate) fn make_read_only(&self) -> bool {
        self.call("mount", &["-o", "remount,ro"])
    }

    fn call(&self, program: &str, arguments: &[&str]) -> bool {
        let output = Command::new(program).args(arguments).arg(self.path()).output();
        output.is_ok_and(|output| output.status.success())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.call("umount", &["-l"]);
    }
}
