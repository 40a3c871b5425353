//! The WhatsApp Cloud API.

mod address;
mod interactive;
mod media;
mod parse;
mod send;
mod template;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::content::{Content, ContentBody};
use botmesh_core::error::{ChannelError, ConfigError, MediaUnavailable};
use botmesh_core::id::MessageId;
use botmesh_core::inbound::Inbound;
use botmesh_core::markup::Markup;
use botmesh_core::media::{MediaRef, StoredMediaRef};
use botmesh_core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, Rate, Resolve, SendReceipt, SendRequest, TextLimit,
    TextUnit,
};
use botmesh_core::{Bytes, CancellationToken};
use botmesh_webhook::axum::Router;
use botmesh_webhook::axum::http::HeaderMap;
use botmesh_webhook::{Door, Handshake, NotReceived, Sender, Webhook};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::MetaConfig;
use crate::event::deliver;
use crate::file::not_sent;
use crate::graph::Graph;
use crate::graph::refusal::Product;
use crate::hook::{Hook, REDELIVERY};
use crate::lenient::{id, list};
use crate::others::Others;
use crate::receipts::Receipts;
pub use interactive::{WhatsAppFlow, WhatsAppList};
pub use template::Template;

const ID: &str = "whatsapp";

/// The longest text that comes back with a message's statuses, in characters.
const MAX_TOKEN: usize = 512;

/// What Meta takes from a number.
const RATE: Rate = Rate::new(80, Duration::from_secs(1));

/// What it takes from a number for one user: one message every 6 s, of which 45 may come at once.
const CHAT_RATE: Rate = Rate::new(45, Duration::from_secs(45 * 6));

/// A phone number of the WhatsApp Cloud API. Clones are the same channel: give one to the bot, and serve the router of the
/// other.
///
/// **Chats** have the user's id in the scope of the business (`US.1349…`) where Meta tells it, else their phone number. Once a
/// message had both they are one chat, and a send may name either; it keeps the phone number as its name if something was
/// kept under that alone. Sends go to the id. A group's chat is `group:` and its id. When a user
/// changes their number or their id, a [`System`](botmesh_core::inbound::InboundBody::System) event with `from` and `to` in its
/// details comes in the chat that they had: `user_changed_number` or `user_changed_user_id`. The bot goes on with them under the id
/// that they had first.
///
/// **Buttons**: up to three are reply buttons, four to ten are a list; a [`WhatsAppList`] has its choices in groups. A
/// [`WhatsAppFlow`] is a form, and its answers are in the event's `extra`, as are the advertisement that a user came by, and
/// orders.
///
/// **Lost answers** are resolved by the statuses that Meta posts: each send carries its key as `biz_opaque_callback_data`.
///
/// **Statuses** are told as [`Notice::Receipt`](botmesh_core::notice::Notice::Receipt), beside the messages. A message that Meta
/// took may still fail: then the receipt has a failure, such as
/// [`OutsideSessionWindow`](botmesh_core::error::ErrorClass::OutsideSessionWindow).
#[derive(Clone, Debug)]
pub struct WhatsApp {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    number: String,
    graph: Graph,
    hook: Hook,
    door: Door,
    receipts: Receipts,
    others: Others,
    path: String,
    config: MetaConfig,
}

impl WhatsApp {
    /// The phone number with this id, which is not the number itself.
    ///
    /// # Errors
    /// Something in the configuration cannot work.
    pub fn new(phone_number_id: impl Into<String>, config: MetaConfig) -> Result<Self, ConfigError> {
        let number = phone_number_id.into();
        if number.is_empty() || !number.bytes().all(|c| c.is_ascii_digit()) {
            let problem = format!("`{number}` is no id of a phone number");
            let fix = "copy the phone number id from the app's WhatsApp settings";
            return Err(ConfigError::new("meta.phone_number_id", problem, fix));
        }
        let graph = Graph::new(&config.graph, "https://graph.facebook.com", Product::WhatsApp)?;
        config.check_rates()?;
        let (hook, path) = (config.hook()?, config.path("/webhooks/whatsapp")?);
        let (door, receipts, others) = (Door::new(config.limits), Receipts::default(), Others::default());
        Ok(Self { shared: Arc::new(Shared { number, graph, hook, door, receipts, others, path, config }) })
    }

    /// The webhook's routes; see [`botmesh_webhook::router`].
    pub fn router(&self) -> Router {
        botmesh_webhook::router(&self.shared.path, Arc::clone(&self.shared))
    }

