//! Replicas in this process: each has a thread and two connections.

use std::time::Duration;

use botmesh_redis_store::{RedisConfig, RedisCoordinator, RedisCoordinatorConfig};

/// Long enough that no heartbeat is counted among the turns.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A replica. It remembers idle chats for an hour.
pub(crate) async fn replica(url: &str, lease: Duration) -> RedisCoordinator {
    let config = RedisCoordinatorConfig::default().with_lease(lease).with_idle_ttl(Duration::from_secs(3600));
    with(url, config).await
}

pub(crate) async fn with(url: &str, config: RedisCoordinatorConfig) -> RedisCoordinator {
    RedisCoordinator::connect_with(url, RedisConfig::default(), config).await.unwrap()
}
