//! A message is acknowledged once a checkpoint holds its effects, and only the owner of a chat's turn writes one.

use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{Change, InboxState, Stored, WritePoint};
use botmesh::core::store::CheckpointPhase;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Fallback, HandoverConfig};
use std::sync::Arc;
use tokio::sync::Notify;

use crate::fleet::{Fleet, MINUTE, Replica, Signup, Write, forward, signup, with};

const WAITING: Write = Write::Set(CheckpointPhase::Waiting);

/// Three questions, so that an answer taken twice is noticed.
fn three() -> Flow<Signup> {
    signup().ask("colour", "What colour?", |_, _| Ok(())).say("Thanks.")
}

async fn state(replica: &Replica, event: &str) -> InboxState {
    let id = Inbound::text(event, "ana", "").record_id();
    let stored = replica.life.journals().inbox().get(&id).await.expect("a reading");
    stored.expect("the message").record.state
}

#[tokio::test]
async fn a_message_is_acknowledged_after_the_checkpoint_that_holds_its_effect() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let a = fleet.start(with(three().persistent()));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    let gate = fleet.store.hold(WAITING);
    a.is_stuck_at("2", "Ana", 1).await;
    assert_eq!(state(&a, "2").await, InboxState::Working, "it is acknowledged before its effect is stored");
    gate.notify_one();
    a.life.settled().await;
    assert_eq!(state(&a, "2").await, InboxState::Done);
}

#[tokio::test]
async fn a_message_whose_checkpoint_could_not_be_written_is_replayed() {
    for write in [WAITING, Write::Set(CheckpointPhase::Running), Write::Set(CheckpointPhase::Ended)] {
        let mut fleet = Fleet::new(HandoverConfig::default());
        let a = fleet.start(with(three().persistent()));
        fleet.store.fail(write);
        for (event, text) in [("1", "sign up"), ("2", "Ana"), ("3", "30"), ("4", "red")] {
            a.hears(event, text).await;
            assert_eq!(state(&a, event).await, InboxState::Done);
        }
        assert!(fleet.store.nothing_is_pending(), "{write:?} was not reached");
        let expected =
            ["What is your name?", "How old are you, Ana?", "Done, Ana.", "What colour?", "Thanks."];
        assert_eq!(a.said(), expected, "{write:?}");
    }
}

