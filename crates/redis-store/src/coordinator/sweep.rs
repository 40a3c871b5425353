//! Tickets that a dead replica left where nobody comes again. Whoever comes to a chat removes the dead before it; the other chats are
//! looked through when a session has ended by itself, by one replica for all. It looks through all buckets, as some may be nobody's
//! else who lives.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::coordinator::machine::Locking;
use botmesh_core::error::{StoreError, StoreErrorKind};
use futures_util::future::join_all;

use super::lane::Lane;
use super::shared::Shared;
use crate::client::{Client, Node, Unexpected};
use crate::error::{Access, is_on_its_way};

/// Keys of a server that are looked at at once, and the pause after them: a million in about 80 s.
const KEYS: &str = "250";
const PAUSE: Duration = Duration::from_millis(20);

/// The lock of whoever looks through a bucket, and for how long it is held at most. If that is over before the work is, it is
/// done twice.
const LOCK: &str = "botmesh:sweep";
const HELD: Duration = Duration::from_secs(300);

/// A bucket in which a session has ended by itself, and when, on the clock of its server.
type Unswept = (Arc<Lane>, u64);

pub(super) async fn run(shared: &Arc<Shared>) {
    let mut failing = false;
    loop {
        shared.unswept.notified().await;
        // Meanwhile the sessions of the same replica in other buckets end, and heartbeats tell of them.
        shared.clock.sleep(shared.config.lease / 2).await;
        match sweep(shared).await {
            Ok(()) => failing = false,
            // What cannot be reached is told by others; the next heartbeats bring it back here.
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {}
            Err(error) => {
                if !mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "what a dead replica left in chats where nobody comes again cannot be removed");
                }
                // As long as the other replicas leave it to this one.
                if error.kind() == StoreErrorKind::Denied {
                    shared.clock.sleep(HELD).await;
                }
            }
        }
    }
}

async fn sweep(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let token = shared.incarnations().pop().unwrap_or_default();
    let (mut unswept, mut failed) = (Vec::new(), Ok(()));
    for lane in shared.lanes() {
        let Some(ended) = lane.take_unswept() else { continue };
        match lock(shared, lane, &token, ended).await {
            Ok(true) => unswept.push((Arc::clone(lane), ended)),
            Ok(false) => {}
            Err(error) => failed = Err(error),
        }
    }
    if unswept.is_empty() {
        return failed;
    }
    let client = &shared.wire.client;
    // What could not be swept the last time is at the nodes of these buckets.
    let again = unswept.iter().all(|(lane, ended)| lane.was_looked_for(*ended));
    let has_some = |node| unswept.iter().any(|(lane, _)| client.serves(node, lane.bucket.slot()));
    for node in client.nodes().iter().filter(|node| !again || has_some(node)) {
        if let Err(error) = sweep_at(shared, node, &unswept, &token).await {
            failed = Err(error);
        }
    }
    if failed.is_ok() {
        unswept.iter().for_each(|(lane, ended)| lane.looked_for(*ended));
    }
    failed
}

/// Whether this replica is the one that does it, and it has not been done.
async fn lock(shared: &Shared, lane: &Lane, token: &str, ended: u64) -> Result<bool, StoreError> {
    let locked = shared.wire.lock_acquire(&lane.bucket, LOCK, token, HELD).await?;
    if !matches!(locked.what, Locking::Acquired(_)) {
        return Ok(false);
    }
    let is_due = swept(&shared.wire.client, lane).await? < ended;
    if !is_due {
        shared.wire.lock_release(&lane.bucket, LOCK, token).await?;
    }
    Ok(is_due)
}

/// Does it at one server.
async fn sweep_at(
    shared: &Arc<Shared>,
    node: &Arc<Node>,
    unswept: &[Unswept],
    token: &str,
) -> Result<(), StoreError> {
    let client = &shared.wire.client;
    let here = |lane: &Lane| client.serves(node, lane.bucket.slot());
    let there: Vec<_> = unswept.iter().filter(|(lane, _)| here(lane)).collect();
    let moving = look_through(shared, node).await?;
    for (lane, ended) in there.into_iter().filter(|(lane, _)| !moving.contains(&lane.number)) {
        // A bucket that has moved meanwhile is looked through again.
        if !is_whole(shared, lane).await? || !here(lane) {
            continue;
        }
        let swept = vec![lane.bucket.state(), Bytes::from_static(b"swept"), ended.to_string().into()];
        client.command("turns", Access::Write, "HSET", swept).await?;
        lane.set_swept(*ended);
        shared.wire.lock_release(&lane.bucket, LOCK, token).await?;
    }
    Ok(())
}

