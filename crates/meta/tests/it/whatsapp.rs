//! What goes out to WhatsApp.

use botmesh_core::content::{Button, Content, ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::{ChatId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{Provider, Resolve, SendReceipt, SendRequest};
use botmesh_meta::{Template, WhatsApp};
use botmesh_testing::GraphFault;
use serde_json::{Value, json};

use crate::support::{Stage, config, whatsapp};

pub(crate) async fn send(
    channel: &impl Provider,
    chat: &str,
    content: impl Into<Content>,
) -> Result<SendReceipt, ChannelError> {
    let (chat, content, key) = (ChatId::from(chat), content.into(), SendKey::from("m/ana/1:0"));
    channel.send(SendRequest::new(&chat, &content).with_token(&key)).await
}

/// What the channel made of a content.
pub(crate) async fn sent(stage: &Stage, channel: &WhatsApp, content: impl Into<Content>) -> Value {
    send(channel, "US.15551234567", content).await.expect("it is sent");
    stage.graph.sent().pop().expect("a message").body
}

fn buttons(titles: &[&str]) -> Content {
    let buttons = titles.iter().enumerate().map(|(n, title)| Button::new(format!("b{n}"), *title));
    Content::text("Which one?").with_buttons(buttons)
}

pub(crate) fn media(source: MediaSource) -> OutboundMedia {
    OutboundMedia { source, caption: None, mime: None, file_name: None }
}

#[tokio::test]
async fn a_text_carries_its_key_and_the_message_that_it_answers() {
    let (stage, channel) = whatsapp().await;
    let body = sent(&stage, &channel, Content::text("hola").in_reply_to("wamid.IN1")).await;
    let expected = json!({
        "messaging_product": "whatsapp", "recipient_type": "individual", "recipient": "US.15551234567",
        "type": "text", "text": { "body": "hola" }, "context": { "message_id": "wamid.IN1" },
        "biz_opaque_callback_data": "m/ana/1:0",
    });
    assert_eq!(body, expected);
    assert!(matches!(channel.capabilities().resolve, Resolve::Echo { .. }));
}

#[tokio::test]
async fn a_user_id_is_never_sent_as_a_phone_number_and_only_digits_are_tidied() {
    let (stage, channel) = whatsapp().await;
    for (chat, field, value) in [
        ("US.13491208655302741918", "recipient", "US.13491208655302741918"),
        ("MX.5215550001111", "recipient", "MX.5215550001111"),
        ("US.ENT.11815799212886844830", "recipient", "US.ENT.11815799212886844830"),
        ("5215550001111", "to", "5215550001111"),
        ("+52 1 555-000-1111", "to", "5215550001111"),
        ("group:Y2FwaV9ncm91cA==", "to", "Y2FwaV9ncm91cA=="),
    ] {
        send(&channel, chat, "hi").await.expect("it is sent");
        let message = stage.graph.sent().pop().expect("a message");
        assert_eq!(message.body[field], value, "{chat}");
        assert!(message.delivered, "{chat}");
    }
    let error = send(&channel, "ana", "hi").await.expect_err("nobody");
    assert_eq!((error.class, error.phase), (ErrorClass::Rejected, Phase::NotWritten));
}

#[tokio::test]
async fn up_to_three_choices_are_buttons() {
    let (stage, channel) = whatsapp().await;
    let body = sent(&stage, &channel, buttons(&["Yes", "No"])).await;
    let expected = json!({
        "type": "button", "body": { "text": "Which one?" }, "action": { "buttons": [
            { "type": "reply", "reply": { "id": "b0", "title": "Yes" } },
            { "type": "reply", "reply": { "id": "b1", "title": "No" } },
        ] },
    });
    assert_eq!(body["interactive"], expected);
}

#[tokio::test]
async fn more_choices_and_longer_ones_are_a_list() {
    let (stage, channel) = whatsapp().await;
    let four = buttons(&["One", "Two", "Three", "Four of a kind and more of them"]);
    let list = sent(&stage, &channel, four).await["interactive"].clone();
    assert_eq!((&list["type"], &list["action"]["button"]), (&json!("list"), &json!("Choose")));
    let rows = &list["action"]["sections"][0]["rows"];
    assert_eq!(rows[0], json!({ "id": "b0", "title": "One" }));
    let description = "Four of a kind and more of them";
    assert_eq!(
        rows[3],
        json!({ "id": "b3", "title": "Four of a kind and more…", "description": description })
    );
    let long_title = sent(&stage, &channel, buttons(&["Twenty-one characters"])).await;
    assert_eq!(long_title["interactive"]["type"], "list");
    let long_text = Content { body: ContentBody::Text { text: "x".repeat(1025) }, ..buttons(&["Yes"]) };
    assert_eq!(sent(&stage, &channel, long_text).await["interactive"]["type"], "list");
    assert_eq!(sent(&stage, &channel, buttons(&["Same", "Same"])).await["interactive"]["type"], "list");
    let error = send(&channel, "US.1", buttons(&["x"; 11])).await.expect_err("eleven");
    assert_eq!((error.class, error.phase), (ErrorClass::UnsupportedContent, Phase::NotWritten));
}

#[tokio::test]
async fn buttons_that_whatsapp_would_refuse_are_not_sent() {
    let (stage, channel) = whatsapp().await;
    let text = Content::text("Which one?");
    for pair in [[("a", "One"), ("a", "Two")], [("a", "One"), (" b", "Two")], [("a", "One"), ("b", " ")]] {
        let content = text.clone().with_buttons(pair.map(|(id, title)| Button::new(id, title)));
        let error = send(&channel, "US.1", content).await.expect_err("buttons");
        assert_eq!(
            (error.class, error.phase),
            (ErrorClass::UnsupportedContent, Phase::NotWritten),
            "{pair:?}"
        );
    }
    assert_eq!(stage.graph.sent_count(), 0);
}

#[tokio::test]
async fn buttons_below_a_picture_keep_the_picture() {
    let (stage, channel) = whatsapp().await;
    let source = MediaSource::Url("https://example.com/cat.jpg".to_owned());
    let picture = OutboundMedia { caption: Some("A cat?".to_owned()), ..media(source) };
    let content = Content { body: ContentBody::Image(picture), ..buttons(&["Yes"]) };
    let interactive = sent(&stage, &channel, content).await["interactive"].clone();
    let header = json!({ "type": "image", "image": { "link": "https://example.com/cat.jpg" } });
    assert_eq!((&interactive["header"], &interactive["body"]["text"]), (&header, &json!("A cat?")));
}

#[tokio::test]
async fn places_and_reactions_go_out() {
    let (stage, channel) = whatsapp().await;
    let place = ContentBody::Location { latitude: 1.5, longitude: -2.0, name: Some("Here".to_owned()) };
    let expected = json!({ "latitude": "1.5", "longitude": "-2", "name": "Here" });
    assert_eq!(sent(&stage, &channel, place).await["location"], expected);
    for (emoji, expected) in [(Some("👍".to_owned()), "👍"), (None, "")] {
        let reaction = ContentBody::Reaction { message: "wamid.IN1".into(), emoji };
        let expected = json!({ "message_id": "wamid.IN1", "emoji": expected });
        assert_eq!(sent(&stage, &channel, reaction).await["reaction"], expected);
    }
}

#[tokio::test]
async fn a_template_goes_out_with_its_texts_on_one_line() {
    let (stage, channel) = whatsapp().await;
    let template =
        Template::new("ready", "es").with_body(["Ana\n  Maria", "42"]).with_button_payload(0, "ok");
    let expected = json!({
        "name": "ready", "language": { "policy": "deterministic", "code": "es" }, "components": [
            { "type": "body", "parameters": [
                { "type": "text", "text": "Ana Maria" }, { "type": "text", "text": "42" },
            ] },
            { "type": "button", "sub_type": "quick_reply", "index": "0",
              "parameters": [{ "type": "payload", "payload": "ok" }] },
        ],
    });
    assert_eq!(sent(&stage, &channel, template).await["template"], expected);
}

#[tokio::test]
async fn only_templates_reach_somebody_who_has_not_written_for_a_day() {
    let (stage, channel) = whatsapp().await;
    let ana = stage.graph.whatsapp_user("Ana", "15551234567");
    ana.is_silent_for_a_day();
    let error = send(&channel, ana.id(), "hi").await.expect_err("too late");
    assert_eq!((error.class, error.retryable), (ErrorClass::OutsideSessionWindow, false));
    send(&channel, ana.id(), Template::new("ready", "es")).await.expect("a template");
    ana.blocks();
    let error = send(&channel, ana.id(), "hi").await.expect_err("blocked");
    assert_eq!((error.class, error.retryable), (ErrorClass::RecipientUnreachable, false));
}

#[tokio::test]
async fn what_belongs_to_another_channel_is_refused_before_it_is_sent() {
    let (stage, channel) = whatsapp().await;
    let native = ContentBody::Native { channel: "telegram".into(), payload: json!({}), text: String::new() };
    let edit = ContentBody::Edit { message: "wamid.1".into(), text: "x".into() };
    for body in [native, edit] {
        let error = send(&channel, "US.1", body).await.expect_err("it is not for WhatsApp");
        assert_eq!((error.class, error.phase), (ErrorClass::UnsupportedContent, Phase::NotWritten));
    }
    assert_eq!(stage.graph.sent(), []);
}

#[tokio::test]
async fn only_what_may_have_arrived_is_ambiguous() {
    let (stage, channel) = whatsapp().await;
    for (fault, phase) in [
        (GraphFault::LoseAnswer, Phase::Unknown),
        (GraphFault::LoseMessage, Phase::Unknown),
        (GraphFault::Broken(502), Phase::Unknown),
        (GraphFault::Broken(503), Phase::Answered),
        (GraphFault::Broken(404), Phase::Answered),
        (GraphFault::Refuse { status: 500, code: 2, subcode: 0 }, Phase::Answered),
    ] {
        stage.graph.fault_next(fault.clone());
        let error = send(&channel, "US.1", "hi").await.expect_err("a fault");
        assert_eq!(error.phase, phase, "{fault:?}: {error}");
    }
    // A reaction that arrives twice is one reaction.
    stage.graph.fault_next(GraphFault::LoseAnswer);
    let reaction = ContentBody::Reaction { message: "wamid.IN1".into(), emoji: Some("👍".to_owned()) };
    let error = send(&channel, "US.1", reaction).await.expect_err("a fault");
    assert_eq!((error.phase, error.retryable), (Phase::NotWritten, true));
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_has_nothing() {
    let (stage, _channel) = whatsapp().await;
    let elsewhere = config(&stage.graph).with_base_url("http://127.0.0.1:1");
    let channel = WhatsApp::new("1", elsewhere).expect("a channel");
    let error = send(&channel, "US.1", "hi").await.expect_err("nobody is there");
    assert_eq!((error.class, error.phase, error.retryable), (ErrorClass::Transient, Phase::NotWritten, true));
}

#[tokio::test]
async fn a_server_that_never_says_hello_has_nothing_however_short_the_timeout() {
    let (stage, _channel) = whatsapp().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", silent.local_addr().expect("an address"));
    let silent = config(&stage.graph).with_base_url(url).with_timeout(std::time::Duration::from_secs(2));
    let channel = WhatsApp::new("1", silent).expect("a channel");
    let error = send(&channel, "US.1", "hi").await.expect_err("nobody speaks");
    assert_eq!((error.class, error.phase, error.retryable), (ErrorClass::Transient, Phase::NotWritten, true));
}

#[tokio::test]
async fn a_key_that_is_too_long_is_left_out() {
    let (stage, channel) = whatsapp().await;
    let (chat, content, key) = ("US.1".into(), Content::text("hi"), SendKey::from("k".repeat(513)));
    channel.send(SendRequest::new(&chat, &content).with_token(&key)).await.expect("it is sent");
    assert_eq!(stage.graph.sent().pop().expect("a message").token, None);
}

#[tokio::test]
async fn read_marks_and_typing_name_the_message() {
    let (stage, channel) = whatsapp().await;
    channel.mark_read(&"wamid.IN1".into()).await.expect("marked");
    channel.show_typing(&Inbound::text("wamid.IN2", "US.1", "hi")).await.expect("shown");
    let read = json!({ "messaging_product": "whatsapp", "status": "read", "message_id": "wamid.IN1" });
    let mut typing = read.clone();
    typing["message_id"] = json!("wamid.IN2");
    typing["typing_indicator"] = json!({ "type": "text" });
    assert_eq!(stage.graph.other_calls(), [read, typing]);
}
