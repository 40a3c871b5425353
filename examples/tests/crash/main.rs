//! The example as a user runs it: a real process on real files, killed, shared and fed with nonsense.

mod child;
mod desk;
mod disk;
mod inputs;
mod kill;
mod leases;
mod meta;
mod moved;
mod poison;
#[cfg(feature = "redis")]
mod recipes;
mod replica;
#[cfg(feature = "redis")]
mod replicas;
mod script;
mod session;
mod shared;
mod signals;
mod tally;
mod tasks;
mod telegram;
