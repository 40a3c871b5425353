//! The masters of a Cluster, over a connection to each. The driver has one task for all nodes of a Cluster, which does nothing
//! else while it connects again to one of them; so each node has a connection of the driver's to itself.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use botmesh_core::error::StoreError;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{Server, ServerConfig};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::broadcast;

use super::node::{Call, Node};
use super::reply::Reply;
use super::slots::{Redirection, Slots};
use super::{Settings, in_time};
use crate::error::{Access, answered, failed};

/// How often a call follows a slot to another node.
const REDIRECTIONS: u32 = 5;

/// How long a call waits for a connection before it looks again where its slot is, and one that failed for who has it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Nodes that may join before somebody hears of it.
const JOINED: usize = 256;

pub(super) struct Nodes {
    settings: Settings,
    runtime: Handle,
    seeds: Vec<Server>,
    map: Mutex<Map>,
    joined: broadcast::Sender<Arc<Node>>,
    /// How often it was asked who has the slots.
    looks: AtomicU64,
    looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Map {
    slots: Slots,
    nodes: HashMap<Server, Arc<Node>>,
    /// Connections for slots that are on their way to a node.
    asking: HashMap<Server, Arc<Node>>,
    /// Who answered last about a slot.
    answered: HashMap<u16, Server>,
}

impl Map {
    fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.nodes.get(self.slots.owner(slot)?)
    }

    fn is_at(&self, slot: u16, node: &Arc<Node>) -> bool {
        self.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, node))
    }
}

