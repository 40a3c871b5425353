//! The thread of a coordinator, with a connection of its own: heartbeats, sessions, and the last word to the server. No handler
//! of the bot can delay it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use botmesh_core::coordinator::machine::Beat;
use botmesh_core::entropy::{Entropy, OsEntropy};
use botmesh_core::error::LeaseLostReason;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::lane::Lane;
use super::serve::hear_everywhere;
use super::session::Session;
use super::shared::Shared;
use super::wire::{Beaten, Wire};
use crate::client::{Ears, Heard};

/// Delays between attempts: the first, doubled each time up to the last.
pub(super) const FIRST_DELAY: Duration = Duration::from_millis(20);
pub(super) const LAST_DELAY: Duration = Duration::from_millis(500);

/// Requests of one kind that are under way at once at most.
pub(super) const AT_ONCE: usize = 256;

pub(super) fn next_delay(delay: Duration) -> Duration {
    (delay * 2).min(LAST_DELAY)
}

/// Works until the coordinator is closed or dropped, and tells the server of it.
pub(super) async fn run(shared: Arc<Shared>, beats: Wire, ends: mpsc::UnboundedReceiver<Arc<Session>>) {
    let ears = beats.client.ears();
    let watches = shared.lanes().map(|lane| watch(&shared, &beats, lane));
    tokio::select! {
        // First, so that no other session is opened.
        biased;
        () = shared.stop.cancelled() => {}
        _ = join_all(watches) => {}
        () = tell(&shared, &beats, ends) => {}
        () = doubt(&shared, &beats, ears) => {}
    }
    shared.finish(LeaseLostReason::Released);
    if !shared.crashed.load(Ordering::SeqCst) {
        let last = shared.sessions();
        join_all(last.iter().map(|session| end(&shared, &beats, session))).await;
    }
    drop(beats.client.close().await);
}

/// What a server that is another one may have forgotten is asked for.
async fn doubt(shared: &Shared, beats: &Wire, mut ears: Ears) {
    while let Some(heard) = ears.next().await {
        if let Heard::Connected(node) = heard {
            shared.doubt_at(&beats.client, &node);
        }
    }
}

/// Tells the server of sessions that are lost. Others go on as soon as it knows: what was checked right before must have arrived.
async fn tell(shared: &Shared, beats: &Wire, mut ends: mpsc::UnboundedReceiver<Arc<Session>>) {
    let mut telling = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(session) = ends.recv() => telling.push(async move {
                shared.clock.sleep(shared.margin).await;
                end(shared, beats, &session).await;
            }),
            Some(()) = telling.next(), if !telling.is_empty() => {}
        }
    }
}

/// Prolongs the lease of a lane, and ends its session when it cannot, or when nobody has used it for long.
async fn watch(shared: &Arc<Shared>, beats: &Wire, lane: &Arc<Lane>) {
    let (lease, clock) = (shared.config.lease, &shared.clock);
    let mut due = clock.monotonic() + lease / 3;
    let mut failing = false;
    let mut beat = next_beat(0);
    // What the server's clock was last, and when it was first seen so.
    let mut seen = (0, due);
    loop {
        let session = match shared.session(lane) {
            Some(session) if session.end().is_none() => session,
            last => {
                if last.is_none_or(|last| is_retired(&last)) {
                    lane.wanted.notified().await;
                }
                reopen(shared, beats, lane).await;
                due = clock.monotonic() + lease / 3;
                continue;
            }
        };
        let wake = due.min(session.valid_until());
        tokio::select! {
            () = session.ended.cancelled() => continue,
            () = clock.sleep(wake.saturating_sub(clock.monotonic())) => {}
        }
        // Before it looks, so that a loss tells whether this thread stood still.
        if shared.check(&session).is_err() {
            continue;
        }
        let sent = shared.look(&session);
        if lane.number != 0 && session.retire(sent, idle_time(shared)) {
            shared.set_clock(lane, true);
            end(shared, beats, &session).await;
            continue;
        }
        let left = session.valid_until().saturating_sub(sent);
        let answer = tokio::select! {
            answer = beats.beat(&lane.bucket, &session.id, lease, beat) => Some(answer),
            () = clock.sleep(left) => None,
        };
        // An answer that comes too late revives nothing.
        if shared.check(&session).is_err() {
            continue;
        }
        shared.look(&session);
        match answer {
            Some(Ok(answer)) if !shared.is_of(&session, &answer) => {}
            Some(Ok(answer)) => {
                let Some(beaten) = answer.what else {
                    shared.lose(&session, LeaseLostReason::Expired);
                    continue;
                };
                prolonged(shared, &session, sent, beaten, &mut seen);
                beat = next_beat(beat.number);
                due = sent + lease / 3;
                failing = false;
            }
            Some(Err(error)) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "the lease of this replica cannot be prolonged; it is tried again");
                }
                due = clock.monotonic() + (lease / 30).max(FIRST_DELAY);
            }
            None => {}
        }
    }
}

