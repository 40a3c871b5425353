//! A server that somebody else runs.

use std::net::ToSocketAddrs as _;

use super::{REDIS_URL, Redis};
use crate::{Error, Result, failed};

impl Redis {
    pub(super) fn given(url: &str) -> Result<Self> {
        let refused =
            |why: &str| Error(format!("{REDIS_URL} is not redis://[[USER]:PASSWORD@]HOST[:PORT]: {why}"));
        let rest = url.strip_prefix("redis://").ok_or_else(|| refused("it begins otherwise"))?;
        let rest = rest.split(['/', '?']).next().unwrap_or(rest);
        let (credentials, host) = match rest.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, rest),
        };
        let (user, password) = match credentials.and_then(|credentials| credentials.split_once(':')) {
            Some((user, password)) => (Some(decoded(user)), Some(decoded(password))),
            None if credentials.is_some() => return Err(refused("there is no `:` before the password")),
            None => (None, None),
        };
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_owned() } else { format!("{host}:6379") };
        let what = format!("the server of {REDIS_URL} at {host}");
        let address = host.to_socket_addrs().map_err(failed(&what))?.next();
        let redis = Self {
            address: address.ok_or_else(|| Error(format!("{what} has no address")))?,
            user: user.filter(|user| !user.is_empty()),
            password,
            url: url.into(),
            own: None,
        };
        redis.command(&["PING"]).map_err(failed(what))?;
        Ok(redis)
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
