//! Media up and down.

use std::time::Duration;

use botmesh_core::content::{ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ErrorClass, Phase};
use botmesh_core::inbound::InboundBody;
use botmesh_core::media::{MediaRef, StoredMediaRef};
use botmesh_core::provider::Provider;
use botmesh_testing::GraphProduct;
use serde_json::json;
use tempfile::TempDir;

use crate::support::{Stage, instagram, messenger, whatsapp};
use crate::whatsapp::{media, send};

fn file(folder: &TempDir, name: &str, bytes: &[u8]) -> OutboundMedia {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    media(MediaSource::Path(path.display().to_string()))
}

#[tokio::test]
async fn a_file_is_uploaded_and_sent_by_its_id() {
    let (stage, channel) = whatsapp().await;
    let folder = TempDir::new().expect("a folder");
    let bill = b"%PDF \r\n--x";
    let document = OutboundMedia { caption: Some("yours".to_owned()), ..file(&folder, "bill.pdf", bill) };
    send(&channel, "US.1", ContentBody::Document(document)).await.expect("it is sent");
    let body = stage.graph.sent().pop().expect("a message").body;
    let id = body["document"]["id"].as_str().expect("an id");
    assert_eq!(stage.graph.media(id), Some(("application/pdf".to_owned(), bill.to_vec())));
    assert_eq!(body["document"], json!({ "id": id, "caption": "yours", "filename": "bill.pdf" }));
    let voice = file(&folder, "voice.ogg", b"OggS");
    send(&channel, "US.1", ContentBody::Audio(voice)).await.expect("it is sent");
    let body = stage.graph.sent().pop().expect("a message").body;
    let (mime, _) = stage.graph.media(body["audio"]["id"].as_str().expect("an id")).expect("the file");
    assert_eq!(mime, "audio/ogg; codecs=opus");
}

#[tokio::test]
async fn what_whatsapp_would_drop_later_is_refused_at_once() {
    let (stage, channel) = whatsapp().await;
    let folder = TempDir::new().expect("a folder");
    let of_type = |mime: &str| {
        let source = MediaSource::Url("https://example.com/x".to_owned());
        OutboundMedia { mime: Some(mime.to_owned()), ..media(source) }
    };
    let captioned = OutboundMedia { caption: Some("x".to_owned()), ..file(&folder, "a.mp3", b"x") };
    let gone = media(MediaSource::Path(folder.path().join("gone.png").display().to_string()));
    for (body, class) in [
        (ContentBody::Image(file(&folder, "cat.webp", b"RIFF")), ErrorClass::UnsupportedContent),
        (ContentBody::Image(of_type("image/webp")), ErrorClass::UnsupportedContent),
        (ContentBody::Audio(of_type("audio/opus")), ErrorClass::UnsupportedContent),
        (ContentBody::Audio(captioned), ErrorClass::UnsupportedContent),
        (ContentBody::Image(gone), ErrorClass::UnsupportedContent),
        (ContentBody::Image(file(&folder, "big.png", &vec![0; (5 << 20) + 1])), ErrorClass::PayloadTooLarge),
    ] {
        let error = send(&channel, "US.1", body.clone()).await.expect_err("it is refused");
        assert_eq!(
            (error.class, error.phase, error.retryable),
            (class, Phase::NotWritten, false),
            "{body:?}"
        );
    }
    assert_eq!(stage.graph.sent(), []);
}

#[tokio::test]
async fn a_picture_of_a_user_is_downloaded_also_after_a_restart() {
    let (stage, channel) = whatsapp().await;
    let id = stage.graph.keep_media("image/jpeg", b"\xff\xd8\xff");
    let ana = stage.graph.whatsapp_user("Ana", "15551234567");
    let image = json!({ "id": id, "mime_type": "image/jpeg", "url": "https://lookaside.fbsbx.com/secret" });
    ana.sends(json!({ "type": "image", "image": image })).await;
    let inbound = stage.diary.events().pop().expect("a picture");
    let InboundBody::Image(image) = inbound.body else { panic!("a picture") };
    assert_eq!(&*channel.load_media(&image.media, 3).await.expect("the bytes"), b"\xff\xd8\xff");
    let stored = channel.serialize_media(&image.media).expect("a durable reference");
    assert_eq!(stored.data, json!({ "id": id }), "the URL is a secret for as long as it works");
    let again = channel.rehydrate_media(&stored).expect("a reference");
    assert_eq!(&*channel.load_media(&again, 1 << 20).await.expect("the bytes"), b"\xff\xd8\xff");
    let error = channel.load_media(&again, 2).await.expect_err("it is larger");
    assert_eq!(error.class, ErrorClass::PayloadTooLarge);
}

