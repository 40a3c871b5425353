//! One connection to the server, over which calls are pipelined, and the scripts.

mod probe;
mod reply;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::entropy::{OsEntropy, random_fraction};
use botmesh_core::error::{StoreError, StoreErrorKind};
use fred::clients::WithOptions;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::config::{
    Config, ConnectionConfig, Options, PerformanceConfig, ReconnectError, ReconnectPolicy, Server,
    ServerConfig, UnresponsiveConfig,
};
use fred::types::{ClusterStateChange, ConnectHandle, CustomCommand, Message, RespVersion, Value};
use fred::util::redis_keyslot;
use tokio::sync::broadcast;

pub(crate) use self::reply::{Reply, Unexpected};
use crate::config::{Persistence, RedisConfig};
#[cfg(feature = "mutations")]
use crate::coordinator::Altered;
use crate::error::{Access, BACKEND, failed, is_redirected};
use crate::scripts::{ALL, Script};

/// Delays between attempts to connect again, in milliseconds: the first, doubled each time up to the last.
const FIRST_DELAY: u32 = 50;
const LAST_DELAY: u32 = 2_000;
/// Added to all but the last one, at most.
const JITTER: u32 = 50;

/// How often a call follows a slot of a Cluster to another node.
const REDIRECTIONS: u32 = 5;

/// The last delay of a connection whose loss ends leases.
const FASTEST_DELAY: u32 = 200;

/// How many calls wait in the driver at most; further ones fail at once.
const QUEUE: usize = 16_384;

/// An open connection. When the last clone of the handle around it goes, the connection ends.
pub(crate) struct Client {
    fred: WithOptions<fred::clients::Client>,
    /// The task of a connection that is our own.
    task: Option<ConnectHandle>,
    config: Arc<RedisConfig>,
    /// Where the server is, for people. Never has a password.
    place: Arc<str>,
    /// SHA-1s, in the order of [`ALL`].
    hashes: Arc<[Bytes]>,
    persistence: Persistence,
    closed: AtomicBool,
    #[cfg(feature = "mutations")]
    altered: Altered,
}

impl Client {
    pub(crate) async fn open(url: &str, config: RedisConfig) -> Result<Self, StoreError> {
        check(&config)?;
        let server = Config::from_url(url).map_err(|error| bad_url(&error))?;
        let (connection, performance) = settings(&config);
        let policy = policy(LAST_DELAY);
        let fred = fred::clients::Client::new(server, Some(performance), Some(connection), Some(policy));
        let place = place_of(&fred);
        let task = connect(&fred, &place).await?;
        Self::probed(fred, Some(task), Arc::new(config), place).await
    }

    /// Over a connection that stays the caller's.
    pub(crate) async fn with(fred: fred::clients::Client, config: RedisConfig) -> Result<Self, StoreError> {
        check(&config)?;
        let place = place_of(&fred);
        Self::probed(fred, None, Arc::new(config), place).await
    }

    async fn probed(
        fred: fred::clients::Client,
        task: Option<ConnectHandle>,
        config: Arc<RedisConfig>,
        place: Arc<str>,
    ) -> Result<Self, StoreError> {
        let fred = fred.with_options(&options(&config));
        let (hashes, closed) = (Arc::default(), AtomicBool::new(false));
        let mut client = Self {
            fred,
            task,
            config,
            place,
            hashes,
            persistence: Persistence::None,
            closed,
            #[cfg(feature = "mutations")]
            altered: Altered::default(),
        };
        let probed = probe::run(&client).await?;
        client.hashes = probed.hashes.into();
        client.persistence = probed.persistence;
        Ok(client)
    }

    /// The same server over a connection of its own, on the runtime of the caller.
    pub(crate) async fn beside(&self) -> Result<Self, StoreError> {
        let fred = fred::clients::Client::clone_new(&self.fred);
        let task = connect(&fred, &self.place).await?;
        Ok(Self {
            fred: fred.with_options(&options(&self.config)),
            task: Some(task),
            config: Arc::clone(&self.config),
            place: Arc::clone(&self.place),
            hashes: Arc::clone(&self.hashes),
            persistence: self.persistence,
            closed: AtomicBool::new(false),
            #[cfg(feature = "mutations")]
            altered: Altered::default(),
        })
    }

