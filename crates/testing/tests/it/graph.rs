//! A bot on WhatsApp and Messenger, from the user's side.

use std::sync::Arc;
use std::time::Duration;

use botmesh::core::coordinator::MemoryHub;
use botmesh::core::entropy::OsEntropy;
use botmesh::core::id::ChatId;
use botmesh::core::journal::{OutboxState, WritePoint};
use botmesh::core::kv::DurableKv;
use botmesh::core::memory::{MemoryKv, MemoryStore};
use botmesh::core::notice::{Notice, Stage};
use botmesh::core::provider::{ConnectionState, Provider};
use botmesh::core::time::{SystemClock, Timestamp};
use botmesh::prelude::*;
use botmesh::{BotBuilder, Coordination, OnAmbiguous};
use botmesh_meta::axum::Router;
use botmesh_meta::{Instagram, Messenger, MetaConfig, WhatsApp};
use botmesh_testing::{FakeGraph, Fault, GraphEcho, GraphFault, GraphProduct, LossyKv};
use botmesh_webhook::Server;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;

pub(crate) const WHATSAPP: GraphProduct = GraphProduct::WhatsApp;

pub(crate) fn config(graph: &FakeGraph) -> MetaConfig {
    MetaConfig::new(FakeGraph::ACCESS_TOKEN, FakeGraph::APP_SECRET, FakeGraph::VERIFY_TOKEN)
        .with_base_url(graph.url())
        .with_app_id(FakeGraph::APP_ID)
        .with_echo_wait(Duration::from_secs(30))
}

pub(crate) fn whatsapp(graph: &FakeGraph) -> WhatsApp {
    WhatsApp::new(FakeGraph::PHONE_NUMBER_ID, config(graph)).expect("a channel")
}

pub(crate) fn kv() -> Arc<dyn DurableKv> {
    Arc::new(MemoryKv::new())
}

pub(crate) fn journals(kv: &Arc<dyn DurableKv>, instance: &str) -> Durability {
    Durability::new(Arc::clone(kv)).with_instance_id(instance).with_on_ambiguous(OnAmbiguous::Auto)
}

/// A bot that listens, while `scenario` lasts. Posts of `product` go to it from now on.
pub(crate) async fn serving(
    graph: &FakeGraph,
    (product, path): (GraphProduct, &str),
    (provider, router): (impl Provider, Router),
    build: impl FnOnce(BotBuilder) -> BotBuilder,
    scenario: impl AsyncFnOnce(&Bot),
) {
    let (listener, url) = door(path).await;
    graph.set_webhook(product, url);
    serving_on(listener, (provider, router), build, scenario).await;
}

pub(crate) async fn door(path: &str) -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}{path}", listener.local_addr().expect("an address"));
    (listener, url)
}

async fn serving_on(
    listener: TcpListener,
    (provider, router): (impl Provider, Router),
    build: impl FnOnce(BotBuilder) -> BotBuilder,
    scenario: impl AsyncFnOnce(&Bot),
) {
    let mut states = provider.connection();
    let bot = build(Bot::builder().provider(provider)).build().expect("a bot");
    let server = Server::new().with_bot(bot.clone(), router).serve_on(listener);
    let scenario = async {
        states.wait_for(|state| *state == ConnectionState::Open).await.expect("it runs");
        scenario(&bot).await;
        bot.stop();
    };
    let (served, ()) = tokio::join!(server, scenario);
    served.expect("a good end");
}

pub(crate) async fn on_whatsapp(
    graph: &FakeGraph,
    kv: &Arc<dyn DurableKv>,
    build: impl FnOnce(BotBuilder) -> BotBuilder,
    scenario: impl AsyncFnOnce(&Bot),
) {
    let channel = whatsapp(graph);
    let router = channel.router();
    let durable = |bot: BotBuilder| build(bot.durability(journals(kv, "one")));
    serving(graph, (WHATSAPP, "/webhooks/whatsapp"), (channel, router), durable, scenario).await;
}

pub(crate) fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(format!("you said {}", c.text())).await })
}

/// Waits until something is so.
#[expect(clippy::disallowed_methods, reason = "looks again in real time, for a server in real time")]
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..20_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    panic!("{what}: not within a minute");
}

async fn count(bot: &Bot, state: OutboxState) -> usize {
    let journals = bot.durability().expect("a durable bot");
    journals.outbox().count(state, Timestamp::MAX, 1_000).await.expect("a count")
}

