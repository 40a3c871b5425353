//! Plays a scenario with things going wrong, and brings it to its end however often the bot dies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use botmesh::Bot;
use botmesh::BotEvent;
use botmesh_core::entropy::{Entropy, SeededEntropy};
use botmesh_core::journal::{InboxState, OutboxState, Record, Stored};
use botmesh_core::kv::DurableKv;
use botmesh_core::memory::{MemoryKv, MemoryStore};
use botmesh_core::scope::Scope;
use botmesh_core::store::Store;
use botmesh_testing::{Fault, LossyKv, TestBot, WritePoint};

use super::scenario::{self, Act, LEASE, Policy, RETENTION, Scenario};
use crate::case::ensure;
use crate::{Context, Failure};

/// How often the bot may be started again in one run, and how long it may take to bring everything to its end.
const MAX_LIVES: usize = 20;
const DRAIN_STEP: Duration = Duration::from_secs(15);
const DRAIN_STEPS: usize = 40;

/// Where a bot's data is.
#[derive(Clone)]
pub(super) struct Ground {
    kv: Arc<dyn DurableKv>,
    store: Arc<dyn Store>,
    scope: Scope,
}

impl Ground {
    /// In the case's own part of the backend. State is in memory where the backend holds none.
    pub(super) fn new(context: &Context, name: &str) -> Result<Self, Failure> {
        let store = context.unscoped_store().unwrap_or_else(|| Arc::new(MemoryStore::new()));
        Ok(Self { kv: context.unscoped_kv()?, store, scope: context.bot(name) })
    }

    /// To see what a scenario does.
    pub(super) fn in_memory() -> Self {
        Self { kv: Arc::new(MemoryKv::new()), store: Arc::new(MemoryStore::new()), scope: Scope::default() }
    }
}

/// Something that goes wrong in one life of the bot, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) life: u64,
    pub(super) place: Site,
    pub(super) fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Site {
    /// The write of this number at its point.
    Point(WritePoint, u64),
    /// The commit of this number.
    Commit(u64),
}

/// A run.
pub(super) struct Play {
    pub(super) bot: TestBot,
    pub(super) scenario: Scenario,
    pub(super) policy: Policy,
    /// The backend as each life saw it.
    lives: Arc<Mutex<Vec<LossyKv>>>,
    bots: Vec<Bot>,
    healed: Arc<AtomicBool>,
    troubles: Vec<Trouble>,
    instance: &'static str,
    dice: SeededEntropy,
}

impl Play {
    pub(super) fn new(
        ground: &Ground,
        scenario: Scenario,
        policy: Policy,
        troubles: Vec<Trouble>,
        dice: SeededEntropy,
    ) -> Self {
        let lives = Arc::new(Mutex::new(Vec::new()));
        let known = troubles.clone();
        let (seen, healed) = (Arc::clone(&lives), Arc::new(AtomicBool::new(false)));
        let (mended, scope) = (Arc::clone(&healed), ground.scope.clone());
        let bot = TestBot::options()
            .backend(Arc::clone(&ground.kv))
            .shared_store(Arc::clone(&ground.store))
            .durability(policy.durability().with_instance_id("first"))
            .channel(policy.channel())
            .each_life(move |life, kv| {
                for trouble in troubles.iter().filter(|trouble| trouble.life == life) {
                    match trouble.place {
                        Site::Point(point, nth) => kv.fault_at(point, nth, trouble.fault),
                        Site::Commit(nth) => kv.fail_commit(nth, trouble.fault),
                    }
                }
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(kv.clone());
            })
            .start(move |bot| scenario::bot(bot.scope(scope.clone()), &mended));
        let bots = vec![bot.bot()];
        Self { bot, scenario, policy, lives, bots, healed, troubles: known, instance: "first", dice }
    }

    /// Plays the scenario until nothing is left to do.
    pub(super) async fn run(&mut self) -> Result<(), Failure> {
        self.attend().await?;
        for act in self.scenario.acts {
            self.act(*act).await?;
            self.attend().await?;
        }
        self.drain().await
    }

