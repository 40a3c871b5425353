//! What the three channels are told about the app.

use std::time::Duration;

use botmesh_core::error::ConfigError;
use botmesh_core::provider::{Capabilities, Rate};
use botmesh_webhook::Limits;

use crate::graph::GraphConfig;
use crate::hook::Hook;
use crate::secret::Secret;

/// What an app of Meta's is known by. Secrets are not shown by `Debug`, not in errors, and are sent to Meta alone.
///
/// Nothing here is read from the environment or from files.
#[derive(Clone, Debug)]
pub struct MetaConfig {
    pub(crate) graph: GraphConfig,
    app_secret: Secret,
    verify_token: Secret,
    pub(crate) path: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) echo_wait: Duration,
    pub(crate) app_id: Option<String>,
    pub(crate) list_button: String,
    rate: Option<Rate>,
    chat_rate: Option<Rate>,
    default_rates: bool,
}

impl MetaConfig {
    /// The access token, the secret of the app with which Meta signs what it posts, and the verify token that was typed into
    /// the app's webhook settings.
    ///
    /// White space around them is dropped. One that is empty or has a line break or another control character in it is
    /// refused when the channel is made; so are spaces and letters beyond ASCII in the two that Meta makes.
    pub fn new(
        access_token: impl Into<String>,
        app_secret: impl Into<String>,
        verify_token: impl Into<String>,
    ) -> Self {
        Self {
            graph: GraphConfig::new(Secret::new(access_token)),
            app_secret: Secret::new(app_secret),
            verify_token: Secret::new(verify_token),
            path: None,
            limits: Limits::default(),
            echo_wait: Duration::from_secs(60),
            app_id: None,
            list_button: "Choose".to_owned(),
            rate: None,
            chat_rate: None,
            default_rates: true,
        }
    }

    /// Another server than Meta's, such as a fake one in tests. Default `https://graph.facebook.com`, and
    /// `https://graph.instagram.com` for Instagram.
    #[must_use]
    pub fn with_base_url(mut self, url: impl Into<String>) -> Self {
        self.graph.base = Some(url.into());
        self
    }

    /// The version of Graph. Default `v23.0`.
    #[must_use]
    pub fn with_api_version(mut self, version: impl Into<String>) -> Self {
        self.graph.version = version.into();
        self
    }

    /// The path of the webhook. Default `/webhooks/whatsapp`, `/webhooks/messenger` or `/webhooks/instagram`.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The limits of the webhook.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How long a call of Graph may take; uploads and downloads ten times as long. Default 30 s.
    #[must_use]
    pub fn with_timeout(mut self, limit: Duration) -> Self {
        self.graph.timeout = limit;
        self
    }

    /// How long to wait for Meta's status or echo of a message whose answer was lost. Default 60 s. One that comes later still
    /// counts.
    #[must_use]
    pub fn with_echo_wait(mut self, wait: Duration) -> Self {
        self.echo_wait = wait;
        self
    }

    /// The id of the app. Messenger and Instagram tell its messages from those of other apps by it; without it, by their
    /// `metadata`.
    #[must_use]
    pub fn with_app_id(mut self, id: impl Into<String>) -> Self {
        self.app_id = Some(id.into());
        self
    }

    /// What is written on the button that opens a list, on WhatsApp. Default `Choose`; at most 20 characters are shown.
    #[must_use]
    pub fn with_list_button(mut self, title: impl Into<String>) -> Self {
        self.list_button = title.into();
        self
    }

    /// How many messages go out in all chats together. Default 80 a second for a number of WhatsApp, 40 for a page on Messenger,
    /// 100 for an account on Instagram. Each process counts for itself.
    #[must_use]
    pub fn with_rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// How many go out in one chat. Default on WhatsApp 45 in 270 s: one every 6 s, and up to 45 at once at the expense of later
    /// ones. On Messenger and Instagram, any number.
    #[must_use]
    pub fn with_chat_rate(mut self, rate: Rate) -> Self {
        self.chat_rate = Some(rate);
        self
    }

    /// Sends as fast as it can, as to a server for tests. What is declared after it holds.
    #[must_use]
    pub fn without_rates(mut self) -> Self {
        (self.rate, self.chat_rate, self.default_rates) = (None, None, false);
        self
    }

    pub(crate) fn check_rates(&self) -> Result<(), ConfigError> {
        let check = |field, rate: Option<Rate>| rate.map_or(Ok(()), |rate| rate.check(field));
        check("meta.rate", self.rate)?;
        check("meta.chat_rate", self.chat_rate)
    }

    /// Declares the rates, by default those of the product.
    pub(crate) fn pace(&self, capabilities: &mut Capabilities, rate: Rate, chat_rate: Option<Rate>) {
        capabilities.rate = self.rate.or(Some(rate).filter(|_| self.default_rates));
        capabilities.chat_rate = self.chat_rate.or(chat_rate.filter(|_| self.default_rates));
    }

    pub(crate) fn hook(&self) -> Result<Hook, ConfigError> {
        self.app_secret.checked("app_secret", false)?;
        self.verify_token.checked("verify_token", true)?;
        Ok(Hook::new(&self.app_secret, self.verify_token.clone()))
    }

    pub(crate) fn path(&self, default: &str) -> Result<String, ConfigError> {
        let path = self.path.clone().unwrap_or_else(|| default.to_owned());
        if !path.starts_with('/') || path.contains(['{', '}', '?', '#']) {
            let problem = format!("`{path}` is no path");
            return Err(ConfigError::new("meta.path", problem, "give one such as `/webhooks/whatsapp`"));
        }
        Ok(path)
    }
}
