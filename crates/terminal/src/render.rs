//! Content as text that a person can read.

use std::borrow::Cow;
use std::fmt::Write;

use botmesh_core::content::{Content, ContentBody, MediaSource, OutboundMedia};

/// The content as one or more lines, the buttons as numbered choices below.
pub(crate) fn text(content: &Content) -> String {
    let mut out = match &content.body {
        ContentBody::Text { text } => text.clone(),
        ContentBody::Image(media) => line("image", media),
        ContentBody::Audio(media) => line("audio", media),
        ContentBody::Video(media) => line("video", media),
        ContentBody::Document(media) => line("document", media),
        ContentBody::Sticker(media) => line("sticker", media),
        ContentBody::Location { latitude, longitude, name } => {
            with_caption(format!("[location] {latitude}, {longitude}"), name.as_deref())
        }
        ContentBody::Edit { text, .. } => with_caption("[edit]".into(), Some(text)),
        ContentBody::Reaction { emoji: Some(emoji), .. } => format!("[reaction] {emoji}"),
        ContentBody::Native { channel, text, .. } => with_caption(format!("[{channel}]"), Some(text)),
        ContentBody::Reaction { emoji: None, .. } => "[reaction taken back]".into(),
        _ => "[content that this version cannot show]".into(),
    };
    for (index, button) in content.buttons.iter().enumerate() {
        if !out.is_empty() {
            out.push('\n');
        }
        // Writing to a string cannot fail.
        let _ = write!(out, "{}) {}", index + 1, button.title);
    }
    out
}

fn line(kind: &str, media: &OutboundMedia) -> String {
    let mut out = format!("[{kind}]");
    if let Some(name) = &media.file_name {
        out = with_caption(out, Some(name));
    }
    let place: Cow<'_, str> = match &media.source {
        MediaSource::Url(url) => url.into(),
        MediaSource::Path(path) => path.into(),
        MediaSource::Id(id) => format!("id {id}").into(),
        MediaSource::Bytes(bytes) => format!("{} bytes", bytes.len()).into(),
        _ => "".into(),
    };
    out = with_caption(out, Some(&place));
    with_caption(out, media.caption.as_deref())
}

fn with_caption(mut out: String, caption: Option<&str>) -> String {
    if let Some(caption) = caption.filter(|caption| !caption.is_empty()) {
        out.push(' ');
        out.push_str(caption);
    }
    out
}

/// The text without what would move the cursor or change the screen: control characters but line ends and tabs are
/// shown as symbols.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(harmless) {
        return text.into();
    }
    let symbol = |c: char| match c {
        c if harmless(c) => c,
        '\u{7f}' => '\u{2421}',
        c => char::from_u32(0x2400 + u32::from(c)).filter(|_| c < ' ').unwrap_or(char::REPLACEMENT_CHARACTER),
    };
    text.replace("\r\n", "\n").chars().map(symbol).collect::<String>().into()
}

#[cfg(test)]
mod tests;
