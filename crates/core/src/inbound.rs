//! What arrives from a channel.

use serde::{Deserialize, Serialize};

use crate::id::{ChatId, ConversationKey, EventId, MessageId, ParticipantId, RecordId, push_escaped};
use crate::media::MediaRef;
use crate::time::Timestamp;

/// One event of a channel, already in botmesh's words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inbound {
    /// The channel's id of the event; a redelivery carries the same one.
    pub event: EventId,
    /// The chat, under its canonical id: the first one that it was known by.
    pub chat: ChatId,
    /// Who wrote. `None` where the channel does not say, as in channel posts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Participant>,
    /// Whether several people share the chat.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub group: bool,
    /// When the channel says that it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_at: Option<Timestamp>,
    /// The channel's id of the message, where it is not that of the event: what an answer, a reaction or an edit names. Of
    /// a pressed button, the message that it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<MessageId>,
    /// The message that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<MessageId>,
    /// What else the channel says of it, in the channel's own form: the advertisement it came by, the answers of a form.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub extra: serde_json::Value,
    /// The ids that it came with, where the chat or the sender had others before. The bot sets it; channels leave it empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// What it is.
    pub body: InboundBody,
}

/// The ids that an event came with from a chat or a sender who [moved](crate::notice::Moved).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// What the channel called the chat.
    pub chat: ChatId,
    /// What it called the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<ParticipantId>,
}

/// Somebody who writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participant {
    /// The canonical id.
    pub id: ParticipantId,
    /// Other ids under which the channel may know the same person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<ParticipantId>,
    /// The name they show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The language they use, as a BCP 47 tag such as `es` or `pt-BR`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

impl Participant {
    /// A participant of whom only the id is known.
    pub fn new(id: impl Into<ParticipantId>) -> Self {
        Self { id: id.into(), aliases: Vec::new(), name: None, language: None }
    }
}

/// The kinds of inbound events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum InboundBody {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture.
    Image(InboundMedia),
    /// A voice note or an audio file.
    Audio(InboundMedia),
    /// A video.
    Video(InboundMedia),
    /// A file.
    Document(InboundMedia),
    /// A sticker.
    Sticker(InboundMedia),
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
    /// A contact card.
    Contact {
        /// The name on the card.
        name: String,
        /// The phone numbers on it.
        phones: Vec<String>,
    },
    /// A reaction to a message.
    Reaction {
        /// The message it is about.
        message: MessageId,
        /// The emoji; `None` if the reaction was taken back.
        emoji: Option<String>,
    },
    /// A pressed button or a chosen row of a list.
    Interaction {
        /// The id given to the button when it was sent.
        id: String,
        /// What the user saw on it.
        #[serde(default)]
        title: String,
    },
    /// A vote in a poll; empty options take the vote back.
    PollVote {
        /// The poll.
        poll: MessageId,
        /// What was chosen.
        options: Vec<String>,
    },
    /// A message was edited. Not routed to handlers of messages.
    Edit {
        /// The message that was edited.
        message: MessageId,
        /// What it says now.
        text: String,
    },
    /// Something happened in the chat: a member joined, the group moved, the bot was blocked.
    System {
        /// What happened, in the channel's word.
        event: String,
        /// Details in the channel's own form.
        #[serde(default)]
        detail: serde_json::Value,
    },
    /// A kind the channel does not know how to read.
    Unsupported {
        /// What the channel calls it.
        kind: String,
    },
}

/// A media message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InboundMedia {
    /// Where to get the bytes. They are downloaded only when asked for.
    pub media: MediaRef,
    /// The text under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caption: Option<String>,
    /// The media type, such as `image/jpeg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime: Option<String>,
    /// The file's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
    /// What the messages of one album share. Each of them is an event of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub album: Option<String>,
}

impl InboundMedia {
    /// Media of which only the place is known.
    pub fn new(media: MediaRef) -> Self {
        Self { media, caption: None, mime: None, file_name: None, album: None }
    }
}

