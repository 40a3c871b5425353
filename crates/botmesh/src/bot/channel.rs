//! Keeps the channel running, and tells once when it goes away and when it is back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::lifecycle::Over;
use super::sink::Sink;
use crate::core::backoff::Backoff;
use crate::core::error::{ChannelError, ErrorClass};
use crate::core::provider::ConnectionState;
use crate::events::{BotEvent, describe};
use crate::world::World;

/// After the channel closed the connection because somebody else is connected: never less than 30 s, so that two bots that
/// close each other's connection do not go round and round.
pub(super) const CONTESTED: Backoff =
    Backoff { base: Duration::from_secs(30), cap: Duration::from_secs(300), jitter: 0.5 };

/// Whoever had the channel for so long has it.
pub(super) const SETTLED: Duration = Duration::from_secs(300);

/// Runs the channel, again after a delay if it fails for now. Where one replica is connected at a time, a connection that was
/// closed for good or for somebody else is the leader's matter.
pub(super) async fn run_channel(world: &World, sink: &Arc<Sink>, stop: &CancellationToken) -> Over {
    let backoff = Backoff::default();
    let mut connection = Connection { states: world.provider.connection(), was_open: false, outage: None };
    let (mut failures, mut conflicts) = (0, 0);
    loop {
        let began = world.seams.clock.monotonic();
        let run = world.provider.run(Arc::<Sink>::clone(sink), stop.clone());
        let result = tokio::select! {
            biased;
            result = run => result,
            never = connection.watch(world, stop) => match never {},
        };
        let error = match result {
            Ok(()) => return Over::SourceEnded,
            Err(error) if !error.retryable || error.class == ErrorClass::LoggedOut => {
                return Over::Failed(error);
            }
            Err(error) if error.class == ErrorClass::Conflict && world.lead.is_exclusive() => {
                return Over::Failed(error);
            }
            Err(error) => error,
        };
        failures = if connection.outage.is_some() { failures + 1 } else { 1 };
        if world.seams.clock.monotonic().saturating_sub(began) > SETTLED {
            conflicts = 0;
        }
        connection.failed(world, &error);
        let delay = match error.class {
            ErrorClass::Conflict => {
                conflicts += 1;
                CONTESTED.delay(conflicts, error.wait(), &*world.seams.entropy)
            }
            _ => backoff.delay(failures, error.wait(), &*world.seams.entropy),
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return Over::Asked,
            () = world.seams.clock.sleep(delay) => {}
        }
    }
}

/// The connection as it was told.
struct Connection {
    states: watch::Receiver<ConnectionState>,
    was_open: bool,
    outage: Option<Outage>,
}

struct Outage {
    failures: u64,
    since: Duration,
}

impl Connection {
    /// Follows the connection for as long as it is polled.
    async fn watch(&mut self, world: &World, stop: &CancellationToken) -> std::convert::Infallible {
        loop {
            if self.states.changed().await.is_err() {
                // The channel says no more.
                std::future::pending::<()>().await;
            }
            let state = *self.states.borrow_and_update();
            match state {
                ConnectionState::Open => self.opened(world),
                // Nobody asked it to end.
                ConnectionState::Connecting if self.was_open && !stop.is_cancelled() => {
                    self.went_away(world, "the connection was lost".to_owned());
                }
                ConnectionState::Connecting | ConnectionState::Closed => {}
            }
        }
    }

    fn opened(&mut self, world: &World) {
        self.was_open = true;
        if let Some(Outage { failures, since }) = self.outage.take() {
            let after = world.seams.clock.monotonic().saturating_sub(since);
            world.events.emit(BotEvent::ChannelAvailable { failures, after });
        }
    }

    fn failed(&mut self, world: &World, error: &ChannelError) {
        self.went_away(world, describe(error));
        // What it was says nothing of the next try.
        self.states.mark_unchanged();
    }

    fn went_away(&mut self, world: &World, error: String) {
        self.was_open = false;
        match &mut self.outage {
            Some(outage) => outage.failures += 1,
            None => {
                self.outage = Some(Outage { failures: 1, since: world.seams.clock.monotonic() });
                world.events.emit(BotEvent::ChannelUnavailable { error });
            }
        }
    }
}
