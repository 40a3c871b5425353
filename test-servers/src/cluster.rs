//! A Redis Cluster.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::port::Port;
use crate::sentinel::wait_for_info;
use crate::{Error, Options, Redis, Reply, Result, wait};

/// How many hash slots a cluster has.
const SLOTS: usize = 16_384;

/// A Redis Cluster, whose nodes think that one is down after a second. All end when this is dropped.
pub struct Cluster {
    nodes: Vec<Redis>,
    ids: Vec<String>,
    masters: usize,
    buses: Vec<Port>,
}

impl Cluster {
    /// Starts a cluster of so many masters, at least one, each with so many replicas, and waits until every node serves.
    ///
    /// # Errors
    /// As [`Redis::start`]; or the nodes do not come together within 30 s.
    pub fn start(options: &Options, masters: usize, replicas: usize) -> Result<Self> {
        let masters = masters.max(1);
        let mut cluster = Self { nodes: Vec::new(), ids: Vec::new(), masters, buses: Vec::new() };
        for _ in 0..masters * (1 + replicas) {
            let bus = Port::reserve()?;
            let options = options
                .clone()
                .with_setting("cluster-enabled", "yes")
                .with_setting("cluster-port", &bus.number().to_string())
                // Beside the data: who it is survives their loss.
                .with_setting("cluster-config-file", "../nodes.conf")
                .with_setting("cluster-node-timeout", "1000")
                // A replica may take over however long it has not heard of its master.
                .with_setting("cluster-replica-validity-factor", "0");
            let node = Redis::start(&options)?;
            cluster.ids.push(node.command(&["CLUSTER", "MYID"])?.text().unwrap_or_default());
            cluster.nodes.push(node);
            cluster.buses.push(bus);
        }
        cluster.bring_together()?;
        Ok(cluster)
    }

