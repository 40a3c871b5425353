//! Who owns what, and for how long.

use std::time::Duration;

use botmesh_core::error::Cas;
use botmesh_core::journal::{Beat, Change, InboxState};

use super::tools::{LEASE, MAX_ATTEMPTS, World, event};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, Failure, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_new_start_orphans_the_old_one_at_once: "to a second start of an instance the first one is dead; to others the instance goes on",
        a_superseded_process_is_told: "the next beat of the first start says that it was superseded",
        a_superseded_process_completes_nothing: "what the second start adopted the first one can no longer finish",
        what_a_superseded_process_claims_is_orphaned: "a record that the first start still takes is adopted again",
        a_silent_session_dies_with_its_lease: "a session is alive up to the end of its lease and dead after it",
        a_beat_keeps_a_session_alive: "beats keep a session alive, with one write each",
        an_ended_session_is_dead_at_once: "a process that ends its session waits for no lease",
        removed_sessions_leave_dead_owners: "after expired sessions are removed their owners are dead, also if they beat",
        epochs_never_come_back: "each start of an instance has a larger epoch, also after its session was removed",
        sessions_do_not_pile_up: "after many starts under changing names only living sessions are left",
    ]
}

async fn a_new_start_orphans_the_old_one_at_once(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let (old, other) = (world.start("one").await?, world.start("other").await?);
    let stored = old.insert(old.working(event("1"))).await?;
    let new = world.start("one").await?;
    let sessions = new.journal.sessions().await?;
    ensure!(new.journal.owner().epoch > old.journal.owner().epoch, "the epoch did not grow");
    ensure!(sessions.is_dead(&old.journal.owner()), "the first start is alive");
    let seen_by_other = other.journal.sessions().await?;
    ensure!(
        !seen_by_other.is_dead(&old.journal.owner()),
        "another instance would share the first start's chats"
    );
    ensure!(!sessions.is_dead(&new.journal.owner()), "the second start is dead");
    ensure!(!sessions.is_dead(&other.journal.owner()), "another instance is dead");
    let owner = new.journal.owner();
    new.step(&stored, stored.record.adopt(&owner, MAX_ATTEMPTS, world.now())).await?;
    let queued = new.journal.inbox().list(InboxState::Queued, None, 10).await?.records;
    ensure_eq!(queued.len(), 1, "the adopted records");
    ensure_eq!(queued[0].record.owner, Some(owner), "the new owner");
    for life in [old, other, new] {
        life.kill().await;
    }
    PASSED
}

async fn a_superseded_process_is_told(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let old = world.start("one").await?;
    ensure_eq!(old.journal.beat().await?, Beat::Alive, "a beat before");
    let new = world.start("one").await?;
    for _ in 0..2 {
        ensure_eq!(old.journal.beat().await?, Beat::Superseded, "a beat of the first start");
        ensure_eq!(new.journal.beat().await?, Beat::Alive, "a beat of the second start");
    }
    old.journal.end_session().await?;
    let sessions = new.journal.sessions().await?;
    ensure!(!sessions.is_dead(&new.journal.owner()), "the first start ended the session of the second");
    old.kill().await;
    new.kill().await;
    PASSED
}

async fn a_superseded_process_completes_nothing(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let old = world.start("one").await?;
    let (inbound, outbound) =
        (old.insert(old.working(event("1"))).await?, old.insert(old.in_flight("k")).await?);
    let new = world.start("one").await?;
    let owner = new.journal.owner();
    let now = world.now();
    let adopted = new.step(&inbound, inbound.record.adopt(&owner, MAX_ATTEMPTS, now)).await?;
    let retried = new.step(&outbound, outbound.record.start(&owner, now)).await?;
    let refused = |refused: botmesh_core::journal::Refused| Failure::new(refused.to_string());
    let done = inbound.record.finish(now).map_err(refused)?;
    let sent = outbound.record.sent("late".into(), now).map_err(refused)?;
    let outcomes = old
        .commit(vec![Change::update(inbound.version, &done), Change::update(outbound.version, &sent)])
        .await?;
    ensure_eq!(outcomes, [Cas::Lost, Cas::Lost], "what the first start completes");
    ensure_eq!(new.inbox(&inbound.record.id).await?, adopted, "the inbound record");
    ensure_eq!(new.outbox("k").await?, retried, "the send");
    old.kill().await;
    new.kill().await;
    PASSED
}

