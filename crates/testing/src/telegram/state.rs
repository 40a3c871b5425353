//! What the server knows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

/// The token of the only bot, whose id it begins with.
pub(super) const TOKEN: &str = "777000111:FAKE-token_for-tests";
pub(super) const BOT: i64 = 777_000_111;

/// What a server does with a call in place of what it should.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TelegramFault {
    /// It refuses the call with this code, description and parameters. Nothing is done.
    Refuse {
        /// The code, which is also the HTTP status.
        code: u16,
        /// The description.
        description: String,
        /// The parameters, such as `{"retry_after": 7}`; `null` for none.
        parameters: Value,
    },
    /// Something in front of it answers. Nothing is done.
    Gateway {
        /// The HTTP status.
        status: u16,
        /// The body.
        body: String,
    },
    /// Nothing is done, and the connection is cut.
    Cut,
    /// The call is done, and the connection is cut before the answer.
    LoseAnswer,
    /// The call is done, and the answer breaks off in its middle.
    CutAnswer,
    /// The call is done, and answered after this time.
    Slow(Duration),
}

impl TelegramFault {
    /// Too many calls: try again after so many seconds.
    pub fn flood(seconds: u64) -> Self {
        let description = format!("Too Many Requests: retry after {seconds}");
        Self::Refuse { code: 429, description, parameters: json!({ "retry_after": seconds }) }
    }

    /// Refused without parameters.
    pub fn refuse(code: u16, description: &str) -> Self {
        Self::Refuse { code, description: description.to_owned(), parameters: Value::Null }
    }
}

/// One call of the Bot API.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TelegramCall {
    /// The method.
    pub method: String,
    /// Its parameters.
    pub params: Map<String, Value>,
    /// The files that were uploaded with it: parameter (in an album, what its media attach), file name, size.
    pub files: Vec<(String, String, usize)>,
    /// Whether it was done.
    pub done: bool,
    /// The message that it made; of an album, the first.
    pub message: Option<i64>,
}

impl TelegramCall {
    /// The chat that it is about.
    pub fn chat(&self) -> Option<i64> {
        self.params.get("chat_id")?.as_i64()
    }

    /// The text or the caption; that of an album is its first one.
    pub fn text(&self) -> Option<String> {
        let of_album = || self.params.get("media")?.get(0)?.get("caption");
        let text = self.params.get("text").or_else(|| self.params.get("caption")).or_else(of_album)?;
        Some(text.as_str()?.to_owned())
    }
}

/// What a webhook answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebhookAnswer {
    /// The number of the update.
    pub update: i64,
    /// The HTTP status; `None` if the connection failed.
    pub status: Option<u16>,
    /// `Retry-After`.
    pub retry_after: Option<String>,
    /// The body. Telegram takes that of a 200 for a call.
    pub body: String,
}

/// An update as it is served.
#[derive(Clone)]
pub(super) struct Queued {
    pub(super) id: i64,
    pub(super) kind: String,
    pub(super) raw: String,
    /// A webhook gets the next one of a lane when it has taken the one before.
    pub(super) lane: String,
}

#[derive(Clone)]
pub(super) struct Webhook {
    pub(super) url: String,
    pub(super) secret: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Standing {
    Open,
    Refuses(&'static str),
    MovedTo(i64),
}

pub(super) struct Chat {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) standing: Standing,
}

type Rule = Box<dyn Fn(&TelegramCall) -> Option<TelegramFault> + Send>;

#[derive(Default)]
pub(super) struct State {
    pub(super) next_update: i64,
    pub(super) last_message: i64,
    pub(super) queue: Vec<Queued>,
    pub(super) confirmed: Vec<Queued>,
    pub(super) allowed: Vec<String>,
    pub(super) chats: BTreeMap<i64, Chat>,
    /// The messages that can be answered: by chat and id. With the buttons of each.
    pub(super) messages: BTreeMap<(i64, i64), Value>,
    /// Those that nobody has answered.
    pub(super) queries: BTreeSet<String>,
    pub(super) files: BTreeMap<String, Vec<u8>>,
    /// Where they are, if it runs with `--local`.
    pub(super) local: Option<PathBuf>,
    pub(super) calls: Vec<TelegramCall>,
    pub(super) faults: VecDeque<(String, TelegramFault)>,
    pub(super) rule: Option<Rule>,
    /// The poll that is under way.
    pub(super) poll: Option<u64>,
    pub(super) polls: usize,
    pub(super) overlaps: usize,
    pub(super) poll_params: Vec<Map<String, Value>>,
    pub(super) webhook: Option<Webhook>,
    pub(super) webhook_answers: Vec<WebhookAnswer>,
    pub(super) delivering: BTreeSet<String>,
}

impl State {
    pub(super) fn new() -> Self {
        Self { next_update: 700_000_001, last_message: 100, ..Self::default() }
    }

