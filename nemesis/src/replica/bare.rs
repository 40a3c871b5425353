//! Turns alone: each lane visits one random chat after the other.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use botmesh_core::coordinator::{Coordinator, Turn};
use botmesh_core::entropy::SeededEntropy;
use botmesh_core::error::LeaseLost;
use botmesh_redis_store::RedisCoordinator;
use futures_util::future::try_join_all;

use super::connection::Connection;
use super::{Dice, Failure, Replica};
use crate::history::{Event, now};
use crate::link::{Hello, Verdict, Write};

/// Visits chats until the end is asked for, and gives back what it has.
pub(super) async fn run(replica: &Arc<Replica>) -> Result<(), Failure> {
    let Some(visitor) = Visitor::start(replica).await else { return Ok(()) };
    let seed = replica.args.seed();
    let lanes = (0..replica.args.lanes).map(|number| {
        let visitor = &visitor;
        async move {
            let dice = Dice(SeededEntropy::new(seed.wrapping_mul(31).wrapping_add(number)));
            while !replica.stop.is_cancelled() {
                let chat = format!("chat{}", dice.below(replica.args.chats));
                let calls = if dice.percent(replica.args.bursts) { 2 + dice.below(3) } else { 1 };
                visitor.visit(&chat, calls, &dice).await?;
                replica.sleep(dice.up_to(replica.args.rest)).await;
            }
            Ok::<_, Failure>(())
        }
    });
    try_join_all(lanes).await?;
    visitor.coordinator.close().await;
    Ok(())
}

/// Visits each queue once: whatever dead replicas left there is found.
pub(super) async fn sweep(replica: &Arc<Replica>) -> Result<(), Failure> {
    let Some(visitor) = Visitor::start(replica).await else { return Ok(()) };
    let dice = Dice(SeededEntropy::new(replica.args.seed()));
    try_join_all(replica.args.visit.iter().map(|key| visitor.visit(key, 1, &dice))).await?;
    visitor.coordinator.close().await;
    Ok(())
}

struct Visitor<'a> {
    replica: &'a Replica,
    coordinator: RedisCoordinator,
    calls: AtomicU64,
    /// Connections to the resource that nobody uses.
    resources: Mutex<Vec<Connection>>,
}

impl<'a> Visitor<'a> {
    async fn start(replica: &'a Replica) -> Option<Self> {
        let coordinator = replica.connect().await?;
        let session = coordinator.session();
        replica.tell(Event::Up { sid: session.to_string() });
        replica.saw(&session);
        Some(Self { replica, coordinator, calls: AtomicU64::new(0), resources: Mutex::default() })
    }

    /// So many calls for a chat, made one right after the other.
    async fn visit(&self, chat: &str, calls: u64, dice: &Dice) -> Result<(), Failure> {
        let first = self.calls.fetch_add(calls, Ordering::Relaxed);
        // Polled in this order for the first time, which is when they are made.
        let calls = (first..first + calls).map(|call| async move {
            let visit = Visit { chat, call, after: (call > first).then(|| call - 1), dice };
            self.call(&visit).await
        });
        try_join_all(calls).await.map(drop)
    }

