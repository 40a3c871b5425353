//! How a coordinator begins: its connections, its thread, and whether the server can serve.

use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::entropy::{OsEntropy, random_hex};
use botmesh_core::error::{ConfigError, LeaseLostReason, StoreError, StoreErrorKind};
use botmesh_core::time::{Clock, SystemClock};
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

use super::bucket::{Bucket, HASH, ON_A_CLUSTER, wake};
use super::config::RedisCoordinatorConfig;
use super::lane::{Job, Lane};
use super::session::Session;
use super::shared::{Begun, Shared};
use super::wire::Wire;
use super::{serve, thread};
use crate::RedisConfig;
use crate::client::{Client, Node};
use crate::error::{Access, BACKEND, answered};
use crate::keys;
use crate::scripts::{LAYOUT, TURNS_PROBE};

/// The version of the layout of the keys.
const FORMAT: &str = "2";

/// Round trips that are measured.
const SAMPLES: usize = 5;

/// A lease is at least so many round trips.
const TRIPS: u32 = 12;

/// Pushes that may wait to be read. Whoever misses some asks for everything.
const PUSHES: usize = 4096;

type Jobs = Vec<mpsc::UnboundedReceiver<Job>>;

/// Starts the thread, and what serves the calls. Returns when there is a session.
pub(super) async fn start(
    client: Arc<Client>,
    config: RedisCoordinatorConfig,
    incarnation: String,
) -> Result<Arc<Shared>, StoreError> {
    config.validate().map_err(misuse)?;
    let (ends, to_tell) = mpsc::unbounded_channel();
    let (shared, jobs) = prepare(&client, config, incarnation, ends).await?;
    let (served, serving) = (Served(Arc::clone(&shared)), serve::run(Arc::clone(&shared), jobs));
    let (told, started) = oneshot::channel();
    let stopping = Stopping(Arc::clone(&shared));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let spawned = runtime.and_then(|runtime| {
        Builder::new().name("bot-turns".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let opened = open_first(&client, &stopping.0).await;
                drop(client);
                match opened {
                    Ok(beats) => {
                        if told.send(Ok(())).is_err() {
                            stopping.0.stop.cancel();
                        }
                        thread::run(Arc::clone(&stopping.0), beats, to_tell).await;
                    }
                    Err(error) => drop(told.send(Err(error))),
                }
            });
        })
    });
    let failed = |what: &str| StoreError::new(StoreErrorKind::Unavailable, BACKEND, "turns", what);
    spawned.map_err(|error| failed("the thread for the turns cannot be started").with_source(error))?;
    started.await.map_err(|_| failed("the thread for the turns ended"))??;
    beside_the_connection(async move {
        serving.await;
        drop(served);
    });
    Ok(shared)
}

#[expect(
    clippy::disallowed_methods,
    reason = "it belongs to a connection, whose task the driver starts in the same way"
)]
fn beside_the_connection(task: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(task));
}

/// When the thread ends, however it does, nobody waits for it and nobody trusts it.
struct Stopping(Arc<Shared>);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.finish(LeaseLostReason::CoordinatorLost);
        self.0.stopped.cancel();
    }
}

/// So it is when the calls are not served any more, as when their runtime ends.
struct Served(Arc<Shared>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.lanes().for_each(|lane| lane.groups.close());
        self.0.finish(LeaseLostReason::CoordinatorLost);
        self.0.served.cancel();
    }
}

fn misuse(error: ConfigError) -> StoreError {
    StoreError::new(StoreErrorKind::Misuse, BACKEND, "turns", "the configuration cannot work")
        .with_source(error)
}

/// How long a command may take that must not last for a lease.
fn connection(client: &Client, config: &RedisCoordinatorConfig) -> RedisConfig {
    let timeout = config.command_timeout();
    let connection = client.config().clone();
    let connect_timeout = connection.connect_timeout.min(timeout * 2);
    connection.with_command_timeout(timeout).with_connect_timeout(connect_timeout)
}

