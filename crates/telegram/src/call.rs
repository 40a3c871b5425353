//! What a bot says, as calls of the Bot API.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use botmesh_core::Bytes;
use botmesh_core::content::{Button, Content, ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::MessageId;
use botmesh_core::markup::{Style, Utf16Span};
use serde_json::{Value, json};

use crate::address::Address;
use crate::client::{Params, Source, Upload};
use crate::local;
use crate::telegram::ID;

mod album;

/// The most bytes of a picture, on any server. As a document it may have more.
const MAX_PHOTO: u64 = 10 << 20;

/// The most bytes of a button's id.
const MAX_BUTTON_ID: usize = 64;

const EDIT: &str = "editMessageText";

/// How many buttons, and how many characters of theirs, fit next to each other.
const ROW: usize = 3;
const ROW_WIDTH: usize = 24;

/// One call, without the files that may go with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) method: Cow<'static, str>,
    pub(crate) params: Params,
    /// Each file with the name of its part in the form.
    pub(crate) files: Vec<(Cow<'static, str>, File)>,
    /// The message that it is about, if it makes no new one.
    pub(crate) about: Option<MessageId>,
    /// Its text without formatting, if it has some: the parameter of the entities, that of the text, and the text.
    plain: Option<(&'static str, &'static str, String)>,
}

/// A file to upload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct File {
    place: Place,
    name: Option<String>,
    mime: Option<String>,
    /// The most bytes of a file of this kind.
    max: u64,
}

/// Where media is.
enum Origin<'a> {
    /// A URL or an id.
    Known(&'a str),
    File(File),
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Path(String),
    Here(Bytes),
}

impl Call {
    /// What sends `content`.
    pub(crate) fn of(address: &Address, content: &Content) -> Result<Self, ChannelError> {
        let mut call = Self::body(address, &content.body)?.formatted(content);
        if let Some(guest) = &address.guest {
            return call.for_guest(guest, content);
        }
        if !content.buttons.is_empty() {
            if matches!(content.body, ContentBody::Album { .. }) {
                return Err(unsupported("an album of Telegram has no buttons"));
            }
            call.params.insert("reply_markup".into(), keyboard(&content.buttons)?);
        } else if matches!(content.body, ContentBody::Edit { .. }) {
            call.params.insert("reply_markup".into(), json!({ "inline_keyboard": [] }));
        }
        if let (Some(message), None) = (&content.reply_to, &call.about) {
            let reply = json!({ "message_id": number(message)?, "allow_sending_without_reply": true });
            call.params.insert("reply_parameters".into(), reply);
        }
        Ok(call)
    }

