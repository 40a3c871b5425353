use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Mutex, Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::leader::{claim_replica_id, run_led_channel};
use super::sink::Sink;
use super::{Bot, Coordination, Definition, Durability, Running, TurnsConfig};
use crate::core::coordinator::MemoryHub;
use crate::core::duration;
use crate::core::entropy::random_hex;
use crate::core::error::{ChannelError, StoreError};
use crate::core::id::InstanceId;
use crate::core::journal::{InboxState, KvDurability, OutboxState};
use crate::core::memory::MemoryKv;
use crate::core::scope::Scope;
use crate::core::spawn::Seams;
use crate::core::store::Store;
use crate::dispatch::Dispatcher;
use crate::egress::Egress;
use crate::events::{BotEvent, EventBus};
use crate::flow::Conversations;
use crate::handover::HandoverConfig;
use crate::health::Health;
use crate::heartbeat::keep_session;
use crate::intake::Intake;
use crate::leadership::{ChannelLead, Replicas};
use crate::metrics::MetricsSnapshot;
use crate::scheduler::Scheduler;
use crate::sweeper::{Busy, Sweeper};
use crate::turns::Turns;
use crate::world::{OpenJournal, World};
use crate::{Error, Result};

/// How long the channel may take to stop.
pub(super) const CHANNEL_STOP: Duration = Duration::from_secs(5);

/// How long a replica that stops goes on leading for what is under way. Then the next one connects, and sends the rest.
const LEADS_ON: Duration = Duration::from_millis(500);

const LOOKING: &str = "looking for what waits for a retry";

/// The wish to stop.
#[derive(Default)]
pub(super) struct Stop(CancellationToken);

impl Stop {
    pub(super) fn request(&self) {
        self.0.cancel();
    }
}

/// Why the channel is no longer received from.
pub(super) enum Over {
    /// Somebody asked to stop.
    Asked,
    /// The channel has nothing more to say: everything is answered before the bot ends.
    SourceEnded,
    Failed(ChannelError),
    Superseded,
    /// Nothing can be journaled any more.
    JournalBroken,
}

impl Bot {
    /// Runs until the channel's source ends, [`stop`](Self::stop) is called, or the process is asked to end (SIGINT,
    /// SIGTERM). Then what is in flight is finished, up to the stop timeout; with durability, the rest is left to the
    /// next start. A bot runs once.
    ///
    /// # Errors
    /// The journals do not open or break, the channel fails for good, or another process took over this one's instance id.
    pub async fn run(&self) -> Result {
        let Some(definition) = self.take_definition() else {
            return Err("the bot has already run; build another one".into());
        };
        let _ended = self.shared.ended.clone().drop_guard();
        let limits = definition.turns;
        let engine = Engine::open(self, definition).await?;
        let over = engine.receive(&self.shared.stop).await;
        engine.stop(limits, &over).await;
        match over {
            _ if engine.world.why_broken().is_some() => {
                let why = engine.world.why_broken().unwrap_or_default();
                Err(format!("the journals cannot be written any more; repair them and start again: {why}").into())
            }
            Over::Asked | Over::JournalBroken => Ok(()),
            Over::SourceEnded => match self.metrics() {
                MetricsSnapshot { inbound_dead: 0, outbox_dead: 0, .. } => Ok(()),
                MetricsSnapshot { inbound_dead, outbox_dead, .. } => Err(format!(
                    "given up: {inbound_dead} messages and {outbox_dead} sends; they are kept as dead letters, and the \
                     `durability:dead` events say why"
                )
                .into()),
            },
            Over::Failed(error) => Err(error.into()),
            Over::Superseded => Err(engine.world.why_superseded().into()),
        }
    }
}

struct Engine {
    world: Arc<World>,
    turns: Arc<Turns>,
    intake: Arc<Intake>,
    sink: Arc<Sink>,
    wake: Arc<Notify>,
    backlog: Arc<Semaphore>,
    /// Held while the sweeper sweeps.
    sweeping: Arc<Mutex<()>>,
    /// What the sweeper has begun.
    busy: Arc<Busy>,
}

