//! Sweeps beside finished messages.

use std::path::Path;
use std::time::Duration;

use crate::bot::{Backend, Opened, Running, RuntimeKind};
use crate::fill::{INSTANCE, finished};
use crate::host::sleep;

/// How long is swept, and how often.
const SPAN: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(2);

pub(crate) fn print_heading() {
    println!(
        "\nSWEEP: a bot with nothing to do sweeps for {SPAN:.0?}, beside so many finished messages. Each sweep looks for what\n\
         is due, for what dead processes left and for what is to be purged. p50: the median time of a scan, so that a\n\
         noisy machine disturbs it little."
    );
    println!(
        "{:<8} {:>10} {:>8} {:>12} {:>13} {:>12}",
        "journal", "finished", "sweeps", "scans/sweep", "entries/sweep", "p50/scan"
    );
}

pub(crate) fn run(backend: Backend, file: &Path, counts: &[u64]) {
    RuntimeKind::Current.build().block_on(async {
        let mut opened = Opened::new(backend, file).await;
        let mut filled = 0;
        for &count in counts {
            finished(&opened, filled..count.max(filled)).await;
            filled = count.max(filled);
            opened = sweep(backend, opened, filled).await;
        }
        opened.close().await;
    });
}

async fn sweep(backend: Backend, opened: Opened, count: u64) -> Opened {
    let settings = |durability: botmesh::Durability| durability.with_instance_id(INSTANCE).with_poll(POLL);
    let running = Running::start_on(opened, 1, settings, |bot| bot.otherwise(async |_| ())).await;
    // The first ones look at everything that is unfinished, once.
    sleep(SPAN / 4).await;
    let before = running.probe.scanned();
    running.probe.scan_times();
    sleep(SPAN).await;
    let after = running.probe.scanned();
    let mut times = running.probe.scan_times();
    times.sort_unstable();
    let median = times[times.len() / 2].as_secs_f64() * 1e6;
    let opened = running.end().await;
    let sweeps = (after.sweeps - before.sweeps) as f64;
    let each = |after: u64, before: u64| (after - before) as f64 / sweeps;
    println!(
        "{:<8} {count:>10} {sweeps:>8} {:>12.1} {:>13.2} {median:>9.1} µs",
        backend.name(),
        each(after.calls, before.calls),
        each(after.entries, before.entries),
    );
    opened
}
