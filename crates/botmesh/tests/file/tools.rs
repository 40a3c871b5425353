//! What the tests share.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use botmesh::core::Bytes;
use botmesh::core::error::StoreError;
use botmesh::core::kv::{DurableKv, Entry, Expect, Index, Op, Outcome, Version};
use botmesh::{FileDurability, FileOptions};
use tokio::runtime::Runtime;

/// Bytes of a log without entries.
pub(crate) const EMPTY_LOG: u64 = 32;

/// A folder for the files of one journal.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("journals")
    }

    pub(crate) fn file(&self, suffix: &str) -> PathBuf {
        beside(&self.path(), suffix)
    }

    pub(crate) fn open(&self) -> Result<FileDurability, StoreError> {
        self.open_with(FileOptions::default())
    }

    pub(crate) fn open_with(&self, options: FileOptions) -> Result<FileDurability, StoreError> {
        block_on(FileDurability::open_with(self.path(), options))
    }

    /// The error of an opening that must be refused, in which nothing may be touched.
    pub(crate) fn refused(&self) -> StoreError {
        let bytes = || ["", ".log"].map(|suffix| std::fs::read(self.file(suffix)).ok());
        let before = bytes();
        let error = self.open().unwrap_err();
        assert_eq!(bytes(), before, "a refused opening changed a file");
        error
    }

    pub(crate) fn length(&self, suffix: &str) -> u64 {
        std::fs::metadata(self.file(suffix)).map_or(0, |meta| meta.len())
    }
}

pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let build =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    RUNTIME.get_or_init(build).block_on(future)
}

pub(crate) fn put(key: impl Into<Bytes>, expect: Expect, value: impl Into<Bytes>) -> Op {
    let index = Index { due: Some(botmesh::core::time::Timestamp::from_millis(1)), list: Some((1, 1)) };
    Op::Put { key: key.into(), expect, value: value.into(), index }
}

pub(crate) fn create(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Op {
    put(key, Expect::Absent, value)
}

pub(crate) fn commit(kv: &dyn DurableKv, op: Op) -> Version {
    applied(block_on(kv.commit(vec![op])).unwrap()[0])
}

pub(crate) fn applied(outcome: Outcome) -> Version {
    match outcome {
        Outcome::Applied(version) => version,
        conflict @ Outcome::Conflict(_) => panic!("{conflict:?}"),
    }
}

pub(crate) fn get(kv: &dyn DurableKv, key: impl Into<Bytes>) -> Option<Entry> {
    block_on(kv.get(&[key.into()])).unwrap().remove(0)
}

pub(crate) fn close(file: &FileDurability) {
    block_on(file.close()).unwrap();
}

const ROLE: &str = "BOTMESH_FILE_ROLE";
const PATH: &str = "BOTMESH_FILE_PATH";

/// A command that runs this binary again in a role, on the journals at `path`; `wrapper` comes before it.
pub(crate) fn child(wrapper: &[&str], role: &str, path: &Path) -> Command {
    let binary = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(AsRef::as_ref).chain([binary.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--exact", "processes::child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(PATH, path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// The role and the path that this process was started with.
pub(crate) fn as_child() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(PATH)?.into()))
}
