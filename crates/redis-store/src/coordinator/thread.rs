//! The thread of a coordinator: heartbeats on one connection, and on the other one pushes, polls and what is given back.
//! No handler of the bot can delay it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use botmesh_core::coordinator::machine::Liveness;
use botmesh_core::error::LeaseLostReason;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::session::{Grant, Session, until_poll};
use super::shared::{Job, Shared};
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
pub(super) async fn run(shared: Arc<Shared>, beats: Wire, jobs: mpsc::UnboundedReceiver<Job>) {
    let (stop, session) = (shared.stop.clone(), || shared.session());
    tokio::select! {
        () = stop.cancelled() => {}
        () = watch(&shared, &beats) => {}
        () = work(&shared, jobs) => {}
    }
    let last = session();
    last.finish(LeaseLostReason::Released);
    if !shared.crashed.load(Ordering::SeqCst) {
        end(&shared, &last).await;
    }
    drop(beats.client.close().await);
    drop(shared.wire.client.close().await);
}

/// Prolongs the lease, and ends the session when it cannot.
async fn watch(shared: &Arc<Shared>, beats: &Wire) {
    let (lease, clock) = (shared.config.lease, &shared.clock);
    let mut due = clock.monotonic() + lease / 3;
    let mut failing = false;
    loop {
        let session = shared.session();
        if session.end().is_some() {
            reopen(shared, beats, &session).await;
            due = clock.monotonic() + lease / 3;
            continue;
        }
        let wake = due.min(session.valid_until());
        tokio::select! {
            () = session.ended.cancelled() => continue,
            () = clock.sleep(wake.saturating_sub(clock.monotonic())) => {}
        }
        // Before it looks, so that a loss tells whether this thread stood still.
        if shared.check(&session).is_err() {
            continue;
        }
        let sent = shared.look();
        let left = session.valid_until().saturating_sub(sent);
        let answer = tokio::select! {
            answer = beats.beat(&session.id, lease) => Some(answer),
            () = clock.sleep(left) => None,
        };
        // An answer that comes too late revives nothing.
        if shared.check(&session).is_err() {
            continue;
        }
        shared.look();
        match answer {
            Some(Ok(answer)) if !shared.is_of(&session, &answer) => {}
            Some(Ok(answer)) if answer.what == Liveness::Dead => {
                shared.lose(&session, LeaseLostReason::Expired);
            }
            Some(Ok(_)) => {
                session.extend(sent + lease - shared.margin);
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

/// Opens the next session, however long it takes.
async fn reopen(shared: &Arc<Shared>, beats: &Wire, last: &Session) {
    let mut delay = FIRST_DELAY;
    let mut failing = false;
    while shared.session().id == last.id {
        shared.look();
        if let Err(error) = shared.reopen(beats, &last.epoch).await {
            if !std::mem::replace(&mut failing, true) {
                tracing::warn!(%error, "no new session can be opened; it is tried again");
            }
            shared.clock.sleep(delay).await;
            delay = next_delay(delay);
        }
    }
    shared.look();
}

type Call<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Listens to pushes, asks for what may have been missed, and gives back what was dropped.
async fn work(shared: &Arc<Shared>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut pushes = shared.wire.client.pushes();
    let mut reconnects = shared.wire.client.reconnects();
    let mut calls: FuturesUnordered<Call<'_>> = FuturesUnordered::new();
    let never = Duration::from_secs(3600);
    loop {
        let session = shared.session();
        let now = shared.clock.monotonic();
        let wake = session.next_poll().map_or(never, |at| at.saturating_sub(now));
        tokio::select! {
            push = pushes.recv() => match push {
                Ok(push) => {
                    if let Some(push) = push.value.as_str().as_deref().and_then(Push::parse) {
                        shared.pushed(push);
                    }
                }
                Err(RecvError::Lagged(_)) => calls.push(Box::pin(ask_all(shared, session))),
                Err(RecvError::Closed) => return,
            },
            Some(job) = jobs.recv(), if calls.len() < AT_ONCE => calls.push(match job {
                Job::Leave { session, key, seq } => Box::pin(leave(shared, session, key, seq)),
                Job::End(session) => Box::pin(async move { end(shared, &session).await }),
            }),
            Some(()) = calls.next(), if !calls.is_empty() => {}
            Ok(_) = reconnects.recv() => calls.push(Box::pin(resubscribe(shared))),
            () = shared.sooner.notified() => {}
            () = shared.opened.notified() => {}
            () = shared.clock.sleep(wake) => {
                for (seq, key) in session.due(shared.clock.monotonic(), shared.config.lease / 3) {
                    calls.push(Box::pin(ask(shared, Arc::clone(&session), key, seq)));
                }
            }
        }
    }
}

async fn ask(shared: &Arc<Shared>, session: Arc<Session>, key: Arc<str>, seq: u64) {
    match shared.wire.poll(&key, &session.id, seq).await {
        Ok(answer) => shared.polled(&session, seq, answer),
        // Soon again: what it asks for may have happened while nothing was heard.
        Err(_) => {
            session.ask_at(seq, shared.clock.monotonic() + until_poll(Some(LAST_DELAY), shared.config.lease));
        }
    }
    shared.sooner.notify_one();
}

/// Asks for every ticket, those that hold too.
async fn ask_all(shared: &Arc<Shared>, session: Arc<Session>) {
    for part in session.entered().chunks(AT_ONCE) {
        let asks = part.iter().map(|(seq, key)| ask(shared, Arc::clone(&session), Arc::clone(key), *seq));
        join_all(asks).await;
    }
}

async fn resubscribe(shared: &Arc<Shared>) {
    let mut delay = FIRST_DELAY;
    while shared.wire.client.subscribe(&shared.wire.bucket.wake(&shared.incarnation)).await.is_err() {
        shared.clock.sleep(delay).await;
        delay = next_delay(delay);
    }
    ask_all(shared, shared.session()).await;
}

/// Gives a ticket back until the server has taken it. The tickets of a session that ended are found by others.
async fn leave(shared: &Arc<Shared>, session: Arc<Session>, key: Arc<str>, seq: u64) {
    let mut delay = FIRST_DELAY;
    loop {
        match shared.wire.leave(&key, &session.id, seq, shared.config.idle_ttl).await {
            Ok(answer) => {
                session.left(seq);
                if session.end().is_none()
                    && shared.is_of(&session, &answer)
                    && let Some(next) = answer.what.1
                {
                    shared.saw(next.fence);
                    if !session.grant(next.seq, Grant { previous: next.previous }) {
                        drop(shared.jobs.send(Job::Leave { session, key, seq: next.seq }));
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
    if shared.wire.close(&session.id).await.is_err() {
        return;
    }
    for part in session.leaving().chunks(AT_ONCE) {
        let leaves = part.iter().map(|(seq, key)| async move {
            if shared.wire.leave(key, &session.id, *seq, shared.config.idle_ttl).await.is_ok() {
                session.left(*seq);
            }
        });
        join_all(leaves).await;
    }
}
