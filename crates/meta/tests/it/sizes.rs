//! What a channel does not take is refused before anything is uploaded, and the refusal says what it takes.

use std::fs::File;

use botmesh_core::content::{ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ErrorClass, Phase};
use botmesh_core::provider::Provider;
use tempfile::TempDir;

use crate::support::{Stage, instagram, messenger, whatsapp};
use crate::whatsapp::{media, send};

type Make = fn(OutboundMedia) -> ContentBody;

const IMAGE: Make = ContentBody::Image;
const AUDIO: Make = ContentBody::Audio;
const VIDEO: Make = ContentBody::Video;
const DOCUMENT: Make = ContentBody::Document;
const STICKER: Make = ContentBody::Sticker;

const MIB: u64 = 1 << 20;

/// A kind of media: the names of files that are taken, one that is not, and how large they may be.
struct Row {
    kind: Make,
    taken: &'static [&'static str],
    refused: Option<&'static str>,
    max: u64,
}

const fn row(kind: Make, taken: &'static [&'static str], refused: Option<&'static str>, max: u64) -> Row {
    Row { kind, taken, refused, max }
}

const WHATSAPP: &[Row] = &[
    row(IMAGE, &["a.jpg", "a.jpeg", "a.png"], Some("a.gif"), 5 * MIB),
    row(AUDIO, &["a.aac", "a.amr", "a.mp3", "a.m4a", "a.ogg"], Some("a.wav"), 16 * MIB),
    row(VIDEO, &["a.mp4", "a.3gp"], Some("a.mov"), 16 * MIB),
    row(DOCUMENT, &["a.pdf", "a.txt", "a.unknown"], None, 100 * MIB),
    row(STICKER, &["a.webp"], Some("a.png"), 100 << 10),
];

const MESSENGER: &[Row] = &[
    row(IMAGE, &["a.jpg", "a.png", "a.gif", "a.webp"], Some("a.pdf"), 25 * MIB),
    row(AUDIO, &["a.mp3", "a.ogg"], Some("a.mp4"), 25 * MIB),
    row(VIDEO, &["a.mp4", "a.mov"], Some("a.mp3"), 25 * MIB),
    row(DOCUMENT, &["a.pdf", "a.unknown"], None, 25 * MIB),
    row(STICKER, &["a.webp"], Some("a.unknown"), 25 * MIB),
];

const INSTAGRAM: &[Row] = &[
    row(IMAGE, &["a.jpg", "a.png", "a.gif"], Some("a.webp"), 8 * MIB),
    row(AUDIO, &["a.aac", "a.m4a", "a.wav", "a.mp4"], Some("a.ogg"), 25 * MIB),
    row(VIDEO, &["a.mp4", "a.avi", "a.mov", "a.webm"], Some("a.3gp"), 25 * MIB),
    row(DOCUMENT, &["a.pdf"], Some("a.zip"), 25 * MIB),
    row(STICKER, &["a.png"], Some("a.webp"), 8 * MIB),
];

fn file(folder: &TempDir, name: &str, bytes: u64) -> OutboundMedia {
    let path = folder.path().join(name);
    File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
    media(MediaSource::Path(path.display().to_string()))
}

async fn holds(channel: &impl Provider, name: &str, rows: &[Row]) {
    let folder = TempDir::new().expect("a folder");
    for Row { kind, taken, refused, max } in rows {
        for name in *taken {
            send(channel, "12345", kind(file(&folder, name, 100))).await.expect(name);
        }
        if *max <= 8 * MIB {
            send(channel, "12345", kind(file(&folder, taken[0], *max))).await.expect("as large as may be");
        }
        let error = send(channel, "12345", kind(file(&folder, taken[0], max + 1)))
            .await
            .expect_err("it is too large");
        assert_eq!((error.class, error.phase), (ErrorClass::PayloadTooLarge, Phase::NotWritten), "{error}");
        for said in [name, &max.to_string(), &(max + 1).to_string(), "make it smaller"] {
            assert!(error.to_string().contains(said), "{said}: {error}");
        }
        let Some(refused) = refused else { continue };
        let error = send(channel, "12345", kind(file(&folder, refused, 100))).await.expect_err(refused);
        assert_eq!(
            (error.class, error.phase),
            (ErrorClass::UnsupportedContent, Phase::NotWritten),
            "{error}"
        );
        for said in [name, "only ", "`mime`"] {
            assert!(error.to_string().contains(said), "{said}: {error}");
        }
    }
}

