//! Who has the thread with a user, where several apps share a page.

use serde_json::{Value, json};

use super::post::page_of;
use super::{FakeGraph, GraphUser, Product};

/// The app of the page's inbox.
const INBOX: &str = "263902037430900";

/// The hand-over protocol of Messenger and Instagram.
impl FakeGraph {
    /// Another app takes the thread with a user, of which the bot is told. From now on the bot sees what the user writes on
    /// standby, and its own messages to them are refused (10/2018300).
    ///
    /// # Panics
    /// If the bot has not taken it within 60 s, and on WhatsApp.
    pub async fn takes_thread(&self, user: &GraphUser) {
        self.tell_owner(user, &json!({ "take_thread_control": { "previous_owner_app_id": Self::APP_ID } }))
            .await;
        self.state().elsewhere.insert(user.id().to_owned());
    }

    /// The bot gets the thread back, of which it is told.
    ///
    /// # Panics
    /// As [`takes_thread`](Self::takes_thread).
    pub async fn passes_thread(&self, user: &GraphUser) {
        self.state().elsewhere.remove(user.id());
        let passed = json!({ "new_owner_app_id": Self::APP_ID, "previous_owner_app_id": INBOX });
        self.tell_owner(user, &json!({ "pass_thread_control": passed })).await;
    }

    /// Somebody writes to a user in the page's inbox, of which the bot gets an echo.
    ///
    /// # Panics
    /// As [`takes_thread`](Self::takes_thread).
    pub async fn person_writes(&self, user: &GraphUser, text: &str) {
        let app: u64 = INBOX.parse().unwrap_or(0);
        let copy = json!({ "mid": self.next_id("m_INBOX"), "text": text, "is_echo": true, "app_id": app });
        let (_, page) = page_of(user.product);
        let (from, to) = (json!({ "id": page }), json!({ "id": user.id() }));
        self.deliver_item(
            user,
            json!({ "sender": from, "recipient": to, "timestamp": 1_795_950_000_300_i64, "message": copy }),
        )
        .await;
    }

    async fn tell_owner(&self, user: &GraphUser, what: &Value) {
        let mut item = what.clone();
        let (_, page) = page_of(user.product);
        (item["sender"], item["recipient"]) = (json!({ "id": user.id() }), json!({ "id": page }));
        item["timestamp"] =
            json!(1_795_950_000_400_i64 + i64::try_from(self.state().posts.len()).unwrap_or(0));
        self.deliver_item(user, item).await;
    }

    async fn deliver_item(&self, user: &GraphUser, item: Value) {
        assert_ne!(user.product, Product::WhatsApp, "WhatsApp has no hand-over");
        self.deliver(user.product, self.item(user, &item)).await;
    }

    /// The post of an item: on standby, if another app has the thread.
    pub(super) fn item(&self, user: &GraphUser, item: &Value) -> Value {
        let (object, page) = page_of(user.product);
        let list = if self.state().elsewhere.contains(user.id()) { "standby" } else { "messaging" };
        json!({ "object": object, "entry": [{ "id": page, "time": 1_795_950_000_123_i64, (list): [item] }] })
    }
}
