//! The connections to the server or the Cluster, over which calls are pipelined, and the scripts.

mod ears;
mod node;
mod nodes;
mod probe;
mod reply;
mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::entropy::{OsEntropy, random_fraction};
use botmesh_core::error::{StoreError, StoreErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{
    Config, ConnectionConfig, Options, PerformanceConfig, ReconnectError, ReconnectPolicy, Server,
    ServerConfig, UnresponsiveConfig,
};
use fred::types::{RespVersion, Value};
use fred::util::redis_keyslot;
use futures_util::future::join_all;

pub(crate) use self::ears::{Ears, Heard};
use self::node::Call;
pub(crate) use self::node::Node;
use self::nodes::Nodes;
pub(crate) use self::reply::{Reply, Unexpected};
use crate::config::{Persistence, RedisConfig};
#[cfg(feature = "mutations")]
use crate::coordinator::Altered;
use crate::error::{Access, BACKEND};
use crate::scripts::{ALL, Script};

/// Delays between attempts to connect again, in milliseconds: the first, doubled each time up to the last.
const FIRST_DELAY: u32 = 50;
const LAST_DELAY: u32 = 2_000;
/// Added to all but the last one, at most.
const JITTER: u32 = 50;

/// How often it is tried to connect to a node of a Cluster: one that left is not looked for for ever. Whoever needs it begins anew.
const NODE_ATTEMPTS: u32 = 20;

/// The last delay of a connection whose loss ends leases.
const FASTEST_DELAY: u32 = 200;

/// How many calls wait in the driver at most; further ones fail at once.
const QUEUE: usize = 16_384;

/// Open connections. When the last clone of the handle around them goes, they end.
pub(crate) struct Client {
    link: Link,
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

enum Link {
    One(Arc<Node>),
    Cluster(Box<Nodes>),
}

impl Client {
    pub(crate) async fn open(url: &str, config: RedisConfig) -> Result<Self, StoreError> {
        check(&config)?;
        let server = Config::from_url(url).map_err(|error| bad_url(&error))?;
        let place = place_of(&server);
        let link = Link::open(Settings::new(server, &config, LAST_DELAY), Arc::clone(&place)).await?;
        Self::probed(link, Arc::new(config), place).await
    }

    /// Over a connection that stays the caller's. One to a Cluster only tells how to make others: see [`Nodes`].
    pub(crate) async fn with(fred: fred::clients::Client, config: RedisConfig) -> Result<Self, StoreError> {
        check(&config)?;
        let place = place_of(&fred.client_config());
        if !fred.is_clustered() {
            let node = Node::over(&fred, &options(&config), Arc::clone(&place));
            return Self::probed(Link::One(Arc::new(node)), Arc::new(config), place).await;
        }
        let config = config.with_connect_timeout(fred.connection_config().connection_timeout);
        let settings = Settings::like(&fred, &config, LAST_DELAY);
        Self::probed(Link::open(settings, Arc::clone(&place)).await?, Arc::new(config), place).await
    }

    fn new(link: Link, config: Arc<RedisConfig>, place: Arc<str>) -> Self {
        Self {
            link,
            config,
            place,
            hashes: Arc::default(),
            persistence: Persistence::None,
            closed: AtomicBool::new(false),
            #[cfg(feature = "mutations")]
            altered: Altered::default(),
        }
    }

    async fn probed(link: Link, config: Arc<RedisConfig>, place: Arc<str>) -> Result<Self, StoreError> {
        let mut client = Self::new(link, config, place);
        let probed = probe::run(&client).await?;
        client.hashes = probed.hashes.into();
        client.persistence = probed.persistence;
        Ok(client)
    }

    fn over(&self, link: Link, config: Arc<RedisConfig>) -> Self {
        let (hashes, persistence) = (Arc::clone(&self.hashes), self.persistence);
        Self { hashes, persistence, ..Self::new(link, config, Arc::clone(&self.place)) }
    }

    /// The same server over a connection of its own, on the runtime of the caller.
    pub(crate) async fn beside(&self) -> Result<Self, StoreError> {
        let link = match &self.link {
            Link::One(node) => {
                let fred = fred::clients::Client::clone_new(&node.fred);
                let node = Node::open(&fred, &options(&self.config), Arc::clone(&self.place)).await?;
                Link::One(Arc::new(node))
            }
            Link::Cluster(nodes) => Link::Cluster(Box::new(Nodes::open(nodes.settings().clone()).await?)),
        };
        Ok(self.over(link, Arc::clone(&self.config)))
    }

    /// The same server over a connection of its own, on the runtime of the caller, on which so many pushes may wait to be read.
    /// There is room for all of them from the start.
    pub(crate) async fn for_turns(&self, config: RedisConfig, pushes: usize) -> Result<Self, StoreError> {
        let mut settings = match &self.link {
            Link::One(node) => Settings::like(&node.fred, &config, FASTEST_DELAY),
            Link::Cluster(nodes) => nodes.settings().with(&config, FASTEST_DELAY),
        };
        settings.server.version = RespVersion::RESP3;
        settings.performance.broadcast_channel_capacity = pushes;
        let link = Link::open(settings, Arc::clone(&self.place)).await?;
        Ok(self.over(link, Arc::new(config)))
    }

    /// Hears what the connections tell, from now on.
    pub(crate) fn ears(&self) -> Ears {
        match &self.link {
            Link::One(node) => Ears::new(std::slice::from_ref(node), None),
            Link::Cluster(nodes) => {
                let (joined, nodes) = nodes.joined();
                Ears::new(&nodes, Some(joined))
            }
        }
    }

    pub(crate) fn is_clustered(&self) -> bool {
        matches!(self.link, Link::Cluster(_))
    }

    /// Whether what is sent now is on its way at once, if the connection is not being lost.
    pub(crate) fn is_connected(&self) -> bool {
        self.nodes().iter().all(|node| node.is_connected())
    }

    /// The connections: one, or on a Cluster one to each master.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.link {
            Link::One(node) => vec![Arc::clone(node)],
            Link::Cluster(nodes) => nodes.masters(),
        }
    }

    /// Whether a connection is still one of this client's.
    pub(crate) fn has(&self, node: &Arc<Node>) -> bool {
        match &self.link {
            Link::One(_) => true,
            Link::Cluster(nodes) => nodes.all().iter().any(|other| Arc::ptr_eq(other, node)),
        }
    }

    /// Whether calls about a slot of a Cluster go over this connection.
    pub(crate) fn serves(&self, node: &Arc<Node>, slot: u16) -> bool {
        match &self.link {
            Link::One(_) => true,
            Link::Cluster(nodes) => nodes.is_at(slot, node),
        }
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
        let args = args.into_iter().map(Value::Bytes).collect();
        self.send(operation, access, name, key.as_ref(), args).await?.ok(operation, &self.place, access)
    }

    /// Sends one command over this connection.
    pub(crate) async fn command_at(
        &self,
        node: &Node,
        operation: &'static str,
        access: Access,
        name: &'static str,
        args: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        let args = args.into_iter().map(Value::Bytes).collect();
        let call = Call { operation, access, name, args, slot: None };
        send_to(node, &call).await?.ok(operation, node.place(), access)
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
        let hash = self.hashes.get(script.number).cloned().unwrap_or_default();
        let call = called(hash, keys, &args);
        let reply = self.send(operation, access, "EVALSHA", keys.first(), call).await?;
        if !reply.is_unknown_script() {
            return reply.ok(operation, &self.place, access);
        }
        let moved = reply.is_moved();
        let call = called(Bytes::from_static(script.text.as_bytes()), keys, &args);
        // Apart, as it is rare, and each call would have room for it.
        let reply = Box::pin(self.send(operation, access, "EVAL", keys.first(), call)).await?;
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
        let call = called(Bytes::from_static(text.as_bytes()), keys, &args);
        self.send("open", Access::Read, "EVAL", keys.first(), call).await?.ok(
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
        args: Vec<Value>,
    ) -> Result<Reply, StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(self.closed(operation));
        }
        let slot = key.filter(|_| self.is_clustered()).map(|key| redis_keyslot(key));
        let call = Call { operation, access, name, args, slot };
        match &self.link {
            Link::One(node) => send_to(node, &call).await,
            Link::Cluster(nodes) => Box::pin(nodes.send(&call)).await,
        }
    }

    /// Waits until what was sent before is answered, and ends connections that are our own.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match &self.link {
            Link::One(node) => node.close().await,
            Link::Cluster(nodes) => nodes.close().await,
        }
        Ok(())
    }

    /// Waits until the server answered what was sent before. One that cannot be reached answers nothing more.
    pub(crate) async fn settle(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let nodes = match &self.link {
            Link::One(node) => vec![Arc::clone(node)],
            Link::Cluster(nodes) => nodes.all(),
        };
        let ping = Call { operation, access: Access::Read, name: "PING", args: Vec::new(), slot: None };
        let settled = nodes.iter().filter(|node| node.is_connected()).map(async |node| {
            let answer = send_to(node, &ping).await;
            match answer.and_then(|reply| reply.ok(operation, node.place(), Access::Read)) {
                Err(error) if error.kind() != StoreErrorKind::Unavailable => Err(error),
                _ => Ok(()),
            }
        });
        join_all(settled).await.into_iter().collect()
    }

    pub(crate) fn closed(&self, operation: &'static str) -> StoreError {
        let message = format!("the store on {} is closed; open it again", self.place);
        StoreError::new(StoreErrorKind::Misuse, BACKEND, operation, message)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("place", &self.place).finish_non_exhaustive()
    }
}

