use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::{Past, UserState, media};
use crate::core::content::Content;
use crate::core::error::{MediaUnavailable, SendError, StoreError};
use crate::core::id::{ChatId, ConversationKey, ParticipantId, RecordId, SendKey};
use crate::core::inbound::Inbound;
use crate::core::media::JournaledMedia;
use crate::core::store::ChatState;
use crate::core::time::Timestamp;
use crate::egress::{Egress, Sent, TurnScope};
use crate::flow::Entry;
use crate::scheduler::{Scheduler, Tasks};
use crate::texts::Text;
use crate::world::World;
use crate::{Error, Result};

/// A message and everything a handler does with it. Cheap to clone.
///
/// It acts under the turn of its chat: after the handler ended, sends fail with
/// [`SendError::LeaseLost`].
///
/// With durability, a handler may run again after a crash: the same message, and the sends it made are answered from
/// the outbox. So send in the same order each time, and give sends whose order depends on timing a key of their own.
#[derive(Clone)]
pub struct Ctx {
    inner: Arc<Inner>,
    text: Arc<str>,
    args: Arc<[String]>,
}

struct Inner {
    world: Arc<World>,
    egress: Arc<Egress>,
    scheduler: Arc<Scheduler>,
    scope: Arc<TurnScope>,
    inbound: Arc<Inbound>,
    media_unavailable: Option<MediaUnavailable>,
    arrived: Arrived,
    user: UserState,
    entry: Mutex<Option<Entry>>,
}

/// How a message came to be handled.
#[derive(Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) received: Timestamp,
    /// Its place in the order of arrival, with durability.
    pub(crate) order: Option<i64>,
    /// Whether it may have been handled before.
    pub(crate) replay: bool,
    /// Whether it has no attempts left if this one fails.
    pub(crate) last_attempt: bool,
    /// Whether it is an earlier message, in the place of the one that is handled.
    pub(crate) stand_in: bool,
}

impl Arrived {
    /// For what the bot does without a message.
    pub(crate) fn by_itself(now: Timestamp) -> Self {
        Self { received: now, order: None, replay: false, last_attempt: true, stand_in: false }
    }
}

/// A message that a step was left for.
pub(crate) struct StandIn {
    pub(crate) inbound: Arc<Inbound>,
    /// Its media as the inbox keeps it.
    pub(crate) media: Option<JournaledMedia>,
    pub(crate) received: Timestamp,
    pub(crate) order: Option<i64>,
    pub(crate) record: Option<RecordId>,
    /// Its text as the hooks left it, if they changed it.
    pub(crate) text: Option<String>,
}

impl Ctx {
    pub(crate) fn new(
        world: Arc<World>,
        egress: Arc<Egress>,
        scheduler: Arc<Scheduler>,
        scope: Arc<TurnScope>,
        (inbound, media_unavailable): (Arc<Inbound>, Option<MediaUnavailable>),
        arrived: Arrived,
    ) -> Self {
        let id =
            inbound.sender.as_ref().map_or_else(|| inbound.chat.as_str().into(), |sender| sender.id.clone());
        let user = UserState::new(Arc::clone(&world), id, scope.record().cloned());
        let text = inbound.readable_text().into();
        let entry = Mutex::new(None);
        let inner =
            Inner { world, egress, scheduler, scope, inbound, media_unavailable, arrived, user, entry };
        Self { inner: Arc::new(inner), text, args: Arc::from([]) }
    }

    /// An earlier message in the place of this one, under the same turn.
    pub(crate) fn stand_in(&self, earlier: StandIn) -> Self {
        let StandIn { inbound, media, received, order, record, text } = earlier;
        let (world, turn) = (Arc::clone(self.world()), self.scope().turn().clone());
        let base = record.as_ref().map(ToString::to_string);
        let scope = Arc::new(TurnScope::new(Arc::clone(&world), turn, record, base, true));
        let event = media::rebuilt(&*world.provider, &inbound, media.as_ref());
        let (egress, scheduler) = (Arc::clone(&self.inner.egress), Arc::clone(&self.inner.scheduler));
        let last_attempt = self.is_last_attempt();
        let arrived = Arrived { received, order, replay: true, last_attempt, stand_in: true };
        let ctx = Self::new(world, egress, scheduler, scope, event, arrived);
        match text {
            Some(text) => ctx.with_text(text),
            None => ctx,
        }
    }

