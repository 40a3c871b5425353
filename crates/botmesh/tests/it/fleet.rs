//! Replicas of a bot in one process, each with its own door to the channel, over one hub, one store and one journal.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use botmesh::core::coordinator::{Coordinator as _, Fence, MemoryCoordinator, MemoryHub, Turn};
use botmesh::core::entropy::SeededEntropy;
use botmesh::core::error::{Cas, StoreError, StoreErrorKind};
use botmesh::core::id::{ChatId, ConversationKey, ParticipantId};
use botmesh::core::inbound::Inbound;
use botmesh::core::memory::MemoryStore;
use botmesh::core::provider::Resolve;
use botmesh::core::scope::Scope;
use botmesh::core::store::{ChatState, Checkpoint, CheckpointPhase, LogEntry, LogPosition, Revision, Store};
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Coordination, HandoverConfig, HandoverFlows, HandoverOutcome, TurnsConfig};
use botmesh_testing::MockProvider;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;

use crate::support::{Life, Stage};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// How long a step may take.
pub(crate) const SETTLE: Duration = Duration::from_secs(600);

pub(crate) struct Fleet {
    pub(crate) stage: Stage,
    pub(crate) hub: MemoryHub,
    pub(crate) handover: HandoverConfig,
    durable: bool,
    pub(crate) turn_wait: Duration,
    pub(crate) store: WatchedStore,
    /// The channel as its first replica is connected to it.
    pub(crate) channel: MockProvider,
    started: usize,
}

pub(crate) struct Replica {
    pub(crate) life: Life,
    pub(crate) channel: MockProvider,
    pub(crate) coordinator: MemoryCoordinator,
    number: usize,
}

impl Fleet {
    pub(crate) fn new(handover: HandoverConfig) -> Self {
        let mut stage = Stage::new(Resolve::Never);
        let hub = MemoryHub::new(Arc::new(stage.clock.clone()));
        let store = WatchedStore::new();
        stage.store = Arc::new(store.clone());
        let channel = MockProvider::new();
        let turn_wait = 2 * SETTLE;
        Self { stage, hub, handover, durable: true, turn_wait, store, channel, started: 0 }
    }

    pub(crate) fn with_durability(self, durable: bool) -> Self {
        Self { durable, ..self }
    }

    pub(crate) fn start(&mut self, build: impl FnOnce(BotBuilder) -> BotBuilder) -> Replica {
        self.start_as(&format!("replica-{}", self.started + 1), build)
    }

    /// As `start`, under this instance id.
    pub(crate) fn start_as(&mut self, id: &str, build: impl FnOnce(BotBuilder) -> BotBuilder) -> Replica {
        self.started += 1;
        let channel = self.channel.replica(self.started);
        self.stage.provider = Some(Arc::new(channel.clone()));
        let coordinator = self.hub.coordinator(&SeededEntropy::new(self.started as u64));
        let coordination = Coordination::new(coordinator.clone())
            .with_handover(self.handover.clone())
            .with_turn_wait(self.turn_wait);
        let turns = TurnsConfig { settle: SETTLE, ..TurnsConfig::default() };
        let build = |bot: BotBuilder| build(bot.coordination(coordination).turns(turns));
        let life = match self.durable {
            true => self.stage.start_with(Durability::default().with_instance_id(id), build),
            false => self.stage.start_plain(build),
        };
        Replica { life, channel, coordinator, number: self.started }
    }

    /// Two replicas of the same bot.
    pub(crate) fn pair(&mut self, build: impl Fn(BotBuilder) -> BotBuilder) -> (Replica, Replica) {
        (self.start(&build), self.start(&build))
    }

    /// The turn of a chat, which no replica has until both are dropped.
    pub(crate) async fn turn(&self, chat: &str) -> (MemoryCoordinator, Turn) {
        let other = self.hub.coordinator(&SeededEntropy::new(u64::MAX));
        let key = ConversationKey::private(chat).encode();
        let turn = other.enter(&key).await.expect("a ticket").granted().await.expect("a turn");
        (other, turn)
    }

    pub(crate) async fn pass(&self, time: Duration) {
        self.stage.clock.advance(time).await;
    }

    /// What all replicas said to Ana.
    pub(crate) fn said(&self) -> Vec<String> {
        self.channel.texts_to("ana")
    }

