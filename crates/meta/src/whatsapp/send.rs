//! Content as the WhatsApp Cloud API takes it.

use botmesh_core::content::{Button, Content, ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use serde_json::{Value, json};

use super::ID;
use crate::file::File;
use crate::limit::Limit;
use crate::text::{clipped, utf16};

/// What is shown on reply buttons and rows, in UTF-16 units.
pub(super) const BUTTON_TITLE: usize = 20;
pub(super) const ROW_TITLE: usize = 24;
const ROW_DESCRIPTION: usize = 72;
/// How many of them there may be, and how long their ids.
const BUTTONS: usize = 3;
const ROWS: usize = 10;
const BUTTON_ID: usize = 256;
const ROW_ID: usize = 200;
/// The text above them.
const BUTTONS_TEXT: usize = 1024;
const LIST_TEXT: usize = 4096;

/// The fields of a send that say what is sent. Media that is a file must have been uploaded.
pub(super) fn fields(content: &Content, list_button: &str) -> Result<Value, ChannelError> {
    let mut fields = match &content.body {
        _ if !content.buttons.is_empty() => with_buttons(content, list_button)?,
        ContentBody::Text { text } => json!({ "type": "text", "text": { "body": text } }),
        ContentBody::Location { latitude, longitude, name } => {
            let mut place = json!({ "latitude": latitude.to_string(), "longitude": longitude.to_string() });
            if let Some(name) = name {
                place["name"] = json!(name);
            }
            json!({ "type": "location", "location": place })
        }
        ContentBody::Reaction { message, emoji } => {
            let emoji = emoji.as_deref().unwrap_or("");
            json!({ "type": "reaction", "reaction": { "message_id": message, "emoji": emoji } })
        }
        ContentBody::Native { channel, payload, .. } if channel == ID && payload.is_object() => {
            payload.clone()
        }
        ContentBody::Native { .. } => return Err(unsupported("this content is not for WhatsApp")),
        body => {
            let Some((kind, media)) = media_of(body) else {
                return Err(unsupported("WhatsApp has no such content"));
            };
            json!({ "type": kind.limit.kind, (kind.limit.kind): object(kind, media)? })
        }
    };
    if let Some(message) = &content.reply_to {
        fields["context"] = json!({ "message_id": message });
    }
    Ok(fields)
}

/// A kind of media, and what WhatsApp takes of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) limit: Limit,
    has_caption: bool,
    has_file_name: bool,
}

