use std::time::Duration;

use super::{DEFAULT_MAX_IDLE_KEYS, Effect, Liveness, Locking, Machine, Micros, Standing, TicketId};
use crate::coordinator::Fence;
use crate::id::SessionId;
use crate::time::Timestamp;

/// A machine driven by words: each command gives one line with its reply and its effects.
struct Script {
    machine: Machine,
    now: Micros,
}

fn ticket(name: &str) -> TicketId {
    let (session, seq) = name.split_once('.').unwrap();
    TicketId { session: SessionId::from(session), seq: seq.parse().unwrap() }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn after(previous: Option<&SessionId>) -> String {
    previous.map_or(String::new(), |previous| format!(" after {previous}"))
}

fn standing(standing: Standing) -> String {
    let lease = |remaining: Option<Duration>| {
        remaining.map_or(String::new(), |left| format!(" {}ms", left.as_millis()))
    };
    match standing {
        Standing::Granted { fence, previous } => format!("granted {}{}", fence.0, after(previous.as_ref())),
        Standing::Waiting { fence, holder, remaining } => {
            format!("waiting {} for {holder}{}", fence.0, lease(remaining))
        }
        Standing::Busy { holder, remaining } => format!("busy {holder}{}", lease(remaining)),
        Standing::Unknown => "unknown".to_owned(),
        Standing::Dead => "dead".to_owned(),
    }
}

fn liveness(liveness: Liveness) -> String {
    match liveness {
        Liveness::Alive => "alive".to_owned(),
        Liveness::Dead => "dead".to_owned(),
    }
}

fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Granted { key, ticket, fence, previous } => {
            let TicketId { session, seq } = ticket;
            format!("; {key} to {session}.{seq} {}{}", fence.0, after(previous.as_ref()))
        }
        Effect::Nudged { key, ticket } => format!("; {key} nudges {}.{}", ticket.session, ticket.seq),
    }
}

impl Script {
    fn new(max_idle_keys: usize) -> Self {
        Self { machine: Machine::new(max_idle_keys), now: Micros(0) }
    }

    fn run(&mut self, command: &str) -> String {
        let mut effects = Vec::new();
        let words: Vec<_> = command.split(' ').collect();
        let (machine, now, out) = (&mut self.machine, self.now, &mut effects);
        let mut reply = match *words {
            ["at", time] => {
                self.now = Timestamp::from_millis(time.parse().unwrap()).into();
                return String::new();
            }
            ["open", id] => liveness(machine.open(&SessionId::from(id), None, Fence(0), now)),
            ["open", id, lease] => {
                liveness(machine.open(&SessionId::from(id), Some(millis(lease)), Fence(0), now))
            }
            ["floor", id, floor] => {
                liveness(machine.open(&SessionId::from(id), None, Fence(floor.parse().unwrap()), now))
            }
            ["beat", id] => liveness(machine.beat(&SessionId::from(id), now, out)),
            ["close", id] => {
                machine.close(&SessionId::from(id), now, out);
                String::new()
            }
            ["expire"] => {
                machine.expire(now, out);
                String::new()
            }
            ["enter", key, name] => standing(machine.enter(key, &ticket(name), now, out)),
            ["try", key, name] => standing(machine.try_enter(key, &ticket(name), now, out)),
            ["leave", key, name] => machine.leave(key, &ticket(name), now, out).to_string(),
            ["poll", key, name] => standing(machine.poll(key, &ticket(name), now, out)),
            ["lock", key, token, ttl] => match machine.lock_acquire(key, token, millis(ttl), now) {
                Locking::Acquired(fence) => format!("acquired {}", fence.0),
                Locking::Busy { remaining } => format!("busy {}ms", remaining.as_millis()),
            },
            ["renew", key, token, ttl] => {
                let renewed = machine.lock_renew(key, token, millis(ttl), now);
                renewed.map_or("lost".to_owned(), |fence| format!("renewed {}", fence.0))
            }
            ["unlock", key, token] => machine.lock_release(key, token, now).to_string(),
            _ => panic!("no command: {command}"),
        };
        reply.extend(effects.iter().map(effect));
        reply
    }
}

