use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::SignedDuration;
use jiff::tz::{TimeZone, TimeZoneTransition};
use serde::{Deserialize, Serialize};

use crate::core::duration;
use crate::core::error::ConfigError;
use crate::core::time::Timestamp;

/// How far back missed occurrences are counted.
const MAX_COUNTED: u32 = 1000;
/// How many missed occurrences may run at most.
const MAX_RUN: u32 = 10_000;
/// In bytes: more than an expression that lists every minute, hour and day has.
const MAX_EXPRESSION: usize = 1024;
/// In seconds: the longest gap that cron expressions find their way through.
const LONGEST_GAP: i32 = 2 * 3600;
/// How many changes of a zone's clock are looked through for a longer one.
const TRANSITIONS: usize = 32;

/// When a durable task runs, and what becomes of what was missed.
///
/// ```
/// use botmesh::prelude::*;
/// use botmesh::Missed;
///
/// let _ = Schedule::every(Duration::from_secs(300));
/// let _ = Schedule::cron("0 9 * * mon-fri", "Europe/Madrid").on_missed(Missed::Skip);
/// let _ = Schedule::on_demand();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Schedule {
    timing: Timing,
    missed: Missed,
    grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Timing {
    Every(Duration),
    Cron { expression: String, zone: String },
    OnDemand,
}

/// What becomes of occurrences whose time went by while no process ran, while an earlier one still ran, or when the clock
/// jumped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Missed {
    /// They do not run. One that begins within the [grace](Schedule::grace) was not missed.
    Skip,
    /// The last of them runs, for all of them. The default.
    #[default]
    Once,
    /// Each of them runs, the earliest first.
    All {
        /// If more were missed, so many of the latest run. 1 to 10,000.
        at_most: u32,
    },
}

impl Missed {
    /// Each of them runs, at most 100.
    pub const ALL: Self = Self::All { at_most: 100 };
}

impl Schedule {
    fn new(timing: Timing) -> Self {
        Self { timing, missed: Missed::default(), grace: Duration::from_secs(60) }
    }

    /// At the whole multiples of `period` since 1970-01-01 00:00 UTC, so that all processes agree on them: every five
    /// minutes is at :00, :05 and so on.
    pub fn every(period: Duration) -> Self {
        Self::new(Timing::Every(period))
    }

    /// At the times of a cron expression in a time zone of the IANA database, such as `Europe/Madrid` or `UTC`.
    ///
    /// Five fields: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday), with lists, ranges, steps,
    /// names, `L`, `W` and `#`, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. If both day fields are restricted,
    /// either suffices.
    ///
    /// When clocks change, an expression with one fixed hour and minute runs once that day: at the first moment after a gap
    /// that its time falls into, and at the earlier one of two moments that the clock shows its time. Other expressions follow
    /// the wall clock: nothing in a gap, and both times in an hour that is repeated.
    pub fn cron(expression: impl Into<String>, zone: impl Into<String>) -> Self {
        Self::new(Timing::Cron { expression: expression.into(), zone: zone.into() })
    }

    /// Only what is put down by [`Tasks::at`](crate::Tasks::at), [`Tasks::after`](crate::Tasks::after) or
    /// [`Tasks::repeat`](crate::Tasks::repeat).
    pub fn on_demand() -> Self {
        Self::new(Timing::OnDemand)
    }

    /// What becomes of missed occurrences. Default [`Missed::Once`].
    pub fn on_missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// How late an occurrence may begin and still be on time. Default 1 minute.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Checks the schedule of `field`; `now` is when it must still have something to do.
    pub(crate) fn compile(&self, field: &str, now: Timestamp) -> Result<Plan, ConfigError> {
        let (timing, text) = match &self.timing {
            Timing::OnDemand => (Compiled::OnDemand, "on demand".to_owned()),
            Timing::Every(period) => {
                let millis = i64::try_from(period.as_millis()).ok().filter(|millis| *millis > 0);
                let period_millis = millis.ok_or_else(|| {
                    let problem = "is shorter than 1 ms or longer than any clock can say";
                    ConfigError::new(format!("{field}.every"), problem, "give for example 5 minutes")
                })?;
                (Compiled::Every(period_millis), format!("every {}", duration::format(*period)))
            }
            Timing::Cron { expression, zone } => {
                let compiled = compile_cron(field, expression, zone)?;
                (compiled, format!("{expression} {zone}"))
            }
        };
        let plan = Plan { timing, text, missed: self.missed, grace: self.grace };
        if plan.is_recurring() && plan.next(now).is_none() {
            let problem = format!("`{}` never comes", plan.text);
            return Err(ConfigError::new(format!("{field}.cron"), problem, "correct the day or the month"));
        }
        if let Missed::All { at_most } = self.missed
            && !(1..=MAX_RUN).contains(&at_most)
        {
            let problem = format!("lets {at_most} of all missed ones run");
            let fix = format!("set 1 to {MAX_RUN}, or use `Missed::Skip`");
            return Err(ConfigError::new(format!("{field}.on_missed"), problem, fix));
        }
        Ok(plan)
    }
}

