//! Media of a message that runs once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use botmesh::core::Bytes;
use botmesh::core::error::{ChannelError, ErrorClass, MediaUnavailable, MediaUnavailableReason, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{Change, InboxRecord, InboxState};
use botmesh::core::kv::{DurableKv, Expect, Index, Op, Range};
use botmesh::core::media::{JournaledMedia, MediaRef, StoredMediaRef};
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::Resolve;
use botmesh::core::scope::Scope;
use botmesh::prelude::*;
use botmesh::{BotBuilder, InboxConfig, OnHandlerError};
use botmesh_testing::{Download, Fault, MEDIA_SECRET, image};
use futures_util::FutureExt;
use serde_json::{Value, json};

use crate::support::{Life, Stage};

/// What a handler sees of the message's media: the bytes, or why there are none.
async fn seen(c: &Ctx) -> String {
    match c.try_load_media().await {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(MediaUnavailable { reason, .. }) => format!("{reason:?}"),
    }
}

fn shows(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(seen(&c).await).await })
}

/// Tells the chat `log` what it sees, and does not end.
fn stands_still(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move {
        c.send(&"log".into(), seen(&c).await).await?;
        std::future::pending::<Result>().await
    })
}

fn picture(media: MediaRef) -> Inbound {
    Inbound::private("m1", "ana", image(media))
}

fn photo(stage: &Stage) -> Inbound {
    picture(stage.channel.add_media("photo", "the bytes"))
}

fn retrying() -> Durability {
    let inbox = InboxConfig { on_handler_error: OnHandlerError::Retry, ..InboxConfig::default() };
    Durability::default().with_instance_id("bot").with_inbox(inbox)
}

fn downloads(stage: &Stage) -> Vec<bool> {
    stage.channel.downloads().into_iter().map(|Download { live, .. }| live).collect()
}

async fn record(life: &Life) -> InboxRecord {
    let journal = life.bot.durability().expect("a durable bot");
    let id = Inbound::text("m1", "ana", "").record_id();
    let stored = journal.inbox().get(&id).await.expect("a reading").expect("the message");
    stored.record
}

/// A life in which the picture's handler stood still, and died with the process.
async fn die_with(stage: &Stage, inbound: Inbound) {
    let life = stage.start(stands_still);
    assert!(life.deliver(inbound).await);
    life.until("the first run", || stage.channel.texts_to("log").len() == 1).await;
    life.settled_but_for_turns().await;
    life.kill().await;
}

/// What the picture's handler replies in another life.
async fn replay(stage: &Stage) -> String {
    let life = stage.start(shows);
    life.until("the second run", || stage.channel.texts_to("ana").len() == 1).await;
    life.settled().await;
    let record = record(&life).await;
    assert_eq!(record.state, InboxState::Done);
    life.stop().await;
    stage.channel.texts_to("ana").remove(0)
}

#[tokio::test]
async fn after_a_crash_the_channel_builds_the_reference_again() {
    let stage = Stage::new(Resolve::Never);
    die_with(&stage, photo(&stage)).await;
    assert_eq!(stage.channel.texts_to("log"), ["the bytes"]);
    assert_eq!(replay(&stage).await, "the bytes");
    assert_eq!(downloads(&stage), [true, false]);
    assert_eq!(stage.channel.rebuilt_media(), 1);
}

#[tokio::test]
async fn a_message_that_never_began_before_the_crash_finds_its_media_too() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(stands_still);
    assert!(life.deliver(Inbound::text("m0", "ana", "first")).await);
    assert!(life.deliver(photo(&stage)).await);
    life.kill().await;
    let life = stage.start(shows);
    life.until("both", || stage.channel.texts_to("ana") == ["NoMedia", "the bytes"]).await;
    life.stop().await;
}

