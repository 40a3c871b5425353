//! What must hold in a history. One file for each invariant; each of them is told in the words of its file.

mod i01_exclusion;
mod i02_validity;
mod i03_order;
mod i04_endings;
mod i05_takeover;
mod i06_fences;
mod i07_resurrection;
mod i08_ghosts;
mod i09_liveness;
mod i10_previous;
mod i11_transport;
mod i12_cost;
mod i13_told;
#[cfg(test)]
mod model;
mod run;
mod summary;
#[cfg(test)]
mod tests;
mod timeline;
mod waits;
mod words;

use std::fmt;
use std::time::Duration;

use crate::history::Record;
use run::Run;
pub use summary::Summary;

/// What a busy machine is allowed, beyond what was recorded of its lateness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Added to every bound. Default 500 ms.
    pub scheduling: Duration,
    /// From the end of a lease to the next turn. Default 250 ms.
    pub takeover: Duration,
    /// From the clean end of a process to the next turn. Default 1 s.
    pub clean: Duration,
    /// From when a ticket that its process does not know is the head to its end. Default 1 s.
    pub ghost: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            scheduling: Duration::from_millis(500),
            takeover: Duration::from_millis(250),
            clean: Duration::from_secs(1),
            ghost: Duration::from_secs(1),
        }
    }
}

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the name of each says it, and its file more")]
pub enum Invariant {
    I1Exclusion,
    I2Validity,
    I3Order,
    I4Endings,
    I5Takeover,
    I6Fences,
    I7Resurrection,
    I8Ghosts,
    I9Liveness,
    I10Previous,
    I11Transport,
    I12Cost,
    I13Told,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::I1Exclusion,
        Self::I2Validity,
        Self::I3Order,
        Self::I4Endings,
        Self::I5Takeover,
        Self::I6Fences,
        Self::I7Resurrection,
        Self::I8Ghosts,
        Self::I9Liveness,
        Self::I10Previous,
        Self::I11Transport,
        Self::I12Cost,
        Self::I13Told,
    ];

    /// What it says, in one sentence.
    pub fn says(self) -> &'static str {
        match self {
            Self::I1Exclusion => {
                "a resource takes the writes of a chat in the order of the fences, one session for each"
            }
            Self::I2Validity => "a replica acts for a chat only as long as nobody else has its turn",
            Self::I3Order => "tickets of a chat are served in the order in which they were taken",
            Self::I4Endings => "each ticket comes to one end, and nothing is left over",
            Self::I5Takeover => {
                "a chat goes on within a lease after its replica died, at once after a clean end"
            }
            Self::I6Fences => "fences of a chat grow, whatever happens to the server",
            Self::I7Resurrection => "a session that was seen dead does nothing any more",
            Self::I8Ghosts => "a ticket that nobody knows any more does not hold up its chat",
            Self::I9Liveness => "who is next gets the turn, also when pushes are lost",
            Self::I10Previous => "who is told that it was the previous holder was",
            Self::I11Transport => "one replica at a time is connected to what permits one connection",
            Self::I12Cost => "turns cost the server as many calls as they should, and no memory in the end",
            Self::I13Told => "a replica that loses its turn is told, once, and in time",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{self:?}");
        let number = name.trim_end_matches(char::is_alphabetic);
        write!(f, "{number} ({})", name[number.len()..].to_lowercase())
    }
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What does not hold.
    pub invariant: Invariant,
    /// The chat, or what is led.
    pub chat: String,
    /// What happened.
    pub what: String,
    /// The records that show it, by their place in the history.
    pub records: Vec<usize>,
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Report {
    /// What makes the run again.
    pub seed: u64,
    /// Everything that must not be, the earliest first.
    pub violations: Vec<Violation>,
    /// What the run had.
    pub summary: Summary,
    evidence: Vec<String>,
}

/// Checks a merged history. What is not recorded (the events of leaders, of messages, of the server) is not judged.
///
/// # Errors
/// It has no `start`, so that nobody knows what was promised.
pub fn check(records: &[Record], limits: Limits) -> Result<Report, &'static str> {
    let run = Run::new(records, limits).ok_or("the history has no `start`")?;
    let waits = waits::all(&run);
    let checks = [
        i01_exclusion::check(&run),
        i02_validity::check(&run),
        i03_order::check(&run),
        i04_endings::check(&run),
        i05_takeover::check(&run, &waits),
        i06_fences::check(&run),
        i07_resurrection::check(&run),
        i08_ghosts::check(&run, &waits),
        i09_liveness::check(&run, &waits),
        i10_previous::check(&run),
        i11_transport::check(&run),
        i12_cost::check(&run),
        i13_told::check(&run),
    ];
    let mut violations: Vec<_> = checks.into_iter().flatten().collect();
    for violation in &mut violations {
        violation.records.sort_unstable();
        violation.records.dedup();
    }
    violations.sort_by_key(|violation| violation.records.last().copied());
    let evidence = violations
        .iter()
        .map(|violation| {
            let lines = violation.records.iter().map(|index| words::line(&run, *index));
            lines.map(|line| format!("    {line}\n")).collect()
        })
        .collect();
    Ok(Report { seed: run.seed, violations, summary: Summary::of(&run, &waits), evidence })
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// The invariants that do not hold, each once.
    pub fn broken(&self) -> Vec<Invariant> {
        let mut broken: Vec<_> = self.violations.iter().map(|violation| violation.invariant).collect();
        broken.sort_unstable();
        broken.dedup();
        broken
    }
}

/// The violations in words, each with the events that show it. Of each invariant the first ones only.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        for invariant in self.broken() {
            let of_it =
                self.violations.iter().zip(&self.evidence).filter(|(found, _)| found.invariant == invariant);
            let count = of_it.clone().count();
            writeln!(f, "{invariant}: {} (seed {}, {count} times)", invariant.says(), self.seed)?;
            for (violation, evidence) in of_it.take(SHOWN) {
                write!(f, "  {}: {}\n{evidence}", violation.chat, violation.what)?;
            }
            if count > SHOWN {
                writeln!(f, "  and {} more", count - SHOWN)?;
            }
        }
        write!(f, "{}", self.summary)
    }
}

/// A drawing (SVG) of what happened in a chat around a violation: who waited, who had the turn, who wrote, and which faults
/// there were. `None` if the history has no `start`.
pub fn draw(records: &[Record], violation: &Violation) -> Option<String> {
    let run = Run::new(records, Limits::default())?;
    Some(timeline::draw(&run, violation))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Milliseconds for people.
fn ms(nanos: u64) -> String {
    format!("{} ms", nanos / 1_000_000)
}
