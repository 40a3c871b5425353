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

use clap::Parser;

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
    /// Cargo says it to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    println!("load of the machine at the start: {}\n", host::load());
    if args.part.contains(&Part::Replay) {
        replay::print_heading(args.unfinished);
        for &backend in &args.backend {
            for replies in [false, true] {
                in_folder(root.path(), |file| replay::run(backend, file, args.unfinished, replies));
            }
        }
    }
    if args.part.contains(&Part::Sweep) {
        sweep::print_heading();
        for &backend in &args.backend {
            in_folder(root.path(), |file| sweep::run(backend, file, &args.finished));
        }
    }
    if args.part.contains(&Part::Memory) {
        memory::print_heading(args.messages);
        let curves = args.backend.iter().map(|&backend| {
            in_folder(root.path(), |file| (backend.name(), memory::run(backend, file, args.messages)))
        });
        let curves: Vec<_> = curves.collect();
        if let Some(path) = args.svg {
            std::fs::write(&path, plot::svg(&curves)).unwrap();
            println!("\ndrawn to {}", path.display());
        }
    }
    println!("\nload of the machine at the end: {}", host::load());
}

/// Runs with a file in a folder of its own, which is removed afterwards.
fn in_folder<T>(root: &Path, run: impl FnOnce(&Path) -> T) -> T {
    let folder = tempfile::tempdir_in(root).unwrap();
    run(&folder.path().join("bot.db"))
}
