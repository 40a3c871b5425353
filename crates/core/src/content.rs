//! What a bot sends.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::MessageId;
use crate::markup::{Formatted, Span};

/// One message to send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Content {
    /// What it is.
    pub body: ContentBody,
    /// How its text or caption is shown. A channel sees them only if it says that it takes them
    /// ([`Markup::Spans`](crate::markup::Markup::Spans)); for the others the bot writes them out. Read them by
    /// [`formatted`](Self::formatted).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<Span>,
    /// Buttons or list rows shown below it. A channel without buttons shows numbered choices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buttons: Vec<Button>,
    /// The message it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<MessageId>,
}

/// The kinds of content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ContentBody {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture.
    Image(OutboundMedia),
    /// A voice note or an audio file.
    Audio(OutboundMedia),
    /// A video.
    Video(OutboundMedia),
    /// A file.
    Document(OutboundMedia),
    /// A sticker.
    Sticker(OutboundMedia),
    /// Media shown together. A channel without albums ([`Capabilities::albums`](crate::provider::Capabilities::albums)) gets a
    /// message for each item.
    Album {
        /// The media, from 2 to [`MAX_ALBUM`](Self::MAX_ALBUM). Each may have a caption, and that of the first is the
        /// album's. The bytes of all are journaled together.
        items: Vec<AlbumItem>,
    },
    /// A place.
    Location {
        /// Degrees north.
        latitude: f64,
        /// Degrees east.
        longitude: f64,
        /// The name of the place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Another text and other buttons in place of those of a message that the bot sent.
    Edit {
        /// The message that is changed.
        message: MessageId,
        /// What it says from now on.
        text: String,
    },
    /// Something that only one channel has, such as a message template. Other channels refuse it.
    Native {
        /// The [id](crate::provider::Provider::id) of the channel.
        channel: String,
        /// What is sent, in the channel's own form.
        payload: serde_json::Value,
        /// What a person would read of it.
        #[serde(default)]
        text: String,
    },
    /// A reaction to a message.
    Reaction {
        /// The message it is about.
        message: MessageId,
        /// The emoji; `None` takes the reaction back.
        emoji: Option<String>,
    },
}

/// One of the media of an album. What may be mixed is up to the channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AlbumItem {
    /// A picture.
    Image(OutboundMedia),
    /// An audio file.
    Audio(OutboundMedia),
    /// A video.
    Video(OutboundMedia),
    /// A file.
    Document(OutboundMedia),
}

impl AlbumItem {
    /// Its media.
    pub fn media(&self) -> &OutboundMedia {
        match self {
            Self::Image(media) | Self::Audio(media) | Self::Video(media) | Self::Document(media) => media,
        }
    }

    fn media_mut(&mut self) -> &mut OutboundMedia {
        match self {
            Self::Image(media) | Self::Audio(media) | Self::Video(media) | Self::Document(media) => media,
        }
    }
}

impl ContentBody {
    /// The most items of an album.
    pub const MAX_ALBUM: usize = 10;
}

/// As a message of its own.
impl From<AlbumItem> for ContentBody {
    fn from(item: AlbumItem) -> Self {
        match item {
            AlbumItem::Image(media) => Self::Image(media),
            AlbumItem::Audio(media) => Self::Audio(media),
            AlbumItem::Video(media) => Self::Video(media),
            AlbumItem::Document(media) => Self::Document(media),
        }
    }
}

/// Media to send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutboundMedia {
    /// Where the bytes are.
    pub source: MediaSource,
    /// The text under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caption: Option<String>,
    /// The media type, such as `image/jpeg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime: Option<String>,
    /// The file's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
}

/// Where the bytes of outbound media are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaSource {
    /// A URL that the channel can fetch.
    Url(String),
    /// A file on this host. It must still be there when a send is retried.
    Path(String),
    /// An id that the channel gave to media it already has.
    Id(String),
    /// The bytes themselves. They are journaled with the send, so keep them small: a backend takes about a megabyte. Larger
    /// media belongs into a file.
    Bytes(#[serde(with = "base64")] Bytes),
}

/// A button or a row of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Button {
    /// Comes back in [`InboundBody::Interaction`](crate::inbound::InboundBody::Interaction).
    pub id: String,
    /// What the user sees.
    pub title: String,
}

impl Button {
    /// A button that shows `title` and comes back as `id`.
    pub fn new(id: impl Into<String>, title: impl Into<String>) -> Self {
        Self { id: id.into(), title: title.into() }
    }
}

impl Content {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::from(ContentBody::Text { text: text.into() })
    }

    /// Media that are shown together: 2 to [`ContentBody::MAX_ALBUM`]. Its caption is that of the first.
    pub fn album(items: impl IntoIterator<Item = AlbumItem>) -> Self {
        Self::from(ContentBody::Album { items: items.into_iter().collect() })
    }

    /// With this text or, if it is media, this caption; an empty one is none. Nothing happens if it has neither.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<Formatted>) -> Self {
        let (text, spans) = text.into().into_parts();
        match &mut self.body {
            ContentBody::Text { text: place } | ContentBody::Edit { text: place, .. } => *place = text,
            ContentBody::Image(media)
            | ContentBody::Audio(media)
            | ContentBody::Video(media)
            | ContentBody::Document(media)
            | ContentBody::Sticker(media) => media.caption = Some(text).filter(|text| !text.is_empty()),
            ContentBody::Album { items } => {
                let Some(first) = items.first_mut() else { return self };
                first.media_mut().caption = Some(text).filter(|text| !text.is_empty());
            }
            ContentBody::Location { .. } | ContentBody::Native { .. } | ContentBody::Reaction { .. } => {
                return self;
            }
        }
        self.spans = spans;
        self
    }

    /// The text or the caption with its formatting, in order whatever is in [`spans`](Self::spans).
    pub fn formatted(&self) -> Formatted {
        Formatted::new(self.readable_text(), self.spans.iter().cloned())
    }

    /// With these buttons below it.
    #[must_use]
    pub fn with_buttons(mut self, buttons: impl IntoIterator<Item = Button>) -> Self {
        self.buttons = buttons.into_iter().collect();
        self
    }

    /// As an answer to `message`.
    #[must_use]
    pub fn in_reply_to(mut self, message: impl Into<MessageId>) -> Self {
        self.reply_to = Some(message.into());
        self
    }

    /// The text or the caption.
    pub fn readable_text(&self) -> &str {
        match &self.body {
            ContentBody::Text { text } | ContentBody::Edit { text, .. } => text,
            ContentBody::Image(media)
            | ContentBody::Audio(media)
            | ContentBody::Video(media)
            | ContentBody::Document(media)
            | ContentBody::Sticker(media) => media.caption.as_deref().unwrap_or(""),
            ContentBody::Album { items } => {
                items.first().and_then(|first| first.media().caption.as_deref()).unwrap_or("")
            }
            ContentBody::Location { name, .. } => name.as_deref().unwrap_or(""),
            ContentBody::Native { text, .. } => text,
            ContentBody::Reaction { emoji, .. } => emoji.as_deref().unwrap_or(""),
        }
    }
}

impl From<ContentBody> for Content {
    fn from(body: ContentBody) -> Self {
        Self { body, spans: Vec::new(), buttons: Vec::new(), reply_to: None }
    }
}

impl From<Formatted> for Content {
    fn from(text: Formatted) -> Self {
        Self::text("").with_text(text)
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<&String> for Content {
    fn from(text: &String) -> Self {
        Self::text(text)
    }
}

/// Bytes as a text of JSON.
mod base64 {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Bytes::from).map_err(D::Error::custom)
    }
}
