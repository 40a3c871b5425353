use serde_json::json;

use super::*;

fn params(id: &str) -> Value {
    Value::Object(Address::parse(&id.into()).expect("an address").params())
}

#[test]
fn an_address_says_how_its_chat_is_reached() {
    for (id, expected) in [
        ("5025045066", json!({ "chat_id": 5_025_045_066_i64 })),
        ("-1001557912345", json!({ "chat_id": -1_001_557_912_345_i64 })),
        ("@news_test", json!({ "chat_id": "@news_test" })),
        ("-1001557912345:17", json!({ "chat_id": -1_001_557_912_345_i64, "message_thread_id": 17 })),
        ("-1009876543210:dm5", json!({ "chat_id": -1_009_876_543_210_i64, "direct_messages_topic_id": 5 })),
        ("5025045066@bc_1", json!({ "chat_id": 5_025_045_066_i64, "business_connection_id": "bc_1" })),
    ] {
        assert_eq!(params(id), expected, "{id}");
        let address = Address::parse(&id.into()).expect("an address");
        assert_eq!(address.id().as_str(), id, "and back");
    }
    let guest = Address::parse(&"-1001557912345?g:q@1?".into()).expect("an address");
    assert_eq!(guest.guest.as_deref(), Some("g:q@1?"), "whatever a query is called");
    assert_eq!(guest.id().as_str(), "-1001557912345?g:q@1?");
}

/// Case G129.
#[test]
fn what_is_no_chat_of_telegram_is_refused_before_anything_is_sent() {
    for id in ["", "ana", "-", "@", "@a b", "12:x", "12:", "a:b{}*", "1.5", "12@", "--1"] {
        let error = Address::parse(&id.into()).expect_err(id);
        assert_eq!((error.class, error.phase), (ErrorClass::RecipientUnreachable, Phase::NotWritten), "{id}");
    }
}
