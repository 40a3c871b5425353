//! Impossible settings are refused by name, with what to do.

use std::sync::Arc;
use std::time::Duration;

use botmesh::prelude::*;
use botmesh::{BotBuilder, HandoverConfig, OnAmbiguous, OnHandlerError, Text, Texts, TurnsConfig};
use botmesh_testing::MockProvider;
use serde_json::json;

fn answering() -> BotBuilder {
    Bot::builder().shared_provider(Arc::new(MockProvider::new())).otherwise(|_: Ctx| async {})
}

#[track_caller]
fn refused(bot: BotBuilder, expected: &[&str]) {
    let error = bot.build().expect_err("an impossible bot").to_string();
    for part in expected {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
}

#[test]
fn a_bot_that_cannot_work_is_refused_by_field_with_what_to_do() {
    refused(Bot::builder().otherwise(|_: Ctx| async {}), &["provider: is missing", ".provider("]);
    let silent = Bot::builder().shared_provider(Arc::new(MockProvider::new()));
    refused(silent, &["routes: are missing", ".when("]);
    let broken = |change: fn(&mut Durability)| {
        let mut durability = Durability::default();
        change(&mut durability);
        answering().durability(durability)
    };
    refused(
        broken(|d| d.inbox.lease = Duration::from_millis(19)),
        &["durability.inbox.lease", "\"20ms\"", "\"60s\""],
    );
    refused(
        broken(|d| d.outbox.lease = Duration::from_millis(19)),
        &["durability.outbox.lease", "\"20ms\"", "\"60s\""],
    );
    refused(broken(|d| d.inbox.max_attempts = 0), &["durability.inbox.max_attempts: is 0", "at least 1"]);
    refused(broken(|d| d.poll = Duration::ZERO), &["durability.poll: is 0", "\"1s\""]);
    refused(broken(|d| d.outbox.max_payload_bytes = 0), &["durability.outbox.max_payload_bytes", "1048576"]);
    refused(broken(|d| d.outbox.backoff.jitter = 2.0), &["durability.outbox.backoff", "jitter", "0.2"]);
    refused(broken(|d| d.inbox.backoff.jitter = f64::NAN), &["durability.inbox.backoff", "jitter"]);
    refused(broken(|d| d.inbox.backoff.cap = Duration::ZERO), &["durability.inbox.backoff", "`cap`"]);
    refused(broken(|d| d.instance_id = Some("".into())), &["durability.instance_id: is empty", "\"bot-1\""]);
    refused(
        answering().turns(TurnsConfig { max_backlog: 0, ..TurnsConfig::default() }),
        &["turns.max_backlog"],
    );
    refused(answering().max_media_bytes(0), &["max_media_bytes: is 0", "104857600 is the default"]);
    let nobody = TurnsConfig { max_concurrent: 0, ..TurnsConfig::default() };
    refused(answering().turns(nobody), &["turns.max_concurrent: is 0"]);
}

#[test]
fn texts_that_would_leave_a_user_without_words_are_refused() {
    let with =
        |language, content| answering().texts(Texts::default().with(language, Text::Interrupted, content));
    refused(with("es", " \n"), &["texts.es: ", "`Interrupted` is empty", "leave it out"]);
    for language in ["", "-", "español", "pt--br", "es_MX.UTF-8", "portuguese"] {
        refused(with(language, "hi"), &["is no language", "\"pt-BR\""]);
    }
    let default = |language| answering().texts(Texts::default().with_default_language(language));
    refused(default("FR_ca"), &["texts.default_language: is `fr-ca`", ".with(\"fr-ca\", Text::Interrupted"]);
    let whole = Texts::default().with("fr", Text::Interrupted, "Désolé.").with_default_language("fr-CA");
    for texts in [whole, Texts::default().with_default_language("es-MX")] {
        assert!(answering().texts(texts.clone()).build().is_ok(), "{texts:?}");
    }
}

#[test]
fn settings_come_from_a_file_with_durations_people_write() {
    let durability: Durability = serde_json::from_value(json!({
        "instance_id": "bot-1",
        "inbox": { "lease": "15s", "on_handler_error": "retry", "media_refs": false },
        "outbox": {
            "inline_max": 1500, "lease": "20ms", "on_ambiguous": "resend", "backoff": { "base": "250ms" }
        },
        "retention": "7d",
    }))
    .expect("readable settings");
    assert_eq!(durability.inbox.lease, Duration::from_secs(15));
    assert_eq!(durability.inbox.on_handler_error, OnHandlerError::Retry);
    assert!(Durability::default().inbox.media_refs && !durability.inbox.media_refs);
    assert_eq!(durability.outbox.lease, Duration::from_millis(20));
    assert_eq!(durability.outbox.inline_max, Duration::from_millis(1500));
    assert_eq!(durability.outbox.on_ambiguous, OnAmbiguous::Resend);
    assert_eq!(durability.outbox.backoff.base, Duration::from_millis(250));
    assert_eq!(durability.outbox.backoff.cap, Durability::default().outbox.backoff.cap);
    assert_eq!(durability.retention, Duration::from_secs(7 * 24 * 3600));
    let written = serde_json::to_value(&durability).expect("writable settings");
    let again: Durability = serde_json::from_value(written).expect("what was written");
    assert_eq!((again.inbox.lease, again.outbox.lease), (durability.inbox.lease, durability.outbox.lease));
}

#[test]
fn a_setting_that_is_unknown_or_no_duration_is_refused_by_name() {
    let error =
        |settings| serde_json::from_value::<Durability>(settings).expect_err("bad settings").to_string();
    assert!(error(json!({ "retires": 5 })).contains("`retires`"));
    assert!(error(json!({ "outbox": { "retires": 5 } })).contains("`retires`"));
    assert!(error(json!({ "inbox": { "backoff": { "max": "1s" } } })).contains("`max`"));
    assert!(error(json!({ "outbox": { "on_ambiguous": "guess" } })).contains("`guess`"));
    assert!(error(json!({ "poll": -1 })).contains("negative"));
    assert!(error(json!({ "poll": "soon" })).contains("`soon`"));
    assert!(error(json!({ "poll": "-1s" })).contains("`-1s`"));
    assert!(error(json!({ "poll": 1.5 })).contains("whole number"));
    let turns = serde_json::from_value::<TurnsConfig>(json!({ "backlog": 1 })).expect_err("an unknown field");
    assert!(turns.to_string().contains("`backlog`"));
}

#[test]
fn a_message_of_a_file_that_is_none_is_named() {
    for (json, problem) in [
        (r#"{"notify_message": 5}"#, "expected a text, or a content such as"),
        (r#"{"notify_message": {"text": "Sorry!"}}"#, "missing field `body`"),
        (r#"{"notify_message": {"body": {"type": "txt", "text": "Sorry!"}}}"#, "unknown variant `txt`"),
    ] {
        let error = serde_json::from_str::<HandoverConfig>(json).expect_err(json).to_string();
        assert!(error.contains(problem), "{json}: {error}");
    }
    for json in [r#"{"notify_message": null}"#, r#"{"notify_message": "Sorry!"}"#] {
        let config: HandoverConfig = serde_json::from_str(json).expect(json);
        let written = serde_json::to_string(&config).expect("plain data");
        let read: HandoverConfig = serde_json::from_str(&written).expect(&written);
        assert_eq!(read.notify_message, config.notify_message);
    }
}
