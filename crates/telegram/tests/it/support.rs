use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::CancellationToken;
use botmesh_core::error::{ChannelError, StoreError, StoreErrorKind};
use botmesh_core::id::EventId;
use botmesh_core::inbound::Inbound;
use botmesh_core::notice::Moved;
use botmesh_core::provider::{AdmitError, Admitted, InboundSink, Provider};
use botmesh_telegram::Telegram;
use botmesh_testing::FakeTelegram;
use tokio::sync::Semaphore;

/// What a bot does with the next events of an id.
#[derive(Clone, Copy)]
pub(crate) enum Refuses {
    Journal,
    Invalid,
    /// It journals the event, and wants it again.
    NoPlace,
}

/// A bot that takes everything over, or not.
pub(crate) struct Recorder {
    taken: Mutex<Vec<Inbound>>,
    poison: Mutex<Vec<(String, String, String)>>,
    refusals: Mutex<HashMap<String, (Refuses, usize)>>,
    /// Who moved, and how many events were taken before it was told.
    moved: Mutex<Vec<(Moved, usize)>>,
    refused_moves: Mutex<usize>,
    /// Is cancelled when the first event is taken.
    stops: Mutex<Option<CancellationToken>>,
    /// One permit for each event that may be journaled.
    gate: Semaphore,
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_gate(Semaphore::MAX_PERMITS)
    }

    /// Journals so many events, and then waits.
    pub(crate) fn with_gate(permits: usize) -> Arc<Self> {
        let gate = Semaphore::new(permits);
        let (taken, poison, refusals, moved, refused_moves, stops) = Default::default();
        Arc::new(Self { taken, poison, refusals, moved, refused_moves, stops, gate })
    }

    pub(crate) fn refuse(&self, event: &str, how: Refuses, times: usize) {
        self.refusals.lock().expect("no panic").insert(event.to_owned(), (how, times));
    }

    /// Records nothing of so many moves.
    pub(crate) fn refuse_moves(&self, times: usize) {
        *self.refused_moves.lock().expect("no panic") = times;
    }

    /// Who moved, from and to where, and how many events were taken before it was told.
    pub(crate) fn moved(&self) -> Vec<(String, String, usize)> {
        let moved = self.moved.lock().expect("no panic");
        moved.iter().map(|(moved, taken)| (moved.from.to_string(), moved.to.to_string(), *taken)).collect()
    }

    /// Cancels `stop` as soon as an event is taken.
    pub(crate) fn stop_then(&self, stop: &CancellationToken) {
        *self.stops.lock().expect("no panic") = Some(stop.clone());
    }

    pub(crate) fn taken(&self) -> Vec<Inbound> {
        self.taken.lock().expect("no panic").clone()
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        self.taken().iter().map(|inbound| inbound.readable_text().to_owned()).collect()
    }

    /// Event, raw text and problem of what could not be read.
    pub(crate) fn poison(&self) -> Vec<(String, String, String)> {
        self.poison.lock().expect("no panic").clone()
    }
}

#[async_trait]
impl InboundSink for Recorder {
    async fn admit(&self, inbound: Inbound) -> Result<Admitted, AdmitError> {
        self.gate.acquire().await.expect("it is never closed").forget();
        let refusal = {
            let mut refusals = self.refusals.lock().expect("no panic");
            let left = refusals.get_mut(inbound.event.as_str()).filter(|(_, left)| *left > 0);
            left.map(|(how, left)| {
                *left -= 1;
                *how
            })
        };
        match refusal {
            Some(Refuses::Journal) => {
                return Err(StoreError::new(StoreErrorKind::Unavailable, "test", "commit", "away").into());
            }
            Some(Refuses::Invalid) => return Err(AdmitError::Invalid("its id is too long".into())),
            Some(Refuses::NoPlace) => {
                self.taken.lock().expect("no panic").push(inbound);
                return Err(AdmitError::NoPlace);
            }
            None => {}
        }
        if let Some(stop) = self.stops.lock().expect("no panic").take() {
            stop.cancel();
        }
        let record = inbound.record_id();
        let mut taken = self.taken.lock().expect("no panic");
        let duplicate = taken.iter().any(|known| known.record_id() == record);
        if !duplicate {
            taken.push(inbound);
        }
        Ok(Admitted { record, duplicate })
    }

    async fn moved(&self, moved: Moved) -> Result<(), AdmitError> {
        let mut left = self.refused_moves.lock().expect("no panic");
        if *left > 0 {
            *left -= 1;
            return Err(StoreError::new(StoreErrorKind::Unavailable, "test", "moved", "away").into());
        }
        let taken = self.taken().len();
        self.moved.lock().expect("no panic").push((moved, taken));
        Ok(())
    }

    async fn poison(&self, event: EventId, raw: &[u8], problem: &str) -> Result<Admitted, AdmitError> {
        let raw = String::from_utf8_lossy(raw).into_owned();
        self.poison.lock().expect("no panic").push((event.to_string(), raw, problem.to_owned()));
        Ok(Admitted { record: event.as_str().into(), duplicate: false })
    }
}

/// The bot of the server, which waits a second for what is new.
pub(crate) fn bot_of(server: &FakeTelegram) -> Telegram {
    Telegram::polling(server.token()).with_api_url(&server.url()).with_poll_timeout(Duration::from_secs(1))
}

/// Runs the channel while `scenario` does, and stops it in good order.
pub(crate) async fn while_running(
    telegram: &Telegram,
    sink: &Arc<Recorder>,
    scenario: impl Future<Output = ()>,
) -> Result<(), ChannelError> {
    let stop = CancellationToken::new();
    let sink: Arc<dyn InboundSink> = Arc::<Recorder>::clone(sink);
    let run = telegram.run(sink, stop.clone());
    let scenario = async {
        scenario.await;
        stop.cancel();
    };
    tokio::join!(run, scenario).0
}

/// Runs the channel until it fails.
pub(crate) async fn failure(telegram: &Telegram) -> ChannelError {
    let run = telegram.run(Recorder::new(), CancellationToken::new());
    run.await.expect_err("it cannot run")
}

/// An error and everything behind it, as any log may show it.
pub(crate) fn all_of(error: &ChannelError) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        shown.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    shown
}
