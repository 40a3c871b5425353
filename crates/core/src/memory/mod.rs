//! In-memory reference implementations: nothing outlives the process, everything else is as the contracts say. Other
//! backends are compared with these.

mod kv;
mod store;
mod table;

pub use kv::MemoryKv;
pub use store::MemoryStore;
pub use table::Table;
