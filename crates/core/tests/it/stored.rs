//! What earlier versions wrote is read by this one.

use botmesh_core::id::MessageId;
use botmesh_core::inbound::{Inbound, InboundBody};

/// As the inbox kept it before messages had an id of their own, and media an album.
const BEFORE_ALBUMS: &str = r#"{"event":"7","chat":"-1001557912345","sender":{"id":"5025045066"},"group":true,
    "body":{"type":"image","media":{"provider":"mock","token":"t"},"caption":"a cat"}}"#;

#[test]
fn an_event_of_before_albums_is_read_and_its_message_has_the_id_of_the_event() {
    let inbound: Inbound = serde_json::from_str(BEFORE_ALBUMS).expect("an event");
    assert_eq!(inbound.message_id(), MessageId::from("7"));
    let InboundBody::Image(image) = &inbound.body else { panic!("a picture") };
    assert_eq!((image.caption.as_deref(), image.album.as_deref()), (Some("a cat"), None));
}

#[test]
fn an_event_without_the_new_fields_is_written_as_before() {
    let written = serde_json::to_value(Inbound::text("7", "ana", "hi")).expect("JSON");
    let before = serde_json::json!({
        "event": "7", "chat": "ana", "sender": {"id": "ana"}, "body": {"type": "text", "text": "hi"},
    });
    assert_eq!(written, before);
}
