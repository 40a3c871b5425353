use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::ChatId;
use botmesh_core::inbound::Inbound;
use botmesh_core::markup::Markup;
use botmesh_core::media::MediaRef;
use botmesh_core::notice::Moved;
use botmesh_core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, Rate, SendReceipt, SendRequest, TextLimit, TextUnit,
};
use botmesh_core::time::{Clock, SystemClock};
use botmesh_core::{Bytes, CancellationToken};
use botmesh_webhook::{Door, Limits};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::action::ChatAction;
use crate::address::Address;
use crate::call::Call;
use crate::client::{Client, Params, too_large};
use crate::hook::{self, Hook};
use crate::poll;
use crate::presses::Presses;
use crate::rates::Rates;
use crate::refusal::{Failure, Remedy};
use crate::token::Token;

pub(crate) const ID: &str = "telegram";

/// The longest caption, in UTF-16 units.
pub(crate) const MAX_CAPTION: usize = 1024;

/// What the official server takes from a bot and gives to one, in bytes.
const MAX_UPLOAD: u64 = 50 << 20;
const MAX_DOWNLOAD: u64 = 20 << 20;

/// The same for a server of one's own. Without `--local`, it refuses downloads as the official one does.
const MAX_LOCAL: u64 = 2000 << 20;

/// How many remedies one call gets. Each is for something else.
const REMEDIES: usize = 3;

/// How many migrations are remembered.
const MIGRATIONS: usize = 10_000;

/// A bot of Telegram.
///
/// **Long polling** ([`polling`](Self::polling)): one process asks Telegram for what is new, and Telegram keeps each update
/// until it is journaled: for 24 hours. Of several replicas, the one that leads polls.
///
/// **Webhook** ([`webhook`](Self::webhook)): Telegram posts each update to any replica, and again until one has journaled it.
///
/// A clone is the same bot.
///
/// **Chats** are called by the id that Telegram gives them, such as `5025045066` or `-1001557912345`. A topic of a group is a
/// chat of its own (`-1001557912345:17`), and so is a customer's chat with a business account (`5025045066@bc_1`) and a query
/// from a chat that the bot is no member of (`-1001557912345?gq1`), which takes one text as its answer. A group that becomes a
/// supergroup gets another id; the bot goes on with it under the first one.
///
/// **A lost answer** of the server cannot be looked up, and Telegram knows no keys against repeated sends: what becomes of
/// such a send is the bot's policy ([`Resolve::Never`](botmesh_core::provider::Resolve::Never)).
///
/// **Buttons**: an id has 1 to 64 bytes. A press is answered to Telegram as soon as it is journaled.
///
/// **The token** is in no log, no error and no journal.
#[derive(Clone)]
pub struct Telegram {
    pub(crate) settings: Arc<Settings>,
    pub(crate) state: Arc<State>,
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) client: Client,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) timeout: Duration,
    pub(crate) poll_timeout: Duration,
    pub(crate) deletes_webhook: bool,
    pub(crate) answers_presses: bool,
    pub(crate) reads_forwards: bool,
    rates: Rates,
    /// Without it the bot polls.
    pub(crate) hook: Option<Hook>,
}

/// What clones share.
pub(crate) struct State {
    /// Of the polls.
    pub(crate) connection: watch::Sender<ConnectionState>,
    username: OnceLock<String>,
    /// What groups are called since they became supergroups.
    moved: Mutex<HashMap<i64, i64>>,
    /// Who is told of a group that a refused send shows to have moved.
    sink: Mutex<Option<Weak<dyn InboundSink>>>,
    pub(crate) presses: Presses,
    /// Held while it polls.
    pub(crate) running: tokio::sync::Mutex<()>,
}

impl Telegram {
    /// A bot that polls. `token` is what @BotFather gave, and white space around it does no harm; whether it is right shows when
    /// the bot starts.
    pub fn polling(token: impl Into<String>) -> Self {
        Self::new(token.into(), None)
    }

    /// A bot to which Telegram posts its updates, with this secret in a header: 1 to 256 of the characters `A-Z`, `a-z`, `0-9`,
    /// `_` and `-`, and hard to guess; white space around it does no harm. Serve its [`router`](Self::router), and tell Telegram where that is with
    /// [`set_webhook`](Self::set_webhook).
    pub fn webhook(token: impl Into<String>, secret: impl Into<String>) -> Self {
        Self::new(token.into(), Some(Hook::new(&secret.into())))
    }

