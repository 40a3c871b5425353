//! `cargo xtask test`: everything CI checks, in order.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use botmesh_test_servers::Redis;
use clap::builder::PossibleValuesParser;

use crate::shell::Invocation;
use crate::workspace::{Package, Workspace};
use crate::{chaos, conformance, deny, tidy};

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
    /// If this server cannot be found, show what needs it as not run instead of failing
    #[arg(long, value_name = "SERVER", value_parser = ["redis"])]
    allow_missing: Vec<String>,
    /// Show the steps and their commands, and run nothing
    #[arg(long)]
    list: bool,
}

struct Step {
    name: &'static str,
    command: fn(&Job<'_>) -> Invocation,
    run: fn(&Job<'_>) -> Result<(), String>,
}

/// What the steps are to work on.
struct Job<'a> {
    workspace: &'a Workspace,
    /// Nothing that needs a Redis server runs: there is none, and that is allowed.
    without_redis: bool,
}

impl Job<'_> {
    fn run(&self, invocation: &Invocation) -> Result<(), String> {
        invocation.run(&self.workspace.root)
    }

    /// The packages whose tests cannot run.
    fn excluded(&self) -> impl Iterator<Item = &str> {
        let excluded = |package: &&Package| package.tests_with_servers && !package.servers_behind_feature;
        self.workspace
            .packages
            .iter()
            .filter(|_| self.without_redis)
            .filter(excluded)
            .map(|package| &*package.name)
    }

    /// The features with which those tests are built that need servers, while others of their package do not.
    fn features(&self) -> impl Iterator<Item = String> {
        let packages = self.workspace.packages.iter().filter(|package| package.servers_behind_feature);
        packages.map(|package| format!("{}/redis", package.name))
    }

    /// These features as arguments, where tests with servers can run.
    fn with_features(&self) -> Vec<String> {
        let features = self.features().filter(|_| !self.without_redis);
        features.flat_map(|feature| ["--features".to_owned(), feature]).collect()
    }

    /// What of the unit tests cannot run.
    fn not_run(&self) -> Vec<String> {
        let features = self.features().filter(|_| self.without_redis);
        self.excluded().map(str::to_owned).chain(features).collect()
    }
}

/// It is nothing without a server.
const CHAOS: &str = "chaos";

const STEPS: &[Step] = &[
    Step { name: "fmt", command: fmt, run: |job| job.run(&fmt(job)) },
    Step { name: "tidy", command: tidy, run: |job| tidy::check(job.workspace) },
    Step { name: "clippy", command: clippy, run: |job| job.run(&clippy(job)) },
    Step { name: "docs", command: docs, run: |job| job.run(&docs(job)) },
    Step { name: "examples", command: examples, run: |job| job.run(&examples(job)) },
    Step { name: "unit", command: unit, run: |job| job.run(&unit(job)) },
    Step { name: "doctests", command: doctests, run: |job| job.run(&doctests(job)) },
    Step { name: "described", command: described, run: run_described },
    Step { name: "fuzz", command: fuzz, run: |job| job.run(&fuzz(job)) },
    Step { name: "clients", command: clients, run: run_clients },
    Step { name: "conformance", command: suites, run: run_suites },
    Step { name: CHAOS, command: |_| chaos::invocation(&chaos_args()), run: run_chaos },
    Step { name: "package", command: package, run: |job| job.run(&package(job)) },
    Step { name: "deny", command: |_| deny::check(), run: |job| deny::run(job.workspace) },
];

fn fmt(_: &Job<'_>) -> Invocation {
    Invocation::cargo(["fmt", "--all", "--check"])
}

fn tidy(_: &Job<'_>) -> Invocation {
    Invocation::cargo(["xtask", "tidy"])
}

fn clippy(job: &Job<'_>) -> Invocation {
    let features = job.features().flat_map(|feature| ["--features".to_owned(), feature]).collect::<Vec<_>>();
    let features = features.iter().map(String::as_str);
    Invocation::cargo(
        ["clippy", "--workspace", "--all-targets"]
            .into_iter()
            .chain(features)
            .chain(["--", "-D", "warnings"]),
    )
}

fn docs(_: &Job<'_>) -> Invocation {
    Invocation::cargo(["doc", "--workspace", "--no-deps"]).with_env("RUSTDOCFLAGS", "-D warnings")
}

/// Before the tests, because some of them run the examples as processes.
fn examples(job: &Job<'_>) -> Invocation {
    let features = job.with_features();
    Invocation::cargo(
        ["build", "--workspace", "--examples"].into_iter().chain(features.iter().map(String::as_str)),
    )
}

/// The targets are named one by one because `--all-targets` would run the benchmarks too.
fn unit(job: &Job<'_>) -> Invocation {
    tests(job, &["--lib", "--bins", "--tests"], &[])
}

/// The tests that can run, built in one way, so that no step builds them anew.
fn tests(job: &Job<'_>, targets: &[&str], chosen: &[&str]) -> Invocation {
    let features = job.with_features();
    let features = features.iter().map(String::as_str);
    let excluded = job.excluded().flat_map(|package| ["--exclude", package]);
    let args = targets.iter().copied().chain(excluded).chain(features).chain(chosen.iter().copied());
    Invocation::cargo(["test", "--workspace", "--no-fail-fast"].into_iter().chain(args))
}

/// What is made at random from published descriptions: by which script of `crates/testing/tests/described`, where it is then,
/// from the root, and which variable tells the tests.
const DESCRIBED: [(&str, &str, &str); 2] = [
    ("telegram.mjs", "target/described-updates.ndjson", "BOTMESH_UPDATES"),
    ("graph.mjs", "target/described-posts.ndjson", "BOTMESH_POSTS"),
];