/// Nothing but what was taken was uploaded.
fn uploads(stage: &Stage, rows: &[Row]) {
    let whole = rows.iter().filter(|row| row.max <= 8 * MIB).count();
    let taken: usize = rows.iter().map(|row| row.taken.len()).sum();
    assert_eq!(stage.graph.media_count(), taken + whole);
    assert_eq!(stage.graph.sent_count(), taken + whole);
}

#[tokio::test]
async fn whatsapp_is_given_no_media_that_it_does_not_take() {
    let (stage, channel) = whatsapp().await;
    holds(&channel, "WhatsApp", WHATSAPP).await;
    uploads(&stage, WHATSAPP);
}

#[tokio::test]
async fn messenger_is_given_no_media_that_it_does_not_take() {
    let (stage, channel) = messenger().await;
    holds(&channel, "Messenger", MESSENGER).await;
    uploads(&stage, MESSENGER);
}

#[tokio::test]
async fn instagram_is_given_no_media_that_it_does_not_take() {
    let (stage, channel) = instagram().await;
    holds(&channel, "Instagram", INSTAGRAM).await;
    uploads(&stage, INSTAGRAM);
}

#[tokio::test]
async fn the_type_of_a_link_counts_where_it_is_said() {
    let (stage, channel) = instagram().await;
    for (mime, is_taken) in [(Some("image/png"), true), (None, true), (Some("image/webp; q=1"), false)] {
        let source = MediaSource::Url("https://example.com/cat".to_owned());
        let linked = OutboundMedia { mime: mime.map(str::to_owned), ..media(source) };
        assert_eq!(send(&channel, "12345", IMAGE(linked)).await.is_ok(), is_taken, "{mime:?}");
    }
    assert_eq!(stage.graph.sent_count(), 2);
}

/// The head of a WebP of so many bytes.
fn webp(kind: &[u8; 4], flags: u8, bytes: usize) -> Vec<u8> {
    let mut webp = [b"RIFF\0\0\0\0WEBP", &kind[..], b"\x0a\0\0\0", &[flags]].concat();
    webp.resize(bytes, 0);
    webp
}

#[tokio::test]
async fn a_sticker_may_be_larger_if_it_moves() {
    let (stage, channel) = whatsapp().await;
    let folder = TempDir::new().expect("a folder");
    let (still, moving) = (100 << 10, 500 << 10);
    for (kind, flags, bytes, is_taken) in [
        (b"VP8X", 0b10, moving, true),
        (b"VP8X", 0b10, moving + 1, false),
        (b"VP8X", 0b01, still + 1, false),
        (b"VP8L", 0b10, still + 1, false),
        (b"VP8L", 0, still, true),
    ] {
        let content = webp(kind, flags, bytes);
        let path = folder.path().join("sticker.webp");
        std::fs::write(&path, &content).expect("a file");
        let of_bytes = OutboundMedia {
            mime: Some("image/webp".to_owned()),
            ..media(MediaSource::Bytes(content.into()))
        };
        for sticker in [media(MediaSource::Path(path.display().to_string())), of_bytes] {
            let sent = send(&channel, "12345", STICKER(sticker)).await;
            assert_eq!(sent.is_ok(), is_taken, "{kind:?} {flags} {bytes}: {sent:?}");
            if let Err(error) = sent {
                assert_eq!(error.class, ErrorClass::PayloadTooLarge);
            }
        }
    }
    assert_eq!(stage.graph.media_count(), 4);
}