    /// Shows the user that a message of theirs, and all before it, was read.
    ///
    /// # Errors
    /// The failure of the call. Nobody tries again.
    pub async fn mark_read(&self, message: &MessageId) -> Result<(), ChannelError> {
        self.messages(json!({ "status": "read", "message_id": message })).await.map(|_| ())
    }

    async fn messages(&self, mut body: Value) -> Result<Value, ChannelError> {
        body["messaging_product"] = json!("whatsapp");
        self.shared.graph.post(&format!("{}/messages", self.shared.number), &body).await
    }

    /// The content with files in the hands of Meta.
    async fn uploaded(&self, content: &Content) -> Result<Content, ChannelError> {
        let Some((kind, media)) = send::media_of(&content.body) else { return Ok(content.clone()) };
        let uploaded = media::upload(&self.shared.graph, &self.shared.number, kind, media).await?;
        let body = match &content.body {
            ContentBody::Image(_) => ContentBody::Image(uploaded),
            ContentBody::Audio(_) => ContentBody::Audio(uploaded),
            ContentBody::Video(_) => ContentBody::Video(uploaded),
            ContentBody::Sticker(_) => ContentBody::Sticker(uploaded),
            _ => ContentBody::Document(uploaded),
        };
        Ok(Content { body, ..content.clone() })
    }
}

#[async_trait]
impl Webhook for Shared {
    fn door(&self) -> &Door {
        &self.door
    }

    fn handshake(&self, query: &str) -> Handshake {
        self.hook.handshake(query)
    }

    fn sender(&self, headers: &HeaderMap) -> Sender {
        Hook::sender(headers)
    }

    fn verify(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        self.hook.verify(headers, body)
    }

    async fn receive(&self, body: &[u8], sink: &dyn InboundSink) -> Result<(), NotReceived> {
        Ok(deliver(parse::parse(body, &self.number, &self.others)?, sink, &self.receipts).await?)
    }
}

#[async_trait]
impl Provider for WhatsApp {
    fn id(&self) -> &str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.text_limit = Some(TextLimit { max: 4096, unit: TextUnit::Utf16 });
        capabilities.caption_limit = Some(TextLimit { max: 1024, unit: TextUnit::Utf16 });
        capabilities.audio_captions = false;
        capabilities.markup = Markup::WhatsApp;
        self.shared.config.pace(&mut capabilities, RATE, Some(CHAT_RATE));
        capabilities.resolve = Resolve::Echo { wait: self.shared.config.echo_wait };
        capabilities.redelivery = Some(REDELIVERY);
        capabilities
    }

    /// Users get another id with another number. Groups keep theirs.
    fn may_move(&self, id: &str) -> bool {
        address::is_person(id)
    }

    /// Phone numbers, which go from hand to hand.
    fn is_alias(&self, id: &str) -> bool {
        address::is_number(id)
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.shared.door.connection()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        self.shared.door.run(sink, stop).await
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let mut body = address::recipient(request.chat)?;
        let content = self.uploaded(request.content).await?;
        if let Value::Object(fields) = send::fields(&content, &self.shared.config.list_button)? {
            body.extend(fields);
        }
        if let Some(token) = request.token.filter(|token| token.as_str().chars().count() <= MAX_TOKEN) {
            body.insert("biz_opaque_callback_data".to_owned(), json!(token));
        }
        let sent = self.messages(body.into()).await;
        let sent = match &content.body {
            // The second one changes nothing.
            ContentBody::Reaction { .. } => sent.map_err(not_sent),
            _ => sent,
        };
        let message = list(&sent?, "messages").first().and_then(|message| id(message, "id"));
        let message = message.ok_or_else(|| crate::graph::lost("the answer names no message"))?;
        Ok(SendReceipt { message: message.into() })
    }

    /// Marks the message as read too: the Cloud API has no typing indicator without it. It is shown for 25 s at most.
    async fn show_typing(&self, inbound: &Inbound) -> Result<(), ChannelError> {
        let message = inbound.message_id();
        let typing =
            json!({ "status": "read", "message_id": message, "typing_indicator": { "type": "text" } });
        self.messages(typing).await.map(|_| ())
    }

    fn serialize_media(&self, media: &MediaRef) -> Option<StoredMediaRef> {
        media::serialize(media)
    }

    fn rehydrate_media(&self, stored: &StoredMediaRef) -> Result<MediaRef, MediaUnavailable> {
        media::rehydrate(stored)
    }

    async fn load_media(&self, media: &MediaRef, max_bytes: usize) -> Result<Bytes, ChannelError> {
        media::load(&self.shared.graph, media, max_bytes).await
    }
}
