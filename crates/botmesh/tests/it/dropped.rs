//! Calls that are dropped halfway lose nothing and double nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use botmesh::BotBuilder;
use botmesh::core::Bytes;
use botmesh::core::error::{ChannelError, ErrorClass, Phase, StoreError};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{InboxState, OutboxState};
use botmesh::core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::Resolve;
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use botmesh_testing::Fault;
use futures_util::FutureExt;
use tokio::sync::Notify;

use crate::support::{Life, Stage};

/// A backend with a thread of its own: a commit whose caller went away lands later.
#[derive(Clone)]
struct LateKv {
    inner: Arc<dyn DurableKv>,
    late: Arc<Mutex<Late>>,
}

#[derive(Default)]
struct Late {
    next: bool,
    commits: Vec<(Arc<dyn DurableKv>, Vec<Op>)>,
}

impl LateKv {
    fn new() -> Self {
        Self { inner: Arc::new(MemoryKv::new()), late: Arc::default() }
    }

    fn delay_next(&self) {
        self.late.lock().expect("no panic").next = true;
    }

    async fn land(&self) {
        let commits = std::mem::take(&mut self.late.lock().expect("no panic").commits);
        assert!(!commits.is_empty(), "no commit was delayed");
        for (kv, ops) in commits {
            kv.commit(ops).await.expect("a commit");
        }
    }
}

#[async_trait]
impl DurableKv for LateKv {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { inner: self.inner.scoped(scope), late: Arc::clone(&self.late) })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        let delayed = {
            let mut late = self.late.lock().expect("no panic");
            let delayed = std::mem::take(&mut late.next);
            if delayed {
                late.commits.push((Arc::clone(&self.inner), ops.clone()));
            }
            delayed
        };
        if delayed { std::future::pending().await } else { self.inner.commit(ops).await }
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.inner.get(keys).await
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.inner.scan(range, after, limit).await
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.inner.now().await
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

#[tokio::test]
async fn a_delivery_that_was_cut_off_before_its_write_landed_is_handled_once() {
    let kv = LateKv::new();
    let stage = Stage::with_kv(Resolve::Never, Arc::new(kv.clone()));
    let life = stage.start(echo);
    life.say("m0", "0", 1).await;
    life.settled().await;
    kv.delay_next();
    let cut_off = stage.channel.deliver(Inbound::text("m1", "ana", "1")).now_or_never();
    assert!(cut_off.is_none(), "it was taken over at once");
    stage.clock.advance(std::time::Duration::from_secs(1)).await;
    kv.land().await;
    assert!(life.deliver(Inbound::text("m1", "ana", "1")).await);
    life.until("the reply", || stage.channel.texts_to("ana") == ["0", "1"]).await;
    life.settled().await;
    assert_eq!(life.bot.metrics().inbound_journaled, 2);
    life.stop().await;
}

/// Replies, but gives up the reply when `enough` is notified.
fn impatient(enough: &Arc<Notify>) -> impl FnOnce(BotBuilder) -> BotBuilder + use<> {
    let enough = Arc::clone(enough);
    move |bot| {
        bot.when("impatient", move |c: Ctx| {
            let enough = Arc::clone(&enough);
            async move {
                tokio::select! {
                    _ = c.reply("late") => {}
                    () = enough.notified() => {}
                }
            }
        })
        .otherwise(|c: Ctx| async move { c.reply(c.text()).await })
    }
}

async fn count(life: &Life, state: OutboxState) -> usize {
    let journal = life.bot.durability().expect("a durable bot");
    journal.outbox().list(state, None, 100).await.expect("a listing").records.len()
}

