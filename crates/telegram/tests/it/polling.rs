//! Long polling, against a server that keeps what is not confirmed.

use std::sync::Arc;
use std::time::Duration;

use botmesh_core::CancellationToken;
use botmesh_core::error::{ErrorClass, Phase};
use botmesh_core::inbound::InboundBody;
use botmesh_core::provider::{ConnectionState, Provider};
use botmesh_telegram::KINDS;
use botmesh_testing::{FakeTelegram, TelegramFault};
use serde_json::{Value, json};

use crate::support::{Recorder, Refuses, all_of, bot_of, failure, while_running};

const ANA: i64 = 5_025_045_066;

/// Case D53.
#[tokio::test]
async fn an_update_is_confirmed_only_when_it_is_journaled() {
    let server = FakeTelegram::start().await;
    let ana = server.user(ANA, "Ana");
    let id = ana.writes("hi");
    let waiting = Recorder::with_gate(0);
    let bot = bot_of(&server);
    let killed = CancellationToken::new();
    tokio::select! {
        ended = bot.run(waiting, killed) => panic!("{ended:?}"),
        // The event is in the bot, and not journaled: nothing more is asked for.
        () = server.until("a poll that is answered", || server.polls().0 == 1 && !server.is_polled()) => {}
    }
    assert_eq!(server.unconfirmed(), 1, "the process died before it was journaled");

    let sink = Recorder::new();
    let confirmed = server.until("its confirmation", || server.confirmed() == [id]);
    while_running(&bot, &sink, confirmed).await.expect("a good end");
    assert_eq!(sink.texts(), ["hi"]);
}

/// Case D55.
#[tokio::test]
async fn nothing_is_confirmed_beyond_what_could_not_be_journaled() {
    let server = FakeTelegram::start().await;
    server.set_next_update_id(10);
    for (user, text) in [(1, "ten"), (2, "eleven"), (3, "twelve")] {
        server.user(user, text).writes(text);
    }
    let sink = Recorder::new();
    sink.refuse("11", Refuses::Journal, 1);
    let bot = bot_of(&server);
    let scenario = async {
        server.until("the confirmation of 10", || !server.confirmed().is_empty()).await;
        assert_eq!(server.confirmed(), [10], "11 is still to come");
        server.until("all of them", || server.unconfirmed() == 0).await;
    };
    while_running(&bot, &sink, scenario).await.expect("a good end");
    let mut texts = sink.texts();
    texts.sort();
    assert_eq!(texts, ["eleven", "ten", "twelve"]);
}

#[tokio::test]
async fn what_follows_in_a_chat_waits_for_what_could_not_be_journaled() {
    let server = FakeTelegram::start().await;
    server.set_next_update_id(10);
    let ana = server.user(ANA, "Ana");
    for text in ["one", "two", "three"] {
        ana.writes(text);
    }
    let sink = Recorder::new();
    sink.refuse("11", Refuses::Journal, 2);
    let bot = bot_of(&server);
    while_running(&bot, &sink, server.until("all of them", || server.unconfirmed() == 0))
        .await
        .expect("a good end");
    assert_eq!(sink.texts(), ["one", "two", "three"]);
}

#[tokio::test]
async fn update_ids_that_fall_after_a_quiet_week_are_no_old_ones() {
    let server = FakeTelegram::start().await;
    let ana = server.user(ANA, "Ana");
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    let scenario = async {
        for (id, text) in [(900_000_000, "before"), (17, "after"), (18, "and on")] {
            server.set_next_update_id(id);
            ana.writes(text);
            server.until(text, || server.unconfirmed() == 0).await;
        }
    };
    while_running(&bot, &sink, scenario).await.expect("a good end");
    assert_eq!(sink.texts(), ["before", "after", "and on"]);
}

#[tokio::test]
async fn a_run_begins_without_an_offset_and_asks_for_every_kind() {
    let server = FakeTelegram::start().await;
    let ana = server.user(ANA, "Ana");
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    for text in ["one", "two"] {
        ana.writes(text);
        while_running(
            &bot,
            &sink,
            server.until(text, || sink.texts().last().is_some_and(|last| last == text)),
        )
        .await
        .expect("a good end");
        assert_eq!(server.unconfirmed(), 0, "what was taken is confirmed before it stops");
    }
    let polls = server.poll_params();
    assert!(polls.iter().all(|params| params.get("allowed_updates") == Some(&json!(KINDS))));
    let offsets: Vec<Option<i64>> =
        polls.iter().map(|params| params.get("offset").and_then(Value::as_i64)).collect();
    assert_eq!(offsets[0], None);
    assert_eq!(offsets.iter().filter(|offset| offset.is_none()).count(), 2, "one for each run: {offsets:?}");
    assert!(offsets.iter().flatten().all(|offset| *offset > 0), "{offsets:?}");
}