async fn prepare(
    client: &Client,
    config: RedisCoordinatorConfig,
    incarnation: String,
    ends: mpsc::UnboundedSender<Arc<Session>>,
) -> Result<(Arc<Shared>, Jobs), StoreError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    // On a Cluster a slot that is on its way holds up a group as soon as one of its keys is not there.
    let in_groups = !client.is_clustered();
    #[cfg(feature = "mutations")]
    let in_groups = in_groups && config.altered.without.is_none();
    let connection = connection(client, &config);
    let prefix = connection.prefix.clone();
    let buckets = if client.is_clustered() { ON_A_CLUSTER } else { 1 };
    let commands = client.for_turns(connection, PUSHES).await?;
    #[cfg(feature = "mutations")]
    let commands = commands.with_altered(config.altered);
    permissions(&commands, &prefix).await?;
    layout(&commands, buckets).await?;
    let round_trip = round_trip(&commands, &*clock).await?;
    if config.lease < round_trip * TRIPS {
        return Err(misuse(ConfigError::new(
            "coordinator.lease",
            format!(
                "{} is too short for a server whose answers take {round_trip:?}",
                botmesh_core::duration::format(config.lease)
            ),
            format!("set at least {TRIPS} times as long"),
        )));
    }
    let wire = Wire::new(commands, Arc::clone(&clock));
    // Before the first ticket, so that no push is missed.
    hear(&wire.client, &wake(&prefix, &incarnation), &*clock).await?;
    let entropy = Arc::new(OsEntropy::new());
    let begun = Begun { incarnation, margin: config.margin(round_trip), entropy, ends };
    let (lanes, todo): (Vec<_>, Jobs) = (0..buckets)
        .map(|number| {
            let (jobs, todo) = mpsc::unbounded_channel();
            let lane = Lane::new(number, Bucket::new(&prefix, number), config.floor, jobs);
            if !in_groups {
                lane.groups.close();
            }
            (Arc::new(lane), todo)
        })
        .unzip();
    Ok((Arc::new(Shared::new(config, clock, wire, begun, lanes)), todo))
}

/// Connects for the heartbeats, and opens the session that there always is.
async fn open_first(client: &Client, shared: &Arc<Shared>) -> Result<Wire, StoreError> {
    let beats = client.for_turns(connection(client, &shared.config), 16).await?;
    #[cfg(feature = "mutations")]
    let beats = beats.with_altered(shared.config.altered);
    let beats = Wire::new(beats, Arc::clone(&shared.clock));
    if let Some(first) = shared.lanes().next()
        && shared.open(&beats, first).await.map_err(|error| too_old(client, error))?.is_none()
    {
        let what = format!("{}: it did not open a session; try again", client.place());
        return Err(StoreError::new(StoreErrorKind::Unavailable, BACKEND, "turns", what));
    }
    Ok(beats)
}

/// Hears the pushes to a channel from every node. Nodes of a Cluster that cannot be reached are heard when they can, if there is
/// another one.
pub(super) async fn hear(client: &Client, channel: &str, clock: &dyn Clock) -> Result<(), StoreError> {
    let nodes = client.nodes();
    let heard = join_all(nodes.iter().map(|node| hear_at(client, node, channel, clock))).await;
    let is_heard = heard.iter().any(Result::is_ok);
    let gone = |error: &StoreError| is_heard && error.kind() == StoreErrorKind::Unavailable;
    heard.into_iter().filter(|heard| !heard.as_ref().is_err_and(gone)).collect()
}

