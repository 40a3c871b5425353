//! A coordinator that is not sure of its turns for a while, or has trouble that stops nobody.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use botmesh::Coordination;
use botmesh::core::coordinator::{Coordinator, Fence, MemoryCoordinator, MemoryHub, Ticket, TicketHandle};
use botmesh::core::coordinator::{Trouble, Turn, TurnHandle};
use botmesh::core::entropy::SeededEntropy;
use botmesh::core::error::{Cas, CoordinationUnavailable, LeaseLost, StoreError, StoreErrorKind};
use botmesh::core::id::{ConversationKey, SessionId};
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use tokio::sync::watch;

use crate::journals::desk;
use crate::support::Stage;

type Troubles = Arc<Mutex<Vec<(Trouble, Arc<StoreError>)>>>;

struct Doubtful {
    inner: MemoryCoordinator,
    doubt: watch::Sender<bool>,
    troubles: Troubles,
}

struct DoubtfulTicket(Ticket, watch::Receiver<bool>);

struct DoubtfulTurn(Turn, watch::Receiver<bool>);

impl Doubtful {
    fn new(stage: &Stage) -> Self {
        let hub = MemoryHub::new(Arc::new(stage.clock.clone()));
        let inner = hub.coordinator(&SeededEntropy::new(2));
        Self { inner, doubt: watch::Sender::new(false), troubles: Troubles::default() }
    }
}

#[async_trait]
impl Coordinator for Doubtful {
    fn session(&self) -> SessionId {
        self.inner.session()
    }

    async fn enter(&self, key: &str) -> Result<Ticket, CoordinationUnavailable> {
        let ticket = self.inner.enter(key).await?;
        Ok(Ticket::new(ticket.fence(), Box::new(DoubtfulTicket(ticket, self.doubt.subscribe()))))
    }

    fn raise_floor(&self, floor: Fence) {
        self.inner.raise_floor(floor);
    }

    fn trouble(&self, about: Trouble) -> Option<Arc<StoreError>> {
        let troubles = self.troubles.lock().expect("no panic");
        troubles.iter().find(|(of, _)| *of == about).map(|(_, error)| Arc::clone(error))
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
impl TicketHandle for DoubtfulTicket {
    async fn granted(&mut self) -> Result<Turn, CoordinationUnavailable> {
        let turn = self.0.granted().await?;
        let (session, previous) = (turn.session().clone(), turn.previous_holder().cloned());
        Ok(Turn::new(turn.fence(), session, previous, Arc::new(DoubtfulTurn(turn, self.1.clone()))))
    }
}

#[async_trait]
impl TurnHandle for DoubtfulTurn {
    fn check(&self) -> Result<(), LeaseLost> {
        self.0.check()
    }

    async fn confirm(&self) -> Result<(), LeaseLost> {
        self.1.clone().wait_for(|doubt| !doubt).await.expect("a coordinator");
        self.check()
    }

    async fn lost(&self) -> LeaseLost {
        self.0.lost().await
    }

    fn release(&self) {
        self.0.release();
    }
}

#[tokio::test]
async fn a_turn_in_doubt_sends_nothing_until_it_is_confirmed() {
    let stage = Stage::new(Resolve::Never);
    let coordinator = Doubtful::new(&stage);
    let (doubt, doubted) = (coordinator.doubt.clone(), coordinator.doubt.clone());
    let life = stage.start(|bot| {
        bot.coordination(Coordination::new(coordinator)).otherwise(move |c: Ctx| {
            doubted.send_replace(true);
            async move { c.reply("hi").await }
        })
    });
    life.started().await;
    assert!(life.deliver(Inbound::text("1", "ana", "hi")).await);
    for _ in 0..5 {
        stage.clock.advance(Duration::from_secs(1)).await;
    }
    assert!(stage.channel.sent().is_empty(), "something was sent in doubt");
    doubt.send_replace(false);
    life.until("the reply", || stage.channel.texts_to("ana") == ["hi"]).await;
    life.stop().await;
}

#[tokio::test]
async fn trouble_of_the_coordinator_is_told_once_until_it_is_over() {
    let stage = Stage::new(Resolve::Never);
    let coordinator = Doubtful::new(&stage);
    let troubles = Arc::clone(&coordinator.troubles);
    let mut life = stage.start(|bot| {
        bot.coordination(Coordination::new(coordinator)).otherwise(async |c: Ctx| c.reply("hi").await)
    });
    life.started().await;
    for event in ["1", "2"] {
        let error = |what| Arc::new(StoreError::new(StoreErrorKind::Denied, "test", "turns", what));
        let pushes = (Trouble::Pushes, error("no pushes arrive"));
        let both = vec![pushes.clone(), (Trouble::Clock, error("the clock stands still"))];
        for (there, expected) in [(vec![pushes], vec!["error"]), (both, vec!["error"]), (vec![], vec![])] {
            *troubles.lock().expect("no panic") = there;
            for _ in 0..30 {
                stage.clock.advance(Duration::from_secs(1)).await;
            }
            let mut told = life.event_names();
            told.retain(|name| *name == "error");
            assert_eq!(told, expected);
        }
        assert_eq!(life.say(event, "hello", 1).await, ["hi"], "turns are given all the same");
    }
    life.stop().await;
}

#[tokio::test]
async fn fences_that_are_behind_what_the_store_has_seen_are_caught_up_when_it_refuses_one() {
    let stage = Stage::new(Resolve::Never);
    let coordinator = Doubtful::new(&stage);
    let life = stage.start(|bot| desk(bot.coordination(Coordination::new(coordinator))));
    assert_eq!(life.say("1", "book", 1).await, ["name?"]);
    life.settled().await;
    // As if the coordinator had given this fence before it lost its data and its clock was set back.
    let other = Doubtful::new(&stage);
    let turn = other.inner.enter("ana").await.expect("a ticket").granted().await.expect("a turn");
    let ahead = Arc::new(DoubtfulTurn(turn, other.doubt.subscribe()));
    let ahead = Turn::new(Fence(1 << 60), SessionId::from("before"), None, ahead);
    let key = ConversationKey::private("ana");
    let row = stage.store.checkpoint(&key).await.expect("it is up").expect("a conversation");
    let written = stage.store.set_checkpoint(&ahead, &key, Some(row.revision), &row).await.expect("it is up");
    assert!(matches!(written, Cas::Applied(_)), "{written:?}");
    assert!(life.deliver(Inbound::text("2", "ana", "Ana")).await);
    for _ in 0..30 {
        stage.clock.advance(Duration::from_secs(1)).await;
    }
    assert_eq!(stage.channel.texts_to("ana"), ["name?", "day?"]);
    life.stop().await;
}
