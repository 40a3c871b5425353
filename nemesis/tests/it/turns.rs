//! Replicas that take turns, and die or stand still under them.

use botmesh_core::entropy::{SeededEntropy, random_fraction};
use botmesh_nemesis::history::{Event, Record, now};
use botmesh_nemesis::world::{Options, World};

use crate::tools::{LEASE, bare, conclude, number, of_process, options, times, until, until_written, world};

/// Each visit writes up to three times, half a lease apart.
const LONG: &[&str] = &["--lanes=1", "--rest=1", "--cancel=0", "--bursts=0", "--long=100"];

#[test]
fn a_replica_that_stood_still_in_its_turn_writes_nothing_once_others_have_had_it() {
    let world = bare("stopped-holder", 2, LONG);
    let mut caught = 0;
    // A visit may end with its first write; then there was no turn to lose.
    for _ in 0..20 {
        let (stopped, fence) = until_written(&world, "a first write of a turn", |_| true);
        let pid = world.pid(stopped).unwrap();
        world.stop(stopped).unwrap();
        until_written(&world, "a write of the other one", |number| number != stopped);
        world.go_on(stopped).unwrap();
        until_written(&world, "a write of the one that stood still", |number| number == stopped);
        let records = world.records().unwrap();
        caught += usize::from(has_lost(&records, pid, fence));
        assert_eq!(late_writes(&records, fence), 0, "see {}", world.folder().display());
        if caught == 3 {
            break;
        }
    }
    assert!(caught > 0, "nobody ever stood still in its turn");
    conclude(&world);
}

/// Whether the process was told that it lost the turn with this fence.
fn has_lost(records: &[Record], pid: u32, fence: u64) -> bool {
    of_process(records, pid)
        .any(|record| matches!(record.event, Event::Lost { n: Some(n), .. } if n == fence))
}

/// Writes under a fence that arrived after one with a larger fence was taken.
fn late_writes(records: &[Record], fence: u64) -> usize {
    let writes = records.iter().filter_map(|record| match &record.event {
        Event::Write { n, .. } => Some(*n),
        _ => None,
    });
    writes.skip_while(|n| *n <= fence).filter(|n| *n == fence).count()
}

#[test]
fn a_waiter_that_is_killed_in_the_middle_of_a_queue_holds_nobody_up() {
    let world = bare("killed-waiter", 3, LONG);
    let mut skipped = 0;
    for _ in 0..5 {
        // The one that has waited for longer is the next, and dies before its turn.
        let mut victim = None;
        until(&world, "a holder with two others behind it", |world| {
            let waiting = waiting(world);
            victim = (waiting.len() == 2).then(|| waiting[0].clone());
            victim.is_some()
        });
        let (_, replica) = victim.unwrap();
        let number = number(&replica);
        let pid = world.pid(number).unwrap();
        world.kill(number).unwrap();
        until_written(&world, "a turn without the one that died", |writer| writer != number);
        skipped += usize::from(died_waiting(&world.records_of(number, pid).unwrap()));
        until_written(&world, "a turn without the one that died", |writer| writer != number);
        world.start(number).unwrap();
        until_written(&world, "a turn of the one that was started again", |writer| writer == number);
    }
    assert!(skipped > 0, "nobody ever died while it waited");
    conclude(&world);
}

/// Who waits with a ticket and is alive, in the order of the queue.
fn waiting(world: &World) -> Vec<(u64, String)> {
    let mut waiting = Vec::new();
    for number in 0..3 {
        let Some(pid) = world.pid(number) else { continue };
        for record in world.records_of(number, pid).unwrap_or_default() {
            match record.event {
                Event::EnterOk { n, .. } => waiting.push((n, record.replica)),
                Event::Granted { n, .. } => waiting.retain(|(other, _)| *other != n),
                _ => {}
            }
        }
    }
    waiting.sort();
    waiting
}

