//! Whatever is posted: no panic, and nothing that was read is lost. `FUZZ_CASES=100000` looks for longer.

use botmesh_testing::{FakeGraph, GraphProduct};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::support::{Told, whatsapp};

const SAMPLE: &[u8] =
    include_bytes!("../payloads/whatsapp_cloud/webhooks/batch_multi_entry_change_message_status.json");

const KEYS: &[&str] = &[
    "id",
    "type",
    "from",
    "from_user_id",
    "text",
    "body",
    "status",
    "errors",
    "code",
    "context",
    "system",
    "user_id",
    "interactive",
    "button_reply",
    "image",
    "recipient_id",
    "message",
    "timestamp",
    "contacts",
];

const WORDS: &[&str] = &["text", "image", "interactive", "system", "wamid.1", "failed", "sent", "contacts"];

/// A sample with bytes of it changed.
fn nearly_a_sample() -> impl Strategy<Value = Vec<u8>> {
    vec((0..SAMPLE.len(), any::<u8>()), 0..8).prop_map(|changes| {
        let mut body = SAMPLE.to_vec();
        for (at, byte) in changes {
            body[at] = byte;
        }
        body
    })
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        proptest::sample::select(WORDS).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        let pairs = vec((proptest::sample::select(KEYS), inner.clone()), 0..8);
        let object = |pairs: Vec<(&str, Value)>| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        prop_oneof![
            vec(inner, 0..6).prop_map(Value::from),
            pairs.prop_map(move |pairs| Value::Object(object(pairs))),
        ]
    })
}

fn runner() -> TestRunner {
    let cases = std::env::var("FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256);
    TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..Default::default() })
}

/// A text under this key.
fn named<'a>(item: &'a Value, key: &str) -> Option<&'a str> {
    item.get(key)?.as_str().filter(|id| !id.is_empty())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_posted_is_too_much() {
    let (stage, _channel) = whatsapp().await;
    let handle = Handle::current();
    let post = |body: &[u8]| {
        block_in_place(|| handle.block_on(stage.graph.post_bytes(GraphProduct::WhatsApp, body)))
    };
    let bodies = prop_oneof![vec(any::<u8>(), 0..200), nearly_a_sample()];
    let outcome = runner().run(&(bodies, vec(anything(), 0..5)), |(body, items)| {
        let status = post(&body);
        prop_assert!(matches!(status, Some(200 | 400)), "{status:?}");
        stage.diary.take();
        let value = json!({
            "metadata": { "phone_number_id": FakeGraph::PHONE_NUMBER_ID }, "messages": items,
            "statuses": items, "errors": items, "user_id_update": items, "message_echoes": items, "contacts": items,
        });
        let body = json!({ "entry": [{ "changes": [{ "field": "messages", "value": value }] }] });
        prop_assert_eq!(post(body.to_string().as_bytes()), Some(200));
        let told = stage.diary.take();
        for item in &items {
            if let (Some(id), Some(_)) = (named(item, "id"), named(item, "from")) {
                let is_it = |told: &Told| matches!(told, Told::Event(inbound) if inbound.event.as_str() == id);
                prop_assert!(told.iter().any(is_it), "{} is lost", id);
            }
        }
        Ok(())
    });
    outcome.expect("nothing is too much");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_signature_but_the_right_one_opens_the_door() {
    let (stage, _channel) = whatsapp().await;
    let handle = Handle::current();
    let outcome = runner().run(&("[!-~]{0,80}", vec(any::<u8>(), 0..50)), |(signature, body)| {
        for header in [signature.clone(), format!("sha256={signature}")] {
            let headers = format!("x-hub-signature-256: {header}\r\n");
            let post = stage.graph.post_raw(GraphProduct::WhatsApp, &headers, &body);
            let answer = block_in_place(|| handle.block_on(post));
            prop_assert_eq!(answer, Some((401, String::new())));
        }
        Ok(())
    });
    outcome.expect("it stays closed");
}