    /// The row that the store has of Ana's conversation.
    pub(crate) fn row(&self) -> Option<Checkpoint> {
        self.store.seen().rows.values().next().cloned()
    }
}

impl Replica {
    /// What this replica said to Ana.
    pub(crate) fn said(&self) -> Vec<String> {
        let sent = self.channel.delivered().into_iter();
        let own = sent.filter(|sent| sent.replica == self.number && sent.chat.as_str() == "ana");
        own.map(|sent| sent.text().to_owned()).collect()
    }

    /// Ana says something to this replica, which takes it over. It may stand still at it.
    pub(crate) async fn takes(&self, inbound: Inbound) {
        self.life.deliver_to(&self.channel, inbound).await;
    }

    /// Ana says something to this replica, and it stands still at it once it has said so many texts.
    pub(crate) async fn is_stuck_at(&self, event: &str, text: &str, texts: usize) {
        let before = self.said().len();
        self.takes(Inbound::text(event, "ana", text)).await;
        self.life.until("the step is at work", || self.said().len() >= before + texts).await;
        self.life.settled_but_for_turns().await;
    }

    /// This reaches the replica, which then has nothing more to do. What it answers.
    pub(crate) async fn gets(&self, inbound: Inbound) -> Vec<String> {
        let before = self.said().len();
        self.takes(inbound).await;
        self.life.settled().await;
        self.said().split_off(before)
    }

    /// Ana says something to this replica, which then has nothing more to do. What it answers.
    pub(crate) async fn hears(&self, event: &str, text: &str) -> Vec<String> {
        self.gets(Inbound::text(event, "ana", text)).await
    }

    pub(crate) async fn dies(self) {
        self.coordinator.crash();
        self.life.kill().await;
    }

    pub(crate) fn events(&mut self) -> Vec<BotEvent> {
        std::iter::from_fn(|| self.life.events.try_recv().ok()).collect()
    }

    pub(crate) fn outcomes(&mut self) -> Vec<HandoverOutcome> {
        let outcome = |event| match event {
            BotEvent::Handover { outcome, .. } => Some(outcome),
            _ => None,
        };
        self.events().into_iter().filter_map(outcome).collect()
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Signup {
    pub(crate) name: String,
}
impl FlowState for Signup {}

pub(crate) fn signup() -> Flow<Signup> {
    flow::<Signup>("signup")
        .ask("name", "What is your name?", |s, a| {
            s.name = a.text().to_owned();
            Ok(())
        })
        .ask("age", |s: &Signup| format!("How old are you, {}?", s.name), |_, _| Ok(()))
        .say(|s: &Signup| format!("Done, {}.", s.name))
}

/// A bot that enters this flow, called `signup`, when it hears `sign up`.
pub(crate) fn with<S: FlowState>(signup: Flow<S>) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| routes(bot).flow(signup)
}

pub(crate) fn routes(bot: BotBuilder) -> BotBuilder {
    bot.when("sign up", |c: Ctx| async move { c.enter("signup") })
        .otherwise(|c: Ctx| async move { c.reply("What?").await })
}

pub(crate) fn forward() -> HandoverConfig {
    HandoverConfig::default().with_flows(HandoverFlows::Forward)
}

/// What a store is about to do to a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Set(CheckpointPhase),
    Clear,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Before = Box<dyn FnOnce() -> Boxed<Result<(), StoreError>> + Send>;

/// A store that remembers what was written of conversations, and that does something before a chosen write.
#[derive(Clone)]
pub(crate) struct WatchedStore {
    inner: Arc<dyn Store>,
    seen: Arc<Mutex<Seen>>,
    compares: bool,
}

#[derive(Default)]
struct Seen {
    writes: Vec<Write>,
    before: Vec<(Write, Before)>,
    /// The rows of a store that does not compare them; else those of the last writes.
    rows: HashMap<ConversationKey, Checkpoint>,
}

impl WatchedStore {
    fn new() -> Self {
        Self { inner: Arc::new(MemoryStore::new()), seen: Arc::default(), compares: true }
    }

    /// A store that does not compare checkpoints.
    pub(crate) fn that_does_not_compare() -> Self {
        Self { compares: false, ..Self::new() }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was written of conversations, refused writes included, since it was asked last.
    pub(crate) fn writes(&self) -> Vec<Write> {
        std::mem::take(&mut self.seen().writes)
    }

    /// Does this before the next such write.
    pub(crate) fn before<F, Fut>(&self, write: Write, act: F)
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        self.seen().before.push((write, Box::new(move || Box::pin(act()))));
    }

