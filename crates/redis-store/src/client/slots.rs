//! Who has which slot of a Cluster, as its nodes tell.

use std::collections::HashMap;
use std::net::IpAddr;

use fred::types::config::{Server, TlsConfig, TlsHostMapping};

use super::reply::{Reply, Unexpected};

/// The masters, and what they have.
#[derive(Debug, Default)]
pub(super) struct Slots {
    ranges: Vec<(u16, u16, Server)>,
    /// What single slots turned out to be at since then.
    moved: HashMap<u16, Server>,
    /// Under the addresses that redirections name.
    addresses: HashMap<(String, u16), Server>,
}

impl Slots {
    /// Reads what the node at `host` answered to `CLUSTER SLOTS`.
    pub(super) fn read(reply: Reply, host: &str, tls: Option<&TlsConfig>) -> Result<Self, Unexpected> {
        let mut slots = Self::default();
        for range in reply.list()? {
            let mut range = range.list()?.into_iter();
            let mut next =
                || range.next().ok_or_else(|| Unexpected::new("a range of slots without a master"));
            let (first, last) = (number(next()?)?, number(next()?)?);
            let mut master = next()?.list()?.into_iter();
            let mut next = || master.next().ok_or_else(|| Unexpected::new("a master without an address"));
            let (named, port) = (text(next()?)?, number(next()?)?);
            let hostname = master.nth(1).map(hostname).transpose()?.flatten();
            let address = named.filter(|named| !named.is_empty()).unwrap_or_else(|| host.to_owned());
            let is_name = address.parse::<IpAddr>().is_err();
            let known_as =
                if is_name { address.clone() } else { hostname.unwrap_or_else(|| address.clone()) };
            let server = server(known_as, port, host, tls);
            slots.addresses.insert((address, port), server.clone());
            slots.ranges.push((first, last, server));
        }
        Ok(slots)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Server> {
        let found = || self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        self.moved.get(&slot).or_else(|| found().map(|(.., server)| server))
    }

    pub(super) fn move_to(&mut self, slot: u16, server: &Server) {
        self.moved.insert(slot, server.clone());
    }

    /// Those of the ranges, and those that slots turned out to be at since then.
    pub(super) fn masters(&self) -> impl Iterator<Item = &Server> {
        self.ranges.iter().map(|(.., server)| server).chain(self.moved.values())
    }

    /// The server that a redirection of the node at `host` names.
    pub(super) fn named(&self, to: &Redirection, host: &str, tls: Option<&TlsConfig>) -> Server {
        let address = if to.host.is_empty() { host.to_owned() } else { to.host.clone() };
        let known = self.addresses.get(&(address.clone(), to.port));
        known.cloned().unwrap_or_else(|| server(address, to.port, host, tls))
    }
}

/// A node names another one instead of carrying a command out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Redirection {
    /// The slot is on its way: only this command goes there.
    pub(super) asks: bool,
    host: String,
    port: u16,
}

impl Redirection {
    /// `None` if the error is another one.
    pub(super) fn read(error: &str) -> Option<Self> {
        let mut words = error.split(' ');
        let asks = match words.next()? {
            "ASK" => true,
            "MOVED" => false,
            _ => return None,
        };
        let (host, port) = words.nth(1)?.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Self { asks, host, port: port.parse().ok()? })
    }
}

fn server(host: String, port: u16, told_by: &str, tls: Option<&TlsConfig>) -> Server {
    let name = host.parse::<IpAddr>().ok().zip(tls).and_then(|(ip, tls)| match &tls.hostnames {
        TlsHostMapping::None => None,
        TlsHostMapping::DefaultHost => Some(told_by.to_owned()),
        TlsHostMapping::Custom(names) => names.map(&ip, told_by),
    });
    Server::new_with_tls(host, port, name)
}

fn text(reply: Reply) -> Result<Option<String>, Unexpected> {
    Ok(reply.bytes()?.map(|text| String::from_utf8_lossy(&text).into_owned()))
}

fn number(reply: Reply) -> Result<u16, Unexpected> {
    let number = text(reply)?.and_then(|number| number.parse().ok());
    number.ok_or_else(|| Unexpected::new("a text where a slot or a port is due"))
}

/// What the details of a node say of its name.
fn hostname(details: Reply) -> Result<Option<String>, Unexpected> {
    let details = details.texts()?;
    let found = details.chunks_exact(2).find(|pair| pair[0] == "hostname" && !pair[1].is_empty());
    Ok(found.map(|pair| String::from_utf8_lossy(&pair[1]).into_owned()))
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
