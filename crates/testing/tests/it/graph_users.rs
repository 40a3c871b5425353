//! What users do beside writing, and what a bot makes of it.

use std::sync::Arc;

use botmesh::BotBuilder;
use botmesh::core::error::ErrorClass;
use botmesh::core::journal::WritePoint;
use botmesh::core::kv::DurableKv;
use botmesh::core::memory::MemoryKv;
use botmesh::core::notice::{Notice, ReceiptOf, Stage};
use botmesh::prelude::*;
use botmesh_meta::axum::Router;
use botmesh_meta::{Instagram, Messenger, WhatsAppFlow};
use botmesh_testing::{FakeGraph, Fault, GraphEcho, GraphFault, GraphProduct, GraphUser, LossyKv};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;

use crate::graph::{WHATSAPP, config, echo, journals, kv, on_whatsapp, serving, until};

const MESSENGER: GraphProduct = GraphProduct::Messenger;
const INSTAGRAM: GraphProduct = GraphProduct::Instagram;

/// A bot on Messenger or Instagram, while `scenario` lasts.
async fn on_page(
    graph: &FakeGraph,
    product: GraphProduct,
    build: impl FnOnce(BotBuilder) -> BotBuilder,
    scenario: impl AsyncFnOnce(&Bot),
) {
    let kv = kv();
    let durable = |bot: BotBuilder| build(bot.durability(journals(&kv, "one")));
    if product == MESSENGER {
        let channel = Messenger::new(FakeGraph::PAGE_ID, config(graph)).expect("a channel");
        let router: Router = channel.router();
        serving(graph, (product, "/webhooks/messenger"), (channel, router), durable, scenario).await;
    } else {
        let channel = Instagram::new(FakeGraph::ACCOUNT_ID, config(graph)).expect("a channel");
        let router = channel.router();
        serving(graph, (product, "/webhooks/instagram"), (channel, router), durable, scenario).await;
    }
}

/// The next notice of which something is made.
async fn told<T>(events: &mut Receiver<BotEvent>, mut read: impl FnMut(Notice) -> Option<T>) -> T {
    loop {
        if let BotEvent::Notice(notice) = events.recv().await.expect("an event")
            && let Some(read) = read(notice)
        {
            return read;
        }
    }
}

#[tokio::test]
async fn a_form_that_is_filled_in_comes_back_with_its_answers() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let ana = graph.whatsapp_user("Ana", "1");
    let build = |bot: BotBuilder| {
        bot.when("visit", |c: Ctx| async move {
            let form = WhatsAppFlow::by_name("visit", "When?", "Choose");
            c.reply(form.with_screen("DAYS").with_token("visit:42")).await
        })
        .when(interaction("flow"), |c: Ctx| async move {
            let inbound = c.inbound();
            let (form, shown) = (&inbound.extra["form"], inbound.reply_to.is_some());
            let text = |key: &str| form[key].as_str().unwrap_or("nothing").to_owned();
            c.reply(format!("{} for {}, {shown}", text("day"), text("flow_token"))).await
        })
    };
    on_whatsapp(&graph, &kv, build, async |_| {
        ana.says("visit").await;
        graph.wait_for_deliveries(1).await;
        ana.completes_flow(json!({ "day": "Monday" })).await;
        graph.redeliver().await;
        graph.wait_for_deliveries(2).await;
    })
    .await;
    assert_eq!(ana.texts(), ["When?", "Monday for visit:42, true"]);
}

/// The hand-over protocol: a person took the thread in the page's inbox, and gives it back.
#[tokio::test]
async fn a_bot_is_silent_while_somebody_else_has_the_thread() {
    for product in [MESSENGER, INSTAGRAM] {
        let graph = FakeGraph::start().await;
        let (ana, ben) = (graph.user(product, "Ana", "200"), graph.user(product, "Ben", "300"));
        let build = |bot: BotBuilder| {
            echo(bot).when(system("pass_thread_control"), |c: Ctx| async move { c.reply("I am back").await })
        };
        on_page(&graph, product, build, async |bot| {
            ana.says("one").await;
            graph.wait_for_deliveries(1).await;
            let mut events = bot.events();
            graph.takes_thread(&ana).await;
            ana.says("two").await;
            let watched = told(&mut events, |notice| match notice {
                Notice::Watched(inbound) => Some(inbound.readable_text().to_owned()),
                _ => None,
            });
            assert_eq!(watched.await, "two");
            graph.person_writes(&ana, "I am Eva").await;
            let written = told(&mut events, |notice| match notice {
                Notice::FromMe { chat, text, .. } => Some((chat.to_string(), text)),
                _ => None,
            });
            assert_eq!(written.await, ("200".to_owned(), "I am Eva".to_owned()));
            let error = bot.send("200", "news").await.expect_err("somebody else has the thread");
            assert!(error.to_string().contains("another app"), "{error}");
            // Others are answered as ever.
            ben.says("hi").await;
            graph.wait_for_deliveries(2).await;
            graph.passes_thread(&ana).await;
            graph.wait_for_deliveries(3).await;
            ana.says("three").await;
            graph.redeliver().await;
            graph.wait_for_deliveries(4).await;
        })
        .await;
        assert_eq!(ana.texts(), ["you said one", "I am back", "you said three"], "{product:?}");
        assert_eq!(ben.texts(), ["you said hi"]);
    }
}