/// Whether the last thing that a process did was to take a ticket.
fn died_waiting(records: &[Record]) -> bool {
    let own = records.iter().rfind(|record| !matches!(record.event, Event::Late { .. }));
    own.is_some_and(|record| matches!(record.event, Event::EnterOk { .. }))
}

/// 100 times, at random; as many as `BOTMESH_NEMESIS_CYCLES` says, of the seed that `BOTMESH_NEMESIS_SEED` says.
#[test]
fn b07_no_chat_is_blocked_by_replicas_that_are_killed_and_stopped_again_and_again() {
    let seed = times("BOTMESH_NEMESIS_SEED", (now() % 1_000_000) as usize);
    println!("BOTMESH_NEMESIS_SEED={seed}");
    let dice = SeededEntropy::new(seed as u64);
    let world = world(Options { chats: 4, args: vec!["--lanes=4".into()], ..options("cycles") });
    for _ in 0..times("BOTMESH_NEMESIS_CYCLES", 100) {
        let number = (random_fraction(&dice) * 3.0) as usize;
        until(&world, "the first turn of a process", |world| has_begun(world, number));
        if random_fraction(&dice) < 0.25 {
            world.stop(number).unwrap();
            let writes = world.provider.writes().0;
            until(&world, "turns of the others", |world| world.provider.writes().0 > writes + 20);
            world.go_on(number).unwrap();
        } else {
            world.kill(number).unwrap();
            world.start(number).unwrap();
        }
    }
    conclude(&world);
}

#[test]
fn a_replica_that_is_asked_to_end_before_it_has_begun_has_not_failed() {
    let world = bare("early-end", 1, LONG);
    for _ in 0..10 {
        world.terminate(0).unwrap();
        world.start(0).unwrap();
    }
    conclude(&world);
}

fn has_begun(world: &World, number: usize) -> bool {
    let Some(pid) = world.pid(number) else { return false };
    world
        .records_of(number, pid)
        .unwrap_or_default()
        .iter()
        .any(|record| matches!(record.event, Event::WriteCall { .. }))
}

#[test]
fn two_masters_give_one_chat_away_twice_and_the_resource_takes_one_side_until_they_are_one_again() {
    let world = bare("split", 4, &["--lanes=2", "--rest=5", "--cancel=0"]);
    until_written(&world, "a turn", |_| true);
    world.split().unwrap();
    let divided = now();
    for number in 0..4 {
        let (replica, side) = (world.name(number), if number % 2 == 0 { "the first" } else { "the second" });
        let before = world.provider.arrived(&replica);
        until(&world, &format!("writes on {side} side"), |world| {
            world.provider.arrived(&replica) > before + 10
        });
    }
    // Until what one side has of the other is worth nothing.
    until(&world, "three leases", |_| now() - divided > 3_000_000_000);
    world.unite().unwrap();
    for replica in 0..4 {
        until_written(&world, "a turn of each replica", |number| number == replica);
    }
    // Those whose server lost the argument go on under other sessions.
    for number in [1, 3] {
        let records = world.records_of(number, world.pid(number).unwrap()).unwrap();
        let sessions = records.iter().filter(|record| matches!(record.event, Event::Session { .. })).count();
        assert!(sessions > 1, "{} never learned that its turns are worth nothing", world.name(number));
    }
    conclude(&world);
}

#[test]
fn the_next_replica_has_the_turn_of_a_killed_one_as_soon_as_its_lease_is_over() {
    let world = bare("killed-holder", 2, LONG);
    for _ in 0..10 {
        let (killed, _) = until_written(&world, "a first write of a turn", |_| true);
        world.kill(killed).unwrap();
        until_written(&world, "a write of the other one", |number| number != killed);
        world.start(killed).unwrap();
        until_written(&world, "a write of the one that was started again", |number| number == killed);
    }
    // The check has the bound: lease + 250 ms, and what the machine was late.
    let summary = world.conclude(LEASE).and_then(|()| world.verdict()).unwrap();
    assert!(summary.takeovers > 0, "{summary}");
    println!("{summary}");
}