    /// The same server over a connection of its own, on the runtime of the caller, on which so many pushes may wait to be read.
    /// There is room for all of them from the start.
    pub(crate) async fn for_turns(&self, config: RedisConfig, pushes: usize) -> Result<Self, StoreError> {
        let mut server = fred::clients::Client::clone(&self.fred).client_config();
        server.version = RespVersion::RESP3;
        let (connection, mut performance) = settings(&config);
        performance.broadcast_channel_capacity = pushes;
        let fred = fred::clients::Client::new(
            server,
            Some(performance),
            Some(connection),
            Some(policy(FASTEST_DELAY)),
        );
        let task = connect(&fred, &self.place).await?;
        Ok(Self {
            fred: fred.with_options(&options(&config)),
            task: Some(task),
            config: Arc::new(config),
            place: Arc::clone(&self.place),
            hashes: Arc::clone(&self.hashes),
            persistence: self.persistence,
            closed: AtomicBool::new(false),
            #[cfg(feature = "mutations")]
            altered: Altered::default(),
        })
    }

    /// What the server pushes to the channels of [`subscribe`](Self::subscribe).
    pub(crate) fn pushes(&self) -> broadcast::Receiver<Message> {
        self.fred.message_rx()
    }

    /// Tells when a lost connection is made again. Its subscriptions are gone then.
    pub(crate) fn reconnects(&self) -> broadcast::Receiver<Server> {
        self.fred.reconnect_rx()
    }

    /// Tells of nodes that joined or left a Cluster. Subscriptions at one that left are gone.
    pub(crate) fn changes(&self) -> broadcast::Receiver<Vec<ClusterStateChange>> {
        self.fred.cluster_change_rx()
    }

    pub(crate) fn is_clustered(&self) -> bool {
        self.fred.is_clustered()
    }

    /// Returns when the server has confirmed it.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<(), StoreError> {
        let subscribed = self.fred.subscribe(channel).await;
        subscribed.map_err(|error| failed("subscribe", &self.place, Access::Read, error))
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        &self.config
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn persistence(&self) -> Persistence {
        self.persistence
    }

    /// Sends one command whose first argument is its key.
    pub(crate) async fn command(
        &self,
        operation: &'static str,
        access: Access,
        name: &'static str,
        args: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        let key = args.first().cloned();
        self.send(operation, access, name, key.as_ref(), args).await?.ok(operation, &self.place, access)
    }

    /// Runs a script, with its text if the server does not know it.
    pub(crate) async fn script(
        &self,
        operation: &'static str,
        access: Access,
        script: &Script,
        keys: &[Bytes],
        args: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        #[cfg(feature = "mutations")]
        if let Some(text) = self.altered.text(script) {
            return self.eval(text, keys, args).await;
        }
        let mut all = Vec::with_capacity(2 + keys.len() + args.len());
        all.push(self.hashes.get(script.number).cloned().unwrap_or_default());
        all.push(keys.len().to_string().into());
        all.extend_from_slice(keys);
        all.extend(args);
        let reply = self.send(operation, access, "EVALSHA", keys.first(), all.clone()).await?;
        if !reply.is_unknown_script() {
            return reply.ok(operation, &self.place, access);
        }
        let moved = reply.is_moved();
        all[0] = Bytes::from_static(script.text.as_bytes());
        let reply = self.send(operation, access, "EVAL", keys.first(), all).await?;
        reply.moved(moved).ok(operation, &self.place, access)
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn without(self, rule: crate::Rule) -> Self {
        self.with_altered(Altered { without: Some(rule), clock_ahead: false })
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn with_altered(mut self, altered: Altered) -> Self {
        self.altered = altered;
        self
    }

    /// Runs a script once, by its text.
    pub(crate) async fn eval(
        &self,
        text: &'static str,
        keys: &[Bytes],
        args: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        let mut all = vec![Bytes::from_static(text.as_bytes()), keys.len().to_string().into()];
        all.extend_from_slice(keys);
        all.extend(args);
        self.send("open", Access::Read, "EVAL", keys.first(), all).await?.ok(
            "open",
            &self.place,
            Access::Read,
        )
    }

    async fn send(
        &self,
        operation: &'static str,
        access: Access,
        name: &'static str,
        key: Option<&Bytes>,
        args: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(self.closed(operation));
        }
        self.connected(operation).await?;
        let clustered = self.fred.is_clustered();
        let slot = key.filter(|_| clustered).map(|key| redis_keyslot(key));
        let args: Vec<Value> = args.into_iter().map(Value::Bytes).collect();
        let most = if clustered { REDIRECTIONS } else { 0 };
        let mut redirections = 0;
        loop {
            let command = CustomCommand::new_static(name, slot, false);
            match self.fred.custom_raw(command, args.clone()).await {
                Err(error) if redirections < most && is_redirected(&error) => redirections += 1,
                Err(error) => return Err(failed(operation, &self.place, access, error)),
                Ok(frame) => return Ok(Reply::new(frame).moved(redirections > 0)),
            }
        }
    }

    /// Waits for a lost connection, so that what is not sent is known not to be.
    async fn connected(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.fred.is_connected() {
            return Ok(());
        }
        let mut errors = self.fred.error_rx();
        match in_time(self.config.command_timeout, self.fred.wait_for_connect()).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(failed(operation, &self.place, Access::Read, error)),
            None => {
                let last = std::iter::from_fn(|| errors.try_recv().ok()).last();
                let none = || fred::error::Error::new(fred::error::ErrorKind::Timeout, "not connected");
                let error = last.map_or_else(none, |(error, _)| error);
                Err(failed(operation, &self.place, Access::Read, error))
            }
        }
    }