    fn new(token: String, hook: Option<Hook>) -> Self {
        let settings = Settings {
            client: Client::new(Token::new(token)),
            clock: Arc::new(SystemClock::new()),
            timeout: Duration::from_secs(30),
            poll_timeout: Duration::from_secs(50),
            deletes_webhook: false,
            answers_presses: true,
            reads_forwards: false,
            rates: Rates::default(),
            hook,
        };
        let state = State {
            connection: watch::Sender::new(ConnectionState::Closed),
            username: OnceLock::new(),
            moved: Mutex::default(),
            sink: Mutex::default(),
            presses: Presses::default(),
            running: tokio::sync::Mutex::default(),
        };
        Self { settings: Arc::new(settings), state: Arc::new(state) }
    }

    fn settings_mut(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.settings)
    }

    /// The URL of a Bot API server of one's own, such as `http://localhost:8081`. Default: the official one.
    #[must_use]
    pub fn with_api_url(mut self, url: &str) -> Self {
        self.settings_mut().client.set_base(url);
        self
    }

    /// The folder of a Bot API server that runs with `--local` on this host, or whose files are mounted here under the same path:
    /// its working directory (`--dir`), such as `/var/lib/telegram-bot-api`. Such a server says where a file is, and the bot reads
    /// it from there, if it is in this folder: one elsewhere is refused, so that the server cannot have it read others.
    ///
    /// Without this, the bot asks for every file by HTTP, which such a server does not answer by itself.
    #[must_use]
    pub fn with_local_files(mut self, folder: impl Into<PathBuf>) -> Self {
        self.settings_mut().client.set_local_files(folder.into());
        self
    }

    /// How long one call may take; uploads and downloads ten times as long. Default 30 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        let settings = self.settings_mut();
        settings.client.set_patience(timeout);
        settings.timeout = timeout;
        self
    }

    /// How long Telegram may wait for an update before it answers a poll. Default 50 s; 1 s to 50 s.
    #[must_use]
    pub fn with_poll_timeout(mut self, timeout: Duration) -> Self {
        self.settings_mut().poll_timeout = timeout.clamp(Duration::from_secs(1), Duration::from_secs(50));
        self
    }

    /// Removes a webhook that is set for the bot when it begins to poll. What waits at Telegram is kept. Without this, a bot
    /// with a webhook does not poll, and says so.
    #[must_use]
    pub fn deleting_webhook(mut self) -> Self {
        self.settings_mut().deletes_webhook = true;
        self
    }

    /// Leaves it to the handlers to answer presses of buttons, with words or a URL: by [`call`](Self::call) of
    /// `answerCallbackQuery`. The id of the press is `callback_query_id` in
    /// [`Inbound::extra`](botmesh_core::inbound::Inbound::extra). A button shows that it is busy until its press is answered, which is
    /// possible for a short time only.
    #[must_use]
    pub fn leaving_presses_unanswered(mut self) -> Self {
        self.settings_mut().answers_presses = false;
        self
    }

    /// Treats the posts of a channel that Telegram copies into its group as messages of that group. Without this they are
    /// system events called `automatic_forward`, which nothing answers by itself.
    #[must_use]
    pub fn reading_automatic_forwards(mut self) -> Self {
        self.settings_mut().reads_forwards = true;
        self
    }

    /// How many messages go out in all chats together. Default 30 a second, as Telegram takes them. Each process counts for
    /// itself. A rate that is none shows when the bot starts.
    #[must_use]
    pub fn with_rate(mut self, rate: Rate) -> Self {
        self.settings_mut().rates.all = Some(rate);
        self
    }

    /// How many go out in a private chat. Default 5 in 5 s: about one a second, and a few at once.
    #[must_use]
    pub fn with_private_rate(mut self, rate: Rate) -> Self {
        self.settings_mut().rates.private = Some(rate);
        self
    }

    /// How many go out in a group or channel. Default 20 a minute. A topic counts as a chat of its own.
    #[must_use]
    pub fn with_group_rate(mut self, rate: Rate) -> Self {
        self.settings_mut().rates.group = Some(rate);
        self
    }

    /// Sends as fast as it can, as to a server for tests. What is declared after it holds.
    #[must_use]
    pub fn without_rates(mut self) -> Self {
        self.settings_mut().rates = Rates::NONE;
        self
    }

    /// The path of the webhook's route. Default `/telegram`. Bots on one listener have a path each. Does nothing if the bot polls.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<String>) -> Self {
        if let Some(hook) = &mut self.settings_mut().hook {
            hook.path = path.into();
        }
        self
    }

    /// How much of Telegram's time and of this process's memory posts may take. Does nothing if the bot polls.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        let settings = self.settings_mut();
        let clock = Arc::clone(&settings.clock);
        if let Some(hook) = &mut settings.hook {
            hook.limits = limits;
            hook.door = Arc::new(Door::with_clock(limits, clock));
        }
        self
    }

    /// Another clock, for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        let settings = self.settings_mut();
        if let Some(hook) = &mut settings.hook {
            hook.door = Arc::new(Door::with_clock(hook.limits, Arc::clone(&clock)));
        }
        settings.clock = clock;
        self
    }

    /// Calls any method of the Bot API, once, with these parameters (a JSON object), and returns its result. Not journaled.
    ///
    /// # Errors
    /// As a send: its phase says whether something may have been done.
    ///
    /// # Cancel safety
    /// A dropped call may have been done.
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, ChannelError> {
        let Value::Object(params) = params else {
            let detail = "the parameters of a method are a JSON object";
            return Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail));
        };
        if method.is_empty() || !method.bytes().all(|c| c.is_ascii_alphanumeric()) {
            let detail = format!("`{method}` is no method of the Bot API");
            return Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail));
        }
        Ok(self.ask(method, params).await?)
    }

    /// Calls a method and reads its result.
    pub(crate) async fn ask<T: for<'a> Deserialize<'a>>(
        &self,
        method: &str,
        params: Params,
    ) -> Result<T, Failure> {
        let result = self.settings.client.call(method, params, Vec::new(), self.settings.timeout).await?;
        serde_json::from_str(result.get()).map_err(|error| {
            let detail = format!("the result of {method} is not what was expected");
            ChannelError::new(ErrorClass::Transient, Phase::Unknown, detail).with_source(error).into()
        })
    }

    /// Learns who the bot is.
    pub(crate) async fn introduce(&self) -> Result<(), ChannelError> {
        let me: Value = self.ask("getMe", Params::new()).await?;
        if let Some(username) = me["username"].as_str() {
            let _ = self.state.username.set(username.to_owned());
        }
        Ok(())
    }

    pub(crate) fn note_migration(&self, from: i64, to: i64) {
        let mut moved = self.state.moved.lock().unwrap_or_else(PoisonError::into_inner);
        if moved.len() >= MIGRATIONS {
            // They are learned again from the next answer.
            moved.clear();
        }
        moved.insert(from, to);
    }

    /// The id that a group has now.
    pub(crate) fn id_now(&self, chat: &str) -> Option<i64> {
        let chat: i64 = chat.parse().ok()?;
        self.state.moved.lock().unwrap_or_else(PoisonError::into_inner).get(&chat).copied()
    }

    /// The address, under the id that its group has now.
    pub(crate) fn current(&self, mut address: Address) -> Address {
        if let Some(now) = self.id_now(address.chat.as_str()) {
            address.chat = now.into();
        }
        address
    }

    /// A send was refused because the group has moved. The bot hears of it also if it missed what both chats said.
    async fn learn_migration(&self, from: i64, to: i64) {
        self.note_migration(from, to);
        let sink = self.state.sink.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(sink) = sink.and_then(|sink| sink.upgrade()) else { return };
        let moved = Moved { from: from.into(), to: to.into(), at: None };
        if let Err(error) = sink.moved(moved).await {
            tracing::warn!(%error, from, to, "that a group has another id is not recorded yet");
        }
    }

    /// Makes the call, and again in the ways that mend what the server refused.
    async fn perform(&self, mut call: Call) -> Result<SendReceipt, ChannelError> {
        for _ in 0..REMEDIES {
            let failure = match self.attempt(&call).await {
                Ok(receipt) => return Ok(receipt),
                Err(failure) => failure,
            };
            let mended = match failure.remedy {
                Some(Remedy::MovedTo(to)) => {
                    if let Some(from) = call.params.get("chat_id").and_then(Value::as_i64) {
                        self.learn_migration(from, to).await;
                    }
                    Some(call.moved(to)?)
                }
                Some(Remedy::WithoutReply) => call.without_reply(),
                Some(Remedy::Unchanged) => match call.about {
                    Some(message) => return Ok(SendReceipt { message }),
                    None => None,
                },
                Some(Remedy::WithoutFormatting) => call.without_formatting(),
                Some(Remedy::AsCaption) => call.for_caption(),
                None => None,
            };
            call = mended.ok_or(failure.error)?;
        }
        Ok(self.attempt(&call).await?)
    }

    async fn attempt(&self, call: &Call) -> Result<SendReceipt, Failure> {
        let files = call.uploads(self.max_upload()).await?;
        let patience = self.settings.timeout * if files.is_empty() { 1 } else { 10 };
        let result = self.settings.client.call(&call.method, call.params.clone(), files, patience).await?;
        let result: Value = serde_json::from_str(result.get()).unwrap_or_default();
        // A call that makes several messages, as for an album, has the id of the first.
        let first = if result.is_array() { &result[0] } else { &result };
        let made = first["message_id"].as_i64().map(|id| id.to_string().into());
        let inline = || result["inline_message_id"].as_str().map(Into::into);
        let message = call.about.clone().or(made).or_else(inline);
        // It was done, whatever the answer lacks.
        Ok(SendReceipt { message: message.unwrap_or_else(|| "unknown".into()) })
    }

    fn max_upload(&self) -> u64 {
        if self.settings.client.is_official() { MAX_UPLOAD } else { MAX_LOCAL }
    }

    fn max_download(&self) -> u64 {
        if self.settings.client.is_official() { MAX_DOWNLOAD } else { MAX_LOCAL }
    }
}

