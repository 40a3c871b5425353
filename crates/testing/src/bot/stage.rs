//! What outlives a process: users, channel, journals, state and time.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use botmesh::{Bot, BotBuilder, BotEvent, Coordination, CoordinationConfig, Durability};
use botmesh_core::coordinator::MemoryHub;
use botmesh_core::entropy::{Entropy, SeededEntropy};
use botmesh_core::error::ConfigError;
use botmesh_core::id::{ChatId, EventId};
use botmesh_core::inbound::Inbound;
use botmesh_core::kv::DurableKv;
use botmesh_core::spawn::Seams;
use botmesh_core::store::Store;
use botmesh_core::time::Clock;

use super::diary::Diary;
use super::life::{Events, Life, hanging};
use super::post::{Bearer, Post};
use super::tasks::Tasks;
use crate::{Crash, CrashableProvider, CrashableStore, LossyKv, MockProvider, Sent, VirtualClock};

/// How long virtual time may pass while a reply is expected.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How long the bot may wait for something outside of it, such as a server that a handler calls, in real time.
const REAL_PATIENCE: Duration = Duration::from_secs(30);

/// How long starting takes.
const START: Duration = Duration::from_millis(10);

/// How often the bot may go on without coming to rest.
const MAX_ROUNDS: usize = 100_000;

/// For how many polls a replica runs at most before another one may, where dice decide.
const LONGEST_PIECE: u64 = 6;

/// How many steps an advance takes, as long as none is longer than `LONGEST_STEP`.
const STEPS: u32 = 2_000;
const LONGEST_STEP: Duration = Duration::from_secs(15);

pub(super) type Build = Arc<dyn Fn(BotBuilder) -> BotBuilder + Send + Sync>;
pub(super) type EachLife = Box<dyn Fn(u64, &LossyKv) + Send + Sync>;

pub(super) struct Stage {
    pub(super) mock: MockProvider,
    pub(super) clock: VirtualClock,
    pub(super) kv: Arc<dyn DurableKv>,
    pub(super) store: Arc<dyn Store>,
    /// `None` for bots without journals.
    pub(super) durability: Option<Durability>,
    /// `None` for a bot that is alone.
    pub(super) shared: Option<Shared>,
    pub(super) seed: u64,
    /// What decides who runs next; `None` if one runs after the other.
    pub(super) dice: Option<SeededEntropy>,
    pub(super) each_life: EachLife,
    pub(super) post: Arc<Post>,
    pub(super) state: Mutex<State>,
}

/// How the replicas share the chats.
pub(super) struct Shared {
    pub(super) hub: MemoryHub,
    pub(super) config: CoordinationConfig,
    /// Whether only one of them is connected to the channel.
    pub(super) one_connection: bool,
}

#[derive(Default)]
pub(super) struct State {
    replicas: Vec<Slot>,
    lives: u64,
    events: u64,
    /// How many messages of each chat were expected.
    read: HashMap<ChatId, usize>,
    diary: Diary,
    /// What the replicas told, with their numbers.
    pub(super) told: Vec<(usize, BotEvent)>,
    /// Which of it is a hand-over that was expected.
    pub(super) expected: BTreeSet<usize>,
}

/// A replica, from life to life.
struct Slot {
    life: Arc<Life>,
    channel: MockProvider,
    build: Build,
    instance: String,
    /// A crash that was asked for and has not happened.
    armed: Option<String>,
}

impl Stage {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn mock(&self) -> &MockProvider {
        &self.mock
    }

    pub(super) fn replicas(&self) -> usize {
        self.state().replicas.len()
    }

    /// The current life of a replica; they are counted from 1.
    pub(super) fn life(&self, replica: usize) -> Arc<Life> {
        Arc::clone(&self.state().replicas[replica - 1].life)
    }

    pub(super) fn channel(&self, replica: usize) -> MockProvider {
        self.state().replicas[replica - 1].channel.clone()
    }

    fn lives(&self) -> Vec<Arc<Life>> {
        self.state().replicas.iter().map(|replica| Arc::clone(&replica.life)).collect()
    }

    /// What a replica is called.
    pub(super) fn name(&self, replica: usize) -> String {
        match self.replicas() {
            1 => "the bot".to_owned(),
            _ => format!("replica-{replica}"),
        }
    }

