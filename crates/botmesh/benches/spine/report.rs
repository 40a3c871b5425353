//! What is printed and written.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bot::Backend;
use crate::load::{Cell, Compared, IDLE_CHATS, Measured};
use crate::message::Template;

/// The aims: many chats at this share of the bare program's rate, one chat at this multiple of its median cycle.
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

#[derive(Clone, Copy)]
enum Program {
    Bare,
    InStep,
    Bot(Cell),
}

/// A line of the table: the medians of the rounds.
struct Line {
    backend: Backend,
    program: Program,
    chats: u32,
    rate: f64,
    p50: f64,
    p99: f64,
    commits: f64,
    writes: f64,
    runtime_sleeps: f64,
    writer_sleeps: f64,
    /// Beside the other programs of the same round: the rates, and the median cycle.
    to_bare: Option<Ratio>,
    to_in_step: Option<Ratio>,
    cycle_to_bare: Option<Ratio>,
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

    /// Round by round.
    fn between(these: &[Measured], those: &[Measured], of: fn(&Measured) -> f64) -> Option<Self> {
        Self::of(these.iter().zip(those).map(|(this, that)| of(this) / of(that)))
    }

    fn json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn percent(ratio: Option<Ratio>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{:.0} %", 100.0 * ratio.median))
}

impl Line {
    fn new(program: Program, rounds: &[Measured], compared: &Compared) -> Self {
        let median = |of: &dyn Fn(&Measured) -> f64| {
            Ratio::of(rounds.iter().map(of)).map_or(0.0, |ratio| ratio.median)
        };
        let beside = |those: &[Measured], of: fn(&Measured) -> f64| match program {
            Program::Bot(_) => Ratio::between(rounds, those, of),
            Program::Bare | Program::InStep => None,
        };
        Self {
            backend: compared.backend,
            program,
            chats: compared.chats,
            rate: median(&|round| round.rate),
            p50: median(&|round| micros(round.p50)),
            p99: median(&|round| micros(round.p99)),
            commits: median(&|round| round.per_message.commits),
            writes: median(&|round| round.per_message.writes),
            runtime_sleeps: median(&|round| round.per_message.runtime_sleeps),
            writer_sleeps: median(&|round| round.per_message.writer_sleeps),
            to_bare: beside(&compared.bare, |round| round.rate),
            to_in_step: beside(&compared.in_step, |round| round.rate),
            cycle_to_bare: beside(&compared.bare, |round| micros(round.p50)),
        }
    }

    fn name(&self) -> (&'static str, &'static str) {
        let program = match self.program {
            Program::Bot(cell) => cell.runtime.name(),
            Program::Bare => "(bare)",
            Program::InStep => "(in step)",
        };
        (self.backend.name(), program)
    }

    fn print(&self) {
        let (backend, program) = self.name();
        let Self { chats, rate, p50, p99, .. } = self;
        let times = self.cycle_to_bare.map_or_else(String::new, |ratio| format!("{:.2}x", ratio.median));
        let (to_bare, to_in_step) = (percent(self.to_bare), percent(self.to_in_step));
        print!("{backend:<7} {program:<9} {chats:>5} {rate:>9.0} {p50:>9.1} {p99:>9.1}");
        print!("  {to_bare:>7} {to_in_step:>7} {times:>7}");
        match self.program {
            Program::Bot(_) => print!("  {:>7.2} {:>7.2}", self.commits, self.writes),
            Program::Bare | Program::InStep => print!("  {:>7} {:>7}", "", ""),
        }
        println!(" {:>7.2} {:>7.2}", self.runtime_sleeps, self.writer_sleeps);
    }

    fn json(&self) -> Value {
        let (backend, program) = self.name();
        json!({
            "journal": backend,
            "program": program.trim_matches(['(', ')']),
            "chats": self.chats,
            "messages_per_second": self.rate,
            "p50_us": self.p50,
            "p99_us": self.p99,
            "rate_to_bare": self.to_bare.map(Ratio::json),
            "rate_to_in_step": self.to_in_step.map(Ratio::json),
            "p50_to_bare": self.cycle_to_bare.map(Ratio::json),
            "per_message": {
                "commits": matches!(self.program, Program::Bot(_)).then_some(self.commits),
                "writes": matches!(self.program, Program::Bot(_)).then_some(self.writes),
                "runtime_sleeps": self.runtime_sleeps,
                "writer_sleeps": self.writer_sleeps,
            },
        })
    }
}

impl Report {
    pub(crate) fn new(template: &Template, seconds: f64, rounds: u32) -> Self {
        let bytes = template.bytes();
        Self { bytes, seconds, rounds, idle: None, lines: Vec::new(), allocations: Vec::new() }
    }

