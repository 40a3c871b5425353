//! Each invariant by a table of histories written by hand: those that keep it, and those that break it.
//!
//! A line is `MILLISECONDS PROCESS EVENT`. The lease is 1500 ms, the margin 200 ms.

use super::{Invariant, Limits, Report, check};
use crate::history::{Config, Event, Fault, Record, merge};

fn event(words: &[&str], t: u64) -> Event {
    let number = |text: &str| text.parse::<u64>().unwrap();
    let chat = || words[1].to_owned();
    let call = || number(words[2]);
    let at = |place: usize| words.get(place).map(|text| (*text).to_owned());
    let checked = |place: usize| at(place).map_or(t - 1000, |text| number(&text) * 1_000_000 + 1_000_000_000);
    match words[0] {
        "start" => Event::Start {
            seed: 7,
            config: Config { lease_ms: 1500, margin_ms: 200, idle_ttl_ms: 2000, turn_wait_ms: 60_000 },
        },
        "quiet" => Event::Quiet,
        "end" => Event::End,
        "queues" => Event::Queues { left: number(words[1]) },
        "usage" => Event::Usage { calls: number(words[1]), keys: number(words[2]) },
        "late" => Event::Late { ms: number(words[1]) },
        "up" => Event::Up { sid: chat() },
        "session" => Event::Session { sid: chat(), epoch: None },
        "over" => Event::Lost { sid: chat(), chat: None, call: None, n: None, reason: "expired".into() },
        "down" => Event::Down { clean: words[1] == "clean" },
        "call" => Event::EnterCall { chat: chat(), call: call(), after: at(3).map(|text| number(&text)) },
        "ok" => Event::EnterOk { chat: chat(), call: call(), n: number(words[3]) },
        "err" => Event::EnterErr { chat: chat(), call: call(), error: "timeout".into() },
        "granted" => Event::Granted {
            chat: chat(),
            call: call(),
            n: number(words[3]),
            sid: at(4).unwrap(),
            prev: at(5),
        },
        "cancel" => Event::Cancelled { chat: chat(), call: call() },
        "release" => Event::Released { chat: chat(), call: call(), n: 0 },
        "lost" => Event::Lost {
            sid: "s".into(),
            chat: Some(chat()),
            call: Some(call()),
            n: None,
            reason: "expired".into(),
        },
        "writes" => Event::WriteCall {
            chat: chat(),
            n: call(),
            sid: at(3).unwrap(),
            checked_t: checked(5),
            valid_for_ms: at(4).and_then(|text| text.parse().ok()),
        },
        "takes" | "refuses" => {
            Event::Write { chat: chat(), n: call(), sid: at(3).unwrap(), accepted: words[0] == "takes" }
        }
        "open" => Event::TransportOpen { name: chat(), n: call(), peer_pid: pid(words[3]) },
        "close" => Event::TransportClosed { name: chat(), n: call(), peer_pid: pid(words[3]) },
        "frame" => Event::Frame { name: chat(), n: call(), checked_t: checked(3) },
        "message" => Event::Message { chat: chat(), id: call() },
        "reply" => Event::Reply { chat: chat(), id: call(), key: "k".into() },
        fault => Event::Nemesis {
            what: serde_json::from_value::<Fault>(fault.into()).unwrap(),
            target: at(1),
            target_pid: None,
            detail: None,
            until_t: None,
        },
    }
}

fn pid(name: &str) -> u32 {
    name.bytes().map(u32::from).sum()
}

fn history(text: &str) -> Vec<Record> {
    let lines = text.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty());
    let records = lines.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let t = words[0].parse::<u64>().unwrap() * 1_000_000 + 1_000_000_000;
        Record { t, pid: pid(words[1]), replica: words[1].into(), event: event(&words[2..], t) }
    });
    let start = Record { t: 0, pid: 1, replica: "harness".into(), event: event(&["start"], 0) };
    merge(std::iter::once(start).chain(records).collect())
}

fn report(text: &str) -> Report {
    let limits = Limits { scheduling: std::time::Duration::from_millis(100), ..Limits::default() };
    check(&history(text), limits).unwrap()
}

