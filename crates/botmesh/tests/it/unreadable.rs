//! Events that the channel cannot read, and for how long the others are kept.

use std::time::Duration;

use botmesh::core::inbound::InboundBody;
use botmesh::core::journal::{InboxState, OutboxState};
use botmesh::core::provider::Resolve;
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use botmesh::{BotBuilder, DeadKind};

use crate::support::Stage;

const RAW: &[u8] = br#"{"update_id":7,"message":5}"#;

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move {
        c.show_typing().await;
        c.reply(c.text()).await
    })
}

#[tokio::test]
async fn an_event_that_cannot_be_read_is_one_dead_letter_and_the_chat_goes_on() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(echo);
    for duplicate in [false, true] {
        let buried = stage.channel.poison("7", RAW, "`message` is no object").await.expect("it is kept");
        assert_eq!(buried.duplicate, duplicate);
    }
    life.say("8", "still there?", 1).await;
    assert_eq!(stage.channel.texts_to("ana"), ["still there?"]);

    let dead = life.journals().inbox().list(InboxState::Dead, None, 10).await.expect("a reading").records;
    let [letter] = &dead[..] else { panic!("one dead letter, not {}", dead.len()) };
    assert_eq!(letter.record.error.as_deref(), Some("`message` is no object"));
    let InboundBody::System { detail, .. } = &letter.record.inbound.body else { panic!("a system event") };
    assert_eq!(detail.as_str(), std::str::from_utf8(RAW).ok(), "the event as it came");
    assert_eq!(life.bot.metrics().inbound_dead, 1);
    let told = std::iter::from_fn(|| life.events.try_recv().ok())
        .filter(|event| matches!(event, BotEvent::Dead { kind: DeadKind::Inbound, .. }))
        .count();
    assert_eq!(told, 1);
}

#[tokio::test]
async fn the_chat_sees_that_the_bot_writes() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("1", "hi", 1).await;
    assert_eq!((stage.channel.shown_typing("ana"), stage.channel.shown_typing("bob")), (1, 0));
}

#[tokio::test]
async fn of_an_event_that_cannot_be_read_64_kib_are_kept() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    for (id, bytes, kept) in [("7", 64 << 10, 64 << 10), ("8", (64 << 10) + 1, 64 << 10)] {
        let buried = stage.channel.poison(id, &vec![b'x'; bytes], "no JSON").await.expect("it is kept");
        assert!(!buried.duplicate);
        let dead = life.journals().inbox().list(InboxState::Dead, None, 10).await.expect("a reading").records;
        let letter =
            dead.iter().find(|letter| letter.record.inbound.event.as_str() == id).expect("a dead letter");
        let InboundBody::System { detail, .. } = &letter.record.inbound.body else {
            panic!("a system event")
        };
        assert_eq!(detail.as_str().map(str::len), Some(kept), "{bytes}");
    }
}

/// By default.
#[tokio::test]
async fn what_is_handled_and_sent_is_kept_for_seven_days() {
    const HOUR: Duration = Duration::from_secs(3600);
    let stage = Stage::new(Resolve::Never);
    let life = stage.start_with(Durability::default().with_instance_id("bot"), echo);
    life.say("1", "hi", 1).await;
    life.settled().await;
    for (time, left) in [(7 * 24 * HOUR - HOUR, 1), (2 * HOUR, 0)] {
        stage.clock.jump(time);
        stage.clock.advance(Duration::from_secs(60)).await;
        let done =
            life.journals().inbox().count(InboxState::Done, Timestamp::MAX, 10).await.expect("a count");
        let sent =
            life.journals().outbox().count(OutboxState::Sent, Timestamp::MAX, 10).await.expect("a count");
        assert_eq!((done, sent), (left, left), "after {time:?}");
    }
    life.stop().await;
}
