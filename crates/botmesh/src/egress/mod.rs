//! Sends: journaled under an idempotency key before the channel is called, answered from the outbox when repeated.

mod attempt;
mod backlog;
mod broadcast;
mod chat;
mod echo;
mod pace;
mod parts;
mod scope;
mod unfinished;

use std::sync::Arc;
use std::time::Duration;

use crate::bot::{Enqueued, OnDiverged};
use crate::core::content::{Content, ContentBody};
use crate::core::entropy::random_hex;
use crate::core::error::{Cas, ChannelError, Effect, ErrorClass, Phase, SendError, StoreError};
use crate::core::hash::stable_hash;
use crate::core::id::{ChatId, MessageId, SendKey};
use crate::core::journal::{Change, Leased, OutboxRecord, OutboxState, Send, Stored};
use crate::core::kv::Version;
use crate::core::provider::SendRequest;
use crate::core::spawn::Task;
use crate::core::store::Direction;
use crate::identities::Recipient;
use crate::lanes::{Lane, Lanes};
use crate::world::{OpenJournal, World};
use attempt::Attempted;
pub(crate) use backlog::Backlog;
pub(crate) use broadcast::{Broadcasts, Later};
pub(crate) use echo::Echoes;
pub(crate) use pace::{Pace, Slot};
use parts::{cut, is_foreign_part, own_key};
pub(crate) use scope::{KeyPosition, TurnScope, Unrecorded};
use unfinished::Beginning;

/// How long a message waits for the channel that is in no outbox.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

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
}

impl Egress {
    pub(crate) fn new(world: Arc<World>, hooks: SendHooks) -> Self {
        Self { world, hooks, lanes: Lanes::default() }
    }

    /// Sends within a turn, or outside of any (`scope` is `None`), to whoever has this id.
    pub(crate) async fn send(
        &self,
        scope: Option<&TurnScope>,
        key: Option<SendKey>,
        chat: &ChatId,
        content: Content,
    ) -> Result<Sent, SendError> {
        let recipient = self.world.recipient(chat).await;
        self.send_to(recipient, scope, key, content).await
    }

    /// Sends in the chat of this name, whoever has that as an id now.
    pub(crate) async fn reply(
        &self,
        scope: &TurnScope,
        key: Option<SendKey>,
        chat: &ChatId,
        content: Content,
    ) -> Result<Sent, SendError> {
        let recipient = self.world.named(chat).await;
        self.send_to(recipient, Some(scope), key, content).await
    }

    async fn send_to(
        &self,
        recipient: Result<Recipient, StoreError>,
        scope: Option<&TurnScope>,
        key: Option<SendKey>,
        content: Content,
    ) -> Result<Sent, SendError> {
        let chat = &match recipient {
            Ok(recipient) => recipient.key,
            Err(error) => {
                if let Some(scope) = scope {
                    scope.note_journal_failure();
                }
                return Err(error.into());
            }
        };
        // Then the hooks must not run again.
        let may_be_known = key.is_some() || scope.is_some_and(TurnScope::is_replay);
        let derived = if key.is_none() { scope.and_then(TurnScope::next_key) } else { None };
        let fingerprint = derived.is_some().then(|| fingerprint(chat, &content));
        let key = key.or(derived).unwrap_or_else(|| self.random_key());
        let source = scope.and_then(|scope| scope.record().cloned());
        let may_send = match (scope, &self.world.journal) {
            // What a turn sends waits in the outbox for the replica that leads.
            (Some(scope), Some(_)) if !scope.is_unjournaled() => self.may_act(Some(scope)).await,
            _ => self.may_call(scope).await,
        };
        let result = match (may_send, &self.world.journal) {
            (Err(refused), _) => Err(refused),
            (Ok(()), None) => self.send_directly(scope, key, chat, content).await,
            (Ok(()), Some(open)) => {
                let send = Send { key, chat: chat.clone(), content, fingerprint, source };
                self.send_journaled(open, scope, send, may_be_known).await
            }
        };
        match (&result, scope) {
            (Err(SendError::Journal(_)), Some(scope)) => scope.note_journal_failure(),
            (Err(SendError::LeaseLost(_)), Some(scope)) => scope.note_lease_lost(),
            _ => {}
        }
        result
    }

    /// Whether this process may call the channel now: for a turn, or on its own.
    async fn may_call(&self, scope: Option<&TurnScope>) -> Result<(), SendError> {
        self.may_act(scope).await?;
        Ok(self.world.lead.confirm().await?)
    }

    /// Whether this process may go on with a send: for a turn, or on its own.
    async fn may_act(&self, scope: Option<&TurnScope>) -> Result<(), SendError> {
        if let Some(scope) = scope {
            scope.check().await?;
            if scope.is_unjournaled() {
                return Ok(());
            }
        }
        Ok(self.world.check_lease(Leased::Sends)?)
    }

