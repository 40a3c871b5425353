use std::time::Duration;

use super::script::{Script, check, idle};
use super::{Limits, MAX_BURIED};

#[test]
fn sessions_and_their_tickets() {
    let rows = [
        (
            "R1 the holder is the lowest ticket whose session is alive",
            "open a = alive
             open b
             enter chat a.0 = granted 1
             enter chat b.0 = waiting 2 for a
             enter chat a.1 = waiting 3 for a
             enter other b.1 = granted 4
             poll chat b.0 = waiting 2 for a; chat nudges a.0
             leave chat a.0 = true; chat to b.0 2 after a
             poll chat b.0 = granted 2 after a
             leave chat b.0 = true; chat to a.1 3 after b",
        ),
        (
            "R1 tickets have names: what is sent again changes nothing",
            "open a
             open b
             enter chat a.0 = granted 1
             enter chat a.0 = granted 1
             enter chat b.0 = waiting 2 for a
             enter chat b.0 = waiting 2 for a
             leave chat a.0 = true; chat to b.0 2 after a
             leave chat a.0 = false
             poll chat a.0 = unknown
             enter chat b.0 = granted 2 after a",
        ),
        (
            "R8 who gives up a turn that nobody began is not the previous holder",
            "open a
             open b
             enter chat a.0
             leave chat a.0
             enter chat b.0
             leave chat b.0
             enter chat a.1 = granted 3 after b
             enter chat a.2
             cancel chat a.1 = true; chat to a.2 4 after b
             cancel chat a.2 = true
             enter chat a.3 = granted 5 after b
             leave chat a.3
             enter chat b.1 = granted 6 after a",
        ),
        (
            "R2 a dead session never comes back",
            "open a 10
             enter chat a.0 = granted 1
             at 9
             beat a = alive
             at 18
             enter chat a.0 = granted 1
             at 19
             enter chat a.1 = dead
             poll chat a.0 = dead
             beat a = dead
             open a 10 = dead
             open b
             close b
             open b = dead
             enter chat b.0 = dead
             enter chat never-opened.0 = dead
             beat never-opened = dead",
        ),
        (
            "R2 a session that opens after its lease ran out is dead, seen by others or not",
            "open a 10
             at 10
             open a 10 = dead
             enter chat a.0 = dead",
        ),
        (
            "R2 closing ends every ticket and tells the new heads",
            "open a
             open b
             enter x a.0
             enter y a.1
             enter z b.0
             enter x b.1
             enter y b.2
             enter z a.2
             close a = ; x to b.1 4 after dead a; y to b.2 5 after dead a
             leave z b.0 = true
             leave x a.0 = false",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, Limits::default(), lines);
    }
}

#[test]
fn a_copy_of_a_process_does_not_share_its_session() {
    check(
        "a heartbeat that does not follow the last one ends the session for both",
        Limits::default(),
        "open a 10
         open b 10
         enter chat a.0 = granted 1
         enter chat b.0 = waiting 2 for a 10ms
         beat a 1 111 = alive
         at 3
         beat a 2 222 = alive
         beat a 2 222 = alive
         at 6
         beat a 2 333 = dead
         beat a 2 222 = dead
         beat a 3 444 = dead
         enter chat a.1 = dead
         poll chat b.0 = granted 2 after dead a
         beat b 7 1 = alive
         beat b 6 1 = dead
         beat b 8 1 = dead",
    );
    check(
        "a server that forgot the last heartbeats ends nothing",
        Limits::default(),
        "open a 10
         beat a 5 1 = alive",
    );
}

#[test]
fn queues_go_on_without_the_dead_and_the_gone() {
    let rows = [
        (
            "R3 whoever sees a dead head removes it and tells the new one",
            "open a 10
             open b
             open c
             enter chat a.0 = granted 1
             enter chat b.0 = waiting 2 for a 10ms
             at 10
             enter chat c.0 = waiting 10000 for b; chat to b.0 2 after dead a
             poll chat b.0 = granted 2 after dead a",
        ),
        (
            "R3 the one who sees it may be the new head",
            "open a 10
             open b
             enter chat a.0
             enter chat b.0
             at 10
             poll chat b.0 = granted 2 after dead a",
        ),
        (
            "R3 dead waiters are skipped, also several of them, in every queue",
            "open a
             open b 10
             open c 10
             open d
             enter x a.0
             enter x b.0
             enter x c.0
             enter x d.0
             enter y b.1
             enter y d.1 = waiting 6 for b 10ms
             at 10
             leave x a.0 = true; x to d.0 4 after dead c
             poll y d.1 = granted 6 after dead b",
        ),
        (
            "R3 a dead head is found by whoever asks, and by nobody else",
            "open a 10
             open b
             enter x a.0
             enter x b.0
             at 10
             beat b = alive
             try x b.1 = busy b; x to b.0 2 after dead a
             leave x b.0 = true
             try x b.1 = granted 10000 after b",
        ),
        (
            "R5 a ticket that its session does not know is left at once, which repairs the queue",
            "open a
             open b
             enter chat a.0 = granted 1
             leave chat a.0 = true
             enter chat a.0 = granted 2 after a
             enter chat b.0 = waiting 3 for a
             poll chat b.0 = waiting 3 for a; chat nudges a.0
             leave chat a.0 = true; chat to b.0 3 after a",
        ),
        (
            "who does not want to wait leaves nothing behind",
            "open a 10
             open b
             try job a.0 = granted 1
             try job a.0 = granted 1
             try job b.0 = busy a 10ms; job nudges a.0
             poll job b.0 = unknown
             at 10
             try job b.0 = granted 10000 after dead a",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, Limits::default(), lines);
    }
}

#[test]
fn the_previous_holder() {
    let rows = [
        (
            "R8 the previous holder is told, and a skipped dead one counts",
            "open a
             open b
             open c
             enter chat a.0 = granted 1
             leave chat a.0
             enter chat a.1 = granted 2 after a
             enter chat b.0
             enter chat a.2
             close b
             leave chat a.1 = true; chat to a.2 4 after dead b
             enter chat c.0
             close a = ; chat to c.0 5 after dead a",
        ),
        (
            "who lost its session, or let it run out, or closed it, gave nothing back; what it gave back before counts",
            "open a 10
             open b
             enter x a.0
             enter y a.1
             enter z a.2
             enter x b.0
             enter y b.1
             leave x a.0 = true; x to b.0 4 after a
             lose a = ; y to b.1 5 after dead a
             enter z b.2 = granted 6 after dead a
             leave x b.0
             enter x b.3 = granted 7 after b
             open c 10
             enter w c.0
             at 10
             leave w c.0 = true
             enter w b.4 = granted 10000 after dead c
             leave w b.4
             close b
             open d
             enter w d.0 = granted 10001 after b",
        ),
        (
            "who abandons a turn, or waits when its session is closed, gave nothing back",
            "open a
             open b
             open c
             enter x a.0
             enter x b.0
             abandon x a.0 = true; x to b.0 2 after dead a
             enter x c.0
             enter x b.1
             leave x b.0 = true; x to c.0 3 after b
             enter x a.1
             close b
             leave x c.0 = true; x to a.1 5 after dead b
             enter y a.2
             enter y c.1
             enter y a.3
             close c
             leave y a.2 = true; y to a.3 8 after dead c",
        ),
        (
            "R8 one who left without holding was no holder",
            "open a
             open b
             enter chat a.0
             enter chat b.0
             leave chat b.0 = true
             leave chat a.0 = true
             enter chat a.1 = granted 3 after a",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, Limits::default(), lines);
    }
}

#[test]
fn numbers_and_time() {
    let rows = [
        (
            "numbers follow the time in microseconds and never go back",
            "open a
             at 5
             enter x a.0 = granted 5000
             enter y a.1 = granted 5001
             at 3
             enter z a.2 = granted 5002
             at -7
             enter w a.3 = granted 5003
             at 6
             enter v a.4 = granted 6000",
        ),
        (
            "numbers go on from the largest one that any session knows",
            "floor a 700
             enter x a.0 = granted 701
             floor b 50
             enter y b.0 = granted 702
             raise 900
             raise 800
             enter z b.1 = granted 901",
        ),
        (
            "leases keep their remaining time when the clock is set back",
            "at 1000
             open a 10
             open b
             enter chat a.0
             at 500
             enter chat b.0 = waiting 1000001 for a 10ms
             at 509
             poll chat b.0 = waiting 1000001 for a 1ms; chat nudges a.0
             at 510
             poll chat b.0 = granted 1000001 after dead a",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, Limits::default(), lines);
    }
}

#[test]
fn clocks_that_are_set_forward() {
    let rows = [
        (
            "a clock that jumps forward ends no lease whose end nobody can have seen",
            "open a 15000
             open b 15000
             enter chat a.0
             enter chat b.0
             at 3600000
             elapsed 10
             poll chat b.0 = waiting 2 for a 14990ms; chat nudges a.0
             at 3605000
             elapsed 5000
             beat a = alive
             enter other b.1 = granted 3605000000
             at 3620000
             poll chat b.0 = dead",
        ),
        (
            "a caller without a past bounds nothing",
            "open a 10
             at 3600000
             beat a = dead",
        ),
        (
            "who gives back a turn that nobody waits for notes no clock",
            "open a 10
             enter x a.0
             at 3600000
             leave x a.0
             elapsed 2
             beat a = alive",
        ),
        (
            "more elapsed time than the clock tells bounds nothing",
            "open a 10
             at 9
             elapsed 1000
             beat a = alive
             at 18
             elapsed 1000
             beat a = alive",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, Limits::default(), lines);
    }
}

#[test]
fn data_that_is_lost() {
    let rows = [
        (
            "after a loss nobody is granted anything until every holder from before has noticed",
            "open a 10
             open b 10
             enter chat a.0 = granted 1
             at 1
             flush
             enter chat a.1 = dead
             beat b = dead
             at 2
             reopen b2 10 = alive
             enter chat b2.0 = waiting 2000 for b2 10ms
             try job b2.1 = busy b2 10ms
             lock job t 5 = busy 10ms
             at 5
             reopen a2 10 = alive
             enter chat a2.0 = waiting 5000 for b2 7ms
             at 11
             beat a2
             beat b2
             poll chat b2.0 = waiting 2000 for b2 1ms
             poll chat a2.0 = waiting 5000 for b2 10ms; chat nudges b2.0
             at 12
             poll chat b2.0 = granted 2000
             leave chat b2.0 = true; chat to a2.0 5000 after b2",
        ),
        (
            "who comes late does not begin the wait again",
            "open a 10
             flush
             at 1
             reopen b 10
             at 12
             reopen c 10
             enter chat c.0 = granted 12000",
        ),
        (
            "whoever comes to an empty machine first knows of no loss",
            "open a 10 = alive
             enter chat a.0 = granted 1",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, Limits::default(), lines);
    }
}

#[test]
fn queues_are_bounded() {
    let full = Limits { max_waiters: 2, ..Limits::default() };
    check(
        "more than may wait are turned away, and leave nothing",
        full,
        "open a 10
         open b
         enter x a.0
         enter x b.0
         enter x a.1
         enter x b.1 = overloaded
         poll x b.1 = unknown
         enter x b.0 = waiting 2 for a 10ms
         try y b.2 = granted 4
         at 10
         enter x b.1 = waiting 10000 for b; x to b.0 2 after dead a",
    );
    check(
        "the dead who wait behind a living one take no place",
        full,
        "open a 10
         open b
         enter x b.0 = granted 1
         enter x a.0 = waiting 2 for b
         enter x a.1 = waiting 3 for b
         enter x b.1 = overloaded
         at 10
         enter x b.1 = waiting 10000 for b
         enter x b.2 = waiting 10001 for b
         enter x b.3 = overloaded
         leave x b.0 = true; x to b.1 10000 after dead a
         enter x b.3 = waiting 10002 for b",
    );
    let mut script = Script::new(Limits::default());
    script.run("open a 10");
    script.run("open b");
    for at in 0..2 * MAX_BURIED + 1 {
        script.run(&format!("enter x a.{at}"));
    }
    script.run("enter x b.0");
    script.run("at 10");
    assert_eq!(script.run("poll x b.0"), format!("waiting {} for a 0ms", 2 * MAX_BURIED + 2));
    assert_eq!(script.machine.snapshot().queues[0].tickets.len(), MAX_BURIED + 2);
    script.run("poll x b.0");
    assert!(script.run("poll x b.0").starts_with("granted"));
}

#[test]
fn keys_are_forgotten_after_a_time() {
    let limits = Limits { idle_ttl: Some(Duration::from_millis(10)), ..Limits::default() };
    check(
        "an idle key is forgotten, a busy one is not",
        limits,
        "open a
         enter x a.0
         enter y a.1
         leave x a.0
         at 9
         enter x a.2 = granted 9000 after a
         leave x a.2
         at 19
         enter x a.3 = granted 19000
         leave y a.1
         enter y a.4 = granted 19001 after a",
    );
}

#[test]
fn dead_sessions_are_forgotten_after_a_time() {
    let mut script = Script::new(Limits::default());
    script.run("open a 10");
    script.run("at 600009");
    assert_eq!(script.run("open a 10"), "dead");
    script.run("at 600010");
    script.run("open b 10");
    assert_eq!(script.machine.snapshot().sessions.len(), 1);
}

#[test]
fn eviction() {
    let rows = [
        (
            "the key that was idle longest is forgotten first; numbers go on",
            "open a
             enter x a.0 = granted 1
             leave x a.0
             enter y a.1 = granted 2
             leave y a.1
             enter x a.2 = granted 3 after a
             leave x a.2
             enter z a.3 = granted 4
             leave z a.3
             enter x a.4 = granted 5 after a
             enter y a.5 = granted 6",
        ),
        (
            "a key with a ticket is never forgotten",
            "open a
             open b
             enter x a.0 = granted 1
             enter x b.0 = waiting 2 for a
             enter y a.1
             leave y a.1
             enter z a.2
             leave z a.2
             enter w a.3
             leave w a.3
             leave x a.0 = true; x to b.0 2 after a",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, idle(2), lines);
    }
    check("nothing is remembered", idle(0), "open a\nenter x a.0\nleave x a.0\nenter x a.1 = granted 2");
}

#[test]
fn idle_keys_and_dead_sessions_cost_bounded_memory() {
    let mut script = Script::new(idle(10));
    for at in 0..5_000 {
        script.run(&format!("open s{at}"));
        script.run(&format!("enter k{at} s{at}.0"));
        script.run(&format!("close s{at}"));
    }
    let machine = &mut script.machine;
    assert_eq!((machine.snapshot().idle.len(), machine.snapshot().sessions.len()), (10, 1024));
    assert_eq!(machine.snapshot().queues, []);
    machine.set_limits(idle(3));
    assert_eq!(machine.snapshot().idle.len(), 3);
}

#[test]
fn locks() {
    check(
        "a lock has one token and a fence that grows",
        idle(0),
        "lock job t1 10 = unopened
         open a
         lock job t1 10 = acquired 1
         lock job t2 10 = busy 10ms
         lock other t2 10 = acquired 2
         lock job t1 10 = acquired 1
         renew job t2 10 = lost
         unlock job t2 = false
         at 9
         renew job t1 10 = renewed 1
         at 18
         lock job t2 10 = busy 1ms
         at 19
         renew job t1 10 = lost
         unlock job t1 = false
         lock job t2 10 = acquired 19000
         unlock job t2 = true
         unlock job t2 = false
         lock job t1 10 = acquired 19001",
    );
    let mut script = Script::new(idle(0));
    script.run("open a");
    for at in 0..100 {
        script.run(&format!("at {at}"));
        script.run(&format!("lock k{at} t 5"));
    }
    assert_eq!(script.machine.snapshot().locks.len(), 5, "what ran out is forgotten");
    script.run("lock k t 99999999999999999");
    assert_eq!(script.machine.snapshot().locks.len(), 6);
}
