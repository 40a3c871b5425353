//! Updates that fit the published description of the Bot API, which `tests/described/updates.mjs` makes at random.

use std::collections::BTreeMap;
use std::fs;

use botmesh_core::inbound::{Inbound, InboundBody};
use botmesh_telegram::{KINDS, parse_update};
use serde_json::{Map, Value};

/// What the bot gets of an update: the name of the body, or `system` and what happened.
fn body(inbound: &Inbound) -> String {
    match &inbound.body {
        InboundBody::System { event, .. } => format!("system {event}"),
        InboundBody::Unsupported { .. } => "unsupported".to_owned(),
        body => {
            let body = format!("{body:?}");
            body.split([' ', '(', '{']).next().unwrap_or_default().to_lowercase()
        }
    }
}

#[test]
#[ignore = "`cargo xtask test --only described` makes the updates and runs it"]
fn every_update_of_the_description_is_read_and_keeps_its_number() {
    let file =
        std::env::var("BOTMESH_UPDATES").expect("BOTMESH_UPDATES names a file with an update on each line");
    let updates = fs::read_to_string(file).expect("the updates");
    let mut seen: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for line in updates.lines() {
        let update: Map<String, Value> = serde_json::from_str(line).expect("JSON");
        let kind = update.keys().find(|name| *name != "update_id").expect("a kind");
        let read = parse_update(line.as_bytes());
        assert_eq!(read.id, update["update_id"].as_i64(), "{line}");
        assert_eq!(read.event.as_str(), update["update_id"].to_string(), "{line}");
        let inbound = read.content.unwrap_or_else(|problem| panic!("{problem}: {line}"));
        assert_eq!(inbound.event, read.event);
        assert!(!inbound.chat.as_str().is_empty() && inbound.chat.as_str() != "unknown", "{line}");
        assert!(KINDS.contains(&kind.as_str()), "`{kind}` is not asked for: {line}");
        let stored = serde_json::to_string(&inbound).expect("JSON");
        assert_eq!(serde_json::from_str::<Inbound>(&stored).expect("what was written"), inbound, "{line}");
        *seen.entry(kind.clone()).or_default().entry(body(&inbound)).or_default() += 1;
    }
    for (kind, bodies) in &seen {
        let bodies: Vec<_> = bodies.iter().map(|(body, count)| format!("{count} {body}")).collect();
        println!("{kind}: {}", bodies.join(", "));
    }
    assert!(seen.len() >= 25, "{} kinds", seen.len());
}
