//! The memory of a process over many messages.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use botmesh::Ctx;

use crate::bot::{Backend, Opened, Running, RuntimeKind, spawn};
use crate::fill::{EACH, INSTANCE};
use crate::host::{memory, now, sleep};
use crate::message::ANSWERED;

/// Chats that write at the same time.
const LANES: u32 = 256;

/// How often the memory is looked at.
const LOOKS: u64 = 20;

/// How long finished messages are kept where they are in memory.
const RETENTION: Duration = Duration::from_secs(1);

/// Memory in MiB over messages.
pub(crate) type Curve = Vec<(u64, f64)>;

pub(crate) fn print_heading(messages: u64) {
    println!(
        "\nMEMORY: {messages} messages with one reply each, {EACH} of each chat, {LANES} chats at a time; what belongs to the\n\
         process alone, in MiB. In SQLite all of them are kept; in memory and in the file, which is in memory too, for\n\
         {RETENTION:.0?}."
    );
}

pub(crate) fn run(backend: Backend, file: &Path, messages: u64, note: Option<&Path>) {
    let curve = measure(backend, file, messages);
    if let Some(path) = note {
        let lines = curve.iter().map(|(messages, memory)| format!("{messages} {memory}\n"));
        std::fs::write(path, lines.collect::<String>()).unwrap();
    }
}

/// What [`run`] noted; `None` if it did not run.
pub(crate) fn read(path: &Path) -> Option<Curve> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines()
        .map(|line| {
            let (messages, memory) = line.split_once(' ')?;
            Some((messages.parse().ok()?, memory.parse().ok()?))
        })
        .collect()
}

fn measure(backend: Backend, file: &Path, messages: u64) -> Curve {
    RuntimeKind::Current.build().block_on(async {
        let opened = Opened::new(backend, file).await;
        let settings = |durability: botmesh::Durability| {
            let durability = durability.with_instance_id(INSTANCE);
            match backend {
                Backend::Sqlite => durability,
                Backend::Memory | Backend::File => durability.with_retention(RETENTION),
            }
        };
        let answer = async |c: Ctx| c.reply(ANSWERED).await;
        let running = Running::start_on(opened, LANES, settings, |bot| bot.otherwise(answer)).await;
        let running = Arc::new(running);
        let begun = now();
        let lanes = (0..LANES).map(|lane| spawn(talk(Arc::clone(&running), lane, messages)));
        let lanes: Vec<_> = lanes.collect();
        let mut curve = Curve::new();
        for look in 1..=LOOKS {
            let until = messages * look / LOOKS;
            while running.probe.done_records() < until {
                sleep(Duration::from_millis(5)).await;
            }
            curve.push((until, memory()));
        }
        for lane in lanes {
            lane.await.unwrap();
        }
        let rate = messages as f64 / begun.elapsed().as_secs_f64();
        Arc::into_inner(running).unwrap().stop().await;
        print(backend, rate, &curve);
        curve
    })
}

async fn talk(running: Arc<Running>, lane: u32, messages: u64) {
    let lanes = u64::from(LANES);
    let share = messages / lanes + u64::from(u64::from(lane) < messages % lanes);
    for number in 0..share {
        // A new chat now and then, of the same lane.
        let chat = lane + LANES * (number / EACH) as u32;
        running.cycle(chat, number).await;
    }
}

fn print(backend: Backend, rate: f64, curve: &Curve) {
    let values = curve.iter().map(|(_, memory)| format!("{memory:.0}"));
    println!("{:<8} {rate:>6.0} / s: {}", backend.name(), values.collect::<Vec<_>>().join(" "));
}