    /// Whether this is an earlier message, in the place of the one that is handled.
    pub(crate) fn is_stand_in(&self) -> bool {
        self.inner.arrived.stand_in
    }

    pub(crate) fn with_text(mut self, text: String) -> Self {
        self.text = text.into();
        self
    }

    pub(crate) fn with_args(mut self, args: Vec<String>) -> Self {
        self.args = args.into();
        self
    }

    /// The event as it arrived.
    pub fn inbound(&self) -> &Inbound {
        &self.inner.inbound
    }

    pub(crate) fn shared_inbound(&self) -> Arc<Inbound> {
        Arc::clone(&self.inner.inbound)
    }

    /// When the event arrived.
    pub(crate) fn received(&self) -> Timestamp {
        self.inner.arrived.received
    }

    /// The message's place in the order of arrival, with durability.
    pub(crate) fn order(&self) -> Option<i64> {
        self.inner.arrived.order
    }

    /// Whether the message may have been handled before.
    pub(crate) fn is_replay(&self) -> bool {
        self.inner.arrived.replay
    }

    /// Whether the message has no attempts left if this one fails.
    pub(crate) fn is_last_attempt(&self) -> bool {
        self.inner.arrived.last_attempt
    }

    /// The text: of the message, its caption or the pressed button; or what a hook before the message made of it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Argument `n`, from 1: a group of the regular expression, what follows a command, or the rest of a button's id.
    /// Empty if there is none.
    pub fn arg(&self, n: usize) -> &str {
        n.checked_sub(1).and_then(|n| self.args.get(n)).map_or("", String::as_str)
    }

    /// The chat: the first id that it was known by. Where the channel gave it another one since, that is the
    /// [`address`](Inbound::address) of the event.
    pub fn chat(&self) -> &ChatId {
        &self.inner.inbound.chat
    }

    /// Who wrote; `None` where the channel does not say.
    pub fn sender(&self) -> Option<&ParticipantId> {
        self.inner.inbound.sender.as_ref().map(|sender| &sender.id)
    }

    /// The conversation: the chat, and in groups the participant too.
    pub fn conversation(&self) -> ConversationKey {
        self.inner.inbound.conversation()
    }

    /// The id of the message's inbox record: the same at every run of the message. `None` without durability.
    pub fn record(&self) -> Option<&RecordId> {
        self.inner.scope.record()
    }

    pub(super) fn media_unavailable(&self) -> Option<&MediaUnavailable> {
        self.inner.media_unavailable.as_ref()
    }

    /// The state of the user who wrote, kept across conversations.
    pub fn user(&self) -> &UserState {
        &self.inner.user
    }

    /// The chat's language: the one chosen for the chat, else the one its user has set in the channel.
    ///
    /// # Errors
    /// The store's failure.
    pub async fn language(&self) -> Result<Option<String>, StoreError> {
        let chosen = self.inner.world.store.chat(self.chat()).await?.and_then(|chat| chat.language);
        Ok(chosen.or_else(|| self.sender_language().map(str::to_owned)))
    }

    /// The language that the user has set in the channel.
    fn sender_language(&self) -> Option<&str> {
        self.inner.inbound.sender.as_ref()?.language.as_deref()
    }

    /// A built-in text in the chat's [language](Self::language), as [`BotBuilder::texts`](crate::BotBuilder::texts) has it.
    /// If the store does not say which language was chosen, which is told with the event `error`, it is the one that the
    /// user has set in the channel.
    pub async fn text_of(&self, text: Text) -> Content {
        const CONTEXT: &str = "reading the language of a chat";
        let world = &self.inner.world;
        match self.language().await {
            Ok(language) => {
                world.events.over(CONTEXT);
                world.texts.get(text, language.as_deref())
            }
            Err(error) => {
                world.trouble(CONTEXT, &error);
                world.texts.get(text, self.sender_language())
            }
        }
    }

    /// Chooses the chat's language, as a BCP 47 tag such as `es`.
    ///
    /// # Errors
    /// The store's failure.
    pub async fn set_language(&self, language: impl Into<String>) -> Result<(), StoreError> {
        let state = ChatState { language: Some(language.into()) };
        self.inner.world.store.set_chat(self.chat(), &state).await
    }

