//! What only Telegram has, in handlers of a whole bot.

use botmesh::BotBuilder;
use botmesh::prelude::*;
use botmesh_telegram::Telegram;
use botmesh_testing::FakeTelegram;
use serde_json::json;

const ANA: i64 = 5_025_045_066;

/// A bot whose handlers can call the Bot API, while `scenario` lasts.
async fn with_bot(
    telegram: Telegram,
    build: impl FnOnce(BotBuilder) -> BotBuilder,
    scenario: impl AsyncFnOnce(),
) {
    let bot = build(Bot::builder().provider(telegram)).build().expect("a bot");
    let scenario = async {
        scenario().await;
        bot.stop();
    };
    let (ended, ()) = tokio::join!(bot.run(), scenario);
    ended.expect("a good end");
}

async fn no_tea(telegram: Telegram, c: Ctx) -> Result {
    let press = &c.inbound().extra["callback_query_id"];
    let answer = json!({ "callback_query_id": press, "text": "Tea is out.", "show_alert": true });
    telegram.call("answerCallbackQuery", answer).await?;
    c.reply("Coffee?").await?;
    Ok(())
}

#[tokio::test]
async fn a_handler_answers_a_press_with_words() {
    let server = FakeTelegram::start().await;
    let ana = server.user(ANA, "Ana");
    let telegram = Telegram::polling(server.token()).with_api_url(&server.url()).leaving_presses_unanswered();
    let answers = telegram.clone();
    let build = |bot: BotBuilder| {
        bot.when("menu", |c: Ctx| async move {
            c.reply(Content::text("Tea?").with_buttons([Button::new("tea:yes", "Yes")])).await
        })
        .when(interaction("tea:"), move |c: Ctx| no_tea(answers.clone(), c))
    };
    with_bot(telegram, build, async || {
        ana.writes("menu");
        ana.expect_reply("Tea?").await;
        ana.presses("Yes");
        ana.expect_reply("Coffee?").await;
    })
    .await;
    let answers = server.done("answerCallbackQuery");
    assert_eq!(answers.len(), 1, "and nobody else answered it");
    let shown = (&answers[0].params["text"], &answers[0].params["show_alert"]);
    assert_eq!(shown, (&json!("Tea is out."), &json!(true)));
}

async fn only_tea(telegram: Telegram, c: Ctx) -> Result {
    let InboundBody::System { detail, .. } = &c.inbound().body else { return Ok(()) };
    let agrees = detail["invoice_payload"] == "tea";
    let answer = json!({ "pre_checkout_query_id": detail["id"], "ok": agrees, "error_message": "Only tea." });
    telegram.call("answerPreCheckoutQuery", answer).await?;
    Ok(())
}

#[tokio::test]
async fn a_handler_agrees_to_a_payment() {
    let server = FakeTelegram::start().await;
    let ana = server.user(ANA, "Ana");
    let telegram = Telegram::polling(server.token()).with_api_url(&server.url());
    let answers = telegram.clone();
    let build = |bot: BotBuilder| {
        bot.when(system("pre_checkout_query"), move |c: Ctx| only_tea(answers.clone(), c))
            .when(SYSTEM, |c: Ctx| async move { c.reply("something else").await })
    };
    with_bot(telegram, build, async || {
        for payload in ["tea", "coffee"] {
            ana.checks_out(payload);
        }
        server.until("both answers", || server.done("answerPreCheckoutQuery").len() == 2).await;
    })
    .await;
    let answers = server.done("answerPreCheckoutQuery");
    assert_eq!((&answers[0].params["ok"], &answers[1].params["ok"]), (&json!(true), &json!(false)));
    assert!(ana.replies().is_empty());
}