/// Runs lines of `command = reply; effects`. A command without `=` may answer anything.
fn check(rule: &str, max_idle_keys: usize, lines: &str) {
    let mut script = Script::new(max_idle_keys);
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.split_once(" = ") {
            Some((command, expected)) => assert_eq!(script.run(command), expected, "{rule}: {line}"),
            None => {
                script.run(line);
            }
        }
    }
}

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
            "R2 closing gives back every ticket and tells the new heads",
            "open a
             open b
             enter x a.0
             enter y a.1
             enter z b.0
             enter x b.1
             enter y b.2
             enter z a.2
             close a = ; x to b.1 4 after a; y to b.2 5 after a
             leave z b.0 = true
             leave x a.0 = false",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, DEFAULT_MAX_IDLE_KEYS, lines);
    }
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
             enter chat c.0 = waiting 10000 for b; chat to b.0 2 after a
             poll chat b.0 = granted 2 after a",
        ),
        (
            "R3 the one who sees it may be the new head",
            "open a 10
             open b
             enter chat a.0
             enter chat b.0
             at 10
             poll chat b.0 = granted 2 after a",
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
             leave x a.0 = true; x to d.0 4 after c; y to d.1 6 after b",
        ),
        (
            "R3 anybody's beat and a sweep bury the dead",
            "open a 10
             open b
             open c 20
             enter x a.0
             enter x b.0
             enter y c.0
             enter y b.1
             at 10
             beat b = alive; x to b.0 2 after a
             at 20
             expire = ; y to b.1 4 after c",
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
             leave chat a.1 = true; chat to a.2 4 after a
             enter chat c.0
             close a = ; chat to c.0 5 after a",
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
        (
            "who does not want to wait leaves nothing behind",
            "open a 10
             open b
             try job a.0 = granted 1
             try job a.0 = granted 1
             try job b.0 = busy a 10ms
             poll job b.0 = unknown
             at 10
             try job b.0 = granted 10000 after a",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, DEFAULT_MAX_IDLE_KEYS, lines);
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
             enter y b.0 = granted 702",
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
             poll chat b.0 = granted 1000001 after a",
        ),
    ];
    for (rule, lines) in rows {
        check(rule, DEFAULT_MAX_IDLE_KEYS, lines);
    }
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
        check(rule, 2, lines);
    }
    check("nothing is remembered", 0, "open a\nenter x a.0\nleave x a.0\nenter x a.1 = granted 2");
}

#[test]
fn idle_keys_and_dead_sessions_cost_bounded_memory() {
    let mut script = Script::new(10);
    for at in 0..5_000 {
        script.run(&format!("open s{at}"));
        script.run(&format!("enter k{at} s{at}.0"));
        script.run(&format!("close s{at}"));
    }
    let machine = &mut script.machine;
    assert_eq!((machine.snapshot().idle.len(), machine.snapshot().sessions.len()), (10, 0));
    assert_eq!(machine.snapshot().queues, []);
    assert_eq!((machine.dead.len(), machine.dead_order.len()), (1024, 1024));
    machine.set_max_idle_keys(3);
    assert_eq!(machine.snapshot().idle.len(), 3);
}

#[test]
fn locks() {
    check(
        "a lock has one token and a fence that grows",
        0,
        "lock job t1 10 = acquired 1
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
    let mut script = Script::new(0);
    for at in 0..100 {
        script.run(&format!("at {at}"));
        script.run(&format!("lock k{at} t 5"));
    }
    assert_eq!(script.machine.snapshot().locks.len(), 5, "what ran out is forgotten");
    script.run("lock k t 99999999999999999");
    assert_eq!(script.machine.snapshot().locks.len(), 6);
}
