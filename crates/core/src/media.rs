//! References to media that a channel keeps for us.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a channel keeps the bytes of an inbound message. Holds no credentials: the channel adds them when it downloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MediaRef {
    /// The id of the provider that made the reference.
    pub provider: String,
    /// The provider's own token: a file id, a URL, or a structure of its own.
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
