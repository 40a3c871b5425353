//! A turn that goes from one replica to another: from the call that gives it back to the moment at which the next replica has
//! it. Beside it, round trips of PING, and a script that publishes to another connection: a push with nothing around it. All
//! connections are served by the callers' thread.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use botmesh_core::Bytes;
use botmesh_core::coordinator::Coordinator as _;
use botmesh_redis_store::RedisCoordinator;
use botmesh_redis_store::fred::interfaces::{EventInterface as _, PubsubInterface as _};
use botmesh_test_servers::{Options, Redis};
use futures_util::future::join_all;
use serde_json::json;

use crate::bare::Bare;
use crate::host::{self, now, spawn};
use crate::plot::Chart;
use crate::replica::{LONG, replica};
use crate::report::{Report, Table};
use crate::stats::{Spread, percentile};
use crate::{Plan, stats};

/// At most so many round trips.
const AIM: f64 = 3.0;

/// Hand-offs, pings and pushes of a round, and those before it that are not measured.
const SAMPLES: usize = 2_000;
const BEFORE: usize = 200;

const PUSH: &str = "redis.call('PUBLISH', ARGV[1], ARGV[2]) return ARGV[3]";
const CHANNEL: &str = "{bare:turns:0}:wake:0123456789abcdef";

/// The sorted microseconds of a round.
type Samples = Vec<f64>;

/// The rounds with one number of waiters.
struct Waiting {
    waiters: usize,
    handoffs: Vec<Samples>,
    pings: Vec<Samples>,
}

