//! The HTTP API that all of Meta's products share.

pub(crate) mod refusal;

use std::sync::Arc;
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::error::{ChannelError, ConfigError, ErrorClass, Phase};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::multipart::Form;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, Url};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use serde_json::Value;

use crate::secret::Secret;
use refusal::{Product, Refusal};

/// The largest answer of a call that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// How much longer than another call one with a file may take.
const FILES: u32 = 10;

/// How often a download may be sent elsewhere.
const MAX_HOPS: usize = 3;

/// The hosts that keep what users send.
const MEDIA_HOSTS: &[&str] = &["facebook.com", "fbsbx.com", "fbcdn.net", "cdninstagram.com", "whatsapp.net"];

/// How to reach Graph.
#[derive(Clone, Debug)]
pub(crate) struct GraphConfig {
    /// If it is not the product's own.
    pub(crate) base: Option<String>,
    pub(crate) version: String,
    pub(crate) token: Secret,
    pub(crate) timeout: Duration,
}

impl GraphConfig {
    pub(crate) fn new(token: Secret) -> Self {
        Self { base: None, version: "v23.0".to_owned(), token, timeout: Duration::from_secs(30) }
    }
}

#[derive(Debug)]
pub(crate) struct Graph {
    http: Client,
    root: String,
    base: Url,
    token: Secret,
    bearer: HeaderValue,
    product: Product,
    for_files: Duration,
}

