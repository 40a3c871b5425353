//! Updates that are posted.

use std::time::Duration;

use botmesh_core::content::{Button, Content};
use botmesh_core::provider::{Provider, SendRequest};
use botmesh_core::spawn::Spawner;
use botmesh_telegram::Telegram;
use botmesh_testing::{FakeTelegram, TestSpawner};
use botmesh_webhook::Limits;
use botmesh_webhook::axum::serve;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Recorder, Refuses, while_running};

const ANA: i64 = 5_025_045_066;
const SECRET: &str = "a-secret_of-256-bits";

/// A bot whose webhook is served.
struct Served {
    server: FakeTelegram,
    bot: Telegram,
    address: String,
    spawner: TestSpawner,
}

impl Served {
    async fn start(change: impl FnOnce(Telegram) -> Telegram) -> Self {
        let server = FakeTelegram::start().await;
        let bot = change(Telegram::webhook(server.token(), SECRET).with_api_url(&server.url()));
        Self::serve(server, bot).await
    }

    async fn serve(server: FakeTelegram, bot: Telegram) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let spawner = TestSpawner::new();
        let router = bot.router();
        spawner.spawn("serve", Box::pin(async move { drop(serve(listener, router).await) }));
        Self { server, bot, address, spawner }
    }

    /// Has the server post updates.
    async fn registered(self) -> Self {
        self.bot.set_webhook(&format!("http://{}/telegram", self.address)).await.expect("a webhook");
        self
    }

    /// Status and body of the answer to a post.
    async fn post(&self, headers: &str, body: &[u8]) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).await.expect("a connection");
        let head = format!(
            "POST /telegram HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("a request");
        stream.write_all(body).await.expect("a body");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, head.to_ascii_lowercase(), body.to_owned())
    }

    fn signed() -> String {
        format!("X-Telegram-Bot-Api-Secret-Token: {SECRET}\r\n")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.spawner.kill("serve");
    }
}

