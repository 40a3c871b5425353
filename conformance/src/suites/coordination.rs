//! `coordination`: turns that several replicas share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use botmesh_core::coordinator::{Coordinator, Fence, Ticket, Turn};
use botmesh_core::error::{CoordinationUnavailable, LeaseLostReason};
use futures_util::FutureExt as _;

use super::parallel::parallel;
use crate::case::{Needs, cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, Failure, NOT_CLAIMED, PASSED, Replica, Suite};

pub(crate) fn suite() -> Suite {
    Suite {
        name: "coordination",
        meaning: "turns that several replicas share: one holder at a time, in order, whoever dies",
        needs: Needs::Anything,
        cases: cases(),
    }
}

fn cases() -> Vec<Case> {
    cases![
        tickets_are_served_in_order: "tickets of one key are served in the order in which they were taken, across replicas",
        one_holder_at_a_time: "whatever the replicas do, a key has one holder, and each one a larger fence",
        who_tries_does_not_wait: "a turn is taken if it is free, and nothing is left behind if not",
        keys_do_not_wait_for_each_other: "who holds one key keeps nobody from another, nor itself",
        who_gives_up_before_its_turn_did_not_hold: "a ticket that is given up before its turn leaves the last holder the last one",
        dropped_waits_leave_no_ticket: "a ticket that is dropped, granted or not, is in nobody's way",
        a_dead_holder_is_replaced: "the turn of a replica that died goes to the next one, with a larger fence",
        a_dead_waiter_is_skipped: "the tickets of a replica that died are in nobody's way",
        the_previous_holder_is_told: "a turn says which session held the key before, its own too, and whether it gave it back",
        fences_grow: "a later turn has a larger fence, for whatever key and replica",
        a_released_turn_is_over: "after its release a turn fails each check, and releasing again is harmless",
        a_closed_replica_gives_everything_back: "others go on at once, and its own calls fail",
        a_lock_is_released_by_its_token_alone: "who does not hold a lock neither frees nor prolongs it, and the next holder has a larger fence",
        a_lock_taken_again_is_the_same: "a token that asks again has the same fence, also through another replica",
        a_lock_ends_with_its_time: "a lock that nobody prolongs goes to the next one, and its old token is worth nothing",
        a_lock_outlives_its_replica: "a lock belongs to its token, whoever dies, and to no session",
        locks_are_no_turns: "a lock and a turn of one name are not in each other's way",
    ]
}

impl From<CoordinationUnavailable> for Failure {
    fn from(error: CoordinationUnavailable) -> Self {
        let source = error.source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
        Failure::new(format!("no turn: {:?}{source}", error.reason))
    }
}

async fn enter(replica: &Replica, key: &str) -> Result<Ticket, Failure> {
    Ok(replica.coordinator.enter(key).await?)
}

async fn take(replica: &Replica, key: &str) -> Result<Turn, Failure> {
    Ok(enter(replica, key).await?.granted().await?)
}

fn waits(ticket: &mut Ticket) -> bool {
    ticket.granted().now_or_never().is_none()
}

async fn close(replicas: &[Replica]) {
    for replica in replicas {
        replica.coordinator.close().await;
    }
}

async fn tickets_are_served_in_order(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("chat");
    let mut tickets = Vec::new();
    for number in 0..40 {
        tickets.push(enter(&replicas[number % 2], &key).await?);
    }
    let mut last = Fence(0);
    while !tickets.is_empty() {
        let mut first = tickets.remove(0);
        let turn = first.granted().await?;
        ensure_eq!(turn.fence(), first.fence(), "the fence of the turn");
        ensure!(turn.fence() > last, "a turn with {:?} after {last:?}", turn.fence());
        ensure!(tickets.iter_mut().all(waits), "a ticket is granted before its turn");
        last = turn.fence();
        turn.release();
    }
    close(&replicas).await;
    PASSED
}