    fn new(method: &'static str, address: &Address) -> Self {
        Self { method: method.into(), params: address.params(), files: Vec::new(), about: None, plain: None }
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    fn body(address: &Address, body: &ContentBody) -> Result<Self, ChannelError> {
        let call = |method| Self::new(method, address);
        Ok(match body {
            ContentBody::Text { text } => call("sendMessage").with("text", text.as_str()),
            ContentBody::Image(media) => call("sendPhoto").media("photo", media)?,
            ContentBody::Audio(media) if is_voice(media) => call("sendVoice").media("voice", media)?,
            ContentBody::Audio(media) => call("sendAudio").media("audio", media)?,
            ContentBody::Video(media) => call("sendVideo").media("video", media)?,
            ContentBody::Document(media) => call("sendDocument").media("document", media)?,
            ContentBody::Sticker(media) => {
                // Stickers have no caption.
                let bare = OutboundMedia { caption: None, ..media.clone() };
                call("sendSticker").media("sticker", &bare)?
            }
            ContentBody::Album { items } => call(album::METHOD).album(items)?,
            ContentBody::Location { latitude, longitude, name: None } => {
                call("sendLocation").with("latitude", *latitude).with("longitude", *longitude)
            }
            ContentBody::Location { latitude, longitude, name: Some(name) } => call("sendVenue")
                .with("latitude", *latitude)
                .with("longitude", *longitude)
                .with("title", name.as_str())
                .with("address", format!("{latitude}, {longitude}")),
            ContentBody::Edit { message, text } => Self {
                about: Some(message.clone()),
                ..call(EDIT).with("message_id", number(message)?).with("text", text.as_str())
            },
            ContentBody::Reaction { message, emoji } => {
                let reaction = emoji.iter().map(|emoji| reaction(emoji)).collect::<Vec<_>>();
                let call = call("setMessageReaction")
                    .with("message_id", number(message)?)
                    .with("reaction", reaction);
                Self { about: Some(message.clone()), ..call }
            }
            ContentBody::Native { channel, payload, .. } if channel == ID => call("").native(payload)?,
            _ => return Err(unsupported("this version cannot send this kind of content to Telegram")),
        })
    }

    /// Any other method: its name is the parameter `method`, and the chat is added.
    fn native(mut self, payload: &Value) -> Result<Self, ChannelError> {
        let (Some(method), Some(params)) = (payload["method"].as_str(), payload.as_object()) else {
            return Err(unsupported("native content for Telegram is an object with the `method` to call"));
        };
        if method.is_empty() || !method.bytes().all(|c| c.is_ascii_alphanumeric()) {
            return Err(unsupported(&format!("`{method}` is no method of the Bot API")));
        }
        let params = params.iter().filter(|(name, _)| *name != "method");
        self.params.extend(params.map(|(name, value)| (name.clone(), value.clone())));
        Ok(Self { method: method.to_owned().into(), ..self })
    }

    fn media(mut self, field: &'static str, media: &OutboundMedia) -> Result<Self, ChannelError> {
        if let Some(caption) = media.caption.as_deref().filter(|caption| !caption.is_empty()) {
            self = self.with("caption", caption);
        }
        match origin(media, field)? {
            Origin::Known(known) => Ok(self.with(field, known)),
            Origin::File(file) => Ok(Self { files: vec![(field.into(), file)], ..self }),
        }
    }

    /// A guest has one answer, and that is a text.
    fn for_guest(mut self, query: &str, content: &Content) -> Result<Self, ChannelError> {
        let ContentBody::Text { text } = &content.body else {
            return Err(unsupported("a chat that the bot is no member of takes one text as an answer"));
        };
        let mut result = json!({
            "type": "article",
            "id": "1",
            "title": text.chars().take(64).collect::<String>(),
            "input_message_content": { "message_text": text },
        });
        if let Some(entities) = self.params.remove("entities") {
            result["input_message_content"]["entities"] = entities;
        }
        if !content.buttons.is_empty() {
            result["reply_markup"] = keyboard(&content.buttons)?;
        }
        self.plain = None;
        self.method = "answerGuestQuery".into();
        self.params = Params::from_iter([("guest_query_id".into(), query.into()), ("result".into(), result)]);
        Ok(self)
    }

    /// With the formatting of `content`.
    fn formatted(mut self, content: &Content) -> Self {
        let formatted = content.formatted();
        let entities: Vec<Value> = formatted.utf16_spans().iter().filter_map(entity).collect();
        let Some(params) = self.params_of_text() else { return self };
        let (of, text) = match params.contains_key("caption") {
            true => ("caption_entities", "caption"),
            false => ("entities", "text"),
        };
        if !entities.is_empty() && params.contains_key(text) {
            params.insert(of.into(), entities.into());
            self.plain = Some((of, text, formatted.to_plain()));
        }
        self
    }

    /// What has the text or the caption: in an album, the first item.
    fn params_of_text(&mut self) -> Option<&mut Params> {
        if self.method != album::METHOD {
            return Some(&mut self.params);
        }
        self.params.get_mut("media")?.get_mut(0)?.as_object_mut()
    }

    /// The same without formatting, with links written out.
    pub(crate) fn without_formatting(mut self) -> Option<Self> {
        let (entities, text, plain) = self.plain.take()?;
        let params = self.params_of_text()?;
        params.remove(entities);
        params.insert(text.into(), plain.into());
        Some(self)
    }

    /// The same words as the caption of the message, if this is an edit.
    pub(crate) fn for_caption(mut self) -> Option<Self> {
        if self.method != EDIT {
            return None;
        }
        self.method = "editMessageCaption".into();
        for (of_text, of_caption) in [("text", "caption"), ("entities", "caption_entities")] {
            if let Some(value) = self.params.remove(of_text) {
                self.params.insert(of_caption.into(), value);
            }
        }
        self.plain = self.plain.map(|(.., plain)| ("caption_entities", "caption", plain));
        Some(self)
    }

    /// The same without the message that it answers.
    pub(crate) fn without_reply(mut self) -> Option<Self> {
        self.params.remove("reply_parameters").map(|_| self)
    }

    /// The same to the id that a group has now. Its messages have other numbers there: what was answered is left out, and
    /// what is about a message is refused.
    pub(crate) fn moved(mut self, to: i64) -> Result<Self, ChannelError> {
        let names = |name: &str| self.params.contains_key(name);
        if (names("message_id") || names("message_ids")) && !names("from_chat_id") {
            let detail = "the message is of the group as it was before it became a supergroup, and cannot be changed any more";
            return Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail));
        }
        self.params.remove("reply_parameters");
        self.params.insert("chat_id".into(), to.into());
        Ok(self)
    }

    /// Opens the files, which must have at most `max` bytes together. They are read while they are sent.
    pub(crate) async fn uploads(&self, max: u64) -> Result<Vec<Upload>, ChannelError> {
        let mut total = 0;
        let mut uploads = Vec::with_capacity(self.files.len());
        for (part, file) in &self.files {
            let upload = file.open(part.clone()).await?;
            at_most(max.min(file.max), upload.size, "the file has")?;
            total += upload.size;
            uploads.push(upload);
        }
        at_most(max, total, "the files of the album have together")?;
        Ok(uploads)
    }
}

