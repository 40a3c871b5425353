//! Messenger and Instagram, which speak the same language.

mod parse;
mod send;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::Bytes;
use botmesh_core::content::{Content, ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{
    ChannelError, ConfigError, ErrorClass, MediaUnavailable, MediaUnavailableReason, Phase,
};
use botmesh_core::id::ChatId;
use botmesh_core::media::{MediaRef, StoredMediaRef};
use botmesh_core::provider::{
    Capabilities, InboundSink, Rate, Resolve, SendReceipt, SendRequest, TextLimit, TextUnit,
};
use botmesh_webhook::axum::Router;
use botmesh_webhook::axum::http::HeaderMap;
use botmesh_webhook::{Door, Handshake, NotReceived, Sender, Webhook};
use serde_json::{Value, json};

use crate::config::MetaConfig;
use crate::event::deliver;
use crate::file::{File, not_sent};
use crate::graph::refusal::Product;
use crate::graph::{Graph, lost};
use crate::hook::{Hook, REDELIVERY};
use crate::lenient::{id, text};
use crate::limit::Limit;
use crate::others::Others;
use crate::receipts::Receipts;
use parse::Account;

/// The longest text that comes back with the echo of a message, in characters.
const MAX_TOKEN: usize = 1000;

/// What tells the two products apart.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) id: &'static str,
    pub(crate) base: &'static str,
    pub(crate) path: &'static str,
    pub(crate) text: TextLimit,
    pub(crate) rate: Rate,
    /// The node that sends, if it is not the account's own.
    pub(crate) node: Option<&'static str>,
    media: &'static [Limit],
}

impl Kind {
    fn limit(&self, kind: &str) -> Option<&'static Limit> {
        self.media.iter().find(|limit| limit.kind == kind)
    }
}

const fn limit(
    channel: &'static str,
    kind: &'static str,
    types: &'static [&'static str],
    mebibytes: u64,
) -> Limit {
    Limit { channel, kind, types, max: mebibytes << 20 }
}

pub(crate) const MESSENGER: Kind = Kind {
    id: "messenger",
    base: "https://graph.facebook.com",
    path: "/webhooks/messenger",
    text: TextLimit { max: 2000, unit: TextUnit::Utf16 },
    // The API takes 300, but a page that sends more than 40 is locked out of its inbox.
    rate: Rate::new(40, Duration::from_secs(1)),
    node: None,
    media: &[
        limit("Messenger", "image", &["image/"], 25),
        limit("Messenger", "audio", &["audio/"], 25),
        limit("Messenger", "video", &["video/"], 25),
        limit("Messenger", "file", &[], 25),
    ],
};

pub(crate) const INSTAGRAM: Kind = Kind {
    id: "instagram",
    base: "https://graph.instagram.com",
    path: "/webhooks/instagram",
    text: TextLimit { max: 1000, unit: TextUnit::Bytes },
    rate: Rate::new(100, Duration::from_secs(1)),
    node: Some("me"),
    media: &[
        limit("Instagram", "image", &["image/jpeg", "image/png", "image/gif"], 8),
        limit("Instagram", "audio", INSTAGRAM_AUDIO, 25),
        limit("Instagram", "video", INSTAGRAM_VIDEO, 25),
        limit("Instagram", "file", &["application/pdf"], 25),
    ],
};

/// AAC, M4A, WAV and MP4, by all their names.
const INSTAGRAM_AUDIO: &[&str] = &[
    "audio/aac",
    "audio/mp4",
    "audio/m4a",
    "audio/x-m4a",
    "audio/wav",
    "audio/x-wav",
    "audio/wave",
    "video/mp4",
];

/// MP4, Ogg, AVI, MOV and WebM.
const INSTAGRAM_VIDEO: &[&str] =
    &["video/mp4", "video/ogg", "video/x-msvideo", "video/avi", "video/quicktime", "video/webm"];

#[derive(Debug)]
pub(crate) struct Page {
    kind: &'static Kind,
    account: String,
    graph: Graph,
    hook: Hook,
    pub(crate) door: Door,
    receipts: Receipts,
    others: Others,
    path: String,
    config: MetaConfig,
}

impl Page {
    pub(crate) fn new(
        kind: &'static Kind,
        account: String,
        config: MetaConfig,
    ) -> Result<Arc<Self>, ConfigError> {
        if account.is_empty() || !account.bytes().all(|c| c.is_ascii_digit()) {
            let problem = format!("`{account}` is no id of a page or an account");
            return Err(ConfigError::new("meta.account_id", problem, "copy it from the settings of the app"));
        }
        let graph = Graph::new(&config.graph, kind.base, Product::Page)?;
        config.check_rates()?;
        let (hook, path) = (config.hook()?, config.path(kind.path)?);
        let (door, receipts, others) = (Door::new(config.limits), Receipts::default(), Others::default());
        Ok(Arc::new(Self { kind, account, graph, hook, door, receipts, others, path, config }))
    }