/// The rows: a name, a history, and whether it keeps the invariant. What keeps it breaks no other one either.
fn table(invariant: Invariant, rows: &[(&str, bool, &str)]) {
    for (name, keeps, text) in rows {
        let report = report(text);
        let broken = report.broken();
        if *keeps {
            assert_eq!(broken, [], "{name}\n{report}");
        } else {
            assert!(broken.contains(&invariant), "{name}: {broken:?}\n{report}");
            let shown = report.to_string();
            assert!(shown.contains("seed 7") && shown.contains(&invariant.to_string()), "{shown}");
        }
    }
    assert!(rows.iter().any(|(_, keeps, _)| *keeps) && rows.iter().any(|(_, keeps, _)| !keeps));
}

/// A has the turn 5 of x.
const A_HOLDS: &str = "0 a up a.0; 0 b up b.0; 10 a call x 1; 11 a ok x 1 5; 12 a granted x 1 5 a.0;";

/// B waits behind it.
const B_WAITS: &str = "20 b call x 1; 21 b ok x 1 6;";

#[test]
fn the_resource_takes_writes_in_the_order_of_fences() {
    table(
        Invariant::I1Exclusion,
        &[
            (
                "larger and same fences",
                true,
                "0 r takes x 5 a.0; 1 r takes x 5 a.0; 2 r takes x 6 b.0; 3 r refuses x 5 a.0",
            ),
            ("another chat", true, "0 r takes x 5 a.0; 1 r takes y 4 b.0"),
            ("a smaller fence", false, "0 r takes x 5 a.0; 1 r takes x 4 b.0"),
            ("two sessions under one fence", false, "0 r takes x 5 a.0; 1 r takes x 5 b.0"),
            ("one that it had to take", false, "0 r takes x 5 a.0; 1 r refuses x 6 b.0"),
            (
                "one fence for two sessions",
                false,
                &format!(
                    "{A_HOLDS} 20 a release x 1; 21 b call x 1; 21 b ok x 1 5; 22 b granted x 1 5 b.0; 23 b release x 1"
                ),
            ),
            (
                "two masters gave the same fence",
                true,
                &format!(
                    "5 h split; {A_HOLDS} 10 b call x 1; 13 b ok x 1 5; 14 b granted x 1 5 b.0; 15 r takes x 5 a.0; 16 r refuses x 5 b.0; 20 a release x 1; 23 b release x 1; 30 h split_healed"
                ),
            ),
        ],
    );
}

#[test]
fn a_replica_writes_only_while_nobody_else_has_the_turn() {
    let b_gets = "1600 b granted x 1 6 b.0; 1700 b release x 1;";
    let row = |fault: &str, write: &str| format!("{A_HOLDS} {B_WAITS} {b_gets} {fault} {write}");
    let lost = "1590 a lost x 1;";
    table(
        Invariant::I2Validity,
        &[
            (
                "while it is good",
                true,
                &format!("{A_HOLDS} 13 a writes x 5 a.0 1290; 14 r takes x 5 a.0; 15 a release x 1"),
            ),
            (
                "after its lease",
                false,
                &format!("{A_HOLDS} 1700 a writes x 5 a.0 -390; 1701 r takes x 5 a.0; 1702 a release x 1"),
            ),
            (
                "a check that passed in the next turn",
                false,
                &row(lost, "1650 a writes x 5 a.0 ? 1640; 1651 r takes x 5 a.0"),
            ),
            (
                "the same after a pause",
                false,
                &row(
                    "100 h stop a; 1620 h cont a;",
                    "1650 a writes x 5 a.0 ? 1640; 1651 r takes x 5 a.0; 1660 a lost x 1",
                ),
            ),
            (
                "a ticket of one of two masters, after the other one gave a later one its turn",
                true,
                "0 a up a.0; 0 b up b.0; 5 h split; 10 a call x 1; 11 a ok x 1 5; 20 b call x 1; 21 b ok x 1 6; 22 b granted x 1 6 b.0; 22 r takes x 6 b.0; 23 b release x 1; 50 h split_healed; 3000 a granted x 1 5 a.0; 3001 a writes x 5 a.0 1290 3001; 3002 r refuses x 5 a.0; 3003 a release x 1",
            ),
            (
                "a pause between check and write",
                true,
                &row(
                    "100 h stop a; 1620 h cont a;",
                    "1625 a writes x 5 a.0 ? 99; 1626 r takes x 5 a.0; 1630 a lost x 1",
                ),
            ),
            (
                "a write that was under way",
                false,
                &row(lost, "1400 a writes x 5 a.0 ? 1399; 1650 r takes x 5 a.0"),
            ),
            (
                "a machine that stood still meanwhile",
                true,
                &row(lost, "1400 a writes x 5 a.0 ? 1399; 1645 r late 300; 1650 r takes x 5 a.0"),
            ),
            (
                "a failover that forgot the turn",
                true,
                &format!(
                    "{A_HOLDS} 100 h promote; 110 b call x 1; 111 b ok x 1 6; 112 b granted x 1 6 b.0; 120 a writes x 5 a.0; 121 r takes x 5 a.0; 125 b release x 1; 130 a lost x 1"
                ),
            ),
        ],
    );
}