    /// Sends to the message's chat.
    ///
    /// # Errors
    /// With durability, [`SendError::Deferred`] if the channel keeps failing: the send goes on in the background. A handler
    /// that returns it ends there, and is not run again: what it would have sent afterwards is not sent. To go on, treat
    /// it as sent.
    ///
    /// # Cancel safety
    /// A dropped call leaves the send ambiguous; it is settled in the background like after a crash.
    pub async fn reply(&self, content: impl Into<Content>) -> Result<Sent, SendError> {
        self.inner.egress.reply(&self.inner.scope, None, self.chat(), content.into()).await
    }

    /// Sends to the message's chat under a name of its own within the message: for replies whose order or number may
    /// differ when the message runs again, as with sends that run at the same time. A second send of the same name is
    /// answered from the outbox, even with other content.
    ///
    /// # Errors
    /// As [`reply`](Self::reply).
    pub async fn reply_named(&self, name: &str, content: impl Into<Content>) -> Result<Sent, SendError> {
        let key = self.inner.scope.named_key(name);
        self.inner.egress.reply(&self.inner.scope, key, self.chat(), content.into()).await
    }

    /// Sends to another chat.
    ///
    /// # Errors
    /// As [`reply`](Self::reply).
    pub async fn send(&self, chat: &ChatId, content: impl Into<Content>) -> Result<Sent, SendError> {
        if chat == self.chat() {
            return self.reply(content).await;
        }
        self.inner.egress.send(Some(&self.inner.scope), None, chat, content.into()).await
    }

    /// Sends to the message's chat under a key of the caller's choice: whoever sends it again is answered from the
    /// outbox, even with other content.
    ///
    /// # Errors
    /// As [`reply`](Self::reply).
    pub async fn send_keyed(
        &self,
        key: impl Into<SendKey>,
        content: impl Into<Content>,
    ) -> Result<Sent, SendError> {
        self.inner.egress.reply(&self.inner.scope, Some(key.into()), self.chat(), content.into()).await
    }

    /// Shows the chat that an answer is being written, for as long as the channel shows it: some seconds. Tried once; a
    /// failure is not worth a message, and is only logged.
    pub async fn show_typing(&self) {
        let world = &self.inner.world;
        if !world.lead.may_call() {
            return;
        }
        if let Err(error) = world.provider.show_typing(self.inbound()).await {
            tracing::debug!(%error, chat = %self.chat(), "typing was not shown");
        }
    }

    /// What durable tasks are to run later.
    pub fn tasks(&self) -> Tasks {
        Tasks::new(Arc::clone(&self.inner.scheduler)).counting_from(self.inner.arrived.received)
    }

    /// Enters a flow with its default state, or a conversation. It begins when the handler returned. Called in a step of a
    /// flow or in a conversation, it replaces that one when the step or the conversation ends.
    pub fn enter(&self, flow: impl Into<String>) {
        self.set_entry(Entry { flow: flow.into(), state: None });
    }

    /// Enters a flow with this state, or a conversation with this input; see [`enter`](Self::enter).
    ///
    /// # Errors
    /// The state cannot be written as JSON.
    pub fn enter_with<S: Serialize>(&self, flow: impl Into<String>, state: &S) -> Result<(), Error> {
        self.set_entry(Entry { flow: flow.into(), state: Some(serde_json::to_value(state)?) });
        Ok(())
    }

    pub(crate) fn set_entry(&self, entry: Entry) {
        *self.inner.entry.lock().unwrap_or_else(PoisonError::into_inner) = Some(entry);
    }

    pub(crate) fn take_entry(&self) -> Option<Entry> {
        self.inner.entry.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn has_entry(&self) -> bool {
        self.inner.entry.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// What code keeps of the message that waits for the next one.
    pub(crate) fn leave(&self) -> Past {
        let Inner { world, egress, scheduler, .. } = &*self.inner;
        Past {
            world: Arc::clone(world),
            egress: Arc::clone(egress),
            scheduler: Arc::clone(scheduler),
            key: self.conversation(),
            entry: self.take_entry().map(Box::new),
        }
    }

    /// Goes on with what an earlier message left.
    pub(crate) fn go_on_from(&self, past: &mut Past) {
        if let Some(entry) = past.entry.take() {
            self.set_entry(*entry);
        }
    }

    pub(crate) fn scope(&self) -> &TurnScope {
        &self.inner.scope
    }

    pub(crate) fn shared_scope(&self) -> Arc<TurnScope> {
        Arc::clone(&self.inner.scope)
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.inner.world
    }
}

impl std::fmt::Debug for Ctx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ctx")
            .field("record", &self.record())
            .field("chat", self.chat())
            .finish_non_exhaustive()
    }
}
