use serde_json::{Value, json};

use super::post::{page_of, whatsapp_body, whatsapp_status};
use super::{FakeGraph, GraphMessage, Product};

/// When users read, in milliseconds: after everything that was sent.
const READ_AT: i64 = 1_795_950_001_000;

/// Somebody who writes to the bot through Meta.
#[derive(Clone)]
pub struct GraphUser {
    server: FakeGraph,
    pub(super) product: Product,
    name: String,
    id: String,
    phone: Option<String>,
}

impl GraphUser {
    pub(super) fn new(
        server: FakeGraph,
        product: Product,
        name: &str,
        id: &str,
        phone: Option<&str>,
    ) -> Self {
        Self { server, product, name: name.to_owned(), id: id.to_owned(), phone: phone.map(str::to_owned) }
    }

    /// The user's id: the bot's chat with them.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Writes, and waits until the bot has taken it over. Returns the message's id.
    ///
    /// # Panics
    /// If the bot has not taken it within 60 s.
    pub async fn says(&self, text: &str) -> String {
        self.deliver(self.text_body(text)).await
    }

    /// Presses a button or chooses a row that the bot showed.
    ///
    /// # Panics
    /// As [`says`](Self::says).
    pub async fn presses(&self, id: &str, title: &str) -> String {
        let message = match self.product {
            Product::WhatsApp => json!({
                "type": "interactive",
                "interactive": { "type": "button_reply", "button_reply": { "id": id, "title": title } },
            }),
            _ => json!({ "text": title, "quick_reply": { "payload": id } }),
        };
        self.deliver(self.body(message)).await
    }

    /// Fills in and sends off the last form (a WhatsApp Flow) that the bot showed, with these answers: an object. The token that
    /// the bot gave the form goes with them. Returns the message's id. On WhatsApp alone.
    ///
    /// # Panics
    /// As [`says`](Self::says), and if the bot showed no form.
    pub async fn completes_flow(&self, answers: Value) -> String {
        let is_form = |message: &GraphMessage| message.body["interactive"]["type"] == "flow";
        let form = self.messages().into_iter().rfind(is_form);
        let form = form.unwrap_or_else(|| panic!("{} was shown no form", self.name));
        let token = form.body.pointer("/interactive/action/parameters/flow_token");
        let mut answers = answers;
        answers["flow_token"] = token.cloned().unwrap_or_else(|| json!("unused"));
        let reply = json!({ "name": "flow", "body": "Sent", "response_json": answers.to_string() });
        self.sends(json!({
            "type": "interactive", "interactive": { "type": "nfm_reply", "nfm_reply": reply },
            "context": { "from": FakeGraph::PHONE_NUMBER_ID, "id": form.id },
        }))
        .await
    }

    /// Presses a button that is not below a message of the bot's own making: of the page's menu or of a template. Returns the
    /// event's id.
    ///
    /// # Panics
    /// As [`says`](Self::says).
    pub async fn presses_postback(&self, payload: &str, title: &str) -> String {
        if self.product == Product::WhatsApp {
            return self
                .sends(json!({ "type": "button", "button": { "payload": payload, "text": title } }))
                .await;
        }
        let id = self.server.next_id("m_IN");
        self.does(json!({ "postback": { "mid": id, "title": title, "payload": payload } })).await;
        id
    }

    /// Takes back a message of theirs.
    ///
    /// # Panics
    /// As [`says`](Self::says).
    pub async fn takes_back(&self, message: &str) {
        if self.product == Product::WhatsApp {
            self.sends(json!({ "type": "revoke", "revoke": { "original_message_id": message } })).await;
        } else {
            self.does(json!({ "message": { "mid": message, "is_deleted": true } })).await;
        }
    }

    /// Reads a message of the bot's, and on Messenger all before it.
    ///
    /// # Panics
    /// As [`says`](Self::says).
    pub async fn reads(&self, message: &GraphMessage) {
        match self.product {
            Product::WhatsApp => self.server.deliver(self.product, whatsapp_status(message, "read")).await,
            Product::Messenger => self.does(json!({ "read": { "watermark": READ_AT } })).await,
            Product::Instagram => self.does(json!({ "read": { "mid": message.id } })).await,
        }
    }

    /// Plays a voice message of the bot's. On WhatsApp alone.
    ///
    /// # Panics
    /// As [`says`](Self::says), and on another product.
    pub async fn plays(&self, message: &GraphMessage) {
        assert_eq!(self.product, Product::WhatsApp, "only WhatsApp tells what is played");
        self.server.deliver(self.product, whatsapp_status(message, "played")).await;
    }

