//! A coordinator whose tickets wait for a while only, as that of a server may be.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use botmesh::Coordination;
use botmesh::core::coordinator::{
    Coordinator, Fence, MemoryCoordinator, MemoryHub, Ticket, TicketHandle, Turn,
};
use botmesh::core::entropy::SeededEntropy;
use botmesh::core::error::{CoordinationUnavailable, CoordinationUnavailableReason};
use botmesh::core::id::SessionId;
use botmesh::core::provider::Resolve;
use botmesh::core::time::Clock;
use botmesh::prelude::*;
use botmesh_testing::VirtualClock;

use crate::leadership::exclusive;
use crate::support::Stage;

struct Impatient {
    inner: MemoryCoordinator,
    clock: VirtualClock,
}

struct Waiting {
    ticket: Ticket,
    clock: VirtualClock,
}

#[async_trait]
impl Coordinator for Impatient {
    fn session(&self) -> SessionId {
        self.inner.session()
    }

    async fn enter(&self, key: &str) -> Result<Ticket, CoordinationUnavailable> {
        let ticket = self.inner.enter(key).await?;
        let fence = ticket.fence();
        Ok(Ticket::new(fence, Box::new(Waiting { ticket, clock: self.clock.clone() })))
    }

    async fn acquire_lock_fenced(
        &self,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Option<Fence>, CoordinationUnavailable> {
        self.inner.acquire_lock_fenced(key, token, ttl).await
    }

    async fn renew_lock(
        &self,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Option<Fence>, CoordinationUnavailable> {
        self.inner.renew_lock(key, token, ttl).await
    }

    async fn release_lock(&self, key: &str, token: &str) -> Result<bool, CoordinationUnavailable> {
        self.inner.release_lock(key, token).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl TicketHandle for Waiting {
    async fn granted(&mut self) -> Result<Turn, CoordinationUnavailable> {
        tokio::select! {
            biased;
            turn = self.ticket.granted() => turn,
            () = self.clock.sleep(Duration::from_secs(60)) => {
                let reason = CoordinationUnavailableReason::Timeout;
                Err(CoordinationUnavailable { reason, source: None })
            }
        }
    }
}

#[tokio::test]
async fn a_standby_waits_for_its_turn_to_lead_however_long_it_takes() {
    let mut stage = Stage::new(Resolve::Never);
    let (clock, channel) = (stage.clock.clone(), exclusive());
    stage.provider = Some(Arc::new(channel.clone()));
    let hub = MemoryHub::new(Arc::new(clock.clone()));
    let other = hub.coordinator(&SeededEntropy::new(1));
    let leads = other.try_enter("lead/s/default/default/bot/default/provider:mock").await.unwrap().unwrap();
    let coordinator = Impatient { inner: hub.coordinator(&SeededEntropy::new(2)), clock: clock.clone() };
    let mut life = stage.start(|bot| {
        bot.coordination(Coordination::new(coordinator)).otherwise(async |c: Ctx| c.reply("hi").await)
    });
    life.started().await;
    for _ in 0..600 {
        clock.advance(Duration::from_secs(1)).await;
    }
    let mut told = life.event_names();
    told.retain(|name| *name != "started");
    assert_eq!(told, ["coordination:follower"]);
    assert!(channel.connections().is_empty());
    leads.release();
    life.until("a connection", || channel.connected() == [1]).await;
    life.stop().await;
}
