//! Backends whose replicas do not share their turns as they must.

use std::sync::Arc;

use async_trait::async_trait;
use botmesh_conformance::{Backend, Claims, Memory, OpenError, Opened, Place, Replica};
use botmesh_core::coordinator::{Coordinator, MemoryHub};
use botmesh_core::entropy::OsEntropy;
use botmesh_core::time::SystemClock;

use crate::failures;

/// Each replica has turns of its own, and does not die when it is killed.
struct Apart;

#[async_trait]
impl Backend for Apart {
    fn name(&self) -> &str {
        "apart"
    }

    fn claims(&self) -> Claims {
        Claims::NONE
    }

    async fn open(&self, place: &Place) -> Result<Opened, OpenError> {
        Memory.open(place).await
    }

    async fn replicas(&self, _: &Place, count: usize) -> Result<Option<Vec<Replica>>, OpenError> {
        let replicas = (0..count).map(|_| {
            let hub = MemoryHub::new(Arc::new(SystemClock::new()));
            let coordinator: Arc<dyn Coordinator> = Arc::new(hub.coordinator(&OsEntropy::new()));
            Replica::new(coordinator, || ())
        });
        Ok(Some(replicas.collect()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_are_not_shared_are_found() {
    let failures = failures(Apart, "coordination").await;
    for case in [
        "tickets_are_served_in_order",
        "one_holder_at_a_time",
        "dropped_waits_leave_no_ticket",
        "a_dead_holder_is_replaced",
        "the_previous_holder_is_told",
        "a_released_turn_is_over",
    ] {
        assert!(failures.contains(&case), "{case} passes: {failures:?}");
    }
}