#[tokio::test]
async fn a_reply_that_is_given_up_while_it_is_journaled_goes_out_in_the_background() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let stage = Stage::new(Resolve::Never);
        let enough = Arc::new(Notify::new());
        let life = stage.start(impatient(&enough));
        life.say("m0", "0", 1).await;
        life.settled().await;
        life.journal.fail_commit(life.journal.commits() + 2, fault);
        assert!(life.deliver(Inbound::text("m1", "ana", "impatient")).await);
        life.journal.wait_for_hanging(1).await;
        enough.notify_one();
        life.until("the reply", || stage.channel.texts_to("ana") == ["0", "late"]).await;
        life.settled().await;
        assert_eq!(count(&life, OutboxState::InFlight).await, 0);
        assert_eq!(life.say("m2", "2", 1).await, ["2"]);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_send_that_is_given_up_while_its_outcome_is_recorded_is_recorded_all_the_same() {
    for (fails, fault) in
        [(false, Fault::Hang), (false, Fault::HangAfter), (true, Fault::Hang), (true, Fault::HangAfter)]
    {
        let stage = Stage::new(Resolve::Never);
        let mut life = stage.start(echo);
        life.say("m0", "0", 1).await;
        life.settled().await;
        if fails {
            stage.channel.fail_next(ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy"));
        }
        life.journal.fail_commit(life.journal.commits() + 2, fault);
        tokio::select! {
            biased;
            _ = life.bot.send_keyed("k", "bob", "hi") => panic!("the outcome was recorded at once"),
            () = life.journal.wait_for_hanging(1) => {}
        }
        life.until("the message", || stage.channel.texts_to("bob") == ["hi"]).await;
        life.settled().await;
        assert_eq!(count(&life, OutboxState::InFlight).await, 0, "{fails} {fault:?}");
        assert_eq!(count(&life, OutboxState::Sent).await, 2, "{fails} {fault:?}");
        assert!(!life.event_names().contains(&"durability:ambiguous"));
        life.stop().await;
    }
}

#[tokio::test]
async fn a_reply_that_is_given_up_keeps_the_record_of_the_reply_before_it() {
    let stage = Stage::new(Resolve::Never);
    let enough = Arc::new(Notify::new());
    let gives_up = Arc::clone(&enough);
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| {
            let enough = Arc::clone(&gives_up);
            async move {
                c.reply("one").await?;
                tokio::select! {
                    _ = c.reply("two") => {}
                    () = enough.notified() => {}
                }
                Result::<()>::Ok(())
            }
        })
    });
    life.until("a running bot", || life.bot.durability().is_some()).await;
    // The commits: taken over, "one" begins, "one" is sent and "two" begins.
    life.journal.fail_commit(life.journal.commits() + 3, Fault::Hang);
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.until("a commit that stands still", || life.journal.hanging() == 1).await;
    enough.notify_one();
    life.until("both", || stage.channel.texts_to("ana") == ["one", "two"]).await;
    life.settled().await;
    assert_eq!(count(&life, OutboxState::Sent).await, 2);
    let journal = life.bot.durability().expect("a durable bot");
    let done = journal.inbox().list(InboxState::Done, None, 10).await.expect("a listing");
    assert_eq!(done.records.len(), 1);
    life.stop().await;
}

#[tokio::test]
async fn a_stop_that_cuts_a_reply_off_while_it_is_journaled_leaves_it_to_the_next_start() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(echo);
        life.say("m0", "0", 1).await;
        life.settled().await;
        life.journal.fail_commit(life.journal.commits() + 2, fault);
        assert!(life.deliver(Inbound::text("m1", "ana", "1")).await);
        life.journal.wait_for_hanging(1).await;
        life.stop().await;
        assert_eq!(stage.channel.texts_to("ana"), ["0"]);
        let mut life = stage.start(echo);
        life.until("the reply", || stage.channel.texts_to("ana") == ["0", "1"]).await;
        life.settled().await;
        assert_eq!(count(&life, OutboxState::Sent).await, 2, "{fault:?}");
        assert!(!life.event_names().contains(&"durability:ambiguous"), "{fault:?}");
        life.stop().await;
    }
}

/// An attempt that was given up while it was journaled, and another one with the same number that its process makes
/// meanwhile.
#[tokio::test]
async fn an_attempt_that_was_given_up_does_not_take_back_the_one_that_followed_it() {
    let stage = Stage::new(Resolve::Never);
    let give_up = Arc::new(Notify::new());
    let given_up = Arc::clone(&give_up);
    let life = stage.start(|bot| {
        bot.otherwise(move |c: Ctx| {
            let given_up = Arc::clone(&given_up);
            async move {
                tokio::select! {
                    _ = c.send_keyed("k", "once") => {}
                    () = given_up.notified() => {}
                }
                c.send_keyed("k", "once").await
            }
        })
    });
    let writes = |state: &'static str| {
        let state = format!("\"state\":\"{state}\"");
        move |ops: &[Op]| {
            ops.iter().any(|op| match op {
                Op::Put { key, value, .. } => {
                    key.starts_with(b"ok") && String::from_utf8_lossy(value).contains(&state)
                }
                Op::Delete { .. } => false,
            })
        }
    };
    stage.channel.fail_next(ChannelError::new(ErrorClass::Transient, Phase::NotWritten, "busy"));
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    stage.channel.wait_for_sends(1).await;
    // The second attempt is given up while its beginning is journaled.
    life.journal.fail_when(writes("in_flight"), Fault::Hang);
    life.until("the second attempt", || life.journal.hanging() == 1).await;
    // What follows it makes the same attempt, and its answer takes a while.
    stage.channel.hang_next();
    life.journal.fail_when(writes("waiting"), Fault::FailBefore);
    give_up.notify_one();
    life.until("the attempt that follows", || stage.channel.sent().len() == 2).await;
    stage.clock.advance(Duration::from_secs(60)).await;
    stage.channel.release();
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["once"], "{}", stage.channel.transcript());
    life.stop().await;
}