    /// Journals a send for the background.
    pub(crate) async fn enqueue(
        &self,
        mut key: SendKey,
        chat: &ChatId,
        content: Content,
    ) -> Result<Enqueued, SendError> {
        let chat = &self.world.recipient(chat).await?.key;
        let Some(open) = &self.world.journal else {
            let sent = self.send_directly(None, key, chat, content).await?;
            let (state, sent_at) = (OutboxState::Sent, Some(self.world.now()));
            return Ok(Enqueued { key: sent.key, known: false, state, sent: sent_at });
        };
        if let Some(known) = self.enqueued_before(open, &mut key).await? {
            return Ok(known);
        }
        let content = self.run_before_hooks(chat, content).await?;
        let mut send = Send { key, chat: chat.clone(), content, fingerprint: None, source: None };
        loop {
            let (now, contents) = (self.world.now(), self.cut(send.content.clone())?);
            let order = open.journal.next_order(now);
            let parts = self.parts(open, &send, contents, order, now, None).await?;
            if parts.known.is_none() {
                self.world.backlog.note(chat);
                self.journal_others(open, parts.others, false).await?;
                let outcome = open.journal.commit_one(Change::insert(&parts.first)).await?;
                self.world.backlog.note(chat);
                if let Cas::Applied(_) = outcome {
                    self.count_journaled(&[outcome]);
                    let state = OutboxState::Waiting;
                    return Ok(Enqueued { key: send.key, known: false, state, sent: None });
                }
            }
            if let Some(known) = self.enqueued_before(open, &mut send.key).await? {
                return Ok(known);
            }
        }
    }

    /// Where the send of this key stands, if there is one. The key becomes another where it is that of a part of a text.
    async fn enqueued_before(
        &self,
        open: &OpenJournal,
        key: &mut SendKey,
    ) -> Result<Option<Enqueued>, StoreError> {
        while let Some(Stored { record, .. }) = open.journal.outbox().get(key).await? {
            if !is_foreign_part(&record) {
                self.world.metrics.outbox_deduped.increment();
                let (key, state) = (key.clone(), record.state);
                let sent = (state == OutboxState::Sent).then_some(record.changed);
                return Ok(Some(Enqueued { key, known: true, state, sent }));
            }
            *key = own_key(key);
        }
        Ok(None)
    }

    fn cut(&self, content: Content) -> Result<Vec<Content>, ChannelError> {
        cut(content, self.world.provider.capabilities())
    }

