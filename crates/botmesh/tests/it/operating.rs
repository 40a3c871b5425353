//! What an operator sees in the journals and decides about them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use botmesh::core::Bytes;
use botmesh::core::error::{Cas, ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{InboxState, OutboxRecord, OutboxState, Revival};
use botmesh::core::kv::{DurableKv, Expect, Index, Op};
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::{Capabilities, Resolve, TextLimit, TextUnit};
use botmesh::core::time::Clock;
use botmesh::prelude::*;
use botmesh::{BotBuilder, InboxConfig, OnAmbiguous, OnHandlerError, OperateError};
use botmesh_testing::{Fault, MockProvider, SendFault};

use crate::support::{Life, Stage};

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

fn failure() -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::Answered, "the channel is away")
}

fn fails_always(stage: &Stage) {
    stage.channel.fault_when(|_| Some(SendFault::Fail(failure())));
}

async fn send_record(life: &Life, key: &str) -> OutboxRecord {
    life.journals().outbox().get(&key.into()).await.expect("a reading").expect("the send").record
}

/// A bot that runs, with a send to `bob` that the channel refused six times.
async fn with_a_dead_send(stage: &Stage) -> Life {
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    fails_always(stage);
    life.bot.enqueue("invoice:42", "bob", "your invoice").await.expect("a journaled send");
    life.until("its death", || life.bot.metrics().outbox_dead == 1).await;
    life.settled().await;
    life
}

/// Case K01.
#[tokio::test]
async fn a_dead_send_that_is_retried_has_all_its_attempts_again_and_remembers_the_first_ones() {
    let stage = Stage::new(Resolve::Never);
    let life = with_a_dead_send(&stage).await;
    assert_eq!(stage.channel.sent().len(), 1 + 6);
    stage.channel.heal();
    for _ in 0..3 {
        stage.channel.fail_next(failure());
    }
    let at = stage.clock.now();
    let retried = life.journals().by("ana").retry_send("invoice:42").await.expect("a retry");
    assert_eq!(
        retried.applied().map(|record| (record.state, record.attempts)),
        Some((OutboxState::Waiting, 0))
    );
    life.until("the send", || stage.channel.texts_to("bob") == ["your invoice"]).await;
    life.settled().await;
    let record = send_record(&life, "invoice:42").await;
    assert_eq!((record.state, record.attempts), (OutboxState::Sent, 4));
    let (by, error) = (Some("ana".to_owned()), Some("the channel is away".to_owned()));
    let first = Revival { number: 1, at, by, state: OutboxState::Dead, attempts: 6, error };
    assert_eq!(record.revivals, [first]);
    let page = life.journals().outbox().list(OutboxState::Sent, None, 10).await.expect("a listing");
    assert!(page.records.iter().any(|stored| stored.record == record), "the listing tells less");
    life.stop().await;
}

#[tokio::test]
async fn a_record_that_is_revived_often_remembers_the_last_ten_times() {
    let stage = Stage::new(Resolve::Never);
    let life = with_a_dead_send(&stage).await;
    for n in 1..=12 {
        let retried = life.journals().by("x".repeat(5000)).retry_send("invoice:42").await.expect("a retry");
        assert!(retried.applied().is_some());
        life.until("its death", || life.bot.metrics().outbox_dead == 1 + n).await;
        life.settled().await;
    }
    let record = send_record(&life, "invoice:42").await;
    let numbers: Vec<u32> = record.revivals.iter().map(|revival| revival.number).collect();
    assert_eq!(numbers, (3..=12).collect::<Vec<_>>());
    assert!(record.revivals.iter().all(|revival| revival.by.as_ref().is_some_and(|by| by.len() < 300)));
    life.stop().await;
}

#[tokio::test]
async fn a_send_of_unknown_outcome_can_be_sent_after_all() {
    let stage = Stage::new(Resolve::Never);
    let policy = Durability::default().with_instance_id("bot").with_on_ambiguous(OnAmbiguous::Skip);
    let life = stage.start_with(policy, echo);
    life.say("m0", "hi", 1).await;
    let lost = ChannelError::new(ErrorClass::Transient, Phase::Unknown, "no answer");
    stage.channel.fail_next(lost);
    life.bot.enqueue("invoice:42", "bob", "your invoice").await.expect("a journaled send");
    life.until("the doubt", || life.bot.metrics().outbox_ambiguous == 1).await;
    life.settled().await;
    assert!(life.journals().retry_send("invoice:42").await.expect("a retry").applied().is_some());
    life.until("the send", || stage.channel.texts_to("bob") == ["your invoice"]).await;
    life.settled().await;
    let record = send_record(&life, "invoice:42").await;
    assert_eq!((record.state, record.revivals[0].state), (OutboxState::Sent, OutboxState::Unknown));
    life.stop().await;
}

