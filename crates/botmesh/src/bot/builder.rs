use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Bot, Coordination, Durability, TokioSpawner, TurnsConfig};
use crate::core::content::Content;
use crate::core::error::ConfigError;
use crate::core::id::ChatId;
use crate::core::memory::MemoryStore;
use crate::core::provider::Provider;
use crate::core::scope::Scope;
use crate::core::spawn::Seams;
use crate::core::store::Store;
use crate::dispatch::{Ctx, Handler, HookVerdict, IntoOutcome, Pattern, Routes, boxed};
use crate::egress::{SendHooks, Sent};
use crate::flow::{AnyFlow, Conv, Conversation, Flow, FlowState, conversation};
use crate::scheduler::{Registry, Schedule, TaskHandler};
use crate::texts::Texts;
use crate::{Error, Result};

/// Puts a bot together. Nothing runs before [`Bot::run`].
#[must_use]
pub struct BotBuilder {
    provider: Option<Arc<dyn Provider>>,
    store: Option<Arc<dyn Store>>,
    scope: Scope,
    durability: Option<Durability>,
    coordination: Option<Coordination>,
    turns: TurnsConfig,
    texts: Texts,
    log_messages: bool,
    max_media_bytes: usize,
    seams: Option<Seams>,
    routes: Routes,
    sends: SendHooks,
    flows: Vec<Arc<dyn AnyFlow>>,
    tasks: Registry,
}

impl BotBuilder {
    pub(super) fn new() -> Self {
        Self {
            provider: None,
            store: None,
            scope: Scope::default(),
            durability: None,
            coordination: None,
            turns: TurnsConfig::default(),
            texts: Texts::default(),
            log_messages: false,
            max_media_bytes: 100 << 20,
            seams: None,
            routes: Routes::default(),
            sends: SendHooks::default(),
            flows: Vec::new(),
            tasks: Registry::default(),
        }
    }

    /// The channel. Required.
    pub fn provider(self, provider: impl Provider) -> Self {
        self.shared_provider(Arc::new(provider))
    }