async fn what_a_superseded_process_claims_is_orphaned(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let old = world.start("one").await?;
    let new = world.start("one").await?;
    // The first start has not been told yet, and takes an event over.
    let stored = old.insert(old.working(event("1"))).await?;
    let sessions = new.journal.sessions().await?;
    let owner = stored.record.owner.clone();
    ensure!(owner.is_some_and(|owner| sessions.is_dead(&owner)), "the record has a living owner");
    let adopted = stored.record.adopt(&new.journal.owner(), MAX_ATTEMPTS, world.now());
    let adopted = new.step(&stored, adopted).await?;
    ensure_eq!(adopted.record.owner, Some(new.journal.owner()), "the owner after the adoption");
    old.kill().await;
    new.kill().await;
    PASSED
}

async fn a_silent_session_dies_with_its_lease(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let silent = world.start("silent").await?;
    world.clock.jump(LEASE);
    let watching = world.start("watching").await?;
    let owner = silent.journal.owner();
    ensure!(!watching.journal.sessions().await?.is_dead(&owner), "it is dead before its lease ended");
    world.clock.jump(Duration::from_millis(1));
    ensure!(watching.journal.sessions().await?.is_dead(&owner), "it is alive after its lease ended");
    silent.kill().await;
    watching.kill().await;
    PASSED
}

async fn a_beat_keeps_a_session_alive(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let (beating, watching) = (world.start("beating").await?, world.start("watching").await?);
    for n in 0..6 {
        world.clock.jump(LEASE / 3);
        let (commits, ops) = (beating.kv.commits(), beating.kv.ops());
        ensure_eq!(beating.journal.beat().await?, Beat::Alive, "beat {n}");
        ensure_eq!((beating.kv.commits() - commits, beating.kv.ops() - ops), (1, 1), "commits and writes");
        let sessions = watching.journal.sessions().await?;
        ensure!(!sessions.is_dead(&beating.journal.owner()), "it is dead after beat {n}");
    }
    ensure!(watching.journal.sessions().await?.is_dead(&watching.journal.owner()), "it lives without a beat");
    beating.kill().await;
    watching.kill().await;
    PASSED
}

async fn an_ended_session_is_dead_at_once(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let (ending, watching) = (world.start("ending").await?, world.start("watching").await?);
    ensure!(!watching.journal.sessions().await?.is_dead(&ending.journal.owner()), "it is dead before");
    ending.journal.end_session().await?;
    ensure!(watching.journal.sessions().await?.is_dead(&ending.journal.owner()), "it is alive");
    ending.kill().await;
    watching.kill().await;
    PASSED
}

async fn removed_sessions_leave_dead_owners(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let slow = world.start("slow").await?;
    world.clock.jump(LEASE * 2);
    let watching = world.start("watching").await?;
    let sessions = watching.journal.sessions().await?;
    ensure_eq!(watching.journal.remove_expired(&sessions).await?, 1, "the removed sessions");
    let sessions = watching.journal.sessions().await?;
    ensure_eq!(sessions.len(), 1, "the sessions that are left");
    ensure!(sessions.is_dead(&slow.journal.owner()), "an owner without a session is alive");
    ensure_eq!(slow.journal.beat().await?, Beat::Expired, "a beat after the removal");
    ensure!(watching.journal.sessions().await?.is_dead(&slow.journal.owner()), "a beat revived it");
    slow.kill().await;
    watching.kill().await;
    PASSED
}

async fn epochs_never_come_back(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let watching = world.start("watching").await?;
    let mut last = 0;
    for n in 0..6 {
        let life = world.start("one").await?;
        let epoch = life.journal.owner().epoch;
        ensure!(epoch > last, "start {n} has epoch {epoch} after {last}");
        last = epoch;
        life.kill().await;
        if n % 2 == 1 {
            world.clock.jump(LEASE * 2);
            let sessions = watching.journal.sessions().await?;
            watching.journal.remove_expired(&sessions).await?;
        }
    }
    watching.kill().await;
    PASSED
}

async fn sessions_do_not_pile_up(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    for n in 0..60 {
        world.start(&format!("boot-{n}")).await?.kill().await;
    }
    world.clock.jump(LEASE * 2);
    let life = world.start("last").await?;
    let sessions = life.journal.sessions().await?;
    ensure_eq!(sessions.len(), 61, "the sessions before");
    ensure_eq!(life.journal.remove_expired(&sessions).await?, 60, "the removed sessions");
    ensure_eq!(life.journal.sessions().await?.len(), 1, "the sessions after");
    life.kill().await;
    PASSED
}
