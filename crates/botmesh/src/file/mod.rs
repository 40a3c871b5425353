//! The journals in one file: [`FileDurability`].

mod entry;
mod error;
mod options;
mod state;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::thread;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};

pub use self::options::FileOptions;

use self::entry::{CHANGE_OVERHEAD, OVERHEAD};
use self::error::{BACKEND, closed, thread_ended};
use self::state::State;
use self::writer::{Call, Message, Shared, Writer};
use crate::core::error::{StoreError, StoreErrorKind};
use crate::core::journal::KvDurability;
use crate::core::kv::{Caps, Cursor, Durable, DurableKv, Entry, MAX_KEY, Op, Outcome, Range};

/// The largest value of an entry in bytes: 16 MiB.
const MAX_VALUE: usize = 16 << 20;

/// The largest commit in bytes, with what its entry takes beside keys and values: 48 MiB.
const MAX_COMMIT: usize = 48 << 20;

/// Commits that may wait for the thread; further callers wait for room.
const QUEUE: usize = 1024;

/// The journals of one process in one file, without a database: a snapshot at the path, a log beside it (`.log`), and a
/// lock (`.lock`).
///
/// ```no_run
/// # async fn run() -> botmesh::Result {
/// use botmesh::{Durability, FileDurability};
///
/// let file = FileDurability::open("data/journals").await?;
/// let durability = Durability::new(file.clone()).with_instance_id("bot-1");
/// // … Bot::builder().durability(durability) …, and after `bot.run()`:
/// file.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// What is committed is on stable storage before the caller learns of it, and nothing that is not is ever shown. One
/// thread writes: while it waits for the disk, the next commits collect and then share one write and one sync.
///
/// All of it is kept in memory as well, so that nothing is read from the disk after opening: some 300 bytes for each
/// record beside its own bytes. Retention bounds it. Where that is too much, use a database.
///
/// Every [`compact_every`](FileOptions::compact_every) commits, and not before the log is as long as the snapshot, the
/// snapshot is written anew and the log emptied. Commits wait meanwhile, about a second for each few hundred megabytes;
/// reads do not. A log that is left over is always read at the next opening, whatever the options say.
///
/// Clones share the files. Several bots can: each has a scope of its own. When the last clone is gone, what was committed
/// is finished and the files are given back; [`close`](Self::close) waits for that.
///
/// After a write or sync that failed half-way everything is refused with
/// [`Corrupt`](StoreErrorKind::Corrupt) until the files are opened again, which reads back what the disk has. A full disk
/// is no such failure: the commit is refused with [`Full`](StoreErrorKind::Full), and the next may succeed.
#[derive(Clone, Debug)]
pub struct FileDurability {
    inner: Arc<Inner>,
    scope: Arc<str>,
}

#[derive(Debug)]
struct Inner {
    path: Arc<Path>,
    options: FileOptions,
    state: Arc<Shared>,
    messages: mpsc::Sender<Message>,
    ended: watch::Receiver<bool>,
}

