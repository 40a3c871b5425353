//! The two requests of a webhook: a GET with which the channel sees whether we are who it thinks, and posts.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use botmesh_core::provider::{AdmitError, InboundSink};
use botmesh_core::webhook::WebhookError;
use futures_util::StreamExt;
use subtle::ConstantTimeEq;
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;

use crate::door::Door;

/// What a channel knows about its own webhook. The rest is in [`router`].
#[async_trait]
pub trait Webhook: Send + Sync + 'static {
    /// The door that the provider's `run` opens.
    fn door(&self) -> &Door;

    /// What to answer to a GET with this query. The default is [`Handshake::None`].
    fn handshake(&self, query: &str) -> Handshake {
        let _ = query;
        Handshake::None
    }

    /// Who sent this, by its headers alone: looked at before the body is read, so that a stranger's takes no memory. The
    /// default is [`Sender::Unknown`]: [`verify`](Self::verify) says.
    fn sender(&self, headers: &HeaderMap) -> Sender {
        let _ = headers;
        Sender::Unknown
    }

    /// Whether the channel sent this: checked over the bytes as they came, before anything reads them. Not asked where the
    /// headers alone tell, which is the default.
    fn verify(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        let _ = body;
        self.sender(headers) == Sender::Channel
    }

    /// Hands over what a verified body holds. Returns as soon as all of it is in the bot's hands, and before any of it is
    /// handled.
    ///
    /// # Errors
    /// See [`NotReceived`].
    ///
    /// # Cancel safety
    /// Must bear being dropped at any point: the channel then posts the body again.
    async fn receive(&self, body: &[u8], sink: &dyn InboundSink) -> Result<(), NotReceived>;
}

/// Who sent a post, as far as its headers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The channel: they hold its secret.
    Channel,
    /// Somebody else. Answered with 401.
    Stranger,
    /// Only the body tells.
    Unknown,
}

/// What a GET of a webhook's path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Nothing: somebody looks whether the path is there. Answered with 200.
    None,
    /// The channel wants this text back.
    Challenge(String),
    /// It does not know our secret. Answered with 403.
    Refused,
}

/// Why a body was not received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotReceived {
    /// It says nothing, and will say nothing the next time: 400.
    #[error("the body cannot be read")]
    Unreadable(#[from] WebhookError),
    /// The bot did not take it over: 503, so that the channel posts it again.
    #[error("the body was not taken over")]
    NotTaken(#[from] AdmitError),
}

/// The routes of a webhook at `path`, such as `/webhooks/shop`, to merge into an application's own router or to
/// [serve](crate::serve).
///
/// A post is answered with 200 and an empty body once everything in it is journaled; handlers run later. It is answered with
/// 503 and `Retry-After` while the bot does not run, while it has no room and while its journal is away. A layer that changes
/// the body (decompression, for one) must not be put before it: signatures are over the bytes that were sent.
///
/// # Panics
/// If `path` is no path of a route: it begins with `/`, and braces have a meaning.
pub fn router<W: Webhook>(path: &str, webhook: Arc<W>) -> Router {
    Router::new().route(path, get(challenge::<W>).post(post::<W>)).with_state(webhook)
}

/// The pairs of a query, decoded: `+` and `%20` are spaces.
pub fn query_pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    form_urlencoded::parse(query.as_bytes())
}

/// Whether two secrets are the same, in a time that does not tell where they differ.
pub fn same_secret(given: &[u8], expected: &[u8]) -> bool {
    given.ct_eq(expected).into()
}

async fn challenge<W: Webhook>(State(webhook): State<Arc<W>>, RawQuery(query): RawQuery) -> Response {
    match webhook.handshake(query.as_deref().unwrap_or("")) {
        Handshake::None => StatusCode::OK.into_response(),
        // A browser must not take what a stranger wrote for a page.
        Handshake::Challenge(text) => ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response(),
        Handshake::Refused => StatusCode::FORBIDDEN.into_response(),
    }
}