#[tokio::test]
async fn a_message_whose_checkpoint_was_not_written_before_a_crash_is_replayed_elsewhere() {
    for write in [WAITING, Write::Set(CheckpointPhase::Running)] {
        let mut fleet = Fleet::new(HandoverConfig::default());
        let (a, b) = fleet.pair(|bot| with(three().persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        let _never = fleet.store.hold(write);
        a.is_stuck_at("2", "Ana", usize::from(write == WAITING)).await;
        a.dies().await;
        fleet.pass(5 * MINUTE).await;
        assert_eq!(state(&b, "2").await, InboxState::Done);
        assert_eq!(fleet.said(), ["What is your name?", "How old are you, Ana?"], "{write:?}");
        assert_eq!(b.hears("3", "30").await, ["Done, Ana.", "What colour?"], "{write:?}");
    }
}

#[tokio::test]
async fn a_conversation_is_over_for_a_message_that_somebody_else_took_over_before_it_was_acknowledged() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let a = fleet.start(with(signup().persistent()));
    for (event, text) in [("1", "sign up"), ("2", "Ana")] {
        a.hears(event, text).await;
    }
    let other = fleet.stage.journal("other").await;
    fleet.store.before(Write::Set(CheckpointPhase::Ended), move || async move {
        // As after a standstill of the one that handles it.
        let id = Inbound::text("3", "ana", "").record_id();
        let Stored { record, version } = other.inbox().get(&id).await?.expect("the message");
        let adopted = record.adopt(&other.owner(), 5, other.now().await?).expect("it is not over");
        let taken = other.commit_one(Change::update(version, &adopted)).await?;
        assert!(taken.applied().is_some());
        other.end_session().await
    });
    a.takes(Inbound::text("3", "ana", "30")).await;
    fleet.pass(5 * MINUTE).await;
    assert!(fleet.store.nothing_is_pending());
    assert_eq!(state(&a, "3").await, InboxState::Done);
    assert_eq!(fleet.said(), ["What is your name?", "How old are you, Ana?", "Done, Ana."]);
    assert!(fleet.row().is_none(), "its end is remembered although the message is acknowledged");
}

#[tokio::test]
async fn a_message_that_comes_again_after_others_is_no_answer_twice() {
    for handover in [HandoverConfig::default(), forward()] {
        let mut fleet = Fleet::new(handover);
        let (a, b) = fleet.pair(|bot| with(three().persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        // It dies after the checkpoint, and before the acknowledgement.
        a.life.journal.crash_before(WritePoint::InboxFinish);
        a.is_stuck_at("2", "Ana", 1).await;
        a.dies().await;
        // What it says waits until it is known what became of what the other one was sending.
        b.takes(Inbound::text("3", "ana", "30")).await;
        fleet.pass(5 * MINUTE).await;
        assert_eq!(state(&b, "2").await, InboxState::Done);
        assert_eq!(b.said(), ["Done, Ana.", "What colour?"], "the name was taken for a colour");
        assert_eq!(b.hears("4", "red").await, ["Thanks."]);
    }
}

#[tokio::test]
async fn a_message_that_comes_again_after_its_conversation_ended_begins_nothing() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| with(signup().persistent())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.life.journal.crash_before(WritePoint::InboxFinish);
    a.is_stuck_at("2", "Ana", 1).await;
    a.dies().await;
    b.takes(Inbound::text("3", "ana", "30")).await;
    fleet.pass(5 * MINUTE).await;
    assert_eq!(b.said(), ["Done, Ana."], "the name was routed");
    assert_eq!(b.hears("4", "?").await, ["What?"]);
}

#[tokio::test]
async fn an_answer_that_comes_again_after_its_flow_timed_out_is_not_routed() {
    let brief = || {
        let flow =
            flow::<Signup>("signup").ask("name", "What is your name?", |_, _| Ok(())).timeout(MINUTE / 3);
        flow.ask("age", "How old are you?", |_, _| Ok(()))
            .timeout(MINUTE / 3)
            .on_timeout("Too late.")
            .persistent()
    };
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(|bot| with(brief())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.life.journal.crash_before(WritePoint::InboxFinish);
    a.is_stuck_at("2", "Ana", 1).await;
    a.dies().await;
    fleet.pass(3 * MINUTE).await;
    assert_eq!(b.said(), ["Too late."]);
}

#[tokio::test]
async fn a_message_that_ended_a_conversation_in_memory_begins_nothing_though_others_had_the_chat_since() {
    let gate = Arc::new(Notify::new());
    let build = |bot: BotBuilder| {
        let gate = Arc::clone(&gate);
        with(signup())(bot).after_message(move |c: Ctx| {
            let gate = Arc::clone(&gate);
            async move {
                if c.text() == "30" {
                    gate.notified().await;
                }
            }
        })
    };
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(build);
    a.hears("1", "sign up").await;
    a.hears("2", "Ana").await;
    // The flow is over, and its turn is lost before its last message is acknowledged.
    a.is_stuck_at("3", "30", 1).await;
    a.coordinator.lose();
    assert_eq!(b.hears("4", "?").await, ["What?"]);
    gate.notify_one();
    fleet.pass(MINUTE).await;
    gate.notify_one();
    a.life.settled().await;
    assert_eq!(state(&a, "3").await, InboxState::Done);
    assert_eq!(a.said(), ["What is your name?", "How old are you, Ana?", "Done, Ana."]);
}

/// Whether a replica told that this conversation's turn was lost for this reason.
fn lost(replica: &mut Replica, why: &str) -> bool {
    replica.events().into_iter().any(|event| {
        event.name() == "coordination:lease-lost"
            && matches!(event, BotEvent::LeaseLost { reason, .. } if reason == why)
    })
}

#[tokio::test]
async fn a_refused_write_ends_the_conversation_as_a_lost_turn() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (mut a, b) = fleet.pair(|bot| with(three().persistent())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        // It looked at its turn, and stands still right before the write.
        let gate = fleet.store.hold(WAITING);
        a.is_stuck_at("2", "Ana", 1).await;
        a.coordinator.lose();
        let heard = b.hears("3", "30").await;
        assert_eq!(heard.last().map(String::as_str), Some("What colour?"), "durable: {durable}");
        let row = fleet.row();
        gate.notify_one();
        a.life.settled().await;
        assert!(lost(&mut a, "Superseded"), "durable: {durable}");
        assert_eq!(fleet.row(), row, "it wrote over the checkpoint of the new owner");
        assert_eq!(b.hears("4", "red").await, ["Thanks."]);
        fleet.pass(5 * MINUTE).await;
        assert_eq!(b.hears("5", "?").await, ["What?"]);
    }
}

#[tokio::test]
async fn a_refused_clear_leaves_the_row_of_the_newer_owner() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(HandoverConfig::default()).with_durability(durable);
        let (a, b) = fleet.pair(|bot| with(signup().persistent())(bot));
        a.hears("1", "sign up").await;
        a.hears("2", "Ana").await;
        let gate = fleet.store.hold(Write::Clear);
        a.is_stuck_at("3", "30", 1).await;
        a.coordinator.lose();
        if !durable {
            // The flow did not end in the store, so that its last step runs again for the recorded answer.
            assert_eq!(b.hears("4", "?").await, ["Done, Ana.", "What?"]);
        }
        assert_eq!(b.hears("5", "sign up").await, ["What is your name?"], "durable: {durable}");
        gate.notify_one();
        a.life.settled().await;
        assert_eq!(b.hears("6", "Bea").await, ["How old are you, Bea?"], "durable: {durable}");
        assert_eq!(b.hears("7", "40").await, ["Done, Bea."], "durable: {durable}");
    }
}

