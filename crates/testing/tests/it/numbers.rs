//! Two bots with phone numbers of one app of Meta's, on one listener and with one journal.

use std::sync::Arc;

use botmesh::core::kv::DurableKv;
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::{ConnectionState, Provider};
use botmesh::prelude::*;
use botmesh_meta::{MetaConfig, WhatsApp};
use botmesh_testing::{FakeGraph, GraphEcho, GraphProduct};
use botmesh_webhook::Server;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const WHATSAPP: GraphProduct = GraphProduct::WhatsApp;
const SHOP: &str = FakeGraph::PHONE_NUMBER_ID;
const DESK: &str = FakeGraph::OTHER_PHONE_NUMBER_ID;

fn number(graph: &FakeGraph, number: &str, path: &str) -> WhatsApp {
    let config = MetaConfig::new(FakeGraph::ACCESS_TOKEN, FakeGraph::APP_SECRET, FakeGraph::VERIFY_TOKEN);
    WhatsApp::new(number, config.with_base_url(graph.url()).with_path(path)).expect("a channel")
}

fn bot(name: &'static str, provider: WhatsApp, kv: &Arc<dyn DurableKv>) -> Bot {
    Bot::builder()
        .provider(provider)
        .scope(Scope::bot(name))
        .durability(Durability::new(Arc::clone(kv)).with_instance_id(name))
        .otherwise(move |c: Ctx| async move { c.reply(format!("{name} heard {}", c.text())).await })
        .build()
        .expect("a bot")
}

/// What a user wrote to a number, under this id.
fn change(number: &str, id: &str, text: &str) -> Value {
    json!({ "field": "messages", "value": {
        "messaging_product": "whatsapp",
        "metadata": { "display_phone_number": "15550009999", "phone_number_id": number },
        "contacts": [{ "profile": { "name": "Ana" }, "wa_id": "15551234567" }],
        "messages": [{
            "from": "15551234567", "id": id, "timestamp": "1795950010", "type": "text", "text": { "body": text },
        }],
    } })
}

fn post(changes: &[Value]) -> Value {
    json!({ "object": "whatsapp_business_account", "entry": [{ "id": "102290129340398", "changes": changes }] })
}

/// From which number, and what.
fn answers(graph: &FakeGraph) -> Vec<(String, String)> {
    let mut answers: Vec<_> =
        graph.sent().iter().map(|sent| (sent.from.clone(), sent.text().to_owned())).collect();
    answers.sort();
    answers
}

#[tokio::test]
async fn one_id_to_two_numbers_is_two_messages_and_each_bot_answers_its_own() {
    let graph = FakeGraph::start().await;
    graph.set_echo(GraphEcho::None);
    let kv: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
    let numbers = [number(&graph, SHOP, "/shop"), number(&graph, DESK, "/desk")];
    let [shop, desk] = [bot("shop", numbers[0].clone(), &kv), bot("desk", numbers[1].clone(), &kv)];
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = Server::new()
        .with_bot(shop.clone(), numbers[0].router())
        .with_bot(desk.clone(), numbers[1].router())
        .serve_on(listener);
    let deliver = async |path: &str, changes: &[Value]| {
        graph.set_webhook(WHATSAPP, format!("http://{address}{path}"));
        graph.deliver(WHATSAPP, post(changes)).await;
    };
    let scenario = async {
        for number in &numbers {
            let mut states = number.connection();
            states.wait_for(|state| *state == ConnectionState::Open).await.expect("it runs");
        }
        // Each number has a URL of its own.
        deliver("/shop", &[change(SHOP, "wamid.1", "one")]).await;
        deliver("/desk", &[change(DESK, "wamid.1", "two")]).await;
        // The app posts what is for either number to both URLs.
        for path in ["/shop", "/desk", "/shop", "/desk"] {
            deliver(path, &[change(DESK, "wamid.2", "four"), change(SHOP, "wamid.2", "three")]).await;
        }
        graph.wait_for_deliveries(4).await;
        shop.stop();
        desk.stop();
    };
    let (served, ()) = tokio::join!(server, scenario);
    served.expect("both ended as they should");
    let expected = [
        (SHOP, "shop heard one"),
        (SHOP, "shop heard three"),
        (DESK, "desk heard four"),
        (DESK, "desk heard two"),
    ];
    let expected: Vec<_> = expected.map(|(from, text)| (from.to_owned(), text.to_owned())).into();
    assert_eq!(answers(&graph), expected);
}
