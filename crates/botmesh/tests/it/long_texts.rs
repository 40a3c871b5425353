//! Texts over the channel's limit: one message for each part, all of them, in order, once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{OutboxRecord, OutboxState};
use botmesh::core::provider::{Capabilities, Resolve, TextLimit, TextUnit};
use botmesh::prelude::*;
use botmesh::{BotBuilder, OnAmbiguous, Sent};
use botmesh_testing::{Fault, MockProvider, SendFault};

use crate::support::{Life, Stage};

const LONG: &str = "part one. part two. part 3.";
const PARTS: [&str; 3] = ["part one.", "part two.", "part 3."];

fn stage_with(resolve: Resolve, max: usize) -> Stage {
    let mut stage = Stage::new(resolve);
    let mut capabilities = Capabilities::default();
    capabilities.resolve = resolve;
    capabilities.text_limit = Some(TextLimit { max, unit: TextUnit::Utf16 });
    stage.channel = MockProvider::with_capabilities(capabilities);
    stage
}

fn stage() -> Stage {
    stage_with(Resolve::Never, 10)
}

fn long(bot: BotBuilder) -> BotBuilder {
    bot.when("long", |c: Ctx| async move { c.reply(LONG).await })
        .otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

async fn record(life: &Life, key: &str) -> OutboxRecord {
    let journal = life.bot.durability().expect("a durable bot");
    journal.outbox().get(&key.into()).await.expect("a read").expect(key).record
}

#[tokio::test]
async fn a_long_reply_is_one_message_for_each_part_and_one_record() {
    let stage = stage();
    let result = Arc::new(Mutex::new(None));
    let told = Arc::clone(&result);
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| {
            let told = Arc::clone(&told);
            async move {
                *told.lock().expect("no panic") = Some(c.reply(LONG).await?);
                Result::<()>::Ok(())
            }
        })
    });
    assert_eq!(life.say("m1", "hi", 3).await, PARTS);
    life.settled().await;
    let parts = ["m/ana/m1:0", "m/ana/m1:0#2", "m/ana/m1:0#3"];
    for (n, key) in parts.iter().enumerate() {
        let record = record(&life, key).await;
        assert_eq!((record.state, record.content.readable_text()), (OutboxState::Sent, PARTS[n]));
        assert_eq!(record.previous_part().map(|key| key.as_str()), n.checked_sub(1).map(|n| parts[n]));
        assert_eq!(record.next_part().map(|key| key.as_str()), parts.get(n + 1).copied());
        assert_eq!(record.part.map(|part| part.splitter), Some(1));
    }
    assert_eq!(life.bot.metrics().outbox_journaled, 3);
    let sent: Sent = result.lock().expect("no panic").take().expect("a reply that was sent");
    assert_eq!(sent.message, record(&life, parts[0]).await.message);
    life.stop().await;
}

#[tokio::test]
async fn hooks_see_the_whole_text_before_and_each_part_after() {
    let stage = stage();
    let after = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&after);
    let life = stage.start(move |bot| {
        long(bot)
            .before_send(|_, content| async move { Ok(format!("{} end", content.readable_text()).into()) })
            .after_send(move |_, content, _| {
                seen.lock().expect("no panic").push(content.readable_text().to_owned());
                async {}
            })
    });
    assert_eq!(life.say("m1", "long", 4).await, ["part one.", "part two.", "part 3.", "end"]);
    life.settled().await;
    assert_eq!(*after.lock().expect("no panic"), ["part one.", "part two.", "part 3.", "end"]);
    life.stop().await;
}

