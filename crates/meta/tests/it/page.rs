//! Messenger and Instagram, in and out.

use botmesh_core::content::{Button, Content, ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ErrorClass, Phase};
use botmesh_core::inbound::{Inbound, InboundBody};
use botmesh_core::notice::{Notice, ReceiptOf, Stage as How};
use botmesh_core::provider::{Provider, TextLimit, TextUnit};
use botmesh_core::split::split;
use botmesh_testing::{FakeGraph, GraphEcho, GraphFault, GraphProduct};
use serde_json::{Value, json};

use crate::support::{Stage, Told, instagram, messenger};
use crate::whatsapp::{media, send};

fn entry(account: &str, key: &str, item: &Value) -> Value {
    json!({ "object": "page", "entry": [{ "id": account, "time": 1_795_950_000_123_i64, (key): [item] }] })
}

fn message(sender: &str, message: &Value) -> Value {
    json!({ "sender": { "id": sender }, "recipient": { "id": FakeGraph::PAGE_ID }, "timestamp": 5, "message": message })
}

async fn post(stage: &Stage, body: &Value) -> Vec<Told> {
    assert_eq!(stage.graph.post(GraphProduct::Messenger, body).await, Some(200));
    stage.diary.take()
}

async fn post_item(stage: &Stage, item: Value) -> Vec<Told> {
    post(stage, &entry(FakeGraph::PAGE_ID, "messaging", &item)).await
}

fn echo(message: &Value) -> Value {
    json!({
        "sender": { "id": FakeGraph::PAGE_ID }, "recipient": { "id": "200" }, "timestamp": 5, "message": message,
    })
}

#[tokio::test]
async fn our_own_echo_resolves_a_send_and_is_no_message() {
    let (stage, _channel) = messenger().await;
    let app: u64 = FakeGraph::APP_ID.parse().expect("a number");
    let ours =
        echo(&json!({ "mid": "m_1", "text": "pong", "is_echo": true, "app_id": app, "metadata": "key" }));
    assert_eq!(post_item(&stage, ours).await, [Told::Sent("key".to_owned(), "m_1".to_owned())]);
}

#[tokio::test]
async fn what_a_person_or_another_app_wrote_is_told_and_not_answered() {
    let (stage, _channel) = messenger().await;
    for app in [json!(null), json!(263_902_037_430_900_u64)] {
        let human = echo(&json!({ "mid": "m_2", "text": "I am human", "is_echo": true, "app_id": app }));
        let expected =
            Notice::FromMe { chat: "200".into(), message: "m_2".into(), text: "I am human".to_owned() };
        assert_eq!(post_item(&stage, human).await, [Told::Notice(expected)]);
    }
    let theirs = json!({ "mid": "m_3", "text": "x", "is_echo": true, "app_id": 7, "metadata": "not ours" });
    let told = post_item(&stage, echo(&theirs)).await;
    assert!(matches!(&*told, [Told::Notice(Notice::FromMe { .. })]), "{told:?}");
}

/// Instagram need not say whose a copy is.
#[tokio::test]
async fn a_copy_that_says_nothing_is_our_own_if_we_sent_the_message() {
    let (stage, channel) = instagram().await;
    stage.graph.set_echo(GraphEcho::None);
    let sent = send(&channel, "200", "pong").await.expect("a message").message;
    for (mid, told) in [(sent.as_str(), 0), ("m_2", 1)] {
        let mut copy = echo(&json!({ "mid": mid, "text": "pong", "is_echo": true }));
        copy["sender"] = json!({ "id": FakeGraph::ACCOUNT_ID });
        let body = entry(FakeGraph::ACCOUNT_ID, "messaging", &copy);
        assert_eq!(stage.graph.post(GraphProduct::Instagram, &body).await, Some(200));
        assert_eq!(stage.diary.take().len(), told, "{mid}");
    }
}

#[tokio::test]
async fn a_chat_that_another_app_has_is_watched() {
    let (stage, _channel) = messenger().await;
    let said = message("200", &json!({ "mid": "m_1", "text": "help" }));
    let told = post(&stage, &entry(FakeGraph::PAGE_ID, "standby", &said)).await;
    let [Told::Notice(Notice::Watched(inbound))] = &*told else { panic!("{told:?}") };
    assert_eq!((inbound.chat.as_str(), inbound.readable_text()), ("200", "help"));
}

