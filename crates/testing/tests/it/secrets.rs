//! What a bot is told in confidence is shown nowhere: not in its logs down to the last detail, its events, errors and `Debug`
//! texts, nor in the files that it writes.

use std::error::Error;
use std::fmt::{Debug, Write as _};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use botmesh::FileDurability;
use botmesh::core::kv::DurableKv;
use botmesh::core::provider::{ConnectionState, Provider, SendRequest};
use botmesh::core::spawn::Spawner;
use botmesh::prelude::*;
use botmesh_meta::{Instagram, Messenger, MetaConfig, WhatsApp};
use botmesh_telegram::Telegram;
use botmesh_testing::{
    FakeGraph, FakeTelegram, GraphFault, GraphProduct, TelegramCall, TelegramFault, TestSpawner,
};
use botmesh_webhook::axum;
use serde_json::json;
use tokio::net::TcpListener;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::util::SubscriberInitExt;

const ANA: i64 = 5_025_045_066;

/// What was logged on this thread.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    fn capture() -> (Self, DefaultGuard) {
        let logs = Self::default();
        let writer = logs.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .finish();
        (logs, subscriber.set_default())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Everything that a life of a bot left behind, as text.
struct Shown {
    logs: String,
    /// Events, errors and `Debug` texts.
    told: String,
    files: String,
}

impl Shown {
    fn refuse(&self, secrets: &[&str]) {
        for (what, text) in [("logs", &self.logs), ("events", &self.told), ("files", &self.files)] {
            for secret in secrets {
                let line = text.lines().find(|line| line.contains(secret));
                assert_eq!(line, None, "the {what} show `{secret}`");
            }
        }
    }
}

fn everything_of(error: &dyn Error) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(shown, " {cause} {cause:?}");
        source = cause.source();
    }
    shown
}

