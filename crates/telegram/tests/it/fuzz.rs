//! Whatever bytes are posted, for as long as `BOTMESH_FUZZ_SECONDS` says; a second without it.

use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

use botmesh_core::inbound::Inbound;
use botmesh_telegram::{Telegram, parse_update};
use botmesh_webhook::Webhook;
use botmesh_webhook::axum::http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::Value;

/// Looks for something that breaks `check`, until the time is over.
#[expect(clippy::disallowed_methods, reason = "fuzzing is bounded in real time")]
fn fuzz<S: Strategy>(what: &str, strategy: &S, check: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seconds =
        std::env::var("BOTMESH_FUZZ_SECONDS").map_or(1, |seconds| seconds.parse().expect("seconds"));
    let config = ProptestConfig { failure_persistence: None, ..Default::default() };
    let (begun, cases) = (Instant::now(), Cell::new(0u64));
    while begun.elapsed() < Duration::from_secs(seconds) {
        let outcome = TestRunner::new(config.clone()).run(strategy, |value| {
            cases.set(cases.get() + 1);
            check(value)
        });
        if let Err(failure) = outcome {
            panic!("{what}: {failure}");
        }
    }
    println!("{what}: {} cases in {:.1} s", cases.get(), begun.elapsed().as_secs_f64());
}

/// Where a text of bytes is changed, how much is cut out there, and what is put in its place.
type Change = (prop::sample::Index, usize, Vec<u8>);

fn changed(mut bytes: Vec<u8>, changes: Vec<Change>) -> Vec<u8> {
    for (at, cut, new) in changes {
        let at = at.index(bytes.len() + 1);
        let end = bytes.len().min(at + cut);
        bytes.splice(at..end, new);
    }
    bytes
}

fn change() -> impl Strategy<Value = Change> {
    let words = prop::sample::select(vec![
        "null",
        "-1",
        "1e999",
        "\"\"",
        "{}",
        "[]",
        "[[[[",
        "\\ud83d",
        "\\u0000",
        "9223372036854775808",
        "0.5",
        ",",
        "}",
        "\"update_id\":7,",
        "\"chat\":{\"id\":-1},",
    ]);
    let bytes = prop_oneof![
        words.prop_map(|word| word.as_bytes().to_vec()),
        Just(b"\xed\xa0\x80".to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    (any::<prop::sample::Index>(), prop_oneof![Just(0), 1usize..2, 0usize..40], bytes)
}

/// Bytes of any kind, and payloads of the corpus with a few changes.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/payloads/updates");
    let files = fs::read_dir(folder).expect("the corpus").map(|file| file.expect("a file").path());
    let updates = files.flat_map(|file| match serde_json::from_slice(&fs::read(file).expect("a payload")) {
        Ok(Value::Array(updates)) => updates,
        update => vec![update.expect("JSON")],
    });
    let corpus: Vec<Vec<u8>> = updates.map(|update| update.to_string().into_bytes()).collect();
    assert!(corpus.len() > 20, "{} payloads", corpus.len());
    let nearly = (prop::sample::select(corpus), prop::collection::vec(change(), 0..6));
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..300),
        9 => nearly.prop_map(|(bytes, changes)| changed(bytes, changes)),
    ]
}

#[test]
fn fuzzed_updates_are_read_or_refused_and_keep_their_number() {
    fuzz("updates of Telegram", &bodies(), |bytes| {
        let update = parse_update(&bytes);
        prop_assert!(!update.event.as_str().is_empty());
        let id = serde_json::from_slice::<Value>(&bytes).ok().and_then(|read| read["update_id"].as_i64());
        if id.is_some() {
            prop_assert_eq!(update.id, id);
        }
        if let Ok(inbound) = &update.content {
            prop_assert_eq!(&inbound.event, &update.event);
            prop_assert!(update.id.is_some() && !inbound.chat.as_str().is_empty());
            let stored = serde_json::to_string(inbound).expect("JSON");
            prop_assert_eq!(&serde_json::from_str::<Inbound>(&stored).expect("what was written"), inbound);
        }
        Ok(())
    });
}

#[test]
fn fuzzed_secrets_open_nothing() {
    const SECRET: &[u8] = b"a-secret_of-256-bits";
    let bot = Telegram::webhook("1:token", String::from_utf8_lossy(SECRET));
    let given = prop::collection::vec(change(), 0..3).prop_map(|changes| changed(SECRET.to_vec(), changes));
    fuzz("secrets of Telegram", &given, |given| {
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_bytes(&given) {
            headers.insert("x-telegram-bot-api-secret-token", value);
        }
        prop_assert_eq!(bot.verify(&headers, b"{}"), given == SECRET);
        Ok(())
    });
}
