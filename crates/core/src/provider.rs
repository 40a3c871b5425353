//! What a channel implements.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::content::Content;
use crate::error::{
    ChannelError, ConfigError, ErrorClass, MediaUnavailable, MediaUnavailableReason, Phase, StoreError,
};
use crate::id::{ChatId, EventId, MessageId, RecordId, SendKey};
use crate::inbound::Inbound;
use crate::markup::Markup;
use crate::media::{MediaRef, StoredMediaRef};
use crate::notice::{Moved, Notice};

/// A channel's connection: it delivers inbound events to a sink and sends content.
///
/// The bot runs one provider. Everything it must do about loss, retries, order and duplicates is outside: a provider
/// makes one attempt and says honestly how far it came.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// A short stable name, such as `telegram`. Part of stored media references and of the leadership's name.
    fn id(&self) -> &str;

    /// What the channel can do. Must not change while the bot runs.
    fn capabilities(&self) -> Capabilities;

    /// The name by which users address the bot in groups (`/start@name`), where the channel has such names.
    fn username(&self) -> Option<String> {
        None
    }

    /// How many messages the channel takes in this chat, where groups and private chats differ. The default is
    /// [`Capabilities::chat_rate`].
    fn chat_rate(&self, chat: &ChatId) -> Option<Rate> {
        let _ = chat;
        self.capabilities().chat_rate
    }

    /// Whether the chat or user of this id may get another id, or may have had another one before, as
    /// [`InboundSink::moved`] tells. Only for such ids does the bot ask its store who they are: a channel whose ids stay keeps
    /// the default, `false`. The answer for an id must never change.
    fn may_move(&self, id: &str) -> bool {
        let _ = id;
        false
    }

    /// Whether this is an id of users that is not their own: they may lose it, and somebody else may get it, as a phone number
    /// beside the id of an account. It is among the [`aliases`](crate::inbound::Participant::aliases) of senders whose own id is
    /// known too; the bot remembers that the two are one, so that what is sent to the alias, and what comes from it alone, is of
    /// the same chat. [`may_move`](Self::may_move) must say so of both. By default there is none. The answer for an id must
    /// never change.
    fn is_alias(&self, id: &str) -> bool {
        let _ = id;
        false
    }

    /// The state of the connection, for health checks and leadership.
    fn connection(&self) -> watch::Receiver<ConnectionState>;

    /// Receives events and admits them to `sink` until `stop` is cancelled or the source ends. Returns `Ok` in both
    /// cases. To keep a chat's order, the next event of a chat is admitted after the previous call of `admit` was made.
    ///
    /// An event is confirmed to the channel (a webhook's 200, a poll's offset) only after
    /// [`InboundSink::admit`] returned `Ok`.
    ///
    /// # Errors
    /// The bot runs the provider again after a delay if the error is retryable, and stops otherwise. Two classes say why the
    /// channel closed the connection:
    /// - [`ErrorClass::Conflict`]: the delay is at least 30 s, and a replica that leads lets another one try.
    /// - [`ErrorClass::LoggedOut`]: a replica that leads stands by until somebody gave it a new session; without replicas the
    ///   bot stops, retryable or not.
    ///
    /// # Cancel safety
    /// Dropping the future cuts the connection at once, without goodbyes: another replica may be about to connect. The
    /// provider may be run again later.
    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError>;

    /// Makes one attempt to send. Never retries by itself.
    ///
    /// # Errors
    /// The error's phase decides what happens: only [`Phase::Unknown`] is ambiguous.
    ///
    /// # Cancel safety
    /// Dropping the future counts as [`Phase::Unknown`].
    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError>;

    /// Shows the chat of `inbound` that an answer is being written, for as long as the channel shows it. Does nothing by
    /// default.
    ///
    /// # Errors
    /// The channel's failure. Nobody tries again.
    async fn show_typing(&self, inbound: &Inbound) -> Result<(), ChannelError> {
        let _ = inbound;
        Ok(())
    }

    /// Says what became of a send whose answer was lost. Called only with [`Resolve::Lookup`].
    ///
    /// # Errors
    /// None of its own: a channel that cannot say answers [`Resolution::Unknown`].
    async fn resolve(&self, token: &SendKey, chat: &ChatId) -> Resolution {
        let _ = (token, chat);
        Resolution::Unknown
    }

    /// Turns a media reference into the form that is journaled, or `None` where it cannot outlive the process. Never put
    /// credentials into it; the token itself is not journaled. A form of more than 64 KiB counts as `None`.
    fn serialize_media(&self, media: &MediaRef) -> Option<StoredMediaRef> {
        Some(StoredMediaRef { v: 1, data: media.token.clone() })
    }

    /// Builds the reference again before a replayed handler runs. Does not need the connection. Called only for what the
    /// provider of this id wrote, but by any version of it, and somebody may have changed it since: check everything.
    ///
    /// # Errors
    /// [`MediaUnavailableReason::RehydrateFailed`]: a stored value that is invalid or of an unknown version.
    fn rehydrate_media(&self, stored: &StoredMediaRef) -> Result<MediaRef, MediaUnavailable> {
        if stored.v != 1 {
            return Err(MediaUnavailable::new(
                MediaUnavailableReason::RehydrateFailed,
                format!("version {} of the stored reference is unknown", stored.v),
            ));
        }
        Ok(MediaRef { provider: self.id().to_owned(), token: stored.data.clone() })
    }

    /// Downloads media of at most `max_bytes`; give up as soon as it is clear that it is larger.
    ///
    /// # Errors
    /// A channel without media, a failed download, or [`ErrorClass::PayloadTooLarge`].
    async fn load_media(&self, media: &MediaRef, max_bytes: usize) -> Result<Bytes, ChannelError> {
        let _ = (media, max_bytes);
        Err(ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, "this channel has no media"))
    }
}