/// Case A1.
#[tokio::test]
async fn what_meta_posts_again_is_answered_once_also_at_the_same_time_and_after_a_restart() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let ana = graph.whatsapp_user("Ana", "15551234567");
    for life in 1..=3 {
        on_whatsapp(&graph, &kv, echo, async |_| {
            ana.says(&format!("hello {life}")).await;
            tokio::join!(graph.redeliver(), graph.redeliver());
            graph.wait_for_deliveries(life).await;
        })
        .await;
    }
    assert_eq!(ana.texts(), ["you said hello 1", "you said hello 2", "you said hello 3"]);
}

/// A text as WhatsApp posts it. Its id is always the same.
fn post_of(user: &str, text: &str) -> Value {
    let metadata =
        json!({ "display_phone_number": "15550009999", "phone_number_id": FakeGraph::PHONE_NUMBER_ID });
    let message = json!({
        "from": "15551234567", "from_user_id": user, "id": format!("wamid.{text}"), "timestamp": "1795950000",
        "type": "text", "text": { "body": text },
    });
    let value = json!({
        "messaging_product": "whatsapp", "metadata": metadata, "messages": [message],
        "contacts": [{ "profile": { "name": "Ana" }, "user_id": user, "wa_id": "15551234567" }],
    });
    json!({ "object": "whatsapp_business_account", "entry": [{ "id": "1", "changes": [{ "field": "messages", "value": value }] }] })
}

/// Case A1, two replicas: the same post reaches both at once, and then again.
#[tokio::test]
async fn replicas_that_get_the_same_post_at_the_same_time_answer_it_once() {
    let (graph, kv, store) = (FakeGraph::start().await, kv(), MemoryStore::new());
    let hub = MemoryHub::new(Arc::new(SystemClock::new()));
    let replica = |name: &'static str| {
        let coordination = Coordination::new(hub.coordinator(&OsEntropy::new())).with_replica_id(name);
        let (store, journals) = (store.clone(), journals(&kv, name));
        move |bot: BotBuilder| echo(bot.store(store).durability(journals).coordination(coordination))
    };
    let ana = graph.whatsapp_user("Ana", "15551234567");
    let (one, two) = (whatsapp(&graph), whatsapp(&graph));
    let (router_one, router_two) = (one.router(), two.router());
    let path = "/webhooks/whatsapp";
    let ((listener_one, url_one), (listener_two, url_two)) = (door(path).await, door(path).await);
    let post_to = async |url: &String, text: &str| {
        graph.set_webhook(WHATSAPP, url);
        graph.post(WHATSAPP, &post_of(ana.id(), text)).await
    };
    let texts: Vec<_> = (0..20).map(|number| number.to_string()).collect();
    let both_at_once = async |bot: &Bot| {
        for text in &texts {
            let answers = tokio::join!(post_to(&url_one, text), post_to(&url_two, text));
            assert_eq!(answers, (Some(200), Some(200)), "{text}");
        }
        graph.wait_for_deliveries(texts.len()).await;
        for text in &texts {
            tokio::join!(post_to(&url_two, text), post_to(&url_one, text));
        }
        until("the records", async || count(bot, OutboxState::Sent).await == texts.len()).await;
    };
    serving_on(listener_one, (one, router_one), replica("one"), async |_| {
        serving_on(listener_two, (two, router_two), replica("two"), both_at_once).await;
    })
    .await;
    let answers: Vec<_> = texts.iter().map(|text| format!("you said {text}")).collect();
    assert_eq!(ana.texts(), answers);
}

/// Case A7.
#[tokio::test]
async fn a_slow_handler_holds_up_neither_the_answer_to_meta_nor_the_others() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let (ana, bea) = (graph.whatsapp_user("Ana", "1"), graph.whatsapp_user("Bea", "2"));
    let go_on = Arc::new(Notify::new());
    let slow = Arc::clone(&go_on);
    let build = move |bot: BotBuilder| {
        echo(bot.when("slow", move |c: Ctx| {
            let slow = Arc::clone(&slow);
            async move {
                slow.notified().await;
                c.reply("at last").await
            }
        }))
    };
    on_whatsapp(&graph, &kv, build, async |_| {
        ana.says("slow").await;
        graph.redeliver().await;
        bea.says("hi").await;
        graph.wait_for_deliveries(1).await;
        graph.redeliver().await;
        go_on.notify_one();
        graph.wait_for_deliveries(2).await;
    })
    .await;
    assert_eq!((ana.texts(), bea.texts()), (vec!["at last".to_owned()], vec!["you said hi".to_owned()]));
}