#[tokio::test]
async fn somebody_who_unblocks_the_bot_is_reachable_again() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let ana = graph.whatsapp_user("Ana", "1");
    ana.blocks();
    on_whatsapp(&graph, &kv, echo, async |bot| {
        let error = bot.send(ana.id(), "hi").await.expect_err("blocked");
        assert!(error.to_string().contains("undeliverable"), "{error}");
        ana.unblocks();
        bot.send(ana.id(), "hi again").await.expect("a message");
    })
    .await;
    assert_eq!(ana.texts(), ["hi again"]);
}

/// What becomes of the bot's messages, as users make it so.
#[tokio::test]
async fn the_bot_hears_what_is_read_and_played_and_what_fails() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let ana = graph.whatsapp_user("Ana", "1");
    graph.set_echo(GraphEcho::None);
    on_whatsapp(&graph, &kv, echo, async |bot| {
        let mut events = bot.events();
        ana.says("hi").await;
        ana.says("ho").await;
        let sent = graph.wait_for_deliveries(2).await;
        ana.reads(&sent[0]).await;
        ana.plays(&sent[0]).await;
        graph.fails(&sent[1], 131_049).await;
        let mut receipt = async || {
            told(&mut events, |notice| match notice {
                Notice::Receipt(receipt) => Some(receipt),
                _ => None,
            })
            .await
        };
        for stage in [Stage::Read, Stage::Played] {
            let told = receipt().await;
            assert_eq!((told.stage, told.of), (stage, ReceiptOf::Message(sent[0].id.as_str().into())));
        }
        let failed = receipt().await;
        let why = failed.failure.expect("a reason");
        assert_eq!(
            (failed.stage, failed.of),
            (Stage::Failed, ReceiptOf::Message(sent[1].id.as_str().into()))
        );
        assert_eq!((why.class, why.code.as_deref()), (ErrorClass::Rejected, Some("131049")));
    })
    .await;
}

#[tokio::test]
async fn the_bot_hears_what_is_read_on_a_page() {
    for product in [MESSENGER, INSTAGRAM] {
        let graph = FakeGraph::start().await;
        let ana = graph.user(product, "Ana", "200");
        on_page(&graph, product, echo, async |bot| {
            let mut events = bot.events();
            ana.says("hi").await;
            let sent = graph.wait_for_deliveries(1).await;
            ana.reads(&sent[0]).await;
            let receipt = told(&mut events, |notice| match notice {
                Notice::Receipt(receipt) => Some(receipt),
                _ => None,
            });
            let receipt = receipt.await;
            assert_eq!((receipt.stage, receipt.chat.as_str()), (Stage::Read, "200"));
            let is_one = receipt.of == ReceiptOf::Message(sent[0].id.as_str().into());
            assert_eq!(is_one, product == INSTAGRAM, "{receipt:?}");
        })
        .await;
    }
}

/// A button of the page's menu, or of a template, is an interaction like any other.
#[tokio::test]
async fn a_menus_button_comes_with_its_payload() {
    let build = |bot: BotBuilder| {
        bot.when(interaction("menu:"), |c: Ctx| async move { c.reply(format!("chose {}", c.arg(1))).await })
    };
    let press = async |ana: &GraphUser, graph: &FakeGraph| {
        ana.presses_postback("menu:start", "Start").await;
        graph.redeliver().await;
        graph.wait_for_deliveries(1).await;
        assert_eq!(ana.texts(), ["chose start"]);
    };
    for product in [MESSENGER, INSTAGRAM] {
        let graph = FakeGraph::start().await;
        let ana = graph.user(product, "Ana", "200");
        on_page(&graph, product, build, async |_| press(&ana, &graph).await).await;
    }
    let graph = FakeGraph::start().await;
    let ana = graph.whatsapp_user("Ana", "1");
    on_whatsapp(&graph, &kv(), build, async |_| press(&ana, &graph).await).await;
}

