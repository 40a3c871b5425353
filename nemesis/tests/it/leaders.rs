//! A bot whose channel permits one connection.

use botmesh_nemesis::history::{Event, Record};

use crate::tools::{answered, bots, conclude, frames_of, of_process, say, times, until, until_connected};

/// 10 times; as many as `BOTMESH_NEMESIS_ROLLS` says.
#[test]
fn rolling_restarts_never_have_two_connections_and_answer_everything() {
    let world = bots("rolling", 3, &[]);
    until_connected(&world, "a leader", |_| true);
    for roll in 0..times("BOTMESH_NEMESIS_ROLLS", 10) {
        say(&world);
        world.terminate(roll % 3).unwrap();
        until_connected(&world, "a leader that is another one", |number| number != roll % 3);
        world.start(roll % 3).unwrap();
        until(&world, "answers", answered);
    }
    conclude(&world);
}

#[test]
fn a_leader_that_stood_still_for_three_leases_works_on_nothing_that_its_connection_brings() {
    let world = bots("frozen-leader", 3, &[]);
    let frozen = until_connected(&world, "a leader", |_| true);
    say(&world);
    until(&world, "answers", answered);
    let pid = world.pid(frozen).unwrap();
    world.stop(frozen).unwrap();
    // Its connection is open, and brings everything that users say, until it can close it.
    let stopped = world.records().unwrap().len();
    until(&world, "another leader", |world| leads(&world.records().unwrap()[stopped..], pid));
    say(&world);
    until(&world, "answers", answered);
    world.go_on(frozen).unwrap();
    until(&world, "the end of the old connection", |world| {
        let records = world.records().unwrap();
        records[stopped..]
            .iter()
            .any(|record| matches!(record.event, Event::TransportClosed { peer_pid, .. } if peer_pid == pid))
    });
    let records = world.records().unwrap();
    assert!(frames_of(&records[stopped..], pid).is_empty(), "see {}", world.folder().display());
    assert!(
        of_process(&records[stopped..], pid).any(|record| matches!(record.event, Event::LeadLost { .. }))
    );
    conclude(&world);
}

/// Whether another process connected.
fn leads(records: &[Record], than: u32) -> bool {
    records
        .iter()
        .any(|record| matches!(record.event, Event::TransportOpen { peer_pid, .. } if peer_pid != than))
}

#[test]
fn the_next_replica_is_connected_soon_after_the_leader_is_killed() {
    let world = bots("killed-leader", 2, &[]);
    for _ in 0..3 {
        let killed = until_connected(&world, "a leader", |_| true);
        say(&world);
        until(&world, "answers", answered);
        let before = world.records().unwrap().len();
        world.kill(killed).unwrap();
        say(&world);
        until_connected(&world, "another leader", |number| number != killed);
        let took = takeover(&world.records().unwrap()[before..]);
        // The lease, the margin that the next one waits, 250 ms, and a busy machine.
        assert!(took < 1_000 + 1_000 + 250 + 2_000, "{took} ms");
        until(&world, "answers", answered);
        world.start(killed).unwrap();
    }
    conclude(&world);
}

/// Milliseconds from the kill to the next connection.
fn takeover(records: &[Record]) -> u64 {
    let at = |is_it: fn(&Event) -> bool| records.iter().find(|record| is_it(&record.event)).unwrap().t;
    let killed = at(|event| matches!(event, Event::Nemesis { .. }));
    (at(|event| matches!(event, Event::TransportOpen { .. })) - killed) / 1_000_000
}

#[test]
fn two_processes_with_one_replica_id_both_work_and_are_told() {
    let world = bots("same-id", 2, &["--replica-id=same"]);
    let first = until_connected(&world, "a leader", |_| true);
    let second = 1 - first;
    until(&world, "a warning", |world| {
        [first, second].iter().any(|number| world.log(*number).contains("coordination:replica-id-taken"))
    });
    say(&world);
    until(&world, "answers", answered);
    world.terminate(first).unwrap();
    until_connected(&world, "the other one as leader", |number| number == second);
    say(&world);
    until(&world, "answers", answered);
    conclude(&world);
}
