//! What users do beside writing, and what a bot makes of it.

use botmesh::BotBuilder;
use botmesh::prelude::*;
use botmesh_meta::WhatsAppFlow;
use botmesh_testing::FakeGraph;
use serde_json::json;

use crate::graph::{kv, on_whatsapp};

#[tokio::test]
async fn a_form_that_is_filled_in_comes_back_with_its_answers() {
    let (graph, kv) = (FakeGraph::start().await, kv());
    let ana = graph.whatsapp_user("Ana", "1");
    let build = |bot: BotBuilder| {
        bot.when("visit", |c: Ctx| async move {
            c.reply(
                WhatsAppFlow::by_name("visit", "When?", "Choose").with_screen("DAYS").with_token("visit:42"),
            )
            .await
        })
        .when(interaction("flow"), |c: Ctx| async move {
            let inbound = c.inbound();
            let (form, shown) = (&inbound.extra["form"], inbound.reply_to.is_some());
            let (day, token) =
                (form["day"].as_str().unwrap_or("no day"), form["flow_token"].as_str().unwrap_or(""));
            c.reply(format!("{day} for {token}, {shown}")).await
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
