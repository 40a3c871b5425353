//! Long polling. Telegram keeps an update until it is asked for a later one, so that is asked for only when everything
//! before it is in the bot's hands.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use botmesh_core::CancellationToken;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::ChatId;
use botmesh_core::provider::{AdmitError, ConnectionState, InboundSink};
use futures_util::future::join_all;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::Params;
use crate::refusal::Failure;
use crate::telegram::Telegram;
use crate::update::{KINDS, Update};

/// How much longer than Telegram's own wait a poll may take.
const GRACE: Duration = Duration::from_secs(10);

/// How long the last poll may take, which only confirms.
const GOODBYE: Duration = Duration::from_secs(3);

/// The longest wait while the journal is down.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Updates per poll; it is the most that Telegram gives.
const PAGE: usize = 100;

pub(crate) async fn run(
    telegram: &Telegram,
    sink: &dyn InboundSink,
    stop: &CancellationToken,
) -> Result<(), ChannelError> {
    let Ok(_running) = telegram.state.running.try_lock() else {
        let detail = "this provider is already running; run it once, or make another one";
        return Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail));
    };
    let _shown = Shown::connecting(telegram);
    let mut poller = Poller { telegram, offset: None };
    let polled = async {
        telegram.introduce().await?;
        if telegram.settings.deletes_webhook {
            telegram.delete_webhook().await?;
        }
        poller.poll(sink).await
    };
    let polled = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        never = telegram.state.presses.answer(telegram) => match never {},
        polled = polled => polled,
    };
    if stop.is_cancelled() {
        poller.say_goodbye().await;
    }
    polled
}

/// The state of the connection is closed when the run ends, in whatever way.
struct Shown<'a>(&'a Telegram);

impl<'a> Shown<'a> {
    fn connecting(telegram: &'a Telegram) -> Self {
        telegram.state.connection.send_replace(ConnectionState::Connecting);
        Self(telegram)
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.0.state.connection.send_replace(ConnectionState::Closed);
    }
}

/// The updates of one chat, under the id that it has now, or those that cannot be read.
struct Lane<'a> {
    chat: Option<ChatId>,
    updates: Vec<(Box<Update>, &'a RawValue)>,
}

struct Poller<'a> {
    telegram: &'a Telegram,
    /// The first update that is not confirmed. Unknown at first: Telegram then gives everything that nobody confirmed.
    offset: Option<i64>,
}

impl Poller<'_> {
    /// Polls for ever.
    async fn poll(&mut self, sink: &dyn InboundSink) -> Result<(), ChannelError> {
        let mut refused = 0u32;
        loop {
            let page = self.page().await?;
            self.telegram.state.connection.send_replace(ConnectionState::Open);
            match self.take(sink, &page).await {
                Ok(()) => refused = 0,
                Err(AdmitError::Stopping) => return Ok(()),
                Err(AdmitError::Journal(error)) => {
                    refused += 1;
                    tracing::warn!(%error, offset = ?self.offset, "updates stay at Telegram until they can be journaled");
                    let wait = Duration::from_secs(1).saturating_mul(2u32.saturating_pow(refused - 1));
                    self.telegram.settings.clock.sleep(wait.min(LONGEST_WAIT)).await;
                }
                Err(error) => {
                    let detail = "updates were not taken over";
                    let error = ChannelError::new(ErrorClass::Transient, Phase::NotWritten, detail)
                        .with_source(error);
                    return Err(error);
                }
            }
        }
    }

    /// What is new.
    async fn page(&self) -> Result<Vec<Box<RawValue>>, Failure> {
        let params = self.params(self.telegram.settings.poll_timeout, PAGE);
        let patience = self.telegram.settings.poll_timeout + GRACE;
        let result = self.telegram.settings.client.call("getUpdates", params, Vec::new(), patience).await?;
        serde_json::from_str(result.get()).map_err(|error| {
            let detail = "the page of updates is no list";
            ChannelError::new(ErrorClass::Transient, Phase::Answered, detail).with_source(error).into()
        })
    }

    fn params(&self, timeout: Duration, limit: usize) -> Params {
        let mut params = Params::from_iter([
            ("timeout".to_owned(), Value::from(timeout.as_secs())),
            ("limit".to_owned(), limit.into()),
            ("allowed_updates".to_owned(), json!(KINDS)),
        ]);
        if let Some(offset) = self.offset {
            params.insert("offset".into(), offset.into());
        }
        params
    }

    /// Hands a page over, each chat in its order, and moves the offset up to what was not taken.
    async fn take(&mut self, sink: &dyn InboundSink, page: &[Box<RawValue>]) -> Result<(), AdmitError> {
        let updates: Vec<_> =
            page.iter().map(|raw| (self.telegram.read(raw.get().as_bytes()), raw)).collect();
        for (update, _) in &updates {
            self.telegram.tell_moved(sink, update).await?;
        }
        let mut lanes: Vec<Lane<'_>> = Vec::new();
        let mut ids = BTreeSet::new();
        for (update, raw) in updates {
            ids.extend(update.id);
            let chat = update.content.as_ref().ok().map(|inbound| self.chat_now(&inbound.chat));
            match lanes.iter_mut().find(|lane| lane.chat == chat) {
                Some(lane) => lane.updates.push((update, &**raw)),
                None => lanes.push(Lane { chat, updates: vec![(update, &**raw)] }),
            }
        }
        let last = ids.last().copied();
        let pending = Mutex::new(ids);
        let lanes = lanes.into_iter().map(|lane| hand_over_in_order(self.telegram, sink, lane, &pending));
        let outcomes = join_all(lanes).await;
        let pending = pending.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Update ids may fall after a quiet week: only this page counts.
        self.offset = pending.first().copied().or(last.map(|last| last.saturating_add(1))).or(self.offset);
        outcomes.into_iter().collect()
    }

    /// The chat under the id that it has now: what came from both is one chat.
    fn chat_now(&self, chat: &ChatId) -> ChatId {
        self.telegram.id_now(chat.as_str()).map_or_else(|| chat.clone(), |now| now.to_string().into())
    }

    /// Confirms what was taken, so that it is not delivered again.
    async fn say_goodbye(&mut self) {
        if self.offset.is_some() {
            let params = self.params(Duration::ZERO, 1);
            let goodbye = self.telegram.settings.client.call("getUpdates", params, Vec::new(), GOODBYE).await;
            if let Err(failure) = goodbye {
                tracing::debug!(error = %failure.error, "the last updates were not confirmed and will come again");
            }
        }
    }
}

/// Hands over the updates of one chat, one after the other, up to the first that is not taken.
async fn hand_over_in_order(
    telegram: &Telegram,
    sink: &dyn InboundSink,
    lane: Lane<'_>,
    pending: &Mutex<BTreeSet<i64>>,
) -> Result<(), AdmitError> {
    for (update, raw) in lane.updates {
        let id = update.id;
        telegram.hand_over(sink, update, raw.get().as_bytes()).await?;
        if let Some(id) = id {
            pending.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }
    Ok(())
}