impl Engine {
    async fn open(bot: &Bot, definition: Definition) -> Result<Self, Error> {
        let Definition {
            provider,
            store,
            scope,
            durability,
            coordination,
            turns: limits,
            texts,
            log_messages,
            max_media_bytes,
            seams,
            routes,
            sends,
            flows,
            tasks,
        } = definition;
        let journal = match durability {
            Some(config) => Some(open_journal(config, &scope, &seams, &bot.shared.events).await?),
            None => None,
        };
        let events = bot.shared.events.clone();
        let (coordination, handover) = given_or_alone(coordination, &*store, &seams, &events).await?;
        let coordinated = handover.is_some();
        let replicas = Replicas::new(&coordination, &scope, &*seams.entropy);
        let lead = match coordinated && coordination.one_connection(&*provider) {
            true => ChannelLead::exclusive(),
            false => ChannelLead::shared(),
        };
        let (told, metrics) = (bot.shared.events.clone(), Arc::clone(&bot.shared.metrics));
        let world = Arc::new(World {
            journal,
            texts,
            coordinated,
            log_messages,
            max_media_bytes,
            ..World::new(provider, Arc::clone(&store), seams, (told, metrics), replicas, lead)
        });
        let egress = Arc::new(Egress::new(Arc::clone(&world), sends));
        let conversations = Conversations::new(flows, store, limits, handover);
        let scheduler = Scheduler::new(Arc::clone(&world), Arc::clone(&egress), tasks);
        let dispatcher = Dispatcher::new(
            Arc::clone(&world),
            Arc::clone(&egress),
            routes,
            conversations,
            Arc::clone(&scheduler),
        );
        let turns = Turns::new(Arc::clone(&world), coordination, dispatcher, limits.max_concurrent);
        let backlog = Arc::new(Semaphore::new(limits.max_backlog));
        let intake = Arc::new(Intake::new(Arc::clone(&world), Arc::clone(&turns), Arc::clone(&backlog)));
        let sweeper =
            Sweeper::new(Arc::clone(&world), Arc::clone(&intake), Arc::clone(&turns), Arc::clone(&egress));
        let sink = Arc::new(Sink { world: Arc::clone(&world), intake: Arc::clone(&intake), egress });
        let _ = bot.shared.running.set(Running::of(&sweeper));
        let (sweeping, busy) = (Arc::clone(&sweeper.sweeping), Arc::clone(&sweeper.busy));
        let wake = Arc::clone(&sweeper.wake);
        start_heart(&world).await?;
        world.spawn_tracked("sweeper", sweeper.run());
        scheduler.start();
        world.events.emit(BotEvent::Started);
        tell_short_memory(&world);
        bot.shared.started.cancel();
        Ok(Self { world, turns, intake, sink, wake, backlog, sweeping, busy })
    }

    /// Runs the channel until it is over. It connects while what is unfinished is being queued again.
    async fn receive(&self, stop: &Stop) -> Over {
        let world = &self.world;
        let no_more = world.stopping.child_token();
        let mut channel = pin!(run_led_channel(world, &self.sink, &self.wake, &no_more));
        let mut replica = pin!(claim_replica_id(world));
        let over = tokio::select! {
            biased;
            () = stop.0.cancelled() => Over::Asked,
            () = world.superseded.cancelled() => Over::Superseded,
            () = world.journal_breaks() => Over::JournalBroken,
            () = asked_to_end() => Over::Asked,
            never = &mut replica => match never {},
            over = &mut channel => {
                // It may have been told to stop because of that.
                return if world.superseded.is_cancelled() { Over::Superseded } else { over };
            }
        };
        no_more.cancel();
        self.within(CHANNEL_STOP, false, async { drop(channel.await) }).await;
        over
    }

    async fn stop(&self, limits: TurnsConfig, over: &Over) {
        let world = &self.world;
        let idle =
            || self.backlog.acquire_many(u32::try_from(limits.max_backlog).unwrap_or(u32::MAX)).map(drop);
        // Without an inbox, what waits would be lost; and a source that ended wants its answers.
        let finish_all = world.journal.is_none() || matches!(over, Over::SourceEnded | Over::Failed(_));
        if finish_all && !matches!(over, Over::Superseded) {
            let finished = async {
                self.intake.recovered().await;
                idle().await;
                if matches!(over, Over::SourceEnded) {
                    self.nothing_waits(limits).await;
                }
            };
            self.within(limits.stop_timeout, finish_all, finished).await;
        }
        world.stopping.cancel();
        world.tracker.close();
        if world.lead.may_call() && world.lead.is_exclusive() {
            self.within(LEADS_ON.min(limits.stop_timeout), false, world.tracker.wait()).await;
        }
        if let Some(leadership) = world.lead.resign() {
            leadership.release();
        }
        self.within(limits.stop_timeout, false, world.tracker.wait()).await;
        world.abort.cancel();
        self.turns.clear();
        self.within(Duration::from_secs(5), false, world.tracker.wait()).await;
        world.ended.cancel();
        if world.journal.is_some() {
            self.within(Duration::from_secs(5), false, world.heart_stopped.cancelled()).await;
        }
        world.replicas.coordinator.close().await;
        world.events.emit(BotEvent::Stopped);
    }

