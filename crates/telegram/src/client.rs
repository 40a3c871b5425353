//! Calls of the Bot API over HTTP. One call is one request.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::webhook;
use reqwest::header::RETRY_AFTER;
use reqwest::multipart::{Form, Part};
use reqwest::{Body, Response, redirect};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::fs::File;

use crate::local;
use crate::refusal::{Failure, Parameters, Refusal, understand};
use crate::token::Token;

pub(crate) const OFFICIAL: &str = "https://api.telegram.org";

/// The longest time for a connection. It must be over before the call's own time is: only then is it sure that nothing was sent.
const CONNECT: Duration = Duration::from_secs(10);

/// How long an idle connection is kept: shorter than servers do, so that a request meets no closing one.
const IDLE: Duration = Duration::from_secs(20);

/// The largest answer that is read. Pages of updates have about 4 MiB at most.
const MAX_ANSWER: usize = webhook::MAX_BODY;

/// The parameters of a method.
pub(crate) type Params = Map<String, Value>;

/// A file that goes with a call.
pub(crate) struct Upload {
    /// The name of its part in the form.
    pub(crate) part: Cow<'static, str>,
    pub(crate) name: String,
    pub(crate) mime: Option<String>,
    pub(crate) size: u64,
    pub(crate) source: Source,
}

pub(crate) enum Source {
    Here(Bytes),
    /// It is read while it is sent.
    File(File),
}

#[derive(Clone)]
pub(crate) struct Client {
    http: Result<reqwest::Client, String>,
    connect: Duration,
    base: String,
    token: Token,
    /// Where the files of a server on this host are.
    local_files: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Answer {
    ok: bool,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error_code: Option<i64>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<Parameters>,
}

impl Client {
    pub(crate) fn new(token: Token) -> Self {
        let (base, connect, local_files) = (OFFICIAL.to_owned(), CONNECT, None);
        Self { http: http(&base, connect), connect, base, token, local_files }
    }

    /// For another server.
    pub(crate) fn set_base(&mut self, base: &str) {
        base.trim_end_matches('/').clone_into(&mut self.base);
        self.http = http(&self.base, self.connect);
    }

    /// For calls that may take so long.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.connect = CONNECT.min(patience / 2);
        self.http = http(&self.base, self.connect);
    }

    pub(crate) fn set_local_files(&mut self, folder: PathBuf) {
        self.local_files = Some(folder);
    }

    pub(crate) fn is_official(&self) -> bool {
        self.base == OFFICIAL
    }

    /// Calls a method. An empty `params` is left out of the request.
    pub(crate) async fn call(
        &self,
        method: &str,
        params: Params,
        files: Vec<Upload>,
        patience: Duration,
    ) -> Result<Box<RawValue>, Failure> {
        let url = format!("{}/bot{}/{method}", self.base, self.token()?);
        let request = self.http()?.post(url).timeout(patience);
        let request = match files.is_empty() {
            false => request.multipart(form(params, files)?),
            true => {
                request.header("content-type", "application/json").body(Value::Object(params).to_string())
            }
        };
        let response = request.send().await.map_err(|error| self.unanswered(method, error))?;
        let status = response.status().as_u16();
        let retry_after = retry_after(&response);
        let body = match read(response, MAX_ANSWER).await {
            Ok(body) => body,
            Err(Unread::TooLarge) => return Err(understand(status, retry_after, None)),
            Err(Unread::Broken(error)) => {
                tracing::debug!(method, status, error = %error.without_url(), "an answer broke off");
                return Err(understand(status, retry_after, None));
            }
        };
        let answer: Option<Answer> = webhook::parse(&body).ok();
        match answer {
            Some(Answer { ok: true, result: Some(result), .. }) => Ok(result),
            Some(Answer { ok: false, error_code, description, parameters, .. }) => {
                let refusal = Refusal { error_code, description, parameters };
                let mut failure = understand(status, retry_after, Some(&refusal));
                failure.error.detail = self.token.redact(&failure.error.detail);
                Err(failure)
            }
            Some(Answer { ok: true, result: None, .. }) | None => Err(understand(status, retry_after, None)),
        }
    }

    /// Loads the file at `path` as `getFile` gave it. An absolute one is what a server says that runs with `--local`.
    pub(crate) async fn load(
        &self,
        path: &str,
        max: usize,
        patience: Duration,
    ) -> Result<Bytes, ChannelError> {
        match &self.local_files {
            Some(folder) if local::is_absolute(path) => {
                local::read(folder, path, max).await.map_err(|mut error| {
                    // The server keeps the files of a bot in a folder that is called by its token.
                    error.detail = self.token.redact(&error.detail);
                    error
                })
            }
            _ => self.download(path, max, patience).await,
        }
    }