#[tokio::test]
async fn an_attempt_in_place_sees_what_a_replay_would_see() {
    for (view_once, expected) in [(false, "the bytes"), (true, "NotDurable")] {
        let stage = Stage::new(Resolve::Never);
        let runs = Arc::new(AtomicU32::new(0));
        let life = stage.start_with(retrying(), move |bot| {
            bot.otherwise(move |c: Ctx| {
                let first = runs.fetch_add(1, Ordering::Relaxed) == 0;
                async move {
                    c.reply(format!("{} {}", if first { 1 } else { 2 }, seen(&c).await)).await?;
                    if first { Err("not yet".into()) } else { Result::<()>::Ok(()) }
                }
            })
        });
        let media = match view_once {
            true => stage.channel.add_view_once_media("photo", "the bytes"),
            false => stage.channel.add_media("photo", "the bytes"),
        };
        assert!(life.deliver(picture(media)).await);
        life.until("both runs", || stage.channel.texts_to("ana").len() == 2).await;
        assert_eq!(stage.channel.texts_to("ana"), ["1 the bytes".to_owned(), format!("2 {expected}")]);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_retry_in_the_background_finds_the_media() {
    let stage = Stage::new(Resolve::Never);
    die_with(&stage, photo(&stage)).await;
    let life = stage.start_with(Durability::default().with_instance_id("other"), shows);
    life.settled().await;
    let working = record(&life).await;
    let journal = stage.journal("the test").await;
    let now = journal.now().await.expect("the time");
    let waiting = working.fail("the store was away", now + Duration::from_secs(5), 5, now).expect("working");
    let stored = journal.inbox().get(&working.id).await.expect("a reading").expect("the message");
    let written = journal.commit_one(Change::update(stored.version, &waiting)).await.expect("a commit");
    assert!(written.applied().is_some());
    life.until("the retry", || stage.channel.texts_to("ana") == ["the bytes"]).await;
    assert_eq!(downloads(&stage), [true, false]);
    life.stop().await;
}

#[tokio::test]
async fn a_message_that_an_operator_replays_finds_the_media() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| {
            let run = runs.fetch_add(1, Ordering::Relaxed) + 1;
            async move { c.reply(format!("{run} {}", seen(&c).await)).await }
        })
    });
    assert!(life.deliver(photo(&stage)).await);
    life.until("the reply", || stage.channel.texts_to("ana") == ["1 the bytes"]).await;
    life.settled().await;
    let replayed = life.journals().replay_inbound(record(&life).await.id).await.expect("a replay");
    assert!(replayed.applied().is_some());
    life.until("the second reply", || stage.channel.texts_to("ana").len() == 2).await;
    assert_eq!(stage.channel.texts_to("ana")[1], "2 the bytes");
    assert_eq!(downloads(&stage), [true, false]);
    life.stop().await;
}

#[tokio::test]
async fn a_flow_that_goes_on_after_a_crash_finds_the_picture_it_asked_for() {
    let form = |dies: bool| {
        move |bot: BotBuilder| {
            let form = flow::<()>("form")
                .ask("photo", "your photo?", |(), _| Ok(()))
                .do_("keep", move |c| async move {
                    if dies {
                        c.ctx().send(&"log".into(), "dies").await?;
                        std::future::pending::<()>().await;
                    }
                    c.say(seen(&c.ctx()).await).await?;
                    Ok(Step::Next)
                })
                .persistent();
            bot.otherwise(|c: Ctx| async move { c.enter("form") }).flow(form)
        }
    };
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(form(true));
    assert!(life.deliver(Inbound::text("m0", "ana", "hi")).await);
    life.until("the question", || stage.channel.texts_to("ana") == ["your photo?"]).await;
    life.settled().await;
    assert!(life.deliver(photo(&stage)).await);
    life.until("the step", || stage.channel.texts_to("log") == ["dies"]).await;
    life.settled_but_for_turns().await;
    life.kill().await;
    let life = stage.start(form(false));
    life.until("the picture", || stage.channel.texts_to("ana") == ["your photo?", "the bytes"]).await;
    life.stop().await;
}

