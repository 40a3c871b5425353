//! Turns that replicas share through Redis, beside the bare limits measured in the same run: the rate of turns, a turn that
//! changes hands, what a turn costs with many chats and many replicas, the memory of idle chats, how soon others go on after a
//! replica was killed, and what others do for the same.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

mod bare;
mod cost;
mod handoff;
mod host;
mod idle;
mod load;
mod peers;
mod plot;
mod replica;
mod report;
mod stats;
mod takeover;
mod uncontended;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;

use crate::report::Report;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Turns that nobody else wants
    Uncontended,
    /// A turn that goes from one replica to another
    Handoff,
    /// What a turn costs with many chats and with many replicas
    Cost,
    /// What is left of chats that nobody writes to any more
    Idle,
    /// How soon others go on after a replica was killed
    Takeover,
    /// BullMQ and a crate of locks on the same server
    Peers,
}

/// Measure turns on Redis, beside the bare limits of the same run
#[derive(Parser)]
#[command(name = "cargo xtask bench turns --")]
struct Args {
    /// What to measure
    #[arg(long, value_delimiter = ',', default_values = ["uncontended", "handoff", "cost", "idle", "takeover", "peers"])]
    part: Vec<Part>,
    /// Measured seconds of each round
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// How often each program runs; the programs take turns, so that a noisy machine disturbs all of them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How many callers take turns at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    callers: Vec<usize>,
    /// How many replicas wait for the same chat
    #[arg(long, value_delimiter = ',', default_values_t = [2, 8, 64])]
    waiters: Vec<usize>,
    /// How many chats there are while the cost of a turn is measured, in growing numbers
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000, 500_000])]
    chats: Vec<u64>,
    /// How many replicas there are while the cost of a turn is measured
    #[arg(long, value_delimiter = ',', default_values_t = [2, 10, 50])]
    replicas: Vec<usize>,
    /// How many chats become idle
    #[arg(long, default_value_t = 1_000_000)]
    idle_chats: u64,
    /// How many replicas are killed
    #[arg(long, default_value_t = 200)]
    kills: usize,
    /// The lease of those that are killed
    #[arg(long, default_value = "1500ms", value_parser = botmesh_core::duration::parse)]
    lease: Duration,
    /// How many messages each peer handles
    #[arg(long, default_value_t = 20_000)]
    messages: u64,
    /// A short look at everything: fewer and shorter rounds, less of everything. Its figures are no more than a hint
    #[arg(long)]
    quick: bool,
    /// Where turns.md, turns.json and turns.svg are written [default: target/bench]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Be the process that has a turn in each of the idle chats
    #[arg(long, hide = true)]
    visit: bool,
    /// Be a replica that takes the turn of this chat and holds it
    #[arg(long, hide = true, value_name = "CHAT")]
    hold: Option<String>,
    /// Cargo says it to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// How much is measured.
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) round: Duration,
    pub(crate) callers: Vec<usize>,
    pub(crate) waiters: Vec<usize>,
    pub(crate) chats: Vec<u64>,
    pub(crate) replicas: Vec<usize>,
    pub(crate) idle_chats: u64,
    pub(crate) kills: usize,
    pub(crate) lease: Duration,
    pub(crate) messages: u64,
    /// Where programs are built, and figures written.
    pub(crate) folder: PathBuf,
}

fn main() {
    let args = Args::parse();
    if args.visit {
        return idle::visit_all(args.idle_chats);
    }
    if let Some(chat) = &args.hold {
        return takeover::hold(chat, args.lease);
    }
    let plan = plan(&args);
    let mut report = Report::default();
    report.note(format!("load of the machine at the start: {}", host::load()));
    for part in &args.part {
        match part {
            Part::Uncontended => uncontended::run(&plan, &mut report),
            Part::Handoff => handoff::run(&plan, &mut report),
            Part::Cost => cost::run(&plan, &mut report),
            Part::Idle => idle::run(&plan, &mut report),
            Part::Takeover => takeover::run(&plan, &mut report),
            Part::Peers => peers::run(&plan, &mut report),
        }
    }
    report.note(format!("load of the machine at the end: {}", host::load()));
    report.finish(&plan.folder);
}

fn plan(args: &Args) -> Plan {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let full = Plan {
        rounds: args.rounds,
        round: Duration::from_secs_f64(args.seconds),
        callers: args.callers.clone(),
        waiters: args.waiters.clone(),
        chats: args.chats.clone(),
        replicas: args.replicas.clone(),
        idle_chats: args.idle_chats,
        kills: args.kills,
        lease: args.lease,
        messages: args.messages,
        folder: args.out.clone().unwrap_or_else(|| target.join("bench")),
    };
    if !args.quick {
        return full;
    }
    Plan {
        rounds: full.rounds.min(3),
        round: full.round.min(Duration::from_millis(300)),
        chats: full.chats.into_iter().filter(|chats| *chats <= 100_000).collect(),
        idle_chats: full.idle_chats.min(50_000),
        kills: full.kills.min(16),
        messages: full.messages.min(3_000),
        ..full
    }
}
