//! Every write failing in every way.

use std::sync::Arc;

use botmesh_core::error::{Cas, Effect};
use botmesh_core::id::{MessageId, RecordId, SendKey};
use botmesh_core::journal::{Beat, Change, InboxState, OutboxState};
use botmesh_testing::{Fault, LossyKv};

use super::tools::{Done, Life, MAX_ATTEMPTS, World, driven, event};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, Failure, PASSED};

/// The commits of one process with one message: its session, three for the message, a beat, and the end.
const WRITES: u64 = 6;

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_lost_answer_is_recognised_at_every_write: "whichever answer is lost, every change is known as one's own",
        a_failed_write_is_tried_again_at_every_write: "whichever write fails before it happens, everything is applied once",
        an_answer_lost_on_the_second_try_is_recognised: "a write that fails and whose next answer is lost is known as one's own",
        a_lost_answer_of_a_lost_race_is_no_victory: "a change that lost is not taken for one's own because an answer was lost",
        a_crash_at_every_write_loses_and_doubles_nothing: "wherever a process dies, the next one ends the message, sent once or not at all",
        an_outage_is_an_error_without_effect: "a backend that stays away gives an error that says that nothing was written",
    ]
}

/// One message with one reply. `calls` counts the calls of the channel.
pub(super) async fn converse(life: &Life, calls: &mut u32) -> Done {
    let inbound = life.insert(life.working(event("1"))).await?;
    let outbound = life.insert(life.in_flight("1")).await?;
    *calls += 1;
    let now = outbound.record.changed;
    let refused = |refused: botmesh_core::journal::Refused| Failure::new(refused.to_string());
    let sent = outbound.record.sent(MessageId::from("m1"), now).map_err(refused)?;
    let done = inbound.record.finish(now).map_err(refused)?;
    let changes = vec![Change::update(outbound.version, &sent), Change::update(inbound.version, &done)];
    let outcomes = life.commit(changes).await?;
    ensure!(!outcomes.contains(&Cas::Lost), "the end of the message lost: {outcomes:?}");
    Ok(())
}

/// Everything that a process does, from its start to its end.
async fn whole_life(world: &mut World, kv: &LossyKv, calls: &mut u32) -> Done {
    let life = world.start_on("one", kv.clone()).await?;
    let result = async {
        converse(&life, calls).await?;
        let beat = driven(&world.clock, life.journal.beat()).await?;
        ensure_eq!(beat, Beat::Alive, "the beat");
        driven(&world.clock, life.journal.end_session()).await?;
        Ok(())
    };
    let result = result.await;
    life.kill().await;
    result
}

/// The message is over: done, and sent as often as the channel was called.
async fn is_over(world: &mut World, sent: bool) -> Done {
    let life = world.start("after").await?;
    let inbound = life.inbox(&RecordId::from("m/ana/1")).await?;
    ensure_eq!((inbound.record.state, inbound.record.attempts), (InboxState::Done, 1), "the inbound record");
    let state = life.outbox("1").await?.record.state;
    ensure_eq!(state == OutboxState::Sent, sent, "whether the send in state {state:?} is sent");
    life.kill().await;
    Ok(())
}

async fn at_every_write(context: &Context, faults: &[Fault]) -> Done {
    for write in 1..=WRITES {
        let mut world = World::new(context)?;
        world.scope = context.bot(&format!("bot {write} {faults:?}"));
        let kv = LossyKv::new(Arc::clone(&world.kv));
        for (place, fault) in (0..).zip(faults) {
            kv.fail_commit(write + place, *fault);
        }
        let mut calls = 0;
        let life = whole_life(&mut world, &kv, &mut calls).await;
        life.map_err(|failure| failure.during(&format!("with {faults:?} from write {write} on")))?;
        ensure_eq!(calls, 1, "the calls of the channel");
        ensure!(
            kv.commits() > WRITES - 1,
            "only {} commits were made: the fault did not happen",
            kv.commits()
        );
        is_over(&mut world, true).await?;
    }
    Ok(())
}

async fn a_lost_answer_is_recognised_at_every_write(context: &mut Context) -> CaseResult {
    at_every_write(context, &[Fault::LoseAnswer]).await?;
    PASSED
}

async fn a_failed_write_is_tried_again_at_every_write(context: &mut Context) -> CaseResult {
    at_every_write(context, &[Fault::FailBefore]).await?;
    at_every_write(context, &[Fault::FailBefore, Fault::FailBefore]).await.map_err(|f| f.during("twice"))?;
    PASSED
}

async fn an_answer_lost_on_the_second_try_is_recognised(context: &mut Context) -> CaseResult {
    at_every_write(context, &[Fault::FailBefore, Fault::LoseAnswer]).await?;
    PASSED
}

