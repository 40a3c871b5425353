//! What a run showed: counts, a matrix, and files for machines.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde::Serialize;

use crate::{Backend, CaseResult, Certificate, Claims, Sharing, Tally, Verdict};

/// What became of one case on one backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseReport {
    /// The backend.
    pub backend: String,
    /// The suite.
    pub suite: &'static str,
    /// The case.
    pub case: &'static str,
    /// What must hold.
    pub meaning: &'static str,
    pub(crate) status: Status,
    /// Why it failed, or why it was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What it went through.
    #[serde(skip_serializing_if = "Tally::is_empty")]
    pub tally: Tally,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Passed,
    RefusedAsClaimed,
    NotClaimed,
    NotRun,
    Failed,
}

impl Status {
    const ALL: [Self; 5] =
        [Self::Passed, Self::RefusedAsClaimed, Self::NotClaimed, Self::NotRun, Self::Failed];

    fn words(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::RefusedAsClaimed => "refused as claimed",
            Self::NotClaimed => "not claimed",
            Self::NotRun => "not run",
            Self::Failed => "failed",
        }
    }
}

impl CaseReport {
    pub(crate) fn with_result(mut self, result: CaseResult) -> Self {
        let (status, detail) = match result {
            Ok(Verdict::Passed) => (Status::Passed, None),
            Ok(Verdict::Refused) => (Status::RefusedAsClaimed, None),
            Ok(Verdict::NotClaimed) => (Status::NotClaimed, None),
            Ok(Verdict::NotRun) => (Status::NotRun, None),
            Err(failure) => (Status::Failed, Some(failure.to_string())),
        };
        (self.status, self.detail) = (status, detail);
        self
    }

    /// The suite and the case, as given on the command line.
    pub fn name(&self) -> String {
        format!("{}::{}", self.suite, self.case)
    }

    /// Whether it showed what it should, a refusal as claimed among that.
    pub fn passed(&self) -> bool {
        matches!(self.status, Status::Passed | Status::RefusedAsClaimed)
    }

    /// Whether it failed.
    pub fn failed(&self) -> bool {
        self.status == Status::Failed
    }

    /// How it ended, in words.
    pub fn words(&self) -> &'static str {
        self.status.words()
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.backend, self.name(), self.words())?;
        if let Some(detail) = &self.detail {
            write!(f, " ({})\n    {detail}", self.meaning)?;
        }
        Ok(())
    }
}

/// What a run showed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed of the random cases.
    pub seed: u64,
    rounds: u32,
    backends: Vec<Column>,
    cases: Vec<CaseReport>,
}

#[derive(Clone, Debug, Serialize)]
struct Column {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: Option<ClaimsReport>,
}

#[derive(Clone, Debug, Serialize)]
struct ClaimsReport {
    survives: String,
    sharing: Sharing,
}

impl Report {
    pub(crate) fn new(
        (seed, rounds): (u64, u32),
        run: &[Arc<dyn Backend>],
        missing: &[(String, String)],
        cases: Vec<CaseReport>,
    ) -> Self {
        let claims = |claims: Claims| ClaimsReport {
            survives: format!("{:?}", claims.survives),
            sharing: claims.sharing,
        };
        let run = run.iter().map(|backend| Column {
            name: backend.name().to_owned(),
            version: backend.version().map(str::to_owned),
            claims: Some(claims(backend.claims())),
        });
        let missing =
            missing.iter().map(|(name, _)| Column { name: name.clone(), version: None, claims: None });
        Self { seed, rounds, backends: run.chain(missing).collect(), cases }
    }

    /// What the suite `crash` showed, and `handover` if it was run, for a backend to attach; `None` without `crash`.
    pub fn certificate(&self) -> Option<Certificate> {
        Certificate::new(self)
    }

    pub(crate) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Name, version and what it claims to survive, of each backend that was run.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (&str, Option<&str>, &str)> {
        self.backends.iter().filter_map(|column| {
            Some((column.name.as_str(), column.version.as_deref(), column.claims.as_ref()?.survives.as_str()))
        })
    }