#[test]
fn tickets_are_served_in_their_order() {
    let two = "10 a call x 1; 11 a ok x 1 5; 12 b call x 1; 13 b ok x 1 6;";
    table(
        Invariant::I3Order,
        &[
            (
                "in order",
                true,
                &format!(
                    "{two} 14 a granted x 1 5 a.0; 15 a release x 1; 16 b granted x 1 6 b.0; 17 b release x 1"
                ),
            ),
            (
                "the later one first",
                false,
                &format!(
                    "{two} 14 b granted x 1 6 b.0; 15 b release x 1; 16 a granted x 1 5 a.0; 17 a release x 1"
                ),
            ),
            (
                "a larger number for the earlier one",
                false,
                "10 a call x 1; 11 a ok x 1 6; 12 b call x 1; 13 b ok x 1 5; 14 b cancel x 1; 15 a cancel x 1",
            ),
            (
                "calls at the same time in any order",
                true,
                "10 a call x 1; 11 b call x 1; 12 b ok x 1 5; 13 a ok x 1 6; 14 b cancel x 1; 15 a cancel x 1",
            ),
            (
                "calls of one process that were swapped",
                false,
                "10 a call x 1; 11 a call x 2 1; 12 a ok x 2 5; 13 a ok x 1 6; 14 a cancel x 1; 15 a cancel x 2",
            ),
            (
                "replies in order",
                true,
                "10 h message x 1; 20 h message x 2; 25 p reply x 1; 30 p reply x 2; 31 p reply x 1",
            ),
            (
                "replies that were swapped",
                false,
                "10 h message x 1; 20 h message x 2; 25 p reply x 2; 30 p reply x 1",
            ),
            (
                "replies that two masters swapped",
                true,
                "5 h split; 10 h message x 1; 20 h message x 2; 25 p reply x 2; 30 p reply x 1; 40 h split_healed",
            ),
        ],
    );
}

#[test]
fn each_ticket_comes_to_one_end() {
    table(
        Invariant::I4Endings,
        &[
            ("released", true, &format!("{A_HOLDS} 20 a release x 1; 30 h quiet; 40 h queues 0; 50 h end")),
            ("no end", false, &format!("{A_HOLDS} 30 h quiet; 50 h end")),
            ("no end of one that was killed", true, &format!("{A_HOLDS} 20 h kill a; 30 h quiet; 50 h end")),
            (
                "no end of one that ended cleanly",
                false,
                &format!("{A_HOLDS} 20 a down clean; 30 h quiet; 50 h end"),
            ),
            ("two ends", false, &format!("{A_HOLDS} 20 a release x 1; 21 a cancel x 1")),
            ("a ticket on the server", false, "30 h quiet; 40 h queues 1"),
            ("a message without a reply", false, "10 h message x 1; 20 h quiet; 30 h end"),
            ("a message with its reply", true, "10 h message x 1; 20 h quiet; 30 p reply x 1"),
            (
                "a message that a failover lost",
                true,
                "5 h split; 10 h message x 1; 20 h split_healed; 2000 h quiet; 2030 h end",
            ),
            (
                "a message from before a failover",
                false,
                "5 h message x 1; 10 h split; 20 h split_healed; 2000 h quiet; 2030 h end",
            ),
            (
                "a message of a server that came back from its file",
                false,
                "5 h restart_aof; 10 h message x 1; 20 h server_back; 2000 h quiet; 2030 h end",
            ),
        ],
    );
}

