//! Groups that become supergroups. Cases C43 and F103.

use botmesh_core::content::{Content, ContentBody};
use botmesh_core::error::ErrorClass;
use botmesh_core::id::ChatId;
use botmesh_core::provider::{Provider, SendRequest};
use botmesh_testing::FakeTelegram;
use serde_json::json;

use crate::support::{Recorder, bot_of, while_running};

const ANA: i64 = 5_025_045_066;
const OLD: i64 = -4_012_345_678;
const NEW: i64 = -1_001_557_912_345;

fn of_payloads(taken: usize) -> (String, String, usize) {
    (OLD.to_string(), NEW.to_string(), taken)
}

#[tokio::test]
async fn a_move_is_told_before_anything_of_its_page_and_again_until_it_is_recorded() {
    let server = FakeTelegram::start().await;
    let (ana, group) = (server.user(ANA, "Ana"), server.group(OLD, "Old group"));
    ana.in_group(&group).writes("before");
    let supergroup = group.migrates(NEW);
    ana.in_group(&supergroup).writes("after");
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    sink.refuse_moves(1);
    let all = server.until("all of it", || server.unconfirmed() == 0);
    while_running(&bot, &sink, all).await.expect("a good end");
    assert_eq!(sink.moved(), [of_payloads(0), of_payloads(0)], "both chats tell of it");
    let chats: Vec<_> = sink.taken().iter().map(|inbound| inbound.chat.to_string()).collect();
    assert_eq!(
        chats,
        [OLD, OLD, NEW, NEW].map(|chat| chat.to_string()),
        "the chats of one group are one lane"
    );
    assert!(server.polls().0 > 2, "what was not recorded was asked for again");
}

#[tokio::test]
async fn a_refused_send_tells_of_the_move_too() {
    let server = FakeTelegram::start().await;
    let group = server.group(OLD, "Old group");
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    let scenario = async {
        server.until("a poll", || server.is_polled()).await;
        drop(group.migrates(NEW));
        server.until("what both chats say", || server.unconfirmed() == 0).await;
        // As if it had never been told.
        let other = server.group(OLD - 1, "Another one");
        drop(other.migrates(NEW - 1));
        let (chat, content) = (ChatId::from((OLD - 1).to_string()), Content::text("hi"));
        bot.send(SendRequest::new(&chat, &content)).await.expect("sent to the supergroup");
    };
    while_running(&bot, &sink, scenario).await.expect("a good end");
    let other = ((OLD - 1).to_string(), (NEW - 1).to_string());
    assert!(
        sink.moved().iter().any(|(from, to, _)| (from, to) == (&other.0, &other.1)),
        "{:?}",
        sink.moved()
    );
}

/// The numbers of messages begin anew: an old one is somebody else's message now.
#[tokio::test]
async fn what_was_written_before_a_move_is_about_no_message_of_the_new_group() {
    let server = FakeTelegram::start().await;
    let (bot, chat) = (bot_of(&server), ChatId::from(OLD.to_string()));
    drop(server.group(OLD, "Old group").migrates(NEW));
    // It is refused first, and known from then on.
    for _ in 0..2 {
        let answer = Content::text("hi").in_reply_to("4");
        bot.send(SendRequest::new(&chat, &answer)).await.expect("sent to the supergroup");
    }
    let sent = server.done("sendMessage");
    assert_eq!(sent.len(), 2);
    for call in sent {
        assert_eq!((&call.params["chat_id"], call.params.get("reply_parameters")), (&json!(NEW), None));
    }
    let reaction = ContentBody::Reaction { message: "4".into(), emoji: None };
    for body in [ContentBody::Edit { message: "4".into(), text: "new".into() }, reaction] {
        let error = bot.send(SendRequest::new(&chat, &body.into())).await.expect_err("not that message");
        assert_eq!((error.class, error.retryable), (ErrorClass::Rejected, false), "{error:?}");
    }
}

#[test]
fn groups_may_move_and_nobody_else() {
    let bot = botmesh_telegram::Telegram::polling("1:token");
    for (id, may_move) in [
        ("-4012345678", true),
        ("-1001557912345", true),
        ("5025045066", false),
        ("-1001557912345:17", false),
        ("5025045066@bc_1", false),
        ("@news", false),
        ("", false),
    ] {
        assert_eq!(bot.may_move(id), may_move, "{id:?}");
    }
}

#[tokio::test]
async fn typing_is_shown_where_the_chat_is() {
    let server = FakeTelegram::start().await;
    let (bot, group) = (bot_of(&server), server.group(NEW, "New group"));
    let mut inbound = botmesh_core::inbound::Inbound::text("1", OLD.to_string(), "hi");
    let chat = ChatId::from(group.id().to_string());
    inbound.origin = Some(botmesh_core::inbound::Origin { chat, sender: None });
    bot.show_typing(&inbound).await.expect("shown");
    let calls = server.done("sendChatAction");
    assert_eq!(calls.iter().map(|call| call.params["chat_id"].clone()).collect::<Vec<_>>(), [json!(NEW)]);
}
