//! How soon others go on after a replica was killed: real processes that hold a turn, ended by SIGKILL.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use botmesh_core::coordinator::Coordinator as _;
use botmesh_core::entropy::{OsEntropy, random_fraction};
use botmesh_redis_store::{RedisCoordinator, RedisCoordinatorConfig};
use botmesh_test_servers::{Options, REDIS_URL, Redis};
use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::host::{self, now, sleep};
use crate::plot::Chart;
use crate::replica::with;
use crate::report::{Report, Table};
use crate::stats::percentile;
use crate::{Plan, replica};

/// Chats in which replicas are killed at the same time.
const AT_ONCE: usize = 8;

/// The most that a takeover may take beyond the lease.
const GRACE: Duration = Duration::from_millis(250);

/// Parts of the histogram that is printed.
const PARTS: usize = 10;

pub(crate) fn run(plan: &Plan, report: &mut Report) {
    let redis = Redis::start(&Options::new()).unwrap();
    let left = AtomicUsize::new(plan.kills);
    let mut samples = host::runtime().block_on(async {
        let waiter = with(redis.url(), RedisCoordinatorConfig::default().with_lease(plan.lease)).await;
        let lanes = (0..AT_ONCE.min(plan.kills)).map(|lane| kills(plan, &redis, &waiter, lane, &left));
        let samples = join_all(lanes).await.concat();
        waiter.close().await;
        samples
    });
    samples.sort_unstable_by(f64::total_cmp);
    add(plan, report, &samples);
}

/// Kills one replica after the other in one chat. The milliseconds from each kill to the next turn.
async fn kills(
    plan: &Plan,
    redis: &Redis,
    waiter: &RedisCoordinator,
    lane: usize,
    left: &AtomicUsize,
) -> Vec<f64> {
    let mut samples = Vec::new();
    let chat = format!("chat-{lane}");
    let entropy = OsEntropy::new();
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        let mut holder = holder(redis, &chat, plan.lease).await;
        let mut ticket = waiter.enter(&chat).await.unwrap();
        // At any moment between two heartbeats.
        sleep(plan.lease.mul_f64(random_fraction(&entropy) / 3.0)).await;
        let killed = now();
        holder.start_kill().unwrap();
        let turn = ticket.granted().await.unwrap();
        samples.push(killed.elapsed().as_secs_f64() * 1e3);
        turn.release();
        holder.wait().await.unwrap();
    }
    samples
}

/// A process that has the turn.
async fn holder(redis: &Redis, chat: &str, lease: Duration) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let lease = botmesh_core::duration::format(lease);
    command.args(["--hold", chat, "--lease", &lease]).env(REDIS_URL, redis.url());
    let mut holder = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap();
    assert_eq!(line.as_deref(), Some("held"), "the replica did not get the turn");
    holder
}

/// The process that is killed.
pub(crate) fn hold(chat: &str, lease: Duration) {
    let url = std::env::var(REDIS_URL).unwrap();
    host::runtime().block_on(async {
        let replica = replica::replica(&url, lease).await;
        let turn = replica.enter(chat).await.unwrap().granted().await.unwrap();
        println!("held");
        std::io::stdout().flush().unwrap();
        // Nobody ends it but the kill: it dies of the lost turn, should the one who kills be gone.
        turn.lost().await;
    });
}

fn add(plan: &Plan, report: &mut Report, samples: &[f64]) {
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    let (lease, limit) = (millis(plan.lease), millis(plan.lease + GRACE));
    let late = samples.iter().filter(|sample| **sample > limit).count();
    let title = format!(
        "Takeover after SIGKILL of the replica that holds a turn, {} kills, {AT_ONCE} at a time, lease {lease:.0} ms: from the\n\
         kill until another replica has the turn, in milliseconds.",
        samples.len(),
    );
    let mut table = Table::new(&title, ["kills", "min", "p50", "p99", "max", "later than lease + 250 ms"]);
    let share = |share| format!("{:.0}", percentile(samples, share));
    table.row([samples.len().to_string(), share(0.0), share(0.5), share(0.99), share(1.0), late.to_string()]);
    report.table(table);
    let mut bars = Table::new("Takeovers by milliseconds:", ["from", "to", "kills", ""]);
    let (least, most) = (percentile(samples, 0.0), percentile(samples, 1.0));
    let width = ((most - least) / PARTS as f64).max(1.0);
    for part in 0..PARTS {
        let (from, to) = (least + width * part as f64, least + width * (part + 1) as f64);
        let last = part == PARTS - 1;
        let inside = |sample: &&f64| **sample >= from && (**sample < to || last);
        let count = samples.iter().filter(inside).count();
        let bar = "#".repeat(count * 60 / samples.len().max(1));
        bars.row([format!("{from:.0}"), format!("{to:.0}"), count.to_string(), bar]);
    }
    report.table(bars);
    report.figures("takeover", json!({ "lease_ms": lease, "limit_ms": limit, "takeovers_ms": samples }));
    let what = format!("takeovers within lease + 250 ms, of {} kills", samples.len());
    report.aim(&what, "all", format!("{}, at most {most:.0} ms", samples.len() - late), late == 0);
    report.chart(Chart::Histogram {
        title: format!("takeover after SIGKILL, % of the kills over milliseconds; lease {lease:.0} ms"),
        most: (limit * 1.1).max(most),
        aim: Some(limit),
        samples: vec![("takeovers".to_owned(), samples.to_vec())],
    });
}
