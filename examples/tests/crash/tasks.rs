//! A task on two processes that share a file, and are killed.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh::prelude::*;
use botmesh::{BotBuilder, Missed};

use crate::child::{Place, pause};
use crate::replica::{Replica, append, rest};
use crate::script::seed;

const PERIOD: Duration = Duration::from_millis(100);
const LEASE: Duration = Duration::from_secs(1);

/// Gives a replica a task that writes into `ticks` when a run begins and ends, with the name of its log, and sends the
/// instant in between. It stands still there while a file `hold-` with the name of the log exists.
pub(crate) fn ticking(bot: BotBuilder, folder: PathBuf, log: &Path) -> BotBuilder {
    let me = log.file_stem().expect("a name").to_string_lossy().into_owned();
    let schedule = Schedule::every(PERIOD).on_missed(Missed::All { at_most: 10_000 });
    bot.task("tick", schedule, move |c: TaskCtx| tick(folder.clone(), me.clone(), c))
}

async fn tick(folder: PathBuf, me: String, c: TaskCtx) -> Result {
    let (ticks, hold, at) =
        (folder.join("ticks"), folder.join(format!("hold-{me}")), c.scheduled().as_millis());
    append(&ticks, &format!("begin {at} {me}"))?;
    for _ in 0..20 {
        rest().await;
    }
    while hold.exists() {
        rest().await;
    }
    c.send("ana", at.to_string()).await?;
    append(&ticks, &format!("end {at} {me}"))?;
    Ok(())
}

#[derive(Debug)]
struct Run {
    at: i64,
    by: String,
    ended: bool,
}

/// The runs in the order in which they began. None begins beside another one.
fn runs(place: &Place) -> Vec<Run> {
    let ticks = String::from_utf8(place.bytes("ticks")).expect("text");
    let mut runs: Vec<Run> = Vec::new();
    for line in ticks.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [what, at, by] = fields[..] else { panic!("not a tick: {line}") };
        let (at, by) = (at.parse().expect("milliseconds"), by.to_owned());
        match (what, runs.last_mut()) {
            ("begin", _) => runs.push(Run { at, by, ended: false }),
            (_, Some(last)) if last.at == at && last.by == by && !last.ended => last.ended = true,
            (_, last) => panic!("{line}, but the last one that began is {last:?}"),
        }
    }
    runs
}

/// Each occurrence once, in order and without a gap; twice only if its process was killed within it. Returns how often that
/// was.
fn check(place: &Place, killed: &HashSet<String>) -> usize {
    let (runs, period) = (runs(place), i64::try_from(PERIOD.as_millis()).expect("a period"));
    let mut repeated = 0;
    for (n, pair) in runs.windows(2).enumerate() {
        let [before, next] = pair else { continue };
        if next.at == before.at {
            let later = &runs[n + 1..];
            let was_its_last = !later.iter().any(|run| run.by == before.by);
            assert!(killed.contains(&before.by) && was_its_last, "{before:?} runs again as {next:?}");
            repeated += 1;
        } else {
            assert!(before.ended, "{before:?} was not finished before {next:?}");
            assert_eq!(next.at - before.at, period, "{before:?} is followed by {next:?}");
        }
    }
    let mut sent: HashMap<String, usize> = HashMap::new();
    for line in String::from_utf8(place.bytes("sent")).expect("text").lines() {
        *sent.entry(line.to_owned()).or_default() += 1;
    }
    let twice: Vec<_> = sent.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "sent twice: {twice:?}");
    let instants: HashSet<i64> = runs.iter().map(|run| run.at).collect();
    // What is killed while it sends may not know whether it did.
    assert!(sent.len() + killed.len() >= instants.len(), "{} of {} sent", sent.len(), instants.len());
    repeated
}

fn wait_for_runs(place: &Place, count: usize) -> Vec<Run> {
    place.wait_for("runs", || Some(runs(place)).filter(|runs| runs.len() >= count))
}

#[test]
fn two_processes_run_each_occurrence_once_whichever_is_killed() {
    const KILLS: usize = 20;
    let seed = seed(5);
    let entropy = SeededEntropy::new(seed);
    let place = Place::new();
    let start = |instance: &str, life: usize| {
        Replica::start_ticking(&place, &format!("{instance}-{life}"), instance, LEASE)
    };
    let mut replicas = HashMap::from([("a", start("a", 0)), ("b", start("b", 0))]);
    let mut killed = HashSet::new();
    for life in 1..=KILLS {
        let more = 1 + entropy.next_u64() as usize % 5;
        let so_far = wait_for_runs(&place, runs(&place).len() + more);
        let by = &so_far[so_far.len() - 1].by;
        // Anywhere in its run, or after it.
        for _ in 0..entropy.next_u64() % 400 {
            pause();
        }
        let instance = if by.starts_with('a') { "a" } else { "b" };
        replicas.get_mut(instance).expect("a replica").kill();
        killed.insert(by.clone());
        replicas.insert(instance, start(instance, life));
    }
    wait_for_runs(&place, runs(&place).len() + 5);
    for replica in replicas.into_values() {
        replica.stop(&place);
    }
    let repeated = check(&place, &killed);
    println!("seed {seed}: {} runs, {repeated} of them cut short and repeated", runs(&place).len());
    assert!(repeated > 0, "seed {seed}: no kill cut a run short");
}

#[test]
fn what_a_killed_process_was_doing_is_done_by_another_one_that_repeats_nothing_else() {
    let place = Place::new();
    place.write("hold-a-0", "");
    let mut one = Replica::start_ticking(&place, "a-0", "a", LEASE);
    let cut = wait_for_runs(&place, 1).remove(0);
    let two = Replica::start_ticking(&place, "b-0", "b", LEASE);
    two.wait_for_line(&place, "all taken over");
    one.kill();
    wait_for_runs(&place, 6);
    two.stop(&place);
    let again = &runs(&place)[1];
    assert_eq!((again.at, again.by.as_str(), again.ended), (cut.at, "b-0", true));
    assert_eq!(check(&place, &HashSet::from(["a-0".to_owned()])), 1);
}