/// The server has prolonged the lease, and said what else it knows.
fn prolonged(shared: &Shared, session: &Session, sent: Duration, beaten: Beaten, seen: &mut (u64, Duration)) {
    shared.beat(session, sent);
    if seen.0 != beaten.wall {
        *seen = (beaten.wall, sent);
    }
    shared.set_clock(&session.lane, sent.saturating_sub(seen.1) < shared.config.lease);
    if let Some(ended) = beaten.ended {
        session.lane.set_unswept(ended);
        shared.unswept.notify_one();
    }
}

/// Not from a generator of its own: a copy of the process would have a copy of that, too.
fn next_beat(last: u64) -> Beat {
    Beat { number: last + 1, mark: OsEntropy::new().next_u64() }
}

/// How long a lane keeps a session without tickets. Before that the server would still name it as a previous holder, and
/// what this replica remembers of a chat would seem out of date to it.
fn idle_time(shared: &Shared) -> Duration {
    shared.config.idle_ttl.max(shared.config.lease * 3)
}

fn is_retired(session: &Session) -> bool {
    session.end().is_some_and(|end| end.reason == LeaseLostReason::Released)
}

/// Opens the next session of a lane, however long it takes.
async fn reopen(shared: &Arc<Shared>, beats: &Wire, lane: &Arc<Lane>) {
    let mut delay = FIRST_DELAY;
    let mut failing = false;
    // The server ended it, maybe because of a copy of this process, which would open the same session next.
    if let Some(lost) = shared.session(lane)
        && lost.end().is_some_and(|end| end.reason == LeaseLostReason::Expired)
    {
        shared.rename(&lost);
        if hear_everywhere(shared).await.is_err() {
            shared.unheard.notify_one();
        }
    }
    loop {
        match shared.open(beats, lane).await {
            Ok(Some(_)) => return lane.refused.set(None),
            Ok(None) => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "no new session can be opened; it is tried again");
                }
                lane.refused.set(Some(error));
                shared.clock.sleep(delay).await;
                delay = next_delay(delay);
            }
        }
    }
}

/// Tells the server of the end of a session, if it hears it, so that nobody waits for its lease.
pub(super) async fn end(shared: &Shared, wire: &Wire, session: &Session) {
    if wire.close(&session.lane.bucket, &session.id, session.ending()).await.is_err() {
        return;
    }
    for part in session.leaving().chunks(AT_ONCE) {
        let leaves = part.iter().map(|(seq, key, leaving)| async move {
            let (bucket, idle_ttl) = (&session.lane.bucket, shared.config.idle_ttl);
            if wire.leave(bucket, key, &session.id, *seq, *leaving, idle_ttl).await.is_ok() {
                session.left(*seq);
            }
        });
        join_all(leaves).await;
    }
}
