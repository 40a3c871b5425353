//! What others do for the same on the same server: BullMQ, and a crate of locks. Where one of them cannot be had, its row
//! says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::coordinator::Coordinator as _;
use botmesh_core::kv::{DurableKv, Expect, Index, Op, Outcome};
use botmesh_core::time::Timestamp;
use botmesh_redis_store::{RedisCoordinator, RedisStore};
use botmesh_test_servers::{Options, Redis};
use serde_json::json;

use crate::Plan;
use crate::host;
use crate::load::{Caller, Turns, drain};
use crate::replica::{LONG, replica};
use crate::report::{Report, Table};
use crate::stats::Spread;

/// Chats, and messages handled at once: one of each chat.
const CHATS: u64 = 64;

/// Where the programs of others are.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/turns");

/// A way to handle each message of a chat by itself.
struct Row {
    name: &'static str,
    what: &'static str,
    /// Messages per second of each round, or why it did not run.
    rates: Result<Vec<f64>, String>,
}

impl Row {
    fn new(name: &'static str, what: &'static str) -> Self {
        Self { name, what, rates: Ok(Vec::new()) }
    }

    fn add(&mut self, rate: Result<f64, String>) {
        match (rate, &mut self.rates) {
            (Ok(rate), Ok(rates)) => rates.push(rate),
            (Err(why), rates) => *rates = Err(why),
            (Ok(_), Err(_)) => {}
        }
    }
}

struct Rows {
    turn: Row,
    fenced_lock: Row,
    rslock: Row,
    contended_turn: Row,
    contended_rslock: Row,
    turn_and_record: Row,
    bullmq_chats: [Row; 2],
    bullmq_one: [Row; 2],
}

impl Rows {
    fn new() -> Self {
        let added_before = || Row::new("  the same, added before", "process only");
        Self {
            turn: Row::new("botmesh, turn", "a turn a message, in the order of the tickets, with a fence"),
            fenced_lock: Row::new(
                "botmesh, fenced lock",
                "acquire_lock_fenced and release_lock a message: no queue",
            ),
            rslock: Row::new("rslock 0.10.0", "lock and unlock a message: no queue, no fence, no renewal"),
            contended_turn: Row::new(
                "botmesh, turn, two want each chat",
                "as above; each waits for the other and is told",
            ),
            contended_rslock: Row::new(
                "rslock 0.10.0, two want each chat",
                "as above; whoever waits tries again after up to 200 ms",
            ),
            turn_and_record: Row::new(
                "botmesh, turn and record",
                "the message written before its turn and deleted after it",
            ),
            bullmq_chats: [
                Row::new(
                    "BullMQ 6.7.0, a queue a chat",
                    "add and process: a worker of concurrency 1 for each chat",
                ),
                added_before(),
            ],
            bullmq_one: [
                Row::new(
                    "BullMQ 6.7.0, one queue",
                    "add and process, concurrency 64: no order within a chat",
                ),
                added_before(),
            ],
        }
    }

    fn all(&self) -> impl Iterator<Item = &Row> {
        let ours = [&self.turn, &self.fenced_lock, &self.rslock, &self.contended_turn];
        ours.into_iter()
            .chain([&self.contended_rslock, &self.turn_and_record])
            .chain(&self.bullmq_chats)
            .chain(&self.bullmq_one)
    }
}

pub(crate) fn run(plan: &Plan, report: &mut Report) {
    let redis = Redis::start(&Options::new()).unwrap();
    let bullmq = BullMq::install();
    let locks = build_locks(&plan.folder);
    let mut rows = Rows::new();
    for _ in 0..plan.rounds {
        host::runtime().block_on(ours(&redis, plan.messages, &mut rows));
        theirs(&redis, plan.messages, (&bullmq, &locks), &mut rows);
        redis.command(&["FLUSHALL"]).unwrap();
    }
    add(plan, report, &rows);
}

/// The rounds of others.
fn theirs(
    redis: &Redis,
    messages: u64,
    (bullmq, locks): (&Result<BullMq, String>, &Result<PathBuf, String>),
    rows: &mut Rows,
) {
    let numbers = [redis.url().to_owned(), messages.to_string(), CHATS.to_string()];
    for (row, callers) in [(&mut rows.rslock, CHATS), (&mut rows.contended_rslock, 2 * CHATS)] {
        row.add(locks.as_ref().map_err(String::clone).and_then(|program| {
            let [rate] = figures(Command::new(program).args(&numbers).arg(callers.to_string()))?;
            Ok(rate)
        }));
    }
    for (both, kind) in [(&mut rows.bullmq_chats, "chats"), (&mut rows.bullmq_one, "one")] {
        let found = bullmq.as_ref().map_err(String::clone).and_then(|bullmq| {
            let mut command = Command::new("node");
            command.arg(bullmq.folder.path().join("bench.mjs")).args(&numbers).arg(kind);
            figures::<2>(&mut command)
        });
        for (at, row) in both.iter_mut().enumerate() {
            row.add(found.clone().map(|figures| figures[at]));
        }
    }
}