/// What `EVAL` and `EVALSHA` are given.
fn called(script: Bytes, keys: &[Bytes], args: &[Bytes]) -> Vec<Value> {
    let mut all = Vec::with_capacity(2 + keys.len() + args.len());
    all.push(Value::Bytes(script));
    all.push(Value::Integer(i64::try_from(keys.len()).unwrap_or(i64::MAX)));
    all.extend(keys.iter().chain(args).cloned().map(Value::Bytes));
    all
}

fn check(config: &RedisConfig) -> Result<(), StoreError> {
    config.validate().map_err(|error| {
        StoreError::new(StoreErrorKind::Misuse, BACKEND, "open", "the configuration cannot work")
            .with_source(error)
    })
}

/// The driver must not send a command twice by itself: a write whose answer is lost is told to whoever made it. It may not
/// follow a redirection either: it would count it as an attempt, and tell the same of it as of a lost connection. (Nor does it
/// send a command to the node that `ASK` names, but to the same one again.) Over connections of our own, [`Nodes`] does both.
fn options(config: &RedisConfig) -> Options {
    Options {
        max_attempts: Some(1),
        max_redirections: Some(0),
        timeout: Some(config.command_timeout),
        ..Options::default()
    }
}

fn policy(last_delay: u32, max_attempts: u32) -> ReconnectPolicy {
    // The driver adds no jitter to the last delay. Each connection has another one, so that those that a server lost at the same
    // time do not come back at the same time again and again.
    let last_delay = f64::from(last_delay) * (0.5 + random_fraction(&OsEntropy::new()) / 2.0);
    ReconnectPolicy::Exponential {
        attempts: 0,
        max_attempts,
        min_delay: FIRST_DELAY,
        max_delay: last_delay as u32,
        base: 2,
        jitter: JITTER,
    }
}

