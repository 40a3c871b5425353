//! Sends: journaled under an idempotency key before the channel is called, answered from the outbox when repeated.

mod attempt;
mod scope;
mod unfinished;

use std::sync::Arc;

use crate::bot::OnDiverged;
use crate::core::content::{Content, ContentBody};
use crate::core::entropy::random_hex;
use crate::core::error::{Cas, Effect, SendError};
use crate::core::hash::stable_hash;
use crate::core::id::{ChatId, MessageId, SendKey};
use crate::core::journal::{Change, OutboxRecord, OutboxState, Send, Stored};
use crate::core::provider::SendRequest;
use crate::core::spawn::Task;
use crate::core::store::Direction;
use crate::lanes::{Lane, Lanes};
use crate::world::{OpenJournal, World};
use attempt::InlineRetries;
pub(crate) use scope::TurnScope;
use unfinished::Beginning;

/// A boxed future with a value.
pub(crate) type Boxed<T> = std::pin::Pin<Box<dyn Future<Output = T> + std::marker::Send>>;

/// A message that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// The send's key.
    pub key: SendKey,
    /// The channel's id of the message; `None` if the channel gave none or nobody knows whether it arrived.
    pub message: Option<MessageId>,
    /// Whether it was answered from the outbox instead of going out now.
    pub deduped: bool,
}

/// A hook before a send: returns the content to send, or why nothing is sent.
pub(crate) type BeforeSend =
    Arc<dyn Fn(ChatId, Content) -> Boxed<Result<Content, String>> + std::marker::Send + Sync>;
/// A hook after a send.
pub(crate) type AfterSend = Arc<dyn Fn(ChatId, Content, Sent) -> Task + std::marker::Send + Sync>;

/// What runs around each send.
#[derive(Default)]
pub(crate) struct SendHooks {
    pub(crate) before: Vec<BeforeSend>,
    pub(crate) after: Vec<AfterSend>,
}

pub(crate) struct Egress {
    world: Arc<World>,
    hooks: SendHooks,
    lanes: Lanes<ChatId>,
    /// Sends whose retries somebody waits for; the sweeper leaves them alone.
    inline: InlineRetries,
}

impl Egress {
    pub(crate) fn new(world: Arc<World>, hooks: SendHooks) -> Self {
        Self { world, hooks, lanes: Lanes::default(), inline: InlineRetries::default() }
    }

    /// Sends within a turn, or outside of any (`scope` is `None`).
    pub(crate) async fn send(
        &self,
        scope: Option<&TurnScope>,
        key: Option<SendKey>,
        chat: &ChatId,
        content: Content,
    ) -> Result<Sent, SendError> {
        if let Some(scope) = scope {
            scope.turn().check()?;
        }
        let derived = if key.is_none() { scope.and_then(TurnScope::next_key) } else { None };
        let fingerprint = derived.is_some().then(|| fingerprint(chat, &content));
        let key = key.or(derived).unwrap_or_else(|| self.random_key());
        let source = scope.and_then(|scope| scope.record().cloned());
        let Some(open) = &self.world.journal else {
            return self.send_directly(key, chat, content).await;
        };
        let send = Send { key, chat: chat.clone(), content, fingerprint, source };
        let result = self.send_journaled(open, scope, send).await;
        if let (Err(SendError::Journal(_)), Some(scope)) = (&result, scope) {
            scope.note_journal_failure();
        }
        result
    }

    /// Journals a send for the background. Returns where the send of this key stood if it was known before.
    pub(crate) async fn enqueue(
        &self,
        key: SendKey,
        chat: &ChatId,
        content: Content,
    ) -> Result<Option<OutboxState>, SendError> {
        let Some(open) = &self.world.journal else {
            self.send_directly(key, chat, content).await?;
            return Ok(None);
        };
        let content = self.run_before_hooks(chat, content).await?;
        let send = Send { key: key.clone(), chat: chat.clone(), content, fingerprint: None, source: None };
        let now = self.world.now();
        let record = OutboxRecord::waiting(send, open.journal.next_order(now), now);
        match open.journal.commit_one(Change::insert(&record)).await? {
            Cas::Applied(_) => {
                self.world.metrics.outbox_journaled.increment();
                Ok(None)
            }
            Cas::Lost => {
                self.world.metrics.outbox_deduped.increment();
                let stored = open.journal.outbox().get(&key).await?;
                Ok(stored.map(|stored| stored.record.state))
            }
        }
    }