async fn a_lost_answer_of_a_lost_race_is_no_victory(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let (one, two) = (world.start("one").await?, world.start("two").await?);
    one.insert(one.working(event("1"))).await?;
    two.kv.fail_next(Fault::LoseAnswer);
    let again = two.try_one(Change::insert(&two.working(event("1")))).await?;
    ensure_eq!(again, Cas::Lost, "an insert of what is there, with its answer lost");
    let stored = one.inbox(&RecordId::from("m/ana/1")).await?;
    one.step(&stored, stored.record.finish(world.now())).await?;
    two.kv.fail_next(Fault::LoseAnswer);
    let failed = stored.record.fail("late", world.now(), MAX_ATTEMPTS, world.now());
    let failed = failed.map_err(|refused| Failure::new(refused.to_string()))?;
    let stale = two.try_one(Change::update(stored.version, &failed)).await?;
    ensure_eq!(stale, Cas::Lost, "a stale update, with its answer lost");
    ensure_eq!(one.inbox(&stored.record.id).await?.record.state, InboxState::Done, "the record");
    one.kill().await;
    two.kill().await;
    PASSED
}

async fn a_crash_at_every_write_loses_and_doubles_nothing(context: &mut Context) -> CaseResult {
    for write in 1..=WRITES {
        for fault in [Fault::CrashBefore, Fault::CrashAfter] {
            let what = format!("with {fault:?} at write {write}");
            let mut world = World::new(context)?;
            world.scope = context.bot(&format!("bot {write} {fault:?}"));
            let kv = LossyKv::new(Arc::clone(&world.kv));
            kv.fail_commit(write, fault);
            let mut calls = 0;
            let died = whole_life(&mut world, &kv, &mut calls).await.is_err();
            ensure!(died && kv.crashed(), "{what}: the process did not die");
            let recovered = recover(&mut world, &mut calls).await;
            recovered.map_err(|failure| failure.during(&what))?;
            ensure!(calls <= 1, "{what}: the channel was called {calls} times");
        }
    }
    PASSED
}

/// The next process: the channel delivers the event again, and what was left behind is adopted and ended. A send that was
/// in flight is not repeated.
async fn recover(world: &mut World, calls: &mut u32) -> Done {
    let before = *calls;
    let life = world.start("one").await?;
    let now = world.now();
    let id = RecordId::from("m/ana/1");
    let taken = life.try_one(Change::insert(&life.working(event("1")))).await?;
    let mut inbound = life.inbox(&id).await?;
    let owner = life.journal.owner();
    if taken == Cas::Lost && inbound.record.state != InboxState::Done {
        let left = inbound.record.owner.clone();
        let sessions = life.journal.sessions().await?;
        ensure!(left.is_some_and(|owner| sessions.is_dead(&owner)), "the record's owner lives");
        inbound = life.step(&inbound, inbound.record.adopt(&owner, MAX_ATTEMPTS, now)).await?;
        inbound = life.step(&inbound, inbound.record.start(&owner, now)).await?;
    }
    if inbound.record.state != InboxState::Done {
        match life.journal.outbox().get(&SendKey::from("1")).await? {
            None => {
                ensure_eq!(before, 0, "calls of the channel without a record of them");
                let outbound = life.insert(life.in_flight("1")).await?;
                *calls += 1;
                life.step(&outbound, outbound.record.sent(MessageId::from("m1"), now)).await?;
            }
            Some(outbound) if outbound.record.state == OutboxState::InFlight => {
                life.step(&outbound, outbound.record.give_up_unknown(now)).await?;
            }
            Some(_) => {}
        }
        life.step(&inbound, inbound.record.finish(now)).await?;
    }
    let state = life.outbox("1").await?.record.state;
    let over = matches!(state, OutboxState::Sent | OutboxState::Unknown);
    ensure!(over, "the send is in the state {state:?}");
    ensure_eq!(life.inbox(&id).await?.record.state, InboxState::Done, "the inbound record");
    life.kill().await;
    Ok(())
}

async fn an_outage_is_an_error_without_effect(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let record = life.working(event("1"));
    life.kv.set_down(true);
    let outage = driven(&world.clock, life.journal.commit_one(Change::insert(&record))).await;
    let effect = outage.err().map(|error| (error.effect(), error.retry()));
    ensure_eq!(effect, Some((Effect::None, true)), "the error of an outage");
    life.kv.set_down(false);
    ensure!(life.journal.inbox().get(&record.id).await?.is_none(), "the record is there");
    life.insert(record).await?;
    life.kill().await;
    PASSED
}
