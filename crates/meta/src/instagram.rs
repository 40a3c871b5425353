//! Instagram.

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
use crate::page::{INSTAGRAM, Page};

/// A professional account on Instagram. Clones are the same channel: give one to the bot, and serve the router of the other.
///
/// As [`Messenger`](crate::Messenger), but a text has at most 1,000 bytes. Whoever uses it through a page of Facebook gives
/// `https://graph.facebook.com` as [base URL](MetaConfig::with_base_url) and the page's token.
///
/// When a user takes a message back, a [`System`](botmesh_core::inbound::InboundBody::System) event `message_deleted` names it:
/// Meta asks that what is kept of it is deleted.
#[derive(Clone, Debug)]
pub struct Instagram {
    page: Arc<Page>,
}

impl Instagram {
    /// The professional account with this id.
    ///
    /// # Errors
    /// Something in the configuration cannot work.
    pub fn new(account_id: impl Into<String>, config: MetaConfig) -> Result<Self, ConfigError> {
        Ok(Self { page: Page::new(&INSTAGRAM, account_id.into(), config)? })
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
impl Provider for Instagram {
    fn id(&self) -> &str {
        INSTAGRAM.id
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