impl Graph {
    pub(crate) fn new(
        config: &GraphConfig,
        default_base: &str,
        product: Product,
    ) -> Result<Self, ConfigError> {
        let wrong =
            |field: &str, problem: String, fix: &str| ConfigError::new(format!("meta.{field}"), problem, fix);
        let root = config.base.as_deref().unwrap_or(default_base);
        let base = Url::parse(root)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| {
                let problem = format!("`{root}` is no URL");
                wrong("base_url", problem, "give one such as `https://graph.facebook.com`")
            })?;
        let token = config.token.checked("token", false)?;
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            let fix = "copy it again from the settings of the app";
            wrong("token", "it has characters that no token has".to_owned(), fix)
        })?;
        bearer.set_sensitive(true);
        let tls = tls(base.scheme() == "https").map_err(|error| {
            wrong("client", error.to_string(), "see whether the system has root certificates")
        })?;
        let http = Client::builder()
            .tls_backend_preconfigured(tls)
            .referer(false)
            .user_agent(concat!("botmesh-meta/", env!("CARGO_PKG_VERSION")))
            // Less than a call may take: what was never connected has done nothing.
            .connect_timeout(CONNECT.min(config.timeout / 2))
            .timeout(config.timeout)
            .redirect(Policy::none())
            .build()
            .map_err(|error| {
                wrong("client", error.to_string(), "see whether the system has root certificates")
            })?;
        let root = format!("{}/{}", root.trim_end_matches('/'), config.version);
        let for_files = config.timeout * FILES;
        Ok(Self { http, root, base, token: config.token.clone(), bearer, product, for_files })
    }

    /// Posts JSON.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, ChannelError> {
        self.call(
            self.http.post(self.url(path)).header(CONTENT_TYPE, "application/json").body(body.to_string()),
        )
        .await
    }

    /// Posts a form with a file.
    pub(crate) async fn upload(&self, path: &str, form: Form) -> Result<Value, ChannelError> {
        self.call(self.http.post(self.url(path)).timeout(self.for_files).multipart(form)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, ChannelError> {
        self.call(self.http.get(self.url(path))).await
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.root)
    }

    async fn call(&self, request: RequestBuilder) -> Result<Value, ChannelError> {
        let request = request.header(AUTHORIZATION, self.bearer.clone());
        let response = request.send().await.map_err(|error| self.not_answered(error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = read(response, MAX_ANSWER).await;
        if !status.is_success() {
            return Err(self.refused(status.as_u16(), &headers, &body.unwrap_or_default()));
        }
        let body = body.map_err(|error| match error {
            Cut::Transport(error) => lost("the answer was cut").with_source(error.without_url()),
            Cut::TooLarge => lost("the answer is too large"),
        })?;
        serde_json::from_slice(&body).map_err(|error| lost("the answer is no JSON").with_source(error))
    }

    /// No answer came.
    fn not_answered(&self, error: reqwest::Error) -> ChannelError {
        let (phase, what) = match error.is_connect() || error.is_builder() {
            true => (Phase::NotWritten, "Graph cannot be reached"),
            false => (Phase::Unknown, "Graph did not answer"),
        };
        ChannelError::new(ErrorClass::Transient, phase, what).with_source(error.without_url())
    }

    fn refused(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> ChannelError {
        if let Some(mut refusal) = Refusal::of_answer(body) {
            refusal.scrub(&self.token);
            return refusal.into_error(self.product, status, headers);
        }
        // Not Graph's own words: a server in front of it gave up, after the request may have passed.
        let phase = match status {
            500.. if status != 503 => Phase::Unknown,
            _ => Phase::Answered,
        };
        let error = ChannelError::new(
            refusal::of_status(status),
            phase,
            format!("HTTP {status} without an error of Graph's"),
        );
        let wait = refusal::wait(headers);
        if error.class == ErrorClass::RateLimited {
            return error.with_retry_after(wait.unwrap_or(refusal::LIMITED)).for_all_chats();
        }
        match wait {
            Some(wait) => error.with_retry_after(wait),
            None => error,
        }
    }

    /// Downloads at most `max` bytes. Only the hosts of Meta are asked, and only they see the token.
    pub(crate) async fn download(
        &self,
        url: &str,
        with_token: bool,
        max: usize,
    ) -> Result<Bytes, ChannelError> {
        let mut url = self
            .media_url(url)
            .ok_or_else(|| failed(ErrorClass::Rejected, "the media is not at a host of Meta's"))?;
        for _ in 0..=MAX_HOPS {
            let request = self.http.get(url.clone()).timeout(self.for_files);
            let request =
                if with_token { request.header(AUTHORIZATION, self.bearer.clone()) } else { request };
            let response = request.send().await.map_err(|error| self.not_answered(error))?;
            let status = response.status();
            if status.is_redirection() {
                let next =
                    response.headers().get(LOCATION).and_then(|next| url.join(next.to_str().ok()?).ok());
                url = next.and_then(|next| self.media_url(next.as_str())).ok_or_else(|| {
                    failed(ErrorClass::Rejected, "the media moved to a host that is not Meta's")
                })?;
                continue;
            }
            if !status.is_success() {
                let body = read_some(response).await;
                return Err(self.refused(status.as_u16(), &HeaderMap::new(), &body));
            }
            if response.content_length().is_some_and(|length| length > max as u64) {
                return Err(failed(ErrorClass::PayloadTooLarge, "the media is larger than the bot accepts"));
            }
            return read(response, max).await.map(Bytes::from).map_err(|error| match error {
                Cut::Transport(error) => {
                    failed(ErrorClass::Transient, "the download was cut").with_source(error.without_url())
                }
                Cut::TooLarge => {
                    failed(ErrorClass::PayloadTooLarge, "the media is larger than the bot accepts")
                }
            });
        }
        Err(failed(ErrorClass::Rejected, "the media moves on and on"))
    }

    /// The URL, if it is at a host that media is kept at.
    pub(crate) fn media_url(&self, url: &str) -> Option<Url> {
        let url = Url::parse(url).ok()?;
        let host = url.host_str()?;
        let is_meta = |of: &str| host == of || host.strip_suffix(of).is_some_and(|sub| sub.ends_with('.'));
        let known = url.scheme() == "https" && MEDIA_HOSTS.iter().any(|of| is_meta(of));
        (known || url.origin() == self.base.origin()).then_some(url)
    }
}

fn failed(class: ErrorClass, detail: &str) -> ChannelError {
    ChannelError::new(class, Phase::Answered, detail)
}

enum Cut {
    Transport(reqwest::Error),
    TooLarge,
}

async fn read(mut response: Response, max: usize) -> Result<Vec<u8>, Cut> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Cut::Transport)? {
        if body.len() + chunk.len() > max {
            return Err(Cut::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

async fn read_some(response: Response) -> Vec<u8> {
    read(response, MAX_ANSWER).await.unwrap_or_default()
}

/// TLS by ring, with the certificates of the system where they are needed.
fn tls(needed: bool) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(match needed {
        true => builder.with_platform_verifier()?.with_no_client_auth(),
        false => builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
    })
}

/// The call worked, and only what it said is lost.
pub(crate) fn lost(what: &str) -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::Unknown, what)
}
