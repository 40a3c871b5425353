//! The threads and connections of one open file.
//!
//! One thread owns the connection that writes, two own connections that read: one for rows by key, one for ranges, so
//! that a long range never delays a lookup. Callers talk to them over bounded queues and are answered directly: a call
//! is two wake-ups, and nothing blocks the runtime.
//!
//! A second client of the same file ([`Client::beside`]) serves what nothing may delay, by threads and connections of its
//! own. SQLite lets one connection write at a time and does not queue those that wait, so the first client gives way.

mod queue;
mod reader;
mod wal;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use botmesh_core::error::{Effect, StoreError, StoreErrorKind};
use tokio::sync::{oneshot, watch};

use self::queue::Queue;
pub(crate) use self::reader::Reading;
use self::writer::WEIGHT_BYTES;
use self::writer::{Call, Turn, Way, Write, Writer};
pub(crate) use self::writer::{Tx, begin, patiently};
use crate::config::{SqliteConfig, Synchronous};
use crate::error::{BACKEND, Fault};
use crate::schema;

/// What one queue holds at most: writes of this weight, see [`weight`].
const WRITES: u32 = 4096;

/// What one queue holds at most, in reads.
const READS: u32 = 1024;

/// Which connection serves a read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane {
    /// Rows by key.
    Rows = 0,
    /// Ranges.
    Ranges = 1,
}

type Writes = Queue<Box<dyn Write>>;
type Reads = Queue<reader::Job>;

/// One open file. When the last clone of the handle around it goes, its threads finish what is queued and end.
pub(crate) struct Client {
    path: Arc<Path>,
    config: SqliteConfig,
    writes: Arc<Writes>,
    reads: [Arc<Reads>; 2],
    ended: watch::Receiver<bool>,
    gate: Arc<Gate>,
}

/// Held by the writer that goes first, for each of its transactions. The other one waits for it before it begins one.
pub(crate) type Gate = Mutex<()>;

/// What a write counts in queues and groups: one for each row, and one for each [`WEIGHT_BYTES`].
pub(crate) fn weight(rows: usize, bytes: usize) -> u32 {
    u32::try_from(rows + bytes / WEIGHT_BYTES).unwrap_or(u32::MAX).max(1)
}

impl Client {
    /// Opens the file on a thread of its own, which then becomes the one that writes.
    pub(crate) async fn open(path: &Path, config: SqliteConfig) -> Result<Self, StoreError> {
        Self::open_at(path, config, Arc::default(), Turn::Second).await
    }

    /// Opens the same file again, for writes that go first. They wait for no sync: a power failure that undoes them ends
    /// every process that knows of them.
    pub(crate) async fn beside(&self) -> Result<Self, StoreError> {
        let config = self.config.clone().with_synchronous(Synchronous::Normal);
        Self::open_at(&self.path, config, Arc::clone(&self.gate), Turn::First).await
    }

    async fn open_at(
        path: &Path,
        config: SqliteConfig,
        gate: Arc<Gate>,
        turn: Turn,
    ) -> Result<Self, StoreError> {
        config.validate().map_err(|error| {
            StoreError::new(StoreErrorKind::Misuse, BACKEND, "open", "the configuration cannot work")
                .with_source(error)
        })?;
        let path: Arc<Path> = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()).into();
        let writes = Arc::new(Queue::new(WRITES));
        let reads = [Arc::new(Queue::new(READS)), Arc::new(Queue::new(READS))];
        let (end, ended) = watch::channel(false);
        let (ready, opened) = oneshot::channel();
        let way = Way { gate: Arc::clone(&gate), turn };
        let client = Self { path: Arc::clone(&path), config: config.clone(), writes, reads, ended, gate };
        let writes = Arc::clone(&client.writes);
        let reads = client.reads.clone();
        let main = move || {
            match start(&path, &config, &writes, &reads, way) {
                Ok((writer, readers)) => {
                    if ready.send(Ok(())).is_ok() {
                        writer.run(readers);
                    }
                }
                Err(error) => drop(ready.send(Err(error))),
            }
            end.send_replace(true);
        };
        thread::Builder::new().name("sqlite-writer".to_owned()).spawn(main).map_err(no_thread)?;
        opened.await.unwrap_or_else(|_| Err(client.thread_ended("open")))?;
        Ok(client)
    }

    pub(crate) fn config(&self) -> &SqliteConfig {
        &self.config
    }

    /// Runs `run` in a transaction together with what else is waiting, and answers after the commit. `run` is called
    /// again if the transaction had to be repeated, so it must not consume what it holds.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        weight: u32,
        run: impl FnMut(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let call = Call::new(run, reply, operation, Arc::clone(&self.path));
        if self.writes.push(weight, Box::new(call)).await.is_err() {
            return Err(self.closed(operation));
        }
        answer.await.unwrap_or_else(|_| Err(self.thread_ended(operation).with_unknown_effect()))
    }

    /// Runs `run` on a connection that sees every write that was acknowledged before this call.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        lane: Lane,
        operation: &'static str,
        run: impl FnOnce(&mut Reading<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let path = Arc::clone(&self.path);
        let job: reader::Job = Box::new(move |reading| {
            let result = run(reading).map_err(|fault| fault.error(operation, &path, Effect::None));
            // The caller may have gone.
            drop(reply.send(result));
        });
        if self.reads[lane as usize].push(1, job).await.is_err() {
            return Err(self.closed(operation));
        }
        answer.await.unwrap_or_else(|_| Err(self.thread_ended(operation)))
    }

    /// Finishes what is queued, empties the write-ahead log if nobody else uses it, and ends the threads.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        self.shut();
        match self.ended.clone().wait_for(|ended| *ended).await {
            Ok(_) => Ok(()),
            Err(_) => Err(self.thread_ended("close")),
        }
    }

    fn shut(&self) {
        self.writes.close();
        for reads in &self.reads {
            reads.close();
        }
    }

    pub(crate) fn closed(&self, operation: &'static str) -> StoreError {
        let message = format!("the store on {} is closed; open it again", self.path.display());
        StoreError::new(StoreErrorKind::Misuse, BACKEND, operation, message)
    }

    fn thread_ended(&self, operation: &'static str) -> StoreError {
        let message = format!(
            "the thread that serves {} ended unexpectedly; open the store again and report what it printed",
            self.path.display()
        );
        StoreError::new(StoreErrorKind::Unavailable, BACKEND, operation, message)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shut();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("path", &self.path).finish_non_exhaustive()
    }
}

fn no_thread(error: std::io::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, BACKEND, "open", "no thread can be started; raise the limit")
        .with_source(error)
}

type Readers = Vec<thread::JoinHandle<()>>;

fn start(
    path: &Path,
    config: &SqliteConfig,
    writes: &Arc<Writes>,
    reads: &[Arc<Reads>; 2],
    way: Way,
) -> Result<(Writer, Readers), StoreError> {
    let fail = |fault: Fault| fault.error("open", path, Effect::None);
    let conn = way.take(|| schema::open(path, config)).map_err(fail)?;
    let writer = Writer::new(conn, Arc::clone(writes), config.clone(), path.into(), way).map_err(fail)?;
    let mut readers = Vec::new();
    for (queue, name) in reads.iter().zip(["sqlite-rows", "sqlite-ranges"]) {
        let conn = schema::open_reader(path, config).map_err(fail)?;
        let queue = Arc::clone(queue);
        let main = move || reader::run(&conn, &queue);
        readers.push(thread::Builder::new().name(name.to_owned()).spawn(main).map_err(no_thread)?);
    }
    Ok((writer, readers))
}

/// The file beside the database whose name ends in `suffix`, such as `-wal`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
