//! What is looked at when a store is opened: whether the server can serve, and what it keeps.

use std::collections::HashMap;

use botmesh_core::Bytes;
use botmesh_core::error::{StoreError, StoreErrorKind};
use fred::types::Value;

use super::reply::{Reply, Unexpected};
use super::{ALL, Client};
use crate::config::Persistence;
use crate::error::{Access, BACKEND, answered};
use crate::keys;
use crate::scripts::{LAYOUT, PROBE};

/// The layout of the keys that this version reads and writes. Another program finds another one and is refused.
const LAYOUT_FIELDS: [(&str, &str); 2] = [("format", "1"), ("tags", "scope")];

/// The oldest version whose commands suffice.
const OLDEST: (u32, u32) = (6, 2);

pub(super) struct Probed {
    pub(super) hashes: Vec<Bytes>,
    pub(super) persistence: Persistence,
}

pub(super) async fn run(client: &Client) -> Result<Probed, StoreError> {
    let info = info(client).await?;
    if let Some(info) = &info {
        serves(client, info)?;
        keeps_keys(client, info)?;
    } else {
        tracing::warn!(
            server = client.place(),
            "INFO is not permitted, so version, memory policy and persistence of the server are not checked"
        );
    }
    let hashes = permissions(client).await?;
    layout(client).await?;
    let persistence = persistence(client, info.as_ref()).await?;
    Ok(Probed { hashes, persistence })
}

/// What the server says of itself.
struct Info(HashMap<String, String>);