const fn limit(kind: &'static str, types: &'static [&'static str], max: u64) -> Limit {
    Limit { channel: "WhatsApp", kind, types, max }
}

const IMAGE: Kind = Kind {
    limit: limit("image", &["image/jpeg", "image/png"], 5 << 20),
    has_caption: true,
    has_file_name: false,
};
const AUDIO: Kind = Kind {
    limit: limit("audio", &["audio/aac", "audio/amr", "audio/mpeg", "audio/mp4", "audio/ogg"], 16 << 20),
    has_caption: false,
    has_file_name: false,
};
const VIDEO: Kind = Kind {
    limit: limit("video", &["video/mp4", "video/3gpp", "video/3gp"], 16 << 20),
    has_caption: true,
    has_file_name: false,
};
const DOCUMENT: Kind =
    Kind { limit: limit("document", &[], 100 << 20), has_caption: true, has_file_name: true };
const STICKER: Kind =
    Kind { limit: limit("sticker", &["image/webp"], 500 << 10), has_caption: false, has_file_name: false };
const STILL_STICKER: Limit = Limit { kind: "sticker that does not move", max: 100 << 10, ..STICKER.limit };

impl Kind {
    /// Whether WhatsApp takes this file. It says so only after it has taken the message, otherwise.
    pub(super) async fn check(&self, file: &File<'_>) -> Result<(), ChannelError> {
        self.limit.check(Some(&file.mime), Some(file.size))?;
        if *self == STICKER && file.size > STILL_STICKER.max && !file.moves().await? {
            return STILL_STICKER.check(None, Some(file.size));
        }
        Ok(())
    }
}

/// The media of a content, if it has some.
pub(super) fn media_of(body: &ContentBody) -> Option<(&'static Kind, &OutboundMedia)> {
    Some(match body {
        ContentBody::Image(media) => (&IMAGE, media),
        ContentBody::Audio(media) => (&AUDIO, media),
        ContentBody::Video(media) => (&VIDEO, media),
        ContentBody::Document(media) => (&DOCUMENT, media),
        ContentBody::Sticker(media) => (&STICKER, media),
        _ => return None,
    })
}

fn object(kind: &Kind, media: &OutboundMedia) -> Result<Value, ChannelError> {
    kind.limit.check(media.mime.as_deref(), None)?;
    let mut object = match &media.source {
        MediaSource::Url(url) => json!({ "link": url }),
        MediaSource::Id(id) => json!({ "id": id }),
        _ => return Err(unsupported("WhatsApp takes media as a URL, a file or an id")),
    };
    match &media.caption {
        Some(caption) if kind.has_caption => object["caption"] = json!(caption),
        Some(_) => return Err(unsupported(format!("WhatsApp shows no caption with {}", kind.limit.kind))),
        None => {}
    }
    if let Some(name) = media.file_name.as_ref().filter(|_| kind.has_file_name) {
        object["filename"] = json!(name);
    }
    Ok(object)
}

/// Up to three choices are buttons, and more are rows of a list. So are choices whose titles do not fit on buttons, and those
/// of a text that is too long for buttons.
fn with_buttons(content: &Content, list_button: &str) -> Result<Value, ChannelError> {
    let (header, text) = match &content.body {
        ContentBody::Text { text } => (None, text.as_str()),
        ContentBody::Image(media) | ContentBody::Video(media) | ContentBody::Document(media) => {
            (media_of(&content.body), media.caption.as_deref().unwrap_or(""))
        }
        _ => {
            return Err(unsupported("WhatsApp shows buttons below texts, images, videos and documents only"));
        }
    };
    if text.trim().is_empty() {
        return Err(unsupported("WhatsApp shows buttons only below a text: give a caption"));
    }
    let buttons = &content.buttons;
    for (number, button) in buttons.iter().enumerate() {
        if button.id.trim() != button.id || button.title.trim().is_empty() {
            let problem = "has a blank around its id, or no title";
            return Err(unsupported(format!("the button `{}` {problem}", button.id)));
        }
        if buttons[..number].iter().any(|other| other.id == button.id) {
            return Err(unsupported(format!("two buttons have the id `{}`", button.id)));
        }
    }
    let fits = |button: &Button| utf16(&button.title) <= BUTTON_TITLE;
    let differ = |button: &Button| buttons.iter().filter(|other| other.title == button.title).count() == 1;
    let as_buttons = buttons.len() <= BUTTONS
        && utf16(text) <= BUTTONS_TEXT
        && buttons.iter().all(|button| fits(button) && differ(button));
    let max_id = if as_buttons || header.is_some() { BUTTON_ID } else { ROW_ID };
    if let Some(long) =
        buttons.iter().find(|button| button.id.is_empty() || button.id.chars().count() > max_id)
    {
        return Err(unsupported(format!(
            "the id of the button `{}` has not 1 to {max_id} characters",
            long.title
        )));
    }
    let mut interactive = if as_buttons || header.is_some() {
        if buttons.len() > BUTTONS {
            return Err(unsupported(format!("WhatsApp shows at most {BUTTONS} buttons below media")));
        }
        let reply = |button: &Button| json!({ "type": "reply", "reply": { "id": button.id, "title": clipped(&button.title, BUTTON_TITLE) } });
        json!({ "type": "button", "action": { "buttons": buttons.iter().map(reply).collect::<Vec<_>>() } })
    } else {
        if buttons.len() > ROWS {
            return Err(unsupported(format!("WhatsApp shows at most {ROWS} choices")));
        }
        let rows: Vec<_> = buttons.iter().map(row).collect();
        let button = clipped(list_button, BUTTON_TITLE);
        json!({ "type": "list", "action": { "button": button, "sections": [{ "rows": rows }] } })
    };
    let max = if interactive["type"] == "list" { LIST_TEXT } else { BUTTONS_TEXT };
    if utf16(text) > max {
        let problem = format!("a text with these buttons has at most {max} characters");
        return Err(ChannelError::new(ErrorClass::PayloadTooLarge, Phase::NotWritten, problem));
    }
    interactive["body"] = json!({ "text": text });
    if let Some((kind, media)) = header {
        let mut object = object(kind, media)?;
        if let Some(object) = object.as_object_mut() {
            object.remove("caption");
        }
        interactive["header"] = json!({ "type": kind.limit.kind, (kind.limit.kind): object });
    }
    Ok(json!({ "type": "interactive", "interactive": interactive }))
}

/// A title that is cut is shown below in full.
pub(super) fn row(button: &Button) -> Value {
    let title = clipped(&button.title, ROW_TITLE);
    let mut row = json!({ "id": button.id, "title": title });
    if title != button.title {
        row["description"] = json!(clipped(&button.title, ROW_DESCRIPTION));
    }
    row
}

pub(super) fn unsupported(problem: impl Into<String>) -> ChannelError {
    ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, problem)
}