    pub(super) fn arm(&self, replica: usize, crash: String) {
        self.state().replicas[replica - 1].armed = Some(crash);
    }

    pub(super) fn take_armed(&self, replica: usize) -> Option<String> {
        self.state().replicas[replica - 1].armed.take()
    }

    /// Adds a replica with its first life.
    pub(super) fn add(&self, replica: usize, instance: String, build: Build) -> Result<(), ConfigError> {
        self.clock.jump(START);
        let channel = self.mock.replica(replica);
        let life = self.bear(&channel, &instance, &build)?;
        self.state().replicas.push(Slot { life, channel, build, instance, armed: None });
        Ok(())
    }

    /// Starts the next life of a replica whose last one is over; from now on as another instance or with another build,
    /// where one is given.
    pub(super) async fn start_again(
        &self,
        replica: usize,
        instance: Option<String>,
        build: Option<Build>,
    ) -> Result<(), String> {
        self.life(replica).kill();
        self.advance(START).await?;
        self.note(format!("  ! {} starts again", self.name(replica)));
        let (channel, instance, build) = {
            let slot = &mut self.state().replicas[replica - 1];
            slot.instance = instance.unwrap_or_else(|| slot.instance.clone());
            slot.build = build.unwrap_or_else(|| Arc::clone(&slot.build));
            (slot.channel.clone(), slot.instance.clone(), Arc::clone(&slot.build))
        };
        let life = self
            .bear(&channel, &instance, &build)
            .map_err(|error| format!("{} cannot be built: {error}", self.name(replica)))?;
        self.state().replicas[replica - 1].life = life;
        self.settle().await
    }

    /// A new life.
    fn bear(&self, channel: &MockProvider, instance: &str, build: &Build) -> Result<Arc<Life>, ConfigError> {
        let number = {
            let mut state = self.state();
            state.lives += 1;
            state.lives
        };
        let process = Crash::new();
        let journal = LossyKv::of_process(Arc::clone(&self.kv), process.clone())
            .with_clock_in_place(Arc::new(self.clock.clone()));
        (self.each_life)(number, &journal);
        let store = CrashableStore::new(Arc::clone(&self.store), process.clone());
        let provider = CrashableProvider::new(Arc::new(channel.clone()), process.clone());
        let (tasks, clock) = (Arc::new(Tasks::default()), self.clock.of(number));
        let seams = Seams {
            clock: Arc::new(clock.clone()),
            entropy: Arc::new(SeededEntropy::new(self.seed.rotate_left(32).wrapping_add(number))),
            spawner: Arc::<Tasks>::clone(&tasks),
        };
        let shared = self.shared.as_ref();
        let coordinator = shared.map(|shared| shared.hub.coordinator(&*seams.entropy));
        let mut builder = build(Bot::builder()).provider(provider.clone()).store(store.clone()).seams(seams);
        if let Some(durability) = &self.durability {
            let kv: Arc<dyn DurableKv> = Arc::new(journal.clone());
            builder = builder.durability(durability.clone().with_backend(kv).with_instance_id(instance));
        }
        if let (Some(shared), Some(coordinator)) = (shared, &coordinator) {
            let coordination = Coordination::new(coordinator.clone()).with_config(shared.config.clone());
            builder = builder.coordination(coordination);
        }
        let bot = builder.build()?;
        let life = Life {
            number,
            events: Events::new(bot.events()),
            bot,
            process,
            journal,
            store,
            provider,
            channel: channel.clone(),
            clock,
            coordinator,
            tasks,
            ended: Arc::new(OnceLock::new()),
            hung_before: hanging(channel),
            stopping: false.into(),
            frozen: false.into(),
            freezes_in: u64::MAX.into(),
        };
        life.begin(&self.post);
        Ok(Arc::new(life))
    }

    pub(super) fn next_event(&self) -> EventId {
        let mut state = self.state();
        state.events += 1;
        EventId::from(format!("event-{}", state.events))
    }

    /// A user says something; the bot hears of it in the next step.
    pub(super) fn deliver(&self, inbound: Inbound, wanted: Option<usize>) {
        let through = wanted.map_or(String::new(), |replica| format!(" (through {})", self.name(replica)));
        self.note(format!("{}{through}", said(&inbound)));
        self.post.push(inbound, wanted);
    }