pub(crate) fn run(plan: &Plan, report: &mut Report) {
    let redis = Redis::start(&Options::new()).unwrap();
    let mut all: Vec<_> = plan
        .waiters
        .iter()
        .map(|waiters| Waiting { waiters: *waiters, handoffs: Vec::new(), pings: Vec::new() })
        .collect();
    let mut pushes = Vec::new();
    host::runtime().block_on(async {
        let bare = Bare::connect(redis.url()).await;
        let other = Bare::connect(redis.url()).await;
        other.client().subscribe(CHANNEL).await.unwrap();
        for waiting in &mut all {
            let replicas = join_all((0..waiting.waiters).map(|_| replica(redis.url(), LONG))).await;
            for _ in 0..plan.rounds {
                waiting.pings.push(pings(&bare).await);
                waiting.handoffs.push(handoffs(&replicas).await);
            }
            join_all(replicas.iter().map(|replica| replica.close())).await;
        }
        for _ in 0..plan.rounds {
            pushes.push(bare_pushes(&bare, &other).await);
        }
        bare.close().await;
        other.close().await;
    });
    add(report, &all, &pushes);
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn sorted(mut samples: Samples) -> Samples {
    samples.sort_unstable_by(f64::total_cmp);
    samples
}

async fn pings(bare: &Bare) -> Samples {
    let mut samples = Vec::with_capacity(SAMPLES);
    for number in 0..BEFORE + SAMPLES {
        let sent = now();
        bare.command("PING", Vec::new()).await;
        if number >= BEFORE {
            samples.push(micros(sent));
        }
    }
    sorted(samples)
}

/// Each replica queues up for its next turn before it gives back the one that it has, so that one is held and the others wait.
async fn handoffs(replicas: &[RedisCoordinator]) -> Samples {
    let given: Arc<Mutex<Option<Instant>>> = Arc::default();
    let each = (BEFORE + SAMPLES).div_ceil(replicas.len()) + 1;
    let mut first = Vec::new();
    for replica in replicas {
        first.push(replica.enter("ana").await.unwrap());
    }
    let tasks: Vec<_> = replicas
        .iter()
        .zip(first)
        .map(|(replica, mut ticket)| {
            let (replica, given) = (replica.clone(), Arc::clone(&given));
            spawn(async move {
                let mut samples = Vec::with_capacity(each);
                for _ in 0..each {
                    let turn = ticket.granted().await.unwrap();
                    samples.extend(given.lock().unwrap().take().map(micros));
                    ticket = replica.enter("ana").await.unwrap();
                    *given.lock().unwrap() = Some(now());
                    turn.release();
                }
                // The last ones have fewer who wait.
                let beginning = BEFORE.div_ceil(each);
                samples.into_iter().skip(beginning).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut samples = Vec::new();
    for task in tasks {
        samples.extend(task.await.unwrap());
    }
    sorted(samples)
}

/// From the call of a script to the arrival, at another connection, of what it publishes.
async fn bare_pushes(bare: &Bare, other: &Bare) -> Samples {
    let sha = bare.script(PUSH).await;
    let mut pushes = other.client().message_rx();
    let text = Bytes::from_static(&[b'g'; 160]);
    let mut samples = Vec::with_capacity(SAMPLES);
    for number in 0..BEFORE + SAMPLES {
        let args = vec![sha.clone(), "0".into(), CHANNEL.into(), text.clone(), "left".into()];
        let sent = now();
        let call = bare.command("EVALSHA", args);
        let arrival = async {
            pushes.recv().await.unwrap();
            micros(sent)
        };
        let (_, taken) = futures_util::future::join(call, arrival).await;
        if number >= BEFORE {
            samples.push(taken);
        }
    }
    sorted(samples)
}

fn at(rounds: &[Samples], share: f64) -> Spread {
    Spread::of(rounds.iter().map(|samples| percentile(samples, share)))
}

fn add(report: &mut Report, all: &[Waiting], pushes: &[Samples]) {
    let title = format!(
        "A turn changes hands between replicas: from the call that gives it back until another replica has it, in\n\
         microseconds, beside PING round trips of the same driver, and beside a bare push ({} µs at the median). All are served by\n\
         the callers' one thread.",
        at(pushes, 0.5).text(1.0, 0),
    );
    let heads =
        ["wait", "p50 µs", "p99 µs", "ping p50 µs", "ping p99 µs", "p50 in pings", "p50 in bare pushes"];
    let mut table = Table::new(&title, heads);
    let mut figures = Vec::new();
    let medians = |rounds: &[Samples]| -> Vec<f64> {
        rounds.iter().map(|samples| stats::percentile(samples, 0.5)).collect()
    };
    for Waiting { waiters, handoffs, pings } in all {
        let trips = Spread::ratio(&medians(handoffs), &medians(pings));
        let bare = Spread::ratio(&medians(handoffs), &medians(pushes));
        table.row([
            waiters.to_string(),
            at(handoffs, 0.5).text(1.0, 0),
            at(handoffs, 0.99).text(1.0, 0),
            at(pings, 0.5).text(1.0, 0),
            at(pings, 0.99).text(1.0, 0),
            trips.text(1.0, 2),
            bare.text(1.0, 2),
        ]);
        figures.push(json!({
            "waiters": waiters,
            "p50_us": at(handoffs, 0.5).json(),
            "p99_us": at(handoffs, 0.99).json(),
            "ping_p50_us": at(pings, 0.5).json(),
            "ping_p99_us": at(pings, 0.99).json(),
            "p50_in_round_trips": trips.json(),
            "p50_in_bare_pushes": bare.json(),
        }));
        let what = format!("hand-off, {waiters} wait, p50 in round trips of PING");
        report.aim(&what, "≤ 3", format!("{:.2}", trips.median), trips.median <= AIM);
    }
    report.table(table);
    report.figures("handoff", json!({ "bare_push_p50_us": at(pushes, 0.5).json(), "rows": figures }));
    let most = all.iter().map(|waiting| at(&waiting.handoffs, 0.99).median).fold(100.0, f64::max);
    let name = |waiters| format!("{waiters} wait");
    let mut samples: Vec<_> =
        all.iter().map(|waiting| (name(waiting.waiters), waiting.handoffs.concat())).collect();
    samples.push(("bare push".to_owned(), pushes.concat()));
    report.chart(Chart::Histogram {
        title: "hand-off between replicas, % of the hand-offs over microseconds".to_owned(),
        most,
        aim: None,
        samples,
    });
}
