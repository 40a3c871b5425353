#![doc = include_str!("../README.md")]

mod backend;
mod backends;
mod case;
#[cfg(feature = "cli")]
pub mod cli;
mod report;
mod runner;
mod suites;

pub use backend::{Backend, Claims, OpenError, Opened, Place, Sharing};
#[cfg(feature = "sqlite")]
pub use backends::Sqlite;
pub use backends::{File, Memory};
pub use case::{Case, CaseResult, Context, Failure, NOT_CLAIMED, PASSED, REFUSED, Suite, Verdict};
pub use report::{CaseReport, Report};
pub use runner::{Runner, UnknownSuite, assert_conforms};
pub use suites::suites;
