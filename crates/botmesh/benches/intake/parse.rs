//! What it costs to read an update: ours, and teloxide's types on the same JSON.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use botmesh_telegram::parse_update;
use serde_json::Value;

use crate::Spread;
use crate::load::now;
use crate::peer::Teloxide;

/// For each update, in each round.
const TIME: Duration = Duration::from_millis(20);

const PAYLOADS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../telegram/tests/payloads/updates");

pub(crate) fn run(rounds: u32) {
    let updates = updates(Path::new(PAYLOADS));
    let lines: Vec<&str> = updates.iter().map(|(_, update)| &**update).collect();
    let peer = Teloxide::build();
    let (mut ours, mut theirs) = (vec![Vec::new(); lines.len()], vec![Vec::new(); lines.len()]);
    for _ in 0..rounds {
        for (times, update) in ours.iter_mut().zip(&lines) {
            times.push(nanos(update.as_bytes()));
        }
        let read = peer.as_ref().map(|peer| peer.nanos(&lines, TIME)).unwrap_or_default();
        for (times, nanos) in theirs.iter_mut().zip(read) {
            times.extend(nanos);
        }
    }
    println!("\nTo read an update, in µs: medians of {rounds} rounds, in which the programs took turns.\n");
    println!("{:<44} {:>6} {:>8} {:>14}", "update", "bytes", "botmesh", "teloxide-core");
    let (mut sum, mut both) = ([0.0; 2], 0);
    for (((name, update), ours), theirs) in updates.iter().zip(ours).zip(theirs) {
        let ours = Spread::of(ours.into_iter()).median / 1e3;
        let beside = if theirs.is_empty() {
            "-".to_owned()
        } else {
            let theirs = Spread::of(theirs.into_iter()).median / 1e3;
            sum = [sum[0] + ours, sum[1] + theirs];
            both += 1;
            format!("{theirs:.2}")
        };
        println!("{name:<44} {:>6} {ours:>8.2} {beside:>14}", update.len());
    }
    match peer {
        Err(why) => println!("\nteloxide-core was not measured: {why}"),
        Ok(_) => {
            let [ours, theirs] = sum.map(|sum| sum / f64::from(both));
            println!(
                "\nmean of the {both} that both read: {ours:.2} µs beside {theirs:.2} µs, {:.2}x; - : teloxide cannot read it",
                ours / theirs
            );
        }
    }
}

/// Each update of the corpus on one line, with the name of its file.
fn updates(folder: &Path) -> Vec<(String, String)> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let read: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        match read {
            Value::Array(updates) => {
                found.extend(updates.iter().map(|update| (name.clone(), update.to_string())));
            }
            update => found.push((name, update.to_string())),
        }
    }
    found
}

fn nanos(update: &[u8]) -> f64 {
    assert!(parse_update(update).content.is_ok(), "every update of the corpus can be read");
    let (begun, mut times) = (now(), 0u32);
    while begun.elapsed() < TIME {
        for _ in 0..100 {
            drop(black_box(parse_update(black_box(update))));
        }
        times += 100;
    }
    begun.elapsed().as_nanos() as f64 / f64::from(times)
}