/// Subscribes, and waits for a push of its own: the driver does not tell that a subscription was refused.
pub(super) async fn hear_at(
    client: &Client,
    node: &Node,
    channel: &str,
    clock: &dyn Clock,
) -> Result<(), StoreError> {
    let mut pushes = node.pushes();
    node.subscribe(channel).await?;
    let own = random_hex(&OsEntropy::new());
    let args = [channel, own.as_str()].map(|arg| Bytes::copy_from_slice(arg.as_bytes())).to_vec();
    client.command_at(node, "turns", Access::Read, "PUBLISH", args).await?;
    let heard =
        async { while pushes.recv().await.is_ok_and(|push| push.value.as_str().as_deref() != Some(&own)) {} };
    tokio::select! {
        () = heard => Ok(()),
        () = clock.sleep(client.config().command_timeout) => {
            let what = format!(
                "{}: it does not push what is published to {channel}; give the user the permission for SUBSCRIBE and the \
                 channels that the README of botmesh-redis-store lists for turns, and connect without a proxy that takes \
                 no subscriptions",
                node.place()
            );
            Err(StoreError::new(StoreErrorKind::Denied, BACKEND, "turns", what))
        }
    }
}

/// The longest of some round trips.
async fn round_trip(client: &Client, clock: &dyn Clock) -> Result<Duration, StoreError> {
    let mut longest = Duration::ZERO;
    for _ in 0..SAMPLES {
        let sent = clock.monotonic();
        client.command("turns", Access::Read, "PING", Vec::new()).await?;
        longest = longest.max(clock.monotonic().saturating_sub(sent));
    }
    Ok(longest)
}

/// Servers before version 7 know no flags of scripts.
fn too_old(client: &Client, error: StoreError) -> StoreError {
    if !error.to_string().contains("compiling script") {
        return error;
    }
    let what =
        format!("{}: turns need Redis 7.0 or newer, or a server that is compatible with it", client.place());
    StoreError::new(StoreErrorKind::Incompatible, BACKEND, "turns", what).with_source(error)
}

async fn permissions(client: &Client, prefix: &str) -> Result<(), StoreError> {
    let bucket = Bucket::new(prefix, 0);
    let scratch = ["probe:hash", "probe:queue", "probe:text"].map(|name| bucket.named(name));
    let reply = client.eval(TURNS_PROBE, &scratch, vec![wake(prefix, "probe").into()]).await?;
    let strange = |what: crate::client::Unexpected| what.error("turns", client.place(), Access::Read);
    let missing = reply.texts().map_err(strange)?;
    let [command, error, ..] = &missing[..] else { return Ok(()) };
    let (command, error) = (String::from_utf8_lossy(command), String::from_utf8_lossy(error));
    let cause = answered("turns", client.place(), Access::Read, &error);
    let what = format!(
        "{}: {command} fails on what the turns use ({error}); give the user the permissions that the README of \
         botmesh-redis-store lists for turns",
        client.place()
    );
    Err(StoreError::new(cause.kind(), BACKEND, "turns", what))
}

/// Replicas with another layout would not see each other's tickets.
async fn layout(client: &Client, buckets: usize) -> Result<(), StoreError> {
    let prefix = &client.config().prefix;
    let buckets = buckets.to_string();
    let layout = [("format", FORMAT), ("buckets", &buckets), ("hash", HASH)];
    let fields = layout.iter().flat_map(|(name, value)| [name, value]);
    let fields = fields.map(|text| Bytes::copy_from_slice(text.as_bytes())).collect();
    let reply = client.eval(LAYOUT, &[keys::turns_layout(prefix)], fields).await?;
    let strange = |what: crate::client::Unexpected| what.error("turns", client.place(), Access::Read);
    let record = reply.texts().map_err(strange)?;
    for (name, own) in layout {
        let found = record.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| &pair[1]);
        if found.is_none_or(|found| found != own) {
            let what = format!(
                "{}: the turns under the prefix {prefix} are laid out by another version of this program ({name} is {} \
                 there and {own} here); run the same version everywhere, or choose another prefix; to go over to this \
                 version, stop all replicas and delete {{{prefix}:turns:*}}:* and {}",
                client.place(),
                found.map_or_else(|| "missing".into(), |found| String::from_utf8_lossy(found)),
                String::from_utf8_lossy(&keys::turns_layout(prefix)),
            );
            return Err(StoreError::new(StoreErrorKind::Incompatible, BACKEND, "turns", what));
        }
    }
    Ok(())
}
