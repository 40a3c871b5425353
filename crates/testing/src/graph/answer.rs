//! What Graph answers.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State as Extracted};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use botmesh::TokioSpawner;
use botmesh_core::spawn::Spawner;
use ring::digest;
use serde_json::{Value, json};

use super::strict::{self, Refused};
use super::{Duration, Echo, FakeGraph, GraphFault, GraphMessage, Product, pause, within};

/// The largest upload.
const MAX_BODY: usize = 110 << 20;

impl FakeGraph {
    pub(super) fn routes(&self) -> Router {
        Router::new().fallback(answer).layer(DefaultBodyLimit::max(MAX_BODY)).with_state(self.clone())
    }

    async fn take(&self, product: Product, node: &str, body: Value) -> Response {
        if body.get("sender_action").or_else(|| body.get("status")).is_some() {
            let answer = match body.get("status") {
                Some(_) => json!({ "success": true }),
                None => json!({ "recipient_id": body["recipient"]["id"] }),
            };
            self.state().calls.push(body);
            return json_of(&answer);
        }
        let fault = self.fault_of(&body);
        match fault {
            Some(GraphFault::Refuse { status, code, subcode }) => {
                return refused(status, &(code, subcode, format!("(#{code}) refused")));
            }
            Some(GraphFault::Broken(status)) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                return (status, "<html><body>Something went wrong</body></html>").into_response();
            }
            Some(GraphFault::Answer { status, headers, body }) => return answer_of(status, headers, body),
            Some(GraphFault::LoseMessage) => return cut(),
            _ => {}
        }
        let message = match self.accept(product, node, body) {
            Ok(message) => message,
            Err(error) => return refused(400, &error),
        };
        self.tell(product, &message).await;
        match fault {
            Some(GraphFault::LoseAnswer) => return cut(),
            Some(GraphFault::Slow(wait)) => pause(wait).await,
            _ => {}
        }
        json_of(&match product {
            Product::WhatsApp => {
                let named = if message.body.get("to").is_some() { "wa_id" } else { "user_id" };
                json!({
                    "messaging_product": "whatsapp", "contacts": [{ "input": message.to, named: message.to }],
                    "messages": [{ "id": message.id }],
                })
            }
            _ => json!({ "recipient_id": message.to, "message_id": message.id }),
        })
    }

    fn fault_of(&self, body: &Value) -> Option<GraphFault> {
        let mut state = self.state();
        state.attempts += 1;
        let fault = state.faults.pop_front();
        fault.or_else(|| state.rule.as_ref().and_then(|rule| rule(body)))
    }

    fn accept(&self, product: Product, node: &str, body: Value) -> Result<GraphMessage, Refused> {
        let id = self.next_id(if product == Product::WhatsApp { "wamid.OUT" } else { "m_OUT" });
        let mut state = self.state();
        let (to, delivered) = match product {
            Product::WhatsApp => strict::whatsapp(&state, &body)?,
            product => (strict::page(&state, product, &body)?, true),
        };
        let token = body.get("biz_opaque_callback_data").or_else(|| body["message"].get("metadata"));
        let token = token.and_then(Value::as_str).map(str::to_owned);
        let message = GraphMessage { id, from: node.to_owned(), to, token, delivered, body };
        state.sent.push(message.clone());
        drop(state);
        self.shared.delivered.send_modify(|count| *count += usize::from(delivered));
        Ok(message)
    }

    /// Posts what is to be posted about a message.
    async fn tell(&self, product: Product, message: &GraphMessage) {
        let echo = self.state().echo;
        let mut posts = self.echoes(product, message);
        if !message.delivered || echo == Echo::None {
            posts.clear();
        }
        if echo == Echo::Reversed {
            posts.reverse();
        }
        if echo == Echo::BeforeAnswer && !posts.is_empty() {
            let first = posts.remove(0);
            if within(Duration::from_secs(2), self.post_echo(product, &first)).await.is_none() {
                posts.insert(0, first);
            }
        }
        let server = self.clone();
        let all = async move {
            for post in posts {
                server.post_echo(product, &post).await;
            }
        };
        TokioSpawner.spawn("graph-echoes", Box::pin(all));
    }

    fn upload(&self, headers: &HeaderMap, body: &[u8]) -> Response {
        let boundary = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()?.split_once("boundary="));
        let part = boundary.and_then(|(_, boundary)| file_part(body, boundary.trim_matches('"')));
        match part {
            Some((mime, bytes)) => {
                let id = self.keep_media(&mime, bytes);
                json_of(&json!({ "id": id, "attachment_id": id }))
            }
            None => refused(400, &(100, 0, "(#100) no file".to_owned())),
        }
    }

    fn about_media(&self, id: &str) -> Response {
        match self.media(id) {
            Some((mime, bytes)) => json_of(&json!({
                "url": self.media_url(Product::WhatsApp, id), "mime_type": mime, "sha256": sha256(&bytes),
                "file_size": bytes.len().to_string(), "id": id, "messaging_product": "whatsapp",
            })),
            None => refused(400, &(100, 33, "(#100) Unsupported get request".to_owned())),
        }
    }
}