/// The rounds of our own.
async fn ours(redis: &Redis, messages: u64, rows: &mut Rows) {
    let coordinator = replica(redis.url(), LONG).await;
    let store = RedisStore::open(redis.url()).await.unwrap();
    let turns = (0..CHATS).map(|_| Turns(coordinator.clone())).collect();
    rows.turn.add(Ok(rate(turns, messages).await));
    let locks = (0..CHATS).map(|_| Locks { coordinator: coordinator.clone(), number: 0 }).collect();
    rows.fenced_lock.add(Ok(rate(locks, messages).await));
    let turns = (0..2 * CHATS).map(|_| Turns(coordinator.clone())).collect();
    rows.contended_turn.add(Ok(rate(turns, messages).await));
    let journal =
        |caller| Journaled { turns: Turns(coordinator.clone()), kv: store.durability(), caller, number: 0 };
    rows.turn_and_record.add(Ok(rate((0..CHATS).map(journal).collect(), messages).await));
    coordinator.close().await;
}

/// Messages per second.
async fn rate<C: Caller>(callers: Vec<C>, messages: u64) -> f64 {
    messages as f64 / drain(callers, CHATS, messages).await
}

struct Locks {
    coordinator: RedisCoordinator,
    number: u64,
}

impl Caller for Locks {
    async fn message(&mut self, chat: &str) {
        self.number += 1;
        let token = format!("{chat}-{}", self.number);
        let taken = self.coordinator.acquire_lock_fenced(chat, &token, Duration::from_secs(15)).await;
        assert!(taken.unwrap().is_some(), "nobody else takes it");
        assert!(self.coordinator.release_lock(chat, &token).await.unwrap());
    }
}

/// Writes the message before its turn, and deletes it when it is done, as a queue of jobs does.
struct Journaled {
    turns: Turns,
    kv: Arc<dyn DurableKv>,
    caller: u64,
    number: u64,
}

impl Caller for Journaled {
    async fn message(&mut self, chat: &str) {
        self.number += 1;
        let key: Bytes = format!("im/{chat}/{}-{:010}", self.caller, self.number).into();
        let index = Index { due: Some(Timestamp::from_millis(1)), list: None };
        let value = Bytes::from_static(&[b'm'; 200]);
        let put = Op::Put { key: key.clone(), expect: Expect::Absent, value, index };
        let Outcome::Applied(version) = self.kv.commit(vec![put]).await.unwrap()[0] else {
            panic!("the key is new")
        };
        self.turns.message(chat).await;
        let done = self.kv.commit(vec![Op::Delete { key, expect: version }]).await.unwrap();
        assert!(matches!(done[0], Outcome::Applied(_)));
    }
}

/// Where BullMQ is installed.
struct BullMq {
    folder: tempfile::TempDir,
}

impl BullMq {
    fn install() -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        for file in ["package.json", "bench.mjs"] {
            fs::copy(Path::new(FOLDER).join("bullmq").join(file), folder.path().join(file)).unwrap();
        }
        succeed(Command::new("node").arg("--version"))?;
        let args = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"];
        succeed(Command::new("npm").args(args).current_dir(folder.path()))?;
        Ok(Self { folder })
    }
}

/// Builds the program that uses the crate of locks, which is no dependency of this workspace.
fn build_locks(folder: &Path) -> Result<PathBuf, String> {
    let target = folder.join("rslock");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]);
    command.arg(Path::new(FOLDER).join("rslock/Cargo.toml")).arg("--target-dir").arg(&target);
    succeed(&mut command)?;
    Ok(target.join("release/botmesh-bench-rslock"))
}

/// What a program printed, or why it did not work.
fn succeed(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program} cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    let start: String = text.chars().take(300).collect();
    Err(format!("{program} fails ({}): {start}", output.status))
}

/// The rates that a program prints.
fn figures<const N: usize>(command: &mut Command) -> Result<[f64; N], String> {
    let text = succeed(command)?;
    let figures = text.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    let figures = figures.ok().and_then(|figures| figures.try_into().ok());
    figures.ok_or_else(|| format!("these are not {N} rates: {text}"))
}

fn add(plan: &Plan, report: &mut Report, rows: &Rows) {
    let title = format!(
        "{} messages over {CHATS} chats, one of a chat at a time and {CHATS} at once, with handlers that do nothing, on one\n\
         server. BullMQ's groups, which keep the messages of a chat apart, are not part of its open version: its nearest\n\
         equivalent that keeps the order is a queue and a worker for each chat.",
        plan.messages
    );
    let mut table = Table::new(&title, ["", "messages / s", "what it does"]);
    let mut figures = Vec::new();
    for Row { name, what, rates } in rows.all() {
        let rate = match rates {
            Ok(rates) => Spread::of(rates.iter().copied()).text(1.0, 0),
            Err(why) => format!("*not run*: {why}"),
        };
        table.row([(*name).to_owned(), rate, (*what).to_owned()]);
        let (rate, why) = match rates {
            Ok(rates) => (Some(Spread::of(rates.iter().copied()).json()), None),
            Err(why) => (None, Some(why)),
        };
        figures
            .push(json!({ "name": name.trim(), "what": what, "messages_per_second": rate, "not_run": why }));
    }
    report.table(table);
    report.figures("peers", figures.into());
    let median = |row: &Row| row.rates.as_ref().ok().map(|rates| Spread::of(rates.iter().copied()).median);
    let (ours, theirs) = (&rows.turn_and_record, &rows.bullmq_chats[0]);
    let what = format!("{} to {}", ours.name, theirs.name);
    if let (Some(ours), Some(theirs)) = (median(ours), median(theirs)) {
        report.aim(&what, "≥ 1", format!("{:.1}", ours / theirs), ours >= theirs);
    }
}
