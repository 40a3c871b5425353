//! Albums: several media in one call.

use botmesh_core::content::{AlbumItem, ContentBody};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use serde_json::{Value, json};

use super::{Call, Origin, origin, unsupported};
use crate::telegram::MAX_CAPTION;

pub(super) const METHOD: &str = "sendMediaGroup";

/// What may be in one album.
#[derive(PartialEq, Eq)]
enum Together {
    Pictures,
    Files,
    Audio,
}

impl Call {
    /// With these media, whose files become parts of the form that the media name.
    pub(super) fn album(mut self, items: &[AlbumItem]) -> Result<Self, ChannelError> {
        check(items)?;
        let mut album: Vec<Value> = Vec::with_capacity(items.len());
        for (n, item) in items.iter().enumerate() {
            let (kind, media) = (kind(item)?.0, item.media());
            let source = match origin(media, kind)? {
                Origin::Known(known) => known.to_owned(),
                Origin::File(file) => {
                    let part = format!("file{}", n + 1);
                    let source = format!("attach://{part}");
                    self.files.push((part.into(), file));
                    source
                }
            };
            let mut one = json!({ "type": kind, "media": source });
            if let Some(caption) = media.caption.as_deref().filter(|caption| !caption.is_empty()) {
                one["caption"] = caption.into();
            }
            album.push(one);
        }
        Ok(self.with("media", album))
    }
}

fn check(items: &[AlbumItem]) -> Result<(), ChannelError> {
    if !(2..=ContentBody::MAX_ALBUM).contains(&items.len()) {
        return Err(unsupported(&format!(
            "an album of Telegram has 2 to {} items, and this one has {}",
            ContentBody::MAX_ALBUM,
            items.len()
        )));
    }
    let first = kind(&items[0])?.1;
    for item in items {
        if kind(item)?.1 != first {
            return Err(unsupported(
                "Telegram shows pictures together with videos, but files only with files and audio only with audio; send an \
                 album of each",
            ));
        }
        let units = item.media().caption.as_deref().map_or(0, |caption| caption.encode_utf16().count());
        if units > MAX_CAPTION {
            let detail =
                format!("a caption in the album has {units} characters, and {MAX_CAPTION} is the most");
            return Err(ChannelError::new(ErrorClass::PayloadTooLarge, Phase::NotWritten, detail));
        }
    }
    Ok(())
}

/// What Telegram calls it, and with what it may be.
fn kind(item: &AlbumItem) -> Result<(&'static str, Together), ChannelError> {
    Ok(match item {
        AlbumItem::Image(_) => ("photo", Together::Pictures),
        AlbumItem::Video(_) => ("video", Together::Pictures),
        AlbumItem::Document(_) => ("document", Together::Files),
        AlbumItem::Audio(_) => ("audio", Together::Audio),
        _ => return Err(unsupported("this version cannot send this kind of media in an album to Telegram")),
    })
}
