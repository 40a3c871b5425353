//! A bot whose users of WhatsApp are known by their phone number, by the id that Meta gives them, or by both.

use std::sync::Arc;

use botmesh::core::kv::DurableKv;
use botmesh::core::memory::{MemoryKv, MemoryStore};
use botmesh::core::provider::{ConnectionState, Provider};
use botmesh::prelude::*;
use botmesh_meta::{MetaConfig, WhatsApp};
use botmesh_testing::{FakeGraph, GraphProduct, GraphUser};
use botmesh_webhook::Server;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const NUMBER: &str = "15551234567";

fn booking() -> botmesh::Conversation {
    conversation("booking", |c: Conv| async move {
        let day = c.ask("Which day?").await?;
        let hour = c.ask("At what hour?").await?;
        c.say(format!("Booked: {} at {}.", day.text(), hour.text())).await?;
        Ok::<_, botmesh::Error>(())
    })
    .replayable()
}

/// A message of somebody whose id and number are these, as far as Meta tells them.
fn post(event: &str, user: Option<&str>, number: Option<&str>, seconds: u32, text: &str) -> Value {
    json!({ "object": "whatsapp_business_account", "entry": [{ "id": "1", "changes": [{ "field": "messages", "value": {
        "messaging_product": "whatsapp",
        "metadata": { "display_phone_number": "15550009999", "phone_number_id": FakeGraph::PHONE_NUMBER_ID },
        "contacts": [{ "profile": { "name": "Ana" }, "wa_id": number, "user_id": user }],
        "messages": [{
            "id": event, "from": number, "from_user_id": user, "timestamp": seconds.to_string(),
            "type": "text", "text": { "body": text },
        }],
    } }] }] })
}

/// What outlives a bot.
struct Office {
    graph: FakeGraph,
    kv: Arc<dyn DurableKv>,
    store: MemoryStore,
}

impl Office {
    async fn new() -> Self {
        Self { graph: FakeGraph::start().await, kv: Arc::new(MemoryKv::new()), store: MemoryStore::new() }
    }

    /// A bot for as long as `scenario` goes on.
    async fn open(&self, scenario: impl AsyncFnOnce(&Bot)) {
        let config = MetaConfig::new(FakeGraph::ACCESS_TOKEN, FakeGraph::APP_SECRET, FakeGraph::VERIFY_TOKEN);
        let channel = WhatsApp::new(FakeGraph::PHONE_NUMBER_ID, config.with_base_url(self.graph.url()))
            .expect("a channel");
        let bot = Bot::builder()
            .provider(channel.clone())
            .store(self.store.reopen())
            .durability(Durability::new(Arc::clone(&self.kv)).with_instance_id("office"))
            .add_conversation(booking())
            .when("count", |c: Ctx| async move {
                let count = c.user().increment("count", 1).await?;
                c.reply(format!("{count}")).await?;
                Ok::<_, botmesh::Error>(())
            })
            .build()
            .expect("a bot");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        self.graph.set_webhook(GraphProduct::WhatsApp, format!("http://{address}/webhooks/whatsapp"));
        let server = Server::new().with_bot(bot.clone(), channel.router()).serve_on(listener);
        let (served, ()) = tokio::join!(server, async {
            let mut states = channel.connection();
            states.wait_for(|state| *state == ConnectionState::Open).await.expect("it runs");
            scenario(&bot).await;
            bot.stop();
        });
        served.expect("it ended as it should");
    }

    async fn hears(&self, body: Value) {
        self.graph.deliver(GraphProduct::WhatsApp, body).await;
    }

    /// What was said to these, once there are so many texts.
    async fn said(&self, texts: usize) -> Vec<(String, String)> {
        self.graph.wait_for_deliveries(texts).await;
        self.graph.delivered().iter().map(|sent| (sent.to.clone(), sent.text().to_owned())).collect()
    }
}

fn is_said_to(to: &str, texts: &[&str]) -> Vec<(String, String)> {
    texts.iter().map(|text| (to.to_owned(), (*text).to_owned())).collect()
}

fn ana(office: &Office) -> GraphUser {
    office.graph.whatsapp_user("Ana", NUMBER)
}

#[tokio::test]
async fn e79_a_conversation_that_the_bot_began_at_a_number_is_answered_by_its_user_across_restarts() {
    let office = Office::new().await;
    let ana = ana(&office);
    office
        .open(async |bot: &Bot| {
            bot.enter(NUMBER, "booking", &()).await.expect("entered");
            assert_eq!(office.said(1).await, is_said_to(NUMBER, &["Which day?"]));
        })
        .await;
    office
        .open(async |_: &Bot| {
            ana.says("monday").await;
            office.said(2).await;
        })
        .await;
    office
        .open(async |_: &Bot| {
            office.hears(post("wamid.3", None, Some(NUMBER), 1_795_950_020, "10")).await;
            office.said(3).await;
            office.hears(post("wamid.4", Some(ana.id()), None, 1_795_950_030, "count")).await;
            office.said(4).await;
        })
        .await;
    assert_eq!(ana.texts(), ["Which day?", "At what hour?", "Booked: monday at 10.", "1"]);
    assert_eq!(
        office.said(4).await[1..],
        is_said_to(ana.id(), &["At what hour?", "Booked: monday at 10.", "1"])
    );
}

#[tokio::test]
async fn e83_a_number_that_went_to_somebody_else_does_not_bring_them_the_chat_of_who_had_it() {
    let office = Office::new().await;
    let ana = ana(&office);
    office
        .open(async |bot: &Bot| {
            ana.says("count").await;
            office.said(1).await;
            bot.send(NUMBER, "reminder for Ana").await.expect("sent");
            office.hears(post("wamid.8", Some("US.2"), Some(NUMBER), 1_803_726_000, "count")).await;
            office.said(3).await;
            bot.send(NUMBER, "reminder for Ben").await.expect("sent");
        })
        .await;
    let said =
        [is_said_to(ana.id(), &["1", "reminder for Ana"]), is_said_to("US.2", &["1", "reminder for Ben"])];
    assert_eq!(office.said(4).await, said.concat());
}