impl Inbound {
    /// A text in a private chat whose only participant has the chat's id.
    pub fn text(event: impl Into<EventId>, chat: impl Into<ChatId>, text: impl Into<String>) -> Self {
        Self::private(event, chat, InboundBody::Text { text: text.into() })
    }

    /// Any event in a private chat whose only participant has the chat's id.
    pub fn private(event: impl Into<EventId>, chat: impl Into<ChatId>, body: InboundBody) -> Self {
        let chat = chat.into();
        let sender = Some(Participant::new(chat.as_str()));
        let (written_at, message, reply_to, extra, origin) = Default::default();
        let event = event.into();
        Self { event, chat, sender, group: false, written_at, message, reply_to, extra, origin, body }
    }

    /// What the channel called the chat when the event came: where it is, as opposed to whose it is.
    pub fn address(&self) -> &ChatId {
        self.origin.as_ref().map_or(&self.chat, |origin| &origin.chat)
    }

    /// The channel's id of the message.
    pub fn message_id(&self) -> MessageId {
        self.message.clone().unwrap_or_else(|| self.event.as_str().into())
    }

    /// Which conversation the event belongs to.
    pub fn conversation(&self) -> ConversationKey {
        let participant =
            if self.group { self.sender.as_ref().map(|sender| sender.id.clone()) } else { None };
        ConversationKey { chat: self.chat.clone(), participant }
    }

    /// The id of the event's inbox record. Channels number messages per chat or per participant, and may give a message
    /// and an interaction the same id, so all of them are part of it, under the ids that the event came with.
    pub fn record_id(&self) -> RecordId {
        let kind = match self.body {
            InboundBody::Interaction { .. } => "i",
            InboundBody::Edit { .. } => "e",
            InboundBody::System { .. } => "s",
            _ => "m",
        };
        let mut id = String::with_capacity(48);
        id.push_str(kind);
        push_escaped(&mut id, self.address().as_str());
        if self.group {
            let sender = self.sender.as_ref().map(|sender| &sender.id);
            let sender = self.origin.as_ref().map_or(sender, |origin| origin.sender.as_ref());
            push_escaped(&mut id, sender.map_or("", ParticipantId::as_str));
        }
        push_escaped(&mut id, self.event.as_str());
        RecordId::from(id)
    }

    /// The same event with another token in place of its media's, if it has media.
    #[must_use]
    pub fn with_media_token(&self, token: serde_json::Value) -> Self {
        let mut inbound = self.clone();
        if let Some(body) = inbound.body.media_mut() {
            body.media.token = token;
        }
        inbound
    }

    /// The text a person would read: the text, the caption, or the title of the button they pressed.
    pub fn readable_text(&self) -> &str {
        match &self.body {
            InboundBody::Text { text } => text,
            InboundBody::Interaction { title, .. } => title,
            body => body.media().and_then(|media| media.caption.as_deref()).unwrap_or(""),
        }
    }
}

impl InboundBody {
    /// Whether a user says something with it: a message or a pressed button, not a reaction, an edit or a system event.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Text { .. }
            | Self::Image(_)
            | Self::Audio(_)
            | Self::Video(_)
            | Self::Document(_)
            | Self::Sticker(_)
            | Self::Location { .. }
            | Self::Contact { .. }
            | Self::Interaction { .. }
            | Self::PollVote { .. } => true,
            Self::Reaction { .. } | Self::Edit { .. } | Self::System { .. } | Self::Unsupported { .. } => {
                false
            }
        }
    }

    /// The media of a media message.
    pub fn media(&self) -> Option<&InboundMedia> {
        match self {
            Self::Image(media)
            | Self::Audio(media)
            | Self::Video(media)
            | Self::Document(media)
            | Self::Sticker(media) => Some(media),
            _ => None,
        }
    }

    /// The media of a media message, to change it in place.
    pub fn media_mut(&mut self) -> Option<&mut InboundMedia> {
        match self {
            Self::Image(media)
            | Self::Audio(media)
            | Self::Video(media)
            | Self::Document(media)
            | Self::Sticker(media) => Some(media),
            _ => None,
        }
    }
}