#[tokio::test]
async fn the_bot_hears_that_a_message_was_taken_back() {
    let build = |bot: BotBuilder| {
        echo(bot).when(system("message_deleted"), |c: Ctx| async move {
            let InboundBody::System { detail, .. } = &c.inbound().body else { return Ok(()) };
            c.reply(format!("forgot {}", detail["message"])).await.map(drop)
        })
    };
    let take_back = async |ana: &GraphUser, graph: &FakeGraph| {
        let said = ana.says("a secret").await;
        graph.wait_for_deliveries(1).await;
        ana.takes_back(&said).await;
        graph.wait_for_deliveries(2).await;
        assert_eq!(ana.texts(), ["you said a secret".to_owned(), format!("forgot {:?}", said)]);
    };
    for product in [MESSENGER, INSTAGRAM] {
        let graph = FakeGraph::start().await;
        let ana = graph.user(product, "Ana", "200");
        on_page(&graph, product, build, async |_| take_back(&ana, &graph).await).await;
    }
    let graph = FakeGraph::start().await;
    let ana = graph.whatsapp_user("Ana", "1");
    on_whatsapp(&graph, &kv(), build, async |_| take_back(&ana, &graph).await).await;
}

/// The post of these statuses, and of a message after them if there is one.
fn statuses(ids: impl Iterator<Item = (String, String)>, message: Option<Value>) -> Value {
    let statuses = ids.map(|(id, token)| {
        json!({ "id": id, "status": "delivered", "recipient_id": "2", "biz_opaque_callback_data": token })
    });
    let statuses: Vec<_> = statuses.collect();
    let mut value =
        json!({ "metadata": { "phone_number_id": FakeGraph::PHONE_NUMBER_ID }, "statuses": statuses });
    value["messages"] = message.into_iter().collect();
    json!({ "entry": [{ "changes": [{ "field": "messages", "value": value }] }] })
}

/// Case A5: what becomes of the statuses stands still in the journal, and a message behind them is answered all the same.
#[tokio::test]
async fn a_message_behind_500_statuses_is_answered_while_they_stand_still() {
    const OPEN: usize = 10;
    let graph = FakeGraph::start().await;
    let lossy = Arc::new(LossyKv::new(Arc::new(MemoryKv::new())));
    let kv: Arc<dyn DurableKv> = Arc::<LossyKv>::clone(&lossy);
    let ana = graph.whatsapp_user("Ana", "1");
    graph.set_echo(GraphEcho::None);
    on_whatsapp(&graph, &kv, echo, async |_| {
        for number in 0..OPEN {
            graph.fault_next(GraphFault::LoseAnswer);
            graph.whatsapp_user("Ben", &format!("2{number}")).says("hi").await;
        }
        let sent = graph.wait_for_deliveries(OPEN).await;
        let unknown = || lossy.points().get(&WritePoint::OutboxUnknown).copied().unwrap_or(0);
        until("sends without an answer", async || unknown() >= OPEN as u64).await;
        for nth in 1..=OPEN {
            lossy.fault_at(WritePoint::OutboxSent, nth as u64, Fault::Hang);
        }
        let mut open: Vec<_> = sent.into_iter().map(|sent| (sent.id, sent.token.unwrap_or_default())).collect();
        let more = open.split_off(OPEN / 2);
        let with_others = |open: Vec<(String, String)>| {
            open.into_iter().chain((OPEN..500).map(|number| (format!("wamid.{number}"), format!("key {number}"))))
        };
        let message = json!({ "id": "wamid.IN", "from": "1", "from_user_id": ana.id(), "type": "text", "text": { "body": "hi" } });
        let (alone, before_it) = (statuses(with_others(open), None), statuses(with_others(more), Some(message)));
        let answered = async {
            lossy.wait_for_hanging(OPEN).await;
            graph.wait_for_deliveries(OPEN + 1).await;
            assert_eq!((ana.texts(), lossy.hanging()), (vec!["you said hi".to_owned()], OPEN));
            lossy.release();
        };
        let posts = (graph.post(WHATSAPP, &alone), graph.post(WHATSAPP, &before_it));
        let (alone, before_it, ()) = tokio::join!(posts.0, posts.1, answered);
        assert_eq!((alone, before_it), (Some(200), Some(200)));
    })
    .await;
}