    /// Gives each message to a replica that takes messages over, if there is one.
    fn distribute(&self, lives: &[Arc<Life>]) {
        let one_connection = self.shared.as_ref().is_some_and(|shared| shared.one_connection);
        let takes_over = |life: &Life| life.is_open() && (!one_connection || life.is_connected());
        let open = (1..).zip(lives).filter(|(_, life)| takes_over(life));
        let bearers: Vec<_> = open.map(|(replica, life)| Bearer { replica, life: life.number }).collect();
        for detour in self.post.distribute(&bearers) {
            self.note(format!("  ! {} gets \"{}\"", self.name(detour.to), said(&detour.inbound)));
        }
    }

    /// Runs the tasks of the replicas: as far as they come, or in pieces. Whether any could go on.
    fn run(&self, lives: &[Arc<Life>], context: &mut Context<'_>) -> bool {
        self.distribute(lives);
        let roll = |sides: u64| self.dice.as_ref().map(|dice| dice.next_u64() % sides);
        let first = roll(lives.len() as u64).unwrap_or(0) as usize;
        let mut went_on = false;
        for place in (0..lives.len()).cycle().skip(first).take(lives.len()) {
            let (replica, life) = (place + 1, &lives[place]);
            let (polls, stood_still) =
                (roll(LONGEST_PIECE).map_or(u64::MAX, |roll| roll + 1), life.is_frozen());
            went_on |= life.run(context, polls);
            if life.is_frozen() && !stood_still {
                self.note(format!("  ! {} stands still", self.name(replica)));
            }
        }
        went_on
    }

