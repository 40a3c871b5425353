//! Messages per second of three commits each, beside a bare SQLite loop that writes the same rows in transactions.
//!
//! A message is: put an inbound record, put an outbound record, update the outbound and delete the inbound one.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

use std::path::Path;
use std::time::{Duration, Instant};

use botmesh_core::Bytes;
use botmesh_core::kv::{DurableKv, Expect, Index, Op, Outcome, Version};
use botmesh_core::time::Timestamp;
use botmesh_sqlite_store::{SqliteConfig, SqliteStore, Synchronous};
use rusqlite::{Connection, params};

const INBOUND: [u8; 700] = [b'i'; 700];
const OUTBOUND: [u8; 400] = [b'o'; 400];
const RUN: Duration = Duration::from_millis(1500);

fn main() {
    println!("3 commits (4 rows) a message; best of 3 runs of {} ms", RUN.as_millis());
    for synchronous in [Synchronous::Full, Synchronous::Normal] {
        for tasks in [1, 256] {
            let store = best(|| grouped(synchronous, tasks));
            let bare = best(|| bare(synchronous, tasks));
            let ratio = 100.0 * store / bare;
            println!(
                "{synchronous:?}, {tasks:>3} chats: store {store:>8.0} msg/s   bare loop {bare:>8.0} msg/s   {ratio:.0} %"
            );
        }
    }
}

fn best(mut run: impl FnMut() -> f64) -> f64 {
    (0..3).map(|_| run()).fold(0.0, f64::max)
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark has no bot whose spawner it could use")]
fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

/// Messages per second through the store.
fn grouped(synchronous: Synchronous, tasks: usize) -> f64 {
    let folder = tempfile::tempdir_in(".").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(async {
        let config = SqliteConfig::default().with_synchronous(synchronous);
        let store = SqliteStore::open_with(folder.path().join("bot.db"), config).await.unwrap();
        let started = now();
        let chats: Vec<_> = (0..tasks)
            .map(|chat| {
                let kv = store.durability();
                spawn(async move {
                    let mut messages = 0_u64;
                    while started.elapsed() < RUN {
                        message(&*kv, chat, messages).await;
                        messages += 1;
                    }
                    messages
                })
            })
            .collect();
        let mut messages = 0;
        for chat in chats {
            messages += chat.await.unwrap();
        }
        let rate = messages as f64 / started.elapsed().as_secs_f64();
        drop(store);
        rate
    })
}

async fn message(kv: &dyn DurableKv, chat: usize, number: u64) {
    let (inbound, outbound) = keys(chat, number);
    let due = Index { due: Some(Timestamp::from_millis(number as i64)), list: None };
    let received = put(kv, &inbound, Expect::Absent, &INBOUND, due).await;
    let intended = put(kv, &outbound, Expect::Absent, &OUTBOUND, due).await;
    let sent = Index { due: Some(Timestamp::from_millis(number as i64 + 1)), list: Some((1, number as i64)) };
    let ops = vec![
        Op::Put {
            key: outbound,
            expect: Expect::Version(intended),
            value: Bytes::from_static(&OUTBOUND),
            index: sent,
        },
        Op::Delete { key: inbound, expect: received },
    ];
    let outcomes = kv.commit(ops).await.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Applied(_))));
}

async fn put(kv: &dyn DurableKv, key: &Bytes, expect: Expect, value: &'static [u8], index: Index) -> Version {
    let op = Op::Put { key: key.clone(), expect, value: Bytes::from_static(value), index };
    match kv.commit(vec![op]).await.unwrap()[0] {
        Outcome::Applied(version) => version,
        Outcome::Conflict(_) => unreachable!("keys are unique"),
    }
}

fn keys(chat: usize, number: u64) -> (Bytes, Bytes) {
    (format!("i/chat-{chat:05}/{number:08}").into(), format!("o/chat-{chat:05}/{number:08}").into())
}

/// Messages per second of a loop that commits the same step of `group` messages in one transaction.
fn bare(synchronous: Synchronous, group: usize) -> f64 {
    let folder = tempfile::tempdir_in(".").unwrap();
    let conn = tables(&folder.path().join("bare.db"), synchronous);
    let started = now();
    let (mut number, mut version) = (0_u64, 0_i64);
    while started.elapsed() < RUN {
        for step in 0..3 {
            let run = |sql: &str| conn.prepare_cached(sql).unwrap().execute([]).unwrap();
            run("BEGIN IMMEDIATE");
            for chat in 0..group {
                version += 1;
                rows(&conn, step, chat, number, version);
            }
            run("COMMIT");
        }
        number += 1;
    }
    (number * group as u64) as f64 / started.elapsed().as_secs_f64()
}

fn tables(path: &Path, synchronous: Synchronous) -> Connection {
    let conn = Connection::open(path).unwrap();
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    conn.execute_batch(&format!(
        "PRAGMA synchronous = {synchronous:?};
         CREATE TABLE durable (key BLOB PRIMARY KEY, version INTEGER, due INTEGER, bucket INTEGER, place INTEGER,
                               value BLOB);
         CREATE INDEX due ON durable (due, key) WHERE due IS NOT NULL;
         CREATE INDEX list ON durable (bucket, place, key) WHERE bucket IS NOT NULL;"
    ))
    .unwrap();
    conn
}

fn rows(conn: &Connection, step: usize, chat: usize, number: u64, version: i64) {
    let (inbound, outbound) = keys(chat, number);
    let number = number as i64;
    let insert = |key: &Bytes, value: &[u8]| {
        conn.prepare_cached("INSERT INTO durable VALUES (?1, ?2, ?3, NULL, NULL, ?4) ON CONFLICT DO NOTHING")
            .unwrap()
            .execute(params![&key[..], version, number, value])
            .unwrap()
    };
    match step {
        0 => drop(insert(&inbound, &INBOUND)),
        1 => drop(insert(&outbound, &OUTBOUND)),
        _ => {
            conn.prepare_cached(
                "UPDATE durable SET version = ?2, due = ?3, bucket = 1, place = ?4, value = ?5 WHERE key = ?1",
            )
            .unwrap()
            .execute(params![&outbound[..], version, number + 1, number, &OUTBOUND[..]])
            .unwrap();
            conn.prepare_cached("DELETE FROM durable WHERE key = ?1")
                .unwrap()
                .execute([&inbound[..]])
                .unwrap();
        }
    }
}