    pub(crate) fn router(self: &Arc<Self>) -> Router {
        botmesh_webhook::router(&self.path, Arc::clone(self))
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.text_limit = Some(self.kind.text);
        // There are no captions: the text follows as a message of its own.
        capabilities.caption_limit = Some(TextLimit { max: 0, ..self.kind.text });
        capabilities.resolve = Resolve::Echo { wait: self.config.echo_wait };
        self.config.pace(&mut capabilities, self.kind.rate, None);
        capabilities.redelivery = Some(REDELIVERY);
        capabilities
    }

    async fn messages(&self, body: &Value) -> Result<Value, ChannelError> {
        let node = self.kind.node.unwrap_or(&self.account);
        self.graph.post(&format!("{node}/messages"), body).await
    }

    /// Shows an action of the sender: `typing_on`, `mark_seen`.
    pub(crate) async fn act(&self, chat: &ChatId, action: &str) -> Result<(), ChannelError> {
        let body = json!({ "recipient": { "id": chat }, "sender_action": action });
        self.messages(&body).await.map(|_| ())
    }

    pub(crate) async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        if let ContentBody::Reaction { message, emoji } = &request.content.body {
            let mut body =
                json!({ "recipient": { "id": request.chat }, "payload": { "message_id": message } });
            body["sender_action"] = json!(if emoji.is_some() { "react" } else { "unreact" });
            if let Some(emoji) = emoji {
                body["payload"]["reaction"] = json!(emoji);
            }
            // The second one changes nothing.
            self.messages(&body).await.map_err(not_sent)?;
            return Ok(SendReceipt { message: format!("reaction:{message}").into() });
        }
        let content = self.uploaded(request.content).await?;
        let mut message = send::message(self.kind.id, &content)?;
        if let Some(token) = request.token.filter(|token| token.as_str().chars().count() <= MAX_TOKEN) {
            message["metadata"] = json!(token);
        }
        let mut body =
            json!({ "recipient": { "id": request.chat }, "messaging_type": "RESPONSE", "message": message });
        if let Some(answered) = &content.reply_to {
            body["reply_to"] = json!({ "mid": answered });
        }
        let answer = self.messages(&body).await?;
        let message = id(&answer, "message_id").ok_or_else(|| lost("the answer names no message"))?;
        let receipt = SendReceipt { message: message.into() };
        self.receipts.sent(&receipt.message);
        Ok(receipt)
    }

    /// The content with files in the hands of Meta.
    async fn uploaded(&self, content: &Content) -> Result<Content, ChannelError> {
        let Some((kind, media)) = send::media_of(&content.body) else { return Ok(content.clone()) };
        let limit = self.kind.limit(kind);
        let file = File::of(media).await?;
        let (mime, size) = match &file {
            Some(file) => (Some(file.mime.as_str()), Some(file.size)),
            None => (media.mime.as_deref(), None),
        };
        limit.map_or(Ok(()), |limit| limit.check(mime, size))?;
        let Some(file) = file else { return Ok(content.clone()) };
        let about = json!({ "attachment": { "type": kind, "payload": { "is_reusable": false } } });
        let form = reqwest::multipart::Form::new()
            .text("message", about.to_string())
            .part("filedata", file.part().await?);
        let node = self.kind.node.unwrap_or(&self.account);
        let answer =
            self.graph.upload(&format!("{node}/message_attachments"), form).await.map_err(not_sent)?;
        let id = id(&answer, "attachment_id").ok_or_else(|| not_sent(lost("the answer names no media")))?;
        let media = OutboundMedia { source: MediaSource::Id(id), ..media.clone() };
        let body = match kind {
            "image" => ContentBody::Image(media),
            "audio" => ContentBody::Audio(media),
            "video" => ContentBody::Video(media),
            _ => ContentBody::Document(media),
        };
        Ok(Content { body, ..content.clone() })
    }

    pub(crate) fn rehydrate_media(&self, stored: &StoredMediaRef) -> Result<MediaRef, MediaUnavailable> {
        let url =
            text(&stored.data, "url").filter(|url| stored.v == 1 && self.graph.media_url(url).is_some());
        let url = url.ok_or_else(|| {
            let problem = "the stored reference is no URL of Meta's";
            MediaUnavailable::new(MediaUnavailableReason::RehydrateFailed, problem)
        })?;
        Ok(MediaRef { provider: self.kind.id.to_owned(), token: json!({ "url": url }) })
    }

    /// Its URL is signed, and needs no token.
    pub(crate) async fn load_media(&self, media: &MediaRef, max_bytes: usize) -> Result<Bytes, ChannelError> {
        let url = text(&media.token, "url").ok_or_else(|| {
            ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, "the media has no URL")
        })?;
        self.graph.download(url, false, max_bytes).await
    }
}

#[async_trait]
impl Webhook for Page {
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
        let app = self.config.app_id.as_deref();
        let account = Account { channel: self.kind.id, id: &self.account, app, others: &self.others };
        Ok(deliver(parse::parse(body, &account)?, sink, &self.receipts).await?)
    }
}
