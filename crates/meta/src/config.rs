//! What the three channels are told about the app.

use std::time::Duration;

use botmesh_core::error::ConfigError;
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

    /// How long a call of Graph may take. Default 30 s.
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
