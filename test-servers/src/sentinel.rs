//! A master, its replicas, and the sentinels that replace it.

use std::net::{Ipv4Addr, SocketAddr};

use crate::{Error, Options, Redis, Result, wait};

const SERVICE: &str = "botmesh";
const SENTINELS: usize = 3;
const QUORUM: usize = 2;
/// They find each other, and make an old master a replica, after some of the first two periods (10 and 2 s otherwise). The
/// third is how soon they ask a new master whether it is there: without it only when it is already late.
const DEBUG: [&str; 8] =
    ["SENTINEL", "DEBUG", "INFO-PERIOD", "500", "PUBLISH-PERIOD", "500", "PING-PERIOD", "300"];

/// A master, its replicas, and three sentinels, two of which must agree that the master is down. They think so after
/// a second. All end when this is dropped.
pub struct Sentinel {
    servers: Vec<Redis>,
    sentinels: Vec<Redis>,
}

impl Sentinel {
    /// Starts a master with so many replicas, at least one, and waits until the replicas have caught up and the sentinels
    /// know all of them.
    ///
    /// # Errors
    /// As [`Redis::start`].
    pub fn start(options: &Options, replicas: usize) -> Result<Self> {
        let master = Redis::start(options)?;
        let port = master.address().port();
        let of_master = options.clone().with_setting("replicaof", &format!("127.0.0.1 {port}"));
        let replicas = (0..replicas.max(1)).map(|_| Redis::start(&of_master)).collect::<Result<Vec<_>>>()?;
        for replica in &replicas {
            wait_for_info(replica, "master_link_status", "up")?;
        }
        let watching = options.sentinel(SERVICE, port, QUORUM);
        let sentinels = (0..SENTINELS).map(|_| Redis::start(&watching)).collect::<Result<Vec<_>>>()?;
        for sentinel in &sentinels {
            sentinel.command(&DEBUG)?;
        }
        let set = Self { servers: std::iter::once(master).chain(replicas).collect(), sentinels };
        set.wait_until_known()?;
        Ok(set)
    }

    /// Where the sentinels and the credentials are, in the form
    /// `redis-sentinel://[[USER]:PASSWORD@]HOST:PORT?sentinelServiceName=NAME&node=HOST:PORT…`.
    pub fn url(&self) -> String {
        let url =
            self.servers[0].url_at(self.sentinels[0].address()).replacen("redis:", "redis-sentinel:", 1);
        let others = self.sentinels[1..].iter().map(|sentinel| format!("&node={}", sentinel.address()));
        format!("{url}?sentinelServiceName={SERVICE}{}", others.collect::<String>())
    }

    /// The name by which the sentinels know the master.
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// The master and its replicas, first the one that was the master at the start.
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// Who is the master in the eyes of the first sentinel that answers.
    ///
    /// # Errors
    /// None answers, or it names a stranger.
    pub fn master(&self) -> Result<&Redis> {
        let mut last = Error("no sentinel runs".into());
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.runs()) {
            match sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]) {
                Ok(reply) => {
                    let port = reply.items().last().and_then(|port| port.text()?.parse().ok());
                    let port: u16 = port.ok_or_else(|| Error(format!("a sentinel answered {reply:?}")))?;
                    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                    let server = self.servers.iter().find(|server| server.address() == address);
                    return server.ok_or_else(|| Error(format!("a sentinel named {address} as the master")));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Kills the master, and waits until the sentinels have put another in its place, whom it returns; this takes about 3 s.
    /// With [`Redis::cut_replication`] on the master before, within the last 10 s, what was written since then is lost.
    ///
    /// # Errors
    /// No replica was promoted within 30 s.
    pub fn fail_over(&self) -> Result<&Redis> {
        let old = self.master()?;
        old.kill()?;
        self.wait_for_successor(old)
    }

    /// Makes the sentinels promote a replica while the master runs, waits, and returns the new one. The old one becomes its
    /// replica, which can take seconds: until then both take writes, and what the old one took is lost.
    ///
    /// # Errors
    /// No replica was promoted within 30 s.
    pub fn promote(&self) -> Result<&Redis> {
        let old = self.master()?;
        wait::until("a promotion", || {
            let mut sentinels = self.sentinels.iter().filter(|sentinel| sentinel.runs());
            let sentinel = sentinels.next().ok_or_else(|| Error("no sentinel runs".into()))?;
            Ok(sentinel.command(&["SENTINEL", "FAILOVER", SERVICE]).map_err(|error| error.0))
        })?;
        self.wait_for_successor(old)
    }

    fn wait_for_successor(&self, old: &Redis) -> Result<&Redis> {
        wait::until(format_args!("a successor of the master at {}", old.address()), || {
            let master = self.master()?;
            if master.address() == old.address() {
                return Ok(Err("the sentinels still name the old one".into()));
            }
            Ok(match master.info("role") {
                Ok(Some(role)) if role == "master" => Ok(master),
                Ok(role) => Err(format!("its role is {role:?}")),
                Err(error) => Err(error.0),
            })
        })
    }

    fn wait_until_known(&self) -> Result {
        let replicas = self.servers.len() - 1;
        for sentinel in &self.sentinels {
            wait::until("the meeting of the sentinels", || {
                let known = |what| {
                    let reply = sentinel.command(&["SENTINEL", what, SERVICE])?;
                    Ok::<_, Error>(reply.items().len())
                };
                let seen = (known("REPLICAS")?, known("SENTINELS")?);
                let all = seen == (replicas, SENTINELS - 1);
                Ok(if all { Ok(()) } else { Err(format!("one sees {seen:?} replicas and other sentinels")) })
            })?;
        }
        Ok(())
    }
}

/// Waits until a line of `INFO` has this value.
pub(crate) fn wait_for_info(redis: &Redis, name: &str, value: &str) -> Result {
    wait::until(format_args!("{name} = {value} at {}", redis.address()), || {
        let now = redis.info(name)?;
        Ok(if now.as_deref() == Some(value) { Ok(()) } else { Err(format!("it is {now:?}")) })
    })
}
