//! What conversations cost: memory while they wait for their users, and the checkpoint of a step.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

#[expect(dead_code, reason = "the bench of one message uses all of it")]
#[path = "../spine/bot.rs"]
mod bot;
#[path = "../journal/host.rs"]
mod host;
#[expect(dead_code, reason = "the bench of one message uses all of it")]
#[path = "../spine/message.rs"]
mod message;
#[expect(dead_code, reason = "the bench of one message uses all of it")]
#[path = "../spine/probe.rs"]
mod probe;
mod step;
mod waiting;

use std::process::Command;
use std::time::Duration;

use clap::{Parser, ValueEnum as _};

use crate::bot::Backend;
use crate::waiting::Waiting;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The memory of persistent flows that wait for an answer
    Parked,
    /// The memory of conversations that wait with their code
    Live,
    /// A step with a checkpoint beside one without
    Step,
}

/// Measure what conversations cost: memory while they wait, and the checkpoint of a step
#[derive(Parser)]
#[command(name = "cargo xtask bench conversations --")]
struct Args {
    /// What to measure
    #[arg(long, value_delimiter = ',', default_values = ["parked", "live", "step"])]
    part: Vec<Part>,
    /// Persistent flows that wait
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=50_000_000))]
    parked: u32,
    /// Conversations that wait with their code in memory
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    live: u32,
    /// Where the journals are, and the state of persistent flows, while steps are measured
    #[arg(long, value_delimiter = ',', default_values = ["memory", "sqlite"])]
    backend: Vec<Backend>,
    /// Measured seconds of each round of steps
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Rounds of steps; the programs take turns
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure this kind of waiting alone, in this process
    #[arg(long, hide = true)]
    alone: Option<Waiting>,
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

fn main() {
    let args = Args::parse();
    let count = |waiting| if waiting == Waiting::Parked { args.parked } else { args.live };
    if let Some(waiting) = args.alone {
        return waiting::run(waiting, count(waiting));
    }
    println!("load of the machine at the start: {}", host::load());
    let wanted = |waiting: &Waiting| match waiting {
        Waiting::Parked => args.part.contains(&Part::Parked),
        Waiting::Live | Waiting::LiveJournaled => args.part.contains(&Part::Live),
    };
    let wanted: Vec<_> = Waiting::value_variants().iter().copied().filter(wanted).collect();
    if !wanted.is_empty() {
        waiting::print_heading();
    }
    for waiting in wanted {
        measure_alone(waiting, count(waiting));
    }
    if args.part.contains(&Part::Step) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        step::print_heading(args.rounds, args.seconds);
        for &backend in &args.backend {
            for chats in [1, 64] {
                let length = Duration::from_secs_f64(args.seconds);
                step::run(backend, folder.path(), chats, args.rounds, length);
            }
        }
    }
    println!("\nload of the machine at the end: {}", host::load());
}

/// Measures in a process of its own: memory that was freed before would hide what is needed now.
fn measure_alone(waiting: Waiting, count: u32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--alone", waiting.to_possible_value().unwrap().get_name()]);
    command.args(["--parked", &count.to_string(), "--live", &count.to_string()]);
    let status = command.status().unwrap();
    assert!(status.success(), "{status}");
}
