//! What a turn costs while there are many chats, and while there are many replicas.

use botmesh_core::coordinator::Coordinator as _;
use botmesh_redis_store::RedisCoordinator;
use botmesh_test_servers::{Options, Redis};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::load::{Chats, Measured, Turns, round, visit};
use crate::replica::{LONG, replica};
use crate::report::{Report, Table};
use crate::stats::{Commands, Spread};
use crate::{Plan, host};

/// Callers at once.
const CALLERS: usize = 64;

/// Chats while the replicas are counted.
const CHATS: u64 = 10_000;

/// The most that a turn may cost in the largest setting, as a multiple of the smallest one: caches miss more often, and nothing
/// is looked through.
const AIM: f64 = 1.5;

/// Rounds of one setting: what was measured, and the microseconds of the server in scripts and altogether.
#[derive(Default)]
struct Setting {
    of: u64,
    rounds: Vec<(Measured, f64, f64)>,
}

impl Setting {
    fn of(of: u64) -> Self {
        Self { of, ..Self::default() }
    }

    /// One more round, spread over the replicas.
    async fn round(&mut self, plan: &Plan, redis: &Redis, replicas: &[RedisCoordinator], chats: u64) {
        let (before, busy) = (Commands::so_far(redis), server_cpu(redis));
        let callers = spread(replicas, CALLERS.max(replicas.len()));
        let measured = round(callers, Chats { first: 0, count: chats }, plan.round).await;
        let commands = before.since(redis, 2 * measured.messages).await;
        let each = |micros: f64| micros / measured.messages as f64;
        let scripts = each(commands.micros("evalsha") as f64);
        self.rounds.push((measured, scripts, each(server_cpu(redis) - busy)));
    }

    fn figure(&self, of: impl Fn(&(Measured, f64, f64)) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(of))
    }

    fn script_micros(&self) -> Spread {
        self.figure(|(_, scripts, _)| *scripts)
    }
}

/// Callers that use the replicas in turn.
fn spread(replicas: &[RedisCoordinator], callers: usize) -> Vec<Turns> {
    (0..callers).map(|at| Turns(replicas[at % replicas.len()].clone())).collect()
}

/// The microseconds for which the server worked so far.
fn server_cpu(redis: &Redis) -> f64 {
    let seconds = |name| redis.info(name).unwrap().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    1e6 * (seconds("used_cpu_user_main_thread") + seconds("used_cpu_sys_main_thread"))
}

pub(crate) fn run(plan: &Plan, report: &mut Report) {
    let chats = host::runtime().block_on(over_chats(plan));
    add(report, "chats", "with many chats that had a turn before, 2 replicas", &chats);
    let replicas = host::runtime().block_on(over_replicas(plan));
    add(report, "replicas", "with many replicas, each of which takes turns, 10,000 chats", &replicas);
}

async fn over_chats(plan: &Plan) -> Vec<Setting> {
    let redis = Redis::start(&Options::new()).unwrap();
    let replicas = [replica(redis.url(), LONG).await, replica(redis.url(), LONG).await];
    let mut all = Vec::new();
    let mut there = 0;
    for chats in &plan.chats {
        let new = Chats { first: there, count: chats.saturating_sub(there) };
        visit(spread(&replicas, CALLERS), new).await;
        there = there.max(*chats);
        let mut setting = Setting::of(*chats);
        for _ in 0..plan.rounds {
            setting.round(plan, &redis, &replicas, *chats).await;
        }
        all.push(setting);
    }
    join_all(replicas.iter().map(|replica| replica.close())).await;
    all
}

async fn over_replicas(plan: &Plan) -> Vec<Setting> {
    let redis = Redis::start(&Options::new()).unwrap();
    let mut replicas: Vec<RedisCoordinator> = Vec::new();
    let mut all = Vec::new();
    for count in &plan.replicas {
        while replicas.len() < *count {
            replicas.push(replica(redis.url(), LONG).await);
        }
        let mut setting = Setting::of(*count as u64);
        for _ in 0..plan.rounds {
            setting.round(plan, &redis, &replicas[..*count], CHATS).await;
        }
        all.push(setting);
    }
    join_all(replicas.iter().map(|replica| replica.close())).await;
    all
}

fn add(report: &mut Report, name: &str, what: &str, all: &[Setting]) {
    let title = format!(
        "The cost of a turn {what}: {CALLERS} callers at once, no two of them in one chat.\n\
         Server: in scripts, and altogether with the network."
    );
    let heads =
        [name, "turns / s", "server µs a turn in scripts", "server µs a turn altogether", "client µs a turn"];
    let mut table = Table::new(&title, heads);
    let mut figures = Vec::new();
    for setting in all {
        let rate = setting.figure(|(measured, ..)| measured.rate);
        let altogether = setting.figure(|(.., altogether)| *altogether);
        let client = setting.figure(|(measured, ..)| measured.cpu);
        table.row([
            setting.of.to_string(),
            rate.text(1.0, 0),
            setting.script_micros().text(1.0, 1),
            altogether.text(1.0, 1),
            client.text(1.0, 1),
        ]);
        figures.push(json!({
            name: setting.of,
            "turns_per_second": rate.json(),
            "server_us_in_scripts": setting.script_micros().json(),
            "server_us": altogether.json(),
            "client_us": client.json(),
        }));
    }
    report.table(table);
    report.figures(&format!("cost_over_{name}"), Value::Array(figures));
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return };
    // The least of the rounds: the server's clock goes on while another process has its processor.
    let ratio = last.script_micros().min / first.script_micros().min;
    let what = format!("server's cost of a turn, {} {name} to {} {name}", last.of, first.of);
    report.aim(&what, "≤ 1.5", format!("{ratio:.2}"), ratio <= AIM);
}
