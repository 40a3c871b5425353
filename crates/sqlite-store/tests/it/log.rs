//! The write-ahead log: bounded, also when somebody reads from an old snapshot.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

use botmesh_core::kv::DurableKv;
use botmesh_core::store::Store;
use botmesh_sqlite_store::{SqliteConfig, SqliteStore};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::tools::{beside, block_on, create, length, until};

/// What was logged as a warning.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collector;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn collect_warnings() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Collector).unwrap());
}

/// The warnings about the database at `path`.
fn warnings(path: &Path) -> Vec<String> {
    let path = path.display().to_string();
    let all = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter(|line| line.contains(&path)).cloned().collect()
}

const LIMIT: u64 = 512 << 10;

async fn open(path: &Path) -> SqliteStore {
    let config = SqliteConfig::default().with_journal_size_limit(LIMIT);
    SqliteStore::open_with(path, config).await.unwrap()
}

async fn write(kv: &dyn DurableKv, name: &str, many: usize) {
    for n in 0..many {
        kv.commit(vec![create(format!("{name}/{n}"), [7; 3000])]).await.unwrap();
    }
}

#[test]
fn the_log_stays_below_its_limit_while_the_store_reads_and_writes() {
    collect_warnings();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let store = open(&path).await;
        let kv = store.durability();
        for round in 0..20 {
            write(&*kv, &round.to_string(), 40).await;
            kv.get(&["0/0".into()]).await.unwrap();
            assert!(length(&beside(&path, "-wal")) <= LIMIT, "round {round}");
        }
        assert!(warnings(&path).is_empty());
        store.close().await.unwrap();
        assert_eq!(length(&beside(&path, "-wal")), 0);
    });
}

#[test]
fn a_pinned_reader_is_warned_about_once_and_the_log_shrinks_when_it_is_gone() {
    collect_warnings();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    let log = beside(&path, "-wal");
    block_on(async {
        let store = open(&path).await;
        let kv = store.durability();
        write(&*kv, "before", 1).await;
        for round in 1..=2 {
            let reader = rusqlite::Connection::open(&path).unwrap();
            reader.execute_batch("BEGIN").unwrap();
            let rows = || reader.query_row("SELECT count(*) FROM durable", [], |row| row.get::<_, i64>(0));
            let seen = rows().unwrap();
            write(&*kv, &format!("pinned/{round}"), 500).await;
            assert_eq!(rows().unwrap(), seen, "the reader keeps its snapshot");
            assert!(length(&log) > 2 * LIMIT);
            until("the warning", || warnings(&path).len() == round);
            reader.execute_batch("COMMIT").unwrap();
            // Nothing is written any more.
            until("the cut", || length(&log) <= LIMIT);
            assert_eq!(warnings(&path).len(), round, "one warning for each time");
        }
    });
}

/// With the defaults, and as many commits as the case asks for.
#[test]
fn g02_after_twenty_thousand_commits_under_a_pinned_reader_the_log_is_below_64_mib_again() {
    const COMMITS: usize = 20_000;
    let limit = SqliteConfig::default().journal_size_limit;
    assert_eq!(limit, 64 << 20);
    collect_warnings();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    let log = beside(&path, "-wal");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        let kv = store.durability();
        write(&*kv, "before", 1).await;
        let reader = rusqlite::Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN").unwrap();
        let rows = || reader.query_row("SELECT count(*) FROM durable", [], |row| row.get::<_, i64>(0));
        assert_eq!(rows().unwrap(), 1);
        write(&*kv, "pinned", COMMITS).await;
        assert_eq!(rows().unwrap(), 1, "the reader keeps its snapshot");
        assert!(length(&log) > limit, "the log has only {} bytes", length(&log));
        until("the warning", || warnings(&path).len() == 1);
        reader.execute_batch("COMMIT").unwrap();
        until("the cut", || length(&log) < limit);
        assert_eq!(warnings(&path).len(), 1);
    });
}

#[test]
fn a_busy_store_shrinks_the_log_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let store = open(&path).await;
        let kv = store.durability();
        let reader = rusqlite::Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM durable;").unwrap();
        let pinned: i64 = reader.query_row("SELECT count(*) FROM durable", [], |row| row.get(0)).unwrap();
        write(&*kv, "pinned", 400).await;
        assert_eq!(pinned, 0);
        drop(reader);
        write(&*kv, "after", 200).await;
        until("the cut", || length(&beside(&path, "-wal")) <= LIMIT);
    });
}