impl File {
    async fn open(&self, part: Cow<'static, str>) -> Result<Upload, ChannelError> {
        let (own_name, size, source) = match &self.place {
            Place::Here(bytes) => (None, bytes.len() as u64, Source::Here(bytes.clone())),
            Place::Path(path) => {
                let name = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
                let (file, size) = local::open(path).await.map_err(|error| unreadable(path, error))?;
                (name, size, Source::File(file))
            }
        };
        let name = self.name.clone().or(own_name).unwrap_or_else(|| part.to_string());
        Ok(Upload { part, name, mime: self.mime.clone(), size, source })
    }
}

fn origin<'a>(media: &'a OutboundMedia, field: &str) -> Result<Origin<'a>, ChannelError> {
    let place = match &media.source {
        MediaSource::Url(known) | MediaSource::Id(known) => return Ok(Origin::Known(known)),
        MediaSource::Path(path) => Place::Path(path.clone()),
        MediaSource::Bytes(bytes) => Place::Here(bytes.clone()),
        _ => return Err(unsupported("this version cannot send media from there to Telegram")),
    };
    let (name, mime) = (media.file_name.clone(), media.mime.clone());
    let max = if field == "photo" { MAX_PHOTO } else { u64::MAX };
    Ok(Origin::File(File { place, name, mime, max }))
}

fn unreadable(path: &str, error: io::Error) -> ChannelError {
    // It will not appear by itself.
    let class = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput => {
            ErrorClass::Rejected
        }
        _ => ErrorClass::Transient,
    };
    ChannelError::new(class, Phase::NotWritten, format!("the file {path} cannot be read")).with_source(error)
}

fn at_most(max: u64, size: u64, whose: &str) -> Result<(), ChannelError> {
    let detail = || format!("{whose} {size} bytes, and {max} is the most");
    match size > max {
        true => Err(ChannelError::new(ErrorClass::PayloadTooLarge, Phase::NotWritten, detail())),
        false => Ok(()),
    }
}

/// Whether it is to be shown as a voice note.
fn is_voice(media: &OutboundMedia) -> bool {
    media.mime.as_deref().is_some_and(|mime| mime.starts_with("audio/ogg"))
}

/// A custom emoji is a number.
fn reaction(emoji: &str) -> Value {
    match emoji.bytes().all(|c| c.is_ascii_digit()) && emoji.len() > 1 {
        true => json!({ "type": "custom_emoji", "custom_emoji_id": emoji }),
        false => json!({ "type": "emoji", "emoji": emoji }),
    }
}

fn entity(span: &Utf16Span<'_>) -> Option<Value> {
    let mut entity = json!({ "offset": span.offset, "length": span.length });
    let name = match span.style {
        Style::Bold => "bold",
        Style::Italic => "italic",
        Style::Strikethrough => "strikethrough",
        Style::Code => "code",
        Style::Pre { language } => {
            if let Some(language) = language {
                entity["language"] = language.as_str().into();
            }
            "pre"
        }
        Style::Link { url } => {
            entity["url"] = url.as_str().into();
            "text_link"
        }
        // It is shown as it is.
        _ => return None,
    };
    entity["type"] = name.into();
    Some(entity)
}

fn number(message: &MessageId) -> Result<i64, ChannelError> {
    message.as_str().parse().map_err(|_| unsupported(&format!("`{message}` is no message of Telegram")))
}

/// The buttons in rows: short ones next to each other.
fn keyboard(buttons: &[Button]) -> Result<Value, ChannelError> {
    let mut rows: Vec<Vec<Value>> = Vec::new();
    let mut width = 0;
    for button in buttons {
        let bytes = button.id.len();
        if bytes == 0 || bytes > MAX_BUTTON_ID {
            return Err(unsupported(&format!(
                "the id of the button `{}` has {bytes} bytes, and Telegram takes 1 to {MAX_BUTTON_ID}; keep what it stands for \
                 in the chat's state, and give the button a short id",
                button.title
            )));
        }
        let length = button.title.chars().count();
        let shown = json!({ "text": button.title, "callback_data": button.id });
        width += length;
        match rows.last_mut() {
            Some(row) if row.len() < ROW && width <= ROW_WIDTH => row.push(shown),
            _ => {
                width = length;
                rows.push(vec![shown]);
            }
        }
    }
    Ok(json!({ "inline_keyboard": rows }))
}

fn unsupported(detail: &str) -> ChannelError {
    ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, detail)
}

#[cfg(test)]
mod tests;
