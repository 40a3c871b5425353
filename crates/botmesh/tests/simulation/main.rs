//! Random runs of three replicas in virtual time: messages, crashes at every write and call, standstills, deploys of a changed
//! bot, and timers. Nothing is lost, nothing is answered twice, and no conversation forgets or repeats what it heard.
//!
//! `BOTMESH_SIMULATE=5000` runs so many seeds, and `BOTMESH_SIMULATE=17..18` runs these; `cargo xtask simulate` sets it.

mod run;
mod shop;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const SEEDS: Range<u64> = 0..1000;
/// How many failures are told; the others are counted.
const TOLD: usize = 3;

#[test]
fn replicas_lose_nothing_and_answer_nothing_twice() {
    let seeds = seeds().unwrap_or_else(|problem| panic!("BOTMESH_SIMULATE: {problem}"));
    let (next, failures) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(failure) = simulate(seed) {
                        failures.lock().expect("no panic holds it").push((seed, failure));
                    }
                    let done = seed + 1 - seeds.start;
                    if done.is_multiple_of(500) {
                        println!("{done} seeds done");
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no panic holds it");
    failures.sort();
    for (_, failure) in failures.iter().take(TOLD) {
        println!("{failure}\n");
    }
    let failed: Vec<_> = failures.iter().map(|(seed, _)| seed).collect();
    assert!(failed.is_empty(), "{} of the seeds {seeds:?} failed: {failed:?}", failed.len());
    println!("simulated the seeds {seeds:?}");
}

fn simulate(seed: u64) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run::run(seed))));
    outcome.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map_or("it panicked", String::as_str);
        Err(format!("seed {seed}: {said}"))
    })
}

fn seeds() -> Result<Range<u64>, String> {
    let Ok(wanted) = std::env::var("BOTMESH_SIMULATE") else { return Ok(SEEDS) };
    let number =
        |text: &str| text.trim().parse::<u64>().map_err(|_| format!("`{text}` is no number of seeds"));
    match wanted.split_once("..") {
        Some((from, to)) => Ok(number(from)?..number(to)?),
        None => Ok(0..number(&wanted)?),
    }
}
