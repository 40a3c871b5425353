//! What is wrong in a configuration is said at once, and secrets are not said at all.

use std::time::Duration;

use botmesh_core::error::ErrorClass;
use botmesh_core::provider::{Provider, Rate};
use botmesh_meta::{Instagram, Messenger, MetaConfig, WhatsApp};
use botmesh_testing::{FakeGraph, GraphProduct};

use crate::support::{Stage, config};
use crate::whatsapp::send;

fn good() -> MetaConfig {
    MetaConfig::new("token", "secret", "verify")
}

#[test]
fn what_cannot_work_is_named() {
    for (field, config) in [
        ("meta.token", MetaConfig::new("", "secret", "verify")),
        ("meta.token", MetaConfig::new("a\nb", "secret", "verify")),
        ("meta.token", MetaConfig::new("a b", "secret", "verify")),
        ("meta.token", MetaConfig::new("tökén", "secret", "verify")),
        ("meta.app_secret", MetaConfig::new("token", "", "verify")),
        ("meta.app_secret", MetaConfig::new("token", "sec\tret", "verify")),
        ("meta.app_secret", MetaConfig::new("token", " \n", "verify")),
        ("meta.verify_token", MetaConfig::new("token", "secret", "")),
        ("meta.verify_token", MetaConfig::new("token", "secret", "ver\0ify")),
        ("meta.base_url", good().with_base_url("graph.facebook.com")),
        ("meta.path", good().with_path("webhook")),
        ("meta.rate", good().with_rate(Rate::new(0, Duration::from_secs(1)))),
        ("meta.chat_rate", good().with_chat_rate(Rate::new(1, Duration::ZERO))),
    ] {
        let error = WhatsApp::new("1", config).expect_err(field);
        assert_eq!(error.field, field);
    }
    for number in ["", "+1 555", "abc"] {
        assert_eq!(WhatsApp::new(number, good()).expect_err("no id").field, "meta.phone_number_id");
    }
}

#[tokio::test]
async fn secrets_may_come_from_files_that_end_with_a_line() {
    let stage = Stage::new().await;
    let [token, secret, verify] = [FakeGraph::ACCESS_TOKEN, FakeGraph::APP_SECRET, FakeGraph::VERIFY_TOKEN]
        .map(|text| format!(" {text}\r\n"));
    let config = MetaConfig::new(token, secret, verify).with_base_url(stage.graph.url());
    let channel = WhatsApp::new(FakeGraph::PHONE_NUMBER_ID, config).expect("a channel");
    stage.run(GraphProduct::WhatsApp, "/webhooks/whatsapp", channel.clone(), channel.router()).await;
    assert!(stage.graph.verify_webhook(GraphProduct::WhatsApp).await, "the verify token fits");
    let user = stage.graph.whatsapp_user("Ann", "15550001");
    user.says("hi").await;
    assert_eq!(stage.diary.texts(), ["hi"], "the signature fits");
    send(&channel, user.id(), "hello").await.expect("the token fits");
}

fn rates(channel: &impl Provider) -> [Option<(u32, u64)>; 2] {
    let read = |rate: Rate| (rate.messages, rate.per.as_secs());
    [channel.capabilities().rate.map(read), channel.chat_rate(&"1".into()).map(read)]
}

#[test]
fn each_channel_says_how_many_messages_meta_takes_unless_it_is_told_otherwise() {
    let whatsapp = |config| rates(&WhatsApp::new("1", config).expect("a channel"));
    let messenger = |config| rates(&Messenger::new("1", config).expect("a channel"));
    let instagram = |config| rates(&Instagram::new("1", config).expect("a channel"));
    assert_eq!(whatsapp(good()), [Some((80, 1)), Some((45, 270))]);
    assert_eq!(messenger(good()), [Some((40, 1)), None]);
    assert_eq!(instagram(good()), [Some((100, 1)), None]);
    let two = Rate::new(2, Duration::from_secs(1));
    let own = |config: MetaConfig| config.with_rate(two).with_chat_rate(two);
    for channel in [whatsapp, messenger, instagram] as [fn(MetaConfig) -> [Option<(u32, u64)>; 2]; 3] {
        assert_eq!(channel(own(good()).without_rates()), [None, None]);
        assert_eq!(channel(own(good().without_rates())), [Some((2, 1)); 2]);
    }
}

#[test]
fn secrets_are_in_no_text_that_people_read() {
    let config = MetaConfig::new("T0KEN", "S3CRET", "V3RIFY");
    let channel = WhatsApp::new("1", config.clone()).expect("a channel");
    let error = WhatsApp::new("1", MetaConfig::new("a\nT0KEN", "S3CRET", "V3RIFY")).expect_err("no token");
    let shown = format!("{config:?} {channel:?} {error} {error:?}");
    for secret in ["T0KEN", "S3CRET", "V3RIFY"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn a_token_is_not_repeated_when_it_is_refused_or_not_seen() {
    let graph = FakeGraph::start().await;
    let wrong = MetaConfig::new("T0KEN", "S3CRET", "V3RIFY").with_base_url(graph.url());
    let channel = WhatsApp::new(FakeGraph::PHONE_NUMBER_ID, wrong).expect("a channel");
    let error = send(&channel, "US.1", "hi").await.expect_err("it is refused");
    assert_eq!((error.class, error.code.as_deref()), (ErrorClass::Auth, Some("190/460")));
    assert!(error.detail.contains("***"), "the server repeats the token: {error}");
    assert!(!format!("{error} {error:?}").contains("T0KEN"), "{error:?}");
    let nobody = config(&graph).with_base_url("http://127.0.0.1:1");
    let channel = WhatsApp::new("1", nobody).expect("a channel");
    let error = send(&channel, "US.1", "hi").await.expect_err("nobody is there");
    assert!(!format!("{error:?}").contains(FakeGraph::ACCESS_TOKEN), "{error:?}");
}