    async fn call(&self, visit: &Visit<'_>) -> Result<(), Failure> {
        let (replica, dice) = (self.replica, visit.dice);
        replica.saw(&self.coordinator.session());
        // Some give up while they take the ticket, and some while they wait.
        let patience = dice
            .percent(replica.args.cancel)
            .then(|| dice.up_to(if visit.call.is_multiple_of(2) { 2 } else { 200 }));
        let enough = async {
            tokio::select! {
                // One that has no turn when the replica ends gives its ticket back.
                () = replica.stop.cancelled() => {}
                () = async {
                    match patience {
                        Some(patience) => replica.sleep(patience).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
            // Before the ticket is dropped.
            replica.tell(Event::Cancelled { chat: visit.chat.to_owned(), call: visit.call });
        };
        let turn = tokio::select! {
            biased;
            turn = self.take(visit) => turn,
            () = enough => return Ok(()),
        };
        match turn {
            Some(turn) => self.hold(visit, turn).await,
            None => Ok(()),
        }
    }

    async fn take(&self, visit: &Visit<'_>) -> Option<Turn> {
        let (replica, call, chat) = (self.replica, visit.call, || visit.chat.to_owned());
        replica.tell(Event::EnterCall { chat: chat(), call, after: visit.after });
        let entered = match self.coordinator.enter(visit.chat).await {
            Ok(mut ticket) => {
                let n = ticket.fence().0;
                replica.tell(Event::EnterOk { chat: chat(), call, n });
                ticket.granted().await
            }
            Err(error) => Err(error),
        };
        let turn = match entered {
            Ok(turn) => turn,
            Err(error) => {
                replica.tell(Event::EnterErr { chat: chat(), call, error: botmesh::describe(&error) });
                return None;
            }
        };
        replica.saw(turn.session());
        if let Err(lost) = turn.check() {
            replica.tell(visit.lost(&turn, lost));
            return None;
        }
        let (sid, prev) = (turn.session().to_string(), turn.previous_holder().map(ToString::to_string));
        replica.tell(Event::Granted { chat: chat(), call, n: turn.fence().0, sid, prev });
        Some(turn)
    }

    async fn hold(&self, visit: &Visit<'_>, turn: Turn) -> Result<(), Failure> {
        let (replica, mut told) = (self.replica, false);
        let outcome = {
            let mut works = pin!(self.work(visit, &turn));
            loop {
                tokio::select! {
                    biased;
                    lost = turn.lost(), if !told => {
                        told = true;
                        replica.tell(visit.lost(&turn, lost));
                    }
                    outcome = &mut works => break outcome,
                }
            }
        };
        match turn.check() {
            Err(lost) if !told => replica.tell(visit.lost(&turn, lost)),
            Err(_) => {}
            Ok(()) => {
                let (chat, call, n) = (visit.chat.to_owned(), visit.call, turn.fence().0);
                // Before: from here on this replica does nothing for the chat.
                replica.tell(Event::Released { chat, call, n });
                turn.release();
            }
        }
        outcome
    }

    /// Writes to the resource a few times, each time after a look at the turn, and ends at the first that fails.
    async fn work(&self, visit: &Visit<'_>, turn: &Turn) -> Result<(), Failure> {
        let (replica, dice, n) = (self.replica, visit.dice, turn.fence().0);
        let mut resource = self.resource().await?;
        let (writes, long) = (1 + dice.below(3), dice.percent(replica.args.long));
        for write in 0..writes {
            if write > 0 {
                let rest = dice.up_to(replica.args.hold);
                replica.sleep(if long { rest + replica.lease() / 2 } else { rest }).await;
            }
            let (chat, checked_t) = (visit.chat.to_owned(), now());
            if let Err(lost) = turn.check() {
                let reason = format!("{:?}", lost.reason);
                replica.tell(Event::CheckFailed { chat, call: visit.call, n, reason });
                break;
            }
            let (sid, valid_for_ms) = (turn.session().to_string(), self.valid_for());
            replica.tell(Event::WriteCall {
                chat: chat.clone(),
                n,
                sid: sid.clone(),
                checked_t,
                valid_for_ms,
            });
            let Verdict { accepted: _ } = resource.ask(&Write { chat, n, sid }).await?;
        }
        self.resources.lock().unwrap_or_else(PoisonError::into_inner).push(resource);
        Ok(())
    }

    async fn resource(&self) -> Result<Connection, Failure> {
        let idle = self.resources.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(connection) => Ok(connection),
            None => {
                let replica = &self.replica.args;
                let hello = Hello::Resource { replica: replica.name.clone() };
                Ok(Connection::open(replica.world, &hello).await?)
            }
        }
    }

    /// For how long the session may act, in milliseconds. On a Cluster there are several, and the age is that of another one.
    fn valid_for(&self) -> Option<i64> {
        if self.replica.args.redis.starts_with("redis-cluster") {
            return None;
        }
        let age = self.coordinator.last_beat()? + self.coordinator.margin();
        let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Some(millis(self.replica.lease()) - millis(age))
    }
}

struct Visit<'a> {
    chat: &'a str,
    call: u64,
    after: Option<u64>,
    dice: &'a Dice,
}

impl Visit<'_> {
    fn lost(&self, turn: &Turn, lost: LeaseLost) -> Event {
        Event::Lost {
            sid: turn.session().to_string(),
            chat: Some(self.chat.to_owned()),
            call: Some(self.call),
            n: Some(turn.fence().0),
            reason: format!("{:?}", lost.reason),
        }
    }
}
