//! The way in that both providers share: from a reading thread to the bot.

use std::fmt;
use std::sync::Arc;

use botmesh_core::CancellationToken;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::EventId;
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{AdmitError, ConnectionState, InboundSink};
use tokio::sync::{Mutex, MutexGuard, mpsc, watch};

/// How many items a reading thread may be ahead of the bot.
pub(crate) const AHEAD: usize = 64;

/// What a reading thread sends. The end of the channel is the end of the input; a failure is the last item.
pub(crate) type Item<T> = Result<T, ChannelError>;

/// Where the items come from. They outlive one run, so that a run after a failure goes on where that one stopped.
pub(crate) enum Feed<T> {
    Bounded(mpsc::Receiver<Item<T>>),
    Unbounded(mpsc::UnboundedReceiver<Item<T>>),
}

impl<T> Feed<T> {
    async fn next(&mut self) -> Option<Item<T>> {
        match self {
            Self::Bounded(items) => items.recv().await,
            Self::Unbounded(items) => items.recv().await,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Bounded(items) => items.len(),
            Self::Unbounded(items) => items.len(),
        }
    }
}

pub(crate) struct Intake<T> {
    source: Mutex<Source<T>>,
    connection: watch::Sender<ConnectionState>,
}

struct Source<T> {
    feed: Option<Feed<T>>,
    /// Read, but not yet in the bot's hands.
    pending: Option<Inbound>,
}

/// The right to run: one at a time.
pub(crate) struct Claim<'a, T> {
    source: MutexGuard<'a, Source<T>>,
    connection: &'a watch::Sender<ConnectionState>,
}

impl<T> Intake<T> {
    pub(crate) fn new() -> Self {
        let source = Mutex::new(Source { feed: None, pending: None });
        Self { source, connection: watch::Sender::new(ConnectionState::Closed) }
    }

    pub(crate) fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.connection.subscribe()
    }

    pub(crate) fn claim(&self) -> Result<Claim<'_, T>, ChannelError> {
        let Ok(source) = self.source.try_lock() else {
            return Err(rejected("this provider is already running; run it once, or make another one"));
        };
        self.connection.send_replace(ConnectionState::Open);
        Ok(Claim { source, connection: &self.connection })
    }
}

impl<T> fmt::Debug for Intake<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", *self.connection.borrow())
    }
}

impl<T> Drop for Claim<'_, T> {
    fn drop(&mut self) {
        self.connection.send_replace(ConnectionState::Closed);
    }
}

impl<T> Claim<'_, T> {
    /// Whether an earlier run already began to read.
    pub(crate) fn begun(&self) -> bool {
        self.source.feed.is_some()
    }

    pub(crate) fn begin(&mut self, feed: Feed<T>) {
        self.source.feed = Some(feed);
    }

    /// Hands over one item after another until the end, a failure or `stop`. `read` says what an item is; `None` skips it.
    /// `taken` hears of each event that the bot has.
    pub(crate) async fn run(
        &mut self,
        sink: &Arc<dyn InboundSink>,
        stop: &CancellationToken,
        mut read: impl FnMut(T) -> Option<Inbound> + Send,
        mut taken: impl FnMut(EventId) + Send,
    ) -> Result<(), ChannelError> {
        loop {
            if self.source.pending.is_none() {
                let Some(feed) = &mut self.source.feed else { return Ok(()) };
                let item = tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    item = feed.next() => item,
                };
                match item {
                    None => return Ok(()),
                    Some(item) => self.source.pending = read(item?),
                }
            }
            let Some(inbound) = self.source.pending.clone() else { continue };
            let event = inbound.event.clone();
            let outcome = tokio::select! {
                biased;
                outcome = sink.admit(inbound) => outcome,
                () = stop.cancelled() => return Ok(()),
            };
            match outcome {
                Ok(admitted) => {
                    tracing::trace!(%event, record = %admitted.record, duplicate = admitted.duplicate, "admitted");
                    self.source.pending = None;
                    taken(event);
                }
                Err(AdmitError::Stopping) => return Ok(()),
                Err(AdmitError::Invalid(problem)) => {
                    self.source.pending = None;
                    return Err(rejected(format!("the bot cannot take event {event}: {problem}")));
                }
                Err(error) => {
                    return Err(ChannelError::new(
                        ErrorClass::Transient,
                        Phase::NotWritten,
                        format!("event {event} was not taken over"),
                    )
                    .with_source(error));
                }
            }
        }
    }

    /// How many items were read and are not in the bot's hands.
    pub(crate) fn left(&self) -> usize {
        usize::from(self.source.pending.is_some()) + self.source.feed.as_ref().map_or(0, Feed::len)
    }
}

pub(crate) fn rejected(detail: impl Into<String>) -> ChannelError {
    ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail)
}