    /// Waits until no message and no send waits for a retry; the sweeper takes them up as they become due.
    async fn nothing_waits(&self, limits: TurnsConfig) {
        let Some(open) = &self.world.journal else { return };
        let all = u32::try_from(limits.max_backlog).unwrap_or(u32::MAX);
        loop {
            {
                // While nobody sweeps and nothing is handled, no record changes its state.
                let _quiet = self.sweeping.lock().await;
                if let (true, Ok(_idle)) = (self.busy.is_idle(), self.backlog.try_acquire_many(all)) {
                    match waits_for_retry(open).await {
                        Ok(false) => return,
                        Ok(true) => self.world.events.over(LOOKING),
                        Err(error) => self.world.trouble(LOOKING, &error),
                    }
                }
            }
            self.world.seams.clock.sleep(open.config.poll).await;
        }
    }

    /// Waits for `work`: as long as it takes if `patient`, until somebody asks to end; else at most `limit`.
    async fn within(&self, limit: Duration, patient: bool, work: impl Future<Output = ()>) {
        let enough = async {
            match patient {
                true => tokio::select! {
                    () = asked_to_end() => {}
                    () = self.world.superseded.cancelled() => {}
                    () = self.world.journal_breaks() => {}
                },
                false => self.world.seams.clock.sleep(limit).await,
            }
        };
        tokio::select! {
            biased;
            () = work => {}
            () = enough => {}
        }
    }
}

/// What gives out the turns: if nothing was given, the bot is alone.
async fn given_or_alone(
    given: Option<Coordination>,
    store: &dyn Store,
    seams: &Seams,
    events: &EventBus,
) -> Result<(Coordination, Option<HandoverConfig>), Error> {
    if let Some(given) = given {
        if !store.compares_checkpoints() {
            events.emit(BotEvent::CheckpointsNotCompared);
        }
        given.coordinator.raise_floor(store.last_fence().await?);
        let handover = given.config.handover.clone();
        return Ok((given, Some(handover)));
    }
    let hub = MemoryHub::new(Arc::clone(&seams.clock)).with_floor(store.last_fence().await?);
    Ok((Coordination::new(hub.coordinator(&*seams.entropy)), None))
}

/// A run that is dropped gives up what it owns: nobody would finish it as long as the process lives.
impl Drop for Engine {
    fn drop(&mut self) {
        self.world.stopping.cancel();
        self.world.abort.cancel();
        self.world.ended.cancel();
        drop(self.world.lead.resign());
    }
}

async fn start_heart(world: &Arc<World>) -> Result<(), Error> {
    let Some(open) = &world.journal else { return Ok(()) };
    let heart = Box::pin(keep_session(Arc::clone(world)));
    if let Err(error) = world.seams.spawner.spawn_thread("session", heart) {
        open.journal.end_session().await?;
        return Err(format!("the thread that renews the session cannot be started: {error}").into());
    }
    Ok(())
}

async fn waits_for_retry(open: &OpenJournal) -> Result<bool, StoreError> {
    let messages = open.journal.inbox().list(InboxState::Waiting, None, 1).await?.records;
    let sends = open.journal.outbox().list(OutboxState::Waiting, None, 1).await?.records;
    Ok(!messages.is_empty() || !sends.is_empty())
}

async fn open_journal(
    mut config: Durability,
    scope: &Scope,
    seams: &Seams,
    events: &EventBus,
) -> Result<OpenJournal, Error> {
    let backend = config.backend.take().unwrap_or_else(|| KvDurability::new(Arc::new(MemoryKv::new())));
    let instance = match &config.instance_id {
        Some(instance) => instance.clone(),
        None => default_instance(scope, backend.caps().shared, seams),
    };
    let health = Health::new(events.clone(), Arc::clone(&seams.clock));
    let journal =
        backend.wrapped(|kv| health.watch(kv)).open(scope, instance, config.leases(), seams.clone()).await?;
    Ok(OpenJournal { journal, config, health })
}

fn default_instance(scope: &Scope, shared: bool, seams: &Seams) -> InstanceId {
    let host =
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".to_owned());
    let stable = format!("{}/{}/{}", host.trim(), scope.bot, scope.connection);
    match shared {
        true => format!("{stable}/{}", random_hex(&*seams.entropy)).into(),
        false => stable.into(),
    }
}

/// Returns when the process is asked to end.
async fn asked_to_end() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

/// Tells which records are forgotten while the channel may still deliver their events again.
fn tell_short_memory(world: &World) {
    let (Some(open), Some(redelivery)) = (&world.journal, world.provider.capabilities().redelivery) else {
        return;
    };
    let kept = [("retention", open.config.retention), ("dead_retention", open.config.dead_retention)];
    for (field, kept) in kept.into_iter().filter(|(_, kept)| !kept.is_zero() && *kept < redelivery) {
        let [kept, needed] = [kept, redelivery].map(duration::format);
        let problem = format!(
            "is {kept}, but the channel may deliver a message again for {needed}, and then it is answered again; set \
             at least \"{needed}\""
        );
        world.events.failure(format!("durability.{field}"), problem);
    }
}