    async fn act(&mut self, act: Act) -> Result<(), Failure> {
        match act {
            Act::Says(user, text) => self.bot.user(user).says(text).await,
            Act::Waits(seconds) => self.wait(Duration::from_secs(seconds)).await?,
            Act::Enqueues(chat, text) => {
                self.until_done(move |bot| async move { bot.enqueue(text, chat, text).await.is_ok() })
                    .await?;
            }
            Act::Replays => {
                self.healed.store(true, Ordering::Relaxed);
                self.until_done(replay_dead).await?;
            }
            Act::Moves => {
                self.bot.bot().stop();
                for _ in 0..10 {
                    if self.bot.is_running() {
                        self.let_go().await;
                        self.bot.advance(Duration::from_secs(5)).await;
                    }
                }
                if self.bot.is_running() {
                    self.bot.crash();
                }
                self.instance = "second";
                self.start_again().await;
            }
        }
        Ok(())
    }

    /// Lets time pass, in pieces, so that a bot that dies is soon started again.
    async fn wait(&mut self, time: Duration) -> Result<(), Failure> {
        const PIECE: Duration = Duration::from_secs(5);
        let until = self.bot.elapsed() + time;
        while self.bot.elapsed() < until {
            self.bot.advance(PIECE.min(until - self.bot.elapsed())).await;
            self.attend().await?;
        }
        Ok(())
    }