#[tokio::test]
async fn what_was_taken_is_confirmed_before_it_stops() {
    let server = FakeTelegram::start().await;
    server.user(ANA, "Ana").writes("hi");
    let (sink, stop) = (Recorder::new(), CancellationToken::new());
    sink.stop_then(&stop);
    bot_of(&server).run(Arc::<Recorder>::clone(&sink), stop).await.expect("a good end");
    assert_eq!((sink.texts().len(), server.unconfirmed()), (1, 0));
}

/// Case D57.
#[tokio::test]
async fn a_webhook_that_is_set_is_a_mistake_that_says_what_to_do() {
    let server = FakeTelegram::start().await;
    server.set_webhook("http://127.0.0.1:9/nobody");
    let error = failure(&bot_of(&server)).await;
    assert_eq!((error.class, error.retryable), (ErrorClass::Rejected, false));
    assert!(error.detail.contains("deleting_webhook"), "{}", error.detail);

    let ana = server.user(ANA, "Ana");
    ana.writes("waiting since yesterday");
    let (sink, bot) = (Recorder::new(), bot_of(&server).deleting_webhook());
    while_running(&bot, &sink, server.until("the update", || !sink.taken().is_empty()))
        .await
        .expect("a good end");
    assert!(!server.has_webhook());
    assert_eq!(sink.texts(), ["waiting since yesterday"], "what waited is kept");
}

#[tokio::test]
async fn who_is_pushed_aside_by_another_poll_gives_way_and_says_why() {
    let server = FakeTelegram::start().await;
    let (old, new) = (bot_of(&server).with_poll_timeout(Duration::from_secs(20)), bot_of(&server));
    let stop = CancellationToken::new();
    let pushed_aside = async {
        server.until("the first poll", || server.is_polled()).await;
        new.run(Recorder::new(), stop.clone()).await
    };
    let first = async {
        let error = failure(&old).await;
        stop.cancel();
        error
    };
    let (error, other) = tokio::join!(first, pushed_aside);
    other.expect("the newer one polls");
    assert_eq!((error.class, error.retryable, error.phase), (ErrorClass::Conflict, true, Phase::Answered));
    assert!(error.detail.contains("another process polls"), "{}", error.detail);
    assert_eq!(server.polls().1, 1);
}