#[tokio::test]
async fn a_dead_text_is_sent_in_all_its_parts_whichever_of_them_is_retried() {
    for key in ["story", "story#2", "story#3"] {
        let mut capabilities = Capabilities::default();
        capabilities.text_limit = Some(TextLimit { max: 5, unit: TextUnit::Bytes });
        let mut stage = Stage::new(Resolve::Never);
        stage.channel = MockProvider::with_capabilities(capabilities);
        let life = stage.start(echo);
        life.say("m0", "hi", 1).await;
        let refused = ChannelError::new(ErrorClass::Rejected, Phase::Answered, "not now");
        stage.channel.fail_next(refused);
        life.bot.enqueue("story", "bob", "once upon a time").await.expect("a journaled send");
        let dead = || life.bot.metrics().outbox_dead;
        life.until("its death", || dead() > 1).await;
        life.settled().await;
        let parts = dead();
        assert!(life.journals().retry_send(key).await.expect("a retry").applied().is_some());
        life.until(key, || stage.channel.texts_to("bob").len() as u64 == parts).await;
        assert_eq!(stage.channel.texts_to("bob").concat().replace(' ', ""), "onceuponatime", "{key}");
        life.stop().await;
    }
}

/// Case C11.
#[tokio::test]
async fn a_dead_message_stays_dead_until_it_is_replayed_with_all_its_attempts() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let inbox = InboxConfig { on_handler_error: OnHandlerError::Retry, ..InboxConfig::default() };
    let life = stage.start_with(Durability::default().with_instance_id("bot").with_inbox(inbox), |bot| {
        bot.otherwise(move |c: Ctx| {
            let run = counted.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                if run < 10 {
                    return Err("not yet".into());
                }
                c.reply("at last").await?;
                Result::<()>::Ok(())
            }
        })
    });
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.until("its death", || life.bot.metrics().inbound_dead == 1).await;
    for _ in 0..3 {
        assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    }
    life.settled().await;
    assert_eq!((runs.load(Ordering::Relaxed), life.bot.metrics().inbound_duplicates), (5, 3));
    let journals = life.journals().by("ana");
    let page = journals.inbox().list(InboxState::Dead, None, 10).await.expect("a listing");
    let id = page.records[0].record.id.clone();
    assert!(journals.replay_inbound(id.clone()).await.expect("a replay").applied().is_some());
    life.until("the reply", || stage.channel.texts_to("ana") == ["at last"]).await;
    life.settled().await;
    assert_eq!(runs.load(Ordering::Relaxed), 10);
    let record = journals.inbox().get(&id).await.expect("a reading").expect("the message").record;
    let Revival { by, state, attempts, error, .. } = record.revivals[0].clone();
    assert_eq!((by.as_deref(), state, attempts), (Some("ana"), InboxState::Dead, 5));
    assert_eq!(error.as_deref(), Some("not yet"));
    life.stop().await;
}

#[tokio::test]
async fn what_is_under_way_is_left_alone_and_the_refusal_says_why() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    stage.channel.hang_next();
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    stage.channel.wait_for_hanging(1).await;
    assert!(life.deliver(Inbound::text("m2", "ana", "and?")).await);
    let journals = life.journals();
    let id = |event: &str| Inbound::text(event, "ana", "").record_id();
    let key = format!("{}:0", id("m1"));
    let refusals = [
        (journals.replay_inbound(id("m1")).await.err(), "working and cannot be replayed; try again when"),
        (journals.discard_inbound(id("m1")).await.err(), "working and cannot be discarded; try again when"),
        (journals.replay_inbound(id("m2")).await.err(), "queued and cannot be replayed; try again when"),
        (journals.discard_inbound(id("m2")).await.err(), "queued and cannot be discarded; try again when"),
        (journals.retry_send(key.as_str()).await.err(), "in flight and cannot be retried; try again when"),
        (
            journals.discard_send(key.as_str()).await.err(),
            "in flight and cannot be discarded; try again when",
        ),
        (journals.retry_send("nothing").await.err(), "the outbox has no record `nothing`"),
        (journals.replay_inbound("nothing").await.err(), "the inbox has no record `nothing`"),
    ];
    for (refusal, expected) in refusals {
        let refusal = refusal.map_or_else(String::new, |error| error.to_string());
        assert!(refusal.contains(expected), "{refusal:?} does not say {expected:?}");
    }
    stage.channel.release();
    life.until("both replies", || stage.channel.texts_to("ana") == ["hi", "and?"]).await;
    life.settled().await;
    let again = journals.retry_send(key.as_str()).await.expect_err("it is sent");
    assert!(matches!(again, OperateError::Refused { .. }) && again.to_string().ends_with("use another key"));
    life.stop().await;
}

