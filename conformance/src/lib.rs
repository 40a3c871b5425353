#![doc = include_str!("../README.md")]

mod backend;
mod backends;
mod case;
mod certificate;
mod child;
#[cfg(feature = "cli")]
pub mod cli;
mod report;
mod runner;
mod suites;

pub use backend::{Backend, Claims, OpenError, Opened, Place, Replica, Sharing};
#[cfg(feature = "redis")]
pub use backends::Redis;
#[cfg(feature = "sqlite")]
pub use backends::Sqlite;
pub use backends::{File, Memory};
pub use case::{
    Case, CaseResult, Context, Failure, NOT_CLAIMED, NOT_RUN, PASSED, REFUSED, Suite, Tally, Verdict,
};
pub use certificate::Certificate;
pub use child::Child;
pub use report::{CaseReport, Report};
pub use runner::{Runner, UnknownSuite, assert_conforms};
pub use suites::suites;
