//! What a bot under test runs on.

use std::sync::Arc;
use std::time::Duration;

use botmesh::{BotBuilder, CoordinationConfig, Durability, HandoverConfig, ProviderSession};
use botmesh_core::coordinator::MemoryHub;
use botmesh_core::entropy::SeededEntropy;
use botmesh_core::kv::DurableKv;
use botmesh_core::memory::{MemoryKv, MemoryStore};
use botmesh_core::provider::Provider;
use botmesh_core::store::Store;

use super::TestBot;
use super::post::Post;
use super::stage::{Build, EachLife, Shared, Stage};
use crate::{LossyKv, MockProvider, VirtualClock};

/// What a [`TestBot`] runs on, where that is not to be memory and defaults, and how many replicas it has.
#[must_use]
pub struct TestBotOptions {
    channel: MockProvider,
    kv: Arc<dyn DurableKv>,
    store: Arc<dyn Store>,
    durability: Option<Durability>,
    each_life: EachLife,
    replicas: usize,
    /// How the replicas share the chats; `None` for a bot that is alone.
    sharing: Option<CoordinationConfig>,
    seed: Option<u64>,
}

impl TestBotOptions {
    pub(super) fn alone() -> Self {
        Self {
            channel: MockProvider::new(),
            kv: Arc::new(MemoryKv::new()),
            store: Arc::new(MemoryStore::new()),
            durability: Some(Durability::default()),
            each_life: Box::new(|_, _| ()),
            replicas: 1,
            sharing: None,
            seed: None,
        }
    }

    pub(super) fn replicas(count: usize) -> Self {
        Self { replicas: count, sharing: Some(CoordinationConfig::default()), ..Self::alone() }
    }

    /// With journals in this backend. They are the bot's as they are in production; what is in them already, the bot
    /// takes up.
    pub fn backend(mut self, backend: Arc<dyn DurableKv>) -> Self {
        self.kv = backend;
        self
    }

    /// With its state in this store.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Arc::new(store);
        self
    }

    /// As [`store`](Self::store), for one that is shared.
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = store;
        self
    }

    /// With these settings of the journals. A backend in them is not used; see [`backend`](Self::backend). The instance id
    /// of several replicas is followed by `-` and the number of each.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Without journals: what is under way when a replica dies is lost, and what is delivered twice is handled twice.
    pub fn without_durability(mut self) -> Self {
        self.durability = None;
        self
    }

    /// With this hand-over of conversations from replica to replica. Default: [`HandoverConfig::default`].
    pub fn handover(mut self, handover: HandoverConfig) -> Self {
        self.sharing.get_or_insert_default().handover = handover;
        self
    }

    /// With this bound of the wait for a chat's turn, in virtual time. Default 2 min.
    pub fn turn_wait(mut self, wait: Duration) -> Self {
        self.sharing.get_or_insert_default().turn_wait = wait;
        self
    }

    /// With these settings of the replicas, of which `handover` and `turn_wait` are the two that are used most. A replica id
    /// in them is that of all replicas.
    pub fn coordination(mut self, config: CoordinationConfig) -> Self {
        self.sharing = Some(config);
        self
    }

    /// With this channel, for one with other capabilities. Default: [`MockProvider::new`].
    pub fn channel(mut self, channel: MockProvider) -> Self {
        self.channel = channel;
        self
    }

    /// Draws everything that is random in the bots from this seed, and the order in which replicas go on that could at the
    /// same time: in small pieces, in place of one after the other as far as it comes. The same steps with the same seed give
    /// the same transcript, unless handlers wait for something real.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Calls `prepare` at the start of each life with its number, from 1 over all replicas, and its backend, before the bot
    /// runs: to let writes of the start itself fail.
    pub fn each_life(mut self, prepare: impl Fn(u64, &LossyKv) + Send + Sync + 'static) -> Self {
        self.each_life = Box::new(prepare);
        self
    }

    /// Starts the bot, each replica with the same build; see [`TestBot::new`].
    ///
    /// # Panics
    /// If the bot cannot be built.
    #[track_caller]
    pub fn start(self, build: impl Fn(BotBuilder) -> BotBuilder + Send + Sync + 'static) -> TestBot {
        self.start_each(move |_, bot| build(bot))
    }

    /// Starts the bot, where `build` is also told which replica it builds, from 1: during a rolling deploy, not all are of
    /// the same version.
    ///
    /// # Panics
    /// If a replica cannot be built.
    #[track_caller]
    pub fn start_each(
        self,
        build: impl Fn(usize, BotBuilder) -> BotBuilder + Send + Sync + 'static,
    ) -> TestBot {
        let clock = VirtualClock::new();
        let hub = || MemoryHub::new(Arc::new(clock.clone()));
        let one_connection = |config: &CoordinationConfig| match config.provider_session {
            ProviderSession::Leader => true,
            ProviderSession::Shared => false,
            ProviderSession::Auto => self.channel.capabilities().exclusive_session,
        };
        let shared = self.sharing.map(|config| {
            let one_connection = one_connection(&config);
            Shared { hub: hub(), config, one_connection }
        });
        let alone = shared.is_none();
        let named = self.durability.as_ref().and_then(|durability| durability.instance_id.clone());
        let stage = Arc::new(Stage {
            mock: self.channel,
            clock: clock.clone(),
            kv: self.kv,
            store: self.store,
            durability: self.durability,
            shared,
            seed: self.seed.unwrap_or(0),
            dice: self.seed.map(|seed| SeededEntropy::new(!seed)),
            each_life: self.each_life,
            post: Arc::new(Post::new()),
            state: std::sync::Mutex::default(),
        });
        let build = Arc::new(build);
        for replica in 1..=self.replicas {
            let instance = match (&named, alone) {
                (Some(name), true) => name.to_string(),
                (None, true) => "test-bot".to_owned(),
                (Some(name), false) => format!("{name}-{replica}"),
                (None, false) => format!("replica-{replica}"),
            };
            let build = Arc::clone(&build);
            let build: Build = Arc::new(move |bot| build(replica, bot));
            if let Err(error) = stage.add(replica, instance, build) {
                panic!("the bot cannot be built: {error}");
            }
        }
        TestBot { stage }
    }
}

impl std::fmt::Debug for TestBotOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestBotOptions")
            .field("replicas", &self.replicas)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}
