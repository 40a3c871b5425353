//! Nanoseconds in which teloxide's types read an update, one line for each line of the standard input, or `-` where they
//! cannot: `botmesh-bench-teloxide MILLISECONDS`, the time for each.

use std::hint::black_box;
use std::io::read_to_string;
use std::time::{Duration, Instant};

use teloxide_core::types::{Update, UpdateKind};

fn main() {
    let limit: u64 = std::env::args().nth(1).and_then(|limit| limit.parse().ok()).expect("give MILLISECONDS");
    let updates = read_to_string(std::io::stdin()).expect("updates");
    for update in updates.lines() {
        match serde_json::from_str::<Update>(update) {
            Ok(Update { kind: UpdateKind::Error(_), .. }) | Err(_) => println!("-"),
            Ok(_) => println!("{}", nanos(update, Duration::from_millis(limit))),
        }
    }
}

fn nanos(update: &str, limit: Duration) -> u128 {
    let (begun, mut times) = (Instant::now(), 0);
    while begun.elapsed() < limit {
        for _ in 0..100 {
            black_box(serde_json::from_slice::<Update>(black_box(update.as_bytes()))).expect("it was read before");
        }
        times += 100;
    }
    begun.elapsed().as_nanos() / times
}
