//! What users said and no replica has taken over.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{AdmitError, ConnectionState, Provider};
use botmesh_core::time::Clock;
use tokio::sync::watch;

use crate::{MockProvider, VirtualClock};

/// After how long the channel delivers again what the bot did not take over.
const REDELIVERY: Duration = Duration::from_secs(1);

/// What users said, in order, and which life is to take it over: each life gets its own in this order. What a life had not
/// taken over when it ended or stood still is another's.
pub(super) struct Post {
    desk: Mutex<Desk>,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct Desk {
    letters: Vec<Letter>,
    sent: u64,
    /// Why the bot refused events for good.
    refused: Vec<String>,
}

struct Letter {
    number: u64,
    inbound: Inbound,
    /// The replica that the user asked for.
    wanted: Option<usize>,
    /// The life that is to take it over.
    bearer: Option<u64>,
}

/// A life that takes messages over.
#[derive(Clone, Copy)]
pub(super) struct Bearer {
    pub(super) replica: usize,
    pub(super) life: u64,
}

/// A message that another replica gets than the one it was meant for, or that had it.
pub(super) struct Detour {
    pub(super) inbound: Inbound,
    pub(super) to: usize,
}

impl Post {
    pub(super) fn new() -> Self {
        Self { desk: Mutex::default(), changes: watch::Sender::new(()) }
    }

    pub(super) fn push(&self, inbound: Inbound, wanted: Option<usize>) {
        let mut desk = self.lock();
        desk.sent += 1;
        let number = desk.sent;
        desk.letters.push(Letter { number, inbound, wanted, bearer: None });
    }

    /// Gives what nobody can take over any more to the replica that was asked for, or else to the first of `bearers`.
    pub(super) fn distribute(&self, bearers: &[Bearer]) -> Vec<Detour> {
        let mut detours = Vec::new();
        let mut desk = self.lock();
        let lost = |letter: &&mut Letter| !bearers.iter().any(|bearer| Some(bearer.life) == letter.bearer);
        for letter in desk.letters.iter_mut().filter(lost) {
            let asked_for = bearers.iter().find(|bearer| Some(bearer.replica) == letter.wanted);
            let Some(bearer) = asked_for.or_else(|| bearers.first()) else {
                letter.bearer = None;
                continue;
            };
            let wanted = letter.wanted.replace(bearer.replica);
            letter.bearer = Some(bearer.life);
            if wanted.is_some_and(|wanted| wanted != bearer.replica) {
                detours.push(Detour { inbound: letter.inbound.clone(), to: bearer.replica });
            }
            self.changes.send_replace(());
        }
        detours
    }

    /// The first message for a life, and its number.
    fn first(&self, life: u64) -> Option<(u64, Inbound)> {
        let desk = self.lock();
        let letter = desk.letters.iter().find(|letter| letter.bearer == Some(life))?;
        Some((letter.number, letter.inbound.clone()))
    }

    fn remove(&self, number: u64) {
        self.lock().letters.retain(|letter| letter.number != number);
    }

    pub(super) fn take_refused(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().refused)
    }

    /// Hands over what is for `life`, in order. What it does not take over it gets again after a while.
    pub(super) async fn deliver_to(&self, life: u64, channel: MockProvider, clock: VirtualClock) {
        let (mut connection, mut changes) = (channel.connection(), self.changes.subscribe());
        loop {
            changes.mark_unchanged();
            let Some((number, inbound)) = self.first(life) else {
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            };
            if connection.wait_for(|state| *state == ConnectionState::Open).await.is_err() {
                return;
            }
            match channel.deliver(inbound).await {
                Ok(_) => self.remove(number),
                Err(AdmitError::Invalid(problem)) => {
                    self.remove(number);
                    self.lock().refused.push(problem);
                }
                Err(_) => clock.sleep(REDELIVERY).await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
