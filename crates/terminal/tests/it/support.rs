//! What the tests share.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::future::Future;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_core::inbound::{Inbound, InboundBody};
use botmesh_core::provider::{AdmitError, Admitted, InboundSink};
use botmesh_core::{CancellationToken, async_trait};
use tokio::sync::Notify;

/// Runs a test's future on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// What to do with an event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Take,
    Stopping,
    JournalFails,
    Invalid,
    Hang,
}

/// Records what is admitted, and answers as told.
pub(crate) struct Recorder {
    pub(crate) taken: Mutex<Vec<Inbound>>,
    /// The answers for the next events; then all are taken.
    answers: Mutex<Vec<Answer>>,
    /// An event arrived.
    pub(crate) arrived: Notify,
}

impl Recorder {
    pub(crate) fn new(answers: &[Answer]) -> Arc<Self> {
        let answers = Mutex::new(answers.iter().rev().copied().collect());
        Arc::new(Self { taken: Mutex::default(), answers, arrived: Notify::new() })
    }

    /// Event, chat and text (or `press ID`) of all that was taken.
    pub(crate) fn taken(&self) -> Vec<(String, String, String)> {
        let describe = |inbound: &Inbound| {
            let text = match &inbound.body {
                InboundBody::Interaction { id, .. } => format!("press {id}"),
                _ => inbound.readable_text().to_owned(),
            };
            (inbound.event.to_string(), inbound.chat.to_string(), text)
        };
        self.taken.lock().unwrap().iter().map(describe).collect()
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        self.taken().into_iter().map(|(_, _, text)| text).collect()
    }
}

#[async_trait]
impl InboundSink for Recorder {
    async fn admit(&self, inbound: Inbound) -> Result<Admitted, AdmitError> {
        let answer = self.answers.lock().unwrap().pop().unwrap_or(Answer::Take);
        self.arrived.notify_one();
        match answer {
            Answer::Take => {
                let record = inbound.record_id();
                self.taken.lock().unwrap().push(inbound);
                Ok(Admitted { record, duplicate: false })
            }
            Answer::Stopping => Err(AdmitError::Stopping),
            Answer::JournalFails => {
                Err(StoreError::new(StoreErrorKind::Unavailable, "test", "commit", "away for now").into())
            }
            Answer::Invalid => Err(AdmitError::Invalid("an id is too long".into())),
            Answer::Hang => std::future::pending().await,
        }
    }
}

pub(crate) fn never() -> CancellationToken {
    CancellationToken::new()
}

/// An output that can be looked at, and that can be made to fail after some bytes.
#[derive(Clone, Default)]
pub(crate) struct Paper {
    written: Arc<Mutex<Vec<u8>>>,
    room: Option<usize>,
}

impl Paper {
    pub(crate) fn with_room(bytes: usize) -> Self {
        Self { room: Some(bytes), ..Self::default() }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.written.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = self.written.lock().unwrap();
        let room = self.room.map_or(bytes.len(), |room| room.saturating_sub(written.len()).min(bytes.len()));
        if room == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        written.extend_from_slice(&bytes[..room]);
        Ok(room)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
