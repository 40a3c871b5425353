//! The backends of this build.

use std::sync::Arc;

use async_trait::async_trait;
use botmesh::FileDurability;
use botmesh_core::coordinator::MemoryHub;
use botmesh_core::entropy::OsEntropy;
use botmesh_core::kv::Durable;
use botmesh_core::memory::{MemoryKv, MemoryStore};
use botmesh_core::time::SystemClock;
#[cfg(feature = "redis")]
use botmesh_redis_store::{RedisConfig, RedisCoordinator, RedisCoordinatorConfig, RedisStore};
#[cfg(feature = "sqlite")]
use botmesh_sqlite_store::SqliteStore;

#[cfg(any(feature = "redis", feature = "sqlite"))]
use crate::Sharing;

use crate::{Backend, Claims, OpenError, Opened, Place, Replica};

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

/// How long others wait for a replica that a case kills.
#[cfg(feature = "redis")]
const LEASE: std::time::Duration = std::time::Duration::from_millis(1500);

/// The crates of the project have one version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The backends of this build.
#[cfg(feature = "cli")]
pub(crate) fn present() -> Vec<Arc<dyn Backend>> {
    vec![
        Arc::new(Memory),
        Arc::new(File),
        #[cfg(feature = "sqlite")]
        Arc::new(Sqlite),
        #[cfg(feature = "redis")]
        Arc::new(Redis::from_env()),
        #[cfg(feature = "redis")]
        Arc::new(Redis::cluster_from_env()),
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

    async fn replicas(&self, _: &Place, count: usize) -> Result<Option<Vec<Replica>>, OpenError> {
        let hub = MemoryHub::new(Arc::new(SystemClock::new()));
        let replicas = (0..count).map(|_| {
            let coordinator = hub.coordinator(&OsEntropy::new());
            let dying = coordinator.clone();
            Replica::new(Arc::new(coordinator), move || dying.crash())
        });
        Ok(Some(replicas.collect()))
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

/// A Redis server or Cluster that somebody runs. Nothing of it is wiped: each case has keys of its own, which stay.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub struct Redis {
    name: &'static str,
    /// The environment variable that has the URL.
    variable: &'static str,
    url: Option<String>,
    /// What the server said that it keeps.
    survives: std::sync::OnceLock<Durable>,
}

#[cfg(feature = "redis")]
impl Redis {
    /// One server: that of the URL in `BOTMESH_REDIS_URL`.
    pub fn from_env() -> Self {
        Self::of("redis", "BOTMESH_REDIS_URL")
    }

    /// A Cluster: that of the URL in `BOTMESH_REDIS_CLUSTER_URL`, which begins with `redis-cluster://`.
    pub fn cluster_from_env() -> Self {
        Self::of("redis-cluster", "BOTMESH_REDIS_CLUSTER_URL")
    }

    fn of(name: &'static str, variable: &'static str) -> Self {
        let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
        Self { name, variable, url, survives: std::sync::OnceLock::new() }
    }

    fn url(&self) -> Result<&str, String> {
        let Self { name, variable, .. } = self;
        self.url.as_deref().ok_or_else(|| {
            format!(
                "there is no server: set {variable} to its URL, such as {name}://127.0.0.1:6379; in the botmesh workspace, \
                 `cargo xtask conformance {name}` starts a private one"
            )
        })
    }

    async fn store(&self) -> Result<RedisStore, OpenError> {
        Ok(RedisStore::open_with(self.url()?, RedisConfig::default().with_prefix("conformance")).await?)
    }
}

#[cfg(feature = "redis")]
#[async_trait]
impl Backend for Redis {
    fn name(&self) -> &str {
        self.name
    }

    fn version(&self) -> Option<&str> {
        Some(VERSION)
    }

    /// What the server keeps is known once it was [`available`](Backend::available).
    fn claims(&self) -> Claims {
        let survives = self.survives.get().copied().unwrap_or(Durable::ProcessCrash);
        Claims::NONE.surviving(survives).shared_by(Sharing::Network)
    }

    async fn open(&self, _: &Place) -> Result<Opened, OpenError> {
        let store = self.store().await?;
        Ok(Opened::kv(store.durability()).with_store(Arc::new(store)))
    }

    async fn replicas(&self, _: &Place, count: usize) -> Result<Option<Vec<Replica>>, OpenError> {
        let config = RedisCoordinatorConfig::default().with_lease(LEASE);
        let connection = RedisConfig::default().with_prefix("conformance");
        let mut replicas = Vec::new();
        for _ in 0..count {
            let (connection, config) = (connection.clone(), config.clone());
            let coordinator = RedisCoordinator::connect_with(self.url()?, connection, config).await?;
            let dying = coordinator.clone();
            replicas.push(Replica::new(Arc::new(coordinator), move || dying.crash()));
        }
        Ok(Some(replicas))
    }

    fn is_offered(&self) -> bool {
        self.url.is_some()
    }

    async fn available(&self) -> Result<(), String> {
        let store = self.store().await.map_err(|error| botmesh::describe(&*error))?;
        let survives = store.durability().caps().durable;
        self.survives.get_or_init(|| survives);
        botmesh_core::store::Store::close(&store).await.map_err(|error| botmesh::describe(&error))
    }
}
