//! Posts that fit published descriptions of Meta's webhooks, which `tests/described/graph.mjs` of `botmesh-testing` makes at random.

use std::collections::BTreeMap;
use std::fs;

use botmesh_core::inbound::{Inbound, InboundBody};
use botmesh_core::notice::{Notice, ReceiptOf};
use botmesh_testing::{FakeGraph, GraphProduct};
use serde_json::{Value, json};

use crate::support::{Stage, Told, instagram, messenger, whatsapp};

/// What the bot gets of an item: the name of the body, or `system` and what happened.
fn body(inbound: &Inbound) -> String {
    match &inbound.body {
        InboundBody::System { event, .. } => format!("system {event}"),
        body => {
            let body = format!("{body:?}");
            body.split([' ', '(', '{']).next().unwrap_or_default().to_lowercase()
        }
    }
}

/// What was told, by the id that it must keep; `None` for what is only a part of something else.
fn label(told: &Told) -> Option<String> {
    let of_inbound = |how: &str, inbound: &Inbound| {
        let stored = serde_json::to_string(inbound).expect("JSON");
        assert_eq!(serde_json::from_str::<Inbound>(&stored).expect("what was written"), *inbound);
        assert!(!inbound.chat.as_str().is_empty(), "{inbound:?}");
        inbound.message.is_none().then(|| format!("{how} {}", inbound.event))
    };
    match told {
        Told::Event(inbound) => of_inbound("event", inbound),
        Told::Notice(Notice::Watched(inbound)) => of_inbound("watched", inbound),
        Told::Notice(Notice::FromMe { message, .. }) => Some(format!("from me {message}")),
        Told::Notice(Notice::Receipt(receipt)) => Some(match &receipt.of {
            ReceiptOf::Message(message) => format!("receipt {message}"),
            ReceiptOf::UpTo(time) => format!("receipt up to {}", time.as_millis()),
            of => panic!("{of:?}"),
        }),
        Told::Notice(Notice::Account { event, .. }) => Some(format!("account {event}")),
        Told::Sent(token, message) => Some(format!("sent {token} {message}")),
        // Before the event that says so.
        Told::Moved(_) => None,
        // The types allow it.
        Told::Poison(_, problem) if problem == "a status of a message to nobody" => {
            Some("to nobody".to_owned())
        }
        other => panic!("{other:?}"),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value[key].as_str().filter(|text| !text.is_empty())
}

/// Makes the posts about the bot's number, and says what it must hear.
fn whatsapp_labels(post: &mut Value, number: &mut usize) -> Vec<String> {
    let mut labels = Vec::new();
    let entries = post["entry"].as_array_mut().expect("entries");
    for change in entries.iter_mut().flat_map(|entry| entry["changes"].as_array_mut().expect("changes")) {
        let is_ours = !number.is_multiple_of(5);
        *number += 1;
        let ids = [FakeGraph::OTHER_PHONE_NUMBER_ID, FakeGraph::PHONE_NUMBER_ID];
        change["value"]["metadata"]["phone_number_id"] = json!(ids[usize::from(is_ours)]);
        let mut change_labels = Vec::new();
        let keys: &[&str] = match change["field"].as_str() {
            Some("messages") => &["messages", "statuses"],
            field => {
                change_labels.push(format!("account {}", field.expect("a field")));
                &[]
            }
        };
        let has_contacts = change["value"]["contacts"].as_array().is_some_and(|all| !all.is_empty());
        for key in keys {
            for item in change["value"][key].as_array_mut().into_iter().flatten() {
                *number += 1;
                let id = format!("{}{number}", item["id"].as_str().expect("an id"));
                item["id"] = json!(id);
                match *key {
                    "messages" => change_labels.push(format!("event {id}")),
                    _ => {
                        let token = text(item, "biz_opaque_callback_data");
                        change_labels.extend(token.map(|token| format!("sent {token} {id}")));
                        let named = ["recipient_user_id", "recipient_id", "recipient_parent_user_id"];
                        let is_named = has_contacts || named.iter().any(|key| text(item, key).is_some());
                        change_labels.push(if is_named {
                            format!("receipt {id}")
                        } else {
                            "to nobody".to_owned()
                        });
                    }
                }
            }
        }
        labels.extend(change_labels.into_iter().filter(|_| is_ours));
    }
    labels
}

/// Makes the posts about the bot's page, and says what it must hear.
fn page_labels(post: &mut Value, account: &str, number: &mut usize) -> Vec<String> {
    let mut labels = Vec::new();
    for entry in post["entry"].as_array_mut().expect("entries") {
        entry["id"] = json!(account);
        for (key, how) in [("messaging", "event"), ("standby", "watched")] {
            for item in entry[key].as_array_mut().into_iter().flatten() {
                *number += 1;
                for part in ["message", "postback"] {
                    if let Some(mid) = item[part]["mid"].as_str() {
                        item[part]["mid"] = json!(format!("{mid}{number}"));
                    }
                }
                if item.get("read").is_some() {
                    // Of one chat, an earlier watermark after a later one is no news.
                    let sender = item["sender"]["id"].as_str().expect("somebody");
                    item["sender"]["id"] = json!(format!("{sender}:{number}"));
                }
                labels.push(page_label(item, how));
            }
        }
    }
    labels
}

fn page_label(item: &Value, how: &str) -> String {
    let (sender, at) = (item["sender"]["id"].as_str().expect("somebody"), &item["timestamp"]);
    let part = |key: &str| item.get(key).map(|part| (part, part["mid"].as_str().unwrap_or_default()));
    if let Some((message, mid)) = part("message") {
        return match (message["is_echo"] == true, message.get("app_id"), text(message, "metadata")) {
            (false, ..) => format!("{how} {mid}"),
            (true, None, Some(token)) => format!("sent {token} {mid}"),
            (true, ..) => format!("from me {mid}"),
        };
    }
    if let Some((edit, mid)) = part("message_edit") {
        return format!("{how} {mid}:{}", edit["num_edit"]);
    }
    if let Some((_, mid)) = part("reaction") {
        return format!("{how} reaction:{mid}:{at}");
    }
    if let Some((read, _)) = part("read") {
        return format!("receipt up to {}", read["watermark"]);
    }
    match part("postback") {
        Some((_, "")) => format!("{how} postback:{sender}:{at}"),
        Some((_, mid)) => format!("{how} {mid}"),
        None => format!("{how} messaging_feedback:{sender}:{at}"),
    }
}

type Seen = BTreeMap<String, usize>;

async fn check(
    stage: &Stage,
    product: GraphProduct,
    posts: &[Value],
    seen: &mut Seen,
    mut labels: impl FnMut(&mut Value, &mut usize) -> Vec<String>,
) {
    let (mut number, mut items) = (0, 0);
    for post in posts {
        let mut post = post["body"].clone();
        let mut expected = labels(&mut post, &mut number);
        assert_eq!(stage.graph.post(product, &post).await, Some(200), "{post}");
        let told = stage.diary.take();
        let mut heard: Vec<_> = told.iter().filter_map(label).collect();
        expected.sort();
        heard.sort();
        assert_eq!(heard, expected, "{post}, of which came {told:?}");
        items += expected.len();
        for told in &told {
            let body = match told {
                Told::Event(inbound) | Told::Notice(Notice::Watched(inbound)) => body(inbound),
                other => {
                    let label = label(other).unwrap_or_default();
                    label.split(' ').next().unwrap_or_default().to_owned()
                }
            };
            *seen.entry(body).or_default() += 1;
        }
    }
    println!("{product:?}: {} posts, {items} items", posts.len());
    assert!(items > posts.len(), "they say nothing");
}

#[tokio::test]
#[ignore = "`cargo xtask test --only described` makes the posts and runs it"]
async fn every_item_of_the_descriptions_is_told_under_its_id() {
    let file = std::env::var("BOTMESH_POSTS").expect("BOTMESH_POSTS names a file with a post on each line");
    let posts = fs::read_to_string(file).expect("the posts");
    let posts: Vec<Value> = posts.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |product: &str| -> Vec<_> {
        posts.iter().filter(|post| post["product"] == product).cloned().collect()
    };
    let mut seen = Seen::new();
    let (stage, _channel) = whatsapp().await;
    check(&stage, GraphProduct::WhatsApp, &of("whatsapp"), &mut seen, whatsapp_labels).await;
    let (stage, _channel) = messenger().await;
    let labels = |post: &mut Value, number: &mut usize| page_labels(post, FakeGraph::PAGE_ID, number);
    check(&stage, GraphProduct::Messenger, &of("messenger"), &mut seen, labels).await;
    let (stage, _channel) = instagram().await;
    let labels = |post: &mut Value, number: &mut usize| page_labels(post, FakeGraph::ACCOUNT_ID, number);
    check(&stage, GraphProduct::Instagram, &of("instagram"), &mut seen, labels).await;
    println!("{seen:?}");
    for body in ["text", "image", "interaction", "reaction", "location", "contact", "edit", "unsupported"] {
        assert!(seen.contains_key(body), "no {body}");
    }
}