fn files(folder: &Path) -> String {
    let files = fs::read_dir(folder).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
    files.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

/// Runs a bot that answers, also with the length of media, while `scenario` lasts; and what it left.
async fn live(provider: impl Provider, scenario: impl AsyncFnOnce(&Bot)) -> Shown {
    let (logs, _guard) = Logs::capture();
    let folder = tempfile::tempdir().unwrap();
    let journals: Arc<dyn DurableKv> =
        Arc::new(FileDurability::open(folder.path().join("journals")).await.unwrap());
    let bot = Bot::builder()
        .provider(provider)
        .durability(Durability::new(Arc::clone(&journals)).with_instance_id("one"))
        .otherwise(|c: Ctx| async move {
            let media = c.load_media().await.map_or(0, |bytes| bytes.len());
            c.reply(format!("{media} bytes and {}", c.text())).await
        })
        .build()
        .unwrap();
    let mut told = format!("{bot:?} {bot:#?}");
    let mut events = bot.events();
    let scenario = async {
        scenario(&bot).await;
        bot.stop();
    };
    let (ended, ()) = tokio::join!(bot.run(), scenario);
    ended.unwrap();
    while let Ok(event) = events.try_recv() {
        let _ = writeln!(told, "{event:?}");
    }
    let _ = writeln!(told, "{:?}", bot.metrics());
    journals.close().await.unwrap();
    Shown { logs: logs.text(), told, files: files(folder.path()) }
}

#[tokio::test]
async fn the_token_of_telegram_is_in_no_log_event_error_or_journal() {
    let server = FakeTelegram::start().await;
    let telegram = Telegram::polling(server.token()).with_api_url(&server.url());
    let ana = server.user(ANA, "Ana");
    let url = format!("{}/bot{}/sendMessage", server.url(), server.token());
    let mut errors = format!("{telegram:?} {telegram:#?}");
    let shown = live(telegram.clone(), async |bot| {
        // What stands in front of Telegram may repeat the URL, and so may Telegram.
        let gateway = || TelegramFault::Gateway { status: 502, body: format!("<html>{url}</html>") };
        server.fault_next("getUpdates", gateway());
        server.fault_next("sendMessage", gateway());
        ana.writes("hi");
        ana.expect_reply("0 bytes and hi").await;
        ana.sends_photo("photo-1", b"a picture");
        ana.expect_reply("9 bytes and ").await;
        server.fault_next("sendMessage", TelegramFault::refuse(400, &format!("Bad Request: {url}")));
        ana.writes("in vain");
        let in_vain = |call: &TelegramCall| format!("{call:?}").contains("and in vain");
        server.until("a refusal", || server.calls().iter().any(in_vain)).await;
        for fault in [TelegramFault::Cut, TelegramFault::LoseAnswer, gateway(), TelegramFault::CutAnswer] {
            server.fault_next("sendMessage", fault);
            let sent = telegram.call("sendMessage", json!({ "chat_id": ANA, "text": "once" })).await;
            errors += &sent.map_or_else(|error| everything_of(&error), |sent| sent.to_string());
        }
        errors += &everything_of(&bot.send("17", "nobody").await.unwrap_err());
        ana.writes("bye");
        ana.expect_reply("0 bytes and bye").await;
    })
    .await;
    assert!(shown.logs.contains("botmesh"), "something was logged");
    assert!(shown.files.contains("in vain") && shown.files.contains("photo-1"), "{}", shown.files);
    assert!(errors.contains("<token>"), "an error that had it: {errors}");
    let shown = Shown { told: shown.told + &errors, ..shown };
    shown.refuse(&[server.token(), "FAKE-token_for-tests"]);
}

#[tokio::test]
async fn the_secret_of_telegrams_webhook_is_in_no_log_event_error_or_journal() {
    const SECRET: &str = "s3cret_of-the-webhook";
    const WRONG: &str = "s3cret_of-the-webhooq";
    let server = FakeTelegram::start().await;
    // As from a file that ends with a new line.
    let telegram = Telegram::webhook(server.token(), format!("{SECRET}\n")).with_api_url(&server.url());
    let mut told = format!("{telegram:?} {telegram:#?}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/telegram", listener.local_addr().unwrap());
    let spawner = TestSpawner::new();
    let router = telegram.router();
    spawner.spawn("serve", Box::pin(async move { drop(axum::serve(listener, router).await) }));
    let ana = server.user(ANA, "Ana");
    let shown = live(telegram.clone(), async |_| {
        // Telegram may repeat what it was told.
        let repeats = format!("Bad Request: bad webhook: {SECRET} of {}", server.token());
        server.fault_next("setWebhook", TelegramFault::refuse(400, &repeats));
        let refused = telegram.set_webhook(&url).await.unwrap_err();
        assert!(refused.detail.contains("<secret> of <token>"), "{refused}");
        told += &everything_of(&refused);
        telegram.set_webhook(&url).await.unwrap();
        ana.writes("hi");
        ana.expect_reply("0 bytes and hi").await;
        let wrong = json!({ "url": url, "secret_token": WRONG });
        telegram.call("setWebhook", wrong).await.unwrap();
        ana.writes("not yet");
        let refused = || server.webhook_answers().iter().any(|answer| answer.status == Some(401));
        server.until("a refusal", refused).await;
        assert_eq!(ana.replies(), ["0 bytes and hi"]);
        telegram.set_webhook(&url).await.unwrap();
        ana.expect_reply("0 bytes and not yet").await;
    })
    .await;
    spawner.kill("serve");
    assert!(shown.logs.contains("botmesh"), "something was logged");
    assert!(shown.files.contains("not yet"), "{}", shown.files);
    let shown = Shown { told: shown.told + &told, ..shown };
    shown.refuse(&[server.token(), SECRET, WRONG]);
}

/// What a bot on one of Meta's products leaves behind.
async fn live_on_meta(
    server: &FakeGraph,
    product: GraphProduct,
    path: &str,
    (channel, router): (impl Provider + Clone + Debug, axum::Router),
) -> Shown {
    let mut told = format!("{channel:?} {channel:#?}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    server.set_webhook(product, format!("http://{}{path}", listener.local_addr().unwrap()));
    let spawner = TestSpawner::new();
    spawner.spawn("serve", Box::pin(async move { drop(axum::serve(listener, router).await) }));
    let shown = live(channel.clone(), async |bot| {
        let mut state = channel.connection();
        state.wait_for(|state| *state == ConnectionState::Open).await.unwrap();
        assert!(server.verify_webhook(product).await);
        let ana = match product {
            GraphProduct::WhatsApp => server.whatsapp_user("Ana", "15551234567"),
            product => server.user(product, "Ana", "15551234567"),
        };
        ana.says("hi").await;
        server.wait_for_deliveries(1).await;
        ana.sends_image("image/png", b"a picture").await;
        server.wait_for_deliveries(2).await;
        assert_eq!(ana.texts(), ["0 bytes and hi", "9 bytes and "]);
        let forged = format!("x-hub-signature-256: {}\r\n", FakeGraph::sign(b"something else"));
        let answer = server.post_raw(product, &forged, b"{}").await;
        assert_eq!(answer.map(|(status, _)| status), Some(401));
        for fault in [GraphFault::Broken(404), GraphFault::Refuse { status: 401, code: 190, subcode: 0 }] {
            server.fault_next(fault);
            let error = bot.send("15551234567", "in vain").await.unwrap_err();
            told += &everything_of(&error);
        }
    })
    .await;
    spawner.kill("serve");
    assert!(shown.logs.contains("botmesh"), "something was logged");
    assert!(shown.files.contains("15551234567"), "{}", shown.files);
    Shown { told: shown.told + &told, ..shown }
}

#[tokio::test]
async fn the_secrets_of_meta_are_in_no_log_event_error_or_journal() {
    let config = MetaConfig::new(FakeGraph::ACCESS_TOKEN, FakeGraph::APP_SECRET, FakeGraph::VERIFY_TOKEN);
    let told = format!("{config:?} {config:#?}");
    for product in [GraphProduct::WhatsApp, GraphProduct::Messenger, GraphProduct::Instagram] {
        let server = FakeGraph::start().await;
        let config = config.clone().with_base_url(server.url());
        let shown = match product {
            GraphProduct::WhatsApp => {
                let channel = WhatsApp::new(FakeGraph::PHONE_NUMBER_ID, config).unwrap();
                let router = channel.router();
                live_on_meta(&server, product, "/webhooks/whatsapp", (channel, router)).await
            }
            GraphProduct::Messenger => {
                let channel = Messenger::new(FakeGraph::PAGE_ID, config).unwrap();
                let router = channel.router();
                live_on_meta(&server, product, "/webhooks/messenger", (channel, router)).await
            }
            GraphProduct::Instagram => {
                let channel = Instagram::new(FakeGraph::ACCOUNT_ID, config).unwrap();
                let router = channel.router();
                live_on_meta(&server, product, "/webhooks/instagram", (channel, router)).await
            }
        };
        let shown = Shown { told: shown.told + &told, ..shown };
        shown.refuse(&[
            FakeGraph::ACCESS_TOKEN,
            FakeGraph::APP_SECRET,
            FakeGraph::VERIFY_TOKEN,
            "a+verify%2Btoken",
        ]);
    }
}

/// A server that sends everybody somewhere else, and whether anybody came there.
async fn detour(spawner: &TestSpawner) -> (String, Arc<AtomicBool>) {
    let (here, there) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("http://{}", here.local_addr().unwrap());
    let away = format!("http://{}/elsewhere", there.local_addr().unwrap());
    let come = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&come);
    let arrive = axum::Router::new().fallback(move || async move { seen.store(true, Ordering::SeqCst) });
    let leave = axum::Router::new()
        .fallback(move || async move { (axum::http::StatusCode::TEMPORARY_REDIRECT, [("location", away)]) });
    for (name, listener, router) in [("here", here, leave), ("there", there, arrive)] {
        spawner.spawn(name, Box::pin(async move { drop(axum::serve(listener, router).await) }));
    }
    (url, come)
}

#[tokio::test]
async fn no_token_follows_a_redirect() {
    let spawner = TestSpawner::new();
    let (url, come) = detour(&spawner).await;
    let telegram = Telegram::polling("1:a-token").with_api_url(&url);
    telegram.call("getMe", json!({})).await.unwrap_err();
    let config = MetaConfig::new("a-token", "a-secret", "a-word").with_base_url(url);
    let whatsapp = WhatsApp::new("1", config).unwrap();
    whatsapp.send(SendRequest::new(&"1555".into(), &Content::text("hi"))).await.unwrap_err();
    assert!(!come.load(Ordering::SeqCst), "somebody else got the request");
    spawner.kill("here");
    spawner.kill("there");
}