/// The URL that a post has, and the one that Graph tells, are good for minutes. An id is good for weeks.
#[tokio::test]
async fn where_a_picture_is_on_whatsapp_is_asked_anew_each_time() {
    let (stage, channel) = whatsapp().await;
    let ana = stage.graph.whatsapp_user("Ana", "15551234567");
    ana.sends_image("image/jpeg", b"a picture").await;
    let inbound = stage.diary.events().pop().expect("a picture");
    let picture = &inbound.body.media().expect("a picture").media;
    for _ in 0..3 {
        assert_eq!(&*channel.load_media(picture, 1 << 20).await.expect("the bytes"), b"a picture");
        stage.graph.advance(Duration::from_secs(6 * 60));
    }
}

/// A picture of a page's user can be loaded, also by what is left of its reference after a restart, until its URL runs out:
/// Graph has no id by which to ask anew.
async fn holds_until_its_url_runs_out(stage: &Stage, channel: &impl Provider, product: GraphProduct) {
    let ana = stage.graph.user(product, "Ana", "200");
    ana.sends_image("image/jpeg", b"a picture").await;
    let inbound = stage.diary.events().pop().expect("a picture");
    let live = &inbound.body.media().expect("a picture").media;
    let stored = channel.serialize_media(live).expect("a durable reference");
    let again = channel.rehydrate_media(&stored).expect("a reference");
    stage.graph.advance(Duration::from_secs(4 * 60));
    for picture in [live, &again] {
        assert_eq!(&*channel.load_media(picture, 9).await.expect("the bytes"), b"a picture");
        let error = channel.load_media(picture, 8).await.expect_err("it is larger");
        assert_eq!(error.class, ErrorClass::PayloadTooLarge);
    }
    stage.graph.advance(Duration::from_secs(60));
    let error = channel.load_media(&again, 9).await.expect_err("it has run out");
    assert_eq!((error.class, error.retryable), (ErrorClass::Rejected, false), "{error}");
    assert!(error.to_string().contains("403"), "{error}");
}

#[tokio::test]
async fn a_picture_on_messenger_is_downloaded_until_its_url_runs_out() {
    let (stage, channel) = messenger().await;
    holds_until_its_url_runs_out(&stage, &channel, GraphProduct::Messenger).await;
}

#[tokio::test]
async fn a_picture_on_instagram_is_downloaded_until_its_url_runs_out() {
    let (stage, channel) = instagram().await;
    holds_until_its_url_runs_out(&stage, &channel, GraphProduct::Instagram).await;
}

#[tokio::test]
async fn a_reference_that_somebody_changed_is_refused() {
    let (_stage, channel) = whatsapp().await;
    for data in
        [json!({ "id": "../me?x=y" }), json!({ "id": "" }), json!({ "url": "https://x.com" }), json!(7)]
    {
        assert!(channel.rehydrate_media(&StoredMediaRef { v: 1, data: data.clone() }).is_err(), "{data}");
        let media = MediaRef { provider: "whatsapp".to_owned(), token: data.clone() };
        let error = channel.load_media(&media, 10).await.expect_err("no id");
        assert_eq!(error.phase, Phase::NotWritten, "{data}");
    }
    assert!(channel.rehydrate_media(&StoredMediaRef { v: 2, data: json!({ "id": "1" }) }).is_err());
    let gone = MediaRef { provider: "whatsapp".to_owned(), token: json!({ "id": "404" }) };
    assert!(channel.load_media(&gone, 10).await.is_err());
}
