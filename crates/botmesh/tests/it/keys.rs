//! Under which key a send is known, and what a second send under it comes to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use botmesh::BotBuilder;
use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::OutboxState;
use botmesh::core::provider::Resolve;
use botmesh::core::store::{Direction, Store};
use botmesh::prelude::*;
use botmesh_testing::SendFault;

use crate::support::{Life, Stage};

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

/// Replies these texts and ends, or stands still.
fn replies(texts: &'static [&'static str], ends: bool) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| {
        bot.otherwise(move |c: Ctx| async move {
            for text in texts {
                c.reply(*text).await?;
            }
            if !ends {
                std::future::pending::<()>().await;
            }
            Result::<()>::Ok(())
        })
    }
}

async fn sent_keys(life: &Life) -> Vec<String> {
    let journal = life.bot.durability().expect("a durable bot");
    let page = journal.outbox().list(OutboxState::Sent, None, 100).await.expect("a listing");
    let mut keys: Vec<String> = page.records.iter().map(|stored| stored.record.key.to_string()).collect();
    keys.sort();
    keys
}

/// One life whose handler stands still after these replies, and another whose handler ends.
async fn replayed(first: &'static [&'static str], second: &'static [&'static str]) -> (Stage, Life) {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(replies(first, false));
    life.say("m1", "hi", first.len()).await;
    life.settled_but_for_turns().await;
    life.kill().await;
    let life = stage.start(replies(second, true));
    life.until("the replay", || life.bot.metrics().inbound_replayed == 1).await;
    life.settled().await;
    (stage, life)
}

#[tokio::test]
async fn sends_for_a_message_are_known_by_its_record_and_their_number_whatever_their_chat() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| {
        bot.otherwise(|c: Ctx| async move {
            c.reply("one").await?;
            c.send(&"desk".into(), "two").await?;
            c.send_keyed("own", "three").await?;
            let record = c.record().expect("a record").clone();
            assert_eq!(c.reply("four").await?.key.as_str(), format!("{record}:2"));
            Result::<()>::Ok(())
        })
    });
    life.say("m1", "hi", 3).await;
    life.settled().await;
    assert_eq!(sent_keys(&life).await, ["m/ana/m1:0", "m/ana/m1:1", "m/ana/m1:2", "own"]);
    life.stop().await;
}

#[tokio::test]
async fn the_replies_of_a_flow_keep_their_keys_when_it_resumes() {
    let form = |dies: bool| {
        move |bot: BotBuilder| {
            let form = flow::<()>("form")
                .ask("name", "name?", |(), _| Ok(()))
                .say("one")
                .do_("note", |_| async { Ok(Step::Next) })
                // It resumes here.
                .do_("two", move |c| async move {
                    c.say("two").await?;
                    if dies {
                        std::future::pending::<()>().await;
                    }
                    c.say("three").await?;
                    Ok(Step::Next)
                })
                .persistent();
            bot.otherwise(|c: Ctx| async move { c.enter("form") }).flow(form)
        }
    };
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(form(true));
    life.say("m1", "hi", 1).await;
    life.settled().await;
    life.say("m2", "Ana", 2).await;
    life.settled_but_for_turns().await;
    life.kill().await;
    let life = stage.start(form(false));
    life.until("the rest", || stage.channel.texts_to("ana").len() == 4).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["name?", "one", "two", "three"]);
    assert_eq!(sent_keys(&life).await, ["m/ana/m1:0", "m/ana/m2:0", "m/ana/m2:1", "m/ana/m2:2"]);
    assert_eq!(life.bot.metrics().outbox_diverged, 0);
    life.stop().await;
}

#[tokio::test]
async fn a_send_without_a_message_and_without_a_key_is_a_new_one_each_time() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.started().await;
    let first = life.bot.send("bob", "news").await.expect("a send");
    let second = life.bot.send("bob", "news").await.expect("a send");
    assert!(first.key != second.key && !second.deduped);
    assert_eq!(stage.channel.texts_to("bob"), ["news", "news"]);
    life.stop().await;
}