    /// Every case on every backend.
    pub fn cases(&self) -> &[CaseReport] {
        &self.cases
    }

    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| case.failed())
    }

    /// How many cases showed what they should, refusals as claimed among them.
    pub fn passed(&self) -> usize {
        self.cases.iter().filter(|case| case.passed()).count()
    }

    /// How many cases failed.
    pub fn failed(&self) -> usize {
        self.failures().count()
    }

    /// Suites × backends, for a terminal.
    pub fn matrix(&self) -> String {
        let mut rows = vec![self.header("suite")];
        rows.extend(self.suite_rows());
        let columns = self.backends.len() + 1;
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("   ").trim_end().to_owned() + "\n"
        };
        rows.iter().map(line).collect()
    }

    /// The whole report in Markdown: what is claimed, suites × backends, cases × backends, and what failed.
    pub fn markdown(&self) -> String {
        let mut text = format!("# Conformance\n\nSeed {}.\n\n", self.seed);
        let claims = self.backends.iter().map(|column| match &column.claims {
            Some(ClaimsReport { survives, sharing }) => {
                vec![column.name.clone(), survives.clone(), format!("{sharing:?}")]
            }
            None => vec![column.name.clone(), "not run".into(), "not run".into()],
        });
        let header = ["backend", "acknowledged writes survive", "shared by"].map(str::to_owned).to_vec();
        table(&mut text, &header, claims);
        table(&mut text, &self.header("suite"), self.suite_rows());
        for (suite, cases) in self.by_suite() {
            let _ = writeln!(text, "## {suite}\n");
            let mut header = self.header("case");
            header.insert(1, "what must hold".into());
            let rows = cases.into_iter().map(|(case, meaning)| {
                let words = |column: &Column| self.words(&column.name, suite, case).to_owned();
                let cells = self.backends.iter().map(words);
                [format!("`{case}`"), meaning.to_owned()].into_iter().chain(cells).collect()
            });
            table(&mut text, &header, rows);
        }
        if self.failed() > 0 {
            text.push_str("## Failures\n\n");
        }
        for case in self.failures() {
            let detail = case.detail.as_deref().unwrap_or("");
            let _ = writeln!(text, "`{}` on {}:\n\n```text\n{detail}\n```\n", case.name(), case.backend);
        }
        text
    }

    /// The whole report in JSON.
    ///
    /// # Errors
    /// None in practice: every part of it is plain data.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    fn header(&self, first: &str) -> Vec<String> {
        std::iter::once(first.to_owned())
            .chain(self.backends.iter().map(|column| column.name.clone()))
            .collect()
    }

    fn suite_rows(&self) -> Vec<Vec<String>> {
        let row = |suite: &'static str| {
            let cells = self.backends.iter().map(|column| self.counts(suite, &column.name));
            std::iter::once(suite.to_owned()).chain(cells).collect()
        };
        self.by_suite().into_iter().map(|(suite, _)| row(suite)).collect()
    }

    /// For example `41 passed, 2 not claimed`.
    fn counts(&self, suite: &str, backend: &str) -> String {
        let mut counts = BTreeMap::new();
        for case in self.cases.iter().filter(|case| case.suite == suite && case.backend == backend) {
            *counts.entry(case.status).or_insert(0) += 1;
        }
        let of = |status: Status| Some(format!("{} {}", counts.get(&status)?, status.words()));
        Status::ALL.into_iter().filter_map(of).collect::<Vec<_>>().join(", ")
    }

    /// The suites and their cases, in the order in which they were run.
    fn by_suite(&self) -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
        let mut suites: Vec<(&str, Vec<(&str, &str)>)> = Vec::new();
        for report in &self.cases {
            let place = suites.iter().position(|(suite, _)| *suite == report.suite).unwrap_or_else(|| {
                suites.push((report.suite, Vec::new()));
                suites.len() - 1
            });
            let case = (report.case, report.meaning);
            if !suites[place].1.contains(&case) {
                suites[place].1.push(case);
            }
        }
        suites
    }

    fn words(&self, backend: &str, suite: &str, case: &str) -> &'static str {
        let is_it =
            |report: &&CaseReport| report.backend == backend && report.suite == suite && report.case == case;
        self.cases.iter().find(is_it).map_or("", CaseReport::words)
    }
}

fn table(text: &mut String, header: &[String], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    line(header);
    line(&vec!["---".to_owned(); header.len()]);
    rows.into_iter().for_each(|row| line(&row));
    text.push('\n');
}
