//! What a backend can show of itself: the suite `crash`, and `handover` if it was run, with everything that is needed to
//! repeat them.

use std::fmt::Write as _;

use botmesh_core::journal::WritePoint;
use serde::Serialize;

use crate::{CaseReport, Report, Tally};

/// The suite without which there is no certificate.
const CRASH: &str = "crash";
/// The suites that it is about.
const SUITES: [&str; 2] = [CRASH, "handover"];

/// The result of the suite `crash`, and of `handover` if it was run.
#[derive(Clone, Debug, Serialize)]
pub struct Certificate {
    suites: Vec<&'static str>,
    /// The version of the suites.
    version: &'static str,
    seed: u64,
    rounds: u32,
    /// The writes of the journals, by name.
    write_points: Vec<&'static str>,
    backends: Vec<Certified>,
}

#[derive(Clone, Debug, Serialize)]
struct Certified {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    survives: String,
    /// `passed`, or `failed` if any case did.
    result: &'static str,
    passed: usize,
    failed: usize,
    /// Cases that the backend's claims do not bind, or that could not run.
    not_shown: usize,
    runs: u64,
    write_points_covered: usize,
    write_points_missing: Vec<&'static str>,
    cases: Vec<CaseReport>,
}

impl Certificate {
    /// `None` if the suite was not run.
    pub(crate) fn new(report: &Report) -> Option<Self> {
        let was_run = |suite: &&str| report.cases().iter().any(|case| case.suite == *suite);
        let suites: Vec<_> = SUITES.into_iter().filter(was_run).collect();
        let backends: Vec<_> = report.columns().filter_map(|column| Certified::new(report, column)).collect();
        (!backends.is_empty()).then(|| Self {
            suites,
            version: env!("CARGO_PKG_VERSION"),
            seed: report.seed,
            rounds: report.rounds(),
            write_points: WritePoint::ALL.iter().map(|point| point.name()).collect(),
            backends,
        })
    }

    /// For people.
    pub fn markdown(&self) -> String {
        let mut text = String::from("# Crash certificate\n\n");
        let Self { suites, version, seed, rounds, write_points, .. } = self;
        let suites: Vec<_> = suites.iter().map(|suite| format!("`{suite}`")).collect();
        let _ = writeln!(
            text,
            "botmesh-conformance {version}, {}, seed {seed}, rounds {rounds}: a bot at work, and each of the {} writes of \
             its journals failing in every way, under every policy{}.\n",
            suites.join(" and "),
            write_points.len(),
            if suites.len() > 1 { "; and conversations that go from replica to replica" } else { "" }
        );
        for backend in &self.backends {
            let Certified { name, survives, result, passed, failed, not_shown, runs, .. } = backend;
            let version = backend.version.as_deref().unwrap_or("version not told");
            let _ = writeln!(text, "## {name} ({version}): {result}\n");
            let _ = writeln!(text, "- claims to survive: {survives}");
            let _ = writeln!(text, "- cases: {passed} passed, {failed} failed, {not_shown} not shown");
            let _ = writeln!(text, "- lives of bots: {runs}");
            let covered = backend.write_points_covered;
            let _ = writeln!(text, "- write points covered: {covered} of {}", write_points.len());
            if !backend.write_points_missing.is_empty() {
                let _ = writeln!(text, "- missing: {}", backend.write_points_missing.join(", "));
            }
            text.push_str("\n| case | what must hold | result |\n| - | - | - |\n");
            for case in &backend.cases {
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {}{} |",
                    case.name(),
                    case.meaning,
                    case.words(),
                    case.tally
                );
            }
            text.push('\n');
        }
        text
    }

    /// For machines.
    ///
    /// # Errors
    /// None in practice: every part of it is plain data.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

impl Certified {
    fn new(report: &Report, column: (&str, Option<&str>, &str)) -> Option<Self> {
        let (name, version, survives) = column;
        let of_suites = |case: &&CaseReport| SUITES.contains(&case.suite) && case.backend == name;
        let cases: Vec<CaseReport> = report.cases().iter().filter(of_suites).cloned().collect();
        if !cases.iter().any(|case| case.suite == CRASH) {
            return None;
        }
        let mut tally = Tally::default();
        cases.iter().for_each(|case| tally.add(&case.tally));
        let count = |is: fn(&CaseReport) -> bool| cases.iter().filter(|case| is(case)).count();
        let (passed, failed) = (count(CaseReport::passed), count(CaseReport::failed));
        let missing = WritePoint::ALL.iter().map(|point| point.name());
        let missing: Vec<_> = missing.filter(|point| !tally.points.contains(point)).collect();
        Some(Self {
            name: name.to_owned(),
            version: version.map(str::to_owned),
            survives: survives.to_owned(),
            result: if failed == 0 && missing.is_empty() { "passed" } else { "failed" },
            passed,
            failed,
            not_shown: cases.len() - passed - failed,
            runs: tally.runs,
            write_points_covered: tally.points.len(),
            write_points_missing: missing,
            cases,
        })
    }
}
