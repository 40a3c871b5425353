//! Opening a database, and the steps from one version of its tables to the next.

use std::path::Path;

use botmesh_core::error::StoreErrorKind;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::client::{begin, patiently};
use crate::config::{SqliteConfig, Synchronous};
use crate::error::Fault;
use crate::place;

/// Marks our files: `BMSH` in ASCII.
const APPLICATION_ID: i32 = 0x424d_5348;

/// Step `n` leads from version `n` to version `n + 1`. Never change a step that was released: add one.
///
/// `counter.format` repeats the version where each group of writes sees it, so that a program that is already running
/// notices when a newer one changes the tables under it.
const STEPS: &[&str] = &[include_str!("schema/1.sql"), include_str!("schema/2.sql")];

/// Statements kept prepared by each connection.
const STATEMENTS: usize = 64;

/// The connection that writes, on tables of the current version. A first transaction was committed, so that whatever
/// prevents writing shows now.
pub(crate) fn open(path: &Path, config: &SqliteConfig) -> Result<Connection, Fault> {
    place::prepare(path, config)?;
    connect(path, config, STEPS).map_err(|fault| explain(fault, path))
}

/// A connection that only reads, for a file that [`open`] has opened.
pub(crate) fn open_reader(path: &Path, config: &SqliteConfig) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(config.busy_timeout)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

fn connect(path: &Path, config: &SqliteConfig, steps: &[&str]) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(config.busy_timeout)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    version(&conn, path, steps.len())?;
    if conn.is_readonly("main")? {
        return Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(8), None).into());
    }
    // SQLite does not wait by itself while several processes turn a new file into one with a write-ahead log.
    let mode = patiently(config.busy_timeout, || {
        Ok(conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0))?)
    })?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(Fault::own(
            StoreErrorKind::UnsupportedFilesystem,
            format!(
                "{} cannot have a write-ahead log (SQLite stays in mode {mode}); move it to a local disk",
                path.display()
            ),
        ));
    }
    let synchronous = match config.synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Normal => "NORMAL",
    };
    conn.execute_batch(&format!("PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 0;"))?;
    let limit = format!("PRAGMA journal_size_limit = {}", config.journal_size_limit);
    conn.query_row(&limit, [], |_| Ok(()))?;
    // From here on the thread waits for locks itself, and checkpoints do not wait at all.
    conn.query_row("PRAGMA busy_timeout = 0", [], |_| Ok(()))?;
    migrate(&conn, path, config, steps)?;
    Ok(conn)
}

/// Brings the tables to the version of the last step, in one transaction that also counts the open.
fn migrate(conn: &Connection, path: &Path, config: &SqliteConfig, steps: &[&str]) -> Result<(), Fault> {
    begin(conn, config.busy_timeout)?;
    let work = || -> Result<(), Fault> {
        // Again, now that nobody else can be at it.
        let from = version(conn, path, steps.len())?;
        for step in &steps[from..] {
            conn.execute_batch(step)?;
        }
        if from < steps.len() {
            let to = steps.len();
            conn.execute_batch(&format!(
                "UPDATE counter SET format = {to}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {to};"
            ))?;
        }
        conn.execute("UPDATE counter SET opened = opened + 1", [])?;
        conn.execute_batch("COMMIT")?;
        if from > 0 && from < steps.len() {
            tracing::info!(path = %path.display(), from, to = steps.len(), "the tables were migrated");
        }
        Ok(())
    };
    let done = work();
    if done.is_err() && !conn.is_autocommit() {
        // What stays open ends with the connection.
        drop(conn.execute_batch("ROLLBACK"));
    }
    done
}

/// The version of the tables, 0 for an empty database. Refuses what is not ours and what is newer than `known`.
fn version(conn: &Connection, path: &Path, known: usize) -> Result<usize, Fault> {
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    let application = number("PRAGMA application_id")?;
    let found = number("PRAGMA user_version")?;
    let path = path.display();
    if application != i64::from(APPLICATION_ID) {
        if tables == 0 && application == 0 {
            return Ok(0);
        }
        return Err(Fault::own(
            StoreErrorKind::Incompatible,
            format!(
                "{path} is an SQLite database of another program; nothing was changed in it: choose another path for \
                 the bot"
            ),
        ));
    }
    match usize::try_from(found) {
        Ok(found @ 1..) if found <= known => Ok(found),
        Ok(1..) => Err(Fault::own(
            StoreErrorKind::Incompatible,
            format!(
                "{path} has tables of version {found}, and this program knows versions up to {known}; nothing was \
                 changed in it: upgrade the program, or restore a backup from before the upgrade"
            ),
        )),
        _ => Err(Fault::own(
            StoreErrorKind::Corrupt,
            format!("{path} has tables of the impossible version {found}; restore a backup"),
        )),
    }
}

/// The last number that was given. Refuses tables that were changed by a newer program since they were opened.
pub(crate) fn read_counter(conn: &Connection) -> Result<i64, Fault> {
    let (last, format): (i64, i64) = conn
        .prepare_cached("SELECT last, format FROM counter")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let known = STEPS.len();
    if usize::try_from(format).is_ok_and(|format| format <= known) {
        return Ok(last);
    }
    Err(Fault::own(
        StoreErrorKind::Incompatible,
        format!(
            "a newer program changed the tables to version {format} while this one, which knows versions up to {known}, \
             was running; nothing was written: stop this one and start the newer program"
        ),
    ))
}

/// Notes the last number that was given.
pub(crate) fn write_counter(conn: &Connection, last: i64) -> Result<(), Fault> {
    conn.prepare_cached("UPDATE counter SET last = ?1")?.execute([last])?;
    Ok(())
}

/// Replaces what SQLite says about a file that cannot be opened by what is the matter with it.
fn explain(fault: Fault, path: &Path) -> Fault {
    match fault.code() {
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            place::denied(path).unwrap_or(fault)
        }
        Some(ErrorCode::NotADatabase) => Fault::own(
            StoreErrorKind::Incompatible,
            format!(
                "{} is not an SQLite database, or its beginning is damaged; nothing was changed in it: choose another \
                 path, or restore a backup",
                path.display()
            ),
        ),
        _ => fault,
    }
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