/// Case A9.
#[tokio::test]
async fn a_message_whose_journal_failed_is_posted_again_and_answered() {
    let graph = FakeGraph::start().await;
    let lossy = Arc::new(LossyKv::new(Arc::new(MemoryKv::new())));
    let kv: Arc<dyn DurableKv> = Arc::<LossyKv>::clone(&lossy);
    let ana = graph.whatsapp_user("Ana", "1");
    for fault in [Fault::FailBefore, Fault::LoseAnswer] {
        on_whatsapp(&graph, &kv, echo, async |_| {
            lossy.fault_at(WritePoint::InboxInsertWorking, 1, fault);
            ana.says(&format!("{fault:?}")).await;
            until("the reply", async || ana.texts().last() == Some(&format!("you said {fault:?}"))).await;
        })
        .await;
    }
    assert_eq!(ana.texts().len(), 2);
}

/// Cases A3 and A5.
#[tokio::test]
async fn a_batch_of_many_users_and_statuses_is_answered_in_each_chats_order() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let (ana, bea) = (graph.whatsapp_user("Ana", "1"), graph.whatsapp_user("Bea", "2"));
    on_whatsapp(&graph, &kv, echo, async |_| {
        graph.say_together(&[(&ana, "1"), (&bea, "2"), (&ana, "3"), (&ana, "4"), (&bea, "5")]).await;
        graph.wait_for_deliveries(5).await;
    })
    .await;
    assert_eq!(ana.texts(), ["you said 1", "you said 3", "you said 4"]);
    assert_eq!(bea.texts(), ["you said 2", "you said 5"]);
}

/// Case E77, and what an operator sees of it: nothing.
#[tokio::test]
async fn a_lost_answer_is_resolved_by_a_status_in_whatever_order_they_come() {
    for order in [GraphEcho::InOrder, GraphEcho::Reversed, GraphEcho::BeforeAnswer] {
        for fault in [GraphFault::LoseAnswer, GraphFault::Slow(Duration::from_millis(100))] {
            let (graph, kv) = (FakeGraph::start().await, kv());
            let ana = graph.whatsapp_user("Ana", "1");
            graph.set_echo(order);
            graph.fault_next(fault.clone());
            on_whatsapp(&graph, &kv, echo, async |bot| {
                ana.says("hi").await;
                until("the record", async || count(bot, OutboxState::Sent).await == 1).await;
                assert_eq!(bot.metrics().outbox_ambiguous, 0, "{order:?} {fault:?}");
            })
            .await;
            assert_eq!(ana.texts(), ["you said hi"], "{order:?} {fault:?}");
        }
    }
}

#[tokio::test]
async fn a_refusal_that_passes_is_tried_again_and_one_for_good_is_not() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let ana = graph.whatsapp_user("Ana", "1");
    graph.fault_next(GraphFault::Refuse { status: 500, code: 131_000, subcode: 0 });
    graph.fault_next(GraphFault::Broken(503));
    on_whatsapp(&graph, &kv, echo, async |bot| {
        ana.says("hi").await;
        graph.wait_for_deliveries(1).await;
        ana.blocks();
        ana.says("bye").await;
        until("the dead letter", async || count(bot, OutboxState::Dead).await == 1).await;
    })
    .await;
    assert_eq!(ana.texts(), ["you said hi"]);
}

/// Receipts are told beside the messages, and nobody answers them.
#[tokio::test]
async fn receipts_are_events_of_the_bot_and_no_messages() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let ana = graph.whatsapp_user("Ana", "1");
    on_whatsapp(&graph, &kv, echo, async |bot| {
        let mut events = bot.events();
        ana.says("hi").await;
        let mut stages = Vec::new();
        while stages.len() < 2 {
            if let BotEvent::Notice(Notice::Receipt(receipt)) = events.recv().await.expect("an event") {
                assert_eq!(receipt.chat.as_str(), ana.id());
                stages.push(receipt.stage);
            }
        }
        assert_eq!(stages, [Stage::Sent, Stage::Delivered]);
        assert_eq!(bot.metrics().inbound_journaled, 1);
    })
    .await;
}