#[tokio::test]
async fn an_update_that_cannot_be_read_is_buried_and_holds_up_nothing() {
    let server = FakeTelegram::start().await;
    let ana = server.user(ANA, "Ana");
    let first = ana.writes("one");
    let bad = format!(r#"{{"update_id":{},"message":{{"message_id":1}}}}"#, first + 1);
    server.push_raw(first + 1, bad.as_str());
    server.push_raw(
        first + 2,
        format!(r#"{{"update_id":{},"message":{}}}"#, first + 2, "[".repeat(300) + &"]".repeat(300)),
    );
    server.set_next_update_id(first + 3);
    ana.writes("two \u{1F600}");
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    while_running(&bot, &sink, server.until("all of them", || server.unconfirmed() == 0))
        .await
        .expect("a good end");
    assert_eq!(sink.texts(), ["one", "two \u{1F600}"]);
    let poison = sink.poison();
    let events: Vec<&str> = poison.iter().map(|(event, ..)| event.as_str()).collect();
    assert_eq!(events, [(first + 1).to_string(), (first + 2).to_string()]);
    assert_eq!(poison[0].1, bad, "the update as it came");
    assert!(poison[0].2.contains("no `chat`"), "{}", poison[0].2);
}

#[tokio::test]
async fn an_event_that_the_bot_can_never_take_is_buried() {
    let server = FakeTelegram::start().await;
    let id = server.user(ANA, "Ana").writes("hi");
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    sink.refuse(&id.to_string(), Refuses::Invalid, usize::MAX);
    while_running(&bot, &sink, server.until("its confirmation", || server.unconfirmed() == 0))
        .await
        .expect("a good end");
    assert_eq!(sink.poison()[0].2, "its id is too long");
}

#[tokio::test]
async fn half_a_character_in_a_page_spoils_nothing() {
    let server = FakeTelegram::start().await;
    server.push_raw(
        7,
        r#"{"update_id":7,"message":{"message_id":1,"chat":{"id":3,"type":"private"},"text":"a\ud83d"}}"#,
    );
    server.set_next_update_id(8);
    server.user(ANA, "Ana").writes("whole");
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    while_running(&bot, &sink, server.until("both", || server.unconfirmed() == 0)).await.expect("a good end");
    let mut texts = sink.texts();
    texts.sort();
    assert_eq!(texts, ["a\u{fffd}", "whole"]);
}

#[tokio::test]
async fn a_wrong_token_stops_the_channel_and_is_not_shown() {
    let server = FakeTelegram::start().await;
    let secret = "AAE-secret_of_another_bot";
    let wrong = format!("777000111:{secret}");
    let bot = botmesh_telegram::Telegram::polling(wrong).with_api_url(&server.url());
    let error = failure(&bot).await;
    assert_eq!((error.class, error.retryable), (ErrorClass::Auth, false));
    assert!(error.detail.contains("@BotFather"), "{}", error.detail);
    assert!(!all_of(&error).contains(secret));
    let malformed = botmesh_telegram::Telegram::polling("not/a token").with_api_url(&server.url());
    let error = failure(&malformed).await;
    assert_eq!((error.class, error.phase), (ErrorClass::Auth, Phase::NotWritten));
}

/// Case D71.
#[tokio::test]
async fn a_gateways_page_is_an_outage_that_passes() {
    let server = FakeTelegram::start().await;
    server.user(ANA, "Ana").writes("hi");
    let body = "<html>502 Bad Gateway</html>".to_owned();
    server.fault_next("getUpdates", TelegramFault::Gateway { status: 502, body });
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    let error = failure(&bot).await;
    assert_eq!((error.class, error.retryable), (ErrorClass::Transient, true));
    server.fault_next("getUpdates", TelegramFault::CutAnswer);
    assert!(failure(&bot).await.retryable);
    while_running(&bot, &sink, server.until("the update", || server.unconfirmed() == 0))
        .await
        .expect("a good end");
    assert_eq!(sink.texts(), ["hi"]);
}

#[tokio::test]
async fn a_press_is_answered_once_when_it_is_journaled() {
    let server = FakeTelegram::start().await;
    let ana = server.user(ANA, "Ana");
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    let content = botmesh_core::content::Content::text("Tea?")
        .with_buttons([botmesh_core::content::Button::new("tea", "Yes, please")]);
    let chat = ANA.to_string().into();
    bot.send(botmesh_core::provider::SendRequest::new(&chat, &content)).await.expect("a message");
    let scenario = async {
        ana.presses("Yes, please");
        server.until("its answer", || server.done("answerCallbackQuery").len() == 1).await;
        server.redeliver();
        server.until("the second delivery", || server.confirmed().len() == 1).await;
    };
    while_running(&bot, &sink, scenario).await.expect("a good end");
    assert_eq!(server.calls().iter().filter(|call| call.method == "answerCallbackQuery").count(), 1);
    let pressed = InboundBody::Interaction { id: "tea".into(), title: "Yes, please".into() };
    assert_eq!(sink.taken()[0].body, pressed);
}

/// Case D, a press that is too old to be answered.
#[tokio::test]
async fn a_press_that_is_too_old_for_an_answer_is_handled_all_the_same() {
    let server = FakeTelegram::start().await;
    let payload = include_str!("../payloads/updates/callback_query.json");
    server.push(serde_json::from_str(payload).expect("JSON"));
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    let scenario = async {
        server
            .until("the call", || !server.calls().iter().all(|call| call.method != "answerCallbackQuery"))
            .await;
        server.user(ANA, "Ana").writes("still there?");
        server.until("both", || sink.taken().len() == 2).await;
    };
    while_running(&bot, &sink, scenario).await.expect("a good end");
    assert!(server.done("answerCallbackQuery").is_empty(), "it was too old");
}

/// Case C35.
#[tokio::test]
async fn a_copied_post_of_a_channel_is_told_and_not_answered_unless_asked_for() {
    let payload: Value = serde_json::from_str(include_str!(
        "../payloads/updates/message_auto_forward_from_linked_channel.json"
    ))
    .expect("JSON");
    for reads in [false, true] {
        let server = FakeTelegram::start().await;
        server.push(payload.clone());
        let bot = if reads { bot_of(&server).reading_automatic_forwards() } else { bot_of(&server) };
        let sink = Recorder::new();
        while_running(&bot, &sink, server.until("the post", || !sink.taken().is_empty()))
            .await
            .expect("a good end");
        let body = sink.taken()[0].body.clone();
        assert_eq!(body.is_answer(), reads, "{body:?}");
        if let InboundBody::System { event, detail } = body {
            assert_eq!((event.as_str(), &detail["text"]), ("automatic_forward", &json!("aviso")));
        }
    }
}

#[tokio::test]
async fn the_connection_is_open_when_telegram_answers_and_closed_at_the_end() {
    let server = FakeTelegram::start().await;
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    let mut states = bot.connection();
    assert_eq!(*states.borrow(), ConnectionState::Closed);
    let opened = async {
        states.wait_for(|state| *state == ConnectionState::Open).await.expect("a provider");
    };
    while_running(&bot, &sink, opened).await.expect("a good end");
    assert_eq!(*bot.connection().borrow(), ConnectionState::Closed);
    assert_eq!(bot.username().as_deref(), Some("demo_bot"));
}

#[tokio::test]
async fn it_runs_once_at_a_time() {
    let server = FakeTelegram::start().await;
    let (sink, bot) = (Recorder::new(), bot_of(&server));
    let scenario = async {
        server.until("a poll", || server.is_polled()).await;
        assert!(failure(&bot).await.detail.contains("already running"));
    };
    while_running(&bot, &sink, scenario).await.expect("a good end");
}