/// Everything in the journals, as bytes.
async fn stored_bytes(kv: &dyn DurableKv) -> Vec<u8> {
    let mut bytes = Vec::new();
    for bucket in 0..=u8::MAX {
        let range = Range::List { bucket, from: i64::MIN, until: i64::MAX };
        for entry in kv.scan(range, None, 1000).await.expect("a scan") {
            bytes.extend_from_slice(&entry.value);
        }
    }
    bytes
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn the_journal_holds_a_reference_and_never_the_live_token() {
    for view_once in [false, true] {
        let kv = MemoryKv::new();
        let stage = Stage::with_kv(Resolve::Never, Arc::new(kv.clone()));
        let media = match view_once {
            true => stage.channel.add_view_once_media("photo", "the bytes"),
            false => stage.channel.add_media("photo", "the bytes"),
        };
        assert!(media.token.to_string().contains(MEDIA_SECRET));
        let life = stage.start(shows);
        assert!(life.deliver(picture(media)).await);
        life.until("the reply", || stage.channel.texts_to("ana") == ["the bytes"]).await;
        life.settled().await;
        let bytes = stored_bytes(&*kv.scoped(&Scope::default().id())).await;
        assert!(contains(&bytes, "\"image\"") && !contains(&bytes, MEDIA_SECRET));
        assert_eq!(contains(&bytes, "photo"), !view_once);
        life.stop().await;
    }
}

#[tokio::test]
async fn what_the_channel_does_not_serialize_loads_in_the_first_run_only() {
    let stage = Stage::new(Resolve::Never);
    die_with(&stage, picture(stage.channel.add_view_once_media("photo", "the bytes"))).await;
    assert_eq!(stage.channel.texts_to("log"), ["the bytes"]);
    assert_eq!(replay(&stage).await, "NotDurable");
    assert_eq!((downloads(&stage), stage.channel.rebuilt_media()), (vec![true], 0));
}

#[tokio::test]
async fn a_record_of_another_provider_is_not_given_to_this_one() {
    let stage = Stage::new(Resolve::Never);
    let media = stage.channel.add_media("photo", "the bytes");
    die_with(&stage, picture(MediaRef { provider: "another".to_owned(), ..media })).await;
    assert_eq!(replay(&stage).await, "ProviderMismatch");
    assert_eq!((downloads(&stage), stage.channel.rebuilt_media()), (vec![true], 0));
}

#[tokio::test]
async fn a_stored_reference_that_is_unknown_or_tampered_with_costs_the_media_and_not_the_message() {
    let reference = |v: u64, data: Value| json!({ "v": v, "data": data });
    for stored in [
        reference(2, json!({ "name": "photo" })),
        reference(u64::MAX, json!({ "name": "photo" })),
        reference(1, json!({ "name": "photo", "url": "https://elsewhere" })),
        reference(1, json!("photo")),
        json!("of a newer version"),
        json!([1, 2]),
    ] {
        let stage = Stage::new(Resolve::Never);
        die_with(&stage, photo(&stage)).await;
        let life = stage.start_with(Durability::default().with_instance_id("tamperer"), shows);
        life.settled().await;
        let journal = stage.journal("the test").await;
        let mut tampered = record(&life).await;
        tampered.media = Some(JournaledMedia::from(stored.clone()));
        let version = journal.inbox().get(&tampered.id).await.expect("a reading").expect("it").version;
        let change = Change::update(version, &tampered);
        assert!(journal.commit_one(change).await.expect("a commit").applied().is_some());
        life.kill().await;
        assert_eq!(replay(&stage).await, "RehydrateFailed", "{stored}");
        let life = stage.start(shows);
        life.settled().await;
        let kept = record(&life).await;
        assert_eq!(kept.media.map(Value::from), Some(stored), "it is not kept as it was");
        life.stop().await;
    }
}

#[tokio::test]
async fn a_download_that_fails_is_told_and_may_be_tried_again() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| {
        bot.otherwise(|c: Ctx| async move {
            let error = c.try_load_media().await.expect_err("a failed download");
            assert_eq!(error.reason, MediaUnavailableReason::DownloadFailed);
            c.reply(botmesh::describe(&error)).await?;
            c.reply(seen(&c).await).await?;
            Result::<()>::Ok(())
        })
    });
    let inbound = photo(&stage);
    stage.channel.fail_next_download(ChannelError::new(ErrorClass::Transient, Phase::NotWritten, "no route"));
    assert!(life.deliver(inbound).await);
    life.until("both replies", || stage.channel.texts_to("ana").len() == 2).await;
    let replies = stage.channel.texts_to("ana");
    assert!(replies[0].contains("the channel did not deliver it") && replies[0].contains("no route"));
    assert_eq!(replies[1], "the bytes");
    life.stop().await;
}

#[tokio::test]
async fn media_that_the_channel_forgot_before_the_replay_fails_to_download() {
    let stage = Stage::new(Resolve::Never);
    die_with(&stage, photo(&stage)).await;
    stage.channel.forget_media("photo");
    assert_eq!(replay(&stage).await, "DownloadFailed");
}

#[tokio::test]
async fn without_its_reason_a_failure_is_no_media() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| {
        bot.otherwise(|c: Ctx| async move {
            let sizes = [c.load_media().await, c.load_media().await].map(|media| media.map(|m| m.len()));
            c.reply(format!("{sizes:?}")).await
        })
    });
    let inbound = photo(&stage);
    stage.channel.fail_next_download(ChannelError::new(ErrorClass::Transient, Phase::NotWritten, "no route"));
    assert!(life.deliver(inbound).await);
    life.until("the reply", || stage.channel.texts_to("ana") == ["[None, Some(9)]"]).await;
    assert_eq!(life.say("m2", "a text", 1).await, ["[None, None]"]);
    life.stop().await;
}

