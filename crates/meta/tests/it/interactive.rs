//! Forms and lists of WhatsApp, as Meta takes them.

use botmesh_core::content::{Button, Content, ContentBody};
use botmesh_core::error::ErrorClass;
use botmesh_meta::{WhatsAppFlow, WhatsAppList};
use serde_json::{Value, json};

use crate::support::whatsapp;
use crate::whatsapp::{send, sent};

#[tokio::test]
async fn a_form_goes_out_by_its_id_or_its_name() {
    let (stage, channel) = whatsapp().await;
    let form = WhatsAppFlow::by_name("visit", "When?", "Choose")
        .with_token("visit:42")
        .with_screen("DAYS")
        .with_data(json!({ "days": ["Monday"] }));
    let expected = json!({
        "type": "flow", "body": { "text": "When?" }, "action": { "name": "flow", "parameters": {
            "flow_message_version": "3", "flow_name": "visit", "flow_cta": "Choose", "flow_token": "visit:42",
            "flow_action_payload": { "screen": "DAYS", "data": { "days": ["Monday"] } },
        } },
    });
    assert_eq!(sent(&stage, &channel, form).await["interactive"], expected);
    let form = WhatsAppFlow::by_id("1197715005513101", "When?", "Choose one of all the days").with_draft();
    let parameters =
        sent(&stage, &channel, form.with_endpoint()).await["interactive"]["action"]["parameters"].clone();
    let expected = json!({
        "flow_message_version": "3", "flow_id": "1197715005513101", "flow_cta": "Choose one of all t…",
        "mode": "draft", "flow_action": "data_exchange",
    });
    assert_eq!(parameters, expected);
}

/// What a person reads of them, as in logs and transcripts.
#[test]
fn a_form_and_a_list_are_read_as_their_text() {
    for content in [
        Content::from(WhatsAppFlow::by_id("1", "When?", "Choose")),
        WhatsAppList::new("When?", "Choose").into(),
    ] {
        let ContentBody::Native { channel, text, .. } = content.body else { panic!("{content:?}") };
        assert_eq!((&*channel, &*text), ("whatsapp", "When?"));
    }
}

#[tokio::test]
async fn a_form_that_meta_would_refuse_is_refused() {
    let (_stage, channel) = whatsapp().await;
    let form = || WhatsAppFlow::by_id("1", "When?", "Choose");
    for wrong in [
        WhatsAppFlow::by_id("", "When?", "Choose"),
        WhatsAppFlow::by_id("1", "", "Choose"),
        WhatsAppFlow::by_id("1", "x".repeat(1025), "Choose"),
        WhatsAppFlow::by_id("1", "When?", ""),
        form().with_token(""),
        form().with_data(json!({})),
        form().with_data(json!("Monday")),
        form().with_screen(""),
        form().with_screen("DAYS").with_endpoint(),
    ] {
        let error = send(&channel, "US.1", wrong.clone()).await.expect_err("a form that is wrong");
        assert!(
            matches!(error.class, ErrorClass::Rejected | ErrorClass::PayloadTooLarge),
            "{wrong:?}: {error}"
        );
    }
    send(&channel, "US.1", form()).await.expect("a form");
}

fn list(sections: &[(&str, usize)]) -> WhatsAppList {
    let choices = |section: usize, count: usize| {
        (0..count).map(move |n| {
            Button::new(format!("{section}:{n}"), format!("Choice {n} of section {section} and more"))
        })
    };
    sections
        .iter()
        .enumerate()
        .fold(WhatsAppList::new("When?", "Choose"), |list, (number, (title, count))| {
            list.with_section(title, choices(number, *count))
        })
}

#[tokio::test]
async fn choices_go_out_in_groups() {
    let (stage, channel) = whatsapp().await;
    let body = sent(&stage, &channel, list(&[("Morning", 4), ("Afternoon", 6)])).await;
    let sections = &body["interactive"]["action"]["sections"];
    let titles: Vec<&Value> = sections.as_array().expect("groups").iter().map(|of| &of["title"]).collect();
    assert_eq!(titles, [&json!("Morning"), &json!("Afternoon")]);
    let expected = json!({
        "id": "1:5", "title": "Choice 5 of section 1 a…", "description": "Choice 5 of section 1 and more",
    });
    assert_eq!(sections[1]["rows"][5], expected);
    for wrong in [
        list(&[]),
        list(&[("Morning", 4), ("", 6)]),
        list(&[("Morning", 4), ("Noon", 7)]),
        list(&[("Noon", 0)]),
    ] {
        send(&channel, "US.1", wrong).await.expect_err("a list that is wrong");
    }
}
