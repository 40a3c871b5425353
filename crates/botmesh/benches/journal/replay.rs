//! A start after a crash.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use botmesh::Ctx;

use crate::bot::{Backend, Opened, Running, RuntimeKind, spawn};
use crate::fill::{INSTANCE, unfinished};
use crate::host::{memory, now, sleep};
use crate::message::{ANSWERED, inbound};

/// The aim, in messages per second.
const AIM: f64 = 10_000.0;

pub(crate) fn print_heading(count: u64) {
    println!(
        "REPLAY: a process starts where another was killed, with {count} messages unfinished. open: until the backend is\n\
         open. let in: until all of them are taken up and new messages are let in. done: until the last is handled.\n\
         held: the most that were taken up and not done at any time. memory: growth of the process meanwhile, at most.\n\
         The aim is {AIM:.0} / s until the last is done, without a reply."
    );
    println!(
        "{:<8} {:<9} {:>8} {:>10} {:>8} {:>9} {:>7} {:>9}",
        "journal", "handler", "open s", "let in s", "done s", "done / s", "held", "memory"
    );
}

pub(crate) fn run(backend: Backend, file: &Path, count: u64, replies: bool) {
    RuntimeKind::Current.build().block_on(async {
        let opened = Opened::new(backend, file).await;
        unfinished(&opened, count).await;
        let begun = now();
        let opened = match backend {
            // Nothing else outlives the process that filled it.
            Backend::Memory => opened,
            Backend::File | Backend::Sqlite => {
                opened.close().await;
                Opened::new(backend, file).await
            }
        };
        let open = begun.elapsed().as_secs_f64();
        replay(backend, opened, count, replies, open).await;
    });
}

async fn replay(backend: Backend, opened: Opened, count: u64, replies: bool, open: f64) {
    let over = Arc::new(AtomicBool::new(false));
    let before = memory();
    let peak = spawn(watch_memory(Arc::clone(&over)));
    let begun = now();
    let running = Running::start_on(
        opened,
        1,
        |durability| durability.with_instance_id(INSTANCE),
        |bot| {
            bot.otherwise(move |c: Ctx| async move {
                if replies { c.reply(ANSWERED).await.map(drop) } else { Ok(()) }
            })
        },
    )
    .await;
    let admitted = running.sink().admit(inbound(0, u64::MAX >> 32)).await.unwrap();
    assert!(!admitted.duplicate);
    let let_in = begun.elapsed().as_secs_f64();
    while running.probe.done_records() < count + 1 {
        sleep(Duration::from_millis(2)).await;
    }
    let done = begun.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    let growth = peak.await.unwrap() - before;
    let held = running.probe.most_held();
    running.stop().await;
    let rate = count as f64 / done;
    let aim = match replies {
        false if rate >= AIM => "reached",
        false => "MISSED",
        true => "",
    };
    let handler = if replies { "one reply" } else { "no reply" };
    println!(
        "{:<8} {handler:<9} {open:>8.2} {let_in:>10.2} {done:>8.2} {rate:>9.0} {held:>7} {growth:>5.0} MiB {aim}",
        backend.name()
    );
}

/// The most memory until it is over, in MiB.
async fn watch_memory(over: Arc<AtomicBool>) -> f64 {
    let mut peak = 0.0_f64;
    while !over.load(Ordering::Relaxed) {
        peak = peak.max(memory());
        sleep(Duration::from_millis(20)).await;
    }
    peak
}
