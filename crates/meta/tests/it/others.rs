//! Posts about somebody else's number or page: a bot that was made with the wrong id looks as if it ran.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, Once, PoisonError};

use botmesh_testing::{FakeGraph, GraphProduct};
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::{instagram, messenger, whatsapp};

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collector;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn warnings_of(id: &str) -> Vec<String> {
    let warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    warnings.iter().filter(|warning| warning.contains(id)).cloned().collect()
}

#[tokio::test]
async fn posts_about_an_id_that_is_not_the_bots_are_warned_of_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Collector).expect("the only one"));
    let page = |id: &str| json!({ "object": "page", "entry": [{ "id": id, "messaging": [] }] });
    let number = json!({ "metadata": { "phone_number_id": "770001" }, "messages": [] });
    let number = json!({ "entry": [{ "id": "1", "changes": [{ "field": "messages", "value": number }] }] });
    let (of_number, _whatsapp) = whatsapp().await;
    let (of_page, _messenger) = messenger().await;
    let (of_account, _instagram) = instagram().await;
    for (stage, product, body, id, own) in [
        (of_number, GraphProduct::WhatsApp, number, "770001", FakeGraph::PHONE_NUMBER_ID),
        (of_page, GraphProduct::Messenger, page("770002"), "770002", FakeGraph::PAGE_ID),
        (of_account, GraphProduct::Instagram, page("770003"), "770003", FakeGraph::ACCOUNT_ID),
    ] {
        for _ in 0..2 {
            assert_eq!(stage.graph.post(product, &body).await, Some(200));
        }
        let warnings = warnings_of(id);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(own), "{warnings:?}");
    }
}
