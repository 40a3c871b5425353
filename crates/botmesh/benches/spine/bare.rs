//! The bare program: the same rows with the same bytes in the same tables, or appended to a file, and nothing else.
//!
//! One chat is one thread that makes its three commits itself. Several chats are tasks beside one thread that writes:
//! it takes everything that waits into one transaction. In step they are one thread again, that makes each commit for
//! all chats at once: nothing is faster, and no program that serves chats as they come can be as fast.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use botmesh::core::store::Store;
use botmesh_sqlite_store::SqliteStore;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use crate::bot::{Backend, RuntimeKind, spawn};
use crate::host::{Sleeps, now};
use crate::load::{Measured, Phase, WARM_UP};
use crate::message::{Place, Template, Write, keys};

/// The name of the thread that writes.
pub(crate) const WRITER: &str = "bare-writer";

/// As many writes share a transaction at most as in the store.
const GROUP: usize = 1024;

const INSERT: &str = "INSERT INTO durable (scope, key, version, due, bucket, place, value, near) \
     VALUES (1, ?1, ?2, NULL, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING";
const UPDATE: &str = "UPDATE durable SET version = ?2, due = NULL, bucket = ?3, place = ?4, value = ?5 \
     WHERE scope = 1 AND near = ?7 AND key = ?1 AND version = ?6";

/// One round of `chats` chats for `length`.
pub(crate) fn run(
    backend: Backend,
    file: &Path,
    template: &Arc<Template>,
    chats: u32,
    length: Duration,
) -> Measured {
    match chats {
        1 => in_step(backend, file, template, 1, length),
        chats => together(Writer::open(backend, file), template, chats, length),
    }
}

