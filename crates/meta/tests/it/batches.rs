//! Posts of many items: each of them counts, and none holds up the others.

use botmesh_core::inbound::InboundBody;
use botmesh_core::notice::{Notice, ReceiptOf, Stage as How};
use botmesh_testing::{FakeGraph, GraphProduct};
use serde_json::{Value, json};

use crate::support::{Stage, Told, whatsapp};

const WHATSAPP: GraphProduct = GraphProduct::WhatsApp;

fn body(number: &str, mut value: Value) -> Value {
    value["metadata"] = json!({ "phone_number_id": number });
    json!({ "entry": [{ "changes": [{ "field": "messages", "value": value }] }] })
}

fn ours(value: Value) -> Value {
    body(FakeGraph::PHONE_NUMBER_ID, value)
}

fn message(id: &str, text: &str) -> Value {
    json!({ "id": id, "from": "15551234567", "type": "text", "text": { "body": text } })
}

fn status(id: &str, status: &str) -> Value {
    let token = format!("key {id}");
    json!({ "id": id, "status": status, "recipient_id": "15551234567", "biz_opaque_callback_data": token })
}

async fn post(stage: &Stage, body: &Value) {
    assert_eq!(stage.graph.post(WHATSAPP, body).await, Some(200));
}

/// How far messages came, as it was told.
fn stages(told: &[Told]) -> Vec<How> {
    let stage = |told: &Told| match told {
        Told::Notice(Notice::Receipt(receipt)) => Some(receipt.stage),
        _ => None,
    };
    told.iter().filter_map(stage).collect()
}

#[tokio::test]
async fn a_bad_item_is_kept_and_does_not_lose_the_others() {
    let (stage, _channel) = whatsapp().await;
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    let items = json!([
        message("wamid.1", "first"), "DEEP", 7, null, {"type": "text"}, {"id": "wamid.2"},
        {"id": "wamid.3", "from": "1555", "type": "text", "text": "no object"}, message("wamid.4", "last"),
    ]);
    let body = ours(json!({ "messages": items })).to_string().replace("\"DEEP\"", &deep.to_string());
    assert_eq!(stage.graph.post_bytes(WHATSAPP, body.as_bytes()).await, Some(200));
    let told = stage.diary.take();
    let event = |told: &Told| match told {
        Told::Event(inbound) => Some((inbound.event.to_string(), inbound.readable_text().to_owned())),
        _ => None,
    };
    let texts: Vec<_> = told.iter().filter_map(event).collect();
    let expected = [("wamid.1", "first"), ("wamid.3", ""), ("wamid.4", "last")];
    assert_eq!(texts, expected.map(|(id, text)| (id.to_owned(), text.to_owned())));
    let bad = told.iter().filter(|told| matches!(told, Told::Poison(..))).count();
    assert_eq!(bad, 5, "{told:?}");
}

#[tokio::test]
async fn a_bad_change_does_not_lose_the_other_entries() {
    let (stage, _channel) = whatsapp().await;
    let mut body = ours(json!({ "messages": [message("wamid.1", "hi")] }));
    let good = body["entry"][0].clone();
    body["entry"] = json!([{ "changes": [7, { "field": "messages" }] }, "no entry", good]);
    post(&stage, &body).await;
    let told = stage.diary.take();
    assert_eq!(told.iter().filter(|told| matches!(told, Told::Event(_))).count(), 1, "{told:?}");
    assert_eq!(told.iter().filter(|told| matches!(told, Told::Poison(..))).count(), 3, "{told:?}");
}

#[tokio::test]
async fn a_message_is_for_the_phone_number_that_it_was_sent_to() {
    let (stage, _channel) = whatsapp().await;
    let value = json!({ "messages": [message("wamid.1", "hi")] });
    post(&stage, &body("999", value.clone())).await;
    assert_eq!(stage.diary.take(), []);
    post(&stage, &ours(value)).await;
    assert_eq!(stage.diary.texts(), ["hi"]);
}