#[async_trait]
impl Provider for Telegram {
    fn id(&self) -> &str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.exclusive_session = self.settings.hook.is_none();
        // The server counts code points, and entities UTF-16 units. Of those there are never fewer.
        capabilities.text_limit = Some(TextLimit { max: 4096, unit: TextUnit::Utf16 });
        capabilities.markup = Markup::Spans;
        capabilities.rate = self.settings.rates.all;
        capabilities.caption_limit = Some(TextLimit { max: MAX_CAPTION, unit: TextUnit::Utf16 });
        capabilities.albums = true;
        // Updates that nobody takes are kept for a day.
        capabilities.redelivery = Some(Duration::from_secs(24 * 3600));
        capabilities
    }

    fn username(&self) -> Option<String> {
        self.state.username.get().cloned()
    }

    fn chat_rate(&self, chat: &ChatId) -> Option<Rate> {
        self.settings.rates.of(chat)
    }

    /// Groups get another id when they become supergroups. Topics, users and everybody else keep theirs.
    fn may_move(&self, id: &str) -> bool {
        id.parse().is_ok_and(|id: i64| id < 0)
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        match &self.settings.hook {
            Some(hook) => hook.door.connection(),
            None => self.state.connection.subscribe(),
        }
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        self.settings.rates.check()?;
        *self.state.sink.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(&sink));
        match &self.settings.hook {
            Some(hook) => hook::run(self, hook, sink, stop).await,
            None => poll::run(self, &*sink, &stop).await,
        }
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let address = Address::parse(request.chat)?;
        let call = Call::of(&address, request.content)?;
        match self.id_now(address.chat.as_str()).filter(|_| address.guest.is_none()) {
            Some(now) => self.perform(call.moved(now)?).await,
            None => self.perform(call).await,
        }
    }

    async fn show_typing(&self, inbound: &Inbound) -> Result<(), ChannelError> {
        self.chat_action(inbound.address(), ChatAction::Typing).await
    }

    async fn load_media(&self, media: &MediaRef, max_bytes: usize) -> Result<Bytes, ChannelError> {
        let max = max_bytes.min(usize::try_from(self.max_download()).unwrap_or(usize::MAX));
        let Some(file_id) = media.token["file_id"].as_str() else {
            let detail = "the reference names no file of Telegram";
            return Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail));
        };
        if media.token["size"].as_u64().is_some_and(|size| size > max as u64) {
            return Err(too_large(max));
        }
        let params = Map::from_iter([("file_id".to_owned(), file_id.into())]);
        let file: Value = self.ask("getFile", params).await?;
        let path = file["file_path"].as_str().ok_or_else(|| {
            let detail = "Telegram does not say where the file is";
            ChannelError::new(ErrorClass::Transient, Phase::Answered, detail)
        })?;
        self.settings.client.load(path, max, self.settings.timeout * 10).await
    }
}

impl fmt::Debug for Telegram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telegram")
            .field("client", &self.settings.client)
            .field("username", &self.state.username.get())
            .field("connection", &*self.connection().borrow())
            .finish_non_exhaustive()
    }
}