    /// Waits until what was sent before is answered, and ends a connection that is our own.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if let Some(task) = &self.task {
            // Whoever cannot be reached has nothing to finish.
            drop(in_time(self.config.command_timeout, self.fred.quit()).await);
            task.abort();
        }
        Ok(())
    }

    /// Waits until the server answered what was sent before. One that cannot be reached answers nothing more.
    pub(crate) async fn settle(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) || !self.fred.is_connected() {
            return Ok(());
        }
        match self.command(operation, Access::Read, "PING", Vec::new()).await {
            Err(error) if error.kind() != StoreErrorKind::Unavailable => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn closed(&self, operation: &'static str) -> StoreError {
        let message = format!("the store on {} is closed; open it again", self.place);
        StoreError::new(StoreErrorKind::Misuse, BACKEND, operation, message)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("place", &self.place).finish_non_exhaustive()
    }
}

fn check(config: &RedisConfig) -> Result<(), StoreError> {
    config.validate().map_err(|error| {
        StoreError::new(StoreErrorKind::Misuse, BACKEND, "open", "the configuration cannot work")
            .with_source(error)
    })
}

/// The driver must not send a command twice by itself: a write whose answer is lost is told to whoever made it. It may not
/// follow a redirection either: it would count it as an attempt, and tell the same of it as of a lost connection. (Nor does it
/// send a command to the node that `ASK` names, but to the same one again.) A slot that is on its way is waited for.
fn options(config: &RedisConfig) -> Options {
    Options {
        max_attempts: Some(1),
        max_redirections: Some(0),
        timeout: Some(config.command_timeout),
        ..Options::default()
    }
}

fn policy(last_delay: u32) -> ReconnectPolicy {
    // The driver adds no jitter to the last delay. Each connection has another one, so that those that a server lost at the same
    // time do not come back at the same time again and again.
    let last_delay = f64::from(last_delay) * (0.5 + random_fraction(&OsEntropy::new()) / 2.0);
    ReconnectPolicy::Exponential {
        attempts: 0,
        max_attempts: 0,
        min_delay: FIRST_DELAY,
        max_delay: last_delay as u32,
        base: 2,
        jitter: JITTER,
    }
}

fn settings(config: &RedisConfig) -> (ConnectionConfig, PerformanceConfig) {
    let unresponsive = UnresponsiveConfig {
        max_timeout: Some(config.command_timeout),
        interval: config.command_timeout / 4,
    };
    let connection = ConnectionConfig {
        connection_timeout: config.connect_timeout,
        internal_command_timeout: config.connect_timeout,
        max_command_attempts: 1,
        max_redirections: 0,
        max_command_buffer_len: QUEUE,
        unresponsive,
        // After a failover the old master is a replica, and only a new connection finds the new one.
        reconnect_errors: vec![ReconnectError::ReadOnly],
        reconnect_on_auth_error: true,
        ..ConnectionConfig::default()
    };
    let performance =
        PerformanceConfig { default_command_timeout: config.command_timeout, ..PerformanceConfig::default() };
    (connection, performance)
}

fn place_of(fred: &fred::clients::Client) -> Arc<str> {
    let config = fred.client_config();
    let servers: Vec<_> = match &config.server {
        ServerConfig::Centralized { server } => vec![server.to_string()],
        ServerConfig::Clustered { hosts, .. } | ServerConfig::Sentinel { hosts, .. } => {
            hosts.iter().map(ToString::to_string).collect()
        }
    };
    let database = config.database.map(|database| format!("/{database}")).unwrap_or_default();
    format!("{}{database}", servers.join(",")).into()
}

async fn connect(fred: &fred::clients::Client, place: &str) -> Result<ConnectHandle, StoreError> {
    fred.init().await.map_err(|error| failed("open", place, Access::Read, error))
}

/// What the driver says of a URL may repeat it, and with it the password.
fn bad_url(error: &fred::error::Error) -> StoreError {
    let message = format!(
        "the URL is not understood ({:?}); write redis://[user:password@]host[:port][/database], or rediss:// for TLS",
        error.kind()
    );
    StoreError::new(StoreErrorKind::Misuse, BACKEND, "open", message)
}

/// The outcome, unless it takes too long.
#[expect(
    clippy::disallowed_methods,
    reason = "a real server answers in real time, whatever the bot's clock says"
)]
async fn in_time<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
