//! Identifiers. All of them are opaque strings: they are never parsed, never turned into numbers, and two ids are the
//! same only if their bytes are the same (`"1"`, `"01"` and `"1.0"` are three ids).

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! opaque_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text of the id.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        /// The decimal digits, for channels whose ids are numbers.
        impl From<i64> for $name {
            fn from(number: i64) -> Self {
                itoa::Buffer::new().format(number).into()
            }
        }
    };
}

opaque_id!(
    /// A chat of a channel: a private conversation, a group or a broadcast channel.
    ChatId
);
opaque_id!(
    /// Somebody who writes in a chat.
    ParticipantId
);
opaque_id!(
    /// The channel's own id of an inbound event. A redelivery carries the same id, which is how it is recognised.
    EventId
);
opaque_id!(
    /// The channel's id of a message, given when it was sent or received.
    MessageId
);
opaque_id!(
    /// The id of an inbox record: chat, participant, event and kind in one text.
    RecordId
);
opaque_id!(
    /// The idempotency key of a send. One key is one message to the user, however often it is attempted.
    SendKey
);
opaque_id!(
    /// The name under which a process owns records. Stable across restarts of one deployment, unique among the
    /// processes that run at the same time.
    InstanceId
);
opaque_id!(
    /// One life of one coordinator: a random text that no other process and no later life shares.
    SessionId
);

/// Appends `part` so that joined parts can neither collide nor be confused: `%` and `/` are percent-encoded, and the
/// separator `/` goes between.
pub(crate) fn push_escaped(out: &mut String, part: &str) {
    if !out.is_empty() {
        out.push('/');
    }
    let mut rest = part;
    while let Some(at) = memchr::memchr2(b'%', b'/', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        out.push_str(if rest.as_bytes()[at] == b'%' { "%25" } else { "%2F" });
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

/// What a turn, an active conversation and a checkpoint belong to: the chat, and in groups the participant too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConversationKey {
    /// The chat.
    pub chat: ChatId,
    /// The participant, in groups only: everybody in a group has a conversation of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub participant: Option<ParticipantId>,
}

impl ConversationKey {
    /// The key of a private chat.
    pub fn private(chat: impl Into<ChatId>) -> Self {
        Self { chat: chat.into(), participant: None }
    }

    /// The key of one participant of a group.
    pub fn in_group(chat: impl Into<ChatId>, participant: impl Into<ParticipantId>) -> Self {
        Self { chat: chat.into(), participant: Some(participant.into()) }
    }

    /// One text that no other key shares; what stores use as the row's key.
    pub fn encode(&self) -> String {
        let mut text = String::with_capacity(self.chat.as_str().len() + 16);
        text.push('c');
        push_escaped(&mut text, self.chat.as_str());
        if let Some(participant) = &self.participant {
            push_escaped(&mut text, participant.as_str());
        }
        text
    }
}

impl<C: Into<ChatId>> From<C> for ConversationKey {
    fn from(chat: C) -> Self {
        Self::private(chat)
    }
}

impl fmt::Display for ConversationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.participant {
            Some(participant) => write!(f, "{}/{participant}", self.chat),
            None => write!(f, "{}", self.chat),
        }
    }
}