impl Info {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

fn refused(kind: StoreErrorKind, client: &Client, what: &str) -> StoreError {
    StoreError::new(kind, BACKEND, "open", format!("{}: {what}", client.place()))
}

fn strange(client: &Client, what: Unexpected) -> StoreError {
    what.error("open", client.place(), Access::Read)
}

/// A command that a managed service may forbid; `None` if it does.
async fn optional(
    client: &Client,
    name: &'static str,
    args: &[&'static str],
) -> Result<Option<Reply>, StoreError> {
    let args = args.iter().map(|arg| Value::Bytes(Bytes::from_static(arg.as_bytes()))).collect();
    let reply = client.send("open", Access::Read, name, None, args).await?;
    let Some(error) = reply.error() else { return Ok(Some(reply)) };
    if error.starts_with("NOAUTH") || error.starts_with("LOADING") || error.starts_with("MASTERDOWN") {
        return Err(answered("open", client.place(), Access::Read, error));
    }
    Ok(None)
}

async fn info(client: &Client) -> Result<Option<Info>, StoreError> {
    let Some(reply) = optional(client, "INFO", &[]).await? else { return Ok(None) };
    let text = reply.bytes().map_err(|what| strange(client, what))?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(Some(Info(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())))
}

fn serves(client: &Client, info: &Info) -> Result<(), StoreError> {
    let version = info.get("redis_version");
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if !version.is_empty() && found < OLDEST {
        let what = format!("it is Redis {version}; upgrade it to {}.{} or newer", OLDEST.0, OLDEST.1);
        return Err(refused(StoreErrorKind::Incompatible, client, &what));
    }
    if info.get("redis_mode") == "sentinel" {
        let what = "it is a Sentinel; write redis-sentinel://host:port?sentinelServiceName=NAME in the URL";
        return Err(refused(StoreErrorKind::Misuse, client, what));
    }
    if info.get("redis_mode") == "cluster" && !client.is_clustered() {
        let what = "it is a node of a Cluster; write redis-cluster:// in the URL";
        return Err(refused(StoreErrorKind::Misuse, client, what));
    }
    if info.get("role") == "slave" && !client.is_clustered() {
        let what = "it is a replica and takes no writes; connect to its master";
        return Err(refused(StoreErrorKind::Unavailable, client, what));
    }
    Ok(())
}

/// Whether keys stay until they are removed.
fn keeps_keys(client: &Client, info: &Info) -> Result<(), StoreError> {
    let policy = info.get("maxmemory_policy");
    let unlimited = info.get("maxmemory") == "0";
    if !policy.starts_with("allkeys") {
        return Ok(());
    }
    if unlimited {
        tracing::warn!(
            server = client.place(),
            policy,
            "the server would remove messages and conversations if a maxmemory were set; set maxmemory-policy noeviction"
        );
        return Ok(());
    }
    if client.config().allow_eviction {
        tracing::warn!(
            server = client.place(),
            policy,
            "the server removes messages and conversations when its memory is full"
        );
        return Ok(());
    }
    let what = format!(
        "with maxmemory-policy {policy} it removes messages that nobody handled yet when its memory is full; set \
         noeviction (or a volatile policy: no key here expires), or allow_eviction if losing them is acceptable"
    );
    Err(refused(StoreErrorKind::Misuse, client, &what))
}

/// Tries what the scripts need. Answers with their SHA-1s.
async fn permissions(client: &Client) -> Result<Vec<Bytes>, StoreError> {
    let texts = ALL.iter().map(|script| Bytes::from_static(script.text.as_bytes())).collect();
    let reply = client.eval(PROBE, &keys::scratch(&client.config().prefix), texts).await?;
    let mut answer = reply.texts().map_err(|what| strange(client, what))?;
    let end = answer.iter().position(Bytes::is_empty);
    let end = end.ok_or_else(|| strange(client, Unexpected::new("no end of the permissions")))?;
    if let [command, error, ..] = &answer[..end] {
        let (command, error) = (String::from_utf8_lossy(command), String::from_utf8_lossy(error));
        let cause = answered("open", client.place(), Access::Read, &error);
        let what = format!(
            "{command} fails on a key that begins with {{{}: ({error}); give the user the permissions that the README \
             of botmesh-redis-store lists",
            client.config().prefix
        );
        return Err(refused(cause.kind(), client, &what));
    }
    Ok(answer.split_off(end + 1))
}

/// Two layouts under one prefix would not see each other's data.
async fn layout(client: &Client) -> Result<(), StoreError> {
    let prefix = &client.config().prefix;
    let fields = LAYOUT_FIELDS.iter().flat_map(|(name, value)| [name, value]);
    let fields = fields.map(|text| Bytes::from_static(text.as_bytes())).collect();
    let reply = client.eval(LAYOUT, &[keys::layout(prefix)], fields).await?;
    let record = reply.texts().map_err(|what| strange(client, what))?;
    let found = |name: &str| {
        let pair = record.chunks_exact(2).find(|pair| pair[0] == name);
        pair.map(|pair| String::from_utf8_lossy(&pair[1]).into_owned())
    };
    for (name, own) in LAYOUT_FIELDS {
        let there = found(name).unwrap_or_else(|| "missing".to_owned());
        if there != own {
            let what = format!(
                "the keys under the prefix {prefix} are laid out by another version of this program: {name} is {there} \
                 there and {own} here; run the same version everywhere, or choose another prefix"
            );
            return Err(refused(StoreErrorKind::Incompatible, client, &what));
        }
    }
    Ok(())
}

/// What the server keeps, as far as it tells.
async fn persistence(client: &Client, info: Option<&Info>) -> Result<Persistence, StoreError> {
    let config = client.config();
    let (found, why) = match info.map(|info| info.get("aof_enabled")) {
        Some("1") => match fsync(client).await? {
            Some(policy) if policy == "always" => (Persistence::Always, "appendfsync is always".to_owned()),
            Some(policy) if policy == "everysec" => {
                (Persistence::EverySecond, "appendfsync is everysec".to_owned())
            }
            Some(policy) => (Persistence::None, format!("appendfsync is {policy}")),
            None => (
                config.assumed_persistence.unwrap_or(Persistence::EverySecond).max(Persistence::EverySecond),
                "appendonly is on, and how often it is synced is not told (CONFIG is not permitted)"
                    .to_owned(),
            ),
        },
        Some("0") => (Persistence::None, "appendonly is off".to_owned()),
        _ => (
            config.assumed_persistence.unwrap_or(Persistence::None),
            "it does not tell whether appendonly is on".to_owned(),
        ),
    };
    if found < config.least_persistence {
        let what = format!(
            "it keeps less than least_persistence demands: {why}; set appendonly yes and appendfsync {} on the server, \
             or lower least_persistence",
            if config.least_persistence == Persistence::Always { "always" } else { "everysec" }
        );
        return Err(refused(StoreErrorKind::Misuse, client, &what));
    }
    if found == Persistence::None {
        tracing::warn!(
            server = client.place(),
            reason = why,
            "a restart of the server loses messages and conversations; set appendonly yes"
        );
    }
    Ok(found)
}

async fn fsync(client: &Client) -> Result<Option<String>, StoreError> {
    let Some(reply) = optional(client, "CONFIG", &["GET", "appendfsync"]).await? else { return Ok(None) };
    let pair = reply.texts().map_err(|what| strange(client, what))?;
    Ok(pair.get(1).map(|policy| String::from_utf8_lossy(policy).into_owned()))
}
