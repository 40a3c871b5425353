//! Events that the channel cannot read.

use botmesh::core::inbound::InboundBody;
use botmesh::core::journal::InboxState;
use botmesh::core::provider::Resolve;
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