fn compile_cron(field: &str, expression: &str, zone: &str) -> Result<Compiled, ConfigError> {
    if expression.len() > MAX_EXPRESSION {
        let problem = format!("has {} bytes, more than {MAX_EXPRESSION}", expression.len());
        return Err(ConfigError::new(
            format!("{field}.cron"),
            problem,
            "use ranges and steps, such as `*/5`",
        ));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    let cron = parser.parse(expression).map_err(|error| {
        let problem = format!("`{expression}` is no cron expression: {error}");
        let fix =
            "write minute, hour, day of the month, month and day of the week, such as `0 9 * * mon-fri`";
        ConfigError::new(format!("{field}.cron"), problem, fix)
    })?;
    let zone = TimeZone::get(zone).map_err(|_| {
        let problem = format!("`{zone}` is not in the time zone database");
        ConfigError::new(format!("{field}.zone"), problem, "write for example `Europe/Madrid` or `UTC`")
    })?;
    Ok(Compiled::Cron(Box::new(cron), zone))
}

/// A schedule that was checked.
#[derive(Debug)]
pub(crate) struct Plan {
    timing: Compiled,
    text: String,
    missed: Missed,
    grace: Duration,
}

#[derive(Debug)]
enum Compiled {
    /// In milliseconds.
    Every(i64),
    Cron(Box<Cron>, TimeZone),
    OnDemand,
}

/// What becomes of an occurrence that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The one of `at` runs, and `missed` others do not.
    Run { at: Timestamp, missed: u32 },
    /// None of `missed` runs.
    Skip { missed: u32 },
}

impl Plan {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_recurring(&self) -> bool {
        !matches!(self.timing, Compiled::OnDemand)
    }

    /// Refuses a period that is shorter than `poll`, which is how often a durable bot looks for what is due.
    pub(crate) fn check_period(&self, field: &str, poll: Duration) -> Result<(), ConfigError> {
        let Compiled::Every(period) = self.timing else { return Ok(()) };
        if Duration::from_millis(period.unsigned_abs()) >= poll {
            return Ok(());
        }
        let (problem, fix) =
            ("is shorter than durability.poll", "make it longer, or lower `durability.poll`");
        Err(ConfigError::new(format!("{field}.every"), problem, fix))
    }

    /// The first occurrence after `after`.
    pub(crate) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.timing {
            Compiled::Every(period) => {
                let n = after.as_millis().div_euclid(*period).checked_add(1)?;
                n.checked_mul(*period).map(Timestamp::from_millis)
            }
            Compiled::Cron(cron, zone) => {
                let from = zoned(after, zone)?;
                // It finds no way through a gap of more than two hours.
                let next = cron.find_next_occurrence(&from, false).or_else(|error| {
                    cron.find_next_occurrence(&after_missing_day(&from).ok_or(error)?, true)
                });
                Some(Timestamp::from_millis(next.ok()?.timestamp().as_millisecond()))
            }
            Compiled::OnDemand => None,
        }
    }

    /// The last occurrence before `until`, or at it.
    fn last(&self, until: Timestamp, inclusive: bool) -> Option<Timestamp> {
        match &self.timing {
            Compiled::Every(period) => {
                let until = until.as_millis().checked_sub(i64::from(!inclusive))?;
                until.div_euclid(*period).checked_mul(*period).map(Timestamp::from_millis)
            }
            Compiled::Cron(cron, zone) => {
                let last = cron.find_previous_occurrence(&zoned(until, zone)?, inclusive).ok()?;
                Some(Timestamp::from_millis(last.timestamp().as_millisecond()))
            }
            Compiled::OnDemand => None,
        }
    }

    /// Whether an occurrence begins on time at `now`.
    pub(crate) fn is_on_time(&self, at: Timestamp, now: Timestamp) -> bool {
        now.since(at) <= self.grace
    }

    /// What becomes of the occurrence of `at`, and of those after it whose time has come as well.
    pub(crate) fn decide(&self, at: Timestamp, now: Timestamp) -> Decision {
        let mut due = self.due(at, now);
        let latest = due.last().copied().unwrap_or(at);
        let others = u32::try_from(due.len().saturating_sub(1)).unwrap_or(u32::MAX);
        match self.missed {
            Missed::Skip if !self.is_on_time(latest, now) => Decision::Skip { missed: others + 1 },
            Missed::Skip | Missed::Once => Decision::Run { at: latest, missed: others },
            Missed::All { at_most } => {
                let dropped = due.len().saturating_sub(usize::try_from(at_most).unwrap_or(usize::MAX));
                due.drain(..dropped);
                let missed = u32::try_from(dropped).unwrap_or(u32::MAX);
                Decision::Run { at: due.first().copied().unwrap_or(at), missed }
            }
        }
    }

    /// The occurrences from `at` to `now`, the earliest first; of very many, the latest.
    fn due(&self, at: Timestamp, now: Timestamp) -> Vec<Timestamp> {
        let most = match self.missed {
            Missed::All { at_most } => at_most.max(MAX_COUNTED),
            Missed::Skip | Missed::Once => MAX_COUNTED,
        };
        let mut due = Vec::new();
        let mut last = self.last(now, true);
        while let Some(one) = last.filter(|one| *one > at && due.len() < most as usize) {
            due.push(one);
            last = self.last(one, false);
        }
        if due.len() < most as usize {
            due.push(at);
        }
        due.reverse();
        due
    }
}

/// The first moment after the next gap that is longer than those of summer time: where the date line is moved, a day is
/// missing.
fn after_missing_day(from: &jiff::Zoned) -> Option<jiff::Zoned> {
    let zone = from.time_zone();
    let is_long = |transition: &TimeZoneTransition| {
        let before = zone.to_offset(transition.timestamp() - SignedDuration::from_secs(1));
        transition.offset().seconds() - before.seconds() > LONGEST_GAP
    };
    let mut transitions = zone.following(from.timestamp()).take(TRANSITIONS);
    transitions.find(is_long).map(|transition| transition.timestamp().to_zoned(zone.clone()))
}

/// To the second, as cron expressions go.
fn zoned(at: Timestamp, zone: &TimeZone) -> Option<jiff::Zoned> {
    let at = jiff::Timestamp::from_second(at.as_millis().div_euclid(1000)).ok()?;
    Some(at.to_zoned(zone.clone()))
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
