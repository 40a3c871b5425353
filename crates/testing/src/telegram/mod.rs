//! A Bot API server for tests: as strict as Telegram, and as unreliable as a test wants.

mod albums;
mod delivery;
mod methods;
mod people;
mod polls;
mod server;
mod state;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

pub use people::{TelegramGroup, TelegramUser};
pub use state::{TelegramCall, TelegramFault, WebhookAnswer};

use server::Shared;

/// How long a test may wait for something, in real time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Telegram, for one bot, on a port of this host. Clones are the same server. It ends when the last one is dropped.
///
/// ```
/// use botmesh_testing::FakeTelegram;
///
/// # #[tokio::main]
/// # async fn main() {
/// let server = FakeTelegram::start().await;
/// let ana = server.user(5_025_045_066, "Ana");
/// ana.writes("hi");
/// // `Telegram::polling(server.token()).with_api_url(&server.url())` gets it now, and what it answers is in
/// // `ana.expect_reply("hello").await`.
/// assert_eq!(server.unconfirmed(), 1);
/// # }
/// ```
///
/// It refuses what Telegram refuses: chats that it does not know, users who blocked the bot, texts that are too long or empty,
/// buttons with too much data, answers to messages that are gone. It also refuses parameters that a method does not have.
/// An update stays in its queue until it is confirmed, and is served again until then. A second poll ends the first with 409.
/// With a webhook set, it posts updates there in the order of their queues, and again until they are taken.
#[derive(Clone)]
pub struct FakeTelegram {
    shared: Arc<Shared>,
}

impl FakeTelegram {
    /// A server without users.
    ///
    /// # Panics
    /// If no port can be had.
    pub async fn start() -> Self {
        Self { shared: server::start().await }
    }

    /// Where it is: the base URL of the API.
    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// The token of its bot.
    pub fn token(&self) -> &'static str {
        state::TOKEN
    }

    /// A user with a private chat with the bot.
    pub fn user(&self, id: i64, name: &str) -> TelegramUser {
        self.shared.lock().meet(id, name);
        TelegramUser::new(self.clone(), id, name)
    }

    /// A group that the bot is a member of.
    pub fn group(&self, id: i64, title: &str) -> TelegramGroup {
        self.shared.lock().found(id, title);
        TelegramGroup::new(self.clone(), id, title)
    }

    /// Puts an update into the queue; its `update_id` is filled in if it has none. Returns the id.
    pub fn push(&self, mut update: Value) -> i64 {
        let id = self.shared.lock().number(&update);
        update["update_id"] = id.into();
        self.push_raw(id, update.to_string());
        id
    }

    /// Puts a text into the queue as it is, as the update of this number.
    pub fn push_raw(&self, id: i64, raw: impl Into<String>) {
        self.shared.lock().queue(id, raw.into());
        self.shared.changed();
    }

    /// The number of the next update. It may be smaller than those before, as after a quiet week.
    pub fn set_next_update_id(&self, id: i64) {
        self.shared.lock().next_update = id;
    }

    /// Puts everything that was confirmed into the queue again.
    pub fn redeliver(&self) {
        self.shared.lock().redeliver();
        self.shared.changed();
    }

    /// How many updates are not confirmed.
    pub fn unconfirmed(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// The numbers of the updates that were confirmed, in the order in which they were.
    pub fn confirmed(&self) -> Vec<i64> {
        self.shared.lock().confirmed.iter().map(|update| update.id).collect()
    }

    /// How many polls were made, and how many of them while another one was under way.
    pub fn polls(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.polls, state.overlaps)
    }

    /// The parameters of every poll, in order.
    pub fn poll_params(&self) -> Vec<Map<String, Value>> {
        self.shared.lock().poll_params.clone()
    }

    /// Whether somebody waits for updates.
    pub fn is_polled(&self) -> bool {
        self.shared.lock().poll.is_some()
    }

    /// Whether a webhook is set.
    pub fn has_webhook(&self) -> bool {
        self.shared.lock().webhook.is_some()
    }

    /// Sets a webhook, as somebody did before.
    pub fn set_webhook(&self, url: &str) {
        self.shared.lock().set_webhook(url, None, Vec::new());
    }

    /// What the webhook answered, in order.
    pub fn webhook_answers(&self) -> Vec<WebhookAnswer> {
        self.shared.lock().webhook_answers.clone()
    }

    /// Gives the next call of `method` this fault.
    pub fn fault_next(&self, method: &str, fault: TelegramFault) {
        self.shared.lock().faults.push_back((method.to_owned(), fault));
    }

    /// Asks `rule` about every call that has no fault of its own.
    pub fn fault_when(&self, rule: impl Fn(&TelegramCall) -> Option<TelegramFault> + Send + 'static) {
        self.shared.lock().rule = Some(Box::new(rule));
    }

    /// Takes back every fault.
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        state.rule = None;
        state.faults.clear();
    }

    /// Every call that was made, also the refused ones, but polls.
    pub fn calls(&self) -> Vec<TelegramCall> {
        self.shared.lock().calls.clone()
    }

    /// The calls of one method that were done.
    pub fn done(&self, method: &str) -> Vec<TelegramCall> {
        let state = self.shared.lock();
        state.calls.iter().filter(|call| call.done && call.method == method).cloned().collect()
    }

    /// The texts and captions that were sent to a chat, in order.
    pub fn texts_to(&self, chat: i64) -> Vec<String> {
        let state = self.shared.lock();
        state
            .calls
            .iter()
            .filter(|call| call.done && call.chat() == Some(chat))
            .filter_map(TelegramCall::text)
            .collect()
    }

    /// A file that `getFile` finds.
    pub fn add_file(&self, file_id: &str, bytes: impl Into<Vec<u8>>) {
        self.shared.lock().files.insert(file_id.to_owned(), bytes.into());
    }

    /// Keeps files in this folder, as a server that runs with `--local`: `getFile` says where they are, and there are no downloads.
    pub fn keep_files_in(&self, folder: impl Into<PathBuf>) {
        self.shared.lock().local = Some(folder.into());
    }

    /// Returns when something was called or queued, and after a tenth of a second.
    pub async fn changed(&self) {
        let mut changes = self.shared.changes.subscribe();
        let _ = server::in_time(Duration::from_millis(100), changes.changed()).await;
    }

    /// Waits until `condition` holds.
    ///
    /// # Panics
    /// If it does not within a minute, with what was called.
    pub async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let waited = server::in_time(PATIENCE, async {
            let mut changes = self.shared.changes.subscribe();
            while !condition() {
                // What the condition looks at may be elsewhere.
                let _ = server::in_time(Duration::from_millis(10), changes.changed()).await;
            }
        });
        assert!(waited.await.is_some(), "waited for {what} in vain; calls: {:#?}", self.calls());
    }
}

impl fmt::Debug for FakeTelegram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeTelegram").field("address", &self.shared.address).finish_non_exhaustive()
    }
}