#[test]
fn a_chat_goes_on_after_its_replica_died() {
    let row = |fault: &str, at: u64| {
        format!("{A_HOLDS} {B_WAITS} {fault} {at} b granted x 1 6 b.0 a.0; {} b release x 1", at + 1)
    };
    table(
        Invariant::I5Takeover,
        &[
            ("killed, after the lease", true, &row("100 h kill a;", 1700)),
            ("killed, too late", false, &row("100 h kill a;", 2100)),
            ("killed, never", false, &format!("{A_HOLDS} {B_WAITS} 100 h kill a; 3000 h end")),
            ("too late on a machine that was", true, &row("100 h kill a; 2050 b late 400;", 2100)),
            (
                "while one stood still that has nothing to do with it",
                false,
                &row("50 c up c.0; 100 h kill a; 1600 h stop c; 2040 h cont c; 2050 c late 400;", 2100),
            ),
            (
                "while the server did not answer",
                true,
                &row("100 h kill a; 1000 h server_stop; 2000 h server_back;", 2100),
            ),
            ("a last beat that was held up", true, &row("90 h hold a; 100 h kill a; 800 h heal a;", 2300)),
            (
                "a last beat that came after the lease",
                false,
                &row("90 h hold a; 100 h kill a; 1700 h heal a;", 2300),
            ),
            (
                "two that died",
                true,
                &format!(
                    "{A_HOLDS} {B_WAITS} 25 c call x 1; 26 c ok x 1 7; 100 h kill a; 300 h kill b; 1850 c granted x 1 7 c.0; 1900 c release x 1"
                ),
            ),
            (
                "stopped for longer than the lease",
                false,
                &row("100 h stop a; 2500 h cont a; 2510 a lost x 1;", 2100),
            ),
            (
                "stopped for less than the lease",
                true,
                &row("100 h stop a; 1000 h cont a; 2050 a release x 1;", 2100),
            ),
            (
                "a clean end",
                false,
                &row("100 a down unclean; 50 a release x 1; 200 h kill c;", 2100)
                    .replace("50 a release x 1;", ""),
            ),
            (
                "killed before its number was known",
                false,
                "0 a up a.0; 0 b up b.0; 10 a call x 1; 20 h kill a; 30 b call x 1; 31 b ok x 1 6; 2100 b granted x 1 6 b.0; 2101 b release x 1",
            ),
        ],
    );
}

#[test]
fn fences_grow() {
    let again = |n: u64| {
        format!(
            "{A_HOLDS} 20 a release x 1; 25 h flushall; 30 b call x 1; 31 b ok x 1 {n}; 1700 b granted x 1 {n} b.0; 1701 b release x 1"
        )
    };
    table(
        Invariant::I6Fences,
        &[
            ("after a loss of data", true, &again(6)),
            ("from the beginning", false, &again(1)),
            ("twice", false, &again(5)),
        ],
    );
}

