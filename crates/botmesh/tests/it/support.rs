use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use botmesh::core::entropy::SeededEntropy;
use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{Journal, KvDurability};
use botmesh::core::kv::DurableKv;
use botmesh::core::memory::{MemoryKv, MemoryStore};
use botmesh::core::provider::{Provider, Resolve};
use botmesh::core::scope::Scope;
use botmesh::core::spawn::{Seams, Spawner};
use botmesh::core::store::Store;
use botmesh::core::time::Clock;
use botmesh::{Bot, BotBuilder, BotEvent, Durability, Journals};
use botmesh_testing::{CrashableStore, LossyKv, MockProvider, SendFault, TestSpawner, VirtualClock};
use tokio::sync::broadcast;

const STEP: Duration = Duration::from_millis(100);
/// How many steps of virtual time a test waits for anything: more than every delay of the defaults.
const PATIENCE: usize = 20_000;

/// What outlives a process: the channel, the journals and the store.
pub(crate) struct Stage {
    pub(crate) channel: MockProvider,
    pub(crate) clock: VirtualClock,
    /// What the bot gets in place of the channel itself.
    pub(crate) provider: Option<Arc<dyn Provider>>,
    /// The clock that the next bot reads in place of the stage's own.
    pub(crate) own_clock: Option<Arc<dyn Clock>>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) kv: Arc<dyn DurableKv>,
    /// The seed of the next life: no two processes draw the same random numbers.
    seed: AtomicU64,
}

/// One life of a bot on a stage.
pub(crate) struct Life {
    pub(crate) bot: Bot,
    pub(crate) journal: LossyKv,
    pub(crate) store: CrashableStore,
    pub(crate) spawner: TestSpawner,
    pub(crate) events: broadcast::Receiver<BotEvent>,
    /// What running it came to.
    pub(crate) ended: Arc<OnceLock<Result<(), String>>>,
    channel: MockProvider,
    clock: VirtualClock,
}

impl Stage {
    pub(crate) fn new(resolve: Resolve) -> Self {
        Self::with_kv(resolve, Arc::new(MemoryKv::new()))
    }

    /// A stage whose journals live in `kv`.
    pub(crate) fn with_kv(resolve: Resolve, kv: Arc<dyn DurableKv>) -> Self {
        Self {
            channel: MockProvider::with_resolve(resolve),
            clock: VirtualClock::new(),
            provider: None,
            own_clock: None,
            store: Arc::new(MemoryStore::new()),
            kv,
            seed: AtomicU64::new(7),
        }
    }

    /// Fails so many of the next calls with this text, for now.
    pub(crate) fn fail_text(&self, text: &'static str, times: usize) {
        let left = AtomicUsize::new(times);
        self.channel.fault_when(move |sent| {
            let one_less = |left: usize| left.checked_sub(1);
            let fails = sent.text() == text
                && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
            let busy = ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy");
            fails.then_some(SendFault::Fail(busy))
        });
    }

    /// Starts a durable bot under the instance id `bot`.
    pub(crate) fn start(&self, build: impl FnOnce(BotBuilder) -> BotBuilder) -> Life {
        self.start_with(Durability::default().with_instance_id("bot"), build)
    }

    pub(crate) fn start_with(
        &self,
        durability: Durability,
        build: impl FnOnce(BotBuilder) -> BotBuilder,
    ) -> Life {
        let journal = LossyKv::new(Arc::clone(&self.kv));
        let kv: Arc<dyn DurableKv> = Arc::new(journal.clone());
        let builder = Bot::builder().durability(durability.with_backend(kv));
        self.run(journal, build(builder))
    }

    /// Starts a bot without durability.
    pub(crate) fn start_plain(&self, build: impl FnOnce(BotBuilder) -> BotBuilder) -> Life {
        self.run(LossyKv::new(Arc::clone(&self.kv)), build(Bot::builder()))
    }

    /// The bot's journals as another instance sees them, for what no bot would do.
    pub(crate) async fn journal(&self, instance: &str) -> Journal {
        let (seams, lease) = (self.seams(&TestSpawner::new()), Duration::from_secs(3600));
        let journals = KvDurability::new(Arc::clone(&self.kv));
        journals.open(&Scope::default(), instance.into(), lease, seams).await.expect("open journals")
    }