impl Nodes {
    /// Connects to one of the servers in `settings` at least, on the runtime of the caller.
    pub(super) async fn open(settings: Settings) -> Result<Self, StoreError> {
        let seeds = settings.server.server.hosts();
        let nodes = Self {
            settings,
            runtime: Handle::current(),
            seeds,
            map: Mutex::default(),
            joined: broadcast::channel(JOINED).0,
            looks: AtomicU64::new(0),
            looking: tokio::sync::Mutex::default(),
        };
        let mut answers: FuturesUnordered<_> = nodes.seeds.iter().map(|seed| nodes.first(seed)).collect();
        let mut failure = None::<StoreError>;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok((seed, node, slots)) => {
                    drop(answers);
                    nodes.map().nodes.insert(seed, Arc::new(node));
                    nodes.apply(slots);
                    return Ok(nodes);
                }
                // One that says more than that it cannot be reached is the one to tell of.
                Err(error) if failure.as_ref().is_none_or(StoreError::retry) => failure = Some(error),
                Err(_) => {}
            }
        }
        let none = || {
            let error = Error::new(ErrorKind::Config, "no node of the Cluster is named");
            failed("open", "redis-cluster", Access::Read, error)
        };
        Err(failure.unwrap_or_else(none))
    }

    async fn first(&self, seed: &Server) -> Result<(Server, Node, Slots), StoreError> {
        let (fred, place) = (self.settings.client(Some(seed), true), place_of(seed));
        let node = Node::open(&fred, &self.settings.options, place).await?;
        let slots = self.ask(&node).await?;
        Ok((seed.clone(), node, slots))
    }

    /// Asks a node who has the slots.
    async fn ask(&self, node: &Node) -> Result<Slots, StoreError> {
        let (operation, access) = ("open", Access::Read);
        let args = vec!["SLOTS".into()];
        let call = Call { operation, access, name: "CLUSTER", args, slot: None };
        let reply = Reply::new(node.call(&call).await.map_err(|error| node.failed(&call, error))?);
        let reply = reply.ok(operation, &node.place, access)?;
        let slots = Slots::read(reply, &host_of(node), self.settings.server.tls.as_ref());
        let slots = slots.map_err(|what| what.error(operation, &node.place, access))?;
        if slots.masters().next().is_none() {
            // It forgot its Cluster, as one that starts without its files. The others may know better.
            return Err(answered(operation, &node.place, access, "CLUSTERDOWN it knows of no slots"));
        }
        Ok(slots)
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, slots: Slots) {
        let mut map = self.map();
        map.slots = slots;
        let Map { slots, nodes, .. } = &mut *map;
        nodes.retain(|server, _| slots.masters().any(|master| master == server));
    }

    /// The connection to a server, which may have to be made.
    fn node(&self, map: &mut Map, server: &Server) -> Arc<Node> {
        if let Some(node) = map.nodes.get(server).filter(|node| !node.is_ended()) {
            return Arc::clone(node);
        }
        let node = self.begin(server);
        map.nodes.insert(server.clone(), Arc::clone(&node));
        // Where nobody listens nobody misses it.
        drop(self.joined.send(Arc::clone(&node)));
        node
    }

    fn begin(&self, server: &Server) -> Arc<Node> {
        let _on = self.runtime.enter();
        Arc::new(Node::begin(
            &self.settings.client(Some(server), false),
            &self.settings.options,
            place_of(server),
        ))
    }

    /// Where a call about a slot goes; one about none goes anywhere.
    fn route(&self, slot: Option<u16>) -> Arc<Node> {
        let mut map = self.map();
        let owner = slot.and_then(|slot| map.slots.owner(slot).cloned());
        let any = |map: &Map| {
            let connected = map.nodes.iter().find(|(_, node)| node.is_connected());
            connected.or_else(|| map.nodes.iter().next()).map(|(server, _)| server.clone())
        };
        let server = owner.or_else(|| any(&map)).or_else(|| self.seeds.first().cloned());
        let server = server.unwrap_or_else(|| Server::new(String::new(), 0));
        self.node(&mut map, &server)
    }

    /// A node that is connected, the right one as far as is known; looks where the slot is while it waits.
    async fn ready(&self, call: &Call) -> Result<Arc<Node>, StoreError> {
        let (mut node, mut why) = (self.route(call.slot), None);
        let waited = in_time(self.settings.timeout(), async {
            while !node.is_connected() {
                self.look(call.slot, Some(&node)).await;
                let next = self.route(call.slot);
                if Arc::ptr_eq(&next, &node)
                    && let Err(error) = node.wait(LOOK_AGAIN).await
                {
                    why = Some(error);
                }
                node = next;
            }
        });
        if waited.await.is_some() {
            return Ok(node);
        }
        let error = why.unwrap_or_else(|| Error::new(ErrorKind::Timeout, "not connected"));
        Err(failed(call.operation, &node.place, Access::Read, error))
    }

    /// Refuses a call about a slot that nobody has. A node would refuse it too, and the driver then makes its connection anew, which
    /// calls about other slots would have to wait for.
    async fn owned(&self, call: &Call) -> Result<(), StoreError> {
        let Some(slot) = call.slot else { return Ok(()) };
        let is_owned = || self.map().slots.owner(slot).is_some();
        if !is_owned() {
            self.look(call.slot, None).await;
        }
        if is_owned() {
            return Ok(());
        }
        let (node, what) = (self.route(None), "CLUSTERDOWN Hash slot not served");
        Err(failed(call.operation, &node.place, Access::Read, Error::new(ErrorKind::Cluster, what)))
    }

    /// Sends a call to the node that has its slot, once, and follows the slot.
    pub(super) async fn send(&self, call: &Call) -> Result<Reply, StoreError> {
        self.owned(call).await?;
        let (mut node, mut asks) = (self.ready(call).await?, false);
        for _ in 0..=REDIRECTIONS {
            let sent = if asks { node.ask(call).await } else { node.call(call).await };
            let reply = match sent {
                Ok(frame) => Reply::new(frame),
                Err(error) => {
                    // For the next call; this one has taken its time.
                    in_time(LOOK_AGAIN, self.look(call.slot, Some(&node))).await;
                    return Err(node.failed(call, error));
                }
            };
            let Some(to) = reply.error().and_then(Redirection::read) else {
                let moved = !asks && call.slot.is_some_and(|slot| self.answers(slot, &node));
                return Ok(reply.moved(moved));
            };
            asks = to.asks;
            node = self.follow(call.slot, &to, &node);
            node.connected(call.operation).await?;
        }
        let error = Error::new(ErrorKind::Routing, "Too many redirections.");
        Err(node.failed(call, error))
    }

    /// Whether the last answer about the slot came from another node.
    fn answers(&self, slot: u16, node: &Arc<Node>) -> bool {
        let mut map = self.map();
        if !map.is_at(slot, node) {
            return false;
        }
        let Some(owner) = map.slots.owner(slot) else { return false };
        if map.answered.get(&slot) == Some(owner) {
            return false;
        }
        let owner = owner.clone();
        map.answered.insert(slot, owner).is_some()
    }

    fn follow(&self, slot: Option<u16>, to: &Redirection, from: &Node) -> Arc<Node> {
        let mut map = self.map();
        let server = map.slots.named(to, &host_of(from), self.settings.server.tls.as_ref());
        if to.asks {
            let asking = map.asking.get(&server).filter(|node| !node.is_ended()).cloned();
            return asking.unwrap_or_else(|| {
                let node = self.begin(&server);
                map.asking.insert(server, Arc::clone(&node));
                node
            });
        }
        if let Some(slot) = slot {
            map.slots.move_to(slot, &server);
        }
        // Slots that were on their way to it have arrived.
        map.asking.remove(&server);
        self.node(&mut map, &server)
    }

    /// Asks the other nodes who has a slot, until one names another node than this one, or any.
    async fn look(&self, slot: Option<u16>, not: Option<&Arc<Node>>) {
        let looks = self.looks.load(Ordering::Acquire);
        let _one = self.looking.lock().await;
        // Whoever did it while this call waited did it for all.
        if self.looks.load(Ordering::Acquire) != looks {
            return;
        }
        let mut asked: FuturesUnordered<_> =
            self.others(not).into_iter().map(|node| async move { self.ask(&node).await }).collect();
        let looked = async {
            while let Some(answer) = asked.next().await {
                let Ok(slots) = answer else { continue };
                self.apply(slots);
                let map = self.map();
                let another = |slot: u16| match not {
                    Some(not) => !map.is_at(slot, not),
                    None => map.slots.owner(slot).is_some(),
                };
                if slot.is_none_or(another) {
                    return;
                }
            }
        };
        in_time(self.settings.timeout(), looked).await;
        self.looks.fetch_add(1, Ordering::AcqRel);
    }

    /// Those that are connected; without any, those that were named at the start.
    fn others(&self, not: Option<&Arc<Node>>) -> Vec<Arc<Node>> {
        let mut map = self.map();
        let is_other = |node: &Arc<Node>| not.is_none_or(|not| !Arc::ptr_eq(node, not));
        let others = map.nodes.values().filter(|node| is_other(node) && node.is_connected());
        let others: Vec<_> = others.cloned().collect();
        if !others.is_empty() {
            return others;
        }
        let seeds = self.seeds.iter().map(|seed| self.node(&mut map, seed));
        seeds.filter(is_other).collect()
    }

    /// All there are, one for each master that is used.
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.map().nodes.values().cloned().collect()
    }

    /// The connection to each master that is known to have slots; where there is none yet it begins.
    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        let mut map = self.map();
        let masters: HashSet<_> = map.slots.masters().cloned().collect();
        masters.iter().map(|master| self.node(&mut map, master)).collect()
    }

    pub(super) fn joined(&self) -> (broadcast::Receiver<Arc<Node>>, Vec<Arc<Node>>) {
        let map = self.map();
        (self.joined.subscribe(), map.nodes.values().cloned().collect())
    }

    pub(super) fn is_at(&self, slot: u16, node: &Arc<Node>) -> bool {
        self.map().is_at(slot, node)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) async fn close(&self) {
        let all = self.all();
        join_all(all.iter().map(|node| node.close())).await;
    }
}

fn place_of(server: &Server) -> Arc<str> {
    server.to_string().into()
}

/// The host of a node, as it is known.
fn host_of(node: &Node) -> String {
    match &node.fred.client_config().server {
        ServerConfig::Centralized { server } => server.host.to_string(),
        _ => String::new(),
    }
}
