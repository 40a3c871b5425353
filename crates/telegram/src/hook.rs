//! Updates that Telegram posts.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::CancellationToken;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::provider::InboundSink;
use botmesh_core::webhook::{WebhookError, parse};
use botmesh_webhook::axum::Router;
use botmesh_webhook::axum::http::{HeaderMap, HeaderName};
use botmesh_webhook::{Door, Limits, NotReceived, Sender, Webhook, same_secret};
use serde::de::Error as _;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::Params;
use crate::refusal::Failure;
use crate::telegram::Telegram;
use crate::update::KINDS;

static SECRET: HeaderName = HeaderName::from_static("x-telegram-bot-api-secret-token");

/// Between attempts to learn the bot's name.
const AGAIN: Duration = Duration::from_secs(30);

/// What a bot with a webhook has beside the others.
#[derive(Clone)]
pub(crate) struct Hook {
    pub(crate) secret: String,
    pub(crate) path: String,
    pub(crate) limits: Limits,
    pub(crate) door: Arc<Door>,
}

impl Hook {
    pub(crate) fn new(secret: &str) -> Self {
        let limits = Limits::default();
        let secret = secret.trim().to_owned();
        Self { secret, path: "/telegram".to_owned(), limits, door: Arc::new(Door::new(limits)) }
    }

    /// The secret, if Telegram would take it.
    fn valid_secret(&self) -> Result<&str, ChannelError> {
        let is_fine = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
        let valid = (1..=256).contains(&self.secret.len()) && self.secret.bytes().all(is_fine);
        valid.then_some(self.secret.as_str()).ok_or_else(|| {
            let detail = "the webhook's secret must have 1 to 256 of the characters A-Z, a-z, 0-9, _ and -; give another one";
            ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail)
        })
    }
}

/// Runs a bot with a webhook: posts reach it until `stop`.
pub(crate) async fn run(
    telegram: &Telegram,
    hook: &Hook,
    sink: Arc<dyn InboundSink>,
    stop: CancellationToken,
) -> Result<(), ChannelError> {
    hook.valid_secret()?;
    tokio::select! {
        biased;
        ended = hook.door.run(sink, stop) => ended,
        refused = introduce(telegram) => refused,
        never = telegram.state.presses.answer(telegram) => match never {},
    }
}

/// Learns the bot's name, and returns only if its token is refused. Posts do not wait for it.
async fn introduce(telegram: &Telegram) -> Result<(), ChannelError> {
    loop {
        match telegram.introduce().await {
            Ok(()) => return std::future::pending().await,
            Err(error) if error.class == ErrorClass::Auth => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the bot's own name is not known yet; `/command@name` is not for it");
            }
        }
        telegram.settings.clock.sleep(AGAIN).await;
    }
}

impl Telegram {
    /// The route of the webhook, to serve or to merge into an application's own router.
    ///
    /// # Panics
    /// If the bot polls.
    pub fn router(&self) -> Router {
        let Some(hook) = &self.settings.hook else {
            panic!("this bot polls and has no webhook; make it with `Telegram::webhook`");
        };
        botmesh_webhook::router(&hook.path, Arc::new(self.clone()))
    }

    /// Tells Telegram where to post updates: `url` is where this bot's [`router`](Self::router) is reached from outside, by
    /// HTTPS. All kinds are asked for, and what waits is kept. Once is enough; to call it again does no harm.
    ///
    /// # Errors
    /// The channel's failure, or that the bot polls.
    pub async fn set_webhook(&self, url: &str) -> Result<(), ChannelError> {
        let Some(hook) = &self.settings.hook else {
            let detail = "this bot polls; make it with `Telegram::webhook` before it is given a webhook";
            return Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail));
        };
        let params = Params::from_iter([
            ("url".to_owned(), Value::from(url)),
            ("secret_token".to_owned(), hook.valid_secret()?.into()),
            ("allowed_updates".to_owned(), json!(KINDS)),
        ]);
        self.ask::<bool>("setWebhook", params).await.map_err(|Failure { mut error, .. }| {
            error.detail = error.detail.replace(&hook.secret, "<secret>");
            error
        })?;
        Ok(())
    }

    /// Removes the bot's webhook, and keeps what waits at Telegram.
    ///
    /// # Errors
    /// The channel's failure.
    pub async fn delete_webhook(&self) -> Result<(), ChannelError> {
        let params = Params::from_iter([("drop_pending_updates".to_owned(), false.into())]);
        self.ask::<bool>("deleteWebhook", params).await?;
        Ok(())
    }
}

#[async_trait]
impl Webhook for Telegram {
    fn door(&self) -> &Door {
        match &self.settings.hook {
            Some(hook) => &hook.door,
            None => unreachable!("only a bot with a webhook has a router"),
        }
    }

    fn sender(&self, headers: &HeaderMap) -> Sender {
        let secret = self.settings.hook.as_ref().and_then(|hook| hook.valid_secret().ok());
        let given = headers.get(&SECRET);
        match secret.zip(given) {
            Some((secret, given)) if same_secret(given.as_bytes(), secret.as_bytes()) => Sender::Channel,
            _ => Sender::Stranger,
        }
    }

    async fn receive(&self, body: &[u8], sink: &dyn InboundSink) -> Result<(), NotReceived> {
        let update = self.read(body);
        if update.content.is_err() {
            // What is no JSON is nobody's update.
            let _: Box<RawValue> = parse(body)?;
        }
        if update.id.is_none() {
            let problem = serde_json::Error::custom("it is no update: it has no `update_id`");
            return Err(WebhookError::Json(problem).into());
        }
        self.tell_moved(sink, &update).await?;
        Ok(self.hand_over(sink, update, body).await?)
    }
}