/// Case B27.
#[tokio::test]
async fn what_is_posted_is_journaled_and_the_answer_has_never_a_body() {
    let served = Served::start(|bot| bot).await.registered().await;
    let (server, sink) = (&served.server, Recorder::new());
    let ana = server.user(ANA, "Ana");
    ana.writes(r#"{"method":"sendMessage","chat_id":1,"text":"not mine"}"#);
    let bad = server.push(json!({ "message": { "method": "sendMessage" } }));
    server.until("a refusal", || !server.webhook_answers().is_empty()).await;
    let first = server.webhook_answers()[0].clone();
    assert_eq!((first.status, first.retry_after.is_some()), (Some(503), true), "the bot does not run");

    while_running(&served.bot, &sink, server.until("all of them", || server.unconfirmed() == 0))
        .await
        .expect("a good end");
    assert_eq!(sink.texts().len(), 1);
    assert_eq!(sink.poison()[0].0, bad.to_string(), "what cannot be read is buried");
    let answers = server.webhook_answers();
    assert!(answers.iter().all(|answer| answer.body.is_empty()), "{answers:#?}");
    assert!(answers.iter().all(|answer| matches!(answer.status, Some(200 | 503))), "{answers:#?}");
}

/// Case A9.
#[tokio::test]
async fn while_the_journal_is_away_updates_stay_at_telegram() {
    let served = Served::start(|bot| bot).await.registered().await;
    let (server, sink) = (&served.server, Recorder::new());
    let id = server.user(ANA, "Ana").writes("hi");
    sink.refuse(&id.to_string(), Refuses::Journal, 3);
    while_running(&served.bot, &sink, server.until("it", || server.unconfirmed() == 0))
        .await
        .expect("a good end");
    assert_eq!(sink.texts(), ["hi"]);
    let refused = server.webhook_answers().iter().filter(|answer| answer.status == Some(503)).count();
    assert!(refused >= 3, "{:#?}", server.webhook_answers());
}

#[tokio::test]
async fn who_does_not_know_the_secret_is_not_heard() {
    let served = Served::start(|bot| bot).await;
    let sink = Recorder::new();
    let body = json!({ "update_id": 7, "message": { "message_id": 1, "chat": { "id": 3 }, "text": "hi" } })
        .to_string();
    let scenario = async {
        for headers in [
            "",
            "X-Telegram-Bot-Api-Secret-Token: a-secret_of-256-bit\r\n",
            "X-Telegram-Bot-Api-Secret-Token: \r\n",
        ] {
            let (status, _, answer) = served.post(headers, body.as_bytes()).await;
            assert_eq!((status, answer.as_str()), (401, ""), "{headers}");
        }
        assert_eq!(served.post(&Served::signed(), body.as_bytes()).await.0, 200);
    };
    while_running(&served.bot, &sink, scenario).await.expect("a good end");
    assert_eq!(sink.texts(), ["hi"]);
}

#[tokio::test]
async fn white_space_around_a_token_and_a_secret_does_no_harm() {
    let server = FakeTelegram::start().await;
    let (token, secret) = (format!(" {}\r\n", server.token()), format!("\t{SECRET}\n"));
    let bot = Telegram::webhook(token, secret).with_api_url(&server.url());
    let (served, sink) = (Served::serve(server, bot).await.registered().await, Recorder::new());
    let server = &served.server;
    server.user(ANA, "Ana").writes("hi");
    while_running(&served.bot, &sink, server.until("it", || server.unconfirmed() == 0))
        .await
        .expect("a good end");
    assert_eq!(sink.texts(), ["hi"]);
}

/// A stranger whose body takes memory keeps it from Telegram's posts.
#[tokio::test]
async fn who_does_not_know_the_secret_is_refused_before_the_body_comes() {
    let served = Served::start(|bot| bot).await;
    let scenario = async {
        let mut stream = TcpStream::connect(&served.address).await.expect("a connection");
        let head =
            "POST /telegram HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 8000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    };
    while_running(&served.bot, &Recorder::new(), scenario).await.expect("a good end");
}

/// Cases B21 and B25.
#[tokio::test]
async fn a_body_that_is_no_update_is_refused_and_a_wrong_content_type_is_not() {
    let served = Served::start(|bot| bot).await;
    let sink = Recorder::new();
    let scenario = async {
        let no_text =
            b"{\"update_id\":6,\"message\":{\"message_id\":1,\"chat\":{\"id\":3},\"text\":\"\xff\"}}";
        let texts =
            ["", "\u{feff}{}", "null", "[]", "{", "{}", r#"{"update_id":"x"}"#, r#"{"update_id":6}}"#];
        for body in texts.map(str::as_bytes).into_iter().chain([&no_text[..]]) {
            let (status, _, answer) = served.post(&Served::signed(), body).await;
            assert_eq!((status, answer.as_str()), (400, ""), "{}", body.escape_ascii());
        }
        let body = r#"{"update_id":7,"message":{"message_id":1,"chat":{"id":3},"text":"a\ud83d"}}"#;
        let headers = Served::signed() + "Content-Type: text/plain\r\n";
        assert_eq!(served.post(&headers, body.as_bytes()).await.0, 200);
        assert_eq!(served.post(&headers, body.as_bytes()).await.0, 200, "a redelivery is taken as well");
    };
    while_running(&served.bot, &sink, scenario).await.expect("a good end");
    assert_eq!(sink.texts(), ["a\u{fffd}"]);
    assert!(sink.poison().is_empty());
}

#[tokio::test]
async fn a_body_has_a_largest_size_and_the_door_is_closed_while_the_bot_does_not_run() {
    let served = Served::start(|bot| bot.with_limits(Limits::default().with_max_body(100))).await;
    let (status, head, _) = served.post(&Served::signed(), b"{}").await;
    assert_eq!(status, 503);
    assert!(head.contains("retry-after:"), "{head}");
    let scenario = async {
        assert_eq!(served.post(&Served::signed(), &[b' '; 101]).await.0, 413);
    };
    while_running(&served.bot, &Recorder::new(), scenario).await.expect("a good end");
}

/// Case C41.
#[tokio::test]
async fn a_press_and_a_text_of_one_chat_come_at_the_same_time_and_both_are_taken() {
    let served = Served::start(|bot| bot).await.registered().await;
    let (server, sink) = (&served.server, Recorder::new());
    let ana = server.user(ANA, "Ana");
    let tea = Content::text("Tea?").with_buttons([Button::new("tea", "Yes")]);
    let chat = ANA.to_string().into();
    served.bot.send(SendRequest::new(&chat, &tea)).await.expect("a message");
    ana.writes("hmm");
    ana.presses("Yes");
    let answered = || server.done("answerCallbackQuery").len() == 1 && server.unconfirmed() == 0;
    while_running(&served.bot, &sink, server.until("both", answered)).await.expect("a good end");
    assert_eq!(sink.taken().len(), 2);
}

#[tokio::test]
async fn a_press_that_was_journaled_and_came_no_further_is_answered_when_it_comes_again() {
    let served = Served::start(|bot| bot).await.registered().await;
    let (server, sink) = (&served.server, Recorder::new());
    let ana = server.user(ANA, "Ana");
    let tea = Content::text("Tea?").with_buttons([Button::new("tea", "Yes")]);
    let chat = ANA.to_string().into();
    served.bot.send(SendRequest::new(&chat, &tea)).await.expect("a message");
    sink.refuse(&ana.presses("Yes").to_string(), Refuses::NoPlace, 1);
    let answered = || server.done("answerCallbackQuery").len() == 1;
    while_running(&served.bot, &sink, server.until("its answer", answered)).await.expect("a good end");
    assert_eq!(sink.taken().len(), 1);
}

#[tokio::test]
async fn a_secret_that_telegram_would_refuse_is_refused_before() {
    let server = FakeTelegram::start().await;
    for secret in ["", "with a space", "ñ", &"x".repeat(257)] {
        let bot = Telegram::webhook(server.token(), secret).with_api_url(&server.url());
        let error = bot.set_webhook("https://example.org/telegram").await.expect_err(secret);
        assert!(error.detail.contains("1 to 256"), "{}", error.detail);
        let error =
            while_running(&bot, &Recorder::new(), std::future::ready(())).await.expect_err("it does not run");
        assert!(!error.retryable);
    }
    let polls = Telegram::polling(server.token()).with_api_url(&server.url());
    assert!(
        polls
            .set_webhook("https://example.org")
            .await
            .expect_err("it polls")
            .detail
            .contains("Telegram::webhook")
    );
    assert!(server.calls().is_empty());
}

#[tokio::test]
async fn a_refused_token_ends_the_bot_and_an_outage_of_telegram_does_not() {
    let server = FakeTelegram::start().await;
    let wrong = Telegram::webhook("1:wrong", SECRET).with_api_url(&server.url());
    let error =
        wrong.run(Recorder::new(), botmesh_core::CancellationToken::new()).await.expect_err("no such bot");
    assert!(!error.retryable, "{error:?}");

    let served =
        Served::start(|bot| bot.with_api_url("http://127.0.0.1:9").with_timeout(Duration::from_secs(1)))
            .await;
    let body = r#"{"update_id":7,"message":{"message_id":1,"chat":{"id":3},"text":"hi"}}"#;
    let sink = Recorder::new();
    let scenario = async { assert_eq!(served.post(&Served::signed(), body.as_bytes()).await.0, 200) };
    while_running(&served.bot, &sink, scenario).await.expect("a good end");
    assert_eq!(sink.texts(), ["hi"]);
}
