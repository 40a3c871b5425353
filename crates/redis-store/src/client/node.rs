//! One connection of the driver, over which calls are pipelined.

use std::sync::Arc;
use std::time::Duration;

use botmesh_core::error::StoreError;
use fred::clients::WithOptions;
use fred::error::{Error, ErrorKind};
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::config::{Options, Server};
use fred::types::{ConnectHandle, CustomCommand, Message, Resp3Frame, Value};
use tokio::sync::broadcast;

use super::in_time;
use crate::error::{Access, failed};

/// How long the driver is trusted to tell of a connection before it is looked at.
const GLANCE: Duration = Duration::from_millis(50);

/// What is sent.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) operation: &'static str,
    pub(super) access: Access,
    pub(super) name: &'static str,
    pub(super) args: Vec<Value>,
    /// Where its keys are on a Cluster; `None` if it has none.
    pub(super) slot: Option<u16>,
}

/// An open connection to one server. It ends when this is dropped, unless it is the caller's.
pub(crate) struct Node {
    pub(super) fred: WithOptions<fred::clients::Client>,
    /// The task of a connection that is our own.
    task: Option<ConnectHandle>,
    /// Where it is, for people. Never has a password.
    pub(super) place: Arc<str>,
    /// How long one command may take.
    timeout: Duration,
}

impl Node {
    /// Over a connection that stays the caller's.
    pub(super) fn over(fred: &fred::clients::Client, options: &Options, place: Arc<str>) -> Self {
        let timeout = options.timeout.unwrap_or_default();
        Self { fred: fred.with_options(options), task: None, place, timeout }
    }

    /// Begins to connect, on the runtime of the caller.
    pub(super) fn begin(fred: &fred::clients::Client, options: &Options, place: Arc<str>) -> Self {
        let mut node = Self::over(fred, options, place);
        node.task = Some(node.fred.connect());
        node
    }

    /// Connects, on the runtime of the caller.
    pub(super) async fn open(
        fred: &fred::clients::Client,
        options: &Options,
        place: Arc<str>,
    ) -> Result<Self, StoreError> {
        let mut node = Self::begin(fred, options, place);
        let outcome = match &mut node.task {
            Some(task) => loop {
                tokio::select! {
                    biased;
                    // It ends with the error of the first attempt, maybe before anybody waits for that.
                    ended = &mut *task => break ended.unwrap_or_else(|_| Err(cancelled())).and(Err(cancelled())),
                    connected = in_time(GLANCE, node.fred.wait_for_connect()) => match connected {
                        Some(outcome) => break outcome,
                        // The driver tells it to those who wait, not to one who is just about to.
                        None if node.fred.is_connected() => break Ok(()),
                        None => {}
                    },
                }
            },
            None => Ok(()),
        };
        match outcome {
            Ok(()) => Ok(node),
            Err(error) => Err(failed("open", &node.place, Access::Read, error)),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.fred.is_connected()
    }

    /// Nobody tries to connect any more.
    pub(super) fn is_ended(&self) -> bool {
        self.task.as_ref().is_some_and(ConnectHandle::is_finished)
    }

    /// Sends a call, once.
    pub(super) async fn call(&self, call: &Call) -> Result<Resp3Frame, Error> {
        let command = CustomCommand::new_static(call.name, call.slot, false);
        // The driver's future has 7 kB, which all that await it would have too, each in turn.
        Box::pin(self.fred.custom_raw(command, call.args.clone())).await
    }

    /// Sends a call about a slot that is on its way to this node, which takes it right behind an `ASKING`. Nothing else may be
    /// sent over this connection.
    pub(super) async fn ask(&self, call: &Call) -> Result<Resp3Frame, Error> {
        let asking = CustomCommand::new_static("ASKING", None, false);
        let asking = self.fred.custom_raw(asking, Vec::<Value>::new());
        let (asked, answer) = tokio::join!(biased; asking, self.call(call));
        asked.and(answer)
    }

    pub(super) fn failed(&self, call: &Call, error: Error) -> StoreError {
        failed(call.operation, &self.place, call.access, error)
    }

    /// Waits for a lost connection, so that what is not sent is known not to be.
    pub(super) async fn connected(&self, operation: &'static str) -> Result<(), StoreError> {
        let connected = self.wait(self.timeout).await;
        connected.map_err(|error| failed(operation, &self.place, Access::Read, error))
    }

    /// Waits for a lost connection for so long, and says why there is none.
    pub(super) async fn wait(&self, limit: Duration) -> Result<(), Error> {
        if self.fred.is_connected() {
            return Ok(());
        }
        let mut errors = self.fred.error_rx();
        if let Some(outcome) = in_time(limit, self.fred.wait_for_connect()).await {
            return outcome;
        }
        if self.fred.is_connected() {
            return Ok(());
        }
        let last = std::iter::from_fn(|| errors.try_recv().ok()).last();
        Err(last.map_or_else(|| Error::new(ErrorKind::Timeout, "not connected"), |(error, _)| error))
    }

    /// What the server pushes to the channels of [`subscribe`](Self::subscribe).
    pub(crate) fn pushes(&self) -> broadcast::Receiver<Message> {
        self.fred.message_rx()
    }

    /// Tells when a lost connection is made again. Its subscriptions are gone then.
    pub(super) fn reconnects(&self) -> broadcast::Receiver<Server> {
        self.fred.reconnect_rx()
    }

    /// Returns when the server has confirmed it.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<(), StoreError> {
        self.connected("subscribe").await?;
        let subscribed = self.fred.subscribe(channel).await;
        subscribed.map_err(|error| failed("subscribe", &self.place, Access::Read, error))
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Waits until what was sent before is answered, and ends a connection that is our own.
    pub(super) async fn close(&self) {
        if let Some(task) = &self.task {
            // Whoever cannot be reached has nothing to finish.
            drop(in_time(self.timeout, self.fred.quit()).await);
            task.abort();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Canceled, "the connection ended")
}
