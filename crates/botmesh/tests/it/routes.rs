//! Who answers what.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::{Inbound, InboundMedia};
use botmesh::core::media::MediaRef;
use botmesh::core::provider::{AdmitError, Resolve};
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
        .when(system("joined"), answers("joined"))
        .when(SYSTEM, answers("event"))
        .otherwise(answers("otherwise"))
}

fn image(caption: &str) -> InboundBody {
    let media = MediaRef { provider: "mock".to_owned(), token: "id".into() };
    InboundBody::Image(InboundMedia { caption: Some(caption.to_owned()), ..InboundMedia::new(media) })
}

#[tokio::test]
async fn the_first_route_that_matches_answers() {
    let text = |text: &str| InboundBody::Text { text: text.to_owned() };
    let pressed = |id: &str| InboundBody::Interaction { id: id.to_owned(), title: "T".to_owned() };
    let event = |event: &str| InboundBody::System { event: event.to_owned(), detail: "joined".into() };
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
        (text("joined"), "otherwise(,)"),
        (event("joined"), "joined(,)"),
        (event("joined_late"), "event(,)"),
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

#[tokio::test]
async fn a_hook_before_a_send_runs_once_for_each_message_people_see() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    let hooked = |bot: BotBuilder| {
        let runs = Arc::clone(&runs);
        bot.before_send(move |_, content| {
            runs.fetch_add(1, Ordering::Relaxed);
            async move { Ok(content) }
        })
    };
    let life = stage.start(|bot| {
        hooked(bot).otherwise(|c: Ctx| async move {
            c.reply("one").await?;
            std::future::pending::<Result>().await
        })
    });
    let limited = ChannelError::new(ErrorClass::Transient, Phase::Answered, "no");
    stage.channel.fail_next(limited);
    life.say("m1", "hi", 1).await;
    life.settled_but_for_turns().await;
    life.kill().await;
    let life = stage.start(|bot| {
        hooked(bot).otherwise(|c: Ctx| async move {
            c.reply("one").await?;
            c.reply("two").await
        })
    });
    life.until("the rest", || stage.channel.texts_to("ana") == ["one", "two"]).await;
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!(life.bot.metrics().outbox_deduped, 1);
    life.stop().await;
}

#[tokio::test]
async fn hooks_after_messages_and_sends_see_what_happened() {
    let stage = Stage::new(Resolve::Never);
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (after_send, after_message) = (Arc::clone(&seen), Arc::clone(&seen));
    let life = stage.start(move |bot| {
        bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
            .after_send(move |chat, content, sent| {
                let line = format!("sent {chat} {} {}", content.readable_text(), sent.message.is_some());
                after_send.lock().expect("no panic").push(line);
                async {}
            })
            .after_message(move |c: Ctx| {
                after_message.lock().expect("no panic").push(format!("handled {}", c.text()));
                async {}
            })
    });
    life.say("m1", "hi", 1).await;
    life.settled().await;
    assert_eq!(*seen.lock().expect("no panic"), ["sent ana hi true", "handled hi"]);
    life.stop().await;
}

#[tokio::test]
async fn a_hook_that_fails_is_told_and_the_next_message_is_answered() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(|bot| {
        bot.before_message(|c: Ctx| async move {
            match c.text() {
                "fail" => Err("broken".into()),
                text => {
                    assert_ne!(text, "panic", "broken");
                    Ok(HookVerdict::Continue)
                }
            }
        })
        .otherwise(|c: Ctx| async move { c.reply("fine").await })
    });
    for (n, text) in ["fail", "panic"].into_iter().enumerate() {
        assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", text)).await);
    }
    assert_eq!(life.say("m9", "hi", 1).await, ["fine"]);
    assert_eq!(life.event_names().iter().filter(|name| **name == "error").count(), 2);
    life.stop().await;
}

#[tokio::test]
async fn patterns_combine_and_the_first_that_matches_wins() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| {
        bot.when(regex("(?i)pizza").and(Pattern::from(["no pizza"]).negated()), answers("pizza"))
            .when(Pattern::from(TEXT).negated(), answers("no text"))
            .when(Pattern::from("a").or("b").and(TEXT), answers("a or b"))
            .when(regex(r"^(\w)(\w)?$"), answers("letters"))
            .when(TEXT, answers("any text"))
            .when(ANY, answers("never"))
    });
    let text = |text: &str| InboundBody::Text { text: text.to_owned() };
    for (n, (body, reply)) in [
        (text("A PIZZA please"), "pizza(,)"),
        (text("No Pizza"), "any text(,)"),
        (image("pizza"), "pizza(,)"),
        (image(""), "no text(,)"),
        (text("B"), "a or b(,)"),
        (text("x"), "letters(x,)"),
        (text("xy"), "letters(x,y)"),
        (text("\0"), "any text(,)"),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(life.deliver(Inbound::private(format!("m{n}"), "ana", body)).await);
        life.until(reply, || stage.channel.texts_to("ana").len() == n + 1).await;
        assert_eq!(stage.channel.texts_to("ana")[n], reply, "message {n}");
    }
    life.stop().await;
}

#[tokio::test]
async fn an_event_with_an_impossible_id_or_place_is_refused_and_the_next_one_is_answered() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply("fine").await }));
    let nowhere = |latitude, longitude| InboundBody::Location { latitude, longitude, name: None };
    for inbound in [
        Inbound::text("", "ana", "hi"),
        Inbound::text("x".repeat(513), "ana", "hi"),
        Inbound::private("m0", "ana", nowhere(f64::NAN, 0.0)),
        Inbound::private("m0", "ana", nowhere(0.0, f64::INFINITY)),
    ] {
        let refused = stage.channel.deliver(inbound).await;
        assert!(matches!(refused, Err(AdmitError::Invalid(_))), "{refused:?}");
    }
    assert_eq!(life.say("m1", "hi", 1).await, ["fine"]);
    life.stop().await;
}

#[tokio::test]
async fn a_hook_after_a_send_may_send_to_the_same_chat() {
    for durable in [true, false] {
        let stage = Stage::new(Resolve::Never);
        let own: Arc<std::sync::OnceLock<Bot>> = Arc::default();
        let bot = Arc::clone(&own);
        let build = move |builder: BotBuilder| {
            builder.otherwise(|c: Ctx| async move { c.reply(c.text()).await }).after_send(
                move |chat, content: Content, _| {
                    let bot = bot.get().cloned();
                    async move {
                        if let (Some(bot), "first") = (bot, content.readable_text()) {
                            drop(bot.send(chat, "and another").await);
                        }
                    }
                },
            )
        };
        let life = if durable { stage.start(build) } else { stage.start_plain(build) };
        own.set(life.bot.clone()).expect("one bot");
        assert_eq!(life.say("m1", "first", 2).await, ["first", "and another"]);
        life.stop().await;
    }
}