    /// Sends a picture, and returns the message's id.
    ///
    /// # Panics
    /// As [`says`](Self::says).
    pub async fn sends_image(&self, mime: &str, bytes: &[u8]) -> String {
        let id = self.server.keep_media(mime, bytes);
        let url = self.server.media_url(self.product, &id);
        self.sends(match self.product {
            Product::WhatsApp => {
                json!({ "type": "image", "image": { "id": id, "mime_type": mime, "url": url } })
            }
            _ => json!({ "attachments": [{ "type": "image", "payload": { "url": url } }] }),
        })
        .await
    }

    /// Sends a message of this form, without its id: `{"type": "image", "image": {…}}` on WhatsApp, `{"attachments": […]}`
    /// elsewhere.
    ///
    /// # Panics
    /// As [`says`](Self::says).
    pub async fn sends(&self, message: Value) -> String {
        self.deliver(self.body(message)).await
    }

    /// Changes their number, and with it their id, of which the bot is told in the chat that they had. From now on they are
    /// not reachable by the old ones. Returns the user as they are now. On WhatsApp alone.
    ///
    /// # Panics
    /// As [`says`](Self::says), and on another product.
    pub async fn changes_number(&self, phone: &str) -> Self {
        assert_eq!(self.product, Product::WhatsApp, "only users of WhatsApp have numbers");
        let now = self.server.whatsapp_user(&self.name, phone);
        let body =
            format!("User {} changed from {} to {phone}", self.name, self.phone.as_deref().unwrap_or(""));
        let system =
            json!({ "body": body, "wa_id": phone, "user_id": now.id, "type": "user_changed_number" });
        self.blocks();
        self.deliver(self.body(json!({ "type": "system", "system": system }))).await;
        now
    }

    /// Is not reachable for the bot from now on.
    pub fn blocks(&self) {
        self.server.state().blocked.extend(self.names());
    }

    /// Is reachable again.
    pub fn unblocks(&self) {
        let mut state = self.server.state();
        for name in self.names() {
            state.blocked.remove(&name);
        }
    }

    /// Has not written for a day: only templates reach them.
    pub fn is_silent_for_a_day(&self) {
        self.server.state().out_of_window.extend(self.names());
    }

    /// How a bot may name them.
    fn names(&self) -> impl Iterator<Item = String> {
        [Some(self.id.clone()), self.phone.clone()].into_iter().flatten()
    }

    /// What the user sees from the bot, in order.
    pub fn messages(&self) -> Vec<GraphMessage> {
        let is_theirs =
            |message: &GraphMessage| message.to == self.id || Some(&message.to) == self.phone.as_ref();
        self.server.delivered().into_iter().filter(is_theirs).collect()
    }

    /// What the user reads from the bot, in order.
    pub fn texts(&self) -> Vec<String> {
        self.messages().iter().map(|message| message.text().to_owned()).collect()
    }

    async fn deliver(&self, body: Value) -> String {
        let at = ["/entry/0/changes/0/value/messages/0/id", "/entry/0/messaging/0/message/mid"];
        let id = at.iter().find_map(|path| body.pointer(path)?.as_str().map(str::to_owned));
        self.server.deliver(self.product, body).await;
        id.unwrap_or_default()
    }

    /// The post of a text.
    pub(super) fn text_body(&self, text: &str) -> Value {
        match self.product {
            Product::WhatsApp => self.body(json!({ "type": "text", "text": { "body": text } })),
            _ => self.body(json!({ "text": text })),
        }
    }

    fn body(&self, mut message: Value) -> Value {
        match self.product {
            Product::WhatsApp => {
                message["id"] = json!(self.server.next_id("wamid.IN"));
                message["from_user_id"] = json!(self.id);
                message["timestamp"] = json!("1795950000");
                let mut contact = json!({ "profile": { "name": self.name }, "user_id": self.id });
                if let Some(phone) = &self.phone {
                    message["from"] = json!(phone);
                    contact["wa_id"] = json!(phone);
                }
                whatsapp_body(json!({ "contacts": [contact], "messages": [message] }))
            }
            _ => {
                message["mid"] = json!(self.server.next_id("m_IN"));
                self.item(json!({ "message": message }))
            }
        }
    }

    /// The post of something that happened on a page.
    fn item(&self, mut item: Value) -> Value {
        let (_, page) = page_of(self.product);
        (item["sender"], item["recipient"]) = (json!({ "id": self.id }), json!({ "id": page }));
        item["timestamp"] = json!(1_795_950_000_100_i64);
        self.server.item(self, &item)
    }

    async fn does(&self, item: Value) {
        self.server.deliver(self.product, self.item(item)).await;
    }
}
