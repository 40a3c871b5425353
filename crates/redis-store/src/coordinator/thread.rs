//! The thread of a coordinator: heartbeats on one connection, and on the other one pushes, polls and what is given back.
//! No handler of the bot can delay it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use botmesh_core::coordinator::machine::{Beat, Leaving, Liveness};
use botmesh_core::entropy::{Entropy, OsEntropy};
use botmesh_core::error::{LeaseLostReason, StoreError, StoreErrorKind};
use fred::types::ClusterStateChange;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::bucket::wake;
use super::lane::{Job, Lane};
use super::rules::keeps;
use super::session::{Grant, Session, until_poll};
use super::shared::Shared;
use super::start::hear;
use super::wire::{Push, Wire};

/// Delays between attempts: the first, doubled each time up to the last.
const FIRST_DELAY: Duration = Duration::from_millis(20);
const LAST_DELAY: Duration = Duration::from_millis(500);

/// Requests of one kind that are under way at once at most.
const AT_ONCE: usize = 256;

fn next_delay(delay: Duration) -> Duration {
    (delay * 2).min(LAST_DELAY)
}

/// Works until the coordinator is closed or dropped, and tells the server of it.
pub(super) async fn run(shared: Arc<Shared>, beats: Wire, jobs: Vec<mpsc::UnboundedReceiver<Job>>) {
    let lanes = shared.lanes().zip(jobs).map(|(lane, jobs)| {
        let (shared, beats) = (&shared, &beats);
        async move {
            tokio::join!(watch(shared, beats, lane), work(shared, lane, jobs));
        }
    });
    tokio::select! {
        // First, so that no other session is opened.
        biased;
        () = shared.stop.cancelled() => {}
        _ = join_all(lanes) => {}
        () = listen(&shared, &beats) => {}
    }
    let crashed = shared.crashed.load(Ordering::SeqCst);
    shared.finish(if crashed { LeaseLostReason::Expired } else { LeaseLostReason::Released });
    if !crashed {
        let last = shared.sessions();
        join_all(last.iter().map(|session| end(&shared, session))).await;
    }
    drop(beats.client.close().await);
    drop(shared.wire.client.close().await);
}

/// Prolongs the lease of a lane, and ends its session when it cannot, or when nobody has used it for long.
async fn watch(shared: &Arc<Shared>, beats: &Wire, lane: &Arc<Lane>) {
    let (lease, clock) = (shared.config.lease, &shared.clock);
    let mut due = clock.monotonic() + lease / 3;
    let mut failing = false;
    let mut beat = next_beat(0);
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
            end(shared, &session).await;
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
            Some(Ok(answer)) if answer.what == Liveness::Dead => {
                shared.lose(&session, LeaseLostReason::Expired);
            }
            Some(Ok(_)) => {
                shared.beat(&session, sent);
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
        if hear_all(shared).await.is_err() {
            shared.unheard.notify_one();
        }
    }
    loop {
        match shared.open(beats, lane).await {
            Ok(Some(_)) => return,
            Ok(None) => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "no new session can be opened; it is tried again");
                }
                shared.clock.sleep(delay).await;
                delay = next_delay(delay);
            }
        }
    }
}

type Call<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Receives what the server pushes, and sees whether it can.
async fn listen(shared: &Arc<Shared>, beats: &Wire) {
    let client = &shared.wire.client;
    let mut pushes = client.pushes();
    let (mut reconnects, mut other, mut changes) =
        (client.reconnects(), beats.client.reconnects(), client.changes());
    let mut subscribing: FuturesUnordered<Call<'_>> = FuturesUnordered::new();
    loop {
        tokio::select! {
            push = pushes.recv() => match push {
                Ok(push) => {
                    if let Some(push) = push.value.as_str().as_deref().and_then(Push::parse) {
                        shared.pushed(push);
                    }
                }
                Err(RecvError::Lagged(_)) => shared.doubt_all(),
                Err(RecvError::Closed) => return,
            },
            Ok(_) = reconnects.recv() => {
                shared.doubt_all();
                subscribing.clear();
                subscribing.push(Box::pin(subscribe(shared)));
            }
            Ok(_) = other.recv() => shared.doubt_all(),
            Ok(changes) = changes.recv() => {
                if changes.iter().any(|change| matches!(change, ClusterStateChange::Remove(_))) {
                    subscribing.clear();
                    subscribing.push(Box::pin(subscribe(shared)));
                }
            }
            () = shared.unheard.notified() => {
                subscribing.clear();
                subscribing.push(Box::pin(subscribe(shared)));
            }
            Some(()) = subscribing.next(), if !subscribing.is_empty() => {}
        }
    }
}

/// To the pushes for all sessions that this replica has or is about to have, and hears one of each.
async fn hear_all(shared: &Shared) -> Result<(), StoreError> {
    let client = &shared.wire.client;
    for incarnation in shared.incarnations() {
        hear(client, &wake(&client.config().prefix, &incarnation), &*shared.clock).await?;
    }
    Ok(())
}

/// Subscribes until pushes arrive. As long as they do not, waiting tickets ask by themselves, later than they could know.
async fn subscribe(shared: &Arc<Shared>) {
    let mut delay = FIRST_DELAY;
    while let Err(error) = hear_all(shared).await {
        // What cannot be reached is not heard either; that is told by others.
        if error.kind() == StoreErrorKind::Denied && shared.trouble().is_none() {
            tracing::warn!(%error, "turns are not pushed to this replica, which has to ask for them");
            shared.set_trouble(Some(error));
        }
        shared.clock.sleep(delay).await;
        delay = next_delay(delay);
    }
    shared.set_trouble(None);
    // What was pushed before may be lost.
    shared.doubt_all();
}

