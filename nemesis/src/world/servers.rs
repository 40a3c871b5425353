//! The servers of a run, and a proxy for each replica where clients do not learn the servers' own addresses.

use botmesh_test_servers::{Cluster, Options, Persistence, Proxy, Redis, Result, Sentinel};
use clap::ValueEnum;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::history::Event;

/// Which servers a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServerKind {
    /// One server, with another one that copies it and can take its place
    Redis,
    /// A master, two copies and three sentinels
    Sentinel,
    /// A Cluster of three masters, each with a copy
    Cluster,
}

/// What the replicas of a run share.
pub(super) enum Servers {
    One(Box<Pair>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

/// A server and its copy, behind a proxy for each replica.
pub(super) struct Pair {
    servers: [Redis; 2],
    master: AtomicUsize,
    pub(super) proxies: Vec<Proxy>,
}

impl Servers {
    pub(super) fn start(kind: ServerKind, replicas: usize) -> Result<Self> {
        // Each write is in the file before it is answered, and survives the death of the process. Nothing waits for the disk:
        // a machine that dies is none of the faults here, and a busy disk would stop the server for seconds.
        let options =
            Options::new().with_persistence(Persistence::EverySecond).with_setting("appendfsync", "no");
        Ok(match kind {
            ServerKind::Redis => Self::One(Box::new(Pair::start(&options, replicas)?)),
            ServerKind::Sentinel => Self::Sentinel(Sentinel::start(&options, 2)?),
            ServerKind::Cluster => Self::Cluster(Cluster::start(&options, 3, 1)?),
        })
    }

    /// Where a replica finds them.
    pub(super) fn url(&self, replica: usize) -> String {
        match self {
            Self::One(pair) => pair.master().url_at(pair.proxies[replica].address()),
            Self::Sentinel(sentinel) => sentinel.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// Those that take writes.
    pub(super) fn masters(&self) -> Result<Vec<&Redis>> {
        match self {
            Self::One(pair) => Ok(vec![pair.master()]),
            Self::Sentinel(sentinel) => Ok(vec![sentinel.master()?]),
            Self::Cluster(cluster) => {
                let role = |node: &&Redis| node.info("role").ok().flatten();
                Ok(cluster.nodes().iter().filter(|node| role(node).as_deref() == Some("master")).collect())
            }
        }
    }

    /// Masters and copies.
    pub(super) fn all(&self) -> &[Redis] {
        match self {
            Self::One(pair) => &pair.servers,
            Self::Sentinel(sentinel) => sentinel.servers(),
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    pub(super) fn proxies(&self) -> &[Proxy] {
        match self {
            Self::One(pair) => &pair.proxies,
            Self::Sentinel(_) | Self::Cluster(_) => &[],
        }
    }

    /// A command for every master.
    pub(super) fn command(&self, args: &[&str]) -> Result {
        self.masters()?.iter().try_for_each(|master| master.command(args).map(drop))
    }

    /// The tickets in all queues: what each is for, and its session.
    pub(super) fn tickets(&self) -> Result<Vec<(String, String)>> {
        let tickets: Vec<_> = self.masters()?.into_iter().map(tickets).collect::<Result<_>>()?;
        Ok(tickets.concat())
    }

    /// What the masters did so far, together.
    pub(super) fn usage(&self) -> Result<Event> {
        let (mut calls, mut keys) = (0, 0);
        for master in self.masters()? {
            let (more_calls, more_keys) = usage(master)?;
            calls += more_calls;
            keys += more_keys;
        }
        Ok(Event::Usage { calls, keys })
    }
}

/// The tickets in the queues of a server: what each is for, and its session.
pub(crate) fn tickets(server: &Redis) -> Result<Vec<(String, String)>> {
    let mut tickets = Vec::new();
    for key in server.command(&["KEYS", "*:queue:*"])?.items() {
        let queue = key.text().unwrap_or_default();
        let (tag, key) = queue.split_once(":queue:").unwrap_or_default();
        // Without a ticket it is the previous holder alone.
        let turn = server.command(&["GET", &queue])?.text().unwrap_or_default();
        let head = turn.split(' ').nth(2).map(str::to_owned);
        let behind = server.command(&["ZRANGE", &format!("{tag}:behind:{key}"), "0", "-1"])?;
        let behind = behind.items().iter().filter_map(|ticket| ticket.text());
        for ticket in head.into_iter().chain(behind) {
            let session = ticket.rsplit_once(':').map_or("", |(session, _)| session);
            tickets.push((key.to_owned(), session.to_owned()));
        }
    }
    Ok(tickets)
}

/// The calls of scripts that a server answered so far, and its keys.
pub(crate) fn usage(server: &Redis) -> Result<(u64, u64)> {
    let stats = server.command(&["INFO", "commandstats"])?.text().unwrap_or_default();
    let calls = stats.lines().filter_map(|line| {
        let (command, numbers) = line.split_once(':')?;
        let calls = numbers.strip_prefix("calls=")?.split(',').next()?;
        matches!(command, "cmdstat_eval" | "cmdstat_evalsha").then(|| calls.parse::<u64>().ok())?
    });
    let keys = server.command(&["DBSIZE"])?;
    Ok((calls.sum(), keys.int().and_then(|keys| u64::try_from(keys).ok()).unwrap_or_default()))
}

impl Pair {
    fn start(options: &Options, replicas: usize) -> Result<Self> {
        // Neither is told in its file to be a copy: the one that is the master stays it when it is started again.
        let (master, copy) = (Redis::start(options)?, Redis::start(options)?);
        let proxies =
            (0..replicas).map(|_| Proxy::start_for_redis(master.address())).collect::<Result<_>>()?;
        let pair = Self { servers: [master, copy], master: AtomicUsize::new(0), proxies };
        pair.attach()?;
        pair.wait_until_copied();
        Ok(pair)
    }

    pub(super) fn master(&self) -> &Redis {
        &self.servers[self.master.load(Ordering::SeqCst)]
    }

    pub(super) fn copy(&self) -> &Redis {
        &self.servers[1 - self.master.load(Ordering::SeqCst)]
    }

    /// Whether the copy follows, soon.
    pub(super) fn wait_until_copied(&self) -> bool {
        super::real::within(std::time::Duration::from_secs(10), || {
            self.copy().info("master_link_status").ok().flatten().as_deref() == Some("up")
        })
    }

    /// The copy takes writes of its own.
    pub(super) fn detach(&self) -> Result {
        self.copy().command(&["REPLICAOF", "NO", "ONE"]).map(drop)
    }

    /// The copy is a copy again; what it took is lost.
    pub(super) fn attach(&self) -> Result {
        let port = self.master().address().port().to_string();
        self.master().resume_replication()?;
        self.copy().command(&["REPLICAOF", "127.0.0.1", &port])?;
        Ok(())
    }

    /// Each takes the other's place.
    pub(super) fn swap(&self) {
        self.master.fetch_xor(1, Ordering::SeqCst);
    }

    /// Sends some replicas to a server, and ends the connections that they have.
    pub(super) fn lead(&self, replicas: impl IntoIterator<Item = usize>, server: &Redis) {
        for replica in replicas {
            self.proxies[replica].set_upstream(server.address());
            self.proxies[replica].cut();
        }
    }
}
