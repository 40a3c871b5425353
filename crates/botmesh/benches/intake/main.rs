//! From a post of an update to its 200: a bot on a webhook whose journals are in SQLite, beside a bare axum handler that
//! commits one row to the same disk. And what it costs to read an update, beside teloxide's types.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

mod bare;
mod bot;
mod load;
mod parse;
mod peer;
mod served;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::bot::Handling;
use crate::load::Measured;
use crate::served::Served;

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
    /// Only one program, as for a profiler
    #[arg(long)]
    program: Option<Program>,
    /// Cargo says it to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Intake,
    Parse,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Program {
    Bare,
    Intake,
    Handled,
}

impl Program {
    const ALL: [Self; 3] = [Self::Bare, Self::Intake, Self::Handled];

    fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Intake => "intake",
            Self::Handled => "handled",
        }
    }

    fn start(self, file: PathBuf) -> Served {
        match self {
            Self::Bare => bare::start(file),
            Self::Intake => bot::start(file, Handling::Later),
            Self::Handled => bot::start(file, Handling::Beside),
        }
    }
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
         intake: the bot checks the secret, reads the update and journals it; its handlers have not begun.\n\
         handled: as well, a handler that does nothing runs for each message, and that it is done is committed.\n\
         CPU: of the program's threads, without whoever posts.\n",
        args.connections, args.rounds, args.seconds,
    );
    let chosen = |program: &Program| args.program.is_none_or(|only| only == *program);
    let mut programs: Vec<_> =
        Program::ALL.into_iter().filter(chosen).map(|program| (program, Vec::new())).collect();
    for round in 0..args.rounds {
        for (program, rounds) in &mut programs {
            let file = folder.path().join(format!("{}-{round}.db", program.name()));
            rounds.push(load::run(program.start(file), args.connections, length));
        }
    }
    println!(
        "{:<8} {:>25} {:>7} {:>7} {:>12}   of bare, in one round",
        "program", "posts / s", "p50 ms", "p99 ms", "CPU µs/post"
    );
    let bare = &programs[0].1;
    for (program, rounds) in &programs {
        let of = |of: fn(&Measured) -> f64| Spread::of(rounds.iter().map(of));
        let rate = of(|round| round.rate);
        let rate = format!("{:.0} ({:.0} to {:.0})", rate.median, rate.min, rate.max);
        let (p50, p99) = (of(|round| millis(round.p50)).median, of(|round| millis(round.p99)).median);
        let cpu = of(|round| round.cpu.as_secs_f64() * 1e6).median;
        print!("{:<8} {rate:>25} {p50:>7.2} {p99:>7.2} {cpu:>12.1}", program.name());
        if programs.len() == Program::ALL.len() && *program != Program::Bare {
            let shares = rounds.iter().zip(bare).map(|(round, bare)| 100.0 * round.rate / bare.rate);
            let Spread { median, min, max } = Spread::of(shares);
            print!("   {median:.0} % ({min:.0} to {max:.0})");
            if *program == Program::Intake {
                let aim = if median >= 100.0 * AIM { "reached" } else { "MISSED" };
                print!(", aim {:.0} %: {aim}", 100.0 * AIM);
            }
        }
        println!();
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
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
