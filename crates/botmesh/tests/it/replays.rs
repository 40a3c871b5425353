//! Conversations that run again from what they did: across crashes, changed code and failing writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use botmesh::core::inbound::Inbound;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, OnIncompatible};
use botmesh_testing::Fault;

use crate::support::{Life, Stage};

/// Orders something: draws a number once, and counts orders in the user's state.
async fn desk(c: Conv, drawn: Arc<AtomicU32>) -> Result {
    c.say("welcome").await?;
    let dish = c.ask("dish?").await?;
    let number: u32 = c.run("draw", async || Ok(drawn.fetch_add(1, Ordering::Relaxed))).await?;
    c.say(format!("{} is number {}", dish.text(), number / 10)).await?;
    let times = c
        .ask("how many?")
        .timeout(Duration::from_secs(600))
        .check(|answer| answer.text().parse::<u32>().map_err(|_| "a number".into()))
        .await?;
    let total: i64 = c.run("count", async || c.user().increment("orders", times.into()).await).await?;
    let name = c.ask("name?").await?;
    c.say(format!("{times} {} for {}, {total} so far", dish.text(), name.text())).await?;
    Ok(())
}

const TEXTS: [&str; 7] = ["start", "soup", "many", "2", "Ana", "more", "start"];
const REPLIES: [&str; 9] = [
    "welcome",
    "dish?",
    "soup is number 0",
    "how many?",
    "a number",
    "name?",
    "2 soup for Ana, 2 so far",
    "? more",
    "welcome",
];

fn with(drawn: &Arc<AtomicU32>) -> impl FnOnce(BotBuilder) -> BotBuilder {
    let drawn = Arc::clone(drawn);
    added(conversation("desk", move |c| desk(c, Arc::clone(&drawn))))
}

fn added(conversation: botmesh::Conversation) -> impl FnOnce(BotBuilder) -> BotBuilder {
    let conversation = conversation.replayable().cancel_on(["stop"], "stopped").on_timeout("too late");
    move |bot| {
        bot.when("start", |c: Ctx| async move { c.enter("desk") })
            .otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await })
            .add_conversation(conversation)
    }
}

async fn talk(life: &Life, dialogue: &[(&str, &[&str])]) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    for (say, replies) in dialogue {
        let event = format!("m{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        assert_eq!(life.say(&event, say, replies.len()).await, *replies, "{say}");
        life.settled().await;
    }
}

#[tokio::test]
async fn it_goes_on_after_a_crash_at_every_question() {
    for durable in [true, false] {
        let (stage, drawn) = (Stage::new(Resolve::Never), Arc::default());
        let start = || if durable { stage.start(with(&drawn)) } else { stage.start_plain(with(&drawn)) };
        let dialogue: [(&str, &[&str]); 6] = [
            ("start", &["welcome", "dish?"]),
            ("soup", &["soup is number 0", "how many?"]),
            ("many", &["a number"]),
            ("2", &["name?"]),
            ("Ana", &["2 soup for Ana, 2 so far"]),
            ("more", &["? more"]),
        ];
        for step in dialogue {
            let life = start();
            talk(&life, &[step]).await;
            life.kill().await;
        }
        assert_eq!(drawn.load(Ordering::Relaxed), 1, "the effect ran again");
    }
}

/// A dialogue in as many lives as it takes: the first one has the fault.
async fn survive(fault: impl FnOnce(&Life), paced: bool) -> (Vec<String>, String, u32) {
    let (stage, drawn) = (Stage::new(Resolve::Lookup), Arc::default());
    let mut fault = Some(fault);
    loop {
        let life = stage.start(with(&drawn));
        if let Some(fault) = fault.take() {
            fault(&life);
        }
        'messages: for (n, text) in TEXTS.iter().enumerate() {
            while !life.deliver(Inbound::text(format!("m{n}"), "ana", *text)).await {
                if life.journal.crashed() {
                    break 'messages;
                }
            }
            if paced {
                life.settled().await;
            }
        }
        life.settled().await;
        if !life.journal.crashed() {
            life.stop().await;
            let replies = stage.channel.texts_to("ana");
            return (replies, stage.channel.transcript(), drawn.load(Ordering::Relaxed));
        }
        life.kill().await;
    }
}

#[tokio::test]
async fn nothing_is_lost_or_said_twice_whichever_write_is_the_last() {
    let mut runs_again = 0;
    for paced in [false, true] {
        for fault in [Fault::FailBefore, Fault::LoseAnswer, Fault::CrashBefore, Fault::CrashAfter] {
            for n in 1..=30 {
                let (replies, transcript, drawn) =
                    survive(|life| life.journal.fail_commit(n, fault), paced).await;
                assert_eq!(replies[..9], REPLIES, "{fault:?} at commit {n}\n{transcript}");
                assert_eq!(replies.len(), 10, "{fault:?} at commit {n}\n{transcript}");
                assert!(drawn <= 1, "the effect ran {drawn} times, {fault:?} at commit {n}");
            }
        }
        for nth in 1..=10 {
            for after in [false, true] {
                let (replies, transcript, drawn) = survive(
                    |life| match after {
                        true => life.store.crash_after_write(nth),
                        false => life.store.crash_before_write(nth),
                    },
                    paced,
                )
                .await;
                assert_eq!(replies[..9], REPLIES, "write {nth}, after: {after}\n{transcript}");
                // Only between an effect and the write of its result may a crash run it again.
                assert!(drawn == 1 || (drawn == 2 && !after), "{drawn} runs, write {nth}, after: {after}");
                runs_again += u32::from(drawn == 2);
            }
        }
    }
    assert_eq!(runs_again, 2);
}

