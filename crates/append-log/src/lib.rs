#![doc = include_str!("../README.md")]

mod compact;
mod entries;
mod error;
mod filesystem;
mod frame;
mod lock;
mod log;
mod medium;
mod options;
mod paths;
mod recover;
mod scan;
mod snapshot;
mod sys;

pub use entries::{Entries, Entry};
pub use error::{AppendLogError, SnapshotDamage};
pub use frame::{FORMAT_VERSION, FRAME_OVERHEAD, MAX_BATCH_BYTES};
pub use lock::LockHolder;
pub use log::AppendLog;
pub use options::{DEFAULT_COMPACT_BYTES, DEFAULT_COMPACT_ENTRIES, Options, SyncPolicy};
pub use recover::{Recovery, TornTail};
pub use snapshot::{SnapshotReader, SnapshotWriter};