/// Where a provider hands over what it received.
#[async_trait]
pub trait InboundSink: Send + Sync + 'static {
    /// Takes an event over. Resolves only after the journal commit, so that the event may be confirmed to the channel.
    /// Waits while the bot has no room, which is how back-pressure reaches the channel.
    ///
    /// The order of a chat is the order in which this was called (and first polled), not the order in which the calls
    /// return.
    ///
    /// # Errors
    /// The event was not taken over: do not confirm it, let the channel deliver it again.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have taken the event over; delivering it again is always safe.
    async fn admit(&self, inbound: Inbound) -> Result<Admitted, AdmitError>;

    /// Takes over an event that the channel cannot read, as a dead letter, so that it may be confirmed and what comes after
    /// it goes on. `raw` is the event as it came, of which the bot keeps the first 64 KiB.
    ///
    /// # Errors
    /// As [`admit`](Self::admit). By default it is [`AdmitError::Invalid`].
    ///
    /// # Cancel safety
    /// A dropped call may or may not have taken the event over; delivering it again is always safe.
    async fn poison(&self, event: EventId, raw: &[u8], problem: &str) -> Result<Admitted, AdmitError> {
        let _ = (event, raw);
        Err(AdmitError::Invalid(format!("it cannot be read ({problem}), and nobody keeps it")))
    }

    /// Takes over that the channel has a message of this bot: it sent back its own copy, or a status. Channels with
    /// [`Resolve::Echo`] call it with the token of each such event, in any order and as often as they come; a send whose
    /// answer was lost is resolved by it. Tokens that the bot does not know are ignored; so is everything by default.
    ///
    /// # Errors
    /// The journal cannot be read or written, or the send is still under way and nobody knows whether this process will live to
    /// record it: let the channel deliver the event again.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have taken effect; delivering the event again is always safe.
    async fn confirm_sent(&self, token: &SendKey, receipt: SendReceipt) -> Result<(), AdmitError> {
        let _ = (token, receipt);
        Ok(())
    }

    /// Takes over that a chat or a user goes on under another id: what is kept of it stays where it is, under the first id,
    /// events from the new one belong to it, and sends to it go to the new one. Call it before the events that tell of it, and
    /// those of the new id that came with them, are admitted; in any order and as often as it is told. Both ids must be such
    /// that [`Provider::may_move`] says so. By default it is ignored.
    ///
    /// # Errors
    /// It is not recorded: do not confirm the events that tell of it, let the channel deliver them again.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have taken effect; telling it again is always safe.
    async fn moved(&self, moved: Moved) -> Result<(), AdmitError> {
        let _ = moved;
        Ok(())
    }

    /// Takes what the channel tells beside its events, and returns at once. By default it is ignored.
    fn notice(&self, notice: Notice) {
        let _ = notice;
    }
}

/// The proof that an event is in the bot's hands (and in the journal, with durability).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Admitted {
    /// The event's record.
    pub record: RecordId,
    /// Whether the event had been taken over before; then nothing more happens with it.
    pub duplicate: bool,
}

/// An event was not taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// The journal cannot be written. Deliver the event again later.
    #[error("the event is not journaled; let the channel deliver it again")]
    Journal(#[from] StoreError),
    /// The bot is stopping. Another process or the next start will take the event.
    #[error("the bot is stopping; let the channel deliver the event again")]
    Stopping,
    /// This replica may not use the channel any more. The one that may will get the event: do not confirm it.
    #[error("another replica holds the channel's connection; let the channel deliver the event again")]
    NotLeader,
    /// The event is journaled, but the coordinator gave it no place in the order of its chat in time. It may be handled; deliver
    /// it again all the same, before anything else of its chat.
    #[error("the event has no place in the order of its chat; let the channel deliver it again")]
    NoPlace,
    /// The event can never be taken over: an id is empty or longer than 512 bytes, a place is none, or it is larger than the
    /// journal's backend takes. Do not deliver it again.
    #[error("the event cannot be taken over: {0}")]
    Invalid(String),
}

