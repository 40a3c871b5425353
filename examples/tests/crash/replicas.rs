//! Processes of the desk on one Redis server, behind something that gives each message to any of them.

mod feeder;
mod replica;

use std::sync::mpsc;
use std::time::Duration;

use botmesh::core::entropy::SeededEntropy;
use botmesh_test_servers::{Options, Redis};

use self::feeder::Feeder;
use self::replica::{Replica, Setting};
use crate::child::Place;
use crate::script::{Script, seed};

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