    /// The application does something until it is told that it is done.
    async fn until_done<F>(&mut self, work: impl Fn(Bot) -> F + Copy + Send + 'static) -> Result<(), Failure>
    where
        F: Future<Output = bool> + Send + 'static,
    {
        for _ in 0..MAX_LIVES {
            let hung = self.bot.backend();
            let done = self.bot.does(move |bot| async move {
                tokio::select! {
                    done = work(bot) => done,
                    // The caller gives up; what became of it is found out by calling again.
                    () = hung.wait_for_hanging(1) => false,
                }
            });
            if done.await == Some(true) {
                return Ok(());
            }
            self.wait(Duration::from_secs(1)).await?;
        }
        Err(self.failure("the application is never told that something is done"))
    }

    /// Brings the bot back from whatever happened to it.
    pub(super) async fn attend(&mut self) -> Result<(), Failure> {
        self.bot.advance(Duration::ZERO).await;
        self.let_go().await;
        for _ in 0..MAX_LIVES {
            if self.bot.is_running() {
                return Ok(());
            }
            self.start_again().await;
        }
        Err(self.failure("the bot dies again and again"))
    }

    async fn start_again(&mut self) {
        self.bot.restart_as(self.instance).await;
        self.bots.push(self.bot.bot());
    }

    /// Ends what stands still: it goes on soon, or after the leases ran out, or the process is killed.
    async fn let_go(&mut self) {
        while self.bot.is_running() && self.bot.backend().hanging() > 0 {
            match self.dice.next_u64() % 3 {
                0 => self.bot.advance(Duration::from_secs(2)).await,
                1 => self.bot.advance(LEASE * 2).await,
                _ => return self.bot.crash(),
            }
            self.bot.backend().release();
            self.bot.advance(Duration::ZERO).await;
        }
    }

    async fn drain(&mut self) -> Result<(), Failure> {
        for _ in 0..DRAIN_STEPS {
            if self.is_done().await? {
                return Ok(());
            }
            self.wait(DRAIN_STEP).await?;
        }
        let left = self.unfinished().await?;
        Err(self.failure(&format!("something is never finished: {}", left.join(", "))))
    }

    async fn is_done(&self) -> Result<bool, Failure> {
        let done = self.inbox(InboxState::Done).await?.len() + self.inbox(InboxState::Dead).await?.len();
        Ok(done == self.scenario.messages && self.unfinished().await?.is_empty())
    }

    async fn unfinished(&self) -> Result<Vec<String>, Failure> {
        let mut left = Vec::new();
        for state in [InboxState::Queued, InboxState::Working, InboxState::Waiting, InboxState::Scheduled] {
            left.extend(self.inbox(state).await?.iter().map(|record| format!("{} is {state:?}", record.id)));
        }
        for state in [OutboxState::InFlight, OutboxState::Waiting, OutboxState::Unknown] {
            let records = self.outbox(state).await?;
            let open = records.iter().filter(|record| state != OutboxState::Unknown || record.due.is_some());
            left.extend(open.map(|record| format!("{} is {state:?}", record.key)));
        }
        Ok(left)
    }

    /// The events in a state.
    pub(super) async fn inbox(
        &self,
        state: InboxState,
    ) -> Result<Vec<botmesh_core::journal::InboxRecord>, Failure> {
        let journals = self.journals()?;
        Ok(records(journals.inbox().list(state, None, 1000).await?.records))
    }

    /// The sends in a state.
    pub(super) async fn outbox(
        &self,
        state: OutboxState,
    ) -> Result<Vec<botmesh_core::journal::OutboxRecord>, Failure> {
        let journals = self.journals()?;
        Ok(records(journals.outbox().list(state, None, 1000).await?.records))
    }

    fn journals(&self) -> Result<botmesh::Journals, Failure> {
        self.bot.bot().durability().ok_or_else(|| self.failure("the bot has no journals"))
    }

    /// Lets so much time pass that what is finished is removed.
    pub(super) async fn outlive_retention(&mut self) -> Result<(), Failure> {
        self.bot.advance(RETENTION + Duration::from_secs(60)).await;
        self.attend().await?;
        self.wait(Duration::from_secs(30)).await
    }

    /// How often each write was called, in each life.
    pub(super) fn points(&self) -> Vec<BTreeMap<WritePoint, u64>> {
        let lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        lives.iter().map(LossyKv::points).collect()
    }

    /// Faults that have not happened, and writes that no point describes.
    pub(super) fn leftovers(&self) -> (usize, u64) {
        let lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        (lives.iter().map(LossyKv::pending_faults).sum(), lives.iter().map(LossyKv::strange_writes).sum())
    }

    /// How many sends were counted as ambiguous, and how many were told as such.
    pub(super) fn ambiguous(&self) -> (u64, Vec<String>) {
        let counted = self.bots.iter().map(|bot| bot.metrics().outbox_ambiguous).sum();
        let told = self.bot.events().into_iter().filter_map(|event| match event {
            BotEvent::Ambiguous { key, .. } => Some(key.to_string()),
            _ => None,
        });
        (counted, told.collect())
    }

    /// Whether the run is about what is finished being removed.
    pub(super) fn concerns_removal(&self) -> bool {
        let is_removal = |site| matches!(site, Site::Point(point, _) if removes(point));
        self.troubles.is_empty() || self.troubles.iter().any(|trouble| is_removal(trouble.place))
    }

    /// Whether the bot may die as it writes what becomes of an ambiguous send.
    pub(super) fn may_die_at_a_decision(&self) -> bool {
        let at_decision = |site| match site {
            Site::Point(point, _) => matches!(point, WritePoint::OutboxUnknown | WritePoint::OutboxWait),
            Site::Commit(_) => true,
        };
        let kills = |fault: Fault| fault.is_crash() || matches!(fault, Fault::Hang | Fault::HangAfter);
        self.troubles.iter().any(|trouble| kills(trouble.fault) && at_decision(trouble.place))
    }

    pub(super) fn failure(&self, what: &str) -> Failure {
        Failure::new(format!("{what}\n{}", self.bot.transcript()))
    }
}

/// Whether a write removes what outlived its retention.
pub(super) fn removes(point: WritePoint) -> bool {
    matches!(point, WritePoint::InboxDelete | WritePoint::OutboxDelete)
}

fn records<R: Record>(stored: Vec<Stored<R>>) -> Vec<R> {
    stored.into_iter().map(|stored| stored.record).collect()
}

/// An operator has every dead message processed again.
async fn replay_dead(bot: Bot) -> bool {
    let Some(journals) = bot.durability() else { return false };
    let Ok(dead) = journals.inbox().list(InboxState::Dead, None, 100).await else { return false };
    for stored in dead.records {
        if journals.replay_inbound(stored.record.id).await.is_err() {
            return false;
        }
    }
    true
}

/// Fails the run if a write is not described by a point.
pub(super) fn ensure_known_writes(play: &Play) -> Result<(), Failure> {
    let (_, strange) = play.leftovers();
    ensure!(strange == 0, "{strange} writes have no place in the list of write points");
    Ok(())
}