#[tokio::test]
async fn contacts_are_found_by_their_ids_and_not_by_their_place() {
    let (stage, _channel) = whatsapp().await;
    let contacts = json!([
        { "profile": { "name": "Luis" }, "wa_id": "2", "user_id": "US.2" },
        { "profile": { "name": "Ana" }, "wa_id": "1", "user_id": "US.1" },
    ]);
    let from = |from: &str| json!({ "id": format!("wamid.{from}"), "from": from, "type": "text", "text": { "body": "x" } });
    post(&stage, &ours(json!({ "contacts": contacts, "messages": [from("1"), from("2"), from("3")] }))).await;
    let events = stage.diary.events();
    let person = |event: &botmesh_core::inbound::Inbound| {
        let sender = event.sender.clone().expect("a sender");
        (event.chat.to_string(), sender.id.to_string(), sender.name.unwrap_or_default())
    };
    let people: Vec<_> = events.iter().map(person).collect();
    let expected = [("US.1", "US.1", "Ana"), ("US.2", "US.2", "Luis"), ("3", "3", "")];
    assert_eq!(people, expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
}

#[tokio::test]
async fn statuses_only_go_forward_and_resolve_a_send_once() {
    let (stage, _channel) = whatsapp().await;
    for how in ["read", "sent", "delivered", "read", "played", "failed", "mystery"] {
        post(&stage, &ours(json!({ "statuses": [status("wamid.1", how)] }))).await;
    }
    let told = stage.diary.take();
    let of = |told: &Told| matches!(told, Told::Notice(Notice::Receipt(receipt)) if receipt.of == ReceiptOf::Message("wamid.1".into()));
    assert_eq!(told.iter().filter(|told| of(told)).count(), 2);
    assert_eq!(stages(&told), [How::Read, How::Played]);
    let sent: Vec<_> = told.iter().filter(|told| matches!(told, Told::Sent(..))).collect();
    assert_eq!(sent, [&Told::Sent("key wamid.1".to_owned(), "wamid.1".to_owned())]);
}

#[tokio::test]
async fn a_failure_is_told_and_a_delivery_after_it_too() {
    let (stage, _channel) = whatsapp().await;
    for how in ["sent", "failed", "delivered"] {
        post(&stage, &ours(json!({ "statuses": [status("wamid.1", how)] }))).await;
    }
    assert_eq!(stages(&stage.diary.take()), [How::Sent, How::Failed, How::Delivered]);
}

#[tokio::test]
async fn a_status_that_was_not_taken_over_is_posted_again() {
    let (stage, _channel) = whatsapp().await;
    let body = ours(json!({ "statuses": [status("wamid.1", "sent")] }));
    stage.diary.refuse(1);
    assert_eq!(stage.graph.post(WHATSAPP, &body).await, Some(503));
    assert_eq!(stage.diary.take(), []);
    post(&stage, &body).await;
    assert!(matches!(&*stage.diary.take(), [Told::Sent(..), Told::Notice(_)]));
}

#[tokio::test]
async fn a_message_behind_500_statuses_is_handed_over_before_them() {
    let (stage, _channel) = whatsapp().await;
    let statuses: Vec<_> = (0..500).map(|n| status(&format!("wamid.{n}"), "delivered")).collect();
    post(&stage, &ours(json!({ "statuses": statuses, "messages": [message("wamid.IN", "hi")] }))).await;
    let told = stage.diary.take();
    assert!(matches!(told.first(), Some(Told::Event(_))), "{:?}", told.first());
    assert_eq!(told.len(), 1 + 2 * 500);
}

/// A number's calls are no news to another one.
#[tokio::test]
async fn whatever_is_about_another_number_is_left_out() {
    let (stage, _channel) = whatsapp().await;
    for (number, told) in [(FakeGraph::OTHER_PHONE_NUMBER_ID, 0), (FakeGraph::PHONE_NUMBER_ID, 1)] {
        let mut calls = body(number, json!({ "calls": [{ "id": "wacid.1", "event": "connect" }] }));
        calls["entry"][0]["changes"][0]["field"] = json!("calls");
        post(&stage, &calls).await;
        assert_eq!(stage.diary.take().len(), told, "{number}");
    }
}

/// A status of a message that failed may name nobody but in the contacts.
#[tokio::test]
async fn a_failure_without_a_recipient_is_of_the_contact() {
    let (stage, _channel) = whatsapp().await;
    let errors = json!([{ "code": 131_026, "title": "Message undeliverable" }]);
    for (contact, parent, chat) in
        [(json!("US.1"), Value::Null, "US.1"), (Value::Null, json!("US.ENT.2"), "US.ENT.2")]
    {
        let status = json!({ "id": format!("wamid.{chat}"), "status": "failed", "errors": errors, "recipient_parent_user_id": parent });
        post(&stage, &ours(json!({ "contacts": [{ "user_id": contact }], "statuses": [status] }))).await;
        let told = stage.diary.take();
        let [Told::Notice(Notice::Receipt(receipt))] = &*told else { panic!("{told:?}") };
        assert_eq!((receipt.chat.as_str(), receipt.stage), (chat, How::Failed));
    }
}

#[tokio::test]
async fn a_change_of_ids_comes_in_the_chat_that_the_user_had() {
    let (stage, _channel) = whatsapp().await;
    let system = json!({
        "type": "user_changed_user_id", "body": "changed", "previous_user_id": "US.1", "user_id": "US.2",
    });
    let message = json!({ "id": "wamid.1", "from_user_id": "US.2", "type": "system", "system": system });
    post(&stage, &ours(json!({ "messages": [message] }))).await;
    let events = stage.diary.events();
    let InboundBody::System { event, detail } = &events[0].body else { panic!("{events:?}") };
    let told = (events[0].chat.as_str(), event.as_str(), &detail["from"], &detail["to"]);
    assert_eq!(told, ("US.1", "user_changed_user_id", &json!("US.1"), &json!("US.2")));
}

#[tokio::test]
async fn what_is_not_supported_is_told_with_all_that_meta_says_of_it() {
    let (stage, _channel) = whatsapp().await;
    let reply = json!({ "type": "call_permission_reply", "call_permission_reply": { "response": "accept" } });
    let message = json!({ "id": "wamid.1", "from": "1555", "type": "interactive", "interactive": reply });
    post(&stage, &ours(json!({ "messages": [message] }))).await;
    let events = stage.diary.events();
    assert_eq!(events[0].body, InboundBody::Unsupported { kind: "interactive".to_owned() });
    assert_eq!(events[0].extra["interactive"], reply);
}
