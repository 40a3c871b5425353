//! `getUpdates`: a page, or a wait for one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::methods::{Refusal, strings};
use super::server::{Shared, in_time, sleep};

/// How long the end of a connection may take to be noticed, before its poll counts as one that is under way.
const NOTICED: Duration = Duration::from_millis(300);

/// The longest wait that is granted.
const LONGEST: u64 = 50;

const OTHER_POLL: &str =
    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running";
const WEBHOOK: &str = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";

pub(super) async fn updates(shared: &Arc<Shared>, params: &Map<String, Value>) -> Result<String, Refusal> {
    let number = |name: &str| params.get(name).and_then(Value::as_i64);
    if shared.lock().webhook.is_some() {
        return Err((409, WEBHOOK.into(), Value::Null));
    }
    let poll = Poll::begin(shared).await;
    {
        let mut state = shared.lock();
        state.poll_params.push(params.clone());
        if let Some(allowed) = strings(params.get("allowed_updates")) {
            state.allowed = allowed;
        }
        match number("offset") {
            Some(offset) if offset < 0 => {
                return Err((400, "Bad Request: a negative offset drops updates".into(), Value::Null));
            }
            Some(offset) => state.confirm(offset),
            None => {}
        }
    }
    shared.changed();
    let limit = number("limit").and_then(|limit| usize::try_from(limit).ok()).unwrap_or(100).clamp(1, 100);
    let timeout = number("timeout").and_then(|timeout| u64::try_from(timeout).ok()).unwrap_or(0).min(LONGEST);
    let mut changes = shared.changes.subscribe();
    let page = in_time(Duration::from_secs(timeout), async {
        loop {
            changes.mark_unchanged();
            if let Some(page) = poll.look(limit) {
                return page;
            }
            let _ = changes.changed().await;
        }
    });
    match page.await {
        Some(page) => page,
        // Without a wait there may be updates all the same.
        None => poll.look(limit).unwrap_or(Ok("[]".into())),
    }
}

/// A poll that is under way until it is dropped.
struct Poll<'a> {
    shared: &'a Arc<Shared>,
    id: u64,
}

impl<'a> Poll<'a> {
    async fn begin(shared: &'a Arc<Shared>) -> Self {
        // Whoever is killed or stops has its connection closed, which takes a moment to be seen.
        let _ = in_time(NOTICED, async {
            while shared.lock().poll.is_some() {
                sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        let mut state = shared.lock();
        state.polls += 1;
        state.overlaps += usize::from(state.poll.is_some());
        let id = state.polls as u64;
        state.poll = Some(id);
        Self { shared, id }
    }

    /// A page, unless there is nothing and somebody else may still poll.
    fn look(&self, limit: usize) -> Option<Result<String, Refusal>> {
        let state = self.shared.lock();
        if state.poll != Some(self.id) {
            return Some(Err((409, OTHER_POLL.into(), Value::Null)));
        }
        let page: Vec<&str> = state.page(limit).iter().map(|update| update.raw.as_str()).collect();
        (!page.is_empty()).then(|| Ok(format!("[{}]", page.join(","))))
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.poll == Some(self.id) {
            state.poll = None;
        }
    }
}
