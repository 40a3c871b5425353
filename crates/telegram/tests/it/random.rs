//! Whatever comes, reading it ends well and keeps the update's number.

use botmesh_core::inbound::Inbound;
use botmesh_telegram::{KINDS, parse_update};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Names of fields that mean something, and some that do not.
const FIELDS: &[&str] = &[
    "message_id",
    "from",
    "chat",
    "id",
    "type",
    "date",
    "text",
    "caption",
    "photo",
    "file_id",
    "width",
    "height",
    "video",
    "animation",
    "sticker",
    "document",
    "voice",
    "location",
    "venue",
    "latitude",
    "longitude",
    "title",
    "contact",
    "phone_number",
    "first_name",
    "last_name",
    "sender_chat",
    "reply_to_message",
    "message",
    "data",
    "reply_markup",
    "inline_keyboard",
    "callback_data",
    "old_reaction",
    "new_reaction",
    "emoji",
    "poll_id",
    "option_ids",
    "user",
    "voter_chat",
    "migrate_to_chat_id",
    "migrate_from_chat_id",
    "is_topic_message",
    "message_thread_id",
    "business_connection_id",
    "guest_query_id",
    "is_automatic_forward",
    "web_app_data",
    "hologram",
    "media_group_id",
];

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1000i64..1000).prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(vec!["private", "group", "supergroup", "channel", "emoji", "paid"])
            .prop_map(Value::from),
    ]
}

/// Values in which the fields of Telegram turn up wherever they may and may not.
fn value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(5, 64, 6, |inner| {
        let field = prop::sample::select(FIELDS.to_vec());
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((field, inner), 0..8).prop_map(|fields| {
                Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
        ]
    })
}

/// A message with a chat and an id, and anything else.
fn message() -> impl Strategy<Value = Value> {
    (any::<i64>(), any::<i64>(), value()).prop_map(|(chat, id, rest)| {
        let mut fields = match rest {
            Value::Object(fields) => fields,
            other => Map::from_iter([("text".to_owned(), other)]),
        };
        fields.insert("chat".into(), json!({ "id": chat, "type": "supergroup" }));
        fields.insert("message_id".into(), id.into());
        Value::Object(fields)
    })
}

/// What the journal keeps is what was read.
fn check_stored(inbound: &Inbound) -> Result<(), TestCaseError> {
    let json = serde_json::to_string(inbound).expect("JSON");
    let read: Inbound = serde_json::from_str(&json).expect("what was written");
    prop_assert_eq!(&read, inbound);
    prop_assert!(!inbound.chat.as_str().is_empty());
    prop_assert!(!inbound.record_id().as_str().is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn an_update_of_any_shape_keeps_its_number(id: i64, kind in prop::sample::select(KINDS.to_vec()), value in value()) {
        let update = parse_update(json!({ "update_id": id, kind: value }).to_string().as_bytes());
        prop_assert_eq!(update.id, Some(id));
        prop_assert_eq!(update.event.as_str(), id.to_string());
        if let Ok(inbound) = &update.content {
            check_stored(inbound)?;
        }
    }

    #[test]
    fn a_message_with_a_chat_and_an_id_can_always_be_read(id: i64, message in message()) {
        for kind in ["message", "edited_message", "channel_post", "business_message", "guest_message"] {
            let update = parse_update(json!({ "update_id": id, kind: message }).to_string().as_bytes());
            let inbound = update.content.expect("a message");
            check_stored(&inbound)?;
        }
    }

    #[test]
    fn bytes_of_any_kind_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!parse_update(&bytes).event.as_str().is_empty());
    }

    #[test]
    fn a_broken_update_is_read_or_refused(update in value(), cut: prop::sample::Index, put: u8) {
        let mut bytes = json!({ "update_id": 7, "message": update }).to_string().into_bytes();
        let at = cut.index(bytes.len());
        bytes[at] = put;
        let _ = parse_update(&bytes);
        bytes.truncate(at);
        let _ = parse_update(&bytes);
    }
}
