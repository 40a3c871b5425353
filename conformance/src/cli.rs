//! The command line, for the `conformance` binary and for the binaries of third parties.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use botmesh_core::entropy::{Entropy, OsEntropy};
use clap::Parser;

use crate::child::CHILD_FLAG;
use crate::suites::{crash, handover};
use crate::{Backend, CaseReport, Certificate, Child, Report, Runner, suites};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Run the suites that every backend must pass, and print the matrix
#[derive(Debug, Parser)]
#[command(name = "conformance")]
struct Args {
    /// The backends; with no name, all that need no server or whose server is given
    #[arg(value_name = "BACKEND")]
    backends: Vec<String>,
    /// Only this suite, or only the case SUITE::CASE; may be repeated
    #[arg(long = "suite", value_name = "NAME")]
    suites: Vec<String>,
    /// The seed of the random cases; without it, a new one, which is printed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run this backend if it can be had, and else show it as not run instead of failing; may be repeated
    #[arg(long, value_name = "BACKEND")]
    allow_missing: Vec<String>,
    /// Show backends, suites and cases, and run nothing
    #[arg(long)]
    list: bool,
    /// How many different places the suite `crash` tries for each write and fault
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Also write a certificate of the suites `crash` and `handover`: PATH.md and PATH.json
    #[arg(long, value_name = "PATH")]
    certificate: Option<PathBuf>,
    /// Backend, place, folder and work of a process that a case stops or kills
    #[arg(long = CHILD_FLAG, hide = true, num_args = 4)]
    child: Vec<String>,
    /// Where conformance.md and conformance.json go [default: target/conformance]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A command that runs the suites against the backends it was built with.
pub struct Command {
    /// How a user calls it, for the hint that repeats a failed case.
    pub command: &'static str,
    /// The backends of this build.
    pub present: Vec<Arc<dyn Backend>>,
    /// The names of all backends, present in this build or not.
    pub known: &'static [&'static str],
}

/// The command of this crate's own binary.
pub fn own() -> Command {
    Command {
        command: "cargo xtask conformance",
        present: crate::backends::present(),
        known: crate::backends::KNOWN,
    }
}

/// A usage error.
struct Usage(String);