#[test]
fn a_dead_session_does_nothing() {
    table(
        Invariant::I7Resurrection,
        &[
            (
                "the next session",
                true,
                "0 a up a.0; 10 a over a.0; 11 a session a.1; 20 a call x 1; 21 a ok x 1 5; 22 a granted x 1 5 a.1; 23 a release x 1",
            ),
            (
                "one of two, on two parts of a cluster",
                true,
                "0 a up a.0; 5 a session a.1; 20 a call x 1; 21 a ok x 1 5; 22 a granted x 1 5 a.0; 23 a release x 1",
            ),
            (
                "one that said so",
                false,
                "0 a up a.0; 10 a over a.0; 20 a call x 1; 21 a ok x 1 5; 22 a granted x 1 5 a.0; 23 a release x 1",
            ),
            (
                "one that was passed over",
                false,
                &format!(
                    "{A_HOLDS} {B_WAITS} 1600 b granted x 1 6 b.0 a.0; 1605 b release x 1; 1610 a lost x 1; 1700 a call x 2; 1701 a ok x 2 7; 1702 a granted x 2 7 a.0 b.0; 1703 a release x 2"
                ),
            ),
            (
                "a ticket from before",
                false,
                "0 a up a.0; 5 a call x 1; 6 a ok x 1 5; 10 a over a.0; 900 a granted x 1 5 a.0; 903 a release x 1",
            ),
        ],
    );
}

#[test]
fn what_nobody_knows_holds_nobody_up() {
    let row = |at: u64| {
        format!(
            "0 a up a.0; 0 b up b.0; 10 a call x 1; 12 a cancel x 1; 20 b call x 1; 21 b ok x 1 6; {at} b granted x 1 6 b.0; {} b release x 1",
            at + 1
        )
    };
    table(
        Invariant::I8Ghosts,
        &[
            ("left at once", true, &row(30)),
            ("left when it is the head", true, &row(1400)),
            ("never left", false, &row(3000)),
        ],
    );
}

#[test]
fn who_is_next_has_its_turn() {
    let row = |fault: &str, at: u64| {
        format!(
            "{A_HOLDS} {B_WAITS} {fault} 100 a release x 1; {at} b granted x 1 6 b.0 a.0; {} b release x 1",
            at + 1
        )
    };
    table(
        Invariant::I9Liveness,
        &[
            ("pushed", true, &row("", 101)),
            ("late", false, &row("", 700)),
            ("with lost pushes", true, &row("30 h drop_pushes b;", 700)),
            ("with lost pushes, and never asked", false, &row("30 h drop_pushes b;", 1300)),
            ("behind one that was cut off", true, &row("30 h cut a; 400 h heal a;", 1800)),
            ("behind one that stopped right after", true, &row("110 h stop a; 3000 h cont a;", 1800)),
            ("cut off itself", true, &row("30 h cut b; 600 h heal b;", 700)),
            (
                "behind one that asked, stood still, and had its ticket in its next session",
                true,
                "0 a up a.0; 0 b up b.0; 10 a call x 1; 20 h stop a; 3000 h cont a; 3010 a session a.1; 3011 a ok x 1 5; 3012 a granted x 1 5 a.1; 3020 h kill a; 3030 b call x 1; 3031 b ok x 1 6; 4530 b granted x 1 6 b.0 a.1; 4531 b release x 1",
            ),
            (
                "in an empty chat",
                false,
                "0 b up b.0; 20 b call x 1; 21 b ok x 1 6; 700 b granted x 1 6 b.0; 701 b release x 1",
            ),
            (
                "one that gave up too early to be owed anything",
                true,
                &format!("{A_HOLDS} {B_WAITS} 200 b cancel x 1; 5000 a release x 1"),
            ),
        ],
    );
}

