//! The campaign for a channel that permits one connection: one replica connects, and the others stand by.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::channel::{CONTESTED, SETTLED, run_channel};
use super::lifecycle::{CHANNEL_STOP, Over};
use super::sink::Sink;
use crate::core::backoff::Backoff;
use crate::core::coordinator::Turn;
use crate::core::error::{
    ChannelError, CoordinationUnavailable, CoordinationUnavailableReason, ErrorClass, LeaseLostReason,
};
use crate::core::provider::ConnectionState;
use crate::events::{BotEvent, FollowerReason, describe};
use crate::leadership::Replicas;
use crate::world::World;

const CAMPAIGNING: &str = "campaigning for the channel";

const CONTESTED_CHANNEL: &str = "keeping the channel from another bot with its credentials";

/// How long a replica of the same id may take to be gone, before it is told of.
const SAME_ID: Duration = Duration::from_secs(60);

/// After the coordinator could not be asked.
const CLAIMS_AGAIN: Duration = Duration::from_secs(1);

/// After giving the leadership back.
const COOL_DOWN: Backoff =
    Backoff { base: Duration::from_secs(3), cap: Duration::from_secs(300), jitter: 0.2 };

/// How a term of this replica ended.
enum Term {
    Over(Over),
    Lost(LeaseLostReason),
    /// The channel was down for too long.
    Down,
    /// The channel closed the connection because somebody else connected.
    Conflict(ChannelError),
    /// The channel ended the session.
    LoggedOut(ChannelError),
}

/// Runs the channel while this replica leads, or all the time if every replica does.
pub(super) async fn run_led_channel(
    world: &World,
    sink: &Arc<Sink>,
    wake: &Notify,
    stop: &CancellationToken,
) -> Over {
    if !world.lead.is_exclusive() {
        return run_channel(world, sink, stop).await;
    }
    let mut campaign = Campaign::new(world);
    loop {
        let Some(turn) = stop.run_until_cancelled(campaign.win()).await else { return Over::Asked };
        let cool_down = match campaign.lead(turn, sink, wake, stop).await {
            Term::Over(over) => return over,
            Term::Lost(reason) => {
                campaign.stand_by(FollowerReason::LeaseLost(reason));
                Duration::ZERO
            }
            Term::Down => campaign.step_down(),
            Term::Conflict(error) => campaign.give_way(&error),
            Term::LoggedOut(error) => {
                campaign.leave(&error);
                Duration::ZERO
            }
        };
        let may_campaign = async {
            world.seams.clock.sleep(cool_down).await;
            world.lead.logged_in().await;
        };
        if stop.run_until_cancelled(may_campaign).await.is_none() {
            return Over::Asked;
        }
    }
}

struct Campaign<'a> {
    world: &'a World,
    /// What is led, for people; and its key.
    name: String,
    key: String,
    /// Whether it was told that this replica does not lead.
    stands_by: bool,
    /// How often the leadership was given back since the channel was open.
    step_downs: u32,
    /// How often the channel was lost to somebody else since it was kept.
    conflicts: u32,
}

impl<'a> Campaign<'a> {
    fn new(world: &'a World) -> Self {
        let name = format!("provider:{}", world.provider.id());
        let key = world.replicas.channel_key(&name);
        Self { world, name, key, stands_by: false, step_downs: 0, conflicts: 0 }
    }

    fn stand_by(&mut self, reason: FollowerReason) {
        self.stands_by = true;
        let (name, replica) = (self.name.clone(), self.world.replicas.replica.clone());
        self.world.events.emit(BotEvent::Follower { name, reason, replica });
    }

    /// The leadership, however long it takes.
    async fn win(&mut self) -> Turn {
        let mut failures = 0;
        loop {
            match self.stand().await {
                Ok(turn) => {
                    self.world.events.over(CAMPAIGNING);
                    if turn.check().is_ok() {
                        return turn;
                    }
                }
                Err(error) => {
                    self.world.events.trouble(CAMPAIGNING, &error);
                    failures += 1;
                    let delay = Backoff::default().delay(failures, None, &*self.world.seams.entropy);
                    self.world.seams.clock.sleep(delay).await;
                }
            }
        }
    }

    /// Waits behind the others. Before it uses a channel whose last leader may not have noticed that it is none, it waits
    /// until that one has.
    async fn stand(&mut self) -> Result<Turn, CoordinationUnavailable> {
        let coordinator = &self.world.replicas.coordinator;
        let turn = loop {
            let mut ticket = coordinator.enter(&self.key).await?;
            let granted = ticket.granted().now_or_never();
            if let Some(turn) = granted {
                break turn?;
            }
            self.world.events.over(CAMPAIGNING);
            if !self.stands_by {
                self.stand_by(FollowerReason::StandingBy);
            }
            match ticket.granted().await {
                // It is normal that this takes long, also where tickets for a chat do not wait for ever.
                Err(CoordinationUnavailable { reason: CoordinationUnavailableReason::Timeout, .. }) => {}
                turn => break turn?,
            }
        };
        if turn.previous_holder().is_some() && !turn.was_given_back() {
            tokio::select! {
                biased;
                _ = turn.lost() => {}
                () = self.world.seams.clock.sleep(coordinator.margin()) => {}
            }
        }
        Ok(turn)
    }