    fn count_journaled(&self, outcomes: &[Cas<Version>]) {
        for _ in outcomes.iter().filter(|outcome| matches!(outcome, Cas::Applied(_))) {
            self.world.metrics.outbox_journaled.increment();
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

    async fn send_directly(
        &self,
        scope: Option<&TurnScope>,
        key: SendKey,
        chat: &ChatId,
        content: Content,
    ) -> Result<Sent, SendError> {
        if let Some(scope) = scope {
            scope.note_new_send();
        }
        let content = self.run_before_hooks(chat, content).await?;
        let contents = self.cut(content)?;
        let lane = self.lanes.enter(chat).await;
        let delivered = self.call_for_each(scope, &key, chat, contents).await?;
        drop(lane);
        let sent = self.after_direct(chat, delivered).await;
        Ok(sent.unwrap_or(Sent { key, message: None, deduped: false }))
    }

    /// Calls the channel without the outbox.
    async fn call_for_each(
        &self,
        scope: Option<&TurnScope>,
        key: &SendKey,
        chat: &ChatId,
        contents: Vec<Content>,
    ) -> Result<Vec<(Content, Sent)>, SendError> {
        let mut delivered = Vec::with_capacity(contents.len());
        for content in contents {
            self.await_slot(chat).await?;
            self.may_call(scope).await?;
            let address = self.world.named(chat).await?.address;
            let receipt = self.world.call_channel(chat, SendRequest::new(&address, &content)).await?;
            let message = Some(receipt.message);
            delivered.push((content, Sent { key: key.clone(), message, deduped: false }));
        }
        Ok(delivered)
    }

    /// Waits until a message may go out that is in no outbox.
    async fn await_slot(&self, chat: &ChatId) -> Result<(), ChannelError> {
        loop {
            let wait = match self.world.take_slot(chat) {
                Slot::Free => return Ok(()),
                Slot::ChatIn(wait) | Slot::AnyIn(wait) => wait,
            };
            if wait > LONGEST_PAUSE {
                let detail =
                    "the channel asked for no message now; with durability, it would wait in the outbox";
                return Err(ChannelError::new(ErrorClass::RateLimited, Phase::NotWritten, detail)
                    .with_retry_after(wait));
            }
            self.world.seams.clock.sleep(wait).await;
        }
    }

    async fn after_direct(&self, chat: &ChatId, delivered: Vec<(Content, Sent)>) -> Option<Sent> {
        for (content, sent) in &delivered {
            self.after_sent(chat, content, sent).await;
        }
        delivered.into_iter().next().map(|(_, sent)| sent)
    }

    async fn send_journaled(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        mut send: Send,
        may_be_known: bool,
    ) -> Result<Sent, SendError> {
        loop {
            let (begun, lane) = self.begin(open, scope, &send, may_be_known).await?;
            if let (Some(scope), false) = (scope, matches!(begun, Begun::Known(_))) {
                scope.note_new_send();
            }
            match begun {
                Begun::InFlight(stored, address) => {
                    return self.attempt_first(open, scope, stored, &address, lane).await;
                }
                Begun::Waiting(key) => return Box::pin(self.finish(open, scope, key, lane)).await,
                Begun::Bypassed(delivered) => {
                    drop(lane);
                    let sent = Box::pin(self.after_direct(&send.chat, delivered)).await;
                    return Ok(sent.unwrap_or(Sent { key: send.key, message: None, deduped: false }));
                }
                Begun::Known(stored) if is_foreign_part(&stored.record) => send.key = own_key(&send.key),
                Begun::Known(stored) => match self.diverged_key(open, scope, &send, &stored.record) {
                    // Once only: without a fingerprint, nothing diverges.
                    Some(key) => send = Send { key, fingerprint: None, ..send },
                    None => return Box::pin(self.finish(open, scope, stored.record.key, lane)).await,
                },
            }
        }
    }

    /// The first attempt of a send that was born in flight. What follows it is not among the usual, and kept apart: a send
    /// that arrives at once needs less memory.
    async fn attempt_first(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        started: Stored<OutboxRecord>,
        address: &ChatId,
        lane: Lane<'_>,
    ) -> Result<Sent, SendError> {
        let key = started.record.key.clone();
        match self.attempt(open, scope, started, address).await? {
            Attempted::Sent(record) => {
                drop(lane);
                let sent = Sent { key, message: record.message, deduped: false };
                self.after_sent(&record.chat, &record.content, &sent).await;
                Ok(sent)
            }
            Attempted::Unknown => Ok(Sent { key, message: None, deduped: false }),
            Attempted::Dead(record) => Err(dead(&record)),
            // The replica that leads now sends it.
            Attempted::Waiting(_) | Attempted::Refused(SendError::NotLeader(_)) => {
                Box::pin(self.finish(open, scope, key, lane)).await
            }
            Attempted::Lost => Err(SendError::Deferred { key }),
            Attempted::Refused(lost) => Err(lost),
        }
    }

    /// Journals a send, unless its key is known; with the chat's lane. The hooks run outside of it, because they
    /// may send to the chat.
    async fn begin<'a>(
        &'a self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        send: &Send,
        may_be_known: bool,
    ) -> Result<(Begun, Lane<'a>), SendError> {
        if may_be_known {
            let lane = self.lanes.enter(&send.chat).await;
            if let Some(stored) = open.journal.outbox().get(&send.key).await? {
                return Ok((Begun::Known(stored), lane));
            }
        }
        let content = self.run_before_hooks(&send.chat, send.content.clone()).await?;
        let contents = self.cut(content)?;
        let lane = self.lanes.enter(&send.chat).await;
        let max = open.max_payload();
        if let Some(size) = contents.iter().find_map(|content| oversized(content, max)) {
            self.world.metrics.outbox_bypassed.increment();
            tracing::warn!(key = %send.key, size, "the content is too large for the outbox and is sent without it");
            let delivered = self.call_for_each(scope, &send.key, &send.chat, contents).await?;
            return Ok((Begun::Bypassed(delivered), lane));
        }
        if !scope.is_some_and(TurnScope::is_unjournaled) {
            return self.journal(open, scope, send, contents, lane).await;
        }
        match self.journal(open, scope, send, contents.clone(), lane).await {
            Err(SendError::Journal(error)) if error.effect() == Effect::None => {
                self.world.metrics.outbox_bypassed.increment();
                tracing::warn!(key = %send.key, %error, "the outbox cannot be written and is done without");
                let lane = self.lanes.enter(&send.chat).await;
                let delivered = self.call_for_each(scope, &send.key, &send.chat, contents).await?;
                Ok((Begun::Bypassed(delivered), lane))
            }
            begun => begun,
        }
    }

    /// Where a message to the chat goes, if it does so at once.
    async fn goes_out_at_once(&self, chat: &ChatId) -> Option<ChatId> {
        let first = self.world.lead.may_call() && !self.world.backlog.may_hold(chat);
        let address = if first { self.address_of(chat).await } else { None };
        address.filter(|_| self.world.take_slot(chat) == Slot::Free)
    }

    /// Journals a send in one or more parts, unless its key is known.
    async fn journal<'a>(
        &'a self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        send: &Send,
        mut contents: Vec<Content>,
        lane: Lane<'a>,
    ) -> Result<(Begun, Lane<'a>), SendError> {
        let now = self.world.now();
        let address = match contents.len() {
            1 => self.goes_out_at_once(&send.chat).await,
            _ => None,
        };
        let record = match contents.pop() {
            Some(content) if address.is_some() => {
                let order = open.journal.next_order(now);
                let Send { key, chat, fingerprint, source, .. } = send;
                let (key, chat, source) = (key.clone(), chat.clone(), source.clone());
                let send = Send { key, chat, content, fingerprint: *fingerprint, source };
                OutboxRecord::in_flight(send, order, open.journal.owner(), now)
            }
            last => {
                contents.extend(last);
                self.world.backlog.note(&send.chat);
                let order = Box::pin(self.order_behind(open, &send.chat, now)).await?;
                // Apart, because it is seldom: a send that arrives at once needs less memory.
                let parts = Box::pin(self.parts(open, send, contents, order, now, None)).await?;
                if let Some(known) = parts.known {
                    return Ok((Begun::Known(known), lane));
                }
                Box::pin(self.journal_others(open, parts.others, waits_for_backend(scope))).await?;
                parts.first
            }
        };
        self.journal_record(open, scope, record, address, lane).await
    }

