//! Albums, and what Telegram takes of them.

use std::fs::File;
use std::path::Path;

use botmesh_core::content::{AlbumItem, Button, Content, MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::{ChatId, MessageId};
use botmesh_core::markup::Formatted;
use botmesh_core::provider::{Provider, SendRequest};
use botmesh_telegram::Telegram;
use botmesh_testing::{FakeTelegram, TelegramFault};
use serde_json::{Value, json};

use crate::support::bot_of;

const ANA: i64 = 5_025_045_066;

async fn send(bot: &Telegram, content: Content) -> Result<MessageId, ChannelError> {
    let chat = ChatId::from(ANA.to_string());
    Ok(bot.send(SendRequest::new(&chat, &content)).await?.message)
}

fn media(source: MediaSource) -> OutboundMedia {
    OutboundMedia { source, caption: None, mime: None, file_name: None }
}

fn url() -> OutboundMedia {
    media(MediaSource::Url("https://example.org/a".into()))
}

/// A file of this size that takes no room.
fn file(folder: &Path, name: &str, size: u64) -> OutboundMedia {
    let path = folder.join(name);
    File::create(&path).and_then(|file| file.set_len(size)).expect("a file");
    media(MediaSource::Path(path.display().to_string()))
}

#[tokio::test]
async fn files_bytes_urls_and_ids_are_one_album() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let folder = tempfile::tempdir().expect("a folder");
    let drawn = OutboundMedia {
        file_name: Some("chart.png".into()),
        caption: Some("a chart".into()),
        ..media(MediaSource::Bytes(vec![7; 1000].into()))
    };
    let album = Content::album([
        AlbumItem::Image(file(folder.path(), "cat.jpg", 300_000)),
        AlbumItem::Image(url()),
        AlbumItem::Video(media(MediaSource::Id("BAAC".into()))),
        AlbumItem::Image(drawn),
    ]);
    let first = send(&bot, album.with_text(Formatted::parse("**Our** trip"))).await.expect("an album");
    let done = &server.done("sendMediaGroup")[0];
    assert_eq!(
        Some(first.to_string()),
        done.message.map(|id| id.to_string()),
        "it is known by its first message"
    );
    assert_eq!(
        done.params["media"],
        json!([
            {
                "type": "photo", "media": "attach://file1", "caption": "Our trip",
                "caption_entities": [{ "type": "bold", "offset": 0, "length": 3 }],
            },
            { "type": "photo", "media": "https://example.org/a" },
            { "type": "video", "media": "BAAC" },
            { "type": "photo", "media": "attach://file4", "caption": "a chart" },
        ])
    );
    let part = |part: &str, name: &str, size| (part.to_owned(), name.to_owned(), size);
    assert_eq!(done.files, [part("file1", "cat.jpg", 300_000), part("file4", "chart.png", 1000)]);
    assert_eq!(ana.replies(), ["Our trip"]);

    let known = Content::album([AlbumItem::Document(url()), AlbumItem::Document(url())]).in_reply_to(first);
    send(&bot, known).await.expect("an album without files, as an answer");
}

