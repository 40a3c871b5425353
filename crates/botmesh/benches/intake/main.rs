//! From a post of an update to its 200: a bot on a webhook whose journals are in SQLite, beside a bare axum handler that
//! commits one row to the same disk. And what it costs to read an update, beside teloxide's types.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

mod bare;
mod bot;
mod load;
mod parse;
mod peer;
mod served;

use std::time::Duration;

use clap::Parser;

use crate::load::Measured;

/// The aim: this share of the bare handler's rate.
const AIM: f64 = 0.6;

/// Measure the intake of a webhook and the reading of updates
#[derive(Parser)]
#[command(name = "cargo xtask bench intake --")]
struct Args {
    /// Measured seconds of each round
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How often each program runs; the programs take turns, so that a noisy machine disturbs both
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Connections that post at the same time; each posts its next update when the one before was answered
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Only one part
    #[arg(long)]
    part: Option<Part>,
    /// Cargo says it to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Intake,
    Parse,
}

fn main() {
    let args = Args::parse();
    if args.part != Some(Part::Parse) {
        intake(&args);
    }
    if args.part != Some(Part::Intake) {
        parse::run(args.rounds);
    }
}

fn intake(args: &Args) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let length = Duration::from_secs(args.seconds);
    println!(
        "Updates are posted on {} connections. Each is answered with 200 once it is in SQLite (WAL, synchronous = FULL).\n\
         Medians of {} rounds of {} s, in which the programs took turns; least and most in brackets.\n\n\
         bare: an axum handler that commits the body as one row, in one transaction with those that wait, and reads nothing.\n\
         bot: the secret is checked, the update read and journaled, and handled beside by a handler that does nothing.\n",
        args.connections, args.rounds, args.seconds,
    );
    let (mut bare, mut bot) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        let file = |program: &str| folder.path().join(format!("{program}-{round}.db"));
        bare.push(load::run(bare::start(file("bare")), args.connections, length));
        bot.push(load::run(bot::start(file("bot")), args.connections, length));
    }
    println!("{:<7} {:>22} {:>10} {:>10}", "program", "posts / s", "p50 ms", "p99 ms");
    for (name, rounds) in [("bare", &bare), ("bot", &bot)] {
        let rate = Spread::of(rounds.iter().map(|round| round.rate));
        let rate = format!("{:.0} ({:.0} to {:.0})", rate.median, rate.min, rate.max);
        let millis = |of: fn(&Measured) -> Duration| {
            Spread::of(rounds.iter().map(|round| of(round).as_secs_f64() * 1e3)).median
        };
        println!(
            "{name:<7} {rate:>22} {:>10.2} {:>10.2}",
            millis(|round| round.p50),
            millis(|round| round.p99)
        );
    }
    let share = Spread::of(bot.iter().zip(&bare).map(|(bot, bare)| 100.0 * bot.rate / bare.rate));
    let aim = if share.median >= 100.0 * AIM { "reached" } else { "MISSED" };
    let Spread { median, min, max } = share;
    println!("\nbot to bare: {median:.0} % ({min:.0} to {max:.0}); aim: {:.0} %, {aim}", 100.0 * AIM);
}

/// The median of the rounds, and the extremes.
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        Self { median: values[values.len() / 2], min: values[0], max: values[values.len() - 1] }
    }
}
