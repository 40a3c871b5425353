//! What is printed and written.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bot::Backend;
use crate::load::{Cell, IDLE_CHATS, Measured, PerMessage};
use crate::message::Template;

/// The aims: at many chats this share of the bare program's rate, alone this multiple of its median cycle.
const AIM_RATE: f64 = 0.5;
const AIM_CYCLE: f64 = 1.5;

pub(crate) struct Report {
    bytes: usize,
    seconds: f64,
    rounds: u32,
    idle: Option<f64>,
    lines: Vec<Line>,
    allocations: Vec<(Backend, u32, (f64, f64))>,
}

/// A line of the table: the medians of the rounds.
struct Line {
    cell: Option<Cell>,
    chats: u32,
    median: Measured,
    /// Beside the bare program of the same round: its rate, and its median cycle.
    rate: Option<Ratio>,
    cycle: Option<Ratio>,
}

/// The median of the rounds, and the extremes.
#[derive(Clone, Copy)]
struct Ratio {
    median: f64,
    min: f64,
    max: f64,
}

impl Ratio {
    fn of(ratios: impl Iterator<Item = f64>) -> Option<Self> {
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_unstable_by(f64::total_cmp);
        Some(Self { median: *ratios.get(ratios.len() / 2)?, min: *ratios.first()?, max: *ratios.last()? })
    }

