//! The edge to the network: signatures, handshakes, bodies that say nothing.

use botmesh_testing::{FakeGraph, GraphProduct};
use serde_json::json;

use crate::support::{Told, instagram, messenger, status_of_head, whatsapp};

const WHATSAPP: GraphProduct = GraphProduct::WhatsApp;

fn text(text: &str) -> String {
    let body = json!({ "object": "whatsapp_business_account", "entry": [{ "changes": [{ "field": "messages", "value": {
        "metadata": { "phone_number_id": FakeGraph::PHONE_NUMBER_ID },
        "messages": [{ "id": "wamid.1", "from": "15551234567", "type": "text", "text": { "body": text } }],
    } }] }] });
    body.to_string()
}

fn signed(body: &[u8]) -> String {
    format!("x-hub-signature-256: {}\r\n", FakeGraph::sign(body))
}

#[tokio::test]
async fn the_handshake_knows_a_token_with_a_plus_and_a_space() {
    let (stage, _channel) = whatsapp().await;
    assert!(stage.graph.verify_webhook(WHATSAPP).await);
}

#[tokio::test]
async fn a_body_is_checked_as_it_was_sent_escapes_and_all() {
    let (stage, _channel) = whatsapp().await;
    let escaped = text("ä😀").replace('ä', r"\u00e4").replace('😀', r"\ud83d\ude00");
    assert!(escaped.contains(r"\u00e4\ud83d"));
    assert_eq!(stage.graph.post_bytes(WHATSAPP, escaped.as_bytes()).await, Some(200));
    assert_eq!(stage.diary.texts(), ["ä😀"]);
}

#[tokio::test]
async fn half_a_character_does_not_lose_the_message() {
    let (stage, _channel) = whatsapp().await;
    let cut = text("HALF").replace("HALF", r"hi \ud83d");
    assert_eq!(stage.graph.post_bytes(WHATSAPP, cut.as_bytes()).await, Some(200));
    assert_eq!(stage.diary.texts(), ["hi \u{fffd}"]);
}

#[tokio::test]
async fn a_body_that_is_not_signed_by_the_app_is_refused() {
    let (stage, _channel) = whatsapp().await;
    let body = text("hi");
    let right = FakeGraph::sign(body.as_bytes());
    let upper = right.to_uppercase().replace("SHA256", "sha256");
    let other = FakeGraph::sign(b"another body");
    for (header, status) in [
        (String::new(), 401),
        (format!("x-hub-signature: sha1={}\r\n", &right[7..47]), 401),
        (format!("x-hub-signature-256: {other}\r\n"), 401),
        (format!("x-hub-signature-256: {}\r\n", &right[7..]), 401),
        (format!("x-hub-signature-256: {}\r\n", &right[..right.len() - 2]), 401),
        (format!("x-hub-signature-256: {}zz\r\n", &right[..right.len() - 2]), 401),
        ("x-hub-signature-256: sha256=\r\n".to_owned(), 401),
        (format!("X-HUB-SIGNATURE-256: {right}\r\n"), 200),
        (format!("x-hub-signature-256: {upper}\r\n"), 200),
    ] {
        let answer = stage.graph.post_raw(WHATSAPP, &header, body.as_bytes()).await;
        assert_eq!(answer, Some((status, String::new())), "{header}");
    }
    assert_eq!(stage.diary.texts(), ["hi", "hi"]);
}

/// A stranger's body takes no memory: of these posts only the head ever comes.
#[tokio::test]
async fn what_has_no_signature_is_refused_before_it_is_read() {
    let (_stage, whatsapp) = whatsapp().await;
    let (_of_page, messenger) = messenger().await;
    let (_of_account, instagram) = instagram().await;
    let right = FakeGraph::sign(b"");
    let headers = [
        String::new(),
        format!("x-hub-signature: sha1={}\r\n", &right[7..47]),
        format!("x-hub-signature-256: {}\r\n", &right[..right.len() - 2]),
        format!("x-hub-signature-256: {}zz\r\n", &right[..right.len() - 2]),
        format!("x-hub-signature-256: {right}{}\r\n", &right[7..]),
    ];
    for header in headers {
        for (router, path) in [
            (whatsapp.router(), "/webhooks/whatsapp"),
            (messenger.router(), "/webhooks/messenger"),
            (instagram.router(), "/webhooks/instagram"),
        ] {
            assert_eq!(status_of_head(router, path, &header).await, 401, "{path} {header}");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_packed_on_the_way_is_refused_and_a_plain_text_is_read() {
    let (stage, _channel) = whatsapp().await;
    let packed = b"\x1f\x8b\x08\0\0\0\0\0\0\x03";
    let headers = format!("content-encoding: gzip\r\n{}", signed(packed));
    assert_eq!(stage.graph.post_raw(WHATSAPP, &headers, packed).await, Some((415, String::new())));
    let body = text("hi");
    let headers = format!("content-type: text/plain\r\n{}", signed(body.as_bytes()));
    assert_eq!(stage.graph.post_raw(WHATSAPP, &headers, body.as_bytes()).await, Some((200, String::new())));
    assert_eq!(stage.diary.texts(), ["hi"]);
}

#[tokio::test]
async fn bodies_that_say_nothing_are_bad_requests_or_nothing() {
    let (stage, _channel) = whatsapp().await;
    for (body, status) in [
        (&b""[..], 400),
        (b"\xef\xbb\xbf{}", 400),
        (b"null", 400),
        (b"{\"entry\": 7}", 400),
        (b"{}", 200),
        (b"[]", 200),
        (b"{\"entry\": null}", 200),
        (b"{\"entry\": [{}]}", 200),
        (b"{\"entry\": [{\"changes\": null}]}", 200),
    ] {
        assert_eq!(stage.graph.post_bytes(WHATSAPP, body).await, Some(status), "{body:?}");
    }
    assert_eq!(stage.diary.take(), []);
}

#[tokio::test]
async fn a_message_that_looks_like_a_call_is_never_answered_with() {
    let (stage, _channel) = whatsapp().await;
    let body = text(r#"{"method":"sendMessage","chat_id":1}"#);
    let answer = stage.graph.post_raw(WHATSAPP, &signed(body.as_bytes()), body.as_bytes()).await;
    assert_eq!(answer, Some((200, String::new())));
}

#[tokio::test]
async fn a_journal_that_is_away_gets_the_post_again() {
    let (stage, _channel) = whatsapp().await;
    stage.diary.refuse(1);
    let body = text("hi");
    assert_eq!(stage.graph.post_bytes(WHATSAPP, body.as_bytes()).await, Some(503));
    assert_eq!(stage.diary.take(), []);
    assert_eq!(stage.graph.post_bytes(WHATSAPP, body.as_bytes()).await, Some(200));
    assert!(matches!(&*stage.diary.take(), [Told::Event(_)]));
}