    /// The next such write fails.
    pub(crate) fn fail(&self, write: Write) {
        let failure =
            || StoreError::new(StoreErrorKind::Unavailable, "watched", "write", "the test failed it");
        self.before(write, move || async move { Err(failure()) });
    }

    /// The next such write stands still until this is notified.
    pub(crate) fn hold(&self, write: Write) -> Arc<Notify> {
        let gate = Arc::new(Notify::new());
        let held = Arc::clone(&gate);
        self.before(write, move || async move {
            held.notified().await;
            Ok(())
        });
        gate
    }

    /// Whether everything that was to happen before a write happened.
    pub(crate) fn nothing_is_pending(&self) -> bool {
        self.seen().before.is_empty()
    }

    async fn note(&self, write: Write) -> Result<(), StoreError> {
        let act = {
            let mut seen = self.seen();
            seen.writes.push(write);
            let at = seen.before.iter().position(|(at, _)| *at == write);
            at.map(|at| seen.before.remove(at).1)
        };
        match act {
            Some(act) => act().await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Store for WatchedStore {
    fn scoped(&self, scope: &Scope) -> Arc<dyn Store> {
        Arc::new(Self { inner: self.inner.scoped(scope), ..self.clone() })
    }

    async fn chat(&self, chat: &ChatId) -> Result<Option<ChatState>, StoreError> {
        self.inner.chat(chat).await
    }

    async fn set_chat(&self, chat: &ChatId, state: &ChatState) -> Result<(), StoreError> {
        self.inner.set_chat(chat, state).await
    }

    async fn user_value(&self, user: &ParticipantId, name: &str) -> Result<Option<Value>, StoreError> {
        self.inner.user_value(user, name).await
    }

    async fn set_user_value(
        &self,
        user: &ParticipantId,
        name: &str,
        value: Option<&Value>,
    ) -> Result<(), StoreError> {
        self.inner.set_user_value(user, name, value).await
    }

    async fn user_values(&self, user: &ParticipantId) -> Result<Vec<(String, Value)>, StoreError> {
        self.inner.user_values(user).await
    }

    async fn checkpoint(&self, key: &ConversationKey) -> Result<Option<Checkpoint>, StoreError> {
        match self.compares {
            true => self.inner.checkpoint(key).await,
            false => Ok(self.seen().rows.get(key).cloned()),
        }
    }

    async fn set_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Option<Revision>,
        checkpoint: &Checkpoint,
    ) -> Result<Cas<Revision>, StoreError> {
        self.note(Write::Set(checkpoint.phase)).await?;
        let written = match self.compares {
            true => self.inner.set_checkpoint(turn, key, expect, checkpoint).await?,
            false => {
                let stored = self.seen().rows.get(key).map(|row| row.revision);
                Cas::Applied(Revision::next(stored, turn.fence()))
            }
        };
        if let Cas::Applied(revision) = written {
            let (fence, session) = (turn.fence(), turn.session().clone());
            let row = Checkpoint { revision, fence, session, ..checkpoint.clone() };
            self.seen().rows.insert(key.clone(), row);
        }
        Ok(written)
    }

    async fn clear_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Revision,
    ) -> Result<Cas<()>, StoreError> {
        self.note(Write::Clear).await?;
        let cleared = match self.compares {
            true => self.inner.clear_checkpoint(turn, key, expect).await?,
            false => Cas::Applied(()),
        };
        if cleared == Cas::Applied(()) {
            self.seen().rows.remove(key);
        }
        Ok(cleared)
    }

    async fn last_fence(&self) -> Result<Fence, StoreError> {
        self.inner.last_fence().await
    }

    fn compares_checkpoints(&self) -> bool {
        self.compares
    }

    async fn due_checkpoints(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Timestamp)>, StoreError> {
        if self.compares {
            return self.inner.due_checkpoints(until, limit).await;
        }
        let rows = self.seen();
        let due = rows.rows.iter().filter_map(|(key, row)| Some((key.clone(), row.due?)));
        Ok(due.filter(|(_, due)| *due <= until).take(limit).collect())
    }

    async fn append_log(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        self.inner.append_log(entries).await
    }

    async fn log(
        &self,
        chat: &ChatId,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<(LogPosition, LogEntry)>, StoreError> {
        self.inner.log(chat, before, limit).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}
