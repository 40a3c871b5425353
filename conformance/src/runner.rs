//! Runs cases side by side and collects what they say.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use botmesh_core::entropy::{Entropy, OsEntropy};
use botmesh_core::hash::stable_hash;
use futures_util::FutureExt;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::case::Needs;
use crate::report::Status;
use crate::suites::suites;
use crate::{
    Backend, CaseReport, CaseResult, Child, Context, Failure, NOT_CLAIMED, Place, Report, Suite, Tally,
};

/// How long one case may take, so that a backend that hangs fails and does not stop the run.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many cases run at the same time.
const JOBS: usize = 8;

/// Runs suites against backends.
pub struct Runner {
    backends: Vec<Arc<dyn Backend>>,
    missing: Vec<(String, String)>,
    suites: Vec<Suite>,
    selected: Vec<String>,
    seed: u64,
    jobs: usize,
    rounds: u32,
    child: Option<Child>,
}

/// No suite or case has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSuite {
    name: String,
    known: Vec<&'static str>,
}

impl fmt::Display for UnknownSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, known } = self;
        write!(f, "no suite or case is called {name}; the suites are {}", known.join(", "))?;
        f.write_str(", and --list shows the cases, which are named SUITE::CASE")
    }
}

impl std::error::Error for UnknownSuite {}

impl Runner {
    /// A runner whose random cases follow `seed`.
    pub fn new(seed: u64) -> Self {
        let (backends, missing, selected) = (Vec::new(), Vec::new(), Vec::new());
        Self { backends, missing, suites: suites(), selected, seed, jobs: JOBS, rounds: 1, child: None }
    }

