//! The backends of this build.

use std::sync::Arc;

use async_trait::async_trait;
use botmesh::FileDurability;
use botmesh_core::kv::Durable;
use botmesh_core::memory::{MemoryKv, MemoryStore};
#[cfg(feature = "sqlite")]
use botmesh_sqlite_store::SqliteStore;

#[cfg(feature = "sqlite")]
use crate::Sharing;

use crate::{Backend, Claims, OpenError, Opened, Place};

/// Every backend of the project, present in this build or not.
#[cfg(feature = "cli")]
pub(crate) const KNOWN: &[&str] = &[
    "memory",
    "file",
    "sqlite",
    "events",
    "redis",
    "redis-cluster",
    "postgres",
    "mysql",
    "mariadb",
    "mongo",
];

/// The crates of the project have one version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The backends of this build that need no server.
#[cfg(feature = "cli")]
pub(crate) fn present() -> Vec<Arc<dyn Backend>> {
    vec![
        Arc::new(Memory),
        Arc::new(File),
        #[cfg(feature = "sqlite")]
        Arc::new(Sqlite),
    ]
}

/// The reference implementations of botmesh-core.
#[derive(Clone, Copy, Debug)]
pub struct Memory;

#[async_trait]
impl Backend for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn version(&self) -> Option<&str> {
        Some(VERSION)
    }

    fn claims(&self) -> Claims {
        Claims::NONE
    }

    async fn open(&self, _: &Place) -> Result<Opened, OpenError> {
        Ok(Opened::kv(Arc::new(MemoryKv::new())).with_store(Arc::new(MemoryStore::new())))
    }
}

/// Journals in one file.
#[derive(Clone, Copy, Debug)]
pub struct File;

#[async_trait]
impl Backend for File {
    fn name(&self) -> &str {
        "file"
    }

    fn version(&self) -> Option<&str> {
        Some(VERSION)
    }

    fn claims(&self) -> Claims {
        Claims::NONE.surviving(Durable::PowerLoss)
    }

    async fn open(&self, place: &Place) -> Result<Opened, OpenError> {
        Ok(Opened::kv(Arc::new(FileDurability::open(place.folder()?.join("journals")).await?)))
    }
}

/// One SQLite file.
#[cfg(feature = "sqlite")]
#[derive(Clone, Copy, Debug)]
pub struct Sqlite;

#[cfg(feature = "sqlite")]
#[async_trait]
impl Backend for Sqlite {
    fn name(&self) -> &str {
        "sqlite"
    }

    fn version(&self) -> Option<&str> {
        Some(VERSION)
    }

    fn claims(&self) -> Claims {
        Claims::NONE.surviving(Durable::PowerLoss).shared_by(Sharing::Host)
    }

    async fn open(&self, place: &Place) -> Result<Opened, OpenError> {
        let store = SqliteStore::open(place.folder()?.join("bot.db")).await?;
        Ok(Opened::kv(store.durability()).with_store(Arc::new(store)))
    }
}