    pub(crate) fn print_heading(&self) {
        println!(
            "A message is admitted, journaled and handled; one reply is journaled and sent; both are noted as done: three\n\
             commits of together {} bytes. A cycle lasts from the call of `admit` until the last commit returned; then\n\
             the chat admits its next message. Medians of {} rounds of {:.1} s, in which the programs took turns.\n\n\
             (bare): the same commits by a program of nothing but rusqlite, or of appends and fdatasync: one thread that\n\
             writes and a task for each chat; for one chat, a thread that writes itself. (in step): one thread commits for all chats at once.\n\
             sleeps: how often threads of the runtime, and the one that writes, waited for each other or for the disk.\n",
            self.bytes, self.rounds, self.seconds,
        );
        for heads in [
            [
                "", "", "", "messages", "cycle", "cycle", "rate to", "rate to", "p50 to", "commits",
                "writes", "sleeps", "sleeps",
            ],
            [
                "journal", "runtime", "chats", "/ s", "p50 µs", "p99 µs", "bare", "in step", "bare", "/ msg",
                "/ msg", "runtime", "writer",
            ],
        ] {
            let [journal, runtime, chats, rate, p50, p99, bare, step, times, commits, writes, sleeps, writer] =
                heads;
            print!("{journal:<7} {runtime:<9} {chats:>5} {rate:>9} {p50:>9} {p99:>9}");
            println!("  {bare:>7} {step:>7} {times:>7}  {commits:>7} {writes:>7} {sleeps:>7} {writer:>7}");
        }
    }

    pub(crate) fn add_idle(&mut self, bytes: f64) {
        self.idle = Some(bytes);
    }

    /// Adds the rounds of a setting, and prints its lines.
    pub(crate) fn add(&mut self, compared: &Compared) {
        let bare = [(Program::Bare, &compared.bare), (Program::InStep, &compared.in_step)];
        let bots = compared.bots.iter().map(|(cell, rounds)| (Program::Bot(*cell), rounds));
        for (program, rounds) in bare.into_iter().chain(bots).filter(|(_, rounds)| !rounds.is_empty()) {
            let line = Line::new(program, rounds, compared);
            line.print();
            self.lines.push(line);
        }
    }

    pub(crate) fn add_allocations(&mut self, backend: Backend, chats: u32, counted: (f64, f64)) {
        self.allocations.push((backend, chats, counted));
    }

    pub(crate) fn print_findings(&self) {
        self.print_chart();
        println!("\nallocations of a message on the runtime's thread, counted apart from the times:");
        for (backend, chats, (count, bytes)) in &self.allocations {
            println!("  {:<7} {chats:>4} chats {count:>6.0} of together {bytes:>6.0} bytes", backend.name());
        }
        if let Some(idle) = self.idle {
            println!(
                "\nmemory of an idle chat: {idle:.0} bytes (growth of the process over {IDLE_CHATS} chats that wrote \
                 once, journals in SQLite)"
            );
        }
    }

    fn print_chart(&self) {
        let many = |line: &Line| line.chats > 1;
        let alone = |line: &Line| line.chats == 1;
        let aim = |reached: bool| if reached { "reached" } else { "MISSED" };
        self.print_bars("rate of many chats beside (bare); aim: 50 %", 0.5, &|line| {
            let ratio = line.to_bare.filter(|_| many(line))?;
            Some((ratio, aim(ratio.median >= AIM_RATE)))
        });
        self.print_bars("rate of many chats beside (in step), which is no aim", 0.5, &|line| {
            Some((line.to_in_step.filter(|_| many(line))?, ""))
        });
        self.print_bars("median cycle of one chat beside (bare); aim: at most 150 %", 0.25, &|line| {
            let ratio = line.cycle_to_bare.filter(|_| alone(line))?;
            Some((ratio, aim(ratio.median <= AIM_CYCLE)))
        });
    }

    /// A bar for each line that is in the chart; 1 % is `width` characters.
    fn print_bars(&self, title: &str, width: f64, of: &dyn Fn(&Line) -> Option<(Ratio, &'static str)>) {
        let bars: Vec<_> = self.lines.iter().filter_map(|line| Some((line, of(line)?))).collect();
        if bars.is_empty() {
            return;
        }
        println!("\n{title}:");
        for (line, (Ratio { median, min, max }, aim)) in bars {
            let [median, min, max] = [median, min, max].map(|ratio| 100.0 * ratio);
            let bar = "#".repeat((median * width).round().clamp(0.0, 80.0) as usize);
            let (backend, program) = line.name();
            println!(
                "  {backend:<6} {:>4} {program:<8} {bar} {median:.0} % ({min:.0} to {max:.0}) {aim}",
                line.chats
            );
        }
    }

    pub(crate) fn json(&self) -> String {
        let allocations = self.allocations.iter().map(|(backend, chats, (count, bytes))| {
            json!({ "journal": backend.name(), "chats": chats, "count": count, "bytes": bytes })
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
