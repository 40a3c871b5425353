//! Who answers what.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use botmesh::core::inbound::{Inbound, InboundMedia};
use botmesh::core::media::MediaRef;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, HookVerdict, InboxConfig, OnHandlerError};

use crate::support::Stage;

fn answers(
    name: &'static str,
) -> impl Fn(Ctx) -> futures_util::future::BoxFuture<'static, Result> + Send + Sync {
    move |c: Ctx| {
        Box::pin(async move {
            c.reply(format!("{name}({},{})", c.arg(1), c.arg(2))).await?;
            Ok(())
        })
    }
}

fn routes(bot: BotBuilder) -> BotBuilder {
    bot.when("Buenos días", answers("text"))
        .when(["hi", "hello"], answers("list"))
        .when(regex(r"^order (\d+)(?: for (\w+))?$"), answers("regex"))
        .when(command("start"), answers("command"))
        .when(interaction("size:"), answers("button"))
        .when(Pattern::from(IMAGE).and(regex("cat")), answers("cat"))
        .when(Pattern::from(IMAGE).or(LOCATION), answers("picture or place"))
        .when("hi", answers("never"))
        .when(EDIT, answers("edit"))
        .otherwise(answers("otherwise"))
}

fn image(caption: &str) -> InboundBody {
    let media = MediaRef { provider: "mock".to_owned(), token: "id".into() };
    InboundBody::Image(InboundMedia { media, caption: Some(caption.to_owned()), mime: None, file_name: None })
}

#[tokio::test]
async fn the_first_route_that_matches_answers() {
    let text = |text: &str| InboundBody::Text { text: text.to_owned() };
    let pressed = |id: &str| InboundBody::Interaction { id: id.to_owned(), title: "T".to_owned() };
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(routes);
    for (n, (body, reply)) in [
        (text("  BUENOS   DIAS "), "text(,)"),
        (text("Hello"), "list(,)"),
        (text("hí"), "list(,)"),
        (text("hi there"), "otherwise(,)"),
        (text("order 42"), "regex(42,)"),
        (text("order 42 for ana"), "regex(42,ana)"),
        (text("/start a b"), "command(a b,)"),
        (text("/START"), "command(,)"),
        (text("/start@somebody_else"), "otherwise(,)"),
        (text("/started"), "otherwise(,)"),
        (pressed("size:l"), "button(l,)"),
        (pressed("color:red"), "otherwise(,)"),
        (image("a cat"), "cat(,)"),
        (image("a dog"), "picture or place(,)"),
        (InboundBody::Location { latitude: 1.0, longitude: -0.0, name: None }, "picture or place(,)"),
        (InboundBody::Edit { message: "m".into(), text: "hi".to_owned() }, "edit(,)"),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(life.deliver(Inbound::private(format!("m{n}"), "ana", body)).await);
        life.until(reply, || stage.channel.texts_to("ana").len() == n + 1).await;
        assert_eq!(stage.channel.texts_to("ana")[n], reply);
    }
    life.stop().await;
}

#[tokio::test]
async fn reactions_edits_and_events_are_nobodys_otherwise() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply("what?").await }));
    for (n, body) in [
        InboundBody::Reaction { message: "m".into(), emoji: Some("👍".to_owned()) },
        InboundBody::Edit { message: "m".into(), text: "hi".to_owned() },
        InboundBody::System { event: "joined".to_owned(), detail: serde_json::Value::Null },
        InboundBody::Unsupported { kind: "hologram".to_owned() },
    ]
    .into_iter()
    .enumerate()
    {
        assert!(life.deliver(Inbound::private(format!("m{n}"), "ana", body)).await);
    }
    assert_eq!(life.say("last", "hi", 1).await, ["what?"]);
    life.settled().await;
    assert_eq!(stage.channel.delivered().len(), 1);
    life.stop().await;
}

#[tokio::test]
async fn hooks_change_and_stop_messages_and_sends() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| {
        bot.before_message(|c: Ctx| async move {
            Ok(match c.text() {
                "spam" => HookVerdict::Stop,
                "voice" => HookVerdict::Text("transcript".to_owned()),
                _ => HookVerdict::Continue,
            })
        })
        .before_send(|_, content: Content| async move {
            match content.readable_text() {
                "secret" => Err("not that".to_owned()),
                text => Ok(Content::text(format!("<{text}>"))),
            }
        })
        .otherwise(|c: Ctx| async move { c.reply(c.text()).await })
    });
    for (n, text) in ["spam", "voice", "secret", "plain"].into_iter().enumerate() {
        assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", text)).await);
    }
    life.until("two replies", || stage.channel.texts_to("ana").len() == 2).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["<transcript>", "<plain>"]);
    life.stop().await;
}

#[tokio::test]
async fn a_failing_handler_is_told_and_does_not_stop_the_bot() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(|bot| {
        bot.when("fail", |_: Ctx| async { Result::<()>::Err("broken".into()) })
            .when("panic", |_: Ctx| async { assert!(std::hint::black_box(false), "broken") })
            .otherwise(|c: Ctx| async move { c.reply("fine").await })
    });
    for (n, text) in ["fail", "panic"].into_iter().enumerate() {
        assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", text)).await);
    }
    assert_eq!(life.say("m9", "hi", 1).await, ["fine"]);
    life.settled().await;
    assert_eq!(life.event_names().iter().filter(|name| **name == "error").count(), 2);
    life.stop().await;
}

#[tokio::test]
async fn a_failing_handler_runs_once_again_or_is_given_up_as_configured() {
    for (policy, expected) in
        [(OnHandlerError::Ack, 1), (OnHandlerError::Retry, 5), (OnHandlerError::Dead, 1)]
    {
        let stage = Stage::new(Resolve::Never);
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let inbox = InboxConfig { on_handler_error: policy, ..InboxConfig::default() };
        let mut life =
            stage.start_with(Durability::default().with_instance_id("bot").with_inbox(inbox), move |bot| {
                bot.otherwise(move |_: Ctx| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    async { Result::<()>::Err("broken".into()) }
                })
            });
        assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
        stage.clock.advance(std::time::Duration::from_secs(300)).await;
        assert_eq!(runs.load(Ordering::Relaxed), expected, "{policy:?}");
        assert_eq!(life.event_names().contains(&"durability:dead"), policy != OnHandlerError::Ack);
        life.stop().await;
    }
}
