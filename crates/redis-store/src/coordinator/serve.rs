//! What a coordinator does over the connection of its calls, on the runtime that it was started in: pushes, polls and what is
//! given back.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use botmesh_core::coordinator::Trouble;
use botmesh_core::coordinator::machine::Leaving;
use botmesh_core::error::{StoreError, StoreErrorKind};
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;

use super::bucket::wake;
use super::lane::{Job, Lane};
use super::rules::keeps;
use super::session::{Grant, Session};
use super::shared::Shared;
use super::start::{hear, hear_at};
use super::sweep;
use super::thread::{AT_ONCE, FIRST_DELAY, LAST_DELAY, next_delay};
use super::wire::Push;
use crate::client::{Ears, Heard, Node};

/// Works until the coordinator is closed or dropped. It hears from now on, not from when it is polled first.
pub(super) fn run(
    shared: Arc<Shared>,
    jobs: Vec<mpsc::UnboundedReceiver<Job>>,
) -> impl Future<Output = ()> + Send {
    let ears = shared.wire.client.ears();
    async move {
        let lanes = shared.lanes().zip(jobs).map(|(lane, jobs)| work(&shared, lane, jobs));
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => {}
            () = listen(&shared, ears) => {}
            _ = join_all(lanes) => {}
            () = sweep::run(&shared) => {}
        }
        drop(shared.wire.client.close().await);
    }
}

type Call<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Receives what the servers push, and sees whether they can. Every node of a Cluster pushes everything; what concerns a bucket is
/// heard from the node that has it, so that it is lost only with the connection over which its calls go.
async fn listen(shared: &Arc<Shared>, mut ears: Ears) {
    let client = &shared.wire.client;
    let mut subscribing: Vec<(Arc<Node>, Call<'_>)> = Vec::new();
    loop {
        tokio::select! {
            heard = ears.next() => match heard {
                Some(Heard::Push(node, push)) => {
                    if let Some(push) = push.value.as_str().as_deref().and_then(Push::parse)
                        && client.serves(&node, shared.lane(&push.key).bucket.slot())
                    {
                        shared.pushed(push);
                    }
                }
                Some(Heard::Missed(node)) => shared.doubt_at(client, &node),
                Some(Heard::Connected(node)) => {
                    shared.doubt_at(client, &node);
                    subscribe_again(shared, &mut subscribing, node);
                }
                None => return,
            },
            () = shared.unheard.notified() => {
                for node in client.nodes() {
                    subscribe_again(shared, &mut subscribing, node);
                }
            }
            () = one_of(&mut subscribing) => {}
        }
    }
}

fn subscribe_again<'a>(
    shared: &'a Arc<Shared>,
    subscribing: &mut Vec<(Arc<Node>, Call<'a>)>,
    node: Arc<Node>,
) {
    subscribing.retain(|(other, _)| !Arc::ptr_eq(other, &node));
    let call = Box::pin(subscribe(shared, Arc::clone(&node)));
    subscribing.push((node, call));
}

/// Ends when one of them has.
async fn one_of(calls: &mut Vec<(Arc<Node>, Call<'_>)>) {
    poll_fn(|cx| {
        let done = calls.iter_mut().position(|(_, call)| call.as_mut().poll(cx).is_ready());
        done.map_or(Poll::Pending, |done| {
            drop(calls.swap_remove(done));
            Poll::Ready(())
        })
    })
    .await;
}

/// To the pushes for all sessions that this replica has or is about to have, and hears one of each.
pub(super) async fn hear_everywhere(shared: &Shared) -> Result<(), StoreError> {
    let client = &shared.wire.client;
    for incarnation in shared.incarnations() {
        hear(client, &wake(&client.config().prefix, &incarnation), &*shared.clock).await?;
    }
    Ok(())
}

/// The same, from one node.
async fn hear_all(shared: &Shared, node: &Node) -> Result<(), StoreError> {
    let client = &shared.wire.client;
    for incarnation in shared.incarnations() {
        hear_at(client, node, &wake(&client.config().prefix, &incarnation), &*shared.clock).await?;
    }
    Ok(())
}

/// Subscribes until pushes arrive. As long as they do not, waiting tickets ask by themselves, later than they could know.
async fn subscribe(shared: &Arc<Shared>, node: Arc<Node>) {
    let client = &shared.wire.client;
    let mut delay = FIRST_DELAY;
    while let Err(error) = hear_all(shared, &node).await {
        if !client.has(&node) {
            return;
        }
        // What cannot be reached is not heard either; that is told by others.
        if error.kind() == StoreErrorKind::Denied && shared.trouble(Trouble::Pushes).is_none() {
            tracing::warn!(%error, "turns are not pushed to this replica, which has to ask for them");
            shared.set_unpushed(Some(error));
        }
        shared.clock.sleep(delay).await;
        delay = next_delay(delay);
    }
    shared.set_unpushed(None);
    // What was pushed before may be lost.
    shared.doubt_at(client, &node);
}

/// Asks for what may have been missed in a lane, and gives back what was dropped.
async fn work(shared: &Arc<Shared>, lane: &Arc<Lane>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut calls: FuturesUnordered<Call<'_>> = FuturesUnordered::new();
    let call = |job| -> Call<'_> {
        match job {
            Job::Leave { session, key, seq, leaving } => Box::pin(leave(shared, session, key, seq, leaving)),
            Job::Ask(session) => Box::pin(confirm(shared, session)),
        }
    };
    loop {
        let session = shared.session(lane);
        let next = session.as_ref().and_then(|session| session.next_poll());
        // Most often no ticket waits, and no timer is needed.
        let due = async {
            match next {
                Some(at) => shared.clock.sleep(at.saturating_sub(shared.clock.monotonic())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(job) = jobs.recv(), if calls.len() < AT_ONCE => {
                calls.push(call(job));
                while calls.len() < AT_ONCE && let Ok(job) = jobs.try_recv() {
                    calls.push(call(job));
                }
            }
            Some(()) = calls.next(), if !calls.is_empty() => {
                while let Some(Some(())) = calls.next().now_or_never() {}
            }
            () = lane.groups.due.notified() => {
                while let Some((under_way, group)) = lane.groups.take() {
                    calls.push(Box::pin(shared.send(under_way, group)));
                }
            }
            () = lane.sooner.notified() => {}
            () = lane.opened.notified() => {}
            () = due => {
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
    let answer = shared.wire.poll(&session.lane.bucket, key, &session.id, seq).await;
    shared.called(session, &answer);
    let as_believed = match answer {
        Ok(answer) => shared.polled(session, seq, answer),
        // Soon again: what it asks for may have happened while nothing was heard.
        Err(_) => {
            session.ask_at(seq, shared.poll_at(Some(LAST_DELAY)));
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
    let mut delay = FIRST_DELAY;
    if leaving == Leaving::Unused && !keeps!(shared.config, DroppedTickets) {
        return;
    }
    loop {
        let answer = shared.leave(&session, &key, seq, leaving).await;
        shared.called(&session, &answer);
        match answer {
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