/// It is retried, is left to the background when that takes long, and outlives the process.
#[tokio::test]
async fn a_send_without_a_key_is_not_lost_either() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.started().await;
    stage.fail_text("news", 5);
    let bot = life.bot.clone();
    let mut sending = Box::pin(bot.send("bob", "news"));
    let deferred = loop {
        tokio::select! {
            biased;
            result = &mut sending => break result.expect_err("a channel that fails"),
            () = stage.clock.advance(Duration::from_millis(100)) => {}
        }
    };
    drop(sending);
    let SendError::Deferred { key } = deferred else { panic!("{deferred}") };
    let journal = life.bot.durability().expect("a durable bot");
    let waiting = journal.outbox().get(&key).await.expect("a reading").expect("the key it was told");
    assert_eq!(waiting.record.state, OutboxState::Waiting);
    life.kill().await;
    let life = stage.start(echo);
    life.until("the news", || stage.channel.texts_to("bob") == ["news"]).await;
    life.settled().await;
    assert_eq!(sent_keys(&life).await, [key.to_string()]);
    life.stop().await;
}

#[tokio::test]
async fn a_replay_that_sends_more_sends_what_is_new() {
    let (stage, life) = replayed(&["one"], &["one", "two", "three"]).await;
    assert_eq!(stage.channel.texts_to("ana"), ["one", "two", "three"]);
    assert_eq!((life.bot.metrics().outbox_deduped, life.bot.metrics().outbox_diverged), (1, 0));
    life.stop().await;
}

#[tokio::test]
async fn a_replay_that_sends_less_leaves_what_was_sent() {
    let (stage, life) = replayed(&["one", "two", "three"], &["one"]).await;
    assert_eq!(stage.channel.texts_to("ana"), ["one", "two", "three"]);
    assert_eq!((life.bot.metrics().outbox_deduped, life.bot.metrics().outbox_diverged), (1, 0));
    life.stop().await;
}

/// Why sends whose order depends on timing need keys of their own.
#[tokio::test]
async fn a_replay_in_another_order_repeats_derived_sends_and_no_keyed_ones() {
    let (stage, life) = replayed(&["one", "two"], &["two", "one"]).await;
    assert_eq!(stage.channel.texts_to("ana"), ["one", "two", "two", "one"]);
    assert_eq!(life.bot.metrics().outbox_diverged, 2);
    life.stop().await;

    let stage = Stage::new(Resolve::Never);
    let keyed = |order: [&'static str; 2], ends: bool| {
        move |bot: BotBuilder| {
            bot.otherwise(move |c: Ctx| async move {
                for text in order {
                    c.send_keyed(format!("{}/{text}", c.inbound().event), text).await?;
                }
                if !ends {
                    std::future::pending::<()>().await;
                }
                Result::<()>::Ok(())
            })
        }
    };
    let life = stage.start(keyed(["one", "two"], false));
    life.say("m1", "hi", 2).await;
    life.settled_but_for_turns().await;
    life.kill().await;
    let life = stage.start(keyed(["two", "one"], true));
    life.until("the replay", || life.bot.metrics().outbox_deduped == 2).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["one", "two"]);
    life.stop().await;
}

/// What tells one send from another is what the handler asked for, not what a hook made of it.
#[tokio::test]
async fn a_hook_that_changes_what_is_sent_makes_no_other_send_of_it() {
    let stage = Stage::new(Resolve::Never);
    let hooked = |mark: &'static str, ends: bool| {
        move |bot: BotBuilder| {
            replies(&["one"], ends)(bot).before_send(move |_, content| async move {
                Ok(Content::text(format!("{} {mark}", content.readable_text())))
            })
        }
    };
    let life = stage.start(hooked("first", false));
    life.say("m1", "hi", 1).await;
    life.settled_but_for_turns().await;
    life.kill().await;
    let life = stage.start(hooked("second", true));
    life.until("the replay", || life.bot.metrics().outbox_deduped == 1).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["one first"]);
    assert_eq!(life.bot.metrics().outbox_diverged, 0);
    life.stop().await;
}

