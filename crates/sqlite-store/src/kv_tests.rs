use rusqlite::{Connection, StatementStatus};

use super::*;
use crate::config::SqliteConfig;
use crate::schema;

fn database() -> (tempfile::TempDir, Connection) {
    let folder = tempfile::tempdir().unwrap();
    let conn = schema::open(&folder.path().join("bot.db"), &SqliteConfig::default()).unwrap();
    (folder, conn)
}

#[test]
fn every_statement_searches_and_none_sorts() {
    let (_folder, conn) = database();
    let indexed = [
        (UPDATE, "sqlite_autoindex_durable_1"),
        (DELETE, "sqlite_autoindex_durable_1"),
        (CURRENT, "sqlite_autoindex_durable_1"),
        (GET, "sqlite_autoindex_durable_1"),
        (DUE, "durable_due"),
        (DUE_AFTER, "durable_due"),
        (LIST, "durable_list"),
        (LIST_AFTER, "durable_list"),
    ];
    for (sql, index) in indexed {
        let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        for n in 1..=statement.parameter_count() {
            statement.raw_bind_parameter(n, 1).unwrap();
        }
        let mut rows = statement.raw_query();
        let mut plan = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            plan.push(row.get::<_, String>(3).unwrap());
        }
        assert!(plan[0].starts_with("SEARCH durable") && plan[0].contains(index), "{sql}: {plan:?}");
        assert!(plan.iter().all(|step| !step.contains("TEMP B-TREE")), "{sql}: {plan:?}");
    }
}

#[test]
fn a_page_costs_the_same_wherever_it_starts() {
    let (_folder, conn) = database();
    conn.execute_batch(
        "BEGIN;
         WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 19999)
         INSERT INTO durable SELECT 1, CAST(printf('%05d', n) AS BLOB), n + 1, 7, 3, 7, x'00', 0 FROM n;
         COMMIT",
    )
    .unwrap();
    for sql in [DUE_AFTER, LIST_AFTER] {
        let steps = |after: &str| {
            let mut statement = conn.prepare(sql).unwrap();
            let rows = if sql == DUE_AFTER {
                statement.query_map(params![1, 7, 10, 7, after.as_bytes()], Columns::of).unwrap().count()
            } else {
                statement.query_map(params![1, 7, 10, 3, 7, after.as_bytes()], Columns::of).unwrap().count()
            };
            assert_eq!(rows, 10);
            statement.get_status(StatementStatus::VmStep)
        };
        assert_eq!(steps("00000"), steps("19000"), "entries of one place are not skipped one by one");
    }
}

#[test]
fn a_version_beyond_the_largest_integer_conflicts() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let kv = crate::SqliteStore::open(folder.path().join("bot.db")).await.unwrap().durability();
        let key = Bytes::from_static(b"k");
        let put = |expect| Op::Put { key: key.clone(), expect, value: Bytes::new(), index: Index::default() };
        let Outcome::Applied(version) = kv.commit(vec![put(Expect::Absent)]).await.unwrap()[0] else {
            panic!("the key is new");
        };
        for expect in [Version(u64::MAX), Version(1 << 63)] {
            let delete = Op::Delete { key: key.clone(), expect };
            let outcomes = kv.commit(vec![put(Expect::Version(expect)), delete]).await.unwrap();
            assert_eq!(outcomes, [Outcome::Conflict(Some(version)); 2]);
        }
    });
}