    fn json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

fn median_of(rounds: &[Measured]) -> Measured {
    let median = |of: &dyn Fn(&Measured) -> f64| Ratio::of(rounds.iter().map(of)).map_or(0.0, |r| r.median);
    let time = |of: &dyn Fn(&Measured) -> Duration| {
        Duration::from_secs_f64(median(&|round| of(round).as_secs_f64()))
    };
    Measured {
        rate: median(&|round| round.rate),
        p50: time(&|round| round.p50),
        p99: time(&|round| round.p99),
        per_message: PerMessage {
            commits: median(&|round| round.per_message.commits),
            writes: median(&|round| round.per_message.writes),
            runtime_sleeps: median(&|round| round.per_message.runtime_sleeps),
            writer_sleeps: median(&|round| round.per_message.writer_sleeps),
        },
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

impl Report {
    pub(crate) fn new(template: &Template, seconds: f64, rounds: u32) -> Self {
        Self {
            bytes: template.bytes(),
            seconds,
            rounds,
            idle: None,
            lines: Vec::new(),
            allocations: Vec::new(),
        }
    }

    pub(crate) fn print_heading(&self) {
        println!(
            "One message: admit, journal, handler, one reply journaled, sent, done. Three commits of together {} bytes.\n\
             A cycle: from the call of `admit` until the commit returned that makes the message done; then the chat \
             admits\nits next message. bare: a program that makes the same commits with rusqlite, on the same disk in \
             turns with the\nbot. Medians of {} rounds of {:.1} s.\n",
            self.bytes, self.rounds, self.seconds,
        );
        println!(
            "{:<7} {:<8} {:>5} {:>9} {:>9} {:>9}  {:>8} {:>8}  {:>8} {:>7} {:>8} {:>7}",
            "",
            "",
            "",
            "messages",
            "cycle",
            "cycle",
            "rate to",
            "p50 to",
            "commits",
            "writes",
            "runtime",
            "writer"
        );
        println!(
            "{:<7} {:<8} {:>5} {:>9} {:>9} {:>9}  {:>8} {:>8}  {:>8} {:>7} {:>8} {:>7}",
            "journal",
            "runtime",
            "chats",
            "/ s",
            "p50 µs",
            "p99 µs",
            "bare",
            "bare",
            "/ msg",
            "/ msg",
            "sleeps",
            "sleeps"
        );
    }

    pub(crate) fn add_idle(&mut self, bytes: f64) {
        self.idle = Some(bytes);
    }

    /// Adds the rounds of a setting, and prints its lines.
    pub(crate) fn add_cells(&mut self, bare: &[Measured], cells: Vec<(Cell, Vec<Measured>)>) {
        let first = self.lines.len();
        if let (false, Some((cell, _))) = (bare.is_empty(), cells.first()) {
            let median = median_of(bare);
            self.lines.push(Line { cell: None, chats: cell.chats, median, rate: None, cycle: None });
        }
        for (cell, rounds) in cells {
            let pairs = || rounds.iter().zip(bare);
            self.lines.push(Line {
                cell: Some(cell),
                chats: cell.chats,
                median: median_of(&rounds),
                rate: Ratio::of(pairs().map(|(bot, bare)| bot.rate / bare.rate)),
                cycle: Ratio::of(pairs().map(|(bot, bare)| micros(bot.p50) / micros(bare.p50))),
            });
        }
        for line in &self.lines[first..] {
            line.print();
        }
    }

    pub(crate) fn add_allocations(&mut self, backend: Backend, chats: u32, counted: (f64, f64)) {
        self.allocations.push((backend, chats, counted));
    }

    pub(crate) fn print_findings(&self) {
        println!(
            "\nsleeps: how often, for each message, threads of the runtime and the thread that writes waited for each \
             other or\nfor the disk (voluntary context switches)."
        );
        self.print_chart();
        println!("\nallocations on the runtime's thread, for each message, counted apart from the times:");
        for (backend, chats, (count, bytes)) in &self.allocations {
            println!("  {:<7} {chats:>4} chats {count:>8.0} of together {bytes:.0} bytes", backend.name());
        }
        if let Some(idle) = self.idle {
            println!(
                "\nmemory of an idle chat: {idle:.0} bytes (growth of the process over {IDLE_CHATS} chats that wrote \
                 once, journals in SQLite)"
            );
        }
    }

    fn print_chart(&self) {
        const WIDTH: f64 = 50.0;
        if self.lines.iter().all(|line| line.rate.is_none()) {
            return;
        }
        let bar =
            |share: f64, full: f64| "#".repeat((share / full * WIDTH).round().clamp(0.0, 60.0) as usize);
        println!("\nrate beside the bare program (100 %):");
        for (line, name, ratio) in self.compared(|line| line.rate) {
            let aim = match line.chats {
                1 => String::new(),
                _ => verdict(ratio.median >= AIM_RATE, "aim: at least 50 %"),
            };
            let Ratio { median, min, max } = ratio;
            println!(
                "  {name:<20} {:<50} {:>4.0} % ({:.0} to {:.0}) {aim}",
                bar(median, 1.0),
                100.0 * median,
                100.0 * min,
                100.0 * max
            );
        }
        println!("\nmedian cycle beside the bare program (1.0):");
        for (line, name, ratio) in self.compared(|line| line.cycle) {
            let aim = match line.chats {
                1 => verdict(ratio.median <= AIM_CYCLE, "aim: at most 1.5"),
                _ => String::new(),
            };
            let Ratio { median, min, max } = ratio;
            println!("  {name:<20} {:<50} {median:>4.2} ({min:.2} to {max:.2}) {aim}", bar(median, 2.5));
        }
    }

    fn compared(&self, of: fn(&Line) -> Option<Ratio>) -> Vec<(&Line, String, Ratio)> {
        let compared = self.lines.iter().filter_map(|line| {
            let cell = line.cell?;
            let name = format!("{} chats, {}", cell.chats, cell.runtime.name());
            Some((line, name, of(line)?))
        });
        compared.collect()
    }

    pub(crate) fn json(&self) -> String {
        let allocations = self.allocations.iter().map(|(backend, chats, (count, bytes))| {
            json!({ "backend": backend.name(), "chats": chats, "count": count, "bytes": bytes })
        });
        let report = json!({
            "bytes_per_message": self.bytes,
            "seconds": self.seconds,
            "rounds": self.rounds,
            "results": self.lines.iter().map(Line::json).collect::<Vec<_>>(),
            "allocations_per_message": allocations.collect::<Vec<_>>(),
            "idle_chat_bytes": self.idle,
        });
        format!("{report:#}\n")
    }
}

fn verdict(reached: bool, aim: &str) -> String {
    let verdict = if reached { "reached" } else { "MISSED" };
    format!("{aim}, {verdict}")
}

impl Line {
    fn name(&self) -> (&'static str, &'static str) {
        match self.cell {
            Some(cell) => (cell.backend.name(), cell.runtime.name()),
            None => ("sqlite", "bare"),
        }
    }

    fn print(&self) {
        let (backend, runtime) = self.name();
        let Measured { rate, p50, p99, per_message } = self.median;
        print!(
            "{backend:<7} {runtime:<8} {:>5} {rate:>9.0} {:>9.1} {:>9.1}",
            self.chats,
            micros(p50),
            micros(p99)
        );
        let percent = self.rate.map_or(String::new(), |ratio| format!("{:.0} %", 100.0 * ratio.median));
        let times = self.cycle.map_or(String::new(), |ratio| format!("{:.2}x", ratio.median));
        print!("  {percent:>8} {times:>8}");
        if self.cell.is_some() {
            let PerMessage { commits, writes, runtime_sleeps, writer_sleeps } = per_message;
            print!("  {commits:>8.2} {writes:>7.2} {runtime_sleeps:>8.2} {writer_sleeps:>7.2}");
        }
        println!();
    }

    fn json(&self) -> Value {
        let (backend, program) = self.name();
        let Measured { rate, p50, p99, per_message } = self.median;
        let mut value = json!({
            "backend": backend,
            "program": program,
            "chats": self.chats,
            "messages_per_second": rate,
            "p50_us": micros(p50),
            "p99_us": micros(p99),
            "rate_to_bare": self.rate.map(Ratio::json),
            "p50_to_bare": self.cycle.map(Ratio::json),
        });
        if self.cell.is_some() {
            value["per_message"] = json!({
                "commits": per_message.commits,
                "writes": per_message.writes,
                "runtime_sleeps": per_message.runtime_sleeps,
                "writer_sleeps": per_message.writer_sleeps,
            });
        }
        value
    }
}
