//! Messenger.

use std::sync::Arc;

use async_trait::async_trait;
use botmesh_core::error::{ChannelError, ConfigError, MediaUnavailable};
use botmesh_core::id::ChatId;
use botmesh_core::inbound::Inbound;
use botmesh_core::media::{MediaRef, StoredMediaRef};
use botmesh_core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, SendReceipt, SendRequest,
};
use botmesh_core::{Bytes, CancellationToken};
use botmesh_webhook::axum::Router;
use tokio::sync::watch;

use crate::config::MetaConfig;
use crate::page::{MESSENGER, Page};

/// A page on Messenger. Clones are the same channel: give one to the bot, and serve the router of the other.
///
/// **Chats** have the user's id in the scope of the page.
///
/// **Buttons** are quick replies, thirteen at most; they are gone once one is pressed. There are no captions: send the text
/// as a message of its own.
///
/// **Lost answers** are resolved by the echoes that Messenger posts (subscribe to `message_echoes`): each message carries its
/// key as `metadata`. Echoes of messages that somebody else wrote, such as a person in the inbox, are told as
/// [`Notice::FromMe`](botmesh_core::notice::Notice::FromMe).
///
/// **Hand-over**: what is written while another application has the thread is told as
/// [`Notice::Watched`](botmesh_core::notice::Notice::Watched), and not answered.
#[derive(Clone, Debug)]
pub struct Messenger {
    page: Arc<Page>,
}

impl Messenger {
    /// The page with this id.
    ///
    /// # Errors
    /// Something in the configuration cannot work.
    pub fn new(page_id: impl Into<String>, config: MetaConfig) -> Result<Self, ConfigError> {
        Ok(Self { page: Page::new(&MESSENGER, page_id.into(), config)? })
    }

    /// The webhook's routes; see [`botmesh_webhook::router`].
    pub fn router(&self) -> Router {
        self.page.router()
    }

    /// Shows the user that what they wrote was seen.
    ///
    /// # Errors
    /// The failure of the call. Nobody tries again.
    pub async fn mark_seen(&self, chat: &ChatId) -> Result<(), ChannelError> {
        self.page.act(chat, "mark_seen").await
    }
}

#[async_trait]
impl Provider for Messenger {
    fn id(&self) -> &str {
        MESSENGER.id
    }

    fn capabilities(&self) -> Capabilities {
        self.page.capabilities()
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.page.door.connection()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        self.page.door.run(sink, stop).await
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        self.page.send(request).await
    }

    async fn show_typing(&self, inbound: &Inbound) -> Result<(), ChannelError> {
        self.page.act(&inbound.chat, "typing_on").await
    }

    fn rehydrate_media(&self, stored: &StoredMediaRef) -> Result<MediaRef, MediaUnavailable> {
        self.page.rehydrate_media(stored)
    }

    async fn load_media(&self, media: &MediaRef, max_bytes: usize) -> Result<Bytes, ChannelError> {
        self.page.load_media(media, max_bytes).await
    }
}