/// Updates of Telegram and posts of Meta, made at random from published descriptions. Needs Node and npm.
fn described(job: &Job<'_>) -> Invocation {
    let tests = tests(job, &["--test", "it"], &["described::", "--", "--ignored", "--nocapture"]);
    DESCRIBED.iter().fold(tests, |tests, (_, file, variable)| {
        tests.with_env(variable, job.workspace.root.join(file).to_string_lossy())
    })
}

fn run_described(job: &Job<'_>) -> Result<(), String> {
    for (script, file, _) in DESCRIBED {
        let script = format!("crates/testing/tests/described/{script}");
        job.run(&Invocation::program("node", [&*script, file]))?;
    }
    job.run(&described(job))
}

/// Bytes at random: a minute for each parser and each check of a secret, or ten with `BOTMESH_FUZZ_SECONDS=600`. Those of one
/// program run side by side, and there are three.
fn fuzz(job: &Job<'_>) -> Invocation {
    let seconds = std::env::var("BOTMESH_FUZZ_SECONDS").unwrap_or_else(|_| "60".to_owned());
    let chosen = ["fuzz::", "--", "--nocapture", "--test-threads", "8"];
    tests(job, &["--lib", "--test", "it"], &chosen).with_env("BOTMESH_FUZZ_SECONDS", seconds)
}

/// Clients that others wrote, against our servers for tests. Needs Node and npm.
fn clients(_: &Job<'_>) -> Invocation {
    Invocation::program("node", ["crates/testing/tests/clients/telegram.mjs"])
}

fn run_clients(job: &Job<'_>) -> Result<(), String> {
    // The servers that they talk to are examples.
    job.run(&examples(job))?;
    job.run(&clients(job))?;
    job.run(&Invocation::program("node", ["crates/testing/tests/clients/graph.mjs"]))
}

fn doctests(_: &Job<'_>) -> Invocation {
    Invocation::cargo(["test", "--workspace", "--doc"])
}

fn suites(job: &Job<'_>) -> Invocation {
    conformance::invocation(&suites_args(job))
}

fn suites_args(job: &Job<'_>) -> Vec<OsString> {
    let args: &[&str] = if job.without_redis { &["--allow-missing", "redis"] } else { &[] };
    args.iter().map(Into::into).collect()
}

fn run_suites(job: &Job<'_>) -> Result<(), String> {
    conformance::run_with(job.workspace, &suites_args(job))
}

/// Two minutes over all kinds of servers and replicas.
fn chaos_args() -> Vec<OsString> {
    ["--minutes", "2"].map(Into::into).into()
}

fn run_chaos(job: &Job<'_>) -> Result<(), String> {
    chaos::run_with(job.workspace, &chaos_args())
}

fn package(job: &Job<'_>) -> Invocation {
    let private = job.workspace.packages.iter().filter(|package| !package.publishable);
    let excluded = private.flat_map(|package| ["--exclude", &package.name]);
    Invocation::cargo(["package", "--workspace", "--no-verify", "--allow-dirty"].into_iter().chain(excluded))
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(STEPS.iter().map(|step| step.name))
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode, String> {
    let missing = Redis::available().err().filter(|_| args.allow_missing.iter().any(|name| name == "redis"));
    let job = Job { workspace, without_redis: missing.is_some() };
    if args.list {
        for step in STEPS {
            println!("{:<12} {}", step.name, (step.command)(&job));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = STEPS.iter().map(|step| args.chooses(step.name)).collect::<Vec<_>>();
    if !chosen.contains(&true) {
        return Err("no step is left to run; `cargo xtask test --list` shows them".into());
    }
    let report = Report { rows: run_steps(&job, STEPS, &chosen) };
    if let Some(missing) = missing {
        println!("\nwithout redis: {missing}");
    }
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
    name: String,
    outcome: Outcome,
}

#[expect(clippy::disallowed_methods, reason = "it measures how long a real command takes")]
fn run_steps(job: &Job<'_>, steps: &[Step], chosen: &[bool]) -> Vec<Row> {
    let can_run = |step: &Step| !(job.without_redis && step.name == CHAOS);
    let total = steps.iter().zip(chosen).filter(|(step, chosen)| **chosen && can_run(step)).count();
    let (mut number, mut failed) = (0, false);
    let mut rows = Vec::new();
    for (step, chosen) in steps.iter().zip(chosen) {
        let Step { name, command, run } = step;
        if failed || !chosen || !can_run(step) {
            rows.push(Row { name: (*name).into(), outcome: Outcome::NotRun });
            continue;
        }
        number += 1;
        println!("\n[{number}/{total}] {name}: {}", command(job));
        let start = Instant::now();
        let result = run(job);
        let took = start.elapsed();
        let outcome = match result {
            Ok(()) => {
                println!("[{number}/{total}] {name}: passed in {}", seconds(took));
                if *name == "unit" {
                    let not_run = job.not_run().into_iter();
                    rows.extend(
                        not_run.map(|tests| Row { name: format!("unit {tests}"), outcome: Outcome::NotRun }),
                    );
                }
                Outcome::Passed(took)
            }
            Err(message) => {
                println!("[{number}/{total}] {name}: FAILED after {}: {message}", seconds(took));
                failed = true;
                Outcome::Failed(took)
            }
        };
        rows.push(Row { name: (*name).into(), outcome });
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
    fn failure(&self) -> Option<&str> {
        self.rows.iter().find(|row| matches!(row.outcome, Outcome::Failed(_))).map(|row| &*row.name)
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
