//! When schedules run: by the clock on the wall, also when it is changed.

use super::*;

fn instant(text: &str) -> Timestamp {
    Timestamp::from_millis(text.parse::<jiff::Timestamp>().expect("an instant").as_millisecond())
}

fn plan(schedule: &Schedule) -> Plan {
    schedule.compile("task `t`", instant("2026-01-01T00:00:00Z")).expect("a schedule")
}

/// The occurrences after `from`, as the clock in the zone shows them.
fn occurrences(expression: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
    let plan = plan(&Schedule::cron(expression, zone));
    let zone = TimeZone::get(zone).expect("a zone");
    let mut at = instant(from);
    let mut next = || {
        at = plan.next(at).expect("a next occurrence");
        zoned(at, &zone).expect("a date").strftime("%m-%d %H:%M %:z").to_string()
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn working_days_follow_the_clock_on_the_wall() {
    let found = occurrences("0 9 * * mon-fri", "Europe/Madrid", "2026-03-26T08:00:00Z", 3);
    assert_eq!(found, ["03-27 09:00 +01:00", "03-30 09:00 +02:00", "03-31 09:00 +02:00"]);
    let found = occurrences("0 9 1 * mon", "UTC", "2026-01-01T09:00:00Z", 3);
    assert_eq!(found, ["01-05 09:00 +00:00", "01-12 09:00 +00:00", "01-19 09:00 +00:00"]);
    assert_eq!(occurrences("@monthly", "UTC", "2026-01-01T00:00:00Z", 1), ["02-01 00:00 +00:00"]);
}

#[test]
fn every_notation_means_what_it_means_to_cron() {
    let rows = [
        ("0 9 L * *", ["01-31 09:00 +00:00", "02-28 09:00 +00:00"]),
        ("0 9 15W * *", ["01-15 09:00 +00:00", "02-16 09:00 +00:00"]),
        ("0 9 * * mon#2", ["01-12 09:00 +00:00", "02-09 09:00 +00:00"]),
        ("0 9 * * fri#L", ["01-30 09:00 +00:00", "02-27 09:00 +00:00"]),
        ("0 9 1,15 * *", ["01-01 09:00 +00:00", "01-15 09:00 +00:00"]),
        ("*/10 * * * *", ["01-01 00:10 +00:00", "01-01 00:20 +00:00"]),
        ("0 9 * * 0", ["01-04 09:00 +00:00", "01-11 09:00 +00:00"]),
        ("0 9 * * 7", ["01-04 09:00 +00:00", "01-11 09:00 +00:00"]),
        ("0 9 1 mar *", ["03-01 09:00 +00:00", "03-01 09:00 +00:00"]),
        ("@hourly", ["01-01 01:00 +00:00", "01-01 02:00 +00:00"]),
        ("@daily", ["01-02 00:00 +00:00", "01-03 00:00 +00:00"]),
        ("@weekly", ["01-04 00:00 +00:00", "01-11 00:00 +00:00"]),
        ("@monthly", ["02-01 00:00 +00:00", "03-01 00:00 +00:00"]),
        ("@yearly", ["01-01 00:00 +00:00", "01-01 00:00 +00:00"]),
    ];
    for (expression, expected) in rows {
        assert_eq!(occurrences(expression, "UTC", "2026-01-01T00:00:00Z", 2), expected, "{expression}");
    }
}

/// Clocks go forward: a fixed time that does not exist runs at the first moment after the gap, once.
#[test]
fn a_fixed_time_in_a_gap_runs_right_after_it() {
    let rows = [
        ("Europe/Madrid", "2026-03-28T12:00:00Z", ["03-29 03:00 +02:00", "03-30 02:30 +02:00"]),
        ("America/New_York", "2026-03-07T12:00:00Z", ["03-08 03:00 -04:00", "03-09 02:30 -04:00"]),
    ];
    for (zone, from, expected) in rows {
        assert_eq!(occurrences("30 2 * * *", zone, from, 2), expected, "{zone}");
    }
    // Where clocks changed at midnight, the day began at 01:00.
    let found = occurrences("30 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", 2);
    assert_eq!(found, ["11-04 01:00 -02:00", "11-05 00:30 -02:00"]);
    let found = occurrences("0 1 * * *", "Europe/Madrid", "2026-03-28T12:00:00Z", 2);
    assert_eq!(found, ["03-29 01:00 +01:00", "03-30 01:00 +02:00"], "the hour before the gap");
}

/// Where the date line was moved, a whole day is missing, and what would have run in it. Others go on.
#[test]
fn a_day_that_a_zone_leaves_out_has_no_occurrences() {
    let found = occurrences("30 2 * * *", "Pacific/Apia", "2011-12-28T13:00:00Z", 3);
    assert_eq!(found, ["12-29 02:30 -10:00", "12-31 02:30 +14:00", "01-01 02:30 +14:00"]);
    let found = occurrences("0 0 * * *", "Pacific/Apia", "2011-12-29T09:00:00Z", 3);
    assert_eq!(found, ["12-29 00:00 -10:00", "12-31 00:00 +14:00", "01-01 00:00 +14:00"]);
    let found = occurrences("0 9 30 12 *", "Pacific/Apia", "2011-01-01T12:00:00Z", 1);
    assert_eq!(found, ["12-30 09:00 +14:00"], "that of the year after");
    // The longest gap of a summer time.
    let found = occurrences("30 1 * * *", "Antarctica/Troll", "2026-03-28T12:00:00Z", 2);
    assert_eq!(found, ["03-29 03:00 +02:00", "03-30 01:30 +02:00"]);
}

/// Clocks go back: a fixed time that comes twice runs the first time.
#[test]
fn a_fixed_time_that_is_repeated_runs_once() {
    let rows = [
        ("30 2 * * *", "Europe/Madrid", "2026-10-24T12:00:00Z", ["10-25 02:30 +02:00", "10-26 02:30 +01:00"]),
        (
            "30 1 * * *",
            "America/New_York",
            "2026-10-31T12:00:00Z",
            ["11-01 01:30 -04:00", "11-02 01:30 -05:00"],
        ),
        (
            "30 23 * * *",
            "America/Sao_Paulo",
            "2019-02-16T12:00:00Z",
            ["02-16 23:30 -02:00", "02-17 23:30 -03:00"],
        ),
    ];
    for (expression, zone, from, expected) in rows {
        assert_eq!(occurrences(expression, zone, from, 2), expected, "{zone}");
    }
}

#[test]
fn other_expressions_follow_the_wall_clock_through_gap_and_repetition() {
    let found = occurrences("*/30 * * * *", "Europe/Madrid", "2026-03-29T00:29:00Z", 3);
    assert_eq!(found, ["03-29 01:30 +01:00", "03-29 03:00 +02:00", "03-29 03:30 +02:00"]);
    let found = occurrences("*/30 * * * *", "Europe/Madrid", "2026-10-25T00:00:00Z", 4);
    assert_eq!(
        found,
        ["10-25 02:30 +02:00", "10-25 02:00 +01:00", "10-25 02:30 +01:00", "10-25 03:00 +01:00"]
    );
    let found = occurrences("30 1,2 * * *", "Europe/Madrid", "2026-03-28T12:00:00Z", 2);
    assert_eq!(found, ["03-29 01:30 +01:00", "03-30 01:30 +02:00"], "two hours are not one fixed time");
}

#[test]
fn periods_are_whole_multiples_that_all_processes_agree_on() {
    let plan = plan(&Schedule::every(Duration::from_secs(300)));
    assert_eq!(plan.next(instant("2026-01-01T10:02:03Z")), Some(instant("2026-01-01T10:05:00Z")));
    assert_eq!(plan.next(instant("2026-01-01T10:05:00Z")), Some(instant("2026-01-01T10:10:00Z")));
    assert_eq!(plan.next(instant("1969-12-31T23:57:00Z")), Some(instant("1970-01-01T00:00:00Z")));
}

#[test]
fn what_was_missed_is_decided_by_policy() {
    let (at, late) = (instant("2026-01-01T10:00:00Z"), instant("2026-01-01T10:17:00Z"));
    let just = instant("2026-01-01T10:15:30Z");
    let run = |at: &str, missed| Decision::Run { at: instant(at), missed };
    let rows = [
        (Missed::Skip, late, Decision::Skip { missed: 4 }),
        (Missed::Skip, just, run("2026-01-01T10:15:00Z", 3)),
        (Missed::Once, late, run("2026-01-01T10:15:00Z", 3)),
        (Missed::Once, at, run("2026-01-01T10:00:00Z", 0)),
        (Missed::ALL, late, run("2026-01-01T10:00:00Z", 0)),
        (Missed::All { at_most: 3 }, late, run("2026-01-01T10:05:00Z", 1)),
    ];
    for (missed, now, expected) in rows {
        for schedule in [Schedule::every(Duration::from_secs(300)), Schedule::cron("*/5 * * * *", "UTC")] {
            assert_eq!(plan(&schedule.on_missed(missed)).decide(at, now), expected, "{missed:?} at {now}");
        }
    }
}

#[test]
fn years_of_absence_are_counted_only_so_far() {
    let plan = plan(&Schedule::cron("* * * * *", "Europe/Madrid"));
    let decision = plan.decide(instant("2020-01-01T00:00:00Z"), instant("2026-01-01T00:00:00Z"));
    assert_eq!(decision, Decision::Run { at: instant("2026-01-01T00:00:00Z"), missed: 999 });
}

/// What is counted backwards is what runs forwards, in every zone and through every change of clocks.
#[test]
fn backwards_is_the_reverse_of_forwards() {
    let zones = ["Europe/Madrid", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "UTC"];
    for (zone, expression) in zones
        .iter()
        .flat_map(|zone| ["30 2 * * *", "30 0 * * *", "*/20 1-3 * * *", "5 1,2 * * *"].map(|e| (zone, e)))
    {
        let plan = plan(&Schedule::cron(expression, *zone).on_missed(Missed::All { at_most: 10_000 }));
        let (first, end) = (instant("2018-01-01T12:00:00Z"), instant("2019-01-01T12:00:00.500Z"));
        let mut forwards = vec![plan.next(first).expect("an occurrence")];
        while let Some(next) = plan.next(forwards[forwards.len() - 1]).filter(|next| *next <= end) {
            forwards.push(next);
        }
        assert_eq!(plan.due(forwards[0], end), forwards, "{expression} {zone}");
    }
}