/// Asks for what may have been missed in a lane, and gives back what was dropped.
async fn work(shared: &Arc<Shared>, lane: &Arc<Lane>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut calls: FuturesUnordered<Call<'_>> = FuturesUnordered::new();
    let never = Duration::from_secs(3600);
    loop {
        let session = shared.session(lane);
        let now = shared.clock.monotonic();
        let next = session.as_ref().and_then(|session| session.next_poll());
        let wake = next.map_or(never, |at| at.saturating_sub(now));
        tokio::select! {
            Some(job) = jobs.recv(), if calls.len() < AT_ONCE => calls.push(match job {
                Job::Leave { session, key, seq, leaving } => {
                    Box::pin(leave(shared, session, key, seq, leaving))
                }
                Job::Ask(session) => Box::pin(confirm(shared, session)),
                Job::End(session) => Box::pin(async move {
                    // Others go on as soon as the server knows. What was checked right before must have arrived.
                    shared.clock.sleep(shared.margin).await;
                    end(shared, &session).await;
                }),
            }),
            Some(()) = calls.next(), if !calls.is_empty() => {}
            () = lane.sooner.notified() => {}
            () = lane.opened.notified() => {}
            () = shared.clock.sleep(wake) => {
                let Some(session) = session else { continue };
                for (seq, key) in session.due(shared.clock.monotonic(), shared.config.lease / 3) {
                    let session = Arc::clone(&session);
                    if keeps!(shared.config, Polls) {
                        calls.push(Box::pin(async move {
                            ask(shared, &session, &key, seq).await;
                        }));
                    }
                }
            }
        }
    }
}

/// Whether the ticket stands as this replica believes.
async fn ask(shared: &Arc<Shared>, session: &Arc<Session>, key: &Arc<str>, seq: u64) -> bool {
    let as_believed = match shared.wire.poll(&session.lane.bucket, key, &session.id, seq).await {
        Ok(answer) => shared.polled(session, seq, answer),
        // Soon again: what it asks for may have happened while nothing was heard.
        Err(_) => {
            session.ask_at(seq, shared.clock.monotonic() + until_poll(Some(LAST_DELAY), shared.config.lease));
            false
        }
    };
    session.lane.sooner.notify_one();
    as_believed
}

/// Clears up the doubts of a session.
async fn confirm(shared: &Arc<Shared>, session: Arc<Session>) {
    while let Some(doubts) = session.take_doubts() {
        ask_all(shared, &session).await;
        session.clear(doubts);
    }
}

/// Asks for every ticket of a session, those that hold too, until each stands as this replica believes.
async fn ask_all(shared: &Arc<Shared>, session: &Arc<Session>) {
    let mut left = session.entered();
    let mut delay = FIRST_DELAY;
    while session.end().is_none() {
        let mut failed = Vec::new();
        for part in left.chunks(AT_ONCE) {
            let asks = part.iter().map(|(seq, key)| ask(shared, session, key, *seq));
            let answers = join_all(asks).await;
            failed
                .extend(part.iter().zip(answers).filter(|(_, good)| !good).map(|(ticket, _)| ticket.clone()));
        }
        if failed.is_empty() {
            return;
        }
        left = failed;
        shared.clock.sleep(delay).await;
        delay = next_delay(delay);
    }
}

/// Gives a ticket back until the server has taken it. The tickets of a session that ended are found by others.
async fn leave(shared: &Arc<Shared>, session: Arc<Session>, key: Arc<str>, seq: u64, leaving: Leaving) {
    let (bucket, idle_ttl, mut delay) = (&session.lane.bucket, shared.config.idle_ttl, FIRST_DELAY);
    loop {
        match shared.wire.leave(bucket, &key, &session.id, seq, leaving, idle_ttl).await {
            Ok(answer) => {
                session.left(seq);
                if session.end().is_none()
                    && shared.is_of(&session, &answer)
                    && let Some(next) = answer.what.1
                {
                    session.lane.saw(next.fence);
                    if !session.grant(next.seq, Grant { previous: next.previous }) {
                        let lane = Arc::clone(&session.lane);
                        lane.job(Job::Leave { session, key, seq: next.seq, leaving: Leaving::Unused });
                    }
                }
                return;
            }
            Err(_) if session.end().is_some() => return,
            Err(_) => {
                shared.clock.sleep(delay).await;
                delay = next_delay(delay);
            }
        }
    }
}

/// Tells the server of the end of a session, if it hears it, so that nobody waits for its lease.
async fn end(shared: &Arc<Shared>, session: &Session) {
    if shared.wire.close(&session.lane.bucket, &session.id, session.ending()).await.is_err() {
        return;
    }
    for part in session.leaving().chunks(AT_ONCE) {
        let leaves = part.iter().map(|(seq, key, leaving)| async move {
            let (bucket, idle_ttl) = (&session.lane.bucket, shared.config.idle_ttl);
            if shared.wire.leave(bucket, key, &session.id, *seq, *leaving, idle_ttl).await.is_ok() {
                session.left(*seq);
            }
        });
        join_all(leaves).await;
    }
}
