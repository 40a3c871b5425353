//! A process that is killed in the middle of its commits.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};

use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh::core::kv::{DurableKv, Range};
use botmesh::core::time::Timestamp;

use crate::processes::value;
use crate::tools::{Place, block_on, child, close};

const LIVES: usize = 30;

/// What a task said of its last commit.
#[derive(Debug)]
struct Ack {
    n: u64,
    versions: [u64; 2],
    /// The version of the task's counter; 0 when it is removed.
    counter: u64,
}

fn ack(line: &str) -> Option<(String, Ack)> {
    let mut words = line.split_once("ack ")?.1.split(' ');
    let task = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    let (n, versions, counter) = (number()?, [number()?, number()?], number()?);
    Some((task, Ack { n, versions, counter }))
}

#[test]
fn killed_at_random_nothing_acknowledged_is_lost_and_nothing_is_half_there() {
    let seed = std::env::var("BOTMESH_SEED").ok().map_or(20_260_501, |seed| seed.parse().unwrap());
    let entropy = SeededEntropy::new(seed);
    let place = Place::new();
    let mut tasks: HashMap<String, Vec<Ack>> = HashMap::new();
    let (mut highest, mut acknowledged) = (0, 0);
    for life in 1..=LIVES {
        let mut process = child(&[], "commit", &place.path()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut acks = lines.map_while(Result::ok).filter_map(|line| ack(&line));
        let enough = 1 + entropy.next_u64() as usize % 250;
        let mut new: Vec<_> = acks.by_ref().take(enough).collect();
        assert_eq!(new.len(), enough, "seed {seed}: the child ended by itself");
        process.kill().unwrap();
        new.extend(acks);
        process.wait().unwrap();
        acknowledged += new.len();
        for (task, ack) in new {
            let lowest = ack.versions[0].min(ack.versions[1]);
            assert!(lowest > highest, "seed {seed}, life {life}: a version was given twice");
            tasks.entry(task).or_default().push(ack);
        }
        highest = check(&place, &tasks).max(highest);
    }
    println!("seed {seed}: {LIVES} kills, {acknowledged} commits");
}

/// Compares what is there with what was said; returns the highest version.
fn check(place: &Place, tasks: &HashMap<String, Vec<Ack>>) -> u64 {
    let file = place.open().unwrap();
    let range = Range::Due { until: Timestamp::MAX };
    let entries = block_on(file.scoped("bot").scan(range, None, usize::MAX)).unwrap();
    close(&file);
    let found: HashMap<_, _> =
        entries.iter().map(|entry| (String::from_utf8_lossy(&entry.key).into_owned(), entry)).collect();
    let versions: HashSet<_> = entries.iter().map(|entry| entry.version).collect();
    assert_eq!((found.len(), versions.len()), (entries.len(), entries.len()), "something is there twice");
    for (task, acks) in tasks {
        for Ack { n, versions, .. } in acks {
            for (half, version) in ["a", "b"].iter().zip(versions) {
                let key = format!("{task}/{n}/{half}");
                let entry = found.get(&key).unwrap_or_else(|| panic!("{key} is lost"));
                assert_eq!((entry.version.0, &entry.value[..]), (*version, &value(&key)[..]), "{key}");
            }
        }
        // The commit after the last acknowledged one may be there too, but then all of it.
        let Some(last) = acks.last() else { continue };
        let next = ["a", "b"].map(|half| found.contains_key(&format!("{task}/{}/{half}", last.n + 1)));
        assert_eq!(next[0], next[1], "half a commit of {task}");
        let counter = found.get(task).map_or(0, |entry| entry.version.0);
        assert_eq!(counter == last.counter, !next[0], "the counter of {task}: {counter}, {last:?}, {next:?}");
    }
    for key in found.keys().filter(|key| key.ends_with("/a")) {
        let other = format!("{}b", &key[..key.len() - 1]);
        assert!(found.contains_key(&other), "{key} is there without {other}");
    }
    versions.iter().map(|version| version.0).max().unwrap_or(0)
}
