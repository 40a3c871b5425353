//! Histories of the pure ticket machine under a client that keeps the rules, and faults: they must be clean. With one rule
//! removed, they must not be.

mod replica;
mod sequential;
mod world;

use super::{Invariant, Limits, check};
use world::{Plan, Rule, World};

fn history(seed: u64, without: Option<Rule>, plan: Plan) -> Vec<crate::history::Record> {
    let mut world = World::new(seed, without, plan);
    world.run();
    world.history()
}

#[test]
fn histories_of_the_machine_are_clean() {
    let (mut turns, mut lost, mut takeovers, mut judged) = (0, 0, 0, 0);
    for seed in 0..150 {
        let report = check(&history(seed, None, Plan::Random), Limits::default()).unwrap();
        assert!(report.is_clean(), "seed {seed}\n{report}");
        turns += report.summary.turns;
        lost += report.summary.losses;
        takeovers += report.summary.takeovers;
        judged += report.summary.judged;
    }
    assert!(
        turns > 20_000 && lost > 100 && takeovers > 100 && judged > 5_000,
        "{turns} {lost} {takeovers} {judged}"
    );
}

#[test]
fn each_rule_that_is_removed_is_noticed() {
    let rules = [
        (Rule::Grace, Plan::DataLoss, &[Invariant::I2Validity][..]),
        (Rule::LeaseEnds, Plan::Kills, &[Invariant::I5Takeover]),
        (Rule::OwnerOfLeave, Plan::Calm, &[Invariant::I2Validity, Invariant::I13Told]),
        (Rule::GrowingFences, Plan::DataLoss, &[Invariant::I6Fences]),
        (Rule::LeaveUnknown, Plan::Overtaking, &[Invariant::I8Ghosts]),
        (Rule::SelfFencing, Plan::Cuts, &[Invariant::I2Validity]),
        (Rule::LocalOrder, Plan::Calm, &[Invariant::I3Order]),
        (Rule::Repair, Plan::DeafEars, &[Invariant::I9Liveness]),
        (Rule::PreviousHolder, Plan::Calm, &[Invariant::I10Previous]),
        (Rule::UnusedTickets, Plan::Calm, &[Invariant::I10Previous]),
        (Rule::TellingOfLoss, Plan::Cuts, &[Invariant::I13Told]),
        (Rule::FirstComeFirst, Plan::Calm, &[Invariant::I3Order]),
    ];
    for (rule, plan, expected) in rules {
        let clean = (0..6).map(|seed| check(&history(seed, None, plan), Limits::default()).unwrap());
        for report in clean {
            assert!(report.is_clean(), "{plan:?} without a reason\n{report}");
        }
        let found = (0..12)
            .flat_map(|seed| check(&history(seed, Some(rule), plan), Limits::default()).unwrap().broken());
        let found: std::collections::BTreeSet<_> = found.collect();
        for invariant in expected {
            assert!(found.contains(invariant), "{rule:?} broke {found:?}, not {invariant}");
        }
    }
}
