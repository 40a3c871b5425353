//! What becomes of a conversation when another replica takes its chat.

mod decide;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::core::content::Content;
use crate::core::error::ConfigError;
use crate::core::id::ConversationKey;
use crate::dispatch::Ctx;
use crate::egress::Boxed;
use crate::texts::is_empty;
use crate::{Error, Result};
pub(crate) use decide::{Decision, Feed, Found, Message, Standing, decide};

/// What becomes of a conversation when another replica takes its chat: the one that ran it crashed, was stopped for a
/// deploy, stood still for longer than its lease, or cut a step short.
///
/// [Persistent](crate::Flow::persistent) flows and [replayable](crate::Conversation::replayable) conversations always go on
/// from their checkpoints; this is about the others. In files, durations are texts such as `"10m"` or whole milliseconds,
/// and unknown fields are refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HandoverConfig {
    /// Flows that are not persistent. Default [`HandoverFlows::Drop`].
    pub flows: HandoverFlows,
    /// Conversations whose code waits in memory, flows whose state is not plain data, and forwarded flows that changed.
    /// Default [`Fallback::Drop`].
    pub fallback: Fallback,
    /// How long after its last write a forwarded flow may be taken over; while it waits, never shorter than the wait's own
    /// timeout. Default 5 min.
    #[serde(with = "botmesh_core::duration")]
    pub ttl: Duration,
    /// What [`Fallback::Notify`] says. Default: a built-in text in the chat's language. In files a text, or a whole content.
    #[serde(deserialize_with = "text_or_content")]
    pub notify_message: Option<Content>,
    /// The largest answer, as JSON, that is kept in a checkpoint while a step works on it, for a bot without durability. With
    /// durability the inbox has it. Default 16 KiB.
    pub max_answer_bytes: usize,
}

impl Default for HandoverConfig {
    fn default() -> Self {
        Self {
            flows: HandoverFlows::Drop,
            fallback: Fallback::Drop,
            ttl: Duration::from_secs(5 * 60),
            notify_message: None,
            max_answer_bytes: 16 << 10,
        }
    }
}

fn text_or_content<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Content>, D::Error> {
    struct Message;
    impl<'de> Visitor<'de> for Message {
        type Value = Option<Content>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(r#"a text, or a content such as {"body": {"type": "text", "text": "Sorry!"}}"#)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(text.into()))
        }
        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_any(self)
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            Content::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }
    deserializer.deserialize_any(Message)
}

/// What becomes of flows that are not persistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandoverFlows {
    /// They are lost: the message is handled as any other.
    #[default]
    Drop,
    /// They go on: a checkpoint that expires is written at each step. Turn it on once every replica runs a version that
    /// knows it, and off before going back to an older one.
    Forward,
}

/// What becomes of a conversation that cannot go on elsewhere.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fallback {
    /// It is lost: the message is handled as any other.
    #[default]
    Drop,
    /// The user is told so, and the message is done.
    Notify,
    /// It begins again, with what it was entered with. What ran before its first question runs again.
    Restart,
    /// This decides; see [`Fallback::function`].
    #[serde(skip)]
    Function(FallbackFunction),
}

/// The function of a [`Fallback`].
pub type FallbackFunction = Arc<dyn Fn(Interrupted, Ctx) -> Boxed<Result<bool, Error>> + Send + Sync>;

impl Fallback {
    /// Lets a function decide. It returns `true` if it took the message, and `false` if the message is to be handled as any
    /// other. An error is one of the handler.
    pub fn function<F, Fut>(decide: F) -> Self
    where
        F: Fn(Interrupted, Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, Error>> + Send + 'static,
    {
        Self::Function(Arc::new(move |interrupted, ctx| Box::pin(decide(interrupted, ctx))))
    }
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drop => "Drop",
            Self::Notify => "Notify",
            Self::Restart => "Restart",
            Self::Function(_) => "Function",
        })
    }
}

/// A conversation that cannot go on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Interrupted {
    /// Whose it is.
    pub conversation: ConversationKey,
    /// The name of the flow or conversation.
    pub name: String,
    /// Why it cannot go on.
    pub reason: InterruptedReason,
    /// The step it stood at; `None` if it has no steps, or if nobody knows.
    pub step: Option<String>,
    /// The state of a flow, or what a conversation was entered with, as far as it is known.
    pub state: Option<Value>,
}

/// Why a conversation cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InterruptedReason {
    /// Its code or its state was in the memory of the replica that ran it.
    InMemory,
    /// The flow has other steps here than where it was written down.
    Changed,
}

/// What became of a conversation that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandoverOutcome {
    /// It went on.
    Resumed,
    /// Its user was told that it is over.
    Notified,
    /// It began again.
    Restarted,
    /// The function took the message.
    Taken,
    /// It is lost; the message was handled as any other.
    Dropped,
}

impl HandoverConfig {
    /// With these flows.
    #[must_use]
    pub fn with_flows(mut self, flows: HandoverFlows) -> Self {
        self.flows = flows;
        self
    }

    /// With this fallback.
    #[must_use]
    pub fn with_fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// With this lifetime of forwarded flows.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// With this message.
    #[must_use]
    pub fn with_notify_message(mut self, message: impl Into<Content>) -> Self {
        self.notify_message = Some(message.into());
        self
    }

    /// With this limit of an answer in a checkpoint.
    #[must_use]
    pub fn with_max_answer_bytes(mut self, bytes: usize) -> Self {
        self.max_answer_bytes = bytes;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.ttl.is_zero() {
            return Err(ConfigError::new(
                "coordination.handover.ttl",
                "is 0, so that no flow could ever be taken over",
                "set for example \"10m\", or `flows: drop`",
            ));
        }
        if self.notify_message.is_some() && !matches!(self.fallback, Fallback::Notify) {
            return Err(ConfigError::new(
                "coordination.handover.notify_message",
                "has no effect, because the fallback says nothing",
                "set `fallback: notify`, or leave the message out",
            ));
        }
        if self.notify_message.as_ref().is_some_and(is_empty) {
            return Err(ConfigError::new(
                "coordination.handover.notify_message",
                "is empty, so that no user would learn anything",
                "write a text, or leave it out for the built-in one",
            ));
        }
        Ok(())
    }
}