    async fn journal_record<'a>(
        &'a self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        record: OutboxRecord,
        address: Option<ChatId>,
        lane: Lane<'a>,
    ) -> Result<(Begun, Lane<'a>), SendError> {
        let Unrecorded { mut changes, answered } = scope.map(TurnScope::take_pending).unwrap_or_default();
        let with = changes.clone();
        let change = open.journal.identified(Change::insert(&record));
        changes.push(change.clone());
        let beginning = Beginning { world: &self.world, record: &record, change, with, open: true };
        let waits = waits_for_backend(scope);
        let since = self.world.monotonic();
        let committed = match waits {
            true => open.journal.commit_patiently(changes, &self.world.abort).await,
            false => open.journal.commit(changes).await,
        };
        let mut outcomes = match committed {
            // The beginning is left open: the send goes on in the background.
            Err(error) if !waits && error.effect() == Effect::Unknown => {
                return Err(SendError::Deferred { key: record.key.clone() });
            }
            known => {
                beginning.close();
                known?
            }
        };
        let now = self.world.monotonic();
        self.world.metrics.note_recorded(&answered, now);
        if let Some(scope) = scope {
            scope.note_wait(now.saturating_sub(since));
        }
        let own = outcomes.pop();
        self.world.count_stale(&outcomes);
        if let Some(Cas::Applied(version)) = own {
            self.world.metrics.outbox_journaled.increment();
            return Ok(match address {
                Some(address) => (Begun::InFlight(Stored { record, version }, address), lane),
                None => (Begun::Waiting(record.key), lane),
            });
        }
        match open.journal.outbox().get(&record.key).await? {
            Some(stored) => Ok((Begun::Known(stored), lane)),
            None => Err(SendError::Deferred { key: record.key }),
        }
    }

    /// The key for content that differs from what was recorded under the send's own key, if the policy is to send it.
    fn diverged_key(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        send: &Send,
        recorded: &OutboxRecord,
    ) -> Option<SendKey> {
        let (now, before) = (send.fingerprint?, recorded.fingerprint?);
        if now == before {
            return None;
        }
        self.world.metrics.outbox_diverged.increment();
        tracing::warn!(key = %send.key, "a replay sends something else under this key");
        let sends = open.config.outbox.on_diverged == OnDiverged::Send;
        (sends && !scope.is_some_and(TurnScope::is_past))
            .then(|| SendKey::from(format!("{}~{now:016x}", send.key)))
    }
}

enum Begun {
    /// The channel is to be called at once, for this address.
    InFlight(Stored<OutboxRecord>, ChatId),
    /// In parts, or behind earlier sends of its chat.
    Waiting(SendKey),
    Known(Stored<OutboxRecord>),
    Bypassed(Vec<(Content, Sent)>),
}

/// Whether a send waits until a backend that is away is back, as its message does.
fn waits_for_backend(scope: Option<&TurnScope>) -> bool {
    scope.is_some_and(|scope| !scope.is_unjournaled())
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
        && content.spans.is_empty()
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
