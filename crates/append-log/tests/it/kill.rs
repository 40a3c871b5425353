//! SIGKILL at any moment.

use std::collections::BTreeSet;
use std::fs;

use crate::child::{Process, bulk};
use crate::support::{Journal, entries, payload, records};

/// Kills a child once it has said so many lines, and returns the last sequence number that it acknowledged.
fn kill_after(mut process: Process, lines: u64) -> u64 {
    let mut acknowledged = 0;
    let mut hear = |line: &str| {
        let number = line.strip_prefix("ack ").unwrap_or_else(|| panic!("the child says: {line}"));
        acknowledged = number.parse().unwrap();
    };
    for _ in 0..lines {
        hear(&process.line());
    }
    process.kill().lines().for_each(&mut hear);
    acknowledged
}

/// Kills a child that appends and compacts, again and again on the same journal, and checks after each death
/// that nothing acknowledged is missing and nothing else is there.
fn kill_again_and_again(role: &str, times: u64) {
    let journal = Journal::new();
    let mut snapshots = BTreeSet::new();
    let mut torn = 0;
    for round in 0..times {
        let process = Process::start(role, &journal.path);
        let acknowledged = kill_after(process, 1 + round * 37 % 64);

        let log = journal.open();
        let mut found = records(&log);
        snapshots.insert(found.len());
        torn += u64::from(log.recovery().torn.is_some());
        found.extend(entries(&log).into_iter().map(|(_, payload)| payload));
        let last = found.len() as u64;
        assert!(
            last >= acknowledged && log.last_sequence() == last,
            "round {round}: {last} of {acknowledged}"
        );
        assert!(found.iter().zip(1..).all(|(found, number)| *found == payload(number)), "round {round}");
    }
    assert!(snapshots.len() > 1, "no compaction was ever done");
    println!("{role}: {times} deaths, {torn} torn tails, {} snapshots", snapshots.len());
}

#[test]
fn every_acknowledged_entry_survives_sigkill() {
    kill_again_and_again("append", 40);
}

#[test]
fn every_acknowledged_entry_survives_sigkill_without_sync() {
    kill_again_and_again("append-os", 40);
}

#[test]
fn a_write_that_sigkill_cuts_in_two_loses_nothing_acknowledged() {
    let journal = Journal::new();
    let (mut torn, times) = (0, 24);
    for round in 0..times {
        let mut process = Process::start("append-bulk", &journal.path);
        let first = process.line();
        // The kill should come while the file grows.
        let length = || fs::metadata(journal.log()).unwrap().len();
        let before = length();
        while length() == before {
            std::thread::yield_now();
        }
        let acknowledged = first.strip_prefix("ack ").unwrap().parse().unwrap();
        let acknowledged = kill_after(process, 0).max(acknowledged);
        let log = journal.open();
        torn += u64::from(log.recovery().torn.is_some());
        for entry in log.entries().unwrap() {
            let entry = entry.unwrap();
            assert!(entry.payload == bulk(entry.sequence), "round {round}: {}", entry.sequence);
        }
        assert!(
            log.last_sequence() >= acknowledged,
            "round {round}: {} of {acknowledged}",
            log.last_sequence()
        );
        log.close([""; 0]).unwrap();
    }
    println!("{times} deaths, {torn} torn tails");
}