impl Command {
    /// Runs with the arguments of this process, whose first is the program's name. Must not be called within a runtime.
    pub fn main(&self, args: impl IntoIterator<Item = OsString>) -> ExitCode {
        let args = match Args::try_parse_from(args) {
            Ok(args) => args,
            Err(error) => {
                let code = if error.use_stderr() { USAGE } else { 0 };
                drop(error.print());
                return ExitCode::from(code);
            }
        };
        if args.list {
            say(&self.list());
            return ExitCode::SUCCESS;
        }
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(FAILED, &format!("no runtime: {error}")),
        };
        if let [backend, id, folder, work] = &args.child[..] {
            return match runtime.block_on(self.child(backend, id, Path::new(folder), work)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(FAILED, &botmesh::describe(&*error)),
            };
        }
        match runtime.block_on(self.run(&args)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(FAILED),
            Err(Usage(message)) => fail(USAGE, &message),
        }
    }

    async fn run(&self, args: &Args) -> Result<bool, Usage> {
        let seed = args.seed.unwrap_or_else(|| OsEntropy::new().next_u64() >> 40);
        let mut runner = Runner::new(seed).with_rounds(args.rounds);
        if let Ok(program) = std::env::current_exe() {
            runner = runner.with_child(Child::new(program, []));
        }
        for name in &args.suites {
            runner = runner.with_suite(name).map_err(|error| Usage(error.to_string()))?;
        }
        for name in self.wanted(args) {
            let allowed = args.allow_missing.contains(&name);
            runner = match self.find(&name).await {
                Ok(backend) => runner.with_backend(backend),
                Err(Missing::Unavailable(reason)) if allowed => runner.with_missing(name, reason),
                Err(Missing::Unavailable(reason) | Missing::Unknown(reason)) => return Err(Usage(reason)),
            };
        }
        let total = runner.count();
        let rerun = |case: &CaseReport| {
            format!("{} {} --suite {} --seed {seed}", self.command, case.backend, case.name())
        };
        say(&format!("{total} cases, seed {seed}\n"));
        let mut done = 0;
        let report = runner
            .run(|case| {
                done += 1;
                say(&progress(done, total, case, &rerun(case)));
            })
            .await
            .map_err(|error| Usage(format!("no temporary folder: {error}")))?;
        let out = args.out.clone().unwrap_or_else(default_out);
        let mut files = write(&report, &out).map_err(|error| {
            Usage(format!("{} cannot be written: {error}; choose another folder with --out", out.display()))
        })?;
        if let Some(path) = &args.certificate {
            let certificate = report.certificate().ok_or_else(|| {
                Usage("a certificate is about the suite `crash`, which was not run".to_owned())
            })?;
            files.extend(write_certificate(&certificate, path).map_err(|error| {
                Usage(format!("the certificate {} cannot be written: {error}", path.display()))
            })?);
        }
        say(&summary(&report, &files, rerun));
        Ok(report.failed() == 0)
    }

    /// Runs as the process that a case stops or kills.
    async fn child(&self, backend: &str, id: &str, folder: &Path, work: &str) -> botmesh::Result {
        let Some(backend) = self.present.iter().find(|present| present.name() == backend) else {
            return Err(format!("no backend is called {backend}").into());
        };
        match work {
            handover::WORK => handover::run_child(&**backend, id, folder).await,
            policy => crash::run_child(&**backend, id, folder, policy).await,
        }
    }

    /// The names that were asked for, each once.
    fn wanted(&self, args: &Args) -> Vec<String> {
        let mut names = args.backends.clone();
        if names.is_empty() {
            let offered = self.present.iter().filter(|backend| backend.is_offered());
            names.extend(offered.map(|backend| backend.name().to_owned()));
        }
        names.extend(args.allow_missing.iter().cloned());
        let mut wanted: Vec<String> = Vec::new();
        for name in names {
            if !wanted.contains(&name) {
                wanted.push(name);
            }
        }
        wanted
    }

    async fn find(&self, name: &str) -> Result<Arc<dyn Backend>, Missing> {
        let present = || self.present.iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", ");
        if let Some(backend) = self.present.iter().find(|backend| backend.name() == name) {
            return match backend.available().await {
                Ok(()) => Ok(Arc::clone(backend)),
                Err(reason) => Err(Missing::Unavailable(format!("backend {name} cannot run here: {reason}"))),
            };
        }
        if self.known.contains(&name) {
            let message = format!("backend {name} is not part of this build; present: {}", present());
            return Err(Missing::Unavailable(message));
        }
        let message = format!(
            "no backend is called {name}; the names are {}; present in this build: {}",
            self.known.join(", "),
            present()
        );
        Err(Missing::Unknown(message))
    }

    fn list(&self) -> String {
        let mut text = String::from("backends present in this build:\n");
        for backend in &self.present {
            let claims = backend.claims();
            let (name, survives, sharing) = (backend.name(), claims.survives, claims.sharing);
            let _ = writeln!(text, "  {name:<16} survives {survives:?}, shared by {sharing:?}");
        }
        for suite in suites() {
            let _ = writeln!(text, "\n{}: {} ({} cases)", suite.name, suite.meaning, suite.cases.len());
            for case in suite.cases {
                let _ = writeln!(text, "  {}::{}\n      {}", suite.name, case.name, case.meaning);
            }
        }
        text
    }
}

enum Missing {
    Unavailable(String),
    Unknown(String),
}

fn progress(done: usize, total: usize, case: &CaseReport, rerun: &str) -> String {
    let width = total.to_string().len();
    let mut text = format!(
        "{done:>width$}/{total}  {:<8} {:<66} {}\n",
        case.backend,
        case.name(),
        if case.failed() { "FAILED".to_owned() } else { case.words().to_owned() + &case.tally.to_string() }
    );
    if case.failed() {
        let detail = case.detail.as_deref().unwrap_or("");
        let _ = writeln!(text, "    must hold: {}\n    {detail}\n    repeat it: {rerun}", case.meaning);
    }
    text
}

fn summary(report: &Report, files: &[PathBuf], rerun: impl Fn(&CaseReport) -> String) -> String {
    let mut text = format!("\n{}\n", report.matrix());
    for case in report.failures() {
        let _ = writeln!(text, "failed: {} on {}; repeat it: {}", case.name(), case.backend, rerun(case));
    }
    for file in files {
        let _ = writeln!(text, "written: {}", file.display());
    }
    let _ = writeln!(text, "{} passed, {} failed", report.passed(), report.failed());
    text
}

fn default_out() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join("conformance")
}

fn write(report: &Report, folder: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    std::fs::create_dir_all(folder)?;
    let files = vec![folder.join("conformance.md"), folder.join("conformance.json")];
    std::fs::write(&files[0], report.markdown())?;
    std::fs::write(&files[1], report.json()?)?;
    Ok(files)
}

fn write_certificate(certificate: &Certificate, path: &Path) -> Result<[PathBuf; 2], std::io::Error> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let files = [path.with_extension("md"), path.with_extension("json")];
    std::fs::write(&files[0], certificate.markdown())?;
    std::fs::write(&files[1], certificate.json()?)?;
    Ok(files)
}

/// Prints at once. A reader that went away (as `head` does) is no reason to stop the run.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

fn fail(code: u8, message: &str) -> ExitCode {
    drop(writeln!(std::io::stderr().lock(), "error: {message}"));
    ExitCode::from(code)
}
