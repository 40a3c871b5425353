//! The thread that writes: everything that waits goes into one transaction, and is answered after its commit.

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use botmesh_core::error::{Effect, StoreError, StoreErrorKind};
use rusqlite::{CachedStatement, Connection};
use tokio::sync::oneshot;

use super::queue::{Queue, Taken};
use super::wal::Wal;
use super::{Gate, Readers};
use crate::config::SqliteConfig;
use crate::error::Fault;
use crate::keys::Scopes;
use crate::schema;

/// The weight of one group: 1024 rows, or 8 MiB, or a mixture.
const GROUP: u32 = 1024;

/// How many bytes of a value weigh as much as a row.
pub(crate) const WEIGHT_BYTES: usize = 8 << 10;

/// The first and the longest pause between two attempts to get the write lock from another process. SQLite's own pauses
/// grow to 100 ms, with which a busy neighbour can starve us.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// A queued write.
pub(super) trait Write: Send {
    /// Does it in an open transaction. Called again if the transaction is repeated.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Fault>;

    /// Tells the caller that it is committed, or why not.
    fn answer(self: Box<Self>, broken: Option<&Broken>);
}

/// Why a group failed.
#[derive(Debug)]
pub(super) struct Broken {
    fault: Fault,
    effect: Effect,
}

/// A write of one caller.
pub(super) struct Call<F, T> {
    run: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
    operation: &'static str,
    path: Arc<Path>,
}

impl<F, T> Call<F, T> {
    pub(super) fn new(
        run: F,
        reply: oneshot::Sender<Result<T, StoreError>>,
        operation: &'static str,
        path: Arc<Path>,
    ) -> Self {
        Self { run, result: None, reply, operation, path }
    }
}

impl<F, T> Write for Call<F, T>
where
    F: FnMut(&mut Tx<'_>) -> Result<T, Fault> + Send,
    T: Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        self.result = Some((self.run)(tx)?);
        Ok(())
    }

    fn answer(self: Box<Self>, broken: Option<&Broken>) {
        let call = *self;
        let answer = match (broken, call.result) {
            (Some(broken), _) => Err(broken.fault.error(call.operation, &call.path, broken.effect)),
            (None, Some(result)) => Ok(result),
            // Without a result there was no run; the caller learns it from the dropped reply.
            (None, None) => return,
        };
        // The caller may have gone.
        drop(call.reply.send(answer));
    }
}

/// An open transaction.
pub(crate) struct Tx<'c> {
    conn: &'c Connection,
    scopes: &'c mut Scopes,
    /// Those that were used: most writes of a group use the same.
    statements: Vec<(&'static str, CachedStatement<'c>)>,
    last: i64,
    wrote: bool,
}

impl<'c> Tx<'c> {
    pub(crate) fn statement(&mut self, sql: &'static str) -> Result<&mut CachedStatement<'c>, Fault> {
        let found = self.statements.iter().position(|(used, _)| *used == sql);
        let at = match found {
            Some(at) => at,
            None => {
                self.statements.push((sql, self.conn.prepare_cached(sql)?));
                self.statements.len() - 1
            }
        };
        Ok(&mut self.statements[at].1)
    }

    /// The number of a scope, which is made if it is new.
    pub(crate) fn scope(&mut self, name: &Arc<str>) -> Result<i64, Fault> {
        Ok(self.scopes.find_or_make(self.conn, name)?)
    }

    /// The number of a scope; `None` if nothing was ever written in it.
    pub(crate) fn known_scope(&mut self, name: &Arc<str>) -> Result<Option<i64>, Fault> {
        Ok(self.scopes.find(self.conn, name)?)
    }

    /// The next number of the file: never given before, also not in an earlier life or another process.
    pub(crate) fn next_number(&mut self) -> Result<i64, Fault> {
        self.last = self.last.checked_add(1).ok_or_else(|| {
            Fault::own(StoreErrorKind::Corrupt, "the version counter is at its end; restore a backup")
        })?;
        Ok(self.last)
    }

    /// Notes that `rows` were changed. A transaction that changed none is not committed and costs no sync.
    pub(crate) fn changed(&mut self, rows: usize) -> bool {
        self.wrote |= rows > 0;
        rows > 0
    }
}

/// Which of two writers of one file in this process goes first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    First,
    Second,
}

/// How a writer and the other one of the same file stay out of each other's way.
pub(super) struct Way {
    pub(super) gate: Arc<Gate>,
    pub(super) turn: Turn,
}

impl Way {
    /// Runs a transaction when it is its turn.
    pub(super) fn take<T>(&self, transaction: impl FnOnce() -> T) -> T {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let _held = match self.turn {
            Turn::First => Some(gate),
            Turn::Second => {
                drop(gate);
                None
            }
        };
        transaction()
    }
}

/// The state of the thread.
pub(super) struct Writer {
    conn: Connection,
    queue: Arc<Queue<Box<dyn Write>>>,
    scopes: Scopes,
    wal: Wal,
    config: SqliteConfig,
    path: Arc<Path>,
    way: Arc<Way>,
}

