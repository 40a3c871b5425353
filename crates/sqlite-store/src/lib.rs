#![doc = include_str!("../README.md")]

mod client;
mod config;
mod error;
mod keys;
mod kv;
mod place;
mod schema;
mod store;

pub use config::{SqliteConfig, Synchronous};
pub use kv::MAX_VALUE;
pub use store::SqliteStore;
