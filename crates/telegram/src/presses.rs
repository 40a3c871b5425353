//! Presses of buttons, which Telegram wants answered: until then the button shows that it is busy.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::Value;
use tokio::sync::Notify;

use crate::client::Params;
use crate::telegram::Telegram;

/// How many presses wait for their answer. With more, the oldest go without: nobody looks at their buttons any more.
const WAITING: usize = 1000;

/// How many are answered at a time.
const AT_A_TIME: usize = 16;

#[derive(Default)]
pub(crate) struct Presses {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    queries: VecDeque<String>,
    /// The last ones that came: one that comes again is answered once.
    known: VecDeque<String>,
}

impl Presses {
    pub(crate) fn push(&self, query: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { queries, known } = &mut *waiting;
        if known.iter().any(|known| known == query) {
            return;
        }
        for queue in [queries, known] {
            if queue.len() >= WAITING {
                queue.pop_front();
            }
            queue.push_back(query.to_owned());
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    fn pop(&self) -> Option<String> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).queries.pop_front()
    }

    /// Answers presses for as long as it is polled.
    pub(crate) async fn answer(&self, telegram: &Telegram) -> Infallible {
        let mut calls = FuturesUnordered::new();
        loop {
            while calls.len() < AT_A_TIME
                && let Some(query) = self.pop()
            {
                calls.push(answer(telegram, query));
            }
            tokio::select! {
                Some(()) = calls.next(), if !calls.is_empty() => {}
                () = self.arrived.notified(), if calls.len() < AT_A_TIME => {}
            }
        }
    }
}

async fn answer(telegram: &Telegram, query: String) {
    let params = Params::from_iter([("callback_query_id".to_owned(), query.into())]);
    if let Err(failure) = telegram.ask::<Value>("answerCallbackQuery", params).await {
        // It is too old, or Telegram is away: the button stops showing that it is busy by itself.
        tracing::debug!(error = %failure.error, "a press was not answered");
    }
}