impl Writer {
    pub(super) fn new(
        conn: Connection,
        queue: Arc<Queue<Box<dyn Write>>>,
        config: SqliteConfig,
        path: Arc<Path>,
        way: Way,
    ) -> Result<Self, Fault> {
        let wal = Wal::new(&conn, config.journal_size_limit, Arc::clone(&path))?;
        Ok(Self { conn, queue, scopes: Scopes::default(), wal, config, path, way: Arc::new(way) })
    }

    /// Serves writes until the queue is closed, then waits for the readers and empties the log.
    pub(super) fn run(mut self, readers: Readers) {
        let queue = Arc::clone(&self.queue);
        // Behind the taker, so that after a panic the queue is closed before the callers learn of it.
        let mut jobs = Vec::new();
        let taker = queue.taker();
        loop {
            match queue.take(GROUP, self.wal.patience(), &mut jobs) {
                (Taken::Jobs, weight) => {
                    self.serve(&mut jobs);
                    queue.finished(weight);
                    // To copy the log may take long, and the other writer does it.
                    if self.way.turn == Turn::Second {
                        self.wal.after_group(&self.conn);
                    }
                }
                (Taken::Idle, _) => self.wal.when_idle(&self.conn),
                (Taken::Closed, _) => break,
            }
        }
        drop(taker);
        for reader in readers {
            // One that panicked has ended as well.
            drop(reader.join());
        }
        if self.way.turn == Turn::Second {
            self.wal.empty(&self.conn);
        }
        if let Err((_, error)) = self.conn.close() {
            tracing::warn!(path = %self.path.display(), %error, "the database was not closed cleanly");
        }
    }

    fn serve(&mut self, jobs: &mut Vec<Box<dyn Write>>) {
        match self.attempt(jobs) {
            Err(broken) if jobs.len() > 1 && !broken.fault.concerns_all() => {
                // One of them cannot be done; the others must not suffer.
                for mut job in jobs.drain(..) {
                    let outcome = self.attempt(std::slice::from_mut(&mut job));
                    job.answer(outcome.as_ref().err());
                }
            }
            outcome => {
                for job in jobs.drain(..) {
                    job.answer(outcome.as_ref().err());
                }
            }
        }
    }

    /// Does all of `jobs` in one transaction, or nothing.
    fn attempt(&mut self, jobs: &mut [Box<dyn Write>]) -> Result<(), Broken> {
        let way = Arc::clone(&self.way);
        way.take(|| self.transact(jobs))
    }

    fn transact(&mut self, jobs: &mut [Box<dyn Write>]) -> Result<(), Broken> {
        let nothing = |fault| Broken { fault, effect: Effect::None };
        begin(&self.conn, self.config.busy_timeout).map_err(nothing)?;
        let done = self.fill(jobs);
        match done {
            Ok(true) => match run_cached(&self.conn, "COMMIT") {
                Ok(()) => {
                    self.scopes.keep();
                    Ok(())
                }
                Err(fault) => {
                    self.roll_back();
                    let effect = fault.effect_of_commit();
                    Err(Broken { fault, effect })
                }
            },
            Ok(false) => {
                self.roll_back();
                Ok(())
            }
            Err(fault) => {
                self.roll_back();
                Err(nothing(fault))
            }
        }
    }

    /// Runs the jobs. `false` if nothing was changed.
    fn fill(&mut self, jobs: &mut [Box<dyn Write>]) -> Result<bool, Fault> {
        let last = schema::read_counter(&self.conn)?;
        let (conn, scopes) = (&self.conn, &mut self.scopes);
        let mut tx = Tx { conn, scopes, statements: Vec::new(), last, wrote: false };
        for job in jobs {
            job.run(&mut tx)?;
        }
        let Tx { last: after, wrote, .. } = tx;
        if wrote && after != last {
            schema::write_counter(&self.conn, after)?;
        }
        Ok(wrote)
    }

    fn roll_back(&mut self) {
        self.scopes.forget();
        // Some errors have ended the transaction already.
        if !self.conn.is_autocommit()
            && let Err(fault) = run_cached(&self.conn, "ROLLBACK")
        {
            tracing::warn!(path = %self.path.display(), ?fault, "a transaction was not rolled back at once");
        }
    }
}

fn run_cached(conn: &Connection, sql: &str) -> Result<(), Fault> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// Takes the write lock, waiting up to `patience` for another process.
pub(crate) fn begin(conn: &Connection, patience: Duration) -> Result<(), Fault> {
    if !conn.is_autocommit() {
        run_cached(conn, "ROLLBACK")?;
    }
    patiently(patience, || run_cached(conn, "BEGIN IMMEDIATE"))
}

/// Tries again, up to `patience`, while another process holds a lock.
pub(crate) fn patiently<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut waited = Duration::ZERO;
    let mut pause = FIRST_PAUSE;
    loop {
        match attempt() {
            Err(fault) if fault.is_busy() && waited < patience => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "this thread serves SQLite alone, and a file lock wakes nobody when it is released"
                )]
                thread::sleep(pause);
                waited += pause;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
