//! Users and groups.

use serde_json::{Value, json};

use super::FakeTelegram;
use super::state::{BOT, Standing};

/// A user of [`FakeTelegram`]. What a user does is served to the bot as updates.
#[derive(Clone, Debug)]
pub struct TelegramUser {
    server: FakeTelegram,
    id: i64,
    name: String,
    /// Where they write.
    chat: i64,
}

/// A group of [`FakeTelegram`].
#[derive(Clone, Debug)]
pub struct TelegramGroup {
    server: FakeTelegram,
    id: i64,
    title: String,
}

impl TelegramUser {
    pub(super) fn new(server: FakeTelegram, id: i64, name: &str) -> Self {
        Self { server, id, name: name.to_owned(), chat: id }
    }

    /// The same user, in a group.
    #[must_use]
    pub fn in_group(&self, group: &TelegramGroup) -> Self {
        Self { chat: group.id, ..self.clone() }
    }

    /// The user's id, which is also that of their private chat.
    pub fn id(&self) -> i64 {
        self.id
    }

    fn from(&self) -> Value {
        json!({ "id": self.id, "is_bot": false, "first_name": self.name, "language_code": "en" })
    }

    /// Writes a text; a command is marked as Telegram marks it. Returns the number of the update.
    pub fn writes(&self, text: &str) -> i64 {
        let mut fields = json!({ "text": text });
        if text.starts_with('/') {
            let length = text.split_whitespace().next().map_or(0, |command| command.encode_utf16().count());
            fields["entities"] = json!([{ "type": "bot_command", "offset": 0, "length": length }]);
        }
        self.sends(&fields)
    }

    /// Sends a message with these fields: `photo`, `location`, whatever Telegram has. Returns the number of the update.
    pub fn sends(&self, fields: &Value) -> i64 {
        let message = self.server.shared.lock().message(self.chat, &self.from(), fields);
        self.server.push(json!({ "message": message }))
    }

    /// Sends a picture, of which the bot can have the bytes. Returns the number of the update.
    pub fn sends_photo(&self, file_id: &str, bytes: &[u8]) -> i64 {
        self.server.add_file(file_id, bytes);
        let size = json!({ "file_id": file_id, "file_unique_id": file_id, "width": 90, "height": 90, "file_size": bytes.len() });
        self.sends(&json!({ "photo": [size] }))
    }

    /// Changes the last message that they wrote in this chat. Returns the number of the update.
    ///
    /// # Panics
    /// If there is none.
    pub fn edits(&self, text: &str) -> i64 {
        let message = {
            let state = self.server.shared.lock();
            let own = |((chat, _), message): &(&(i64, i64), &Value)| {
                *chat == self.chat && message["from"]["id"] == self.id
            };
            state.messages.iter().rfind(own).map(|(_, message)| message.clone())
        };
        let mut message =
            message.unwrap_or_else(|| panic!("{} wrote nothing that could be edited", self.name));
        message["text"] = text.into();
        message["edit_date"] = message["date"].clone();
        self.server.push(json!({ "edited_message": message }))
    }

    /// Presses the last button with this title or data in the chat. Returns the number of the update.
    ///
    /// # Panics
    /// If there is no such button.
    pub fn presses(&self, button: &str) -> i64 {
        let (message, data) =
            self.find(button).unwrap_or_else(|| panic!("{} sees no button {button:?}", self.name));
        let query = self.server.shared.lock().query();
        self.server.push(json!({ "callback_query": {
            "id": query, "from": self.from(), "message": message, "chat_instance": "-3388889999", "data": data,
        } }))
    }

    /// Agrees to pay for the invoice with this payload, and waits for the bot to agree. Returns the number of the update.
    pub fn checks_out(&self, payload: &str) -> i64 {
        let query = self.server.shared.lock().query();
        self.server.push(json!({ "pre_checkout_query": {
            "id": query, "from": self.from(), "currency": "EUR", "total_amount": 450, "invoice_payload": payload,
        } }))
    }

    fn find(&self, button: &str) -> Option<(Value, String)> {
        let state = self.server.shared.lock();
        let in_chat = state.messages.iter().rev().filter(|((chat, _), _)| *chat == self.chat);
        let mut found = in_chat.filter_map(|(_, message)| {
            let rows = message["reply_markup"]["inline_keyboard"].as_array()?;
            let mut buttons = rows.iter().filter_map(Value::as_array).flatten();
            let data = buttons.find(|shown| shown["text"] == button || shown["callback_data"] == button)?["callback_data"]
                .as_str()?;
            Some((message.clone(), data.to_owned()))
        });
        found.next()
    }

    /// Blocks the bot, which hears of it. Returns the number of the update.
    pub fn blocks(&self) -> i64 {
        self.server.shared.lock().set_standing(self.id, Standing::Refuses("bot was blocked by the user"));
        self.membership("member", "kicked")
    }

    /// Takes the block back. Returns the number of the update.
    pub fn unblocks(&self) -> i64 {
        self.server.shared.lock().set_standing(self.id, Standing::Open);
        self.membership("kicked", "member")
    }

    fn membership(&self, old: &str, new: &str) -> i64 {
        let bot = json!({ "id": BOT, "is_bot": true, "first_name": "Demo" });
        let chat = self.server.shared.lock().chat_json(self.id);
        self.server.push(json!({ "my_chat_member": {
            "chat": chat, "from": self.from(), "date": 1_795_951_112,
            "old_chat_member": { "user": bot, "status": old }, "new_chat_member": { "user": bot, "status": new },
        } }))
    }

    /// What the bot has sent to this chat: texts and captions, in order.
    pub fn replies(&self) -> Vec<String> {
        self.server.texts_to(self.chat)
    }

    /// Waits until the last reply in the chat is this one.
    ///
    /// # Panics
    /// If it is not within a minute.
    pub async fn expect_reply(&self, text: &str) {
        let is_last = || self.replies().last().is_some_and(|last| last == text);
        self.server.until(&format!("the reply {text:?} to {}", self.name), is_last).await;
    }
}

impl TelegramGroup {
    pub(super) fn new(server: FakeTelegram, id: i64, title: &str) -> Self {
        Self { server, id, title: title.to_owned() }
    }

    /// The group's id.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Becomes a supergroup with another id. Both chats say so, and what is sent to the old one is refused. Returns the
    /// supergroup.
    #[must_use]
    pub fn migrates(&self, to: i64) -> Self {
        let supergroup = self.server.group(to, &self.title);
        let messages = {
            let mut state = self.server.shared.lock();
            state.set_standing(self.id, Standing::MovedTo(to));
            let anybody = json!({ "id": 1_087_968_824, "is_bot": true, "first_name": "Group" });
            let left = state.message(self.id, &anybody, &json!({ "migrate_to_chat_id": to }));
            [left, state.message(to, &anybody, &json!({ "migrate_from_chat_id": self.id }))]
        };
        for message in messages {
            self.server.push(json!({ "message": message }));
        }
        supergroup
    }
}
