//! A thread that reads. Statements are short and finished before the next: no snapshot is kept.

use std::sync::Arc;

use rusqlite::{CachedStatement, Connection};

use super::queue::{Queue, Taken};
use crate::error::Fault;
use crate::keys::Scopes;

/// How many reads share one snapshot at most.
const TOGETHER: u32 = 64;

/// A read that answers its caller itself.
pub(super) type Job = Box<dyn FnOnce(&mut Reading<'_>) + Send>;

/// What a read works with.
pub(crate) struct Reading<'c> {
    conn: &'c Connection,
    scopes: &'c mut Scopes,
}

impl<'c> Reading<'c> {
    pub(crate) fn statement(&self, sql: &str) -> Result<CachedStatement<'c>, Fault> {
        Ok(self.conn.prepare_cached(sql)?)
    }

    /// The number of a scope; `None` if nothing was ever written in it.
    pub(crate) fn scope(&mut self, name: &Arc<str>) -> Result<Option<i64>, Fault> {
        Ok(self.scopes.find(self.conn, name)?)
    }
}

/// Serves reads until the queue is closed.
pub(super) fn run(conn: &Connection, queue: &Queue<Job>) {
    let _taker = queue.taker();
    let mut scopes = Scopes::default();
    let mut jobs = Vec::new();
    loop {
        let (taken, weight) = queue.take(TOGETHER, None, &mut jobs);
        if taken == Taken::Closed {
            return;
        }
        // One snapshot for all of them; it is taken after they were queued, so each sees what was acknowledged
        // before its call. If it cannot be had, each statement takes its own.
        let together = jobs.len() > 1 && run_cached(conn, "BEGIN").is_ok();
        for job in jobs.drain(..) {
            job(&mut Reading { conn, scopes: &mut scopes });
        }
        if together && run_cached(conn, "COMMIT").is_err() && !conn.is_autocommit() {
            drop(run_cached(conn, "ROLLBACK"));
        }
        queue.finished(weight);
    }
}

fn run_cached(conn: &Connection, sql: &str) -> rusqlite::Result<usize> {
    conn.prepare_cached(sql)?.execute([])
}
