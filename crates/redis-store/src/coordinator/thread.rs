//! The thread of a coordinator: heartbeats on one connection, and on the other one pushes, polls and what is given back.
//! No handler of the bot can delay it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use botmesh_core::coordinator::machine::{Beat, Liveness};
use botmesh_core::entropy::{Entropy, OsEntropy};
use botmesh_core::error::LeaseLostReason;
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
        () = listen(&shared) => {}
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
        subscribe(shared).await;
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

/// Receives what the server pushes.
async fn listen(shared: &Arc<Shared>) {
    let mut pushes = shared.wire.client.pushes();
    let mut reconnects = shared.wire.client.reconnects();
    loop {
        tokio::select! {
            push = pushes.recv() => match push {
                Ok(push) => {
                    if let Some(push) = push.value.as_str().as_deref().and_then(Push::parse) {
                        shared.pushed(push);
                    }
                }
                Err(RecvError::Lagged(_)) => ask_all(shared),
                Err(RecvError::Closed) => return,
            },
            Ok(_) = reconnects.recv() => {
                subscribe(shared).await;
                ask_all(shared);
            }
        }
    }
}

/// To the pushes for all sessions that this replica has or is about to have.
async fn subscribe(shared: &Arc<Shared>) {
    for incarnation in shared.incarnations() {
        let channel = wake(&shared.wire.client.config().prefix, &incarnation);
        let mut delay = FIRST_DELAY;
        while shared.wire.client.subscribe(&channel).await.is_err() {
            shared.clock.sleep(delay).await;
            delay = next_delay(delay);
        }
    }
}

/// Asks for every ticket: something may have been missed.
fn ask_all(shared: &Arc<Shared>) {
    for session in shared.sessions() {
        let lane = Arc::clone(&session.lane);
        lane.job(Job::Ask(session));
    }
}

type Call<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

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
                Job::Leave { session, key, seq, held } => Box::pin(leave(shared, session, key, seq, held)),
                Job::Ask(session) => Box::pin(ask_for(shared, session)),
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
                    if keeps!(shared.config, Polls) {
                        calls.push(Box::pin(ask(shared, Arc::clone(&session), key, seq)));
                    }
                }
            }
        }
    }
}

async fn ask(shared: &Arc<Shared>, session: Arc<Session>, key: Arc<str>, seq: u64) {
    match shared.wire.poll(&session.lane.bucket, &key, &session.id, seq).await {
        Ok(answer) => shared.polled(&session, seq, answer),
        // Soon again: what it asks for may have happened while nothing was heard.
        Err(_) => {
            session.ask_at(seq, shared.clock.monotonic() + until_poll(Some(LAST_DELAY), shared.config.lease));
        }
    }
    session.lane.sooner.notify_one();
}

/// Asks for every ticket of a session, those that hold too.
async fn ask_for(shared: &Arc<Shared>, session: Arc<Session>) {
    for part in session.entered().chunks(AT_ONCE) {
        let asks = part.iter().map(|(seq, key)| ask(shared, Arc::clone(&session), Arc::clone(key), *seq));
        join_all(asks).await;
    }
}

/// Gives a ticket back until the server has taken it. The tickets of a session that ended are found by others.
async fn leave(shared: &Arc<Shared>, session: Arc<Session>, key: Arc<str>, seq: u64, held: bool) {
    let (bucket, idle_ttl, mut delay) = (&session.lane.bucket, shared.config.idle_ttl, FIRST_DELAY);
    loop {
        match shared.wire.leave(bucket, &key, &session.id, seq, held, idle_ttl).await {
            Ok(answer) => {
                session.left(seq);
                if session.end().is_none()
                    && shared.is_of(&session, &answer)
                    && let Some(next) = answer.what.1
                {
                    session.lane.saw(next.fence);
                    if !session.grant(next.seq, Grant { previous: next.previous }) {
                        let lane = Arc::clone(&session.lane);
                        lane.job(Job::Leave { session, key, seq: next.seq, held: false });
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
        let leaves = part.iter().map(|(seq, key)| async move {
            if shared
                .wire
                .leave(&session.lane.bucket, key, &session.id, *seq, true, shared.config.idle_ttl)
                .await
                .is_ok()
            {
                session.left(*seq);
            }
        });
        join_all(leaves).await;
    }
}
