//! Tickets that a dead replica left where nobody comes again. Whoever comes to a chat removes the dead before it; the other chats are
//! looked through when a session has ended by itself, by one replica for all. It looks through all buckets, as some may be nobody's
//! else who lives.

use std::sync::Arc;
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::coordinator::machine::Locking;
use botmesh_core::error::{StoreError, StoreErrorKind};
use futures_util::future::join_all;

use super::lane::Lane;
use super::shared::Shared;
use crate::client::{Client, Node, Unexpected};
use crate::error::Access;

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
    loop {
        shared.unswept.notified().await;
        // Meanwhile the sessions of the same replica in other buckets end, and heartbeats tell of them.
        shared.clock.sleep(shared.config.lease / 2).await;
        match sweep(shared).await {
            // What cannot be reached is told by others; the next heartbeats bring it back here.
            Err(error) if error.kind() != StoreErrorKind::Unavailable => {
                tracing::warn!(%error, "what a dead replica left in chats where nobody comes again cannot be removed");
            }
            _ => {}
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
    for node in shared.wire.client.nodes() {
        if let Err(error) = sweep_at(shared, &node, &unswept, &token).await {
            failed = Err(error);
        }
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
    look_through(shared, node).await?;
    // A bucket that has moved meanwhile is looked through again.
    for (lane, ended) in there.into_iter().filter(|(lane, _)| here(lane)) {
        let swept = vec![lane.bucket.state(), Bytes::from_static(b"swept"), ended.to_string().into()];
        client.command("turns", Access::Write, "HSET", swept).await?;
        lane.set_swept(*ended);
        shared.wire.lock_release(&lane.bucket, LOCK, token).await?;
    }
    Ok(())
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

/// Removes the dead from the queues that are at a server.
async fn look_through(shared: &Arc<Shared>, node: &Node) -> Result<(), StoreError> {
    let client = &shared.wire.client;
    let pattern = format!("{{{}:turns:*}}:queue:*", client.config().prefix);
    let mut cursor = Bytes::from_static(b"0");
    loop {
        let args = vec![cursor, "MATCH".into(), pattern.clone().into(), "COUNT".into(), KEYS.into()];
        let page = client.command_at(node, "turns", Access::Read, "SCAN", args).await?;
        let mut page = page.list().map_err(strange(node))?.into_iter();
        let (Some(next), Some(found)) = (page.next(), page.next()) else {
            return Err(strange(node)(Unexpected::new("no page of keys")));
        };
        cursor = next.bytes().map_err(strange(node))?.unwrap_or_default();
        let found = found.texts().map_err(strange(node))?;
        let looks = found.iter().map(|key| look_at(shared, node, key));
        join_all(looks).await.into_iter().collect::<Result<(), _>>()?;
        if cursor == "0" {
            return Ok(());
        }
        shared.clock.sleep(PAUSE).await;
    }
}

async fn look_at(shared: &Arc<Shared>, node: &Node, key: &Bytes) -> Result<(), StoreError> {
    let of = |lane: &Lane| key.strip_prefix(&lane.bucket.queue("")[..]).map(<[u8]>::to_vec);
    let named = shared.lanes().find_map(|lane| Some((lane, String::from_utf8(of(lane)?).ok()?)));
    let Some((lane, name)) = named else { return Ok(()) };
    if expires(&shared.wire.client, node, key).await? {
        return Ok(());
    }
    while shared.wire.sweep(&lane.bucket, &name, shared.config.idle_ttl).await?.what {}
    Ok(())
}

/// A queue expires only while it has no ticket.
async fn expires(client: &Client, node: &Node, key: &Bytes) -> Result<bool, StoreError> {
    let rest = client.command_at(node, "turns", Access::Read, "PTTL", vec![key.clone()]).await?;
    Ok(rest.bytes().map_err(strange(node))?.is_none_or(|rest| rest != "-1"))
}
