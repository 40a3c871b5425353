//! What an operator is told: one event for each change, however often something fails.

use std::sync::Arc;
use std::time::Duration;

use botmesh::core::Bytes;
use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{Change, ErrorNote, InboxRecord, InboxState, OutboxRecord, OutboxState, Send};
use botmesh::core::kv::{DurableKv, Expect, Index, Op};
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::Resolve;
use botmesh::core::time::{Clock, Timestamp};
use botmesh::prelude::*;
use botmesh::{BotBuilder, BotEvent};
use botmesh_testing::Fault;

use crate::journals::desk;
use crate::support::{Life, Stage};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

fn told(life: &mut Life) -> Vec<BotEvent> {
    std::iter::from_fn(|| life.events.try_recv().ok()).collect()
}

fn names(events: &[BotEvent]) -> Vec<&'static str> {
    events.iter().map(BotEvent::name).filter(|name| *name != "started").collect()
}

#[tokio::test]
async fn an_outage_of_the_journals_is_told_when_it_begins_and_when_it_is_over() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    life.settled().await;
    life.journal.set_down(true);
    for n in 0..5 {
        assert!(!life.deliver(Inbound::text(format!("down{n}"), "ana", "hi")).await);
        stage.clock.advance(Duration::from_secs(1)).await;
    }
    assert_eq!(names(&told(&mut life)), ["durability:unavailable"]);
    life.journal.set_down(false);
    life.say("m1", "there", 1).await;
    stage.clock.advance(Duration::from_secs(2)).await;
    let events = told(&mut life);
    assert_eq!(names(&events), ["durability:available"]);
    let [BotEvent::JournalAvailable { failures, after }] = events[..] else { panic!("{events:?}") };
    assert!(failures > 10 && after > Duration::from_secs(5), "{failures} failures in {after:?}");
    life.stop().await;
}

#[tokio::test]
async fn an_outage_of_writing_alone_is_one_outage() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    life.settled().await;
    let next = life.journal.commits() + 1;
    for n in 0..8 {
        life.journal.fail_commit(next + n, Fault::FailBefore);
    }
    let time = stage.clock.advance(Duration::from_secs(15));
    let (enqueued, ()) = futures_util::join!(life.bot.enqueue("k", "bob", "later"), time);
    assert!(enqueued.is_err(), "six tries failed");
    assert_eq!(
        names(&told(&mut life)),
        ["durability:unavailable"],
        "that reading works ends no outage of writing"
    );
    let time = stage.clock.advance(Duration::from_secs(15));
    let (enqueued, ()) = futures_util::join!(life.bot.enqueue("k", "bob", "later"), time);
    enqueued.expect("the third try succeeds");
    life.until("the send", || stage.channel.texts_to("bob") == ["later"]).await;
    assert_eq!(names(&told(&mut life)), ["durability:available"]);
    life.stop().await;
}

#[tokio::test]
async fn what_fails_in_every_sweep_is_told_once_and_again_when_it_works() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(desk);
    life.say("m0", "hi", 1).await;
    life.settled().await;
    assert!(names(&told(&mut life)).is_empty());
    life.store.set_down(true);
    stage.clock.advance(Duration::from_secs(20)).await;
    let events = told(&mut life);
    assert!(matches!(&events[..], [BotEvent::Error { context, .. }] if context == "sweeping"), "{events:?}");
    life.store.set_down(false);
    stage.clock.advance(Duration::from_secs(5)).await;
    let events = told(&mut life);
    let [BotEvent::Recovered { context, failures }] = &events[..] else { panic!("{events:?}") };
    assert!(context == "sweeping" && *failures > 10, "{context} after {failures}");
    life.stop().await;
}

