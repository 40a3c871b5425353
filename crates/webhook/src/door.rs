//! Where a provider's run and its router meet.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use botmesh_core::CancellationToken;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::provider::{ConnectionState, InboundSink};
use botmesh_core::time::{Clock, SystemClock};
use tokio::sync::{Semaphore, watch};

/// How much of a sender's time and of this process's memory posts may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest body, in bytes. Larger ones are refused with 413 before they are read to the end. Default 8 MiB.
    pub max_body: usize,
    /// What the bodies of all posts that are under way may take together, in bytes. Beyond that posts are refused with 503.
    /// Default 64 MiB.
    pub max_memory: usize,
    /// How long a post may take, from its first byte to the answer. Whoever has not sent the body by then gets 408; what the
    /// bot has not taken over by then gets 503, and comes again. Default 10 s.
    pub answer_within: Duration,
    /// What `Retry-After` says with each 503. Whole seconds. Default 5 s.
    pub retry_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body: 8 << 20,
            max_memory: 64 << 20,
            answer_within: Duration::from_secs(10),
            retry_after: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// With this largest body.
    #[must_use]
    pub fn with_max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// With this much memory for all posts that are under way.
    #[must_use]
    pub fn with_max_memory(mut self, bytes: usize) -> Self {
        self.max_memory = bytes;
        self
    }

    /// With this time for a post.
    #[must_use]
    pub fn with_answer_within(mut self, limit: Duration) -> Self {
        self.answer_within = limit;
        self
    }
}

/// Open while the bot runs the provider: then posts reach its sink. Otherwise they are answered with 503 and come again.
pub struct Door {
    sink: Mutex<Option<Arc<dyn InboundSink>>>,
    connection: watch::Sender<ConnectionState>,
    pub(crate) limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
    /// One permit for each byte that bodies may take.
    pub(crate) memory: Arc<Semaphore>,
}

impl Door {
    /// A closed door.
    pub fn new(limits: Limits) -> Self {
        Self::with_clock(limits, Arc::new(SystemClock::new()))
    }

    /// A closed door that reads time from `clock`.
    pub fn with_clock(limits: Limits, clock: Arc<dyn Clock>) -> Self {
        let memory = Arc::new(Semaphore::new(limits.max_memory.min(Semaphore::MAX_PERMITS)));
        let connection = watch::Sender::new(ConnectionState::Closed);
        Self { sink: Mutex::default(), connection, limits, clock, memory }
    }

    /// For [`Provider::connection`](botmesh_core::provider::Provider::connection).
    pub fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.connection.subscribe()
    }

    /// For [`Provider::run`](botmesh_core::provider::Provider::run): open until `stop` is cancelled. Posts that came before
    /// are answered as the bot decides.
    ///
    /// # Errors
    /// Somebody runs it already.
    ///
    /// # Cancel safety
    /// Dropping the future closes the door.
    pub async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        let _open = self.open(sink)?;
        stop.cancelled().await;
        Ok(())
    }

    fn open(&self, sink: Arc<dyn InboundSink>) -> Result<Open<'_>, ChannelError> {
        let mut place = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            let problem = "this provider is already running; run it in one bot, or make another one";
            return Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, problem));
        }
        *place = Some(sink);
        self.connection.send_replace(ConnectionState::Open);
        Ok(Open(self))
    }

    pub(crate) fn sink(&self) -> Option<Arc<dyn InboundSink>> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", *self.connection.borrow())
    }
}

struct Open<'a>(&'a Door);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let Self(door) = self;
        *door.sink.lock().unwrap_or_else(PoisonError::into_inner) = None;
        door.connection.send_replace(ConnectionState::Closed);
    }
}
