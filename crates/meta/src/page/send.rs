//! Content as Messenger and Instagram take it.

use botmesh_core::content::{Button, Content, ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use serde_json::{Value, json};

use crate::text::clipped;

/// What is shown on a quick reply, in UTF-16 units, and how many there may be.
const TITLE: usize = 20;
const REPLIES: usize = 13;
/// What a quick reply may carry, in characters.
const PAYLOAD: usize = 1000;

/// The `message` of a send. Media that is a file must have been uploaded.
pub(super) fn message(channel: &str, content: &Content) -> Result<Value, ChannelError> {
    let mut message = match &content.body {
        ContentBody::Text { text } => json!({ "text": text }),
        ContentBody::Native { channel: of, payload, .. } if of == channel && payload.is_object() => {
            payload.clone()
        }
        body => {
            let Some((kind, media)) = media_of(body) else {
                return Err(unsupported(format!("{channel} has no such content")));
            };
            json!({ "attachment": { "type": kind, "payload": payload(media)? } })
        }
    };
    if !content.buttons.is_empty() {
        message["quick_replies"] = quick_replies(&content.buttons)?;
    }
    Ok(message)
}

/// The media of a content, if it has some, and what Meta calls its kind.
pub(super) fn media_of(body: &ContentBody) -> Option<(&'static str, &OutboundMedia)> {
    Some(match body {
        ContentBody::Image(media) | ContentBody::Sticker(media) => ("image", media),
        ContentBody::Audio(media) => ("audio", media),
        ContentBody::Video(media) => ("video", media),
        ContentBody::Document(media) => ("file", media),
        _ => return None,
    })
}

fn payload(media: &OutboundMedia) -> Result<Value, ChannelError> {
    if media.caption.as_ref().is_some_and(|caption| !caption.is_empty()) {
        return Err(unsupported("there are no captions here: send the text as a message of its own"));
    }
    match &media.source {
        MediaSource::Url(url) => Ok(json!({ "url": url, "is_reusable": false })),
        MediaSource::Id(id) => Ok(json!({ "attachment_id": id })),
        _ => Err(unsupported("media is taken as a URL, a file or an id")),
    }
}

fn quick_replies(buttons: &[Button]) -> Result<Value, ChannelError> {
    if buttons.len() > REPLIES {
        return Err(unsupported(format!("at most {REPLIES} choices are shown")));
    }
    if let Some(long) =
        buttons.iter().find(|button| button.id.is_empty() || button.id.chars().count() > PAYLOAD)
    {
        return Err(unsupported(format!(
            "the id of the button `{}` has not 1 to {PAYLOAD} characters",
            long.title
        )));
    }
    let reply = |button: &Button| json!({ "content_type": "text", "title": clipped(&button.title, TITLE), "payload": button.id });
    Ok(buttons.iter().map(reply).collect::<Vec<_>>().into())
}

pub(super) fn unsupported(problem: impl Into<String>) -> ChannelError {
    ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, problem)
}
