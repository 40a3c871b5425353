//! What Meta posts to the bot.

use std::sync::PoisonError;
use std::time::Duration;

use ring::hmac;
use serde_json::{Value, json};

use super::http::call;
use super::{FakeGraph, GraphMessage, GraphUser, PATIENCE, Product, pause, within};

/// Between two tries to post.
const AGAIN: Duration = Duration::from_millis(20);

impl FakeGraph {
    /// Asks the bot's webhook for the handshake, as Meta does when its URL is typed in. Returns whether it knows the token.
    ///
    /// # Panics
    /// If no webhook is set.
    pub async fn verify_webhook(&self, product: Product) -> bool {
        let url = self.webhook(product);
        let query = "hub.mode=subscribe&hub.verify_token=a%20verify%2Btoken&hub.challenge=1158201444";
        let answer = call("GET", &format!("{url}?{query}"), "", b"").await;
        answer.is_some_and(|(status, body)| (status, &*body) == (200, "1158201444"))
    }

    /// Posts a body once, and returns the status of the answer; `None` if there was none.
    ///
    /// # Panics
    /// If no webhook is set.
    pub async fn post(&self, product: Product, body: &Value) -> Option<u16> {
        self.post_bytes(product, body.to_string().as_bytes()).await
    }

    /// Posts these bytes once, signed as they are.
    ///
    /// # Panics
    /// If no webhook is set.
    pub async fn post_bytes(&self, product: Product, body: &[u8]) -> Option<u16> {
        let headers =
            format!("content-type: application/json\r\nx-hub-signature-256: {}\r\n", Self::sign(body));
        Some(self.post_raw(product, &headers, body).await?.0)
    }

    /// Posts these bytes once, with these headers (each line ends with CR LF) and no signature but theirs. Returns status and
    /// body of the answer.
    ///
    /// # Panics
    /// If no webhook is set.
    pub async fn post_raw(&self, product: Product, headers: &str, body: &[u8]) -> Option<(u16, String)> {
        call("POST", &self.webhook(product), headers, body).await
    }

    /// The signature of a body.
    pub fn sign(body: &[u8]) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, Self::APP_SECRET.as_bytes());
        let tag = hmac::sign(&key, body);
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256={hex}")
    }

    /// Posts a body until the bot takes it, as Meta does.
    ///
    /// # Panics
    /// If the bot has not taken it within 60 s.
    pub async fn deliver(&self, product: Product, body: Value) {
        self.state().posts.push((product, body.clone()));
        self.post_until_taken(product, &body).await;
    }

    async fn post_until_taken(&self, product: Product, body: &Value) {
        let taken = async {
            while self.post(product, body).await != Some(200) {
                pause(AGAIN).await;
            }
        };
        if within(PATIENCE, taken).await.is_none() {
            panic!("the bot has not taken this within {PATIENCE:?}: {body}");
        }
    }

    /// Posts everything again that was delivered so far, as Meta does when it missed an answer.
    ///
    /// # Panics
    /// If the bot does not take one of them within 60 s.
    pub async fn redeliver(&self) {
        let posts = self.state().posts.clone();
        for (product, body) in posts {
            self.post_until_taken(product, &body).await;
        }
    }

    /// Posts texts of several users as one batch, in this order.
    ///
    /// # Panics
    /// If the bot has not taken it within 60 s.
    pub async fn say_together(&self, texts: &[(&GraphUser, &str)]) {
        let Some((first, _)) = texts.first() else { return };
        let product = first.product;
        let posts: Vec<_> = texts.iter().map(|(user, text)| user.text_body(text)).collect();
        let entries: Vec<_> =
            posts.iter().flat_map(|post| post["entry"].as_array().cloned()).flatten().collect();
        self.deliver(product, json!({ "object": posts[0]["object"], "entry": entries })).await;
    }

    /// Posts that a message that WhatsApp took did not arrive after all, for the reason with this code, such as 131049.
    ///
    /// # Panics
    /// If the bot has not taken it within 60 s.
    pub async fn fails(&self, message: &GraphMessage, code: i64) {
        let mut status = status_of(message, "failed");
        let title = format!("failed with {code}");
        let data = json!({ "details": "as the test wants it" });
        status["errors"] = json!([{ "code": code, "title": title, "message": title, "error_data": data }]);
        self.deliver(Product::WhatsApp, whatsapp_body(json!({ "statuses": [status] }))).await;
    }

    fn webhook(&self, product: Product) -> String {
        let webhooks = self.shared.webhooks.lock().unwrap_or_else(PoisonError::into_inner);
        webhooks.get(&product).cloned().unwrap_or_else(|| panic!("tell where the bot is with `set_webhook`"))
    }

    fn has_webhook(&self, product: Product) -> bool {
        self.shared.webhooks.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&product)
    }

    /// What is posted about a message of the bot, in order.
    pub(super) fn echoes(&self, product: Product, message: &GraphMessage) -> Vec<Value> {
        if !self.has_webhook(product) || message.id.starts_with("reaction") {
            return Vec::new();
        }
        if product == Product::WhatsApp {
            return ["sent", "delivered"].map(|status| whatsapp_status(message, status)).to_vec();
        }
        let (object, page) = page_of(product);
        let mut copy = json!({ "mid": message.id, "text": message.text(), "is_echo": true });
        // Meta promises neither on Instagram.
        if product == Product::Messenger {
            copy["app_id"] = json!(Self::APP_ID.parse::<u64>().unwrap_or(0));
            copy["metadata"] = json!(message.token);
        }
        let echo = json!({
            "sender": { "id": page }, "recipient": { "id": message.to }, "timestamp": 1_795_950_000_200_i64,
            "message": copy,
        });
        vec![
            json!({ "object": object, "entry": [{ "id": page, "time": 1_795_950_000_123_i64, "messaging": [echo] }] }),
        ]
    }

    /// Posts one of them, for as long as somebody may be there.
    pub(super) async fn post_echo(&self, product: Product, body: &Value) {
        let taken = async {
            while self.post(product, body).await != Some(200) {
                pause(AGAIN).await;
            }
        };
        // A test that is over has no bot any more.
        let _ = within(PATIENCE, taken).await;
    }
}

pub(super) fn page_of(product: Product) -> (&'static str, &'static str) {
    match product {
        Product::Instagram => ("instagram", FakeGraph::ACCOUNT_ID),
        Product::Messenger | Product::WhatsApp => ("page", FakeGraph::PAGE_ID),
    }
}

/// A post about the bot's phone number.
pub(super) fn whatsapp_body(mut value: Value) -> Value {
    value["messaging_product"] = json!("whatsapp");
    value["metadata"] =
        json!({ "display_phone_number": "15550009999", "phone_number_id": FakeGraph::PHONE_NUMBER_ID });
    let change = json!({ "field": "messages", "value": value });
    json!({ "object": "whatsapp_business_account", "entry": [{ "id": "102290129340398", "changes": [change] }] })
}

pub(super) fn whatsapp_status(message: &GraphMessage, status: &str) -> Value {
    whatsapp_body(json!({ "statuses": [status_of(message, status)] }))
}

fn status_of(message: &GraphMessage, status: &str) -> Value {
    let mut posted = json!({
        "id": message.id, "status": status, "timestamp": "1795950010", "recipient_user_id": message.to,
    });
    if let Some(token) = &message.token {
        posted["biz_opaque_callback_data"] = json!(token);
    }
    posted
}