    pub(super) fn meet(&mut self, id: i64, name: &str) {
        let chat = || Chat { kind: "private", name: name.to_owned(), standing: Standing::Open };
        self.chats.entry(id).or_insert_with(chat);
    }

    pub(super) fn found(&mut self, id: i64, title: &str) {
        let kind = if id <= -1_000_000_000_000 { "supergroup" } else { "group" };
        let chat = || Chat { kind, name: title.to_owned(), standing: Standing::Open };
        self.chats.entry(id).or_insert_with(chat);
    }

    pub(super) fn set_standing(&mut self, id: i64, standing: Standing) {
        if let Some(chat) = self.chats.get_mut(&id) {
            chat.standing = standing;
        }
    }

    /// The number of a new update.
    pub(super) fn number(&mut self, update: &Value) -> i64 {
        update["update_id"].as_i64().unwrap_or_else(|| {
            self.next_update += 1;
            self.next_update - 1
        })
    }

    pub(super) fn queue(&mut self, id: i64, raw: String) {
        let update: Value = serde_json::from_str(&raw).unwrap_or_default();
        let kind = update.as_object().into_iter().flat_map(Map::keys).find(|key| *key != "update_id");
        let kind = kind.cloned().unwrap_or_default();
        // The wire has a queue for the messages of a chat, and others for what its users do.
        let chat = &update[kind.as_str()]["chat"]["id"];
        let user = &update[kind.as_str()]["from"]["id"];
        let lane = if kind.contains("message") { format!("{chat}") } else { format!("{kind} {user}") };
        self.queue.push(Queued { id, kind, raw, lane });
    }

    pub(super) fn redeliver(&mut self) {
        let again = std::mem::take(&mut self.confirmed);
        self.queue.extend(again);
        self.queue.sort_by_key(|update| update.id);
    }

    /// Forgets what is before `offset`. One that is beyond the queue is none: the numbers may have begun anew.
    pub(super) fn confirm(&mut self, offset: i64) {
        if self.queue.iter().map(|update| update.id).max().is_none_or(|last| offset > last.saturating_add(1))
        {
            return;
        }
        let (done, left) = std::mem::take(&mut self.queue).into_iter().partition(|update| update.id < offset);
        self.queue = left;
        self.confirmed.extend::<Vec<Queued>>(done);
    }

    pub(super) fn page(&self, limit: usize) -> Vec<&Queued> {
        self.queue.iter().filter(|update| self.is_allowed(&update.kind)).take(limit).collect()
    }

    pub(super) fn is_allowed(&self, kind: &str) -> bool {
        const OPT_IN: [&str; 3] = ["chat_member", "message_reaction", "message_reaction_count"];
        match self.allowed.is_empty() {
            true => !OPT_IN.contains(&kind),
            // What cannot be read has no kind.
            false => kind.is_empty() || self.allowed.iter().any(|allowed| allowed == kind) || !is_known(kind),
        }
    }

    pub(super) fn set_webhook(&mut self, url: &str, secret: Option<String>, allowed: Vec<String>) {
        self.allowed = allowed;
        self.webhook = (!url.is_empty()).then(|| Webhook { url: url.to_owned(), secret });
    }

    /// A chat as it is written in a message.
    pub(super) fn chat_json(&self, id: i64) -> Value {
        match self.chats.get(&id) {
            Some(Chat { kind: "private", name, .. }) => {
                json!({ "id": id, "type": "private", "first_name": name })
            }
            Some(Chat { kind, name, .. }) => json!({ "id": id, "type": kind, "title": name }),
            None => json!({ "id": id, "type": "private" }),
        }
    }

    /// The id of a new query, which can be answered once.
    pub(super) fn query(&mut self) -> String {
        self.last_message += 1;
        let query = format!("query-{}", self.last_message);
        self.queries.insert(query.clone());
        query
    }

    /// A new message of a chat.
    pub(super) fn message(&mut self, chat: i64, from: &Value, fields: &Value) -> Value {
        self.last_message += 1;
        let id = self.last_message;
        let mut message = json!({
            "message_id": id,
            "from": from,
            "chat": self.chat_json(chat),
            "date": 1_795_950_000 + id,
        });
        if let (Some(message), Some(fields)) = (message.as_object_mut(), fields.as_object()) {
            message.extend(fields.clone());
        }
        self.messages.insert((chat, id), message.clone());
        message
    }

    pub(super) fn take_fault(&mut self, call: &TelegramCall) -> Option<TelegramFault> {
        let place = self.faults.iter().position(|(method, _)| *method == call.method);
        match place.and_then(|place| self.faults.remove(place)) {
            Some((_, fault)) => Some(fault),
            None => self.rule.as_ref().and_then(|rule| rule(call)),
        }
    }
}

/// Kinds that can be asked for. Others are served to everybody, as a new server might.
fn is_known(kind: &str) -> bool {
    const KNOWN: [&str; 8] = ["message", "edited", "channel", "query", "poll", "chat", "business", "result"];
    KNOWN.iter().any(|word| kind.contains(word))
}