#[tokio::test]
async fn what_happened_is_told_by_its_name_whatever_else_an_item_has() {
    let (stage, _channel) = messenger().await;
    let mut item = message("200", &json!(null));
    let fields = item.as_object_mut().expect("an item");
    fields.remove("message");
    fields.insert("hop_context".to_owned(), json!([{ "app_id": 7 }]));
    fields.insert("pass_thread_control".to_owned(), json!({ "new_owner_app_id": "8" }));
    let told = post_item(&stage, item).await;
    let [Told::Event(inbound)] = &*told else { panic!("{told:?}") };
    let detail = json!({ "new_owner_app_id": "8" });
    assert_eq!(inbound.body, InboundBody::System { event: "pass_thread_control".to_owned(), detail });
}

#[tokio::test]
async fn a_delivery_without_ids_is_about_everything_up_to_its_watermark() {
    let (stage, _channel) = messenger().await;
    for (receipt, of) in [
        (
            json!({ "delivery": { "watermark": 7 } }),
            ReceiptOf::UpTo(botmesh_core::time::Timestamp::from_millis(7)),
        ),
        (json!({ "delivery": { "mids": ["m_1"] } }), ReceiptOf::Message("m_1".into())),
    ] {
        let mut item = receipt;
        item["sender"] = json!({ "id": "200" });
        let told = post_item(&stage, item).await;
        let [Told::Notice(Notice::Receipt(receipt))] = &*told else { panic!("{told:?}") };
        assert_eq!((&receipt.of, receipt.stage, receipt.chat.as_str()), (&of, How::Delivered, "200"));
    }
}

/// What was told of receipts, as `read 7` or `delivered m_1`.
fn receipts(told: &[Told]) -> Vec<String> {
    let receipt = |told: &Told| match told {
        Told::Notice(Notice::Receipt(receipt)) => Some(match &receipt.of {
            ReceiptOf::UpTo(until) => format!("{:?} {}", receipt.stage, until.as_millis()),
            ReceiptOf::Message(message) => format!("{:?} {message}", receipt.stage),
            other => format!("{other:?}"),
        }),
        _ => None,
    };
    told.iter().filter_map(receipt).collect()
}

#[tokio::test]
async fn e93_a_watermark_is_told_once_and_covers_what_came_less_far_before_it() {
    let (stage, _channel) = messenger().await;
    for (user, receipt, news) in [
        ("200", json!({ "delivery": { "watermark": 7 } }), &["Delivered 7"][..]),
        ("200", json!({ "delivery": { "watermark": 7 } }), &[]),
        ("200", json!({ "read": { "watermark": 9 } }), &["Read 9"]),
        ("200", json!({ "read": { "watermark": 8 } }), &[]),
        ("200", json!({ "delivery": { "watermark": 8 } }), &[]),
        ("201", json!({ "delivery": { "watermark": 8 } }), &["Delivered 8"]),
        ("200", json!({ "timestamp": 9, "delivery": { "mids": ["m_1"] } }), &[]),
        ("200", json!({ "timestamp": 10, "delivery": { "mids": ["m_2"] } }), &["Delivered m_2"]),
        ("200", json!({ "delivery": { "watermark": 10 } }), &["Delivered 10"]),
        ("200", json!({ "read": { "watermark": 10 } }), &["Read 10"]),
        ("200", json!({ "delivery": { "watermark": 10 } }), &[]),
    ] {
        let mut item = receipt.clone();
        item["sender"] = json!({ "id": user });
        assert_eq!(receipts(&post_item(&stage, item).await), news, "{user}: {receipt}");
    }
}

