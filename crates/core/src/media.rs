//! References to media that a channel keeps for us.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a channel keeps the bytes of an inbound message. Holds no credentials: the channel adds them when it downloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MediaRef {
    /// The id of the provider that made the reference.
    pub provider: String,
    /// The provider's own token: a file id, a URL, or a structure of its own. Null where only the inbox's durable form of
    /// the reference is left, and it could not be turned into a token again.
    pub token: Value,
}

/// A reference in the form that the inbox journals: versioned, so that a later release can still read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredMediaRef {
    /// The version of `data`, chosen by the provider.
    pub v: u32,
    /// The provider's data. Never credentials.
    pub data: Value,
}

/// What the inbox keeps of a message's media in place of its live token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Value", into = "Value")]
pub enum JournaledMedia {
    /// The provider can build the reference again.
    Reference(StoredMediaRef),
    /// The provider has no durable form of it, as for view-once media.
    NotDurable,
    /// Not a form that this version knows. Kept as it is: the message runs all the same, without its media.
    Unreadable(Value),
}

const NOT_DURABLE: &str = "not_durable";

impl From<Value> for JournaledMedia {
    fn from(value: Value) -> Self {
        let reference = match &value {
            Value::String(word) if word == NOT_DURABLE => return Self::NotDurable,
            Value::Object(_) => StoredMediaRef::deserialize(&value).ok(),
            _ => None,
        };
        reference.map_or(Self::Unreadable(value), Self::Reference)
    }
}

impl From<JournaledMedia> for Value {
    fn from(media: JournaledMedia) -> Self {
        match media {
            JournaledMedia::Reference(StoredMediaRef { v, data }) => {
                serde_json::json!({ "v": v, "data": data })
            }
            JournaledMedia::NotDurable => NOT_DURABLE.into(),
            JournaledMedia::Unreadable(value) => value,
        }
    }
}