/// Never a body: some channels take the one of a 200 for a call of theirs.
async fn post<W: Webhook>(State(webhook): State<Arc<W>>, mut request: Request<Body>) -> Response {
    let door = webhook.door();
    let mut reading = true;
    let outcome = tokio::select! {
        biased;
        outcome = handle(&*webhook, &mut request, &mut reading) => outcome,
        () = door.clock.sleep(door.limits.answer_within) => Err(Refusal::TookTooLong),
    };
    let closed = matches!(outcome, Err(Refusal::NotOpen));
    let status = match outcome {
        Ok(()) => StatusCode::OK,
        Err(Refusal::TookTooLong) if reading => StatusCode::REQUEST_TIMEOUT,
        Err(refusal) => refusal.status(),
    };
    match status {
        StatusCode::OK => tracing::trace!("a post was taken over"),
        // As it should be while the bot starts or stops.
        status if closed => tracing::debug!(%status, "a post was not taken over"),
        status => tracing::warn!(%status, "a post was not taken over"),
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let wait = door.limits.retry_after.as_secs().max(1);
        return (status, [(RETRY_AFTER, wait.to_string())]).into_response();
    }
    status.into_response()
}

enum Refusal {
    NotOpen,
    NoMemory,
    TooLarge,
    /// The sender went away.
    Cut,
    Unsigned,
    Encoded,
    Unreadable,
    NotTaken,
    TookTooLong,
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotOpen | Self::NoMemory | Self::NotTaken | Self::TookTooLong => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Cut | Self::Unreadable => StatusCode::BAD_REQUEST,
            Self::Unsigned => StatusCode::UNAUTHORIZED,
            Self::Encoded => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }
}

async fn handle<W: Webhook>(
    webhook: &W,
    request: &mut Request<Body>,
    reading: &mut bool,
) -> Result<(), Refusal> {
    let sink = webhook.door().sink().ok_or(Refusal::NotOpen)?;
    let (body, _memory) = verified(webhook, request).await?;
    *reading = false;
    // Its headers are parts of the connection's buffer, which can be used again now.
    *request = Request::default();
    webhook.receive(&body, &*sink).await.map_err(|error| match error {
        NotReceived::Unreadable(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "a body cannot be read");
            Refusal::Unreadable
        }
        NotReceived::NotTaken(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "a body was not taken over");
            Refusal::NotTaken
        }
    })
}

/// The body of a post that the channel sent, and the memory that it takes.
async fn verified<W: Webhook>(
    webhook: &W,
    request: &mut Request<Body>,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), Refusal> {
    let sender = webhook.sender(request.headers());
    if sender == Sender::Stranger {
        return Err(Refusal::Unsigned);
    }
    let body = std::mem::take(request.body_mut());
    let (body, memory) = read(webhook.door(), request.headers(), body).await?;
    if sender == Sender::Unknown && !webhook.verify(request.headers(), &body) {
        return Err(Refusal::Unsigned);
    }
    if request.headers().get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Refusal::Encoded);
    }
    Ok((body, memory))
}

async fn read(
    door: &Door,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), Refusal> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > door.limits.max_body as u64) {
        return Err(Refusal::TooLarge);
    }
    let (mut read, mut memory) = (Vec::new(), None::<OwnedSemaphorePermit>);
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Refusal::Cut)?;
        if read.len() + chunk.len() > door.limits.max_body {
            return Err(Refusal::TooLarge);
        }
        let size = u32::try_from(chunk.len()).map_err(|_| Refusal::TooLarge)?;
        let more = Arc::clone(&door.memory).try_acquire_many_owned(size).map_err(|_| Refusal::NoMemory)?;
        match &mut memory {
            Some(memory) => memory.merge(more),
            None => memory = Some(more),
        }
        read.extend_from_slice(&chunk);
    }
    Ok((read, memory))
}
