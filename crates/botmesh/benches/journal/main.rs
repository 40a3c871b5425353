//! The journals when there is much in them: taking up what a crash left, sweeping beside what is finished, and a million
//! messages.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

#[expect(dead_code, reason = "the bench of one message uses all of it")]
#[path = "../spine/bot.rs"]
mod bot;
mod fill;
mod host;
mod memory;
#[expect(dead_code, reason = "the bench of one message uses all of it")]
#[path = "../spine/message.rs"]
mod message;
mod plot;
#[expect(dead_code, reason = "the bench of one message uses all of it")]
#[path = "../spine/probe.rs"]
mod probe;
mod replay;
mod sweep;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Parser, ValueEnum as _};

use crate::bot::Backend;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Taking up and handling the unfinished messages of a process that died
    Replay,
    /// A sweep beside many finished messages
    Sweep,
    /// The memory of a process that handles many messages
    Memory,
}

/// Measure the journals when there is much in them
#[derive(Parser)]
#[command(name = "cargo xtask bench journal --")]
struct Args {
    /// What to measure
    #[arg(long, value_delimiter = ',', default_values = ["replay", "sweep", "memory"])]
    part: Vec<Part>,
    /// Where the journals are
    #[arg(long, value_delimiter = ',', default_values = ["memory", "file", "sqlite"])]
    backend: Vec<Backend>,
    /// Unfinished messages at the start
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    unfinished: u64,
    /// Finished messages beside which is swept, in growing numbers
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 100_000, 1_000_000])]
    finished: Vec<u64>,
    /// Messages over which the memory is looked at
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    messages: u64,
    /// Draw the memory over the messages to a file as well
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Measure one part over one backend, in this process
    #[arg(long, hide = true)]
    alone: bool,
    /// Where the memory over the messages is noted
    #[arg(long, hide = true)]
    curve: Option<PathBuf>,
    /// Cargo says it to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    if let ([part], [backend], true) = (&args.part[..], &args.backend[..], args.alone) {
        return measure(&args, *part, *backend);
    }
    println!("load of the machine at the start: {}", host::load());
    let folder = tempfile::tempdir().unwrap();
    for &part in &args.part {
        match part {
            Part::Replay => replay::print_heading(args.unfinished),
            Part::Sweep => sweep::print_heading(),
            Part::Memory => memory::print_heading(args.messages),
        }
        for &backend in &args.backend {
            let curve = folder.path().join(backend.name());
            measure_alone(&args, part, backend, &curve);
        }
    }
    if let Some(path) = &args.svg {
        let read =
            |backend: &Backend| Some((backend.name(), memory::read(&folder.path().join(backend.name()))?));
        let curves: Vec<_> = args.backend.iter().filter_map(read).collect();
        std::fs::write(path, plot::svg(&curves)).unwrap();
        println!("\ndrawn to {}", path.display());
    }
    println!("\nload of the machine at the end: {}", host::load());
}

/// Measures in a process of its own: memory that was freed before would hide what is needed now.
fn measure_alone(args: &Args, part: Part, backend: Backend, curve: &Path) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let finished: Vec<_> = args.finished.iter().map(u64::to_string).collect();
    command.args(["--part", part.to_possible_value().unwrap().get_name(), "--backend", backend.name()]);
    command.args(["--unfinished", &args.unfinished.to_string(), "--finished", &finished.join(",")]);
    command.args(["--messages", &args.messages.to_string(), "--alone", "--curve"]).arg(curve);
    let status = command.status().unwrap();
    assert!(status.success(), "{status}");
}

fn measure(args: &Args, part: Part, backend: Backend) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("bot.db");
    match part {
        Part::Replay => {
            replay::run(backend, &file, args.unfinished, false);
            replay::run(backend, &folder.path().join("replies.db"), args.unfinished, true);
        }
        Part::Sweep => sweep::run(backend, &file, &args.finished),
        Part::Memory => memory::run(backend, &file, args.messages, args.curve.as_deref()),
    }
}