    async fn lead(&mut self, turn: Turn, sink: &Arc<Sink>, wake: &Notify, stop: &CancellationToken) -> Term {
        let (world, name) = (self.world, self.name.clone());
        self.stands_by = false;
        // Others may have left sends to its chats.
        world.backlog.doubt();
        world.lead.won(turn.clone());
        let replica = world.replicas.replica.clone();
        world.events.emit(BotEvent::Leader { name, fence: turn.fence(), replica });
        wake.notify_one();
        let quit = stop.child_token();
        let began = world.seams.clock.monotonic();
        let mut channel = Box::pin(run_channel(world, sink, &quit));
        tokio::select! {
            biased;
            // The channel is cut before anybody is told.
            lost = turn.lost() => {
                world.lead.resign();
                return Term::Lost(lost.reason);
            }
            over = &mut channel => {
                if world.seams.clock.monotonic().saturating_sub(began) > SETTLED {
                    self.conflicts = 0;
                }
                return closed(world, over);
            }
            () = self.channel_is_down() => {}
        }
        world.lead.resign();
        quit.cancel();
        tokio::select! {
            biased;
            _ = turn.lost() => {}
            _ = &mut channel => {}
            () = world.seams.clock.sleep(CHANNEL_STOP) => {}
        }
        // It must be gone before the leadership is given back.
        drop(channel);
        turn.release();
        Term::Down
    }

    /// Returns when the channel was not open for too long.
    async fn channel_is_down(&mut self) {
        let mut states = self.world.provider.connection();
        loop {
            let patience = self.world.replicas.provider_down;
            tokio::select! {
                biased;
                Ok(_) = states.wait_for(|state| *state == ConnectionState::Open) => self.step_downs = 0,
                () = self.world.seams.clock.sleep(patience) => return,
            }
            if states.wait_for(|state| *state != ConnectionState::Open).await.is_err() {
                // The channel says no more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// For how long this replica does not campaign, since somebody else is connected.
    fn give_way(&mut self, error: &ChannelError) -> Duration {
        self.conflicts += 1;
        self.stand_by(FollowerReason::Conflict);
        self.world.events.error(CONTESTED_CHANNEL, error);
        CONTESTED.delay(self.conflicts, error.wait(), &*self.world.seams.entropy)
    }

    /// This replica does not campaign until somebody gave it a new session.
    fn leave(&mut self, error: &ChannelError) {
        self.stand_by(FollowerReason::LoggedOut);
        let (name, replica) = (self.name.clone(), self.world.replicas.replica.clone());
        self.world.events.emit(BotEvent::LoggedOut { name, error: describe(error), replica });
    }

    /// For how long this replica does not campaign.
    fn step_down(&mut self) -> Duration {
        self.step_downs += 1;
        self.stand_by(FollowerReason::ChannelDown);
        if self.step_downs == 2 {
            let (name, replica) = (self.name.clone(), self.world.replicas.replica.clone());
            let step_downs = self.step_downs;
            self.world.events.emit(BotEvent::LeaderUnhealthy { name, step_downs, replica });
        }
        COOL_DOWN.delay(self.step_downs, None, &*self.world.seams.entropy)
    }
}

/// What it means that the channel is over. The channel is given back, unless the bot ends.
fn closed(world: &World, over: Over) -> Term {
    let term = match over {
        Over::Failed(error) if error.class == ErrorClass::Conflict => Term::Conflict(error),
        Over::Failed(error) if error.class == ErrorClass::LoggedOut => Term::LoggedOut(error),
        over => return Term::Over(over),
    };
    if matches!(term, Term::LoggedOut(_)) {
        world.lead.log_out();
    }
    if let Some(leadership) = world.lead.resign() {
        leadership.release();
    }
    term
}

/// Claims the name of this replica for as long as it is polled, and tells if another one has it. A claim that ends with its
/// session is made again.
pub(super) async fn claim_replica_id(world: &World) -> std::convert::Infallible {
    let Replicas { coordinator, replica, is_named, .. } = &world.replicas;
    if !is_named {
        return std::future::pending().await;
    }
    tracing::info!(replica, "one of several replicas");
    let clock = &world.seams.clock;
    let mut waited = Duration::ZERO;
    while waited < SAME_ID {
        let Ok(mut ticket) = coordinator.enter(&world.replicas.replica_key()).await else {
            clock.sleep(CLAIMS_AGAIN).await;
            continue;
        };
        let began = clock.monotonic();
        tokio::select! {
            biased;
            claimed = ticket.granted() => {
                if let Ok(claim) = claimed {
                    claim.lost().await;
                    waited = Duration::ZERO;
                } else {
                    waited += clock.monotonic().saturating_sub(began);
                }
            }
            () = clock.sleep(SAME_ID - waited) => waited = SAME_ID,
        }
    }
    world.events.emit(BotEvent::ReplicaIdTaken { replica: replica.clone() });
    std::future::pending().await
}
