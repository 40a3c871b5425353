//! A step with a checkpoint beside one without.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use botmesh::{BotBuilder, Ctx, Flow, flow};

use crate::bot::{Backend, Opened, Running, RuntimeKind, spawn};
use crate::host::now;
use crate::message::ANSWERED;

/// Who answers with one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Handler,
    Flow,
    PersistentFlow,
}

const PROGRAMS: [Program; 3] = [Program::Handler, Program::Flow, Program::PersistentFlow];

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::Flow => "flow",
            Self::PersistentFlow => "persistent flow",
        }
    }

    fn routes(self, builder: BotBuilder) -> BotBuilder {
        let asks = || -> Flow<()> {
            flow("booking").label("again").ask("day", ANSWERED, |_, _| Ok(())).goto("again")
        };
        let enter = async |c: Ctx| c.enter("booking");
        match self {
            Self::Handler => builder.otherwise(async |c: Ctx| c.reply(ANSWERED).await),
            Self::Flow => builder.otherwise(enter).flow(asks()),
            Self::PersistentFlow => builder.otherwise(enter).flow(asks().persistent()),
        }
    }
}

pub(crate) fn print_heading(rounds: u32, seconds: f64) {
    println!(
        "\nSTEP: a message with one reply, from `admit` until it is done, three commits of the journals. handler: without a\n\
         conversation. flow: an `ask` step of a flow in memory, whose checkpoint is not written to the store. persistent\n\
         flow: the same with its checkpoint in the store of the same backend, one commit more. Medians of {rounds} rounds of\n\
         {seconds:.1} s in which the programs took turns; in brackets the extremes.\n"
    );
    println!(
        "{:<8} {:>5} {:<16} {:>10} {:>8}  p50 beside flow",
        "backend", "chats", "program", "messages/s", "p50 µs"
    );
}

/// What a round came to.
struct Round {
    rate: f64,
    p50: f64,
}

pub(crate) fn run(backend: Backend, folder: &Path, chats: u32, rounds: u32, length: Duration) {
    let runtime = RuntimeKind::Current.build();
    let measured = runtime.block_on(async {
        let mut programs = Vec::new();
        for program in PROGRAMS {
            let file = folder.join(format!("{}-{chats}-{program:?}.db", backend.name()));
            let opened = Opened::new(backend, &file).await;
            let running =
                Running::start_on(opened, chats, |durability| durability, |bot| program.routes(bot));
            let running = Arc::new(running.await);
            // Begins the flows.
            round(&running, chats, 0, Duration::ZERO).await;
            programs.push((running, 1));
        }
        let mut measured: [Vec<Round>; 3] = Default::default();
        for _ in 0..rounds {
            for ((running, next), rounds) in programs.iter_mut().zip(&mut measured) {
                let (round, last) = round(running, chats, *next, length).await;
                *next = last;
                rounds.push(round);
            }
        }
        for (running, _) in programs {
            Arc::into_inner(running).unwrap().stop().await;
        }
        measured
    });
    print(backend, chats, &measured);
}

/// Every chat writes one message after the other, at least one, beginning with this number. Returns the next number.
async fn round(running: &Arc<Running>, chats: u32, first: u64, length: Duration) -> (Round, u64) {
    let begun = now();
    let tasks: Vec<_> =
        (0..chats).map(|chat| spawn(talk(Arc::clone(running), chat, first, begun + length))).collect();
    let mut cycles = Vec::new();
    let mut next = first;
    for task in tasks {
        let talked = task.await.unwrap();
        next = next.max(first + talked.len() as u64);
        cycles.extend(talked);
    }
    let rate = cycles.len() as f64 / begun.elapsed().as_secs_f64();
    (Round { rate, p50: median(cycles.iter().map(|cycle| cycle.as_secs_f64() * 1e6)) }, next)
}

async fn talk(running: Arc<Running>, chat: u32, first: u64, until: Instant) -> Vec<Duration> {
    let mut cycles = Vec::new();
    for number in first.. {
        let begun = now();
        running.cycle(chat, number).await;
        cycles.push(begun.elapsed());
        if now() >= until {
            break;
        }
    }
    cycles
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(backend: Backend, chats: u32, measured: &[Vec<Round>; 3]) {
    let [_, flow, _] = measured;
    for (program, rounds) in PROGRAMS.iter().zip(measured) {
        let (rate, p50) = (median(rounds.iter().map(|r| r.rate)), median(rounds.iter().map(|r| r.p50)));
        let ratios = || rounds.iter().zip(flow).map(|(this, flow)| this.p50 / flow.p50);
        let (ratio, min, max) =
            (median(ratios()), ratios().fold(f64::MAX, f64::min), ratios().fold(0.0, f64::max));
        let bar = "#".repeat((ratio * 20.0).round().clamp(0.0, 60.0) as usize);
        println!(
            "{:<8} {chats:>5} {:<16} {rate:>10.0} {p50:>8.1}  {bar} {ratio:.2}x ({min:.2} to {max:.2})",
            backend.name(),
            program.name()
        );
    }
}