    /// The channel, shared with the caller. Required, this way or the other.
    pub fn shared_provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.provider = Some(provider);
        self
    }

    /// Where state lives. Default: in memory.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// The bot's namespace in its store and journals. Default: [`Scope::default`].
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Durable message processing. Default: none; messages and sends are not journaled.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Several replicas of the bot. Default: none; the bot is alone with its store.
    pub fn coordination(mut self, coordination: Coordination) -> Self {
        self.coordination = Some(coordination);
        self
    }

    /// How many messages are handled and held at a time.
    pub fn turns(mut self, turns: TurnsConfig) -> Self {
        self.turns = turns;
        self
    }

    /// The texts that the bot says of itself, by the language of the chat. Default: built-in ones, and English where the
    /// language is unknown or another.
    pub fn texts(mut self, texts: Texts) -> Self {
        self.texts = texts;
        self
    }

    /// Writes every message, in and out, to the store's log. Default: no. It costs one more write for each message. After
    /// a crash an entry may be missing or be there twice: the log is for reading, not for deciding.
    pub fn log_messages(mut self, keep: bool) -> Self {
        self.log_messages = keep;
        self
    }

    /// The most bytes of one message's media that [`Ctx::load_media`] loads into memory. Default 100 MiB. As many handlers
    /// as run at a time may each hold as much.
    pub fn max_media_bytes(mut self, bytes: usize) -> Self {
        self.max_media_bytes = bytes;
        self
    }

    /// Time, randomness and tasks. Default: the operating system's and Tokio's.
    pub fn seams(mut self, seams: Seams) -> Self {
        self.seams = Some(seams);
        self
    }

    /// Answers messages that match. The first route that matches wins.
    pub fn when(mut self, pattern: impl Into<Pattern>, handler: impl Handler) -> Self {
        self.routes.when.push((pattern.into(), boxed(handler)));
        self
    }

    /// Answers messages that no route matches. Reactions, edits and system events are not among them.
    pub fn otherwise(mut self, handler: impl Handler) -> Self {
        self.routes.otherwise = Some(boxed(handler));
        self
    }

    /// Registers a flow; enter it with [`Ctx::enter`].
    pub fn flow<S: FlowState>(mut self, flow: Flow<S>) -> Self {
        self.flows.push(Arc::new(flow));
        self
    }

    /// Registers a conversation, entered by name like a flow: `.conversation("survey", survey)` with an
    /// `async fn survey(c: Conv) -> Result`.
    pub fn conversation<F, Fut>(self, name: impl Into<String>, run: F) -> Self
    where
        F: Fn(Conv) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.add_conversation(conversation(name, run))
    }

    /// Registers a conversation with options of its own.
    pub fn add_conversation(mut self, conversation: Conversation) -> Self {
        self.flows.push(Arc::new(conversation));
        self
    }

    /// Registers a durable task: each occurrence runs once, on whichever process finds it due, also after a restart. One
    /// that fails or is cut short runs again, with the attempts and delays of [`InboxConfig`](crate::InboxConfig), and then
    /// becomes a dead letter. Needs [`durability`](Self::durability).
    pub fn task(mut self, name: impl Into<String>, schedule: Schedule, handler: impl TaskHandler) -> Self {
        self.tasks.add(name.into(), schedule, handler);
        self
    }

    /// Registers a task in memory: every process runs it, at the whole multiples of `period`. It is not retried, what is
    /// missed is left out, and it does not run while it still runs.
    pub fn every(mut self, period: Duration, handler: impl TaskHandler) -> Self {
        self.tasks.add_plain("every", Schedule::every(period), handler);
        self
    }

    /// Registers a task in memory as [`every`](Self::every), at the times of a cron expression in a time zone; see
    /// [`Schedule::cron`].
    pub fn cron(
        mut self,
        expression: impl Into<String>,
        zone: impl Into<String>,
        handler: impl TaskHandler,
    ) -> Self {
        self.tasks.add_plain("cron", Schedule::cron(expression, zone), handler);
        self
    }

    /// Runs before each message, in the order of registration: may change its text or end its handling.
    pub fn before_message<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<HookVerdict, Error>> + Send + 'static,
    {
        self.routes.before.push(Arc::new(move |ctx| Box::pin(hook(ctx))));
        self
    }

    /// Runs after each message was handled.
    pub fn after_message<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.routes.after.push(Arc::new(move |ctx| Box::pin(hook(ctx))));
        self
    }

    /// Runs before each send, in the order of registration: returns what to send, or why not. It does not run again for
    /// a send that is answered from the outbox or retried.
    pub fn before_send<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(ChatId, Content) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Content, String>> + Send + 'static,
    {
        self.sends.before.push(Arc::new(move |chat, content| Box::pin(hook(chat, content))));
        self
    }

    /// Runs after each delivered send.
    pub fn after_send<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(ChatId, Content, Sent) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.sends.after.push(Arc::new(move |chat, content, sent| Box::pin(hook(chat, content, sent))));
        self
    }

    /// Checks everything and makes the bot.
    ///
    /// # Errors
    /// A missing or impossible setting, named with what to do.
    pub fn build(self) -> Result<Bot, ConfigError> {
        let Some(provider) = self.provider else {
            return Err(ConfigError::new("provider", "is missing", "call `.provider(…)` with a channel"));
        };
        if let Some(durability) = &self.durability {
            durability.validate()?;
        }
        if let Some(coordination) = &self.coordination {
            coordination.validate()?;
            if self.store.is_none() {
                return Err(ConfigError::new(
                    "store",
                    "is missing, so that each replica would have chats, users and conversations of its own",
                    "call `.store(…)` with one that the replicas share",
                ));
            }
        }
        self.turns.validate()?;
        self.texts.validate()?;
        if self.max_media_bytes == 0 {
            return Err(ConfigError::new(
                "max_media_bytes",
                "is 0, so that no media could ever be loaded",
                "set at least 1; 104857600 is the default",
            ));
        }
        let flows = check_flows(self.flows)?;
        let seams = self.seams.unwrap_or_else(|| Seams::system(Arc::new(TokioSpawner)));
        let poll = self.durability.as_ref().map(|durability| durability.poll);
        if self.routes.when.is_empty() && self.routes.otherwise.is_none() && self.tasks.is_empty() {
            return Err(ConfigError::new(
                "routes",
                "are missing, so that nothing would ever be answered",
                "call `.when(…)`, `.otherwise(…)` or `.task(…)`",
            ));
        }
        let tasks = self.tasks.check(poll, seams.clock.now())?;
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        Ok(Bot::new(super::Definition {
            provider,
            store: store.scoped(&self.scope),
            scope: self.scope,
            durability: self.durability,
            coordination: self.coordination,
            turns: self.turns,
            texts: self.texts,
            log_messages: self.log_messages,
            max_media_bytes: self.max_media_bytes,
            seams,
            routes: self.routes,
            sends: self.sends,
            flows,
            tasks,
        }))
    }
}

impl std::fmt::Debug for BotBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BotBuilder").field("scope", &self.scope).finish_non_exhaustive()
    }
}

fn check_flows(flows: Vec<Arc<dyn AnyFlow>>) -> Result<HashMap<String, Arc<dyn AnyFlow>>, ConfigError> {
    let mut checked = HashMap::new();
    for flow in flows {
        let name = flow.name().to_owned();
        if let Some(problem) = flow.problems().first() {
            return Err(ConfigError::new(format!("flow `{name}`"), problem, "correct the flow"));
        }
        if checked.insert(name.clone(), flow).is_some() {
            return Err(ConfigError::new(
                format!("flow `{name}`"),
                "is registered twice",
                "rename one of them",
            ));
        }
    }
    for flow in checked.values() {
        for called in flow.calls() {
            let (problem, fix) = match checked.get(called) {
                Some(called) if called.ends_with_state() => continue,
                Some(_) => (
                    format!("calls `{called}`, which is a conversation and ends without a state"),
                    format!("make `{called}` a flow, or enter it in a `do_` step with `c.enter({called:?})`"),
                ),
                None => {
                    let known: Vec<_> = checked.keys().collect();
                    let problem = format!("calls `{called}`, which is not there; flows: {known:?}");
                    (problem, "register it with `.flow(…)`".to_owned())
                }
            };
            return Err(ConfigError::new(format!("flow `{}`", flow.name()), problem, fix));
        }
    }
    Ok(checked)
}
