//! The backends of this build.

use std::sync::Arc;

use async_trait::async_trait;
use botmesh_core::memory::MemoryKv;

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

/// The backends of this build that need no server.
#[cfg(feature = "cli")]
pub(crate) fn present() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(Memory)]
}

/// The reference implementations of botmesh-core.
#[derive(Clone, Copy, Debug)]
pub struct Memory;

#[async_trait]
impl Backend for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn claims(&self) -> Claims {
        Claims::NONE
    }

    async fn open(&self, _: &Place) -> Result<Opened, OpenError> {
        Ok(Opened::kv(Arc::new(MemoryKv::new())))
    }
}
