//! Whatever is posted: no panic, and nothing that was read is lost. For as long as `BOTMESH_FUZZ_SECONDS` says; a second
//! without it.

use std::fs;
use std::path::Path;

use botmesh_testing::{FakeGraph, GraphProduct};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::fuzzing::{change, changed, fuzz};
use crate::support::{Told, instagram, messenger, whatsapp};

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

/// The payloads of a product.
fn corpus(product: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/payloads").join(product).join("webhooks");
    let files = fs::read_dir(folder).expect("the corpus").map(|file| file.expect("a file").path());
    let corpus: Vec<_> = files.map(|file| fs::read(file).expect("a payload")).collect();
    assert!(corpus.len() >= 5, "{} payloads", corpus.len());
    corpus
}

/// Bytes of any kind, and payloads with a few changes.
fn bodies(product: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let nearly = (select(corpus(product)), vec(change(), 0..6));
    prop_oneof![
        1 => vec(any::<u8>(), 0..200),
        9 => nearly.prop_map(|(bytes, changes)| changed(bytes, changes)),
    ]
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        select(WORDS).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        let pairs = vec((select(KEYS), inner.clone()), 0..8);
        let object = |pairs: Vec<(&str, Value)>| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        prop_oneof![
            vec(inner, 0..6).prop_map(Value::from),
            pairs.prop_map(move |pairs| Value::Object(object(pairs))),
        ]
    })
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
    fuzz("posts of WhatsApp", &(bodies("whatsapp_cloud"), vec(anything(), 0..5)), |(body, items)| {
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
                let is_it =
                    |told: &Told| matches!(told, Told::Event(inbound) if inbound.event.as_str() == id);
                prop_assert!(told.iter().any(is_it), "{} is lost", id);
            }
        }
        Ok(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_posted_of_a_page_is_too_much() {
    let (stage, _channel) = messenger().await;
    let handle = Handle::current();
    fuzz("posts of Messenger", &bodies("messenger"), |body| {
        let post = stage.graph.post_bytes(GraphProduct::Messenger, &body);
        let status = block_in_place(|| handle.block_on(post));
        prop_assert!(matches!(status, Some(200 | 400)), "{status:?}");
        stage.diary.take();
        Ok(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_posted_of_an_account_is_too_much() {
    let (stage, _channel) = instagram().await;
    let handle = Handle::current();
    fuzz("posts of Instagram", &bodies("instagram"), |body| {
        let post = stage.graph.post_bytes(GraphProduct::Instagram, &body);
        let status = block_in_place(|| handle.block_on(post));
        prop_assert!(matches!(status, Some(200 | 400)), "{status:?}");
        stage.diary.take();
        Ok(())
    });
}
