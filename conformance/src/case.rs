//! Cases: what they are given, and what they say.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use botmesh_core::entropy::SeededEntropy;
use botmesh_core::error::StoreError;
use botmesh_core::journal::WritePoint;
use botmesh_core::kv::DurableKv;
use botmesh_core::scope::Scope;
use botmesh_core::store::Store;
use serde::Serialize;

use crate::{Backend, Child, Claims, OpenError, Opened, Place, Replica};

/// Cases about one subject.
#[derive(Debug)]
pub struct Suite {
    /// Its name, as given on the command line.
    pub name: &'static str,
    /// What it is about, in one line.
    pub meaning: &'static str,
    /// Its cases.
    pub cases: Vec<Case>,
    pub(crate) needs: Needs,
}

/// What a backend must hold for a suite to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Journals,
    Store,
    Anything,
}

/// One thing that a backend must do.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name within the suite.
    pub name: &'static str,
    /// What must hold, in one line.
    pub meaning: &'static str,
    run: Run,
}

type Run = for<'a> fn(&'a mut Context) -> Pin<Box<dyn Future<Output = CaseResult> + Send + 'a>>;

impl Case {
    /// A case of this name.
    pub fn new(name: &'static str, meaning: &'static str, run: Run) -> Self {
        Self { name, meaning, run }
    }

    pub(crate) async fn run(&self, context: &mut Context) -> CaseResult {
        (self.run)(context).await
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A table of cases: the function of each, and what must hold.
macro_rules! cases {
    ($($name:ident: $meaning:literal,)+) => {
        vec![$($crate::Case::new(stringify!($name), $meaning, |context| Box::pin($name(context)))),+]
    };
}
pub(crate) use cases;

/// How a case ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The backend does what it must.
    Passed,
    /// The backend claims not to do it, and indeed refuses it or does not do it.
    Refused,
    /// The backend does not claim it, and nothing can be shown of its absence.
    NotClaimed,
    /// Nothing was shown, because something that the case needs is missing here.
    NotRun,
}

/// What a case says.
pub type CaseResult = Result<Verdict, Failure>;

/// The result of a case that passed.
pub const PASSED: CaseResult = Ok(Verdict::Passed);
/// The result of a case that found a refusal as claimed.
pub const REFUSED: CaseResult = Ok(Verdict::Refused);
/// The result of a case that the backend's claims do not bind.
pub const NOT_CLAIMED: CaseResult = Ok(Verdict::NotClaimed);

/// The result of a case that misses something.
pub const NOT_RUN: CaseResult = Ok(Verdict::NotRun);

/// Why a case failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(String);

impl Failure {
    /// A failure with this explanation.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// With what was being done.
    #[must_use]
    pub fn during(self, what: &str) -> Self {
        Self(format!("{what}: {}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let (kind, effect) = (error.kind(), error.effect());
        Self(format!("unexpected error ({kind:?}, effect {effect:?}): {}", chain(&error)))
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self(format!("cannot open: {}", chain(&*error)))
    }
}

/// An error and its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |source| source.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

/// Fails the case with the place in the source if the condition does not hold.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            let message = format!($($message)+);
            return Err($crate::Failure::new(format!("{message} ({}:{})", file!(), line!())));
        }
    };
}
pub(crate) use ensure;

/// Fails the case with both values if they are not equal.
macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($message:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => {
                $crate::case::ensure!(
                    *found == *expected,
                    "{}\n    found    {:?}\n    expected {:?}\n   ",
                    format!($($message)+), found, expected
                );
            }
        }
    };
}
pub(crate) use ensure_eq;

/// What a case went through, for the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Lives of bots, or whatever else the case repeats.
    pub runs: u64,
    /// The kinds of writes at which something went wrong, by name.
    pub points: BTreeSet<&'static str>,
}

impl Tally {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what another case went through.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.points.extend(&other.points);
    }
}

/// For example ` (38 runs, 19 of 19 write points)`, or nothing.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.runs, self.points.len()) {
            (0, _) => Ok(()),
            (runs, 0) => write!(f, " ({runs} runs)"),
            (runs, points) => write!(f, " ({runs} runs, {points} of {} write points)", WritePoint::ALL.len()),
        }
    }
}

/// What a case is given: a place of its own on the backend, open.
pub struct Context {
    backend: Arc<dyn Backend>,
    place: Place,
    opened: Option<Opened>,
    seed: u64,
    pub(crate) rounds: u32,
    pub(crate) tally: Tally,
    pub(crate) child: Option<Child>,
}

