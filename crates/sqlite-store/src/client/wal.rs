//! Keeps the write-ahead log small.
//!
//! After each group the log's length is looked up (without a lock), and beyond [`PAGES`] its pages are copied to the
//! database. A reader that stays on an old snapshot prevents that the log starts again: it grows, a warning says so once,
//! and as soon as the reader is gone it is cut back, also when nothing is written any more.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

/// The log is copied to the database when it has this many pages, or half of its limit if that is less.
const PAGES: u64 = 1000;

/// How often a log above its limit is looked at while nothing is written.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LATEST_LOOK: Duration = Duration::from_secs(5);

/// What the frame of a page in the log has in addition to the page.
const FRAME_HEADER: u64 = 24;

pub(super) struct Wal {
    path: Arc<Path>,
    frame: u64,
    limit: u64,
    soon: u64,
    next: u64,
    above: bool,
    look: Duration,
}

impl Wal {
    pub(super) fn new(conn: &Connection, limit: u64, path: Arc<Path>) -> rusqlite::Result<Self> {
        let page: u32 = conn.query_row("PRAGMA page_size", [], |row| row.get(0))?;
        let frame = u64::from(page) + FRAME_HEADER;
        let soon = PAGES.min(limit / frame / 2).max(1);
        Ok(Self { path, frame, limit, soon, next: soon, above: false, look: FIRST_LOOK })
    }

    /// How long the queue may stay empty before [`when_idle`](Self::when_idle) is called.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.above.then_some(self.look)
    }

    pub(super) fn after_group(&mut self, conn: &Connection) {
        let Some((pages, _)) = checkpoint(conn, "PRAGMA wal_checkpoint(NOOP)") else { return };
        if pages < self.soon {
            self.next = self.soon;
        }
        if pages >= self.next {
            let copied = checkpoint(conn, "PRAGMA wal_checkpoint(PASSIVE)");
            // When all is copied the next write starts the log again, unless somebody reads just now.
            let step = match copied {
                Some((pages, copied)) if pages == copied => self.soon / 4,
                _ => self.soon,
            };
            self.next = pages + step.max(1);
        }
        self.judge(pages);
    }

    pub(super) fn when_idle(&mut self, conn: &Connection) {
        self.look = (self.look * 2).min(LATEST_LOOK);
        self.empty(conn);
        if let Some((pages, _)) = checkpoint(conn, "PRAGMA wal_checkpoint(NOOP)") {
            self.judge(pages);
        }
    }

    /// Copies the whole log and cuts it to nothing, if nobody else uses it just now.
    pub(super) fn empty(&self, conn: &Connection) {
        checkpoint(conn, "PRAGMA wal_checkpoint(TRUNCATE)");
    }

    fn judge(&mut self, pages: u64) {
        let bytes = pages * self.frame;
        let above = bytes > self.limit;
        if above == self.above {
            return;
        }
        self.above = above;
        self.look = FIRST_LOOK;
        let (path, limit) = (self.path.display(), self.limit);
        if above {
            tracing::warn!(
                %path, bytes, limit,
                "the write-ahead log is above its limit: a program reads from an old snapshot; \
                 end its transaction (an open sqlite3 shell, a backup tool)"
            );
        } else {
            tracing::info!(%path, bytes, limit, "the write-ahead log is below its limit again");
        }
    }
}

/// Pages in the log, and how many of them are copied to the database. `None` if it cannot be told now.
fn checkpoint(conn: &Connection, sql: &str) -> Option<(u64, u64)> {
    let ask = || -> rusqlite::Result<(i64, i64)> {
        conn.prepare_cached(sql)?.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))
    };
    match ask() {
        Ok((pages, copied)) => Some((u64::try_from(pages).ok()?, u64::try_from(copied).ok()?)),
        Err(error) => {
            tracing::debug!(%error, sql, "the write-ahead log cannot be looked at now");
            None
        }
    }
}
