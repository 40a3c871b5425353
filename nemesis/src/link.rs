//! What a replica and the world say to each other: lines of JSON over TCP.

use serde::{Deserialize, Serialize};

/// The first line of a connection: what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "snake_case")]
pub enum Hello {
    /// Writes to the resource: a [`Write`] a line, each answered by a [`Verdict`].
    Resource {
        /// The replica's name.
        replica: String,
    },
    /// Receives the channel's messages: a [`Frame`] a line, each answered by an [`Ack`] once it is taken over.
    Transport {
        /// The replica's name.
        replica: String,
        /// What it leads.
        name: String,
        /// The number of its leadership.
        n: u64,
        /// The process.
        pid: u32,
    },
    /// Sends over the channel: a [`Post`] a line, each answered by a [`Posted`].
    Posts {
        /// The replica's name.
        replica: String,
    },
}

/// A write of the holder of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The chat.
    pub chat: String,
    /// The fence.
    pub n: u64,
    /// The session that holds the turn.
    pub sid: String,
}

/// What the resource made of a [`Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it was taken.
    pub accepted: bool,
}

/// A message of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Its number, over all chats.
    pub id: u64,
    /// The chat.
    pub chat: String,
}

/// A replica has taken a message over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The message.
    pub id: u64,
}

/// What the bot says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Post {
    /// The chat.
    pub chat: String,
    /// Its text.
    pub text: String,
    /// The send's token.
    pub key: String,
}

/// The channel took a [`Post`], or had it already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    /// The channel's id of it.
    pub message: String,
}