#[tokio::test]
async fn of_two_operators_at_once_one_is_told_that_the_other_was_faster() {
    let stage = Stage::new(Resolve::Never);
    let life = with_a_dead_send(&stage).await;
    stage.channel.heal();
    let (ana, bob) = (life.journals().by("ana"), life.journals().by("bob"));
    life.journal.fail_next(Fault::Hang);
    let faster = async {
        life.journal.wait_for_hanging(1).await;
        let retried = ana.retry_send("invoice:42").await;
        life.journal.release();
        retried
    };
    let outcomes = futures_util::join!(bob.discard_send("invoice:42"), faster);
    assert!(matches!(outcomes, (Ok(Cas::Lost), Ok(Cas::Applied(_)))), "{outcomes:?}");
    life.until("the send", || stage.channel.texts_to("bob") == ["your invoice"]).await;
    life.stop().await;
}

#[tokio::test]
async fn what_is_discarded_is_forgotten() {
    let stage = Stage::new(Resolve::Never);
    let life = with_a_dead_send(&stage).await;
    let journals = life.journals();
    life.bot.enqueue("invoice:43", "bob", "another").await.expect("a journaled send");
    life.until("a try", || stage.channel.sent().len() > 7).await;
    life.settled().await;
    stage.channel.heal();
    for key in ["invoice:42", "invoice:43"] {
        let discarded = journals.discard_send(key).await.expect("a decision").applied();
        assert_eq!(discarded.map(|record| record.key.to_string()).as_deref(), Some(key));
        assert!(journals.outbox().get(&key.into()).await.expect("a reading").is_none());
    }
    let again = life.bot.enqueue("invoice:42", "bob", "the right one").await.expect("a journaled send");
    assert!(!again.known);
    life.until("the send", || stage.channel.texts_to("bob") == ["the right one"]).await;
    let id = Inbound::text("m0", "ana", "").record_id();
    assert!(journals.discard_inbound(id).await.expect("a decision").applied().is_some());
    let before = life.bot.metrics();
    assert!(life.deliver(Inbound::text("m0", "ana", "hi")).await);
    life.settled().await;
    let after = life.bot.metrics();
    assert_eq!(
        after.inbound_journaled,
        before.inbound_journaled + 1,
        "a redelivery after that is no new message"
    );
    assert_eq!(after.outbox_deduped, before.outbox_deduped + 1, "its reply is not answered from the outbox");
    life.stop().await;
}

#[tokio::test]
async fn listings_show_every_record_once_and_tell_what_cannot_be_read() {
    let kv = Arc::new(MemoryKv::new());
    let stage = Stage::with_kv(Resolve::Never, Arc::clone(&kv) as Arc<dyn DurableKv>);
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    fails_always(&stage);
    for n in 0..25 {
        life.bot.enqueue(format!("n{n}"), "bob", "soon").await.expect("a journaled send");
    }
    for (n, body) in [r#"{"v":99,"key":"later"}"#, "no JSON"].into_iter().enumerate() {
        let value = Bytes::from([&[0; 16], body.as_bytes()].concat());
        let (key, index) = (Bytes::from(format!("obad{n}")), Index { due: None, list: Some((14, 7)) });
        let put = Op::Put { key, expect: Expect::Absent, value, index };
        kv.scoped(&Scope::default().id()).commit(vec![put]).await.expect("a commit");
    }
    let (journals, mut keys, mut after) = (life.journals(), BTreeSet::new(), None);
    loop {
        let page = journals.outbox().list(OutboxState::Waiting, after.as_ref(), 7).await.expect("a page");
        assert!(page.records.len() <= 7);
        for stored in page.records {
            assert!(keys.insert(stored.record.key.to_string()), "{} comes twice", stored.record.key);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(keys.len(), 25);
    life.until("25 deaths", || life.bot.metrics().outbox_dead == 25).await;
    let mut pages = journals.outbox().pages(OutboxState::Dead);
    let (mut dead, mut unreadable) = (0, Vec::new());
    while let Some(page) = pages.next().await.expect("a page") {
        dead += page.records.len();
        unreadable.extend(page.unreadable);
    }
    assert_eq!((dead, unreadable.len()), (25, 2));
    assert_eq!(unreadable[0].key, "bad0");
    assert!(unreadable[0].reason.contains("format 99") && unreadable[0].reason.contains("upgrade"));
    assert!(unreadable[1].reason.contains("cannot be read"));
    life.stop().await;
}

#[tokio::test]
async fn there_are_no_journals_without_durability_or_before_the_bot_runs() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start_plain(echo);
    assert!(life.bot.durability().is_none(), "it does not run yet");
    life.say("m0", "hi", 1).await;
    assert!(life.bot.durability().is_none(), "it is not durable");
    let enqueued = life.bot.enqueue("now", "bob", "at once").await.expect("a send");
    assert_eq!((enqueued.known, enqueued.state), (false, OutboxState::Sent));
    assert!(enqueued.sent.is_some());
    stage.clock.advance(Duration::from_secs(1)).await;
    life.stop().await;
}