    fn seams(&self, spawner: &TestSpawner) -> Seams {
        Seams {
            clock: self.own_clock.clone().unwrap_or_else(|| Arc::new(self.clock.clone())),
            entropy: Arc::new(SeededEntropy::new(self.seed.fetch_add(1, Ordering::Relaxed))),
            spawner: Arc::new(spawner.clone()),
        }
    }

    fn run(&self, journal: LossyKv, builder: BotBuilder) -> Life {
        // Starting takes its time.
        self.clock.jump(Duration::from_millis(10));
        let spawner = TestSpawner::new();
        let seams = self.seams(&spawner);
        let channel = self.channel.clone();
        let store = CrashableStore::new(Arc::clone(&self.store), journal.process().clone());
        let provider = self.provider.clone().unwrap_or_else(|| Arc::new(channel.clone()));
        let builder = builder.shared_provider(provider).store(store.clone()).seams(seams);
        let bot = builder.build().expect("a bot that can be built");
        let events = bot.events();
        let (running, ended) = (bot.clone(), Arc::new(OnceLock::new()));
        let result = Arc::clone(&ended);
        let task = async move { result.set(running.run().await.map_err(|error| error.to_string())) };
        spawner.spawn("bot", Box::pin(async { task.await.expect("a bot runs once") }));
        Life { bot, journal, store, spawner, events, ended, channel, clock: self.clock.clone() }
    }
}

impl Life {
    /// The journals of a bot that runs.
    pub(crate) fn journals(&self) -> Journals {
        self.bot.durability().expect("a durable bot that runs")
    }

    /// Moves virtual time on until `condition` holds.
    pub(crate) async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        for _ in 0..PATIENCE {
            self.clock.advance(Duration::ZERO).await;
            if condition() {
                return;
            }
            self.clock.advance(STEP).await;
        }
        panic!("{what}: not in {PATIENCE} steps of {STEP:?}\n{}", self.channel.transcript());
    }

    /// Delivers a message; `false` if the bot did not take it over, or died meanwhile.
    pub(crate) async fn deliver(&self, inbound: Inbound) -> bool {
        self.deliver_to(&self.channel, inbound).await
    }

    /// As [`deliver`](Self::deliver), by a channel of the bot's own.
    pub(crate) async fn deliver_to(&self, channel: &MockProvider, inbound: Inbound) -> bool {
        let mut delivery = std::pin::pin!(channel.deliver(inbound));
        for _ in 0..PATIENCE {
            tokio::select! {
                biased;
                admitted = &mut delivery => return admitted.is_ok(),
                () = self.clock.advance(STEP) => if self.journal.crashed() { return false },
            }
        }
        panic!("a delivery was never answered\n{}", self.channel.transcript());
    }

    /// Delivers a text of the chat `ana` and waits for `replies` more messages to her.
    pub(crate) async fn say(&self, event: &str, text: &str, replies: usize) -> Vec<String> {
        let before = self.channel.texts_to("ana").len();
        assert!(self.deliver(Inbound::text(event, "ana", text)).await, "`{text}` was not taken over");
        self.until(text, || self.channel.texts_to("ana").len() >= before + replies).await;
        self.channel.texts_to("ana").split_off(before)
    }

    /// Waits until sends from outside of messages are possible.
    pub(crate) async fn started(&self) {
        self.until("the start", || self.bot.durability().is_some()).await;
    }

    /// Waits until everything delivered is settled: no task but those of the idle bot is left. Or the bot died.
    pub(crate) async fn settled(&self) {
        let idle = ["bot", "session", "sweeper"];
        let is_idle = || self.spawner.running().iter().all(|task| idle.contains(task));
        self.until("an idle bot", || is_idle() || self.journal.crashed()).await;
    }

    /// Waits until what handlers left to the background is done, though some of them may stand still.
    pub(crate) async fn settled_but_for_turns(&self) {
        let idle = ["bot", "session", "sweeper", "turn"];
        self.until("a quiet bot", || self.spawner.running().iter().all(|task| idle.contains(task))).await;
    }

    /// Stops the bot in good order.
    pub(crate) async fn stop(self) {
        self.bot.stop();
        self.until("the end of the bot", || self.spawner.running().is_empty()).await;
        self.spawner.join_all().await;
    }

    /// Kills the process.
    pub(crate) async fn kill(self) {
        self.journal.crash();
        self.spawner.kill_all().await;
    }

    /// The names of the events so far.
    pub(crate) fn event_names(&mut self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.events.try_recv().ok()).map(|event| event.name()).collect()
    }
}