async fn one_holder_at_a_time(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(3).await? else { return NOT_CLAIMED };
    let (held, largest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks = replicas.iter().map(|replica| {
        let (held, largest, key) = (Arc::clone(&held), Arc::clone(&largest), context.scope("chat"));
        let coordinator: Arc<dyn Coordinator> = Arc::clone(&replica.coordinator);
        async move {
            for round in 0..40 {
                let mut ticket = coordinator.enter(&key).await?;
                if round % 5 == 4 {
                    continue;
                }
                let turn = ticket.granted().await?;
                ensure!(!held.swap(true, Ordering::SeqCst), "two replicas hold the key");
                let before = largest.swap(turn.fence().0, Ordering::SeqCst);
                ensure!(before < turn.fence().0, "the fence {} after {before}", turn.fence().0);
                tokio::task::yield_now().await;
                ensure!(turn.check().is_ok(), "a turn is lost while nothing happens");
                ensure!(held.swap(false, Ordering::SeqCst), "two replicas hold the key");
                turn.release();
            }
            Ok(())
        }
    });
    parallel(tasks).await?;
    close(&replicas).await;
    PASSED
}

async fn who_tries_does_not_wait(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("job");
    let (one, other) = (&replicas[0].coordinator, &replicas[1].coordinator);
    let Some(held) = one.try_enter(&key).await? else { return Err(Failure::new("a free key is not given")) };
    for replica in &replicas {
        ensure!(replica.coordinator.try_enter(&key).await?.is_none(), "two replicas hold the key");
    }
    let mut next = enter(&replicas[1], &key).await?;
    ensure!(waits(&mut next), "two tickets are granted");
    held.release();
    next.granted().await?.release();
    let turn = take(&replicas[0], &key).await?;
    ensure!(other.try_enter(&key).await?.is_none(), "two replicas hold the key");
    ensure!(turn.check().is_ok(), "who tries takes a turn away");
    close(&replicas).await;
    PASSED
}

async fn keys_do_not_wait_for_each_other(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let turns = [
        take(&replicas[0], &context.scope("a")).await?,
        take(&replicas[0], &context.scope("b")).await?,
        take(&replicas[1], &context.scope("c")).await?,
    ];
    ensure!(turns.iter().all(|turn| turn.check().is_ok()), "a turn is lost while nothing happens");
    close(&replicas).await;
    PASSED
}

/// One that sees its own session as the previous holder takes what it remembers of the chat for the latest.
async fn who_gives_up_before_its_turn_did_not_hold(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let (one, other) = (&replicas[0], &replicas[1]);
    let key = context.scope("chat");
    take(one, &key).await?.release();
    let held = take(other, &key).await?;
    let granted_unseen = enter(one, &key).await?;
    held.release();
    drop(granted_unseen);
    drop(enter(one, &key).await?);
    let turn = take(one, &key).await?;
    ensure!(
        turn.previous_holder() == Some(held.session()),
        "the last holder is {:?}",
        turn.previous_holder()
    );
    close(&replicas).await;
    PASSED
}

async fn dropped_waits_leave_no_ticket(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("chat");
    let held = take(&replicas[0], &key).await?;
    for replica in &replicas {
        drop(enter(replica, &key).await?);
        drop(replica.coordinator.enter(&key).now_or_never());
        let mut asked = enter(replica, &key).await?;
        ensure!(waits(&mut asked), "two tickets are granted");
    }
    let granted_unseen = enter(&replicas[1], &key).await?;
    let mut last = enter(&replicas[0], &key).await?;
    held.release();
    drop(granted_unseen);
    last.granted().await?;
    close(&replicas).await;
    PASSED
}

async fn a_dead_holder_is_replaced(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("chat");
    let held = take(&replicas[0], &key).await?;
    let mut next = enter(&replicas[1], &key).await?;
    ensure!(waits(&mut next), "two tickets are granted");
    (replicas[0].crash)();
    let turn = next.granted().await?;
    ensure!(held.check().is_err(), "two replicas have the turn");
    ensure!(turn.fence() > held.fence(), "the fence {:?} after {:?}", turn.fence(), held.fence());
    ensure_eq!(turn.previous_holder(), Some(held.session()), "the previous holder");
    ensure!(!turn.was_given_back(), "a dead holder gave its turn back");
    held.release();
    drop(held);
    ensure!(turn.check().is_ok(), "a dead holder took the turn away");
    ensure!(replicas[0].coordinator.enter(&key).await.is_err(), "a dead replica takes a ticket");
    close(&replicas[1..]).await;
    PASSED
}

async fn a_dead_waiter_is_skipped(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(3).await? else { return NOT_CLAIMED };
    let key = context.scope("chat");
    let held = take(&replicas[0], &key).await?;
    let _dead = [enter(&replicas[1], &key).await?, enter(&replicas[1], &key).await?];
    let mut last = enter(&replicas[2], &key).await?;
    (replicas[1].crash)();
    held.release();
    last.granted().await?;
    close(&replicas[2..]).await;
    PASSED
}

async fn the_previous_holder_is_told(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("chat");
    let (mut before, mut sessions) = (None, [None, None]);
    for number in [0, 0, 1, 0, 1, 1] {
        let turn = take(&replicas[number], &key).await?;
        ensure_eq!(turn.previous_holder().cloned(), before, "the previous holder");
        ensure!(turn.was_given_back(), "a turn that was released was not given back");
        before = Some(turn.session().clone());
        let session = sessions[number].get_or_insert_with(|| turn.session().clone());
        ensure_eq!(turn.session(), &*session, "the session of the turn");
        turn.release();
    }
    close(&replicas).await;
    PASSED
}

async fn fences_grow(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let mut last = [Fence(0); 7];
    for number in 0..30 {
        let (chat, replica) = (number % last.len(), &replicas[number % 2]);
        let turn = take(replica, &context.scope(&format!("chat{chat}"))).await?;
        ensure!(turn.fence() > last[chat], "the fence {:?} after {:?}", turn.fence(), last[chat]);
        last[chat] = turn.fence();
    }
    close(&replicas).await;
    PASSED
}

async fn a_released_turn_is_over(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("chat");
    let turn = take(&replicas[0], &key).await?;
    let clone = turn.clone();
    let mut next = enter(&replicas[1], &key).await?;
    drop(turn);
    ensure!(waits(&mut next) && clone.check().is_ok(), "a turn ends before its last clone");
    clone.release();
    clone.release();
    ensure_eq!(clone.check().map_err(|lost| lost.reason), Err(LeaseLostReason::Released), "a check");
    ensure_eq!(clone.lost().await.reason, LeaseLostReason::Released, "the end of the turn");
    let turn = next.granted().await?;
    drop(clone);
    ensure!(turn.check().is_ok(), "a turn that was released took the next one away");
    close(&replicas).await;
    PASSED
}

async fn a_closed_replica_gives_everything_back(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("chat");
    let held = take(&replicas[0], &key).await?;
    let mut own = enter(&replicas[0], &key).await?;
    let mut next = enter(&replicas[1], &key).await?;
    close(&replicas[..1]).await;
    ensure!(held.check().is_err(), "a turn outlives its session");
    ensure_eq!(held.lost().await.reason, LeaseLostReason::Released, "the end of the turn");
    ensure!(
        !next.granted().await?.was_given_back(),
        "nobody said that the turn of a closed replica was done"
    );
    ensure!(own.granted().await.is_err(), "a ticket outlives its session");
    ensure!(replicas[0].coordinator.enter(&key).await.is_err(), "a closed replica takes a ticket");
    close(&replicas).await;
    PASSED
}

const LONG: Duration = Duration::from_secs(600);

async fn lock(replica: &Replica, key: &str, token: &str, ttl: Duration) -> Result<Option<Fence>, Failure> {
    Ok(replica.coordinator.acquire_lock_fenced(key, token, ttl).await?)
}

async fn free_lock(replica: &Replica, key: &str, token: &str, ttl: Duration) -> Result<Fence, Failure> {
    lock(replica, key, token, ttl).await?.ok_or_else(|| Failure::new("a free lock is not given"))
}

async fn a_lock_is_released_by_its_token_alone(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let (one, other) = (&replicas[0].coordinator, &replicas[1].coordinator);
    let key = context.scope("job");
    let fence = free_lock(&replicas[0], &key, "a", LONG).await?;
    ensure_eq!(other.release_lock(&key, "b").await?, false, "a release by who does not hold");
    ensure_eq!(other.renew_lock(&key, "b", LONG).await?, None, "a renewal by who does not hold");
    ensure_eq!(lock(&replicas[1], &key, "b", LONG).await?, None, "the lock, which is held");
    ensure_eq!(one.renew_lock(&key, "a", LONG).await?, Some(fence), "a renewal by the holder");
    ensure_eq!(one.release_lock(&key, "a").await?, true, "a release by the holder");
    ensure_eq!(one.release_lock(&key, "a").await?, false, "a second release");
    let next = free_lock(&replicas[1], &key, "b", LONG).await?;
    ensure!(next > fence, "the fence {next:?} after {fence:?}");
    ensure_eq!(one.release_lock(&key, "a").await?, false, "a late release");
    ensure_eq!(other.renew_lock(&key, "b", LONG).await?, Some(next), "the lock after a late release");
    close(&replicas).await;
    PASSED
}

async fn a_lock_taken_again_is_the_same(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("job");
    let fence = free_lock(&replicas[0], &key, "a", LONG).await?;
    for replica in &replicas {
        ensure_eq!(lock(replica, &key, "a", LONG).await?, Some(fence), "the same acquisition");
    }
    let others = free_lock(&replicas[1], &context.scope("other"), "a", LONG).await;
    ensure!(others.is_ok(), "a lock keeps somebody from another");
    close(&replicas).await;
    PASSED
}

async fn a_lock_ends_with_its_time(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("job");
    let fence = free_lock(&replicas[0], &key, "a", LONG).await?;
    let renewed = replicas[0].coordinator.renew_lock(&key, "a", Duration::from_millis(1)).await?;
    ensure_eq!(renewed, Some(fence), "a renewal by the holder");
    let next = loop {
        if let Some(next) = lock(&replicas[1], &key, "b", LONG).await? {
            break next;
        }
        tokio::task::yield_now().await;
    };
    ensure!(next > fence, "the fence {next:?} after {fence:?}");
    let old = &replicas[0].coordinator;
    ensure_eq!(old.renew_lock(&key, "a", LONG).await?, None, "a renewal of what has ended");
    ensure_eq!(lock(&replicas[0], &key, "a", LONG).await?, None, "the lock, which is held");
    ensure_eq!(old.release_lock(&key, "a").await?, false, "a release of what has ended");
    close(&replicas).await;
    PASSED
}

async fn a_lock_outlives_its_replica(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(3).await? else { return NOT_CLAIMED };
    let key = context.scope("job");
    let fence = free_lock(&replicas[0], &key, "a", LONG).await?;
    (replicas[0].crash)();
    close(&replicas[1..2]).await;
    for gone in &replicas[..2] {
        ensure!(lock(gone, &key, "a", LONG).await.is_err(), "a replica that is gone takes a lock");
        ensure!(gone.coordinator.renew_lock(&key, "a", LONG).await.is_err(), "a replica that is gone renews");
        ensure!(gone.coordinator.release_lock(&key, "a").await.is_err(), "a replica that is gone releases");
    }
    ensure_eq!(lock(&replicas[2], &key, "b", LONG).await?, None, "the lock of a dead replica");
    ensure_eq!(
        replicas[2].coordinator.renew_lock(&key, "a", LONG).await?,
        Some(fence),
        "its token elsewhere"
    );
    ensure_eq!(replicas[2].coordinator.release_lock(&key, "a").await?, true, "its token elsewhere");
    close(&replicas).await;
    PASSED
}

async fn locks_are_no_turns(context: &mut Context) -> CaseResult {
    let Some(replicas) = context.replicas(2).await? else { return NOT_CLAIMED };
    let key = context.scope("job");
    let turn = take(&replicas[0], &key).await?;
    let fence = free_lock(&replicas[1], &key, "a", LONG).await?;
    ensure!(fence > turn.fence(), "the fence {fence:?} after {:?}", turn.fence());
    ensure!(turn.check().is_ok(), "a lock takes a turn away");
    turn.release();
    let next = take(&replicas[0], &key).await?;
    ensure!(next.fence() > fence, "the fence {:?} after {fence:?}", next.fence());
    ensure_eq!(next.previous_holder(), Some(turn.session()), "the previous holder");
    close(&replicas).await;
    PASSED
}