/// Whether all of a bucket is at one node. While its slot is on its way, a call is refused that has a key that is there, as the
/// state, and keys that are not, as those of no chat.
async fn is_whole(shared: &Shared, lane: &Lane) -> Result<bool, StoreError> {
    match shared.wire.sweep(&lane.bucket, "", shared.config.idle_ttl).await {
        Err(error) if is_on_its_way(&error) => Ok(false),
        answer => answer.map(|_| true),
    }
}

/// Up to which end a bucket has been swept.
async fn swept(client: &Client, lane: &Lane) -> Result<u64, StoreError> {
    let args = vec![lane.bucket.state(), Bytes::from_static(b"swept")];
    let swept = client.command("turns", Access::Read, "HGET", args).await?;
    let swept = swept.bytes().map_err(|what| what.error("turns", client.place(), Access::Read))?;
    Ok(swept.and_then(|swept| std::str::from_utf8(&swept).ok()?.parse().ok()).unwrap_or(0))
}

fn strange(node: &Node) -> impl Fn(Unexpected) -> StoreError + '_ {
    |what| what.error("turns", node.place(), Access::Read)
}

/// Removes the dead from the queues that are at a server. The buckets of those that were on their way to another one.
async fn look_through(shared: &Arc<Shared>, node: &Node) -> Result<BTreeSet<usize>, StoreError> {
    let client = &shared.wire.client;
    let pattern = format!("{{{}:turns:*}}:queue:*", client.config().prefix);
    let (mut cursor, mut moving) = (Bytes::from_static(b"0"), BTreeSet::new());
    loop {
        let args = vec![cursor, "MATCH".into(), pattern.clone().into(), "COUNT".into(), KEYS.into()];
        let page = client.command_at(node, "turns", Access::Read, "SCAN", args).await?;
        let mut page = page.list().map_err(strange(node))?.into_iter();
        let (Some(next), Some(found)) = (page.next(), page.next()) else {
            return Err(strange(node)(Unexpected::new("no page of keys")));
        };
        cursor = next.bytes().map_err(strange(node))?.unwrap_or_default();
        let found = found.texts().map_err(strange(node))?;
        for look in join_all(found.iter().map(|key| look_at(shared, key))).await {
            moving.extend(look?);
        }
        if cursor == "0" {
            return Ok(moving);
        }
        shared.clock.sleep(PAUSE).await;
    }
}

/// The bucket of a queue that is on its way to another server, if it is.
async fn look_at(shared: &Arc<Shared>, key: &Bytes) -> Result<Option<usize>, StoreError> {
    let Some((lane, name)) = chat_of(shared, key) else { return Ok(None) };
    if expires(&shared.wire.client, key).await? {
        return Ok(None);
    }
    loop {
        match shared.wire.sweep(&lane.bucket, name, shared.config.idle_ttl).await {
            Ok(more) if more.what => {}
            Ok(_) => return Ok(None),
            Err(error) if is_on_its_way(&error) => return Ok(Some(lane.number)),
            Err(error) => return Err(error),
        }
    }
}

/// Whose queue a key is.
fn chat_of<'a>(shared: &'a Shared, key: &'a Bytes) -> Option<(&'a Lane, &'a str)> {
    let (_, name) = std::str::from_utf8(key).ok()?.split_once("}:queue:")?;
    let lane = shared.lane(name);
    (lane.bucket.queue(name) == *key).then_some((&**lane, name))
}

/// A queue expires only while it has no ticket.
async fn expires(client: &Client, key: &Bytes) -> Result<bool, StoreError> {
    let rest = client.command("turns", Access::Read, "PTTL", vec![key.clone()]).await?;
    let rest = rest.bytes().map_err(|what| what.error("turns", client.place(), Access::Read))?;
    Ok(rest.is_none_or(|rest| rest != "-1"))
}