#[tokio::test]
async fn buttons_go_with_the_last_part_and_the_quote_with_the_first() {
    let stage = stage();
    let life = stage.start(|bot| {
        bot.otherwise(|c: Ctx| async move {
            c.reply(Content::text(LONG).with_buttons([Button::new("y", "Yes")]).in_reply_to("7")).await
        })
    });
    life.say("m1", "hi", 3).await;
    let sent = stage.channel.delivered();
    assert_eq!(sent.iter().map(|sent| sent.content.buttons.len()).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(sent.iter().filter(|sent| sent.content.reply_to.is_some()).count(), 1);
    assert!(sent[0].content.reply_to.is_some());
    life.stop().await;
}

/// Case D03.
#[tokio::test]
async fn no_part_overtakes_an_earlier_one_that_fails() {
    for failing in PARTS {
        for enqueued in [false, true] {
            let stage = stage();
            let life = stage.start(long);
            stage.fail_text(failing, 2);
            if enqueued {
                life.started().await;
                life.bot.enqueue("k", "ana", LONG).await.expect("a journaled send");
                life.bot.enqueue("after", "ana", "after").await.expect("a journaled send");
                life.until("all", || stage.channel.texts_to("ana").len() == 4).await;
                assert_eq!(stage.channel.texts_to("ana"), ["part one.", "part two.", "part 3.", "after"]);
            } else {
                assert_eq!(life.say("m1", "long", 3).await, PARTS);
            }
            assert_eq!(stage.channel.sent().iter().filter(|sent| sent.text() == failing).count(), 3);
            life.stop().await;
        }
    }
}

#[tokio::test]
async fn a_part_that_is_given_up_takes_those_after_it_along() {
    let stage = stage();
    let refused = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&refused);
    let mut life = stage.start(move |bot| {
        bot.when("long", move |c: Ctx| {
            let seen = Arc::clone(&seen);
            async move {
                *seen.lock().expect("no panic") = c.reply(LONG).await.err().map(|error| error.to_string());
            }
        })
        .otherwise(|c: Ctx| async move { c.reply(c.text()).await })
    });
    stage.channel.fault_when(|sent| {
        let blocked = ChannelError::new(ErrorClass::UnsupportedContent, Phase::Answered, "no twos");
        (sent.text() == "part two.").then_some(SendFault::Fail(blocked))
    });
    assert!(life.deliver(Inbound::text("m1", "ana", "long")).await);
    assert_eq!(life.say("m2", "hi", 2).await, ["part one.", "hi"]);
    life.settled().await;
    let error = refused.lock().expect("no panic").take().expect("an error");
    assert!(error.contains("no twos"), "{error}");
    let last = record(&life, "m/ana/m1:0#3").await;
    assert_eq!((last.state, last.attempts), (OutboxState::Dead, 0));
    assert_eq!(life.bot.metrics().outbox_dead, 2);
    assert_eq!(life.event_names().iter().filter(|name| **name == "durability:dead").count(), 2);
    life.stop().await;
}

#[tokio::test]
async fn a_part_that_waits_for_an_earlier_one_keeps_all_its_attempts() {
    let stage = stage();
    let life = stage.start(long);
    let wait = ChannelError::new(ErrorClass::RateLimited, Phase::Answered, "later");
    stage.channel.fail_next(wait.with_retry_after(Duration::from_secs(40)));
    life.started().await;
    life.bot.enqueue("k", "ana", LONG).await.expect("a journaled send");
    life.until("the first call", || stage.channel.sent().len() == 1).await;
    stage.fail_text("part two.", 5);
    life.until("all", || stage.channel.texts_to("ana") == PARTS).await;
    assert_eq!(life.bot.metrics().outbox_dead, 0);
    life.stop().await;
}

#[tokio::test]
async fn every_part_comes_exactly_once_whichever_write_fails() {
    for fault in
        [Fault::FailBefore, Fault::LoseAnswer, Fault::CrashBefore, Fault::CrashAfter, Fault::CrashAmid]
    {
        let mut n = 1;
        loop {
            let stage = stage_with(Resolve::Lookup, 10);
            let life = stage.start(long);
            life.journal.fail_commit(n, fault);
            let _ = life.deliver(Inbound::text("m1", "ana", "long")).await;
            life.settled().await;
            if life.journal.commits() < n {
                assert!(n > 7, "only {n} commits");
                break;
            }
            let crashed = life.journal.crashed();
            if crashed {
                life.kill().await;
            } else {
                life.stop().await;
            }
            let life = stage.start(long);
            let _ = life.deliver(Inbound::text("m1", "ana", "long")).await;
            life.settled().await;
            stage.clock.advance(Duration::from_secs(120)).await;
            let transcript = stage.channel.transcript();
            assert_eq!(stage.channel.texts_to("ana"), PARTS, "{fault:?} at commit {n}\n{transcript}");
            life.stop().await;
            n += 1;
        }
    }
}

#[tokio::test]
async fn a_crash_between_two_parts_leaves_the_policy_one_part_to_decide_about() {
    for (policy, expected) in
        [(OnAmbiguous::Skip, &["part one.", "part 3."][..]), (OnAmbiguous::Resend, &PARTS[..])]
    {
        let stage = stage();
        let durability = || Durability::default().with_instance_id("bot").with_on_ambiguous(policy);
        let life = stage.start_with(durability(), long);
        stage.channel.fault_when(|sent| (sent.text() == "part two.").then_some(SendFault::Hang));
        assert!(life.deliver(Inbound::text("m1", "ana", "long")).await);
        life.until("the second call", || stage.channel.sent().len() == 2).await;
        life.kill().await;
        stage.channel.heal();
        let mut life = stage.start_with(durability(), long);
        life.until("the rest", || stage.channel.texts_to("ana") == expected).await;
        life.settled().await;
        assert!(life.event_names().contains(&"durability:ambiguous"));
        life.stop().await;
    }
}