#[tokio::test]
async fn each_picture_of_a_message_is_an_event_of_one_album() {
    let (stage, _channel) = messenger().await;
    let picture = |n: u8| json!({ "type": "image", "payload": { "url": format!("https://scontent.xx.fbcdn.net/{n}.jpg") } });
    let said = json!({ "mid": "m_1", "text": "look", "attachments": [picture(1), picture(2)] });
    post_item_quietly(&stage, message("200", &said)).await;
    let events = stage.diary.events();
    let seen = |inbound: &Inbound| {
        let media = inbound.body.media().expect("a picture");
        (
            inbound.event.to_string(),
            inbound.message_id().to_string(),
            media.album.clone(),
            media.caption.clone(),
        )
    };
    let album = || Some("m_1".to_owned());
    let expected = [
        ("m_1".to_owned(), "m_1".to_owned(), album(), Some("look".to_owned())),
        ("m_1:1".to_owned(), "m_1".to_owned(), album(), None),
    ];
    assert_eq!(events.iter().map(seen).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_text_with_attachments_that_cannot_show_it_comes_before_them() {
    let (stage, _channel) = messenger().await;
    let link = json!({ "type": "fallback", "title": "A page", "payload": { "url": "https://example.org" } });
    let picture = json!({ "type": "image", "payload": { "url": "https://scontent.xx.fbcdn.net/1.jpg" } });
    let said = json!({ "mid": "m_1", "text": "look", "attachments": [link, picture] });
    post_item_quietly(&stage, message("200", &said)).await;
    let events = stage.diary.events();
    let seen: Vec<_> =
        events.iter().map(|inbound| (inbound.event.as_str(), inbound.readable_text())).collect();
    assert_eq!(seen, [("m_1", "look"), ("m_1:1", ""), ("m_1:2", "")]);
    assert!(matches!(events[1].body, InboundBody::Unsupported { .. }), "{:?}", events[1].body);
    assert!(events[2].body.media().is_some_and(|media| media.caption.is_none()), "{:?}", events[2].body);
}

async fn post_item_quietly(stage: &Stage, item: Value) {
    let body = entry(FakeGraph::PAGE_ID, "messaging", &item);
    assert_eq!(stage.graph.post(GraphProduct::Messenger, &body).await, Some(200));
}

#[tokio::test]
async fn a_message_that_was_taken_back_is_told_in_both_of_its_forms() {
    let (stage, _channel) = messenger().await;
    for deleted in [json!(true), json!("true")] {
        post_item_quietly(&stage, message("200", &json!({ "mid": "m_1", "is_deleted": deleted }))).await;
        let inbound = stage.diary.events().pop().expect("an event");
        let expected = json!({ "message": "m_1" });
        assert_eq!(
            inbound.body,
            InboundBody::System { event: "message_deleted".to_owned(), detail: expected }
        );
    }
    let ours = echo(&json!({ "mid": "m_2", "is_deleted": true, "is_echo": true }));
    assert_eq!(post_item(&stage, ours).await, []);
}

#[tokio::test]
async fn a_post_about_another_page_is_left_out() {
    let (stage, _channel) = messenger().await;
    let said = message("200", &json!({ "mid": "m_1", "text": "hi" }));
    assert_eq!(post(&stage, &entry("999", "messaging", &said)).await, []);
}

#[tokio::test]
async fn an_item_that_says_nothing_does_not_lose_the_others() {
    let (stage, _channel) = messenger().await;
    let mut body =
        entry(FakeGraph::PAGE_ID, "messaging", &message("200", &json!({ "mid": "m_1", "text": "hi" })));
    let good = body["entry"][0]["messaging"][0].clone();
    let bad = json!({ "sender": { "id": "200" } });
    body["entry"][0]["messaging"] =
        json!([7, bad, { "message": {} }, message("200", &json!({ "text": "x" })), good]);
    let told = post(&stage, &body).await;
    assert_eq!(told.iter().filter(|told| matches!(told, Told::Poison(..))).count(), 4, "{told:?}");
    assert_eq!(told.iter().filter(|told| matches!(told, Told::Event(_))).count(), 1, "{told:?}");
}

#[tokio::test]
async fn a_text_goes_out_with_its_key_and_its_buttons() {
    let (stage, channel) = messenger().await;
    let long = "A title of more than twenty";
    let content = Content::text("Which?").with_buttons([Button::new("a", "A"), Button::new("b", long)]);
    send(&channel, "200", content.in_reply_to("m_IN1")).await.expect("it is sent");
    let replies = json!([
        { "content_type": "text", "title": "A", "payload": "a" },
        { "content_type": "text", "title": "A title of more tha…", "payload": "b" },
    ]);
    let expected = json!({
        "recipient": { "id": "200" }, "messaging_type": "RESPONSE", "reply_to": { "mid": "m_IN1" },
        "message": { "text": "Which?", "quick_replies": replies, "metadata": "m/ana/1:0" },
    });
    assert_eq!(stage.graph.sent().pop().expect("a message").body, expected);
}

#[tokio::test]
async fn media_goes_out_and_captions_do_not() {
    let (stage, channel) = messenger().await;
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("bill.pdf");
    std::fs::write(&path, b"%PDF").expect("a file");
    let file = media(MediaSource::Path(path.display().to_string()));
    send(&channel, "200", ContentBody::Document(file.clone())).await.expect("it is sent");
    let body = stage.graph.sent().pop().expect("a message").body;
    let id = body["message"]["attachment"]["payload"]["attachment_id"].as_str().expect("an id");
    assert_eq!(stage.graph.media(id), Some(("application/pdf".to_owned(), b"%PDF".to_vec())));
    // The bot sends the text after it.
    let limit = channel.capabilities().caption_limit.expect("a limit");
    assert_eq!((limit.max, limit.measure("yours")), (0, 5));
    let captioned = OutboundMedia { caption: Some("yours".to_owned()), ..file };
    let error = send(&channel, "200", ContentBody::Document(captioned)).await.expect_err("a caption");
    assert_eq!((error.class, error.phase), (ErrorClass::UnsupportedContent, Phase::NotWritten));
}

#[tokio::test]
async fn reactions_typing_and_marks_are_actions() {
    let (stage, channel) = messenger().await;
    for emoji in [Some("👍".to_owned()), None] {
        let reaction = ContentBody::Reaction { message: "m_IN1".into(), emoji };
        send(&channel, "200", reaction).await.expect("it is sent");
    }
    channel.show_typing(&Inbound::text("m_IN2", "200", "hi")).await.expect("shown");
    channel.mark_seen(&"200".into()).await.expect("marked");
    let to = json!({ "id": "200" });
    let expected = [
        json!({ "recipient": to, "sender_action": "react", "payload": { "message_id": "m_IN1", "reaction": "👍" } }),
        json!({ "recipient": to, "sender_action": "unreact", "payload": { "message_id": "m_IN1" } }),
        json!({ "recipient": to, "sender_action": "typing_on" }),
        json!({ "recipient": to, "sender_action": "mark_seen" }),
    ];
    assert_eq!(stage.graph.other_calls(), expected);
    assert_eq!(stage.graph.sent(), []);
}

#[tokio::test]
async fn a_lost_answer_is_resolved_by_the_echo() {
    for (echo, fault) in
        [(GraphEcho::InOrder, GraphFault::LoseAnswer), (GraphEcho::BeforeAnswer, GraphFault::LoseAnswer)]
    {
        let (stage, channel) = messenger().await;
        stage.graph.set_echo(echo);
        stage.graph.fault_next(fault);
        let error = send(&channel, "200", "hi").await.expect_err("no answer");
        assert_eq!(error.phase, Phase::Unknown);
        let sent = stage.graph.sent().pop().expect("it arrived");
        let resolved = Told::Sent("m/ana/1:0".to_owned(), sent.id);
        crate::support::eventually(|| stage.diary.take().contains(&resolved)).await;
    }
}

#[tokio::test]
async fn instagram_counts_bytes() {
    let (stage, channel) = instagram().await;
    let limit = channel.capabilities().text_limit.expect("a limit");
    assert_eq!(limit, TextLimit { max: 1000, unit: TextUnit::Bytes });
    let long = "😀".repeat(260);
    let parts = split(&long, limit);
    assert_eq!(parts.concat(), long);
    for part in parts {
        send(&channel, "4368", part).await.expect("it fits");
    }
    send(&channel, "4368", &*long).await.expect_err("1,040 bytes do not");
    assert_eq!(stage.graph.sent().len(), 2);
}

#[tokio::test]
async fn only_urls_of_meta_are_media() {
    let (_stage, channel) = messenger().await;
    let stored = |url: &str| botmesh_core::media::StoredMediaRef { v: 1, data: json!({ "url": url }) };
    assert!(channel.rehydrate_media(&stored("https://scontent.xx.fbcdn.net/v/x.jpg?oe=6")).is_ok());
    for url in [
        "http://scontent.xx.fbcdn.net/x",
        "https://fbcdn.net.example.com/x",
        "https://10.0.0.1/x",
        "x",
        "file:///x",
    ] {
        assert!(channel.rehydrate_media(&stored(url)).is_err(), "{url}");
    }
}
