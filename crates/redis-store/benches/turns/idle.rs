//! What is left of chats that nobody writes to any more: on the server, and in the process that handled them.

use std::process::Command;
use std::time::Duration;

use botmesh_core::coordinator::Coordinator as _;
use botmesh_redis_store::RedisCoordinatorConfig;
use botmesh_test_servers::{Options, REDIS_URL, Redis};
use serde_json::json;

use crate::Plan;
use crate::host::{self, anonymous_memory, now, sleep};
use crate::load::{Chats, Turns, visit};
use crate::replica::{LONG, with};
use crate::report::{Report, Table};

/// For how long the server remembers an idle chat here.
const TTL: Duration = Duration::from_secs(1);

/// Callers at once, and the chats after which the memory is looked at first.
const CALLERS: usize = 64;
const BEFORE: u64 = 20_000;

/// What the server may keep of a million chats, in bytes: its tables of keys are emptied, but not always shrunk to their size
/// before.
const SERVER_AIM: f64 = 2e6;
const CLIENT_AIM: f64 = 2e6;

/// The keys and the memory of the server.
#[derive(Clone, Copy)]
struct Held {
    keys: i64,
    bytes: f64,
}

impl Held {
    fn of(redis: &Redis) -> Self {
        let bytes = redis.info("used_memory").unwrap().and_then(|bytes| bytes.parse().ok());
        Self {
            keys: redis.command(&["DBSIZE"]).unwrap().int().unwrap_or(-1),
            bytes: bytes.unwrap_or(f64::NAN),
        }
    }
}

/// Measures in a process of its own: memory that was freed before would hide what is needed now.
pub(crate) fn run(plan: &Plan, report: &mut Report) {
    let redis = Redis::start(&Options::new()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--visit", "--idle-chats", &plan.idle_chats.to_string()]).env(REDIS_URL, redis.url());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let figures: Vec<f64> = text.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    let [client_before, client_after, keys_before, keys_most, keys, before, most, after, rate] = figures[..]
    else {
        panic!("not what a visit tells: {text}");
    };
    let mib = |bytes: f64| format!("{:.1}", bytes / (1 << 20) as f64);
    let title = format!(
        "{} chats, one turn each, remembered for {} s: keys and memory after the first {BEFORE} chats were forgotten, \n\
         right after the last turn, and when the server had forgotten all ({:.0} turns / s).",
        plan.idle_chats,
        TTL.as_secs(),
        rate
    );
    let mut table = Table::new(&title, ["", "before", "most", "after"]);
    let whole = |keys: f64| format!("{keys:.0}");
    table.row(["keys".to_owned(), whole(keys_before), whole(keys_most), whole(keys)]);
    table.row(["server, MiB".to_owned(), mib(before), mib(most), mib(after)]);
    table.row(["replica, MiB".to_owned(), mib(client_before), String::new(), mib(client_after)]);
    report.table(table);
    report.figures(
        "idle",
        json!({
            "chats": plan.idle_chats,
            "keys": { "before": keys_before, "most": keys_most, "after": keys },
            "server_bytes": { "before": before, "most": most, "after": after },
            "client_bytes": { "before": client_before, "after": client_after },
            "turns_per_second": rate,
        }),
    );
    let grown = |bytes: f64| format!("{:+.0} kB", bytes / 1e3);
    report.aim(
        "keys of idle chats after their time",
        "0 more",
        format!("{:+.0}", keys - keys_before),
        keys <= keys_before,
    );
    let (server, client) = (after - before, client_after - client_before);
    report.aim("memory of the server after idle chats", "≤ 2 MB more", grown(server), server <= SERVER_AIM);
    report.aim("memory of the replica after idle chats", "≤ 2 MB more", grown(client), client <= CLIENT_AIM);
}

/// The process that has a turn in each chat.
pub(crate) fn visit_all(chats: u64) {
    let redis = &Redis::from_env_or_start().unwrap();
    host::runtime().block_on(async {
        let config = RedisCoordinatorConfig::default().with_lease(LONG).with_idle_ttl(TTL);
        let coordinator = with(redis.url(), config).await;
        visit(vec![Turns(coordinator.clone()); CALLERS], Chats { first: 0, count: BEFORE }).await;
        forgotten(redis, None).await;
        let (before, client_before) = (Held::of(redis), anonymous_memory());
        let begun = now();
        visit(vec![Turns(coordinator.clone()); CALLERS], Chats { first: BEFORE, count: chats }).await;
        let rate = chats as f64 / begun.elapsed().as_secs_f64();
        let most = Held::of(redis);
        forgotten(redis, Some(before.keys)).await;
        let (after, client_after) = (Held::of(redis), anonymous_memory());
        coordinator.close().await;
        print!("{client_before} {client_after} {} {} {} ", before.keys, most.keys, after.keys);
        println!("{} {} {} {rate}", before.bytes, most.bytes, after.bytes);
    });
}

/// Waits until the server has no more keys than that, or has not forgotten any for some seconds.
async fn forgotten(redis: &Redis, keys: Option<i64>) {
    let (mut last, mut same) = (i64::MAX, 0);
    while same < 30 {
        let held = Held::of(redis).keys;
        if keys.is_some_and(|keys| held <= keys) {
            break;
        }
        same = if held < last { 0 } else { same + 1 };
        last = held;
        sleep(Duration::from_millis(100)).await;
    }
    // What was freed is given back by the server's own housekeeping, also the room of its tables.
    sleep(Duration::from_secs(2)).await;
}
