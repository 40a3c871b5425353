//! Killed at random moments: every reply exactly once, in each chat's order.

use std::process::Command;

use botmesh::core::entropy::SeededEntropy;

use crate::child::Place;
use crate::script::{Lives, Script, seed};

#[test]
fn killed_at_random_every_reply_comes_exactly_once_and_in_order() {
    killed_at_random(seed(0), |place| place.transcript("in", "out"));
}

#[test]
fn killed_at_random_over_journals_in_a_file_every_reply_comes_exactly_once_and_in_order() {
    killed_at_random(seed(7), |place| {
        let mut command = place.transcript("in", "out");
        command.arg("--journals").arg(place.path("journals"));
        command
    });
}

fn killed_at_random(seed: u64, command: impl Fn(&Place) -> Command) {
    const KILLS: usize = 35;
    let entropy = SeededEntropy::new(seed);
    let place = Place::new();
    let script = Script::random(&entropy, 2_000, 50);
    script.write(&place, "in", |_| true);
    let mut lives = Lives::new(&entropy);
    let mut kills = 0;
    while kills < KILLS {
        let mut child = command(&place).spawn().expect("the example starts");
        assert!(lives.next().end(&place, &mut child), "seed {seed}: all was answered after {kills} kills");
        kills += 1;
    }
    println!("seed {seed}: {kills} kills, {} replies, {:.1?}", place.reply_count("out"), place.elapsed());
    place.succeed(&mut command(&place));
    println!("seed {seed}: {} lines, {:.1?}", script.lines.len(), place.elapsed());
    script.check(&place);
    // All of it again is a redelivery.
    place.succeed(&mut command(&place));
    script.check(&place);
}