#[tokio::test]
async fn buttons_that_are_pressed_come_back_with_their_ids() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let ana = graph.whatsapp_user("Ana", "1");
    let build = |bot: BotBuilder| {
        let tea = || {
            Content::text("Tea?").with_buttons([Button::new("tea:yes", "Yes"), Button::new("tea:no", "No")])
        };
        bot.when(interaction("tea:"), |c: Ctx| async move { c.reply(format!("chose {}", c.arg(1))).await })
            .otherwise(move |c: Ctx| async move { c.reply(tea()).await })
    };
    on_whatsapp(&graph, &kv, build, async |_| {
        ana.says("hi").await;
        graph.wait_for_deliveries(1).await;
        ana.presses("tea:yes", "Yes").await;
        graph.wait_for_deliveries(2).await;
    })
    .await;
    assert_eq!(ana.texts(), ["Tea?", "chose yes"]);
}

/// Case E91: the echo of an answer is no message.
#[tokio::test]
async fn a_bot_on_messenger_does_not_answer_itself() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let ana = graph.user(GraphProduct::Messenger, "Ana", "200000000000001");
    let channel = Messenger::new(FakeGraph::PAGE_ID, config(&graph)).expect("a channel");
    let router = channel.router();
    let build = |bot: BotBuilder| echo(bot.durability(journals(&kv, "one")));
    graph.fault_next(GraphFault::LoseAnswer);
    serving(
        &graph,
        (GraphProduct::Messenger, "/webhooks/messenger"),
        (channel, router),
        build,
        async |bot| {
            ana.says("hi").await;
            until("the record", async || count(bot, OutboxState::Sent).await == 1).await;
            ana.says("ho").await;
            graph.wait_for_deliveries(2).await;
            graph.redeliver().await;
            until("the second record", async || count(bot, OutboxState::Sent).await == 2).await;
            assert_eq!((bot.metrics().inbound_journaled, bot.metrics().outbox_ambiguous), (2, 0));
        },
    )
    .await;
    assert_eq!(ana.texts(), ["you said hi", "you said ho"]);
}

#[tokio::test]
async fn formatting_arrives_as_each_channel_shows_it() {
    let graph = FakeGraph::start().await;
    let text = || Formatted::parse("**Tea** or ~~coffee~~");
    let (of_page, of_account) = (GraphProduct::Messenger, GraphProduct::Instagram);
    let users = [
        graph.whatsapp_user("Ana", "15551234567"),
        graph.user(of_page, "Ben", "200000000000001"),
        graph.user(of_account, "Cem", "300000000000001"),
    ];
    let [ana, ben, cem] = ["15551234567", "200000000000001", "300000000000001"].map(ChatId::from);
    let whatsapp = whatsapp(&graph);
    let router = whatsapp.router();
    serving(&graph, (WHATSAPP, "/webhooks/whatsapp"), (whatsapp, router), echo, async |bot| {
        bot.send(ana, text()).await.expect("a message");
    })
    .await;
    let messenger = Messenger::new(FakeGraph::PAGE_ID, config(&graph)).expect("a channel");
    let router = messenger.router();
    serving(&graph, (of_page, "/webhooks/messenger"), (messenger, router), echo, async |bot| {
        bot.send(ben, text()).await.expect("a message");
    })
    .await;
    let instagram = Instagram::new(FakeGraph::ACCOUNT_ID, config(&graph)).expect("a channel");
    let router = instagram.router();
    serving(&graph, (of_account, "/webhooks/instagram"), (instagram, router), echo, async |bot| {
        bot.send(cem, text()).await.expect("a message");
    })
    .await;
    let shown = users.map(|user| user.texts().concat());
    assert_eq!(shown, ["*Tea* or ~coffee~", "Tea or coffee", "Tea or coffee"]);
}

/// How a bot is, to an orchestrator.
#[tokio::test]
async fn a_bot_is_ready_while_it_takes_messages_and_alive_until_it_ends() {
    let graph = FakeGraph::start().await;
    let bot = echo(Bot::builder().provider(whatsapp(&graph))).build().expect("a bot");
    assert_eq!((bot.health().live, bot.health().ready), (true, false));
    let scenario = async {
        until("ready", async || bot.health().ready).await;
        bot.stop();
    };
    let (ended, ()) = tokio::join!(bot.run(), scenario);
    ended.expect("a good end");
    assert_eq!((bot.health().live, bot.health().ready), (false, false));
}