#[tokio::test]
async fn a_failing_effect_fails_again_the_same_way() {
    let (stage, tries) = (Stage::new(Resolve::Never), Arc::new(AtomicU32::new(0)));
    let build = || {
        let tries = Arc::clone(&tries);
        added(conversation("desk", move |c: Conv| {
            let tries = Arc::clone(&tries);
            async move {
                let first = async || match tries.fetch_add(1, Ordering::Relaxed) {
                    0 => Err("out of order".into()),
                    n => Ok(n),
                };
                let outcome = c.run("try", first).await.map_err(|error| error.to_string());
                c.ask(format!("{outcome:?}, again?")).await?;
                c.say("fine").await.map(drop).map_err(botmesh::Error::from)
            }
        }))
    };
    let life = stage.start(build());
    talk(&life, &[("start", &["Err(\"out of order\"), again?"])]).await;
    life.kill().await;
    let life = stage.start(build());
    talk(&life, &[("yes", &["fine"])]).await;
    life.stop().await;
}

#[tokio::test]
async fn code_that_changed_is_told_with_both_histories_and_wedges_nobody() {
    for (policy, reply) in [
        (OnIncompatible::Drop, "? soup"),
        (OnIncompatible::Restart, "which dish?"),
        (OnIncompatible::Notify(Box::new("sorry".into())), "sorry"),
    ] {
        let (stage, drawn) = (Stage::new(Resolve::Never), Arc::default());
        let life = stage.start(with(&drawn));
        talk(&life, &[("start", &["welcome", "dish?"])]).await;
        life.stop().await;
        let changed = conversation("desk", async |c: Conv| c.ask("which dish?").await.map(drop));
        let mut life = stage.start(added(changed.on_interrupted(policy)));
        talk(&life, &[("soup", &[reply])]).await;
        let told = std::iter::from_fn(|| life.events.try_recv().ok())
            .find(|event| event.name() == "flow:incompatible")
            .expect("the event")
            .to_string();
        assert!(told.contains("it did [say \"welcome\", say \"dish?\"]"), "{told}");
        assert!(told.contains("now it does [say \"which dish?\"]"), "{told}");
        if reply == "which dish?" {
            assert!(life.deliver(Inbound::text("last", "ana", "soup")).await);
            life.settled().await;
        }
        talk(&life, &[("x", &["? x"])]).await;
        life.stop().await;
    }
}

#[tokio::test]
async fn a_wait_that_is_over_is_told_to_the_code_after_a_crash() {
    let stage = Stage::new(Resolve::Never);
    let build = || {
        added(conversation("desk", async |c: Conv| {
            match c.ask("dish?").timeout(Duration::from_secs(60)).await {
                Err(AskError::TimedOut) => c.ask("still there?").timeout(Duration::from_secs(60)).await?,
                answer => answer?,
            };
            c.say("fine").await?;
            Result::<()>::Ok(())
        }))
    };
    let life = stage.start(build());
    talk(&life, &[("start", &["dish?"])]).await;
    life.kill().await;
    let life = stage.start(build());
    stage.clock.advance(Duration::from_secs(63)).await;
    assert_eq!(stage.channel.texts_to("ana"), ["dish?", "still there?"]);
    life.kill().await;
    let life = stage.start(build());
    talk(&life, &[("yes", &["fine"]), ("start", &["dish?"])]).await;
    life.kill().await;
    let life = stage.start(build());
    stage.clock.advance(Duration::from_secs(200)).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana")[4..], ["still there?", "too late"]);
    talk(&life, &[("x", &["? x"])]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_conversation_that_does_too_much_is_told_to_be_cut() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(added(conversation("desk", async |c: Conv| {
        loop {
            c.run("work", async || Ok("x".repeat(40_000))).await?;
        }
        #[expect(unreachable_code, reason = "it gives the function its type")]
        Result::<()>::Ok(())
    })));
    assert!(life.deliver(Inbound::text("m1", "ana", "start")).await);
    life.settled().await;
    let told: Vec<String> =
        std::iter::from_fn(|| life.events.try_recv().ok()).map(|event| event.to_string()).collect();
    assert!(told.iter().any(|event| event.contains("enter_with")), "{told:?}");
    talk(&life, &[("x", &["? x"])]).await;
    life.stop().await;
}