/// How connections are made.
#[derive(Clone)]
struct Settings {
    server: Config,
    connection: ConnectionConfig,
    performance: PerformanceConfig,
    last_delay: u32,
    options: Options,
}

impl Settings {
    fn new(server: Config, config: &RedisConfig, last_delay: u32) -> Self {
        Self::of(server, ConnectionConfig::default(), config, last_delay)
    }

    /// As a connection of the caller's is made, as far as that does not say how often and for how long something is tried.
    fn like(fred: &fred::clients::Client, config: &RedisConfig, last_delay: u32) -> Self {
        Self::of(fred.client_config(), fred.connection_config().clone(), config, last_delay)
    }

    /// The same servers.
    fn with(&self, config: &RedisConfig, last_delay: u32) -> Self {
        Self::of(self.server.clone(), self.connection.clone(), config, last_delay)
    }

    fn of(server: Config, connection: ConnectionConfig, config: &RedisConfig, last_delay: u32) -> Self {
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
            ..connection
        };
        let performance = PerformanceConfig {
            default_command_timeout: config.command_timeout,
            ..PerformanceConfig::default()
        };
        Self { server, connection, performance, last_delay, options: options(config) }
    }

    fn timeout(&self) -> Duration {
        self.options.timeout.unwrap_or_default()
    }

    /// A client for what is configured, or for one server of it, which may have to answer at once.
    fn client(&self, server: Option<&Server>, at_once: bool) -> fred::clients::Client {
        let mut config = self.server.clone();
        if let Some(server) = server {
            config.server = ServerConfig::Centralized { server: server.clone() };
        }
        config.fail_fast = at_once;
        let (connection, performance) = (self.connection.clone(), self.performance.clone());
        let attempts = if server.is_some() { NODE_ATTEMPTS } else { 0 };
        let policy = policy(self.last_delay, attempts);
        fred::clients::Client::new(config, Some(performance), Some(connection), Some(policy))
    }
}

impl Link {
    async fn open(settings: Settings, place: Arc<str>) -> Result<Self, StoreError> {
        if settings.server.server.is_clustered() {
            return Ok(Self::Cluster(Box::new(Nodes::open(settings).await?)));
        }
        let node = Node::open(&settings.client(None, true), &settings.options, place).await?;
        Ok(Self::One(Arc::new(node)))
    }
}

/// Sends a call over one connection.
async fn send_to(node: &Node, call: &Call) -> Result<Reply, StoreError> {
    node.connected(call.operation).await?;
    node.call(call).await.map(Reply::new).map_err(|error| node.failed(call, error))
}

fn place_of(config: &Config) -> Arc<str> {
    let servers: Vec<_> = config.server.hosts().iter().map(ToString::to_string).collect();
    let database = config.database.map(|database| format!("/{database}")).unwrap_or_default();
    format!("{}{database}", servers.join(",")).into()
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