#[tokio::test]
async fn media_beyond_the_bots_limit_is_not_loaded() {
    for (size, expected) in [(1000, "x".repeat(1000)), (1001, "TooLarge".to_owned())] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(|bot| shows(bot).max_media_bytes(1000));
        assert!(life.deliver(picture(stage.channel.add_media("photo", Bytes::from("x".repeat(size))))).await);
        life.until("the reply", || stage.channel.texts_to("ana") == [expected.clone()]).await;
        life.stop().await;
    }
}

#[tokio::test]
async fn without_references_the_tokens_are_journaled_as_they_are() {
    let inbox = InboxConfig { media_refs: false, ..InboxConfig::default() };
    let durability = || Durability::default().with_instance_id("bot").with_inbox(inbox.clone());
    let stage = Stage::new(Resolve::Never);
    let life = stage.start_with(durability(), stands_still);
    assert!(life.deliver(photo(&stage)).await);
    life.until("the first run", || stage.channel.texts_to("log") == ["the bytes"]).await;
    life.settled_but_for_turns().await;
    let stored = record(&life).await;
    assert_eq!(stored.media, None);
    assert!(json!(stored).to_string().contains(MEDIA_SECRET));
    life.kill().await;
    assert_eq!(replay(&stage).await, "the bytes");
    assert_eq!((downloads(&stage), stage.channel.rebuilt_media()), (vec![true, true], 0));
}

/// What was in the inbox before it kept references.
const BEFORE_REFERENCES: &str = r#"{
    "v": 1, "id": "m/ana/m1", "state": "working", "attempts": 1, "owner": { "instance": "bot", "epoch": 1 },
    "order": 1000000, "received": 1000, "changed": 1000,
    "inbound": {
        "event": "m1", "chat": "ana", "sender": { "id": "ana" },
        "body": {
            "type": "image", "mime": "image/jpeg",
            "media": { "provider": "mock", "token": { "name": "photo", "secret": "kept" } }
        }
    }
}"#;

#[tokio::test]
async fn a_record_written_before_there_were_references_replays_as_before() {
    let kv = MemoryKv::new();
    let stage = Stage::with_kv(Resolve::Never, Arc::new(kv.clone()));
    stage.channel.add_media("photo", "the bytes");
    let op = Op::Put {
        key: "im/ana/m1".into(),
        expect: Expect::Absent,
        value: [&[0; 16], BEFORE_REFERENCES.as_bytes()].concat().into(),
        index: Index { due: None, list: Some((2, 1_000_000)) },
    };
    kv.scoped(&Scope::default().id()).commit(vec![op]).await.expect("a commit");
    assert_eq!(replay(&stage).await, "the bytes");
    assert_eq!((downloads(&stage), stage.channel.rebuilt_media()), (vec![true], 0));
}

#[tokio::test]
async fn a_message_handled_without_the_inbox_has_its_live_media() {
    let stage = Stage::new(Resolve::Never);
    let mut durability = Durability::default().with_instance_id("bot");
    durability.fail_open = true;
    let life = stage.start_with(durability, |bot| {
        bot.otherwise(|c: Ctx| async move { c.send(&"log".into(), seen(&c).await).await })
    });
    life.settled().await;
    life.journal.set_down(true);
    assert!(life.deliver(photo(&stage)).await);
    life.journal.set_down(false);
    life.until("the download", || downloads(&stage) == [true]).await;
    life.stop().await;

    let stage = Stage::new(Resolve::Never);
    let life = stage.start_plain(shows);
    assert!(life.deliver(photo(&stage)).await);
    life.until("the reply", || stage.channel.texts_to("ana") == ["the bytes"]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_delivery_that_was_cut_off_has_its_live_media() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(shows);
        assert_eq!(life.say("m0", "hi", 1).await, ["NoMedia"]);
        life.settled().await;
        life.journal.fail_next(fault);
        let inbound = picture(stage.channel.add_view_once_media("photo", "the bytes"));
        assert!(stage.channel.deliver(inbound).now_or_never().is_none(), "it was taken over at once");
        life.journal.release();
        life.until("the reply", || stage.channel.texts_to("ana") == ["NoMedia", "the bytes"]).await;
        life.stop().await;
    }
}

#[test]
fn what_stands_for_media_reads_back_as_it_was_written() {
    let reference = StoredMediaRef { v: 7, data: json!({ "id": "x", "n": [1, null] }) };
    for (media, form) in [
        (JournaledMedia::Reference(reference), json!({ "v": 7, "data": { "id": "x", "n": [1, null] } })),
        (JournaledMedia::NotDurable, json!("not_durable")),
        (JournaledMedia::Unreadable(json!({ "v": -1 })), json!({ "v": -1 })),
    ] {
        assert_eq!(json!(media), form);
        assert_eq!(serde_json::from_value::<JournaledMedia>(form).expect("any form"), media);
    }
}