impl FileDurability {
    /// Opens the journals at `path` with the defaults of [`FileOptions`]; makes the files and their folders if they are
    /// missing. New files can be read and written by their owner only, because they hold what customers wrote.
    ///
    /// # Errors
    /// The files cannot be used, and were left as they are. The message names the file and what to do. Kinds:
    /// [`Unavailable`](StoreErrorKind::Unavailable) (open already, in this process or another),
    /// [`Corrupt`](StoreErrorKind::Corrupt) (the snapshot is damaged or empty, or, as `AppendLogCorrupt` with file, line
    /// and offset, an entry in the middle of the log is),
    /// [`Incompatible`](StoreErrorKind::Incompatible) (a later version's, or another program's),
    /// [`UnsupportedFilesystem`](StoreErrorKind::UnsupportedFilesystem),
    /// [`Denied`](StoreErrorKind::Denied), [`Full`](StoreErrorKind::Full) and
    /// [`Misuse`](StoreErrorKind::Misuse) (no path of a file).
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, FileOptions::default()).await
    }

    /// Like [`open`](Self::open), with options.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Misuse`](StoreErrorKind::Misuse) too for options that cannot work, with the field in
    /// the error's source.
    pub async fn open_with(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, StoreError> {
        options.validate().map_err(|error| {
            StoreError::new(StoreErrorKind::Misuse, BACKEND, "open", "the options cannot work")
                .with_source(error)
        })?;
        let path = path.as_ref();
        let path: Arc<Path> = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()).into();
        let (messages, waiting) = mpsc::channel(QUEUE);
        let (end, ended) = watch::channel(false);
        let (ready, opened) = oneshot::channel();
        let inner = Inner { path, options, state: Arc::default(), messages, ended };
        let (path, options, state) =
            (Arc::clone(&inner.path), inner.options.clone(), Arc::clone(&inner.state));
        let main = move || {
            match Writer::open(path, &options, state) {
                Ok(writer) => {
                    // If the caller has gone, so have all handles.
                    drop(ready.send(Ok(())));
                    writer.run(waiting);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
            end.send_replace(true);
        };
        thread::Builder::new().name("file-journals".to_owned()).spawn(main).map_err(|error| {
            StoreError::new(
                StoreErrorKind::Unavailable,
                BACKEND,
                "open",
                "no thread can be started; raise the limit",
            )
            .with_source(error)
        })?;
        opened.await.unwrap_or_else(|_| Err(thread_ended("open", &inner.path)))?;
        Ok(Self { inner: Arc::new(inner), scope: "".into() })
    }

    /// Finishes what was committed, folds the log into the snapshot and gives the files back. Later calls, also of
    /// clones, are refused with [`Misuse`](StoreErrorKind::Misuse).
    ///
    /// # Errors
    /// Why the files had been given up before. That the log cannot be folded is only a warning: the next opening reads it.
    pub async fn close(&self) -> Result<(), StoreError> {
        // If it does not listen any more, it has ended or is about to.
        drop(self.inner.messages.send(Message::Close).await);
        if self.inner.ended.clone().wait_for(|ended| *ended).await.is_err() {
            return Err(thread_ended("close", &self.inner.path));
        }
        match &self.inner.state.read().refusal {
            Some(refusal) if refusal.kind() != StoreErrorKind::Misuse => Err(refusal.clone()),
            _ => Ok(()),
        }
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> Result<T, StoreError> {
        let state = self.inner.state.read();
        match &state.refusal {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(read(&state)),
        }
    }

    /// Why the thread takes no more.
    fn refusal(&self) -> StoreError {
        let path = &self.inner.path;
        let refusal = self.inner.state.read().refusal.clone();
        refusal.unwrap_or_else(|| closed("commit", path))
    }
}

#[async_trait]
impl DurableKv for FileDurability {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { inner: Arc::clone(&self.inner), scope: scope.into() })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        refuse_oversized(&self.scope, &ops)?;
        let (answer, answered) = oneshot::channel();
        let call = Call { scope: Arc::clone(&self.scope), ops, answer };
        if self.inner.messages.send(Message::Commit(call)).await.is_err() {
            return Err(self.refusal());
        }
        let ended = |_| Err(thread_ended("commit", &self.inner.path).with_unknown_effect());
        answered.await.unwrap_or_else(ended)
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.read(|state| {
            let table = state.table(&self.scope);
            keys.iter().map(|key| table?.get(key)).collect()
        })
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.read(|state| {
            state.table(&self.scope).map_or_else(Vec::new, |table| table.scan(range, after, limit))
        })
    }

    fn caps(&self) -> Caps {
        let durable = if self.inner.options.fsync { Durable::PowerLoss } else { Durable::ProcessCrash };
        Caps { durable, shared: false, max_value: MAX_VALUE, groups_commits: true }
    }

    async fn close(&self) -> Result<(), StoreError> {
        Self::close(self).await
    }
}

impl From<FileDurability> for KvDurability {
    fn from(file: FileDurability) -> Self {
        Self::new(Arc::new(file))
    }
}

fn refuse_oversized(scope: &str, ops: &[Op]) -> Result<(), StoreError> {
    let refuse = |what: &str, size: usize, limit: usize| {
        let message =
            format!("a {what} of {size} bytes; at most {limit} are taken, and nothing of it was written");
        Err(StoreError::new(StoreErrorKind::TooLarge, BACKEND, "commit", message))
    };
    for op in ops {
        match op {
            op if op.key().len() > MAX_KEY => return refuse("key", op.key().len(), MAX_KEY),
            Op::Put { value, .. } if value.len() > MAX_VALUE => {
                return refuse("value", value.len(), MAX_VALUE);
            }
            Op::Put { .. } | Op::Delete { .. } => {}
        }
    }
    let size = ops.iter().map(|op| op.size() + CHANGE_OVERHEAD).sum::<usize>() + OVERHEAD + scope.len();
    if size > MAX_COMMIT { refuse("commit", size, MAX_COMMIT) } else { Ok(()) }
}
