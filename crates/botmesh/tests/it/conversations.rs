//! Conversations whose code waits for its user: in memory, under the turn of their chat.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use botmesh::core::inbound::{Inbound, InboundMedia};
use botmesh::core::media::MediaRef;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, OnHandlerError, OnIncompatible, TurnsConfig};

use crate::support::{Life, Stage};

const MINUTE: Duration = Duration::from_secs(60);

async fn survey(c: Conv) -> Result {
    let colour = c.ask("colour?").await?;
    c.say(format!("{}!", colour.text())).await?;
    let age = c.ask("age?").check(|answer| Ok(answer.text().parse::<u32>().map_err(|_| "a number")?)).await?;
    c.say(format!("{} and {age}", colour.text())).await?;
    Ok(())
}

fn with<F, Fut>(run: F) -> impl FnOnce(BotBuilder) -> BotBuilder
where
    F: Fn(Conv) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result> + Send + 'static,
{
    added(conversation("survey", run))
}

fn added(conversation: botmesh::Conversation) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| {
        bot.when("start", |c: Ctx| async move { c.enter("survey") })
            .otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await })
            .add_conversation(conversation)
    }
}

/// The stage's bot, with durability or without.
fn start(stage: &Stage, durable: bool, build: impl FnOnce(BotBuilder) -> BotBuilder) -> Life {
    if durable { stage.start(build) } else { stage.start_plain(build) }
}

async fn talk(life: &Life, dialogue: &[(&str, &[&str])]) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    for (say, replies) in dialogue {
        let event = format!("m{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        assert_eq!(life.say(&event, say, replies.len()).await, *replies, "{say}");
        life.settled().await;
    }
}

#[tokio::test]
async fn a_function_asks_and_goes_on_where_it_was() {
    for durable in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let life = start(&stage, durable, with(survey));
        let dialogue: [(&str, &[&str]); 6] = [
            ("start", &["colour?"]),
            ("red", &["red!", "age?"]),
            ("old", &["a number"]),
            ("30", &["red and 30"]),
            ("30", &["? 30"]),
            ("start", &["colour?"]),
        ];
        talk(&life, &dialogue).await;
        life.stop().await;
    }
}

#[tokio::test]
async fn messages_that_come_in_a_hurry_are_answers_in_their_order() {
    for durable in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let life = start(&stage, durable, with(survey));
        for (n, text) in ["start", "red", "30", "more"].iter().enumerate() {
            assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", *text)).await);
        }
        life.until("all replies", || stage.channel.texts_to("ana").len() == 5).await;
        assert_eq!(stage.channel.texts_to("ana"), ["colour?", "red!", "age?", "red and 30", "? more"]);
        life.stop().await;
    }
}

#[tokio::test]
async fn it_takes_buttons_and_media() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(async |c: Conv| {
        let question = Content::text("photo?").with_buttons([Button::new("skip", "Skip")]);
        let answer = c.ask(question).await?;
        match (answer.button(), answer.media()) {
            (Some(button), _) => c.say(format!("button {button}")).await?,
            (None, Some(media)) => {
                c.say(format!("{} {}", media.mime.as_deref().unwrap_or(""), answer.text())).await?
            }
            (None, None) => c.say("text").await?,
        };
        Ok(())
    }));
    let media = |caption: &str| InboundMedia {
        media: MediaRef { provider: "mock".to_owned(), token: serde_json::Value::Null },
        caption: Some(caption.to_owned()),
        mime: Some("image/png".to_owned()),
        file_name: None,
        album: None,
    };
    let answers = [
        (InboundBody::Interaction { id: "skip".to_owned(), title: "Skip".to_owned() }, "button skip"),
        (InboundBody::Image(media("a cat")), "image/png a cat"),
    ];
    for (n, (body, reply)) in answers.into_iter().enumerate() {
        life.say(&format!("s{n}"), "start", 1).await;
        assert!(life.deliver(Inbound::private(format!("a{n}"), "ana", body)).await);
        life.until(reply, || stage.channel.texts_to("ana").last().is_some_and(|last| last == reply)).await;
    }
    life.stop().await;
}

#[tokio::test]
async fn a_crash_ends_it_and_its_user_is_free() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(survey));
    talk(&life, &[("start", &["colour?"])]).await;
    life.kill().await;
    let life = stage.start(with(survey));
    talk(&life, &[("red", &["? red"]), ("start", &["colour?"]), ("red", &["red!", "age?"])]).await;
    life.stop().await;
}

#[tokio::test]
async fn what_fails_or_panics_is_told_and_is_over() {
    for durable in [false, true] {
        for panics in [false, true] {
            let stage = Stage::new(Resolve::Never);
            let mut life = start(
                &stage,
                durable,
                with(move |c: Conv| async move {
                    c.ask("colour?").await?;
                    assert!(!panics, "no colours");
                    Err("broken".into())
                }),
            );
            life.say("m1", "start", 1).await;
            assert!(life.deliver(Inbound::text("m2", "ana", "red")).await);
            life.settled().await;
            assert!(life.event_names().contains(&"error"));
            assert_eq!(life.say("m3", "hello", 1).await, ["? hello"]);
            life.stop().await;
        }
    }
}

