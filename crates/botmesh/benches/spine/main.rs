//! The full durable cycle of a message, beside a bare program that makes the same three commits on the same disk.
//!
//! A cycle begins when the channel calls `admit` and ends when the commit returned that makes the message done: the
//! inbound record is durable, the handler ran, its reply is durable, the channel took it, and "sent" and "done" are
//! durable. Each chat admits its next message when it learns of that, so that N chats are N messages in flight.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

mod bare;
mod bot;
mod host;
mod load;
mod message;
#[expect(dead_code, reason = "the bench of the journals uses the rest")]
mod probe;
mod report;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;

use crate::bot::{Backend, RuntimeKind};
use crate::load::Plan;
use crate::report::Report;

/// Measure the full durable cycle of a message: admit, journal, handler, one reply journaled, sent, done
#[derive(Parser)]
#[command(name = "cargo xtask bench spine --")]
struct Args {
    /// Measured seconds of each round
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// How often each program runs; the programs take turns, so that a noisy machine disturbs all of them
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How many chats write at the same time
    #[arg(long, value_delimiter = ',', default_values_t = [1, 256], value_parser = clap::value_parser!(u32).range(1..=4096))]
    chats: Vec<u32>,
    /// Where the journals are
    #[arg(long, value_delimiter = ',', default_values = ["memory", "file", "sqlite"])]
    backend: Vec<Backend>,
    /// Which Tokio runtime. One thread suits a bot best: the handlers' thread wakes nobody but the thread that writes
    #[arg(long, value_delimiter = ',', default_values = ["current"])]
    runtime: Vec<RuntimeKind>,
    /// Write the figures to a file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
    let json = args.json.map(create);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let template = Arc::new(message::capture());
    let mut report = Report::new(&template, args.seconds, args.rounds);
    report.print_heading();
    if args.backend.contains(&Backend::Sqlite) {
        // First, while the process is small: memory that was freed before would hide what is needed now.
        report.add_idle(load::idle_chats(&folder.path().join("idle.db")));
    }
    let plan = Plan {
        rounds: args.rounds,
        round: Duration::from_secs_f64(args.seconds),
        folder: folder.path().to_owned(),
    };
    for &backend in &args.backend {
        for &chats in &args.chats {
            report.add(&plan.compare(backend, chats, &args.runtime, &template));
        }
    }
    for &backend in &args.backend {
        for &chats in &args.chats {
            report.add_allocations(backend, chats, load::allocations(backend, chats, folder.path()));
        }
    }
    report.print_findings();
    if let Some((path, mut file)) = json {
        file.write_all(report.json().as_bytes()).unwrap();
        println!("\nwritten to {}", path.display());
    }
}

/// Makes the file before anything is measured, so that a wrong path costs no time.
fn create(path: PathBuf) -> (PathBuf, File) {
    match File::create(&path) {
        Ok(file) => (path, file),
        Err(error) => {
            eprintln!("error: {} cannot be written: {error}", path.display());
            std::process::exit(1);
        }
    }
}