#[tokio::test]
async fn the_same_words_to_another_chat_are_another_send() {
    let stage = Stage::new(Resolve::Never);
    let to = |chat: &'static str, ends: bool| {
        move |bot: BotBuilder| {
            bot.otherwise(move |c: Ctx| async move {
                c.send(&chat.into(), "news").await?;
                if !ends {
                    std::future::pending::<()>().await;
                }
                Result::<()>::Ok(())
            })
        }
    };
    let life = stage.start(to("bob", false));
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.until("the news", || stage.channel.texts_to("bob") == ["news"]).await;
    life.settled_but_for_turns().await;
    life.kill().await;
    let life = stage.start(to("eve", true));
    life.until("the news", || stage.channel.texts_to("eve") == ["news"]).await;
    assert_eq!(life.bot.metrics().outbox_diverged, 1);
    life.stop().await;
}

/// The hook before it runs once, when it is enqueued; the hook after it and the log follow its delivery.
#[tokio::test]
async fn an_enqueued_send_returns_at_once_and_has_its_hooks_once() {
    let stage = Stage::new(Resolve::Never);
    let (before, after) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let hooked = |bot: BotBuilder| {
        let (before, after) = (Arc::clone(&before), Arc::clone(&after));
        echo(bot)
            .log_messages(true)
            .before_send(move |_, content| {
                before.fetch_add(1, Ordering::Relaxed);
                async move { Ok(Content::text(format!("{}!", content.readable_text()))) }
            })
            .after_send(move |_, _, sent| {
                assert!(sent.message.is_some());
                after.fetch_add(1, Ordering::Relaxed);
                async {}
            })
    };
    let counts = || (before.load(Ordering::Relaxed), after.load(Ordering::Relaxed));
    let life = stage.start(hooked);
    life.started().await;
    let busy = || ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy");
    stage.channel.fault_when(move |_| Some(SendFault::Fail(busy())));
    let enqueued = life.bot.enqueue("k", "bob", "news").await.expect("a journaled send");
    assert_eq!((enqueued.key.as_str(), counts(), stage.channel.sent().len()), ("k", (1, 0), 0));
    life.bot.enqueue("k", "bob", "other news").await.expect("a known send");
    life.until("two calls", || stage.channel.sent().len() == 2).await;
    life.kill().await;
    stage.channel.heal();
    let life = stage.start(hooked);
    life.until("the news", || stage.channel.texts_to("bob") == ["news!"]).await;
    life.settled().await;
    assert_eq!(counts(), (1, 1));
    let log = life.store.log(&"bob".into(), None, 10).await.expect("a log");
    let log: Vec<_> = log.into_iter().map(|(_, entry)| (entry.direction, entry.text)).collect();
    assert_eq!(log, [(Direction::Out, "news!".to_owned())]);
    life.stop().await;
}

#[tokio::test]
async fn a_send_whose_key_is_known_runs_no_hook() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let life = stage.start(move |bot| {
        echo(bot).before_send(move |_, content| {
            let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            async move { if first { Ok(content) } else { Err("no second one".to_owned()) } }
        })
    });
    life.started().await;
    life.bot.send_keyed("k", "bob", "news").await.expect("a send");
    let again = life.bot.send_keyed("k", "bob", "news").await.expect("an answer from the outbox");
    assert!(again.deduped && life.bot.enqueue("k", "bob", "news").await.expect("an answer").known);
    assert_eq!((runs.load(Ordering::Relaxed), stage.channel.texts_to("bob").len()), (1, 1));
    life.stop().await;
}

/// Case C07.
#[tokio::test]
async fn keys_that_look_like_one_number_are_sends_of_their_own() {
    const KEYS: [&str; 6] = ["300000000", "3e+8", "1", "01", "1.0", "9007199254740993"];
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.otherwise(|_: Ctx| async { Result::<()>::Ok(()) }));
    life.started().await;
    for _ in 0..2 {
        for key in KEYS {
            let sent = life.bot.send_keyed(key, "ana", key).await.unwrap();
            assert_eq!(sent.key.as_str(), key);
        }
    }
    assert_eq!(stage.channel.texts_to("ana"), KEYS);
    let mut expected = KEYS;
    expected.sort_unstable();
    life.settled().await;
    assert_eq!(sent_keys(&life).await, expected);
    life.stop().await;
}