#[tokio::test]
async fn a_failure_is_not_tried_again_as_another_message() {
    let stage = Stage::new(Resolve::Never);
    let mut durability = Durability::default().with_instance_id("bot");
    durability.inbox.on_handler_error = OnHandlerError::Retry;
    let life = stage.start_with(
        durability,
        with(async |c: Conv| {
            c.ask("colour?").await?;
            Err("broken".into())
        }),
    );
    life.say("m1", "start", 1).await;
    assert!(life.deliver(Inbound::text("m2", "ana", "red")).await);
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["colour?"]);
    assert_eq!(life.say("m3", "hello", 1).await, ["? hello"]);
    life.stop().await;
}

#[tokio::test]
async fn cancel_words_end_it() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(added(conversation("survey", survey).cancel_on(["stop"], "stopped")));
    talk(&life, &[("start", &["colour?"]), ("STOP", &["stopped"]), ("red", &["? red"])]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_wait_that_is_over_is_told_to_the_code() {
    let patient = async |c: Conv| {
        let answer = c.ask("colour?").timeout(MINUTE).await;
        if let Err(AskError::TimedOut) = answer {
            let again = c.ask("still there?").timeout(MINUTE).await?;
            c.say(format!("welcome back, {}", again.text())).await?;
        }
        Result::<()>::Ok(())
    };
    for durable in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let mut life = start(&stage, durable, added(conversation("survey", patient).on_timeout("too late")));
        talk(&life, &[("start", &["colour?"])]).await;
        stage.clock.advance(MINUTE + Duration::from_secs(2)).await;
        assert_eq!(stage.channel.texts_to("ana"), ["colour?", "still there?"]);
        talk(&life, &[("ana", &["welcome back, ana"]), ("x", &["? x"]), ("start", &["colour?"])]).await;
        stage.clock.advance(3 * MINUTE).await;
        life.settled().await;
        assert_eq!(stage.channel.texts_to("ana")[5..], ["still there?", "too late"]);
        let told: Vec<_> =
            life.event_names().into_iter().filter(|name| ["flow:timeout", "error"].contains(name)).collect();
        assert_eq!(told, ["flow:timeout"]);
        talk(&life, &[("y", &["? y"])]).await;
        life.stop().await;
    }
}

#[tokio::test]
async fn somebody_silent_is_reminded_once_for_each_wait() {
    for durable in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let life = start(
            &stage,
            durable,
            with(async |c: Conv| {
                c.idle(MINUTE, "still there?");
                c.ask("colour?").await?;
                c.ask("age?").timeout(5 * MINUTE).await?;
                c.no_idle();
                c.ask("name?").await?;
                Ok(())
            }),
        );
        talk(&life, &[("start", &["colour?"])]).await;
        stage.clock.advance(Duration::from_secs(59)).await;
        assert_eq!(stage.channel.texts_to("ana").len(), 1);
        stage.clock.advance(4 * MINUTE).await;
        assert_eq!(stage.channel.texts_to("ana")[1..], ["still there?"]);
        talk(&life, &[("red", &["age?"])]).await;
        stage.clock.advance(2 * MINUTE).await;
        assert_eq!(stage.channel.texts_to("ana")[3..], ["still there?"]);
        talk(&life, &[("30", &["name?"])]).await;
        stage.clock.advance(4 * MINUTE).await;
        assert_eq!(stage.channel.texts_to("ana").len(), 5);
        life.stop().await;
    }
}

#[tokio::test]
async fn code_that_does_not_settle_is_stopped_and_its_chat_goes_on() {
    for durable in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let dropped = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&dropped);
        let mut life = start(&stage, durable, |bot| {
            with(move |c: Conv| {
                let counted = CountDrop(Arc::clone(&counted));
                async move {
                    let _counted = counted;
                    c.ask("colour?").await?;
                    c.sleep(Duration::from_secs(20)).await?;
                    c.say("painted").await?;
                    c.sleep(Duration::from_secs(3600)).await?;
                    c.say("never").await?;
                    Ok(())
                }
            })(
                bot.turns(TurnsConfig { settle: Duration::from_secs(30), ..TurnsConfig::default() })
            )
        });
        talk(&life, &[("start", &["colour?"])]).await;
        assert_eq!(life.say("m2", "red", 1).await, ["painted"]);
        life.until("the drop", || dropped.load(Ordering::Relaxed) == 1).await;
        // With an inbox, the answer is tried again, and no conversation takes it.
        let expected: &[&str] = if durable { &["? red", "? hello"] } else { &["? hello"] };
        assert_eq!(life.say("m3", "hello", expected.len()).await, expected);
        assert!(life.event_names().contains(&"error"));
        life.stop().await;
    }
}

