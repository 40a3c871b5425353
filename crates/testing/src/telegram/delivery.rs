//! Webhooks: updates are posted, lane by lane, and again until they are taken.

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use axum::http::{Request, Uri};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::server::{Shared, in_time, sleep, spawn};
use super::state::{Queued, Webhook, WebhookAnswer};

/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(60);

/// Before an update that was not taken is posted again. Telegram waits longer, and as long as it is asked to.
const AGAIN: Duration = Duration::from_millis(50);

/// Looks for updates to post until nobody holds the server any more.
pub(super) async fn deliver(shared: Weak<Shared>) {
    while let Some(server) = shared.upgrade() {
        let mut changes = server.changes.subscribe();
        let due = next(&server);
        let idle = due.is_empty();
        for (webhook, update) in due {
            spawn(post(Arc::clone(&server), webhook, update));
        }
        drop(server);
        if idle {
            let _ = in_time(Duration::from_millis(200), changes.changed()).await;
        }
    }
}

/// The first update of each lane that nothing is being posted of.
fn next(shared: &Shared) -> Vec<(Webhook, Queued)> {
    let mut state = shared.lock();
    let Some(webhook) = state.webhook.clone() else { return Vec::new() };
    let mut due: Vec<(Webhook, Queued)> = Vec::new();
    for update in &state.queue {
        let is_first = !due.iter().any(|(_, other)| other.lane == update.lane);
        if is_first && state.is_allowed(&update.kind) && !state.delivering.contains(&update.lane) {
            due.push((webhook.clone(), update.clone()));
        }
    }
    state.delivering.extend(due.iter().map(|(_, update)| update.lane.clone()));
    due
}

async fn post(shared: Arc<Shared>, webhook: Webhook, update: Queued) {
    let answer = in_time(ANSWER, send(&webhook, &update)).await.flatten();
    let taken = answer.as_ref().is_some_and(|(status, ..)| (200..300).contains(status));
    let (status, retry_after, body) = match answer {
        Some((status, retry_after, body)) => (Some(status), retry_after, body),
        None => (None, None, String::new()),
    };
    {
        let mut state = shared.lock();
        state.webhook_answers.push(WebhookAnswer { update: update.id, status, retry_after, body });
        if taken && let Some(place) = state.queue.iter().position(|queued| queued.id == update.id) {
            let done = state.queue.remove(place);
            state.confirmed.push(done);
        }
    }
    if !taken {
        sleep(AGAIN).await;
    }
    shared.lock().delivering.remove(&update.lane);
    shared.changed();
}

/// Status, `Retry-After` and body of the answer.
async fn send(webhook: &Webhook, update: &Queued) -> Option<(u16, Option<String>, String)> {
    let url: Uri = webhook.url.parse().ok()?;
    let authority = url.authority()?.to_string();
    let stream = TcpStream::connect(&authority).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    spawn(async move { drop(connection.await) });
    let mut request =
        Request::post(url.path()).header(HOST, authority).header(CONTENT_TYPE, "application/json");
    if let Some(secret) = &webhook.secret {
        request = request.header("X-Telegram-Bot-Api-Secret-Token", secret);
    }
    let response = sender.send_request(request.body(Body::from(update.raw.clone())).ok()?).await.ok()?;
    let status = response.status().as_u16();
    let retry_after =
        response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body = to_bytes(Body::new(response.into_body()), 1 << 20).await.ok()?;
    Some((status, retry_after, String::from_utf8_lossy(&body).into_owned()))
}