    fn random_key(&self) -> SendKey {
        SendKey::from(format!(
            "r/{}{}",
            random_hex(&*self.world.seams.entropy),
            random_hex(&*self.world.seams.entropy)
        ))
    }

    async fn run_before_hooks(&self, chat: &ChatId, content: Content) -> Result<Content, SendError> {
        let mut content = content;
        for hook in &self.hooks.before {
            content = hook(chat.clone(), content).await.map_err(|reason| SendError::Stopped { reason })?;
        }
        Ok(content)
    }

    /// Not in the chat's lane: a hook may send to the chat.
    async fn after_sent(&self, chat: &ChatId, content: &Content, sent: &Sent) {
        if let Some(message) = sent.message.clone() {
            self.world.log_message(Direction::Out, chat, message, content.readable_text()).await;
        }
        for hook in &self.hooks.after {
            hook(chat.clone(), content.clone(), sent.clone()).await;
        }
    }

    async fn send_directly(&self, key: SendKey, chat: &ChatId, content: Content) -> Result<Sent, SendError> {
        let content = self.run_before_hooks(chat, content).await?;
        let lane = self.lanes.enter(chat).await;
        let receipt = self.world.provider.send(SendRequest::new(chat, &content)).await?;
        drop(lane);
        let sent = Sent { key, message: Some(receipt.message), deduped: false };
        self.after_sent(chat, &content, &sent).await;
        Ok(sent)
    }

    async fn send_journaled(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        mut send: Send,
    ) -> Result<Sent, SendError> {
        loop {
            let (begun, lane) = self.begin(open, scope, &send).await?;
            match begun {
                Begun::Fresh(stored) => return self.attempt_inline(open, scope, stored, lane).await,
                Begun::Bypassed(content, sent) => {
                    drop(lane);
                    Box::pin(self.after_sent(&send.chat, &content, &sent)).await;
                    return Ok(sent);
                }
                Begun::Known(stored) => match self.diverged_key(open, &send, &stored.record) {
                    // Once only: without a fingerprint, nothing diverges.
                    Some(key) => send = Send { key, fingerprint: None, ..send },
                    None => return Box::pin(self.answer(open, scope, stored, lane)).await,
                },
            }
        }
    }