    /// Lets the bot do what it can do without time passing.
    pub(super) async fn settle(&self) -> Result<(), String> {
        let lives = self.lives();
        let mut calm = 0;
        for _ in 0..MAX_ROUNDS {
            let went_on = poll_fn(|context| Poll::Ready(self.run(&lives, context))).await;
            calm = if went_on { 0 } else { calm + 1 };
            if calm < 2 {
                // What only gave way goes on when this task gives way too.
                tokio::task::yield_now().await;
                continue;
            }
            if lives.iter().all(|life| life.is_settled()) {
                return self.look(&lives);
            }
            let woken = poll_fn(|context| match self.run(&lives, context) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            });
            if in_real_time(woken).await.is_none() {
                let work = self.describe_work(&lives);
                return Err(
                    self.failure(&format!("the bot does not come to rest in {REAL_PATIENCE:?} ({work})"))
                );
            }
            calm = 0;
        }
        Err(self.failure(&format!("the bot never comes to rest ({})", self.describe_work(&lives))))
    }

    fn describe_work(&self, lives: &[Arc<Life>]) -> String {
        let busy = (1..).zip(lives).filter(|(_, life)| !life.is_settled());
        let work: Vec<_> =
            busy.map(|(replica, life)| format!("{}: {}", self.name(replica), life.describe_work())).collect();
        work.join("; ")
    }

    /// Takes down what happened.
    fn look(&self, lives: &[Arc<Life>]) -> Result<(), String> {
        let now = self.clock.monotonic();
        let alone = lives.len() == 1;
        let who = |replica| if alone { String::new() } else { format!("replica-{replica}: ") };
        let sender = |replica| if alone { "bot".to_owned() } else { format!("replica-{replica}") };
        let mut state = self.state();
        let sent = self.mock.view(|sent| sent[state.diary.sends..].to_vec());
        for sent in sent {
            state.diary.sends += 1;
            let chat = &sent.chat;
            let buttons: Vec<_> =
                sent.content.buttons.iter().map(|button| format!("[{}]", button.title)).collect();
            let text = [sent.text(), &buttons.join(" ")].join(" ");
            let note = if sent.is_delivery() { String::new() } else { format!(" ({:?})", sent.outcome) };
            let (sender, text) = (sender(sent.replica), text.trim_end());
            state.diary.write(now, format!("    {sender} to {chat}: {text}{note}"));
        }
        for (replica, life) in (1..).zip(lives) {
            for event in life.new_events() {
                if !matches!(event, BotEvent::Started | BotEvent::Stopped) {
                    state.diary.write(now, format!("  ! {}{event}", who(replica)));
                }
                state.told.push((replica, event));
            }
            let armed = &mut state.replicas[replica - 1].armed;
            if let Some(crash) = armed.take_if(|_| life.process.happened()) {
                let name = if alone { "the bot" } else { &*sender(replica) };
                state.diary.write(now, format!("  ! {name} crashes {crash}"));
            }
        }
        drop(state);
        match self.post.take_refused().first() {
            Some(problem) => Err(self.failure(&format!("the bot refused an event: {problem}"))),
            None => Ok(()),
        }
    }

    /// Everything the bots told so far, and which replica did.
    pub(super) fn told(&self) -> Vec<(usize, BotEvent)> {
        self.state().told.clone()
    }

    /// Moves time on to when the first sleeper wakes, if that is not after `until` on the monotonic clock.
    async fn pass_time(&self, until: Duration) -> Result<bool, String> {
        let left = until.saturating_sub(self.clock.monotonic());
        match self.clock.until_next_wake().filter(|wake| *wake <= left) {
            None => Ok(false),
            Some(wake) => {
                self.clock.jump(wake);
                self.settle().await?;
                Ok(true)
            }
        }
    }

    /// Lets time pass until `condition` gives something, at most for `patience`.
    pub(super) async fn wait_for<T>(
        &self,
        patience: Duration,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, String> {
        self.settle().await?;
        let until = self.clock.monotonic() + patience;
        loop {
            if let Some(value) = condition() {
                return Ok(Some(value));
            }
            if !self.pass_time(until).await? {
                return Ok(None);
            }
        }
    }

    /// Lets so much time pass. In small steps at first; in coarser ones the longer it is.
    pub(super) async fn advance(&self, duration: Duration) -> Result<(), String> {
        self.settle().await?;
        let until = self.clock.monotonic() + duration;
        let coarse = (duration / STEPS).min(LONGEST_STEP);
        loop {
            let left = until.saturating_sub(self.clock.monotonic());
            if left.is_zero() {
                return Ok(());
            }
            let wake = self.clock.until_next_wake().unwrap_or(left);
            self.clock.jump(wake.max(coarse).min(left));
            self.settle().await?;
        }
    }

    /// The next message to a chat that was not expected yet. Time passes until there is one.
    pub(super) async fn next_reply(&self, chat: &ChatId) -> Result<Option<Sent>, String> {
        let reply = self.wait_for(PATIENCE, || match self.take_reply(chat) {
            None => self.nobody_runs().then_some(None),
            reply => Some(reply),
        });
        match reply.await?.flatten() {
            None if self.nobody_runs() => {
                Err(self.failure(&format!("{chat}: expected a reply, but {}", self.ends())))
            }
            reply => Ok(reply),
        }
    }

    /// Whether nothing more is to be expected of any replica.
    pub(super) fn nobody_runs(&self) -> bool {
        self.lives().iter().all(|life| life.is_over() || life.is_frozen())
    }

    /// Why not.
    pub(super) fn ends(&self) -> String {
        let lives = self.lives();
        let ends = (1..)
            .zip(&lives)
            .filter_map(|(replica, life)| life.end().map(|end| format!("{} {end}", self.name(replica))));
        ends.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn take_reply(&self, chat: &ChatId) -> Option<Sent> {
        let mut state = self.state();
        let read = state.read.entry(chat.clone()).or_default();
        let seen = |sent: &&Sent| sent.chat == *chat && sent.is_delivery();
        let reply = self.mock.view(|sent| sent.iter().filter(seen).nth(*read).cloned())?;
        *read += 1;
        Some(reply)
    }

    pub(super) fn note(&self, entry: String) {
        let now = self.clock.monotonic();
        self.state().diary.write(now, entry);
    }

    pub(super) fn transcript(&self) -> String {
        self.state().diary.read()
    }

    /// What a failed step panics with.
    pub(super) fn failure(&self, what: &str) -> String {
        format!("{what}\n{}", self.transcript())
    }
}

fn said(inbound: &Inbound) -> String {
    let who = inbound.sender.as_ref().map_or("somebody", |sender| sender.id.as_str());
    let place = if inbound.group { format!(" in {}", inbound.chat) } else { String::new() };
    match inbound.readable_text() {
        "" => format!("{who}{place}: {:?}", inbound.body),
        text => format!("{who}{place}: {text}"),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "what the bot waits for outside of it, and a bot that hangs, know only real time"
)]
async fn in_real_time<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(REAL_PATIENCE, future).await.ok()
}
