#![doc = include_str!("../README.md")]

mod cluster;
mod port;
mod process;
mod proxy;
mod redis;
mod resp;
mod sentinel;
mod wait;
mod watchdog;

pub use cluster::{Cluster, SlotMove};
pub use proxy::{Accept, Direction, End, Flow, Proxy, Traffic};
pub use redis::{Files, Options, Persistence, REDIS_URL, Redis};
pub use resp::{Connection, Reply};
pub use sentinel::Sentinel;

/// What went wrong, in words for whoever runs the tests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

/// The outcome of a call of this crate.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// For `map_err`: says what was being done.
pub(crate) fn failed<E: std::fmt::Display>(what: impl std::fmt::Display) -> impl FnOnce(E) -> Error {
    move |error| Error(format!("{what}: {error}"))
}