struct CountDrop(Arc<AtomicU32>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn the_one_that_was_silent_for_longest_makes_room() {
    for (policy, reply) in [
        (OnIncompatible::Drop, "? blue"),
        (OnIncompatible::Restart, "colour?"),
        (OnIncompatible::Notify(Box::new("sorry".into())), "sorry"),
    ] {
        let stage = Stage::new(Resolve::Never);
        let survey = conversation("survey", survey).on_interrupted(policy);
        let limits = TurnsConfig { max_live_conversations: 2, ..TurnsConfig::default() };
        let mut life = stage.start(|bot| added(survey)(bot.turns(limits)));
        for (n, chat) in ["ana", "bob", "eve"].iter().enumerate() {
            assert!(life.deliver(Inbound::text(format!("s{n}"), *chat, "start")).await);
            life.until("a question", || stage.channel.texts_to(chat).len() == 1).await;
            life.settled().await;
        }
        for (n, (chat, reply)) in [("eve", "blue!"), ("bob", "blue!"), ("ana", reply)].iter().enumerate() {
            assert!(life.deliver(Inbound::text(format!("a{n}"), *chat, "blue")).await);
            life.until(reply, || stage.channel.texts_to(chat).len() >= 2).await;
            assert_eq!(stage.channel.texts_to(chat)[1], *reply, "{chat}");
            life.settled().await;
        }
        let names = life.event_names();
        assert!(names.contains(&"conversation:dropped") && names.contains(&"flow:incompatible"), "{names:?}");
        life.stop().await;
    }
}

#[tokio::test]
async fn what_is_kept_of_an_earlier_message_sends_nothing_any_more() {
    let stage = Stage::new(Resolve::Never);
    let told = Arc::new(Mutex::new(String::new()));
    let tells = Arc::clone(&told);
    let life = stage.start(with(move |c: Conv| {
        let tells = Arc::clone(&tells);
        async move {
            let early = c.ctx();
            c.ask("colour?").await?;
            let error = early.reply("late").await.expect_err("a send of a turn that is over");
            *tells.lock().expect("no panic") = error.to_string();
            c.ctx().reply("in time").await?;
            Ok(())
        }
    }));
    talk(&life, &[("start", &["colour?"]), ("red", &["in time"])]).await;
    assert_eq!(*told.lock().expect("no panic"), "nothing was sent");
    life.stop().await;
}

#[tokio::test]
async fn one_question_at_a_time() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(async |c: Conv| {
        let (first, second) = futures_util::join!(c.ask("one?").into_future(), c.ask("two?").into_future());
        c.say(format!("{} {}", first?.text(), second.expect_err("a second question"))).await?;
        Ok(())
    }));
    talk(&life, &[("start", &["one?"])]).await;
    let replies = life.say("m2", "1", 1).await;
    assert!(replies[0].starts_with("1 the conversation already waits"), "{replies:?}");
    life.stop().await;
}

#[tokio::test]
async fn whoever_acts_beside_a_conversation_that_waits_is_refused() {
    for durable in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let kept: Arc<Mutex<Option<Conv>>> = Arc::default();
        let keeps = Arc::clone(&kept);
        let life = start(
            &stage,
            durable,
            with(move |c: Conv| {
                *keeps.lock().expect("no panic") = Some(c.clone());
                async move {
                    c.ask("colour?").await?;
                    c.say("thanks").await?;
                    Ok(())
                }
            }),
        );
        talk(&life, &[("start", &["colour?"])]).await;
        let c = kept.lock().expect("no panic").take().expect("it began");
        assert!(matches!(c.say("beside").await, Err(SendError::LeaseLost(_))));
        assert!(matches!(c.ctx().reply("beside").await, Err(SendError::LeaseLost(_))));
        assert!(c.sleep(Duration::ZERO).await.is_err());
        assert_eq!((c.ctx().chat().as_str(), c.ctx().sender().map(|id| id.as_str())), ("ana", Some("ana")));
        assert_eq!(c.ctx().text(), "");
        c.user().set("seen", &true).await.expect("the state of the user is under no turn");
        talk(&life, &[("red", &["thanks"])]).await;
        assert_eq!(c.user().get::<bool>("seen").await.expect("it is stored"), Some(true));
        life.stop().await;
    }
}

#[tokio::test]
async fn what_was_entered_before_a_question_begins_when_the_code_ends() {
    for durable in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let first = conversation("first", async |c: Conv| {
            c.enter_with("survey", &"blue")?;
            c.ask("sure?").await?;
            c.ask("really?").await?;
            c.say("then").await?;
            Result::<()>::Ok(())
        });
        let second = async |c: Conv| {
            let colour: String = c.input()?;
            c.ask(format!("why {colour}?")).await.map(|_| ()).map_err(Into::into)
        };
        let life = start(&stage, durable, |bot| {
            let bot = bot.when("first", |c: Ctx| async move { c.enter("first") });
            with(second)(bot).add_conversation(first)
        });
        talk(&life, &[("first", &["sure?"]), ("yes", &["really?"]), ("yes", &["then", "why blue?"])]).await;
        life.stop().await;
    }
}
