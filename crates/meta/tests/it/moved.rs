//! Users of WhatsApp who change their number, and with it their id. Cases E79, E81 and E83.

use botmesh_core::notice::Moved;
use botmesh_core::provider::Provider;
use botmesh_core::time::Timestamp;
use botmesh_testing::GraphProduct;
use serde_json::{Value, json};

use crate::support::{Told, whatsapp};

fn payload(json: &str) -> Value {
    serde_json::from_str(json).expect("JSON")
}

#[tokio::test]
async fn a_new_id_is_told_before_the_event_and_again_until_it_is_recorded_and_a_new_number_after_it() {
    let (stage, _channel) = whatsapp().await;
    let body = payload(include_str!("../payloads/whatsapp_cloud/webhooks/system_number_change.json"));
    stage.diary.refuse(1);
    assert_eq!(stage.graph.post(GraphProduct::WhatsApp, &body).await, Some(503));
    assert_eq!(stage.diary.take(), [], "nothing is taken over");
    assert_eq!(stage.graph.post(GraphProduct::WhatsApp, &body).await, Some(200));
    let told = stage.diary.take();
    let [Told::Moved(id), Told::Event(event), Told::Moved(number)] = &*told else { panic!("{told:?}") };
    let (from, to) = ("US.13491208655302741918", "US.24817305912873645029");
    let at = Some(Timestamp::from_millis(1_795_950_000_000));
    assert_eq!(*id, Moved { from: from.into(), to: to.into(), at });
    assert_eq!(*number, Moved { from: "15551234567".into(), to: "15557654321".into(), at });
    assert_eq!(event.chat.as_str(), from);
}

#[tokio::test]
async fn what_was_written_before_a_new_number_is_taken_over_before_it_is_told() {
    let (stage, _channel) = whatsapp().await;
    let mut body = payload(include_str!("../payloads/whatsapp_cloud/webhooks/system_number_change.json"));
    let messages = body.pointer_mut("/entry/0/changes/0/value/messages").and_then(Value::as_array_mut);
    let messages = messages.expect("the payload has messages");
    let text = |id: &str, user: &Value, number: &Value| {
        let mut text =
            json!({ "id": id, "timestamp": "1795949999", "type": "text", "text": { "body": "hi" } });
        text["from"] = number.clone();
        text["from_user_id"] = user.clone();
        text
    };
    let system = messages[0].clone();
    let before = text("wamid.before", &system["from_user_id"], &system["from"]);
    let after = text("wamid.after", &system["system"]["user_id"], &system["system"]["wa_id"]);
    messages.insert(0, before);
    messages.push(after);
    assert_eq!(stage.graph.post(GraphProduct::WhatsApp, &body).await, Some(200));
    let told = stage.diary.take();
    let [Told::Event(first), Told::Moved(_), Told::Event(_), Told::Moved(_), Told::Event(last)] = &*told
    else {
        panic!("{told:?}")
    };
    assert_eq!((first.event.as_str(), last.event.as_str()), ("wamid.before", "wamid.after"));
}

#[tokio::test]
async fn what_tells_one_id_alone_moves_nobody() {
    let (stage, _channel) = whatsapp().await;
    let body =
        payload(include_str!("../payloads/whatsapp_cloud/webhooks/system_user_id_change_no_from.json"));
    assert_eq!(stage.graph.post(GraphProduct::WhatsApp, &body).await, Some(200));
    let told = stage.diary.take();
    assert!(matches!(&*told, [Told::Event(_)]), "{told:?}");
    let body = payload(include_str!("../payloads/whatsapp_cloud/webhooks/user_id_update.json"));
    assert_eq!(stage.graph.post(GraphProduct::WhatsApp, &body).await, Some(200));
    let told = stage.diary.take();
    assert!(matches!(&*told, [Told::Moved(_), Told::Event(_)]), "{told:?}");
}

#[tokio::test]
async fn the_server_tells_of_a_new_number_in_the_old_chat() {
    let (stage, _channel) = whatsapp().await;
    let ana = stage.graph.whatsapp_user("Ana", "15551234567");
    let moved = ana.changes_number("15557654321").await;
    moved.says("hi").await;
    let told = stage.diary.take();
    let [Told::Moved(move_), Told::Event(event), Told::Moved(_), Told::Event(said)] = &*told else {
        panic!("{told:?}")
    };
    assert_eq!((move_.from.as_str(), move_.to.as_str()), (ana.id(), moved.id()));
    assert_eq!((event.chat.as_str(), said.chat.as_str()), (ana.id(), moved.id()));
}

#[tokio::test]
async fn users_may_move_and_groups_do_not() {
    let (_stage, channel) = whatsapp().await;
    for (id, may_move) in [
        ("US.13491208655302741918", true),
        ("MX.5215550001111", true),
        ("US.ENT.11815799212886844830", true),
        ("5215550001111", true),
        ("+52 1 555-000-1111", false),
        ("group:Y2FwaV9ncm91cA==", false),
        ("", false),
    ] {
        assert_eq!(channel.may_move(id), may_move, "{id:?}");
        let is_number = id == "5215550001111";
        assert_eq!(channel.is_alias(id), is_number, "a number goes to somebody else, {id:?}");
    }
}