#[tokio::test]
async fn h09_what_fails_and_works_by_turns_is_told_once_a_minute() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(desk);
    life.say("m0", "hi", 1).await;
    life.settled().await;
    told(&mut life);
    for _ in 0..10 {
        life.store.set_down(true);
        stage.clock.advance(Duration::from_secs(3)).await;
        life.store.set_down(false);
        stage.clock.advance(Duration::from_secs(2)).await;
    }
    assert_eq!(names(&told(&mut life)), ["error", "recovered"], "ten times within 50 seconds");
    life.store.set_down(true);
    stage.clock.advance(Duration::from_secs(20)).await;
    assert_eq!(names(&told(&mut life)), ["error"], "what lasts is told");
    life.store.set_down(false);
    stage.clock.advance(Duration::from_secs(5)).await;
    assert_eq!(names(&told(&mut life)), ["recovered"]);
    life.stop().await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_told_once() {
    let kv = Arc::new(MemoryKv::new());
    let stage = Stage::with_kv(Resolve::Never, Arc::clone(&kv) as Arc<dyn DurableKv>);
    let value = Bytes::from([&[0; 16], br#"{"v":99}"#.as_slice()].concat());
    let index = Index { due: Some(Timestamp::default()), list: Some((12, 7)) };
    let put = Op::Put { key: "olater".into(), expect: Expect::Absent, value, index };
    kv.scoped(&Scope::default().id()).commit(vec![put]).await.expect("a commit");
    let mut life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    stage.clock.advance(Duration::from_secs(20)).await;
    let events = told(&mut life);
    assert_eq!(names(&events), ["error"]);
    assert!(events.iter().any(|event| event.to_string().contains("later has format 99")), "{events:?}");
    life.stop().await;
}

/// Leaves dead letters of both journals, and sends of unknown outcome.
async fn leave_dead(stage: &Stage, inbound: usize, outbound: usize, unknown: usize) {
    let (journal, now) = (stage.journal("the test").await, stage.clock.now());
    let owner = journal.owner();
    let mut changes = Vec::new();
    for n in 0..inbound {
        let event = Arc::new(Inbound::text(format!("d{n}"), "ana", "hi"));
        let record = InboxRecord::working(event, 1, owner.clone(), now);
        changes.push(Change::insert(&record.fail("no", now, 1, now).expect("working")));
    }
    for n in 0..outbound + unknown {
        let (key, chat) = (format!("d{n}").into(), "bob".into());
        let send = Send { key, chat, content: "hi".into(), fingerprint: None, source: None };
        let record = OutboxRecord::in_flight(send, 1, owner.clone(), now);
        let refused = ChannelError::new(ErrorClass::Rejected, Phase::Answered, "no");
        let ended = match n < outbound {
            true => record.fail(ErrorNote::from(&refused), None, now),
            false => record.give_up_unknown(now),
        };
        changes.push(Change::insert(&ended.expect("in flight")));
    }
    while !changes.is_empty() {
        let page = changes.split_off(changes.len().saturating_sub(1000));
        let outcomes = journal.commit(page).await.expect("a commit");
        assert!(outcomes.into_iter().all(|outcome| outcome.applied().is_some()));
    }
}

async fn dead_left(life: &Life) -> (usize, usize, usize) {
    let (journals, end) = (life.journals(), Timestamp::MAX);
    let inbound = journals.inbox().count(InboxState::Dead, end, 100_000).await.expect("a count");
    let outbound = journals.outbox().count(OutboxState::Dead, end, 100_000).await.expect("a count");
    let unknown = journals.outbox().count(OutboxState::Unknown, end, 100_000).await.expect("a count");
    (inbound, outbound, unknown)
}

/// Case K05.
#[tokio::test]
async fn dead_letters_are_counted_before_they_are_removed() {
    let stage = Stage::new(Resolve::Never);
    leave_dead(&stage, 10_000, 300, 7).await;
    let durability = Durability::default().with_instance_id("bot").with_dead_retention(DAY);
    let mut life = stage.start_with(durability, echo);
    life.say("m0", "hi", 1).await;
    life.settled().await;
    assert_eq!(dead_left(&life).await, (10_000, 300, 7));
    assert!(names(&told(&mut life)).is_empty(), "they are not old enough");
    let removes_messages = |op: &Op| matches!(op, Op::Delete { key, .. } if key.first() == Some(&b'i'));
    life.journal.fail_when(move |ops| ops.iter().any(removes_messages), Fault::Hang);
    stage.clock.jump(2 * DAY);
    life.until("the first removal", || life.journal.hanging() == 1).await;
    let events = told(&mut life);
    let [.., BotEvent::PurgingDead { inbound: 10_000, outbound: 300, unknown: 7, at_least: false, .. }] =
        events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(dead_left(&life).await, (10_000, 300, 7), "some were removed before they were told of");
    life.journal.release();
    stage.clock.advance(Duration::from_secs(5)).await;
    assert_eq!(dead_left(&life).await, (0, 0, 0));
    let purging = told(&mut life).into_iter().filter(|event| matches!(event, BotEvent::PurgingDead { .. }));
    assert_eq!(purging.count(), 0, "told more than once");
    life.stop().await;
}

#[tokio::test]
async fn dead_letters_are_kept_for_their_own_retention() {
    for (retention, left) in [(Duration::ZERO, (3, 2, 1)), (40 * DAY, (3, 2, 1)), (30 * DAY, (0, 0, 0))] {
        let stage = Stage::new(Resolve::Never);
        leave_dead(&stage, 3, 2, 1).await;
        let mut durability = Durability::default().with_instance_id("bot").with_retention(DAY);
        if retention != 30 * DAY {
            durability = durability.with_dead_retention(retention);
        }
        let life = stage.start_with(durability, echo);
        life.say("m0", "hi", 1).await;
        life.settled().await;
        stage.clock.jump(31 * DAY);
        stage.clock.advance(Duration::from_secs(3)).await;
        assert_eq!(dead_left(&life).await, left, "{retention:?}");
        let done =
            life.journals().inbox().count(InboxState::Done, Timestamp::MAX, 10).await.expect("a count");
        assert_eq!(done, 0, "what is done has a retention of its own");
        life.stop().await;
    }
}
