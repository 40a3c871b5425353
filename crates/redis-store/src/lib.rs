#![doc = include_str!("../README.md")]

mod client;
mod config;
mod coordinator;
mod error;
mod keys;
mod kv;
mod scripts;
mod store;

pub use config::{Persistence, RedisConfig};
#[cfg(feature = "mutations")]
#[doc(hidden)]
pub use coordinator::Rule;
pub use coordinator::{RedisCoordinator, RedisCoordinatorConfig};
pub use fred;
pub use kv::MAX_VALUE;
pub use store::RedisStore;