    async fn download(&self, path: &str, max: usize, patience: Duration) -> Result<Bytes, ChannelError> {
        let url = format!("{}/file/bot{}/{path}", self.base, self.token()?);
        let request = self.http()?.get(url).timeout(patience);
        let response = request.send().await.map_err(|error| self.unanswered("the download", error))?;
        let status = response.status().as_u16();
        if !response.status().is_success() {
            let mut error: ChannelError = understand(status, retry_after(&response), None).into();
            if local::is_absolute(path) && error.class == ErrorClass::Rejected {
                error.detail.push_str(local::ADVICE);
            }
            return Err(error);
        }
        match read(response, max).await {
            Ok(body) => Ok(body.into()),
            Err(Unread::TooLarge) => Err(too_large(max)),
            Err(Unread::Broken(error)) => Err(self.unanswered("the download", error)),
        }
    }

    fn http(&self) -> Result<&reqwest::Client, ChannelError> {
        self.http.as_ref().map_err(|error| {
            let detail = format!("no HTTPS client can be made: {error}");
            ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail)
        })
    }

    fn token(&self) -> Result<&str, ChannelError> {
        self.token.valid().ok_or_else(|| {
            let detail = "the bot's token has not the form `123456:ABC-DEF`; copy it from @BotFather";
            ChannelError::new(ErrorClass::Auth, Phase::NotWritten, detail)
        })
    }

    /// No answer came. Only where no connection was made, or the request had no end, is it sure that nothing was done.
    fn unanswered(&self, what: &str, error: reqwest::Error) -> ChannelError {
        let (phase, how) = match &error {
            error if error.is_connect() => (Phase::NotWritten, "no connection to the Bot API"),
            error if error.is_builder() => (Phase::NotWritten, "the request cannot be made"),
            error if local::Unread::is_in(error) => {
                (Phase::NotWritten, "a file changed or could not be read while it was sent")
            }
            error if error.is_timeout() => (Phase::Unknown, "no answer in time"),
            _ => (Phase::Unknown, "the connection broke before the answer"),
        };
        let class = if error.is_builder() { ErrorClass::Rejected } else { ErrorClass::Transient };
        let detail = format!("{what}: {how}");
        ChannelError::new(class, phase, detail).with_source(error.without_url())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base).field("token", &self.token).finish_non_exhaustive()
    }
}

pub(crate) fn too_large(max: usize) -> ChannelError {
    let detail = format!("the file has more than {max} bytes");
    ChannelError::new(ErrorClass::PayloadTooLarge, Phase::Answered, detail)
}

/// A client for `base`. Where that is plain HTTP, as with a server of one's own, no certificates are needed.
fn http(base: &str, connect: Duration) -> Result<reqwest::Client, String> {
    let tls = tls(base.starts_with("https:")).map_err(|error| error.to_string())?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        // The URL has the token: it goes nowhere else.
        .redirect(redirect::Policy::none())
        .referer(false)
        .connect_timeout(connect)
        .pool_idle_timeout(IDLE)
        .tcp_nodelay(true)
        .user_agent(concat!("botmesh-telegram/", env!("CARGO_PKG_VERSION")))
        .build();
    client.map_err(|error| error.to_string())
}

/// TLS by ring, with the certificates of the system.
fn tls(needed: bool) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(match needed {
        true => builder.with_platform_verifier()?.with_no_client_auth(),
        false => builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
    })
}

fn form(params: Params, files: Vec<Upload>) -> Result<Form, ChannelError> {
    let mut form = Form::new();
    for (name, value) in params {
        let text = match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        form = form.text(name, text);
    }
    for file in files {
        let body = match file.source {
            Source::Here(bytes) => bytes.into(),
            Source::File(opened) => Body::wrap_stream(local::chunks(opened, file.size)),
        };
        let mut part = Part::stream_with_length(body, file.size).file_name(file.name);
        if let Some(mime) = file.mime {
            part = part.mime_str(&mime).map_err(|_| {
                let detail = format!("`{mime}` is no media type");
                ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, detail)
            })?;
        }
        form = form.part(file.part, part);
    }
    Ok(form)
}

fn retry_after(response: &Response) -> Option<Duration> {
    let header = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    header.trim().parse().ok().map(Duration::from_secs)
}

enum Unread {
    TooLarge,
    Broken(reqwest::Error),
}

async fn read(mut response: Response, max: usize) -> Result<Vec<u8>, Unread> {
    if response.content_length().is_some_and(|length| length > max as u64) {
        return Err(Unread::TooLarge);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Unread::Broken)? {
        if body.len() + chunk.len() > max {
            return Err(Unread::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
