//! Three processes of the desk on one Redis server, behind something that gives each message to any of them: killed, frozen
//! and asked to end.

mod feeder;
mod replica;

use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh_test_servers::{Options, Redis};

use self::feeder::Feeder;
use self::replica::{Replica, Setting};
use crate::child::Place;
use crate::script::{Script, seed};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// What a run came to.
#[derive(Debug, Default)]
struct Faults {
    kills: usize,
    freezes: usize,
    /// How many ended because others had taken over all they owned.
    superseded: usize,
}

/// Kills or freezes one of the replicas every second.
struct Nemesis<'a> {
    entropy: &'a SeededEntropy,
    lease: Duration,
    next: Duration,
    /// When which replica goes on.
    frozen: Vec<(Duration, usize)>,
    faults: Faults,
}

impl Nemesis<'_> {
    fn act(&mut self, setting: &Setting<'_>, replicas: &mut [Replica]) {
        let now = setting.place.elapsed();
        self.thaw(replicas, now);
        self.supervise(setting, replicas);
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_secs(1);
        let which = self.entropy.next_u64() as usize % replicas.len();
        if !self.frozen.is_empty() || self.entropy.next_u64().is_multiple_of(2) {
            replicas[which].kill();
            self.frozen.retain(|(_, frozen)| *frozen != which);
            replicas[which] = Replica::start(setting, replicas[which].name());
            self.faults.kills += 1;
        } else {
            // Half a lease to three leases.
            let time = self.lease.mul_f64(0.5 + (self.entropy.next_u64() % 1_000) as f64 / 400.0);
            replicas[which].freeze();
            self.frozen.push((now + time, which));
            self.faults.freezes += 1;
        }
    }

    /// Starts again what ended by itself: a process that stood still for so long that all it owned is taken over.
    fn supervise(&mut self, setting: &Setting<'_>, replicas: &mut [Replica]) {
        for replica in replicas {
            if replica.has_ended() {
                *replica = Replica::start(setting, replica.name());
                self.faults.superseded += 1;
            }
        }
    }

    fn thaw(&mut self, replicas: &mut [Replica], until: Duration) {
        for (_, which) in self.frozen.extract_if(.., |(at, _)| *at <= until) {
            replicas[which].thaw();
        }
    }
}

/// Each reply exactly once and in order, by its key: a process that was frozen while it called the channel may have called it
/// with the same key again.
fn check(script: &Script, place: &Place, faults: &Faults) -> usize {
    let mut first: HashMap<String, (String, String)> = HashMap::new();
    let mut replies = place.replies("out");
    let all = replies.len();
    replies.retain(|(key, chat, text)| {
        let reply = (chat.clone(), text.clone());
        let before = first.get(key);
        assert!(before.is_none_or(|before| *before == reply), "{key} says {reply:?} after {before:?}");
        first.insert(key.clone(), reply).is_none()
    });
    let doubled = all - replies.len();
    assert!(doubled == 0 || faults.freezes > 0, "{doubled} keys were sent twice");
    script.check_replies(&replies, place);
    doubled
}

#[test]
fn killed_and_frozen_every_second_every_reply_of_three_processes_comes_exactly_once_and_in_order() {
    const MESSAGES: usize = 5_000;
    const CHATS: usize = 200;
    /// Of arriving: so long in all, on a machine that is fast enough.
    const LASTS: Duration = Duration::from_secs(30);
    const LEASE: Duration = Duration::from_secs(2);
    let seed = seed(11);
    let entropy = SeededEntropy::new(seed);
    let redis = Redis::start(&Options::new()).expect("a server");
    let place = Place::new();
    let script = Script::random(&entropy, MESSAGES, CHATS);
    let (taken, hears) = mpsc::channel();
    let setting = Setting { place: &place, url: redis.url(), lease: LEASE, taken };
    let mut replicas = NAMES.map(|name| Replica::start(&setting, name));
    let mut feeder = Feeder::new(&place, &entropy, &script.lines, hears);
    let start = place.elapsed();
    let (next, frozen, faults) = (start + Duration::from_secs(1), Vec::new(), Faults::default());
    let mut nemesis = Nemesis { entropy: &entropy, lease: LEASE, next, frozen, faults };
    println!("seed {seed}");
    while !feeder.is_done() {
        let part = (place.elapsed() - start).div_duration_f64(LASTS);
        feeder.arrive((part * MESSAGES as f64) as usize + 1);
        nemesis.act(&setting, &mut replicas);
        feeder.step(&mut replicas);
        assert!(
            place.elapsed() - start < Duration::from_secs(180),
            "seed {seed}: only {} of {MESSAGES} are answered\n{}",
            feeder.answered(),
            place.complaints()
        );
    }
    nemesis.thaw(&mut replicas, Duration::MAX);
    for replica in &mut replicas {
        replica.end(&place);
    }
    let doubled = check(&script, &place, &nemesis.faults);
    println!(
        "seed {seed}: {:?}, {} messages given again, {doubled} keys sent twice, {:.1?}",
        nemesis.faults,
        feeder.again,
        place.elapsed()
    );
}

#[test]
fn asked_to_end_a_process_leaves_what_it_has_not_answered_to_the_others_at_once() {
    const MESSAGES: usize = 600;
    /// Nobody waits so long for anything.
    const LEASE: Duration = Duration::from_secs(300);
    let seed = seed(13);
    let entropy = SeededEntropy::new(seed);
    let redis = Redis::start(&Options::new()).expect("a server");
    let place = Place::new();
    let script = Script::random(&entropy, MESSAGES, MESSAGES / 10);
    let (taken, hears) = mpsc::channel();
    let setting = Setting { place: &place, url: redis.url(), lease: LEASE, taken };
    let mut replicas = vec![Replica::start(&setting, "a"), Replica::start(&setting, "b")];
    let mut feeder = Feeder::new(&place, &entropy, &script.lines, hears);
    feeder.arrive(MESSAGES);
    for signal in ["TERM", "INT"] {
        let until = feeder.answered() + MESSAGES / 4;
        while feeder.answered() < until {
            feeder.step(&mut replicas);
        }
        replicas[0].signal(signal);
        replicas[0].end(&place);
        let name = replicas[0].name();
        replicas[0] = Replica::start(&setting, name);
    }
    while !feeder.is_done() {
        feeder.step(&mut replicas);
        assert!(
            place.elapsed() < LEASE / 2,
            "seed {seed}: {} are answered\n{}",
            feeder.answered(),
            place.complaints()
        );
    }
    for replica in &mut replicas {
        replica.end(&place);
    }
    println!("seed {seed}: {} messages given again, {:.1?}", feeder.again, place.elapsed());
    script.check(&place);
}
