//! Turns that nobody else wants, beside two bare script calls a message over one connection of the same driver. The thread of the
//! callers serves both.

use botmesh_test_servers::{Options, Redis};
use serde_json::json;

use crate::bare::{Bare, Scripts};
use crate::load::{Chats, Measured, Turns, round};
use crate::plot::Chart;
use crate::replica::{LONG, replica};
use crate::report::{Report, Table};
use crate::stats::{Commands, Spread};
use crate::{Plan, host};

/// The least share of the bare rate.
const AIM: f64 = 0.6;

/// What the server did for a message.
#[derive(Clone, Copy)]
struct Served {
    scripts: f64,
    pushes: f64,
    micros: f64,
}

/// The rounds of one concurrency.
struct Compared {
    callers: usize,
    turns: Vec<(Measured, Served)>,
    bare: Vec<(Measured, Served)>,
}

impl Compared {
    fn spread(rounds: &[(Measured, Served)], of: impl Fn(&(Measured, Served)) -> f64) -> Spread {
        Spread::of(rounds.iter().map(of))
    }

    fn rates(rounds: &[(Measured, Served)]) -> Vec<f64> {
        rounds.iter().map(|(measured, _)| measured.rate).collect()
    }

    fn ratio(&self) -> Spread {
        Spread::ratio(&Self::rates(&self.turns), &Self::rates(&self.bare))
    }
}

pub(crate) fn run(plan: &Plan, report: &mut Report) {
    let redis = Redis::start(&Options::new()).unwrap();
    let runtime = host::runtime();
    let mut all: Vec<_> = plan
        .callers
        .iter()
        .map(|callers| Compared { callers: *callers, turns: Vec::new(), bare: Vec::new() })
        .collect();
    runtime.block_on(async {
        let coordinator = replica(redis.url(), LONG).await;
        let bare = Bare::connect(redis.url()).await;
        for _ in 0..plan.rounds {
            for compared in &mut all {
                let chats = Chats { first: 0, count: compared.callers as u64 * 64 };
                let scripts = (0..compared.callers).map(|_| Scripts::new(&bare)).collect();
                compared.bare.push(served(&redis, round(scripts, chats, plan.round)).await);
                let turns = vec![Turns(coordinator.clone()); compared.callers];
                compared.turns.push(served(&redis, round(turns, chats, plan.round)).await);
            }
        }
        bare.close().await;
        botmesh_core::coordinator::Coordinator::close(&coordinator).await;
    });
    add(plan, report, &all);
}

async fn served(redis: &Redis, round: impl Future<Output = Measured>) -> (Measured, Served) {
    let before = Commands::so_far(redis);
    let measured = round.await;
    let commands = before.since(redis, 2 * measured.messages).await;
    let each = |count: u64| count as f64 / measured.messages as f64;
    let served = Served {
        scripts: each(commands.calls("evalsha")),
        pushes: each(commands.calls("publish")),
        micros: each(commands.micros("evalsha")),
    };
    (measured, served)
}

fn add(plan: &Plan, report: &mut Report, all: &[Compared]) {
    let title = format!(
        "Uncontended turns beside two bare script calls (one write each, the same arguments) over one connection of the\n\
         same driver. Both are served by the one thread of the callers.\n\
         Medians of {} rounds of {:.1} s, with the extremes. Client: all its threads; server: in scripts.",
        plan.rounds,
        plan.round.as_secs_f64(),
    );
    let heads = [
        "at once",
        "turns / s",
        "bare / s",
        "to bare, %",
        "scripts a turn",
        "pushes a turn",
        "client µs a turn",
        "bare",
        "server µs a turn",
        "bare",
    ];
    let mut table = Table::new(&title, heads);
    let mut figures = Vec::new();
    for compared in all {
        let Compared { callers, turns, bare } = compared;
        let rate = |rounds| Compared::spread(rounds, |(measured, _)| measured.rate);
        let cpu = |rounds| Compared::spread(rounds, |(measured, _)| measured.cpu);
        let micros = |rounds| Compared::spread(rounds, |(_, served)| served.micros);
        let scripts = Compared::spread(turns, |(_, served)| served.scripts);
        let pushes = Compared::spread(turns, |(_, served)| served.pushes);
        table.row([
            callers.to_string(),
            rate(turns).text(1.0, 0),
            rate(bare).text(1.0, 0),
            compared.ratio().text(100.0, 0),
            format!("{:.3}", scripts.median),
            format!("{:.3}", pushes.median),
            format!("{:.1}", cpu(turns).median),
            format!("{:.1}", cpu(bare).median),
            format!("{:.1}", micros(turns).median),
            format!("{:.1}", micros(bare).median),
        ]);
        figures.push(json!({
            "callers": callers,
            "turns_per_second": rate(turns).json(),
            "bare_per_second": rate(bare).json(),
            "rate_to_bare": compared.ratio().json(),
            "scripts_per_turn": scripts.json(),
            "pushes_per_turn": pushes.json(),
            "client_us_per_turn": cpu(turns).json(),
            "bare_client_us": cpu(bare).json(),
            "server_us_per_turn": micros(turns).json(),
            "bare_server_us": micros(bare).json(),
        }));
        add_aims(report, compared, scripts.max, pushes.max);
    }
    report.table(table);
    report.figures("uncontended", figures.into());
    add_chart(report, all);
}

fn add_aims(report: &mut Report, compared: &Compared, scripts: f64, pushes: f64) {
    let callers = compared.callers;
    let ratio = compared.ratio().median;
    let what = format!("rate of turns, {callers} at once, to the bare rate");
    report.aim(&what, "≥ 60 %", format!("{:.0} %", 100.0 * ratio), ratio >= AIM);
    let few = scripts + pushes < 2.005;
    let what = format!("commands of a turn, {callers} at once");
    report.aim(&what, "≤ 2", format!("{:.3}", scripts + pushes), few);
}

fn add_chart(report: &mut Report, all: &[Compared]) {
    let medians = |rounds: fn(&Compared) -> &Vec<(Measured, Served)>| {
        all.iter().map(|one| Compared::spread(rounds(one), |(measured, _)| measured.rate).median).collect()
    };
    report.chart(Chart::Curves {
        title: "a second, over how many at once".to_owned(),
        places: all.iter().map(|compared| compared.callers.to_string()).collect(),
        curves: vec![
            ("turns".to_owned(), medians(|one| &one.turns)),
            ("two bare script calls".to_owned(), medians(|one| &one.bare)),
        ],
    });
}