    fn bring_together(&self) -> Result {
        for (number, node) in self.nodes[..self.masters].iter().enumerate() {
            let first = SLOTS * number / self.masters;
            let last = SLOTS * (number + 1) / self.masters - 1;
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
        }
        for (number, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            for (other, bus) in self.nodes[..number].iter().zip(&self.buses) {
                let (port, bus) = (other.address().port().to_string(), bus.number().to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
            }
        }
        for node in &self.nodes {
            self.wait_at(node, "the meeting of the nodes", |view| view.known() == self.nodes.len())?;
        }
        for (number, replica) in self.nodes.iter().enumerate().skip(self.masters) {
            let master = &self.ids[number % self.masters];
            replica.command(&["CLUSTER", "REPLICATE", master])?;
        }
        let replicas = self.nodes.len() - self.masters;
        for node in &self.nodes {
            self.wait_at(node, "the cluster's first state", |view| {
                view.serves() && view.replicas() == replicas
            })?;
        }
        self.nodes[self.masters..].iter().try_for_each(|node| wait_for_info(node, "master_link_status", "up"))
    }

    /// Where its nodes and the credentials are, in the form
    /// `redis-cluster://[[USER]:PASSWORD@]HOST:PORT?node=HOST:PORT&node=…`.
    pub fn url(&self) -> String {
        let first = self.nodes[0].url().replacen("redis:", "redis-cluster:", 1);
        let others =
            self.nodes[1..].iter().map(|node| format!("node={}", node.address())).collect::<Vec<_>>();
        if others.is_empty() { first } else { format!("{first}?{}", others.join("&")) }
    }

    /// Its nodes: those that were masters at the start, then the replicas of the first to the last, and again.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Which slot a key is in.
    ///
    /// # Errors
    /// No node answers.
    pub fn slot_of(&self, key: &str) -> Result<u16> {
        let reply = self.ask(&["CLUSTER", "KEYSLOT", key])?;
        let slot = reply.int().and_then(|slot| u16::try_from(slot).ok());
        slot.ok_or_else(|| Error(format!("a node answered {reply:?}")))
    }

    /// Who is the master of a slot, in the eyes of the first node that answers.
    ///
    /// # Errors
    /// No node answers, or the slot is nobody's.
    pub fn owner_of(&self, slot: u16) -> Result<&Redis> {
        let reply = self.ask(&["CLUSTER", "SLOTS"])?;
        let range = reply.items().iter().find(|range| match range.items() {
            [first, last, ..] => first.int() <= Some(i64::from(slot)) && last.int() >= Some(i64::from(slot)),
            _ => false,
        });
        let port = range.and_then(|range| range.items().get(2)?.items().get(1)?.int());
        let owner = self.nodes.iter().find(|node| Some(i64::from(node.address().port())) == port);
        owner.ok_or_else(|| Error(format!("slot {slot} is nobody's")))
    }

    /// Moves a slot with its keys to another master while clients go on. When this returns every node knows.
    ///
    /// # Errors
    /// A node that takes part does not answer, or `to` is no master.
    pub fn move_slot(&self, slot: u16, to: &Redis) -> Result {
        self.begin_slot_move(slot, to)?.finish()
    }

    /// Begins to move a slot to another master and leaves it there: its keys are where they were, keys that are missing there
    /// are redirected (`ASK`). [`SlotMove::move_keys`] and [`SlotMove::finish`] go on.
    ///
    /// # Errors
    /// A node that takes part does not answer, or `to` is no master.
    pub fn begin_slot_move<'a>(&'a self, slot: u16, to: &'a Redis) -> Result<SlotMove<'a>> {
        let from = self.owner_of(slot)?;
        let number = slot.to_string();
        to.command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", self.id(from)?])?;
        from.command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", self.id(to)?])?;
        Ok(SlotMove { cluster: self, slot, from, to })
    }

    /// Kills a master, and waits until one of its replicas is in its place and the cluster serves again; returns the new one.
    /// This takes about 2 s. With [`Redis::cut_replication`] on the master before, what was written since then is lost.
    ///
    /// # Errors
    /// No replica took over within 30 s.
    pub fn fail_over(&self, master: &Redis) -> Result<&Redis> {
        let id = self.id(master)?;
        let slot = self.first_slot(id)?;
        master.kill()?;
        let successor =
            wait::until(format_args!("a successor of the master at {}", master.address()), || {
                let owner = self.owner_of(slot)?;
                let same = owner.address() == master.address();
                Ok(if same { Err("nobody has taken over its slots".into()) } else { Ok(owner) })
            })?;
        self.wait_until_serving()?;
        Ok(successor)
    }

    /// Waits until every node that answers is ready for requests about every slot, and agrees with the others about whose
    /// they are, and since which epoch: one that has not heard of the last epoch would give its next slot none, and lose
    /// it to the master before as soon as it hears.
    ///
    /// # Errors
    /// It is not so within 30 s.
    pub fn wait_until_serving(&self) -> Result {
        self.wait_for_views("a cluster that serves", |views| {
            let owners = views.iter().map(View::owners).collect::<BTreeSet<_>>();
            owners.len() == 1 && views.iter().all(View::serves)
        })
    }

    /// Waits until every node that answers refuses requests (`CLUSTERDOWN`), as when the majority of the masters is lost.
    ///
    /// # Errors
    /// It is not so within 30 s.
    pub fn wait_until_down(&self) -> Result {
        self.wait_for_views("a cluster that is down", |views| {
            !views.is_empty() && views.iter().all(View::refuses)
        })
    }

    fn wait_for_views(&self, what: &str, holds: impl Fn(&[View]) -> bool) -> Result {
        wait::until(what, || {
            let views = self.nodes.iter().filter(|node| node.runs()).filter_map(|node| View::of(node).ok());
            let views = views.collect::<Vec<_>>();
            Ok(if holds(&views) { Ok(()) } else { Err(format!("the nodes see\n{}", View::show(&views))) })
        })
    }

    fn wait_at(&self, node: &Redis, what: &str, holds: impl Fn(&View) -> bool) -> Result {
        wait::until(what, || {
            let view = View::of(node)?;
            Ok(if holds(&view) { Ok(()) } else { Err(format!("{} sees\n{}", node.address(), view.nodes)) })
        })
    }

    fn ask(&self, args: &[&str]) -> Result<Reply> {
        let mut last = Error("no node runs".into());
        for node in self.nodes.iter().filter(|node| node.runs()) {
            match node.command(args) {
                Ok(reply) => return Ok(reply),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn id(&self, node: &Redis) -> Result<&str> {
        let address: SocketAddr = node.address();
        let number = self.nodes.iter().position(|other| other.address() == address);
        number
            .map(|number| &*self.ids[number])
            .ok_or_else(|| Error(format!("{address} is no node of this cluster")))
    }

    fn first_slot(&self, id: &str) -> Result<u16> {
        let nodes = self.ask(&["CLUSTER", "NODES"])?.text().unwrap_or_default();
        let line = nodes.lines().find(|line| line.starts_with(id));
        let slots = line.and_then(|line| line.split(' ').nth(8));
        let first = slots.and_then(|slots| slots.split('-').next()?.parse().ok());
        first.ok_or_else(|| Error("this node is the master of no slot".into()))
    }
}

/// A slot that is being moved; see [`Cluster::begin_slot_move`].
#[must_use = "the slot stays between two masters until this is finished"]
pub struct SlotMove<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: &'a Redis,
    to: &'a Redis,
}

impl SlotMove<'_> {
    /// Moves the keys that are in the slot now. The slot still belongs to its former master.
    ///
    /// # Errors
    /// One of the two masters does not answer.
    pub fn move_keys(&self) -> Result {
        let (slot, port) = (self.slot.to_string(), self.to.address().port().to_string());
        let mut from = self.from.connection()?;
        loop {
            let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])?;
            if keys.items().is_empty() {
                return Ok(());
            }
            let mut args =
                ["MIGRATE", "127.0.0.1", &port, "", "0", "5000"].map(|arg| arg.as_bytes().to_vec()).to_vec();
            if let Some(password) = self.to.owner_password() {
                args.extend([b"AUTH".to_vec(), password.as_bytes().to_vec()]);
            }
            args.push(b"KEYS".to_vec());
            args.extend(keys.items().iter().filter_map(|key| match key {
                Reply::Bulk(bytes) => Some(bytes.clone()),
                _ => None,
            }));
            from.command(&args)?;
        }
    }

