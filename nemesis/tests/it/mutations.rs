//! Each rule of the turns, removed from coordinators on a real server while the fault happens that it is there for.

use botmesh_nemesis::check::Invariant;
use botmesh_nemesis::mutations::{ALL, Mutation};
use futures_util::future::join_all;

async fn plays(mutation: &Mutation) {
    let folder = tempfile::tempdir().unwrap();
    let (with, without) = (folder.path().join("with"), folder.path().join("without"));
    let (with, without) = tokio::join!(mutation.run(false, &with), mutation.run(true, &without));
    let (with, without) = (with.unwrap(), without.unwrap());
    assert!(with.is_clean(), "{}: found where the rule is kept\n{with}", mutation.name);
    let broken = without.broken();
    assert!(broken.contains(&mutation.breaks), "{}: found {broken:?}\n{without}", mutation.name);
}

#[test]
fn each_invariant_has_a_rule_without_which_it_does_not_hold() {
    for invariant in Invariant::ALL {
        assert!(ALL.iter().any(|mutation| mutation.breaks == invariant), "{invariant}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rule_that_is_removed_from_a_coordinator_is_missed() {
    for some in ALL.chunks(3) {
        join_all(some.iter().map(plays)).await;
    }
}