#[tokio::test]
async fn what_telegram_does_not_show_together_is_refused_before_anything_is_sent() {
    let server = FakeTelegram::start().await;
    let (_ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let folder = tempfile::tempdir().expect("a folder");
    let (image, video) = (AlbumItem::Image(url()), AlbumItem::Video(url()));
    let (document, audio) = (AlbumItem::Document(url()), AlbumItem::Audio(url()));
    let two = || [image.clone(), video.clone()];
    let long = OutboundMedia { caption: Some("a".repeat(1025)), ..url() };
    let large = |name| AlbumItem::Document(file(folder.path(), name, 1100 << 20));
    let missing = media(MediaSource::Path(folder.path().join("none").display().to_string()));
    for (what, album, class) in [
        ("one", Content::album([image.clone()]), ErrorClass::UnsupportedContent),
        ("eleven", Content::album(vec![image.clone(); 11]), ErrorClass::UnsupportedContent),
        ("a file", Content::album([image.clone(), document.clone()]), ErrorClass::UnsupportedContent),
        ("audio", Content::album([document, audio]), ErrorClass::UnsupportedContent),
        (
            "buttons",
            Content::album(two()).with_buttons([Button::new("y", "Yes")]),
            ErrorClass::UnsupportedContent,
        ),
        ("a caption", Content::album([image.clone(), AlbumItem::Image(long)]), ErrorClass::PayloadTooLarge),
        (
            "a picture",
            Content::album([image.clone(), AlbumItem::Image(file(folder.path(), "big.jpg", (10 << 20) + 1))]),
            ErrorClass::PayloadTooLarge,
        ),
        ("together", Content::album([large("a.iso"), large("b.iso")]), ErrorClass::PayloadTooLarge),
        ("none", Content::album([image.clone(), AlbumItem::Image(missing)]), ErrorClass::Rejected),
    ] {
        let error = send(&bot, album).await.expect_err(what);
        assert_eq!(
            (error.class, error.phase, error.retryable),
            (class, Phase::NotWritten, false),
            "{what}: {error}"
        );
    }
    assert!(server.calls().is_empty());
    send(&bot, Content::album(two())).await.expect("pictures and videos are fine");
}

#[tokio::test]
async fn an_album_whose_formatting_is_refused_arrives_plain_with_its_files() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let drawn = || AlbumItem::Image(media(MediaSource::Bytes(vec![7; 10].into())));
    let album =
        Content::album([drawn(), drawn()]).with_text(Formatted::parse("see [it](https://example.org)"));
    server.fault_next("sendMediaGroup", TelegramFault::refuse(400, "Bad Request: can't parse entities: no"));
    send(&bot, album).await.expect("an album");
    assert_eq!(ana.replies(), ["see it (https://example.org)"]);
    let done = &server.done("sendMediaGroup")[0];
    assert_eq!((done.files.len(), &done.params["media"][0]["caption_entities"]), (2, &Value::Null));
}

#[tokio::test]
async fn an_album_of_which_some_may_have_arrived_is_unknown_and_another_refusal_is_not() {
    let server = FakeTelegram::start().await;
    let (_ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let album = || Content::album([AlbumItem::Image(url()), AlbumItem::Image(url())]);
    let partly =
        r#"Bad Request: failed to send message #2 with the error message "Too Many Requests: retry after 8""#;
    for (fault, phase, retryable) in [
        (TelegramFault::refuse(400, partly), Phase::Unknown, false),
        (TelegramFault::LoseAnswer, Phase::Unknown, true),
        (TelegramFault::flood(7), Phase::Answered, true),
        (
            TelegramFault::refuse(400, "Bad Request: wrong file identifier/HTTP URL specified"),
            Phase::Answered,
            false,
        ),
    ] {
        server.fault_next("sendMediaGroup", fault);
        let error = send(&bot, album()).await.expect_err("a fault");
        assert_eq!((error.phase, error.retryable), (phase, retryable), "{error}");
    }
}

#[tokio::test]
async fn the_server_takes_no_album_that_names_a_file_which_is_not_there() {
    let server = FakeTelegram::start().await;
    let (_ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let photo = |media: &str| json!({ "type": "photo", "media": media });
    for (album, is_fine) in [
        (json!([photo("AgAC"), photo("https://example.org/a")]), true),
        (json!([photo("AgAC"), photo("attach://file2")]), false),
        (json!([photo("AgAC"), photo("")]), false),
        (json!([photo("AgAC")]), false),
        (json!([photo("AgAC"), { "type": "audio", "media": "CQAC" }]), false),
        (json!([photo("AgAC"), { "type": "sticker", "media": "CAAC" }]), false),
    ] {
        let answer = bot.call("sendMediaGroup", json!({ "chat_id": ANA, "media": album })).await;
        assert_eq!(answer.is_ok(), is_fine, "{album}: {answer:?}");
    }
}