async fn answer(
    Extracted(server): Extracted<FakeGraph>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let given = token(&headers, &uri);
    if let (&Method::GET, ["cdn", id]) = (&method, &*path) {
        return server.download(id, uri.query().unwrap_or(""));
    }
    if ![FakeGraph::ACCESS_TOKEN, FakeGraph::PAGE_TOKEN].contains(&given) {
        // Graph repeats what it was given.
        return refused(401, &(190, 460, format!("Malformed access token {given}")));
    }
    match (method, &*path) {
        (Method::GET, ["media", id]) => server.download(id, uri.query().unwrap_or("")),
        (Method::GET, [version, id]) if version.starts_with('v') => server.about_media(id),
        (Method::POST, [_, _, "media" | "message_attachments"]) => server.upload(&headers, &body),
        (Method::POST, [version, node, "messages"]) if version.starts_with('v') => {
            let body = match serde_json::from_slice::<Value>(&body) {
                Ok(body) => body,
                Err(error) => return refused(400, &(100, 0, format!("(#100) no JSON: {error}"))),
            };
            let product = match *node {
                FakeGraph::PHONE_NUMBER_ID | FakeGraph::OTHER_PHONE_NUMBER_ID => Product::WhatsApp,
                FakeGraph::PAGE_ID => Product::Messenger,
                FakeGraph::ACCOUNT_ID => Product::Instagram,
                "me" if given == FakeGraph::PAGE_TOKEN => Product::Messenger,
                "me" => Product::Instagram,
                _ => return refused(400, &(100, 33, "(#100) no such node".to_owned())),
            };
            server.take(product, node, body).await
        }
        _ => refused(400, &(2500, 0, format!("Unknown path components: {}", uri.path()))),
    }
}

/// The token of a call: Graph takes it as a header and in the query.
fn token<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> &'a str {
    let header = headers.get(AUTHORIZATION).and_then(|given| given.to_str().ok()?.strip_prefix("Bearer "));
    let mut query = uri.query().unwrap_or("").split('&');
    header.or_else(|| query.find_map(|pair| pair.strip_prefix("access_token="))).unwrap_or("")
}

fn answer_of(status: u16, headers: Vec<(String, String)>, body: String) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let mut answer = (status, [(CONTENT_TYPE, "application/json")], body).into_response();
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

fn json_of(body: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn refused(status: u16, (code, subcode, message): &Refused) -> Response {
    let mut error =
        json!({ "message": message, "type": "OAuthException", "code": code, "fbtrace_id": "AbCdEf" });
    if *subcode != 0 {
        error["error_subcode"] = json!(subcode);
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    (status, json_of(&json!({ "error": error }))).into_response()
}

fn sha256(bytes: &[u8]) -> String {
    digest::digest(&digest::SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An answer that ends before it begins: the connection is cut.
fn cut() -> Response {
    let broken = std::io::Error::new(std::io::ErrorKind::ConnectionReset, "cut");
    let stream = futures_util::stream::once(std::future::ready(Err::<Bytes, _>(broken)));
    (StatusCode::OK, Body::from_stream(stream)).into_response()
}

/// The type and bytes of the part with a file name.
fn file_part<'a>(body: &'a [u8], boundary: &str) -> Option<(String, &'a [u8])> {
    let find = |text: &[u8], within: &[u8]| within.windows(text.len()).position(|window| window == text);
    let named = find(b"filename=", body)?;
    let head = find(b"\r\n\r\n", &body[named..])? + named;
    let end = find(format!("\r\n--{boundary}").as_bytes(), &body[head + 4..])? + head + 4;
    let lines = String::from_utf8_lossy(&body[named..head]).into_owned();
    let kind = lines
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-type:").map(str::to_owned));
    Some((kind.unwrap_or_default().trim().to_owned(), &body[head + 4..end]))
}
