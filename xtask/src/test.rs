//! `cargo xtask test`: everything CI checks, in order.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;

use crate::shell::Invocation;
use crate::workspace::Workspace;
use crate::{conformance, deny, tidy};

/// Check everything that CI checks, in order, and stop at the first failure.
///
/// The last line counts the steps: `N passed, N failed`, and `N skipped` for those that were not run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these steps, in their order
    #[arg(long, value_name = "STEP[,STEP]", value_delimiter = ',', value_parser = names())]
    only: Vec<String>,
    /// Leave these steps out
    #[arg(long, value_name = "STEP[,STEP]", value_delimiter = ',', value_parser = names())]
    skip: Vec<String>,
    /// Show the steps and their commands, and run nothing
    #[arg(long)]
    list: bool,
}

struct Step {
    name: &'static str,
    command: fn(&Workspace) -> Invocation,
    run: fn(&Workspace) -> Result<(), String>,
}

const STEPS: &[Step] = &[
    Step { name: "fmt", command: fmt, run: |workspace| fmt(workspace).run(&workspace.root) },
    Step { name: "tidy", command: tidy, run: tidy::check },
    Step { name: "clippy", command: clippy, run: |workspace| clippy(workspace).run(&workspace.root) },
    Step { name: "docs", command: docs, run: |workspace| docs(workspace).run(&workspace.root) },
    Step { name: "examples", command: examples, run: |workspace| examples(workspace).run(&workspace.root) },
    Step { name: "unit", command: unit, run: |workspace| unit(workspace).run(&workspace.root) },
    Step { name: "doctests", command: doctests, run: |workspace| doctests(workspace).run(&workspace.root) },
    Step { name: "conformance", command: suites, run: |workspace| suites(workspace).run(&workspace.root) },
    Step { name: "package", command: package, run: |workspace| package(workspace).run(&workspace.root) },
    Step { name: "deny", command: |_| deny::check(), run: deny::run },
];

fn fmt(_: &Workspace) -> Invocation {
    Invocation::cargo(["fmt", "--all", "--check"])
}

fn tidy(_: &Workspace) -> Invocation {
    Invocation::cargo(["xtask", "tidy"])
}

fn clippy(_: &Workspace) -> Invocation {
    Invocation::cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn docs(_: &Workspace) -> Invocation {
    Invocation::cargo(["doc", "--workspace", "--no-deps"]).with_env("RUSTDOCFLAGS", "-D warnings")
}

/// Before the tests, because some of them run the examples as processes.
fn examples(_: &Workspace) -> Invocation {
    Invocation::cargo(["build", "--workspace", "--examples"])
}

/// The targets are named one by one because `--all-targets` would run the benchmarks too.
fn unit(_: &Workspace) -> Invocation {
    Invocation::cargo(["test", "--workspace", "--lib", "--bins", "--tests"])
}

fn doctests(_: &Workspace) -> Invocation {
    Invocation::cargo(["test", "--workspace", "--doc"])
}

fn suites(_: &Workspace) -> Invocation {
    conformance::invocation(&[])
}

fn package(workspace: &Workspace) -> Invocation {
    let private = workspace.packages.iter().filter(|package| !package.publishable);
    let excluded = private.flat_map(|package| ["--exclude", &package.name]);
    Invocation::cargo(["package", "--workspace", "--no-verify", "--allow-dirty"].into_iter().chain(excluded))
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(STEPS.iter().map(|step| step.name))
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode, String> {
    if args.list {
        for step in STEPS {
            println!("{:<12} {}", step.name, (step.command)(workspace));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = STEPS.iter().map(|step| args.chooses(step.name)).collect::<Vec<_>>();
    if !chosen.contains(&true) {
        return Err("no step is left to run; `cargo xtask test --list` shows them".into());
    }
    let report = Report { rows: run_steps(workspace, STEPS, &chosen) };
    print!("\n{report}");
    Ok(if report.failure().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Args {
    fn chooses(&self, name: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|item| item == name);
        (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }
}

enum Outcome {
    Passed(Duration),
    Failed(Duration),
    NotRun,
}

struct Row {
    name: &'static str,
    outcome: Outcome,
}

#[expect(clippy::disallowed_methods, reason = "it measures how long a real command takes")]
fn run_steps(workspace: &Workspace, steps: &[Step], chosen: &[bool]) -> Vec<Row> {
    let total = chosen.iter().filter(|chosen| **chosen).count();
    let (mut number, mut failed) = (0, false);
    let mut rows = Vec::new();
    for (step, chosen) in steps.iter().zip(chosen) {
        let Step { name, command, run } = step;
        if failed || !chosen {
            rows.push(Row { name, outcome: Outcome::NotRun });
            continue;
        }
        number += 1;
        println!("\n[{number}/{total}] {name}: {}", command(workspace));
        let start = Instant::now();
        let result = run(workspace);
        let took = start.elapsed();
        let outcome = match result {
            Ok(()) => {
                println!("[{number}/{total}] {name}: passed in {}", seconds(took));
                Outcome::Passed(took)
            }
            Err(message) => {
                println!("[{number}/{total}] {name}: FAILED after {}: {message}", seconds(took));
                failed = true;
                Outcome::Failed(took)
            }
        };
        rows.push(Row { name, outcome });
    }
    rows
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

struct Report {
    rows: Vec<Row>,
}

impl Report {
    fn failure(&self) -> Option<&'static str> {
        self.rows.iter().find(|row| matches!(row.outcome, Outcome::Failed(_))).map(|row| row.name)
    }

    fn count(&self, matches: fn(&Outcome) -> bool) -> usize {
        self.rows.iter().filter(|row| matches(&row.outcome)).count()
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Row { name, outcome } in &self.rows {
            match outcome {
                Outcome::Passed(took) => writeln!(f, "{name:<12} passed   {:>9}", seconds(*took))?,
                Outcome::Failed(took) => writeln!(f, "{name:<12} FAILED   {:>9}", seconds(*took))?,
                Outcome::NotRun => writeln!(f, "{name:<12} not run")?,
            }
        }
        if let Some(name) = self.failure() {
            writeln!(f, "\n`{name}` failed; to run just it again: cargo xtask test --only {name}")?;
        }
        let passed = self.count(|outcome| matches!(outcome, Outcome::Passed(_)));
        let failed = self.count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let skipped = self.count(|outcome| matches!(outcome, Outcome::NotRun));
        write!(f, "\n{passed} passed, {failed} failed")?;
        if skipped > 0 {
            write!(f, ", {skipped} skipped")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests;