/// The number of a message, by which the store finds its rows first.
fn near(key: &[u8]) -> i64 {
    let number = key.split(|byte| *byte == b'/').next_back().unwrap();
    let digits = number.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

struct Writer {
    disk: Disk,
    version: i64,
    started: Instant,
}

/// Where the rows go.
enum Disk {
    Sqlite(Connection),
    /// A file that is appended to, and what the next commit appends.
    File(File, Vec<u8>),
}

/// One commit of one message.
struct Call {
    keys: Arc<[String; 2]>,
    /// The versions that the journals' records have.
    versions: [i64; 2],
    commit: usize,
    reply: oneshot::Sender<[i64; 2]>,
}

impl Disk {
    fn open(backend: Backend, path: &Path) -> Self {
        if backend == Backend::File {
            return Self::File(File::options().append(true).create_new(true).open(path).unwrap(), Vec::new());
        }
        // On the tables that the store makes.
        RuntimeKind::Current.build().block_on(async {
            let store = SqliteStore::open(path).await.unwrap();
            store.close().await.unwrap();
        });
        let conn = Connection::open(path).unwrap();
        let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        conn.execute_batch("PRAGMA synchronous = FULL").unwrap();
        Self::Sqlite(conn)
    }

    fn begin(&mut self) {
        match self {
            Self::Sqlite(conn) => execute(conn, "BEGIN IMMEDIATE"),
            Self::File(_, pending) => pending.clear(),
        }
    }

    fn commit(&mut self) {
        match self {
            Self::Sqlite(conn) => execute(conn, "COMMIT"),
            Self::File(file, pending) => {
                file.write_all(pending).unwrap();
                file.sync_data().unwrap();
            }
        }
    }

    fn write(&mut self, write: &Write, key: &[u8], version: i64, place: i64, expected: i64) {
        let Write { insert, value, bucket, .. } = write;
        let conn = match self {
            Self::Sqlite(conn) => conn,
            Self::File(_, pending) => {
                for field in [key, &version.to_le_bytes(), &[*bucket], &place.to_le_bytes(), value] {
                    pending.extend_from_slice(field);
                }
                return;
            }
        };
        let rows = match insert {
            true => {
                let mut statement = conn.prepare_cached(INSERT).unwrap();
                statement.execute(params![key, version, bucket, place, &value[..], near(key)])
            }
            false => {
                let mut statement = conn.prepare_cached(UPDATE).unwrap();
                statement.execute(params![key, version, bucket, place, &value[..], expected, near(key)])
            }
        };
        assert_eq!(rows.unwrap(), 1, "every write finds what it expects");
    }
}

fn execute(conn: &Connection, sql: &str) {
    conn.prepare_cached(sql).unwrap().execute([]).unwrap();
}

impl Writer {
    fn open(backend: Backend, file: &Path) -> Self {
        Self { disk: Disk::open(backend, file), version: 0, started: now() }
    }

    fn apply(&mut self, writes: &[Write], keys: &[String; 2], versions: &mut [i64; 2]) {
        for write in writes {
            self.version += 1;
            let place = match write.place {
                Place::Order(first) => first + self.version,
                Place::Finished(first) => first + self.started.elapsed().as_millis() as i64,
            };
            let (key, expected) = (keys[write.journal].as_bytes(), versions[write.journal]);
            self.disk.write(write, key, self.version, place, expected);
            versions[write.journal] = self.version;
        }
    }

    fn serve(mut self, template: &Template, calls: &Receiver<Call>) {
        let mut group = Vec::new();
        while let Ok(first) = calls.recv() {
            group.push(first);
            group.extend(calls.try_iter().take(GROUP - 1));
            self.disk.begin();
            for call in &mut group {
                self.apply(&template.commits[call.commit], &call.keys, &mut call.versions);
            }
            self.disk.commit();
            for call in group.drain(..) {
                // The chat may have stopped.
                let _ = call.reply.send(call.versions);
            }
        }
    }
}

/// One round of one thread that makes each commit for `chats` chats at once.
pub(crate) fn in_step(
    backend: Backend,
    file: &Path,
    template: &Template,
    chats: u32,
    length: Duration,
) -> Measured {
    let mut writer = Writer::open(backend, file);
    let mut cycles = Vec::new();
    let started = now();
    let mut measuring: Option<(Instant, Sleeps)> = None;
    for number in 0.. {
        let begun = now();
        match measuring {
            None if begun - started >= WARM_UP => measuring = Some((begun, Sleeps::so_far())),
            Some((since, _)) if begun - since >= length => break,
            _ => {}
        }
        let mut messages: Vec<_> = (0..chats).map(|chat| (keys(chat, number), [0; 2])).collect();
        for writes in &template.commits {
            writer.disk.begin();
            for (keys, versions) in &mut messages {
                writer.apply(writes, keys, versions);
            }
            writer.disk.commit();
        }
        if measuring.is_some() {
            cycles.extend(messages.iter().map(|_| begun.elapsed()));
        }
    }
    let (since, sleeps) = measuring.unwrap();
    Measured::new(cycles, since.elapsed()).with_sleeps(Sleeps::so_far().since(sleeps))
}

fn together(writer: Writer, template: &Arc<Template>, chats: u32, length: Duration) -> Measured {
    let (calls, waiting) = channel();
    let templates = Arc::clone(template);
    let serve = move || writer.serve(&templates, &waiting);
    let thread = thread::Builder::new().name(WRITER.to_owned()).spawn(serve).unwrap();
    let runtime = RuntimeKind::Current.build();
    let commits = template.commits.len();
    let measured = runtime.block_on(async move {
        let phase = Arc::new(Phase::default());
        let tasks = (0..chats).map(|chat| spawn(talk(calls.clone(), Arc::clone(&phase), chat, commits)));
        let tasks: Vec<_> = tasks.collect();
        drop(calls);
        let (elapsed, (before, after)) = phase.run(length, Sleeps::so_far).await;
        let mut cycles = Vec::new();
        for task in tasks {
            cycles.extend(task.await.unwrap());
        }
        Measured::new(cycles, elapsed).with_sleeps(after.since(before))
    });
    thread.join().unwrap();
    measured
}

async fn talk(calls: Sender<Call>, phase: Arc<Phase>, chat: u32, commits: usize) -> Vec<Duration> {
    let mut cycles = Vec::new();
    for number in 0.. {
        if phase.is_over() {
            break;
        }
        let begun = now();
        let (keys, mut versions) = (Arc::new(keys(chat, number)), [0; 2]);
        for commit in 0..commits {
            let (reply, answer) = oneshot::channel();
            calls.send(Call { keys: Arc::clone(&keys), versions, commit, reply }).unwrap();
            versions = answer.await.unwrap();
        }
        if phase.is_measuring() {
            cycles.push(begun.elapsed());
        }
    }
    cycles
}