/// The state of a channel's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionState {
    /// Not connected and not trying.
    Closed,
    /// Trying.
    Connecting,
    /// Ready to send and receive.
    Open,
}

/// What a channel can do.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Only one process may be connected at a time, as with long polling. Default `false`.
    pub exclusive_session: bool,
    /// The longest text. `None` if the channel has no limit. Default `None`.
    pub text_limit: Option<TextLimit>,
    /// The longest caption. Longer ones follow their media as a text, as do all of stickers. Default `None`.
    pub caption_limit: Option<TextLimit>,
    /// Whether audio has captions. Where it has none, they follow it as a text. Default `true`.
    pub audio_captions: bool,
    /// Whether it takes an album ([`ContentBody::Album`](crate::content::ContentBody::Album)) as one send. Where it does not, the
    /// bot makes a message of each item. Default `false`.
    pub albums: bool,
    /// How formatting is shown. Default [`Markup::Plain`].
    pub markup: Markup,
    /// How many messages it takes in all chats together. The bot keeps to it by itself. Default `None`: any number.
    pub rate: Option<Rate>,
    /// How many it takes in one chat. Where that depends on the chat, see [`Provider::chat_rate`]. Default `None`.
    pub chat_rate: Option<Rate>,
    /// How a send whose answer was lost can be resolved. Default [`Resolve::Never`].
    pub resolve: Resolve,
    /// For how long the channel may deliver an event again. A bot that remembers its events for a shorter time tells so when it
    /// starts. Default `None`: nobody knows.
    pub redelivery: Option<Duration>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            exclusive_session: false,
            text_limit: None,
            caption_limit: None,
            audio_captions: true,
            albums: false,
            markup: Markup::Plain,
            rate: None,
            chat_rate: None,
            resolve: Resolve::Never,
            redelivery: None,
        }
    }
}

/// At most so many messages in any span of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many messages; 0 counts as 1.
    pub messages: u32,
    /// In how long a time.
    pub per: Duration,
}

impl Rate {
    /// At most `messages` in any span of the length `per`.
    pub const fn new(messages: u32, per: Duration) -> Self {
        Self { messages, per }
    }

    /// Checks that it is one: at least one message, in a time that is not zero.
    ///
    /// # Errors
    /// If it is none, under the name of `field`.
    pub fn check(self, field: &str) -> Result<(), ConfigError> {
        if self.messages > 0 && !self.per.is_zero() {
            return Ok(());
        }
        let problem = format!("{} messages in {:?} is no rate", self.messages, self.per);
        Err(ConfigError::new(field, problem, "give at least one message, and a time that is not zero"))
    }
}

/// The longest text of a channel, in the channel's own unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimit {
    /// How many units.
    pub max: usize,
    /// What is counted.
    pub unit: TextUnit,
}

impl TextLimit {
    /// The length of `text` in this unit.
    pub fn measure(self, text: &str) -> usize {
        match self.unit {
            TextUnit::Bytes => text.len(),
            TextUnit::CodePoints => text.chars().count(),
            TextUnit::Utf16 => text.encode_utf16().count(),
        }
    }
}

/// What a channel counts in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextUnit {
    /// UTF-8 bytes.
    Bytes,
    /// Unicode scalar values.
    CodePoints,
    /// UTF-16 code units.
    Utf16,
}

/// How a send whose answer was lost can be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolve {
    /// Not at all: the policy for ambiguous sends decides.
    Never,
    /// [`Provider::resolve`] can look it up by the send's token.
    Lookup,
    /// The channel drops a second send with the same token within this time, so that sending again is safe.
    Dedupe {
        /// How long the channel remembers a token.
        window: Duration,
    },
    /// The channel sends back the token with its own copy or status of the message; the provider hands it to
    /// [`InboundSink::confirm_sent`].
    Echo {
        /// How long to wait for it.
        wait: Duration,
    },
}

/// What became of a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It was delivered to the channel.
    Sent(SendReceipt),
    /// It was not delivered.
    NotSent,
    /// The channel cannot say.
    Unknown,
}

/// One attempt to send.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SendRequest<'a> {
    /// To which chat.
    pub chat: &'a ChatId,
    /// What.
    pub content: &'a Content,
    /// The send's token, the same at every attempt. Present only if [`Capabilities::resolve`] asks for one.
    pub token: Option<&'a SendKey>,
}

impl<'a> SendRequest<'a> {
    /// A request without a token.
    pub fn new(chat: &'a ChatId, content: &'a Content) -> Self {
        Self { chat, content, token: None }
    }

    /// With the send's token.
    #[must_use]
    pub fn with_token(mut self, token: &'a SendKey) -> Self {
        self.token = Some(token);
        self
    }
}

/// The channel took a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendReceipt {
    /// The channel's id of the message.
    pub message: MessageId,
}