/// A step that stands still after its answer until this is notified, and then says nothing.
fn gated(gate: &Arc<Notify>) -> Flow<Signup> {
    let gate = Arc::clone(gate);
    let flow = flow::<Signup>("signup").do_("name", move |c: FlowCtx<Signup>| {
        let gate = Arc::clone(&gate);
        async move {
            let name = c.ask("What is your name?").await?;
            gate.notified().await;
            c.update(|s| s.name = name.text().to_owned());
            Ok(Step::Next)
        }
    });
    flow.do_("pause", |_| async { Ok(Step::Next) })
        .ask("age", |s: &Signup| format!("How old are you, {}?", s.name), |_, _| Ok(()))
        .say(|s: &Signup| format!("Done, {}.", s.name))
}

#[tokio::test]
async fn a_replica_whose_turn_is_lost_writes_no_checkpoint() {
    for persistent in [true, false] {
        for durable in [true, false] {
            let mut fleet = Fleet::new(forward()).with_durability(durable);
            let gate = Arc::new(Notify::new());
            let flow = gated(&gate);
            let mut a = fleet.start(with(if persistent { flow.persistent() } else { flow }));
            assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
            a.is_stuck_at("2", "Ana", 0).await;
            // Nobody else takes the chat, so that only the look at its own turn keeps it from writing.
            a.coordinator.crash();
            let row = fleet.row();
            fleet.store.writes();
            gate.notify_one();
            a.life.settled_but_for_turns().await;
            fleet.pass(MINUTE).await;
            assert_eq!(fleet.store.writes(), [], "persistent: {persistent}, durable: {durable}");
            assert_eq!(fleet.row(), row);
            assert!(lost(&mut a, "Expired"));
            assert_eq!(a.said(), ["What is your name?"]);
        }
    }
}

#[tokio::test]
async fn a_stub_is_not_cleared_by_a_replica_whose_turn_is_lost() {
    let gate = Arc::new(Notify::new());
    let chat = {
        let gate = Arc::clone(&gate);
        move |c: Conv| {
            let gate = Arc::clone(&gate);
            async move {
                c.ask("What is your name?").await?;
                gate.notified().await;
                Ok::<_, botmesh::Error>(())
            }
        }
    };
    let mut fleet = Fleet::new(HandoverConfig::default().with_fallback(Fallback::Notify));
    let (a, b) = fleet.pair(|bot| crate::fleet::routes(bot).conversation("signup", chat.clone()));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.is_stuck_at("2", "Ana", 0).await;
    a.coordinator.crash();
    gate.notify_one();
    fleet.pass(MINUTE).await;
    assert!(fleet.row().is_some_and(|row| row.phase == CheckpointPhase::Stub));
    let said = b.hears("3", "hello?").await;
    assert!(said.len() == 1 && said[0].starts_with("Sorry"), "{said:?}");
    assert_eq!(b.hears("4", "?").await, ["What?"]);
}

#[tokio::test]
async fn a_reply_does_not_overtake_what_a_dead_replica_was_sending() {
    let twice = |bot: BotBuilder| {
        bot.when("hi", |c: Ctx| async move {
            c.reply("one").await?;
            c.reply("two").await?;
            Ok::<_, botmesh::Error>(())
        })
        .otherwise(|c: Ctx| async move { c.reply(c.text().to_owned()).await })
    };
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (a, b) = fleet.pair(twice);
    a.life.journal.crash_before(WritePoint::InboxFinish);
    a.takes(Inbound::text("1", "ana", "hi")).await;
    a.life.until("the crash", || a.life.journal.crashed()).await;
    a.dies().await;
    assert_eq!(fleet.said(), ["one", "two"]);
    // Within the same millisecond, in which the clocks do not tell who was first.
    b.takes(Inbound::text("2", "ana", "three")).await;
    b.takes(Inbound::text("3", "ana", "four")).await;
    fleet.pass(Duration::from_secs(1)).await;
    assert_eq!(fleet.said(), ["one", "two"]);
    // Nobody knows what became of the last one until the dead replica's lease has run out.
    fleet.pass(10 * MINUTE).await;
    assert_eq!(fleet.said(), ["one", "two", "three", "four"]);
}