#[tokio::test]
async fn a_journaled_text_that_is_over_the_limit_now_is_cut_by_the_sweeper() {
    let mut stage = stage_with(Resolve::Never, 100);
    let life = stage.start(long);
    life.say("m0", "ready", 1).await;
    stage.fail_text(LONG, usize::MAX);
    life.bot.enqueue("k", "ana", LONG).await.expect("a journaled send");
    life.bot.enqueue("after", "ana", "after").await.expect("a journaled send");
    life.until("a call", || stage.channel.sent().len() == 2).await;
    life.kill().await;
    stage.channel = self::stage().channel;
    stage.fail_text("part two.", 1);
    let life = stage.start(long);
    life.until("all", || stage.channel.texts_to("ana").len() == 4).await;
    assert_eq!(stage.channel.texts_to("ana"), ["part one.", "part two.", "part 3.", "after"]);
    assert_eq!(record(&life, "k").await.content.readable_text(), "part one.");
    assert_eq!(record(&life, "k#3").await.previous_part().map(|key| key.as_str()), Some("k#2"));
    assert_eq!(life.bot.metrics().outbox_journaled, 2);
    life.stop().await;
}

#[tokio::test]
async fn every_part_is_journaled_before_the_sweeper_sends_the_first() {
    for fault in
        [Fault::FailBefore, Fault::LoseAnswer, Fault::CrashBefore, Fault::CrashAfter, Fault::CrashAmid]
    {
        for n in 2..10 {
            let mut stage = stage_with(Resolve::Lookup, 100);
            let life = stage.start(long);
            life.say("m0", "ready", 1).await;
            stage.fail_text(LONG, usize::MAX);
            life.bot.enqueue("k", "ana", LONG).await.expect("a journaled send");
            life.until("a call", || stage.channel.sent().len() == 2).await;
            life.kill().await;
            stage.channel = stage_with(Resolve::Lookup, 10).channel;
            let life = stage.start(long);
            life.journal.fail_commit(n, fault);
            let done = || stage.channel.texts_to("ana").len() == 3 || life.journal.crashed();
            life.until("the parts", done).await;
            life.kill().await;
            let life = stage.start(long);
            life.until("the parts", || stage.channel.texts_to("ana").len() == 3).await;
            life.settled().await;
            stage.clock.advance(Duration::from_secs(60)).await;
            let transcript = stage.channel.transcript();
            assert_eq!(stage.channel.texts_to("ana"), PARTS, "{fault:?} at commit {n}\n{transcript}");
            life.stop().await;
        }
    }
}

#[tokio::test]
async fn keys_that_end_like_those_of_parts_stay_independent() {
    for own_first in [false, true] {
        let stage = stage();
        let life = stage.start(long);
        life.say("m0", "ready", 1).await;
        let sends = if own_first { [("k#2", "own"), ("k", LONG)] } else { [("k", LONG), ("k#2", "own")] };
        for (key, text) in sends {
            let sent = life.bot.send_keyed(key, "bob", text).await.expect("a send");
            assert!(!sent.deduped, "{key}, own first: {own_first}");
        }
        let mut expected = PARTS.to_vec();
        expected.insert(if own_first { 0 } else { 3 }, "own");
        assert_eq!(stage.channel.texts_to("bob"), expected);
        for (key, text) in sends {
            let again = life.bot.send_keyed(key, "bob", text).await.expect("a send");
            assert!(again.deduped, "{key}, own first: {own_first}");
            let again = life.bot.enqueue(key, "bob", text).await.expect("a send");
            assert_eq!(
                (again.known, again.state),
                (true, OutboxState::Sent),
                "{key}, own first: {own_first}"
            );
        }
        assert_eq!(stage.channel.texts_to("bob").len(), 4);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_text_that_would_become_a_thousand_messages_is_refused() {
    let stage = stage();
    let life = stage.start(long);
    life.say("m0", "ready", 1).await;
    let error = life.bot.send("bob", "word word ".repeat(1001)).await.expect_err("a refusal");
    assert!(matches!(&error, SendError::Channel(error) if error.class == ErrorClass::PayloadTooLarge));
    assert!(stage.channel.texts_to("bob").is_empty());
    life.stop().await;
}

#[tokio::test]
async fn without_durability_a_long_text_goes_out_in_parts_too() {
    let stage = stage();
    let life = stage.start_plain(long);
    assert_eq!(life.say("m1", "long", 3).await, PARTS);
    life.stop().await;
}

#[tokio::test]
async fn a_text_too_large_for_one_record_is_journaled_in_parts() {
    let stage = stage();
    let mut durability = Durability::default().with_instance_id("bot");
    durability.outbox.max_payload_bytes = 80;
    let text = "part one. ".repeat(20);
    let life = stage.start_with(durability, long);
    life.say("m0", "ready", 1).await;
    life.bot.send("bob", text).await.expect("a send");
    assert_eq!(stage.channel.texts_to("bob").len(), 20);
    assert_eq!(life.bot.metrics().outbox_bypassed, 0);
    life.stop().await;
}