    /// Runs against this backend too.
    #[must_use]
    pub fn with_backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backends.push(backend);
        self
    }

    /// Shows a backend of this name as not run.
    #[must_use]
    pub fn with_missing(mut self, name: impl Into<String>, reason: impl Into<String>) -> Self {
        self.missing.push((name.into(), reason.into()));
        self
    }

    /// Runs only the suite of this name, or the case `SUITE::CASE`, and others chosen in the same way.
    ///
    /// # Errors
    /// Nothing has this name.
    pub fn with_suite(mut self, name: &str) -> Result<Self, UnknownSuite> {
        let is_case = |suite: &Suite| {
            suite.name == name || suite.cases.iter().any(|case| full_name(suite, case.name) == name)
        };
        if !self.suites.iter().any(is_case) {
            let known = self.suites.iter().map(|suite| suite.name).collect();
            return Err(UnknownSuite { name: name.to_owned(), known });
        }
        self.selected.push(name.to_owned());
        Ok(self)
    }

    /// Runs so many cases at the same time. Default 8.
    #[must_use]
    pub fn with_jobs(mut self, jobs: usize) -> Self {
        self.jobs = jobs.max(1);
        self
    }

    /// Tries so many different places for each thing that a case shows at random places. Default 1.
    #[must_use]
    pub fn with_rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds.max(1);
        self
    }

    /// How to start a process that may be killed: without one, the cases with processes of their own are shown as not run.
    /// [`cli::Command`](crate::cli::Command) sets it.
    #[must_use]
    pub fn with_child(mut self, child: Child) -> Self {
        self.child = Some(child);
        self
    }

    /// The number of runs of a case.
    pub fn count(&self) -> usize {
        self.jobs().len()
    }

    /// Runs everything and calls `progress` as cases end.
    ///
    /// # Errors
    /// No temporary folder can be created.
    pub async fn run(&self, mut progress: impl FnMut(&CaseReport)) -> Result<Report, std::io::Error> {
        let folder = tempfile::Builder::new().prefix("conformance-").tempdir()?;
        let run = format!("{:08x}", OsEntropy::new().next_u64() >> 32);
        let mut reports: Vec<Option<CaseReport>> = Vec::new();
        let mut running = JoinSet::new();
        let mut jobs = self.jobs().into_iter().enumerate();
        loop {
            while running.len() < self.jobs {
                let Some((number, job)) = jobs.next() else { break };
                reports.push(None);
                self.start(&mut running, number, job, &run, &folder);
            }
            let Some(ended) = running.join_next().await else { break };
            // Panics are caught within the task, and nobody aborts it.
            let Ok((number, report)) = ended else { continue };
            progress(&report);
            reports[number] = Some(report);
        }
        let mut cases: Vec<_> = reports.into_iter().flatten().collect();
        cases.extend(self.not_run());
        Ok(Report::new((self.seed, self.rounds), &self.backends, &self.missing, cases))
    }

    fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (backend, _) in self.backends.iter().enumerate() {
            for (suite, case) in self.selection() {
                jobs.push(Job { backend, suite, case });
            }
        }
        jobs
    }

    fn selection(&self) -> Vec<(usize, usize)> {
        let mut selection = Vec::new();
        for (suite_number, suite) in self.suites.iter().enumerate() {
            for (case_number, case) in suite.cases.iter().enumerate() {
                let name = full_name(suite, case.name);
                let chosen = |selected: &String| *selected == suite.name || *selected == name;
                if self.selected.is_empty() || self.selected.iter().any(chosen) {
                    selection.push((suite_number, case_number));
                }
            }
        }
        selection
    }

    fn not_run(&self) -> impl Iterator<Item = CaseReport> {
        self.missing.iter().flat_map(move |(name, reason)| {
            self.selection().into_iter().map(move |(suite, case)| {
                self.report(name, suite, case, Status::NotRun, Some(reason.clone()))
            })
        })
    }

    fn report(
        &self,
        backend: &str,
        suite: usize,
        case: usize,
        status: Status,
        detail: Option<String>,
    ) -> CaseReport {
        let suite = &self.suites[suite];
        let case = &suite.cases[case];
        CaseReport {
            backend: backend.to_owned(),
            suite: suite.name,
            case: case.name,
            meaning: case.meaning,
            status,
            detail,
            tally: Tally::default(),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the runner starts cases; nothing under test is started here"
    )]
    fn start(
        &self,
        running: &mut JoinSet<(usize, CaseReport)>,
        number: usize,
        job: Job,
        run: &str,
        folder: &TempDir,
    ) {
        let backend = Arc::clone(&self.backends[job.backend]);
        let suite = &self.suites[job.suite];
        let case = suite.cases[job.case];
        let name = full_name(suite, case.name);
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let id = format!("cf{run}-{}-{}-{}", backend.name(), suite.name, case.name);
        let id = id.chars().map(plain).collect();
        let place = Place::new(id, folder.path());
        let seed = self.seed ^ stable_hash(name.bytes());
        let report = self.report(backend.name(), job.suite, job.case, Status::Passed, None);
        let needs = suite.needs;
        let (rounds, child) = (self.rounds, self.child.clone());
        running.spawn(async move {
            let mut tally = Tally::default();
            let case = async {
                let mut context = Context::open(backend, place, seed).await?;
                (context.rounds, context.child) = (rounds, child);
                let result = run_case(&case, needs, &mut context).await;
                tally = context.tally;
                result
            };
            let case = AssertUnwindSafe(case).catch_unwind();
            let result = match tokio::time::timeout(PATIENCE * rounds, case).await {
                Ok(Ok(result)) => result,
                Ok(Err(panic)) => Err(Failure::new(format!("panicked: {}", text_of(&*panic)))),
                Err(_) => Err(Failure::new(format!("did not end within {:?}", PATIENCE * rounds))),
            };
            (number, CaseReport { tally, ..report.with_result(result) })
        });
    }
}

#[derive(Clone, Copy)]
struct Job {
    backend: usize,
    suite: usize,
    case: usize,
}

fn full_name(suite: &Suite, case: &str) -> String {
    format!("{}::{case}", suite.name)
}

async fn run_case(case: &crate::Case, needs: Needs, context: &mut Context) -> CaseResult {
    let applies = match needs {
        Needs::Journals => context.has_kv(),
        Needs::Store => context.has_store(),
        Needs::Anything => true,
    };
    let result = if applies { case.run(context).await } else { NOT_CLAIMED };
    let closed = context.close().await.map_err(|failure| failure.during("closing after the case"));
    let verdict = result?;
    closed?;
    Ok(verdict)
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

/// Runs every suite against `backend`, for use in a test.
///
/// # Panics
/// If a case fails, or if the backend cannot run here; with what failed, and the seed.
pub async fn assert_conforms(backend: impl Backend) {
    let seed = OsEntropy::new().next_u64() >> 32;
    let backend: Arc<dyn Backend> = Arc::new(backend);
    if let Err(reason) = backend.available().await {
        panic!("{} cannot run here: {reason}", backend.name());
    }
    let report = match Runner::new(seed).with_backend(backend).run(|_| ()).await {
        Ok(report) => report,
        Err(error) => panic!("no temporary folder: {error}"),
    };
    let failures: Vec<_> = report.failures().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "with seed {seed}:\n{}", failures.join("\n"));
}