#[test]
fn the_previous_holder_is_the_one() {
    let row = |prev: &str| {
        format!(
        "{A_HOLDS} 20 a release x 1; 21 b call x 1; 22 b ok x 1 6; 23 b granted x 1 6 b.0 a.0; 24 b release x 1;
        25 a call x 2; 26 a ok x 2 7; 27 a granted x 2 7 a.0 {prev}; 28 a release x 2")
    };
    table(
        Invariant::I10Previous,
        &[
            ("another one", true, &row("b.0")),
            ("forgotten", true, &row("")),
            ("itself, but another one was between", false, &row("a.0")),
            ("a failover forgot it", true, &format!("{}; 24 h promote", row("a.0"))),
        ],
    );
}

#[test]
fn one_is_connected_at_a_time() {
    let row = |fault: &str, close: u64, more: &str| {
        format!(
            "0 a up a.0; 0 b up b.0; 10 s open t 5 a; {fault} 1600 s open t 6 b; {close} s close t 5 a; {more} 9000 s close t 6 b"
        )
    };
    table(
        Invariant::I11Transport,
        &[
            ("closed before", true, &row("", 1500, "")),
            ("closed after", false, &row("", 2000, "")),
            ("a process that stands still", true, &row("100 h stop a; 4000 h cont a;", 4020, "")),
            ("a process that lets go too late", false, &row("100 h stop a; 4000 h cont a;", 4500, "")),
            ("a process that was killed", true, &row("1590 h kill a;", 1690, "")),
            (
                "what an old connection brought",
                false,
                &row("100 h stop a; 4000 h cont a;", 4020, "4010 a frame t 5 4005;"),
            ),
            (
                "what was checked before it stood still",
                true,
                &row("100 h stop a; 4000 h cont a;", 4020, "4010 a frame t 5 99;"),
            ),
            (
                "an older fence after a newer one",
                false,
                "0 a up a.0; 10 s open t 6 b; 20 s open t 5 a; 20 s close t 6 b; 30 s close t 5 a",
            ),
        ],
    );
}

#[test]
fn turns_cost_what_they_should() {
    let row = |calls: u64, keys: u64| {
        format!("{A_HOLDS} 5 h usage 100 5; 20 a release x 1; 6000 h usage {calls} {keys}")
    };
    table(
        Invariant::I12Cost,
        &[
            ("two calls and the beats", true, &row(120, 6)),
            ("polling", false, &row(300, 6)),
            ("keys that stay", false, &row(120, 30)),
            ("more calls because of a fault", true, &format!("{}; 3000 h client_kill", row(300, 6))),
        ],
    );
}

#[test]
fn a_loss_is_told_once_and_in_time() {
    let row = |fault: &str, end: &str| {
        format!("{A_HOLDS} {B_WAITS} {fault} 1600 b granted x 1 6 b.0 a.0; 1601 b release x 1; {end}")
    };
    table(
        Invariant::I13Told,
        &[
            ("before the next turn", true, &row("1300 a lost x 1;", "")),
            ("soon after", true, &row("", "1900 a lost x 1")),
            ("late", false, &row("", "2600 a lost x 1")),
            ("twice", false, &row("1300 a lost x 1;", "1400 a lost x 1")),
            ("never", false, &row("", "5000 h end")),
            ("after it stood still", true, &row("50 h stop a; 4000 h cont a;", "4010 a lost x 1")),
            ("given back as if nothing had been", false, &row("", "1900 a release x 1")),
            ("killed before it could be told", true, &row("100 h kill a;", "5000 h end")),
        ],
    );
}

#[test]
fn a_summary_counts_what_the_run_had() {
    let report = report(&format!(
        "{A_HOLDS} {B_WAITS} 100 h kill a; 1700 b granted x 1 6 b.0 a.0; 1701 b writes x 6 b.0; 1702 r takes x 6 b.0; 1703 b release x 1"
    ));
    let summary = report.summary.clone();
    assert_eq!((summary.tickets, summary.turns, summary.takeovers, summary.writes), (2, 2, 1, 1));
    assert_eq!((summary.longest_takeover_ms, summary.longest_wait_ms), (100, 1679));
    assert!(report.to_string().contains("1 Kill"), "{report}");
}

#[test]
fn a_violation_is_drawn_with_its_replicas_and_faults() {
    let records = history(&format!("{A_HOLDS} {B_WAITS} 100 h kill a; 3000 h end"));
    let report = check(&records, Limits::default()).unwrap();
    let drawing = super::draw(&records, &report.violations[0]).unwrap();
    for part in ["<svg", "a (97)", "b (98)", "Kill", "seed 7", "</svg>"] {
        assert!(drawing.contains(part), "{part}: {drawing}");
    }
}

#[test]
fn a_history_without_a_start_is_refused() {
    assert!(check(&[], Limits::default()).is_err());
}