impl Context {
    pub(crate) async fn open(backend: Arc<dyn Backend>, place: Place, seed: u64) -> Result<Self, Failure> {
        let opened = backend.open(&place).await?;
        let (rounds, tally, child) = (1, Tally::default(), None);
        Ok(Self { backend, place, opened: Some(opened), seed, rounds, tally, child })
    }

    /// What the backend claims.
    pub fn claims(&self) -> Claims {
        self.backend.claims()
    }

    pub(crate) fn backend_name(&self) -> &str {
        self.backend.name()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn folder(&self) -> Result<&Path, Failure> {
        Ok(self.place.folder()?)
    }

    /// How many different places a case with random ones tries for each thing it shows.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// What this case went through so far, for the report.
    pub fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    /// Randomness that `--seed` repeats.
    pub fn entropy(&self) -> SeededEntropy {
        SeededEntropy::new(self.seed)
    }

    /// Whether the backend holds journals.
    pub fn has_kv(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.kv.is_some())
    }

    /// Whether the backend is a store.
    pub fn has_store(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.store.is_some())
    }

    /// The key-value store, in a scope of this case.
    ///
    /// # Errors
    /// The backend has none, or it is closed.
    pub fn kv(&self) -> Result<Arc<dyn DurableKv>, Failure> {
        self.kv_in("")
    }

    /// The key-value store, in another scope of this case.
    ///
    /// # Errors
    /// The backend has none, or it is closed.
    pub fn kv_in(&self, scope: &str) -> Result<Arc<dyn DurableKv>, Failure> {
        Ok(self.unscoped_kv()?.scoped(&self.scope(scope)))
    }

    /// The key-value store as it was opened, for what chooses scopes of its own: [`bot`](Self::bot) gives one of this
    /// case.
    ///
    /// # Errors
    /// The backend has none, or it is closed.
    pub fn unscoped_kv(&self) -> Result<Arc<dyn DurableKv>, Failure> {
        let kv = self.opened()?.kv.clone();
        kv.ok_or_else(|| Failure::new("the backend holds no journals"))
    }

    /// The store as it was opened, for a bot that takes a [`bot`](Self::bot)'s scope; `None` if the backend is none.
    pub fn unscoped_store(&self) -> Option<Arc<dyn Store>> {
        self.opened.as_ref()?.store.clone()
    }

    /// The scope of a bot of this case.
    pub fn bot(&self, name: &str) -> Scope {
        Scope { tenant: self.scope(""), ..Scope::bot(name) }
    }

    /// The name of a scope of this case.
    pub fn scope(&self, name: &str) -> String {
        format!("{}{name}", self.place.id())
    }

    /// The store, in a scope of this case.
    ///
    /// # Errors
    /// The backend is none, or it is closed.
    pub fn store(&self) -> Result<Arc<dyn Store>, Failure> {
        self.store_in(&Scope::default())
    }

    /// The store, in another scope of this case.
    ///
    /// # Errors
    /// The backend is none, or it is closed.
    pub fn store_in(&self, scope: &Scope) -> Result<Arc<dyn Store>, Failure> {
        let store = self.opened()?.store.as_ref();
        let store = store.ok_or_else(|| Failure::new("the backend is no store"))?;
        Ok(store.scoped(&Scope { tenant: self.scope(&scope.tenant), ..scope.clone() }))
    }

    /// So many replicas that share turns; `None` if the backend gives none.
    ///
    /// # Errors
    /// They cannot be started.
    pub async fn replicas(&self, count: usize) -> Result<Option<Vec<Replica>>, Failure> {
        Ok(self.backend.replicas(&self.place, count).await?)
    }

    /// Closes the data and opens it again, as the next process does. Handles from before are of no use afterwards.
    ///
    /// # Errors
    /// It cannot be closed or opened.
    pub async fn reopen(&mut self) -> Result<(), Failure> {
        self.close().await.map_err(|failure| failure.during("closing"))?;
        self.opened = Some(self.backend.open(&self.place).await?);
        Ok(())
    }

    /// Opens the same data a second time, while it is open.
    ///
    /// # Errors
    /// The backend refuses it.
    pub async fn open_again(&self) -> Result<Opened, OpenError> {
        self.backend.open(&self.place).await
    }

    pub(crate) async fn close(&mut self) -> Result<(), Failure> {
        match self.opened.take() {
            Some(opened) => Ok(opened.close().await?),
            None => Ok(()),
        }
    }

    fn opened(&self) -> Result<&Opened, Failure> {
        self.opened.as_ref().ok_or_else(|| Failure::new("the data is closed"))
    }
}