    /// Moves what keys there are and gives the slot to its new master. When this returns every node that runs knows.
    ///
    /// # Errors
    /// One of the two masters does not answer.
    pub fn finish(self) -> Result {
        let slot = self.slot.to_string();
        let id = self.cluster.id(self.to)?;
        self.move_keys()?;
        // The new master first: there is no moment in which both refuse the slot. The former one is to hear of it from the new
        // one: told before, it would take what the new one sent until then for a refusal of the slot.
        self.to.command(&["CLUSTER", "SETSLOT", &slot, "NODE", id])?;
        self.cluster.wait_at(self.from, "the news of a new master", |view| view.owns(id, self.slot))?;
        self.from.command(&["CLUSTER", "SETSLOT", &slot, "NODE", id])?;
        self.cluster.wait_until_serving()
    }
}

/// What one node knows of the cluster.
struct View {
    info: String,
    nodes: String,
}

impl View {
    fn of(node: &Redis) -> Result<Self> {
        let mut connection = node.connection()?;
        let mut text =
            |what| Ok::<_, Error>(connection.command(&["CLUSTER", what])?.text().unwrap_or_default());
        Ok(Self { info: text("INFO")?, nodes: text("NODES")? })
    }

    fn serves(&self) -> bool {
        self.info.contains("cluster_state:ok") && self.info.contains("cluster_slots_ok:16384")
    }

    fn refuses(&self) -> bool {
        self.info.contains("cluster_state:fail")
    }

    /// How many nodes it is connected with, itself included.
    fn known(&self) -> usize {
        self.flags().filter(|flags| !flags.contains("handshake")).count()
    }

    fn replicas(&self) -> usize {
        self.flags().filter(|flags| flags.contains("slave")).count()
    }

    fn flags(&self) -> impl Iterator<Item = &str> {
        self.nodes.lines().filter_map(|line| line.split(' ').nth(2))
    }

    /// Each master with the epoch of its claim, and its slots.
    fn owners(&self) -> BTreeSet<(&str, &str, Vec<&str>)> {
        fn owner(line: &str) -> Option<(&str, &str, Vec<&str>)> {
            let words = line.split(' ').collect::<Vec<_>>();
            // A slot that is being moved is shown in brackets, at the two masters only.
            let slots =
                words.iter().skip(8).copied().filter(|word| !word.starts_with('[')).collect::<Vec<_>>();
            (!slots.is_empty()).then_some((*words.first()?, *words.get(6)?, slots))
        }
        self.nodes.lines().filter_map(owner).collect()
    }

    /// Whether a node has a slot.
    fn owns(&self, id: &str, slot: u16) -> bool {
        self.owners().iter().filter(|(owner, ..)| *owner == id).any(|(.., slots)| {
            slots.iter().any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let bound = |text: &str| text.parse().ok();
                bound(first) <= Some(slot) && bound(last) >= Some(slot)
            })
        })
    }

    fn show(views: &[Self]) -> String {
        views.iter().map(|view| view.nodes.as_str()).collect::<Vec<_>>().join("\n")
    }
}