    /// Journals a send in flight, unless its key is known; with the chat's lane. The hooks run outside of it, because they
    /// may send to the chat.
    async fn begin<'a>(
        &'a self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        send: &Send,
    ) -> Result<(Begun, Lane<'a>), SendError> {
        // A replay knows that its sends may be there already, and then the hooks must not run again.
        if scope.is_some_and(TurnScope::is_replay) {
            let lane = self.lanes.enter(&send.chat).await;
            if let Some(stored) = open.journal.outbox().get(&send.key).await? {
                return Ok((Begun::Known(stored), lane));
            }
        }
        let content = self.run_before_hooks(&send.chat, send.content.clone()).await?;
        let lane = self.lanes.enter(&send.chat).await;
        if let Some(size) = oversized(&content, open.config.outbox.max_payload_bytes) {
            self.world.metrics.outbox_bypassed.increment();
            tracing::warn!(key = %send.key, size, "the content is too large for the outbox and is sent without it");
            let receipt = self.world.provider.send(SendRequest::new(&send.chat, &content)).await?;
            let sent = Sent { key: send.key.clone(), message: Some(receipt.message), deduped: false };
            return Ok((Begun::Bypassed(content, sent), lane));
        }
        let now = self.world.now();
        let Send { key, chat, fingerprint, source, .. } = send;
        let (key, chat, source) = (key.clone(), chat.clone(), source.clone());
        let send = Send { key, chat, content, fingerprint: *fingerprint, source };
        let record = OutboxRecord::in_flight(send, open.journal.next_order(now), open.journal.owner(), now);
        let mut changes = scope.map(TurnScope::take_pending).unwrap_or_default();
        let with = changes.clone();
        changes.push(Change::insert(&record));
        let beginning = Beginning { world: &self.world, record: &record, replaces: None, with, open: true };
        let committed = match scope {
            // The message waits until the backend is back.
            Some(_) => open.journal.commit_patiently(changes, &self.world.abort).await,
            None => open.journal.commit(changes).await,
        };
        let mut outcomes = match committed {
            // The beginning is left open: the send goes on in the background.
            Err(error) if scope.is_none() && error.effect() == Effect::Unknown => {
                return Err(SendError::Deferred { key: record.key.clone() });
            }
            known => {
                beginning.close();
                known?
            }
        };
        let own = outcomes.pop();
        self.world.count_stale(&outcomes);
        if let Some(Cas::Applied(version)) = own {
            self.world.metrics.outbox_journaled.increment();
            return Ok((Begun::Fresh(Stored { record, version }), lane));
        }
        match open.journal.outbox().get(&record.key).await? {
            Some(stored) => Ok((Begun::Known(stored), lane)),
            None => Err(SendError::Deferred { key: record.key }),
        }
    }

    /// The key for content that differs from what was recorded under the send's own key, if the policy is to send it.
    fn diverged_key(&self, open: &OpenJournal, send: &Send, recorded: &OutboxRecord) -> Option<SendKey> {
        let (now, before) = (send.fingerprint?, recorded.fingerprint?);
        if now == before {
            return None;
        }
        self.world.metrics.outbox_diverged.increment();
        tracing::warn!(key = %send.key, "a replay sends something else under this key");
        (open.config.outbox.on_diverged == OnDiverged::Send)
            .then(|| SendKey::from(format!("{}~{now:016x}", send.key)))
    }

    /// What a send whose key is recorded comes to.
    async fn answer(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        stored: Stored<OutboxRecord>,
        lane: Lane<'_>,
    ) -> Result<Sent, SendError> {
        let key = stored.record.key.clone();
        match stored.record.state {
            OutboxState::Sent | OutboxState::Unknown => {
                self.world.metrics.outbox_deduped.increment();
                Ok(Sent { key, message: stored.record.message, deduped: true })
            }
            OutboxState::Dead => Err(dead(&stored.record)),
            OutboxState::Waiting => match self.start_attempt(open, &stored).await? {
                Some(started) => self.attempt_inline(open, scope, started, lane).await,
                None => Err(SendError::Deferred { key }),
            },
            OutboxState::InFlight => {
                let ours = open.journal.owner();
                let owner = stored.record.owner.clone().unwrap_or_else(|| ours.clone());
                if owner == ours || !open.journal.sessions().await?.is_dead(&owner) {
                    return Err(SendError::Deferred { key });
                }
                self.resolve_inline(open, scope, stored, lane).await
            }
        }
    }
}

enum Begun {
    Fresh(Stored<OutboxRecord>),
    Known(Stored<OutboxRecord>),
    Bypassed(Content, Sent),
}

fn dead(record: &OutboxRecord) -> SendError {
    let reason = record.error.as_ref().map_or_else(|| "given up".to_owned(), |note| note.detail.clone());
    SendError::Dead { key: record.key.clone(), reason }
}

/// The size of the content as JSON, if it is larger than `max`.
fn oversized(content: &Content, max: usize) -> Option<usize> {
    /// JSON writes a byte of text in at most this many, as in `\u0000`.
    const MAX_GROWTH: usize = 6;
    const ENVELOPE: usize = 100;
    if let ContentBody::Text { text } = &content.body
        && content.buttons.is_empty()
        && text.len() * MAX_GROWTH + ENVELOPE <= max
    {
        return None;
    }
    serde_json::to_vec(content).ok().map(|json| json.len()).filter(|&size| size > max)
}

/// What tells one send from another; stored, so it must stay as it is.
fn fingerprint(chat: &ChatId, content: &Content) -> u64 {
    let json = serde_json::to_vec(content).unwrap_or_default();
    stable_hash(chat.as_str().bytes().chain([0]).chain(json))
}
