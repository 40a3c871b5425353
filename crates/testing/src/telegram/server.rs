//! HTTP: requests to calls, and answers back.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Multipart};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Request, Response};
use botmesh_core::Bytes;
use futures_util::stream::{self, StreamExt};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::methods::{self, Refusal};
use super::state::{State, TOKEN, TelegramCall, TelegramFault};
use super::{delivery, polls};

/// The largest request.
const MAX_BODY: usize = 64 << 20;

pub(super) struct Shared {
    pub(super) address: SocketAddr,
    state: Mutex<State>,
    pub(super) changes: watch::Sender<u64>,
}

/// The connection is cut instead of an answer.
#[derive(Debug, thiserror::Error)]
#[error("a test cut the connection")]
struct Cut;

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }
}

/// `work`, unless it takes longer.
#[expect(
    clippy::disallowed_methods,
    reason = "the server is the world outside of the bot, with a clock of its own"
)]
pub(super) async fn in_time<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the server is the world outside of the bot, with a clock of its own"
)]
pub(super) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "the server is the world outside of the bot, with tasks of its own"
)]
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(task));
}

pub(super) async fn start() -> Arc<Shared> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port of this host");
    let address = listener.local_addr().expect("an address");
    let state = Mutex::new(State::new());
    let shared = Arc::new(Shared { address, state, changes: watch::Sender::new(0) });
    spawn(serve(listener, Arc::downgrade(&shared)));
    spawn(delivery::deliver(Arc::downgrade(&shared)));
    shared
}

/// Takes connections until nobody holds the server any more.
async fn serve(listener: TcpListener, shared: Weak<Shared>) {
    while shared.strong_count() > 0 {
        let Some(Ok((stream, _))) = in_time(Duration::from_millis(200), listener.accept()).await else {
            continue;
        };
        let shared = Weak::clone(&shared);
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let shared = shared.upgrade();
            async move {
                let Some(shared) = shared else { return Err(Cut) };
                answer(&shared, request.map(Body::new)).await
            }
        });
        // A connection that a test cut ends with an error, as it should.
        spawn(
            async move { drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await) },
        );
    }
}

async fn answer(shared: &Arc<Shared>, request: Request<Body>) -> Result<Response<Body>, Cut> {
    let path = request.uri().path().to_owned();
    if let Some(file) = path.strip_prefix("/file/bot").and_then(|rest| rest.strip_prefix(TOKEN)) {
        let id = file.trim_start_matches("/files/");
        let state = shared.lock();
        let bytes = state.files.get(id).filter(|_| state.local.is_none()).cloned();
        return Ok(match bytes {
            Some(bytes) => plain(200, bytes),
            None => refused(&(404, "Not Found".into(), Value::Null)),
        });
    }
    let Some((token, method)) = path.strip_prefix("/bot").and_then(|rest| rest.rsplit_once('/')) else {
        return Ok(refused(&(404, "Not Found".into(), Value::Null)));
    };
    if token != TOKEN {
        return Ok(refused(&(401, "Unauthorized".into(), Value::Null)));
    }
    let mut call = match read(method, request).await {
        Ok(call) => call,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    if let Err(refusal) = methods::check(&call) {
        shared.lock().calls.push(call);
        return Ok(refused(&refusal));
    }
    let fault = shared.lock().take_fault(&call);
    match fault {
        Some(TelegramFault::Cut) => return Err(Cut),
        Some(TelegramFault::Refuse { code, description, parameters }) => {
            record(shared, call);
            return Ok(refused(&(code, description, parameters)));
        }
        Some(TelegramFault::Gateway { status, body }) => {
            record(shared, call);
            return Ok(plain(status, body.into_bytes()));
        }
        _ => {}
    }
    let result = match call.method.as_str() {
        "getUpdates" => polls::updates(shared, &call.params).await,
        _ => {
            let mut state = shared.lock();
            let result = state.perform(&mut call);
            call.done = result.is_ok();
            state.calls.push(call);
            result.map(|result| result.to_string())
        }
    };
    shared.changed();
    match fault {
        Some(TelegramFault::LoseAnswer) => return Err(Cut),
        Some(TelegramFault::CutAnswer) => return Ok(cut_short()),
        Some(TelegramFault::Slow(time)) => sleep(time).await,
        _ => {}
    }
    Ok(match result {
        Ok(result) => json_body(200, format!(r#"{{"ok":true,"result":{result}}}"#)),
        Err(refusal) => refused(&refusal),
    })
}

fn record(shared: &Shared, call: TelegramCall) {
    shared.lock().calls.push(call);
    shared.changed();
}

/// The parameters of a request: JSON, a form with files, or a query.
async fn read(method: &str, request: Request<Body>) -> Result<TelegramCall, Refusal> {
    let mut call = TelegramCall {
        method: method.to_owned(),
        params: Map::new(),
        files: Vec::new(),
        done: false,
        message: None,
    };
    let kind =
        request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("").to_owned();
    let unreadable = |what: &str| (400, format!("Bad Request: {what}"), Value::Null);
    if kind.starts_with("multipart/form-data") {
        let mut form = Multipart::from_request(request, &()).await.map_err(|_| unreadable("no form"))?;
        while let Some(field) = form.next_field().await.map_err(|_| unreadable("a broken form"))? {
            let name = field.name().unwrap_or("").to_owned();
            let file = field.file_name().map(str::to_owned);
            let bytes = field.bytes().await.map_err(|_| unreadable("a broken form"))?;
            match file {
                Some(file) => call.files.push((name, file, bytes.len())),
                None => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    let is_text = ["text", "caption", "title", "address"].contains(&name.as_str());
                    let value = if is_text { None } else { serde_json::from_str(&text).ok() };
                    call.params.insert(name, value.unwrap_or(Value::String(text)));
                }
            }
        }
        return Ok(call);
    }
    let body = to_bytes(request.into_body(), MAX_BODY).await.map_err(|_| unreadable("a broken body"))?;
    if !body.is_empty() {
        call.params =
            serde_json::from_slice(&body).map_err(|_| unreadable("can't parse the JSON of the request"))?;
    }
    Ok(call)
}

fn refused((code, description, parameters): &Refusal) -> Response<Body> {
    let mut body = json!({ "ok": false, "error_code": code, "description": description });
    if !parameters.is_null() {
        body["parameters"] = parameters.clone();
    }
    let mut response = json_body(*code, body.to_string());
    if let Some(seconds) = parameters["retry_after"].as_u64() {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn json_body(status: u16, body: String) -> Response<Body> {
    let mut response = plain(status, body.into_bytes());
    response.headers_mut().insert(CONTENT_TYPE, axum::http::HeaderValue::from_static("application/json"));
    response
}

fn plain(status: u16, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = axum::http::StatusCode::from_u16(status).unwrap_or_default();
    response
}

/// The beginning of an answer, after which the connection breaks.
fn cut_short() -> Response<Body> {
    let beginning = stream::iter([Ok(Bytes::from_static(br#"{"ok":true,"result":{"mess"#))]);
    // So late that the beginning is on its way.
    let end = stream::once(async {
        sleep(Duration::from_millis(50)).await;
        Err(Cut)
    });
    Response::new(Body::from_stream(beginning.chain(end)))
}
