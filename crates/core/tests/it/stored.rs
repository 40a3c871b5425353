//! What earlier versions wrote is read by this one.

use botmesh_core::content::{AlbumItem, Content, ContentBody, MediaSource, OutboundMedia};
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
fn media_that_is_sent_comes_back_from_the_outbox_byte_by_byte() {
    let bytes: Vec<u8> = (0..=255).collect();
    let source = MediaSource::Bytes(bytes.into());
    let stored = serde_json::to_string(&source).expect("JSON");
    assert!(stored.starts_with(r#"{"bytes":"AAEC"#), "{stored}");
    assert_eq!(serde_json::from_str::<MediaSource>(&stored).expect("what was written"), source);
    for broken in [r#"{"bytes":"AAE"}"#, r#"{"bytes":"a b="}"#, r#"{"bytes":[0,1]}"#] {
        assert!(serde_json::from_str::<MediaSource>(broken).is_err(), "{broken}");
    }
}

#[test]
fn an_event_without_the_new_fields_is_written_as_before() {
    let written = serde_json::to_value(Inbound::text("7", "ana", "hi")).expect("JSON");
    let before = serde_json::json!({
        "event": "7", "chat": "ana", "sender": {"id": "ana"}, "body": {"type": "text", "text": "hi"},
    });
    assert_eq!(written, before);
}

#[test]
fn what_only_one_channel_has_is_kept_as_it_is() {
    let payload = serde_json::json!({"type": "template", "template": {"name": "ready"}});
    let body = ContentBody::Native { channel: "whatsapp".into(), payload, text: "ready".into() };
    let content = Content::from(body);
    let written = serde_json::to_string(&content).expect("JSON");
    assert_eq!(serde_json::from_str::<Content>(&written).expect("a content"), content);
    assert_eq!(content.readable_text(), "ready");
}

#[test]
fn what_the_channel_says_beside_an_event_is_kept_with_it() {
    let mut inbound = Inbound::text("7", "ana", "hi");
    inbound.extra = serde_json::json!({"referral": {"source_type": "ad"}});
    let written = serde_json::to_string(&inbound).expect("JSON");
    assert_eq!(serde_json::from_str::<Inbound>(&written).expect("an event"), inbound);
}

#[test]
fn an_album_is_kept_with_its_caption_and_the_bytes_of_each_item() {
    let media = |source| OutboundMedia { source, caption: None, mime: None, file_name: None };
    let album = Content::album([
        AlbumItem::Image(media(MediaSource::Path("a.jpg".into()))),
        AlbumItem::Video(media(MediaSource::Bytes(vec![7; 3].into()))),
    ])
    .with_text("two");
    assert_eq!(album.readable_text(), "two");
    let written = serde_json::to_value(&album).expect("JSON");
    let items = serde_json::json!([
        {"type": "image", "source": {"path": "a.jpg"}, "caption": "two"},
        {"type": "video", "source": {"bytes": "BwcH"}},
    ]);
    assert_eq!(written, serde_json::json!({"body": {"type": "album", "items": items}}));
    assert_eq!(serde_json::from_value::<Content>(written).expect("a content"), album);
    assert_eq!(Content::album([]).with_text("none").readable_text(), "");
}
