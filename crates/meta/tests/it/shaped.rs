//! Posts that Meta may send, at random, made after the shapes of the payloads here: no package carries Meta's own description of
//! them (see `described.rs` for what others wrote down). Whatever they hold together, each item reaches the bot, under its own id.

use botmesh_core::inbound::{Inbound, InboundBody};
use botmesh_core::notice::{Notice, ReceiptOf};
use botmesh_testing::{FakeGraph, GraphProduct};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::support::{Stage, Told, instagram, messenger, whatsapp};

/// Fields of an item by their names.
type Fields = Vec<(&'static str, Value)>;

fn word() -> impl Strategy<Value = Value> {
    prop_oneof![".{1,20}", Just("👨‍👩‍👧 é".to_owned())].prop_map(Value::from)
}

/// One of several kinds of content, by what the item calls it.
fn one_of(kinds: Vec<(&'static str, BoxedStrategy<Value>)>) -> impl Strategy<Value = (&'static str, Value)> {
    let kinds =
        kinds.into_iter().map(|(kind, content)| content.prop_map(move |content| (kind, content)).boxed());
    proptest::strategy::Union::new(kinds)
}

fn fixed(value: Value) -> BoxedStrategy<Value> {
    Just(value).boxed()
}

/// What a message of WhatsApp holds under the name of its type.
fn whatsapp_content() -> impl Strategy<Value = (&'static str, Value)> {
    let file = (word(), option::of(word()), option::of(word())).prop_map(|(id, caption, name)| {
        json!({ "id": id, "mime_type": "application/pdf", "sha256": "x=", "caption": caption, "filename": name })
    });
    let file = file.boxed();
    let reply = || (word(), word()).prop_map(|(id, title)| json!({ "id": id, "title": title }));
    let choice = prop_oneof![
        reply().prop_map(|reply| json!({ "type": "button_reply", "button_reply": reply })),
        reply().prop_map(|reply| json!({ "type": "list_reply", "list_reply": reply })),
        word().prop_map(|answers| {
            let form = json!({ "name": "flow", "body": "Sent", "response_json": answers });
            json!({ "type": "nfm_reply", "nfm_reply": form })
        }),
    ];
    let place = (-90.0..90.0, -180.0..180.0, option::of(word()))
        .prop_map(|(lat, long, name)| json!({ "latitude": lat, "longitude": long, "name": name }));
    let reaction = (word(), select(vec!["", "❤", "👍🏽"]))
        .prop_map(|(id, emoji)| json!({ "message_id": id, "emoji": emoji }));
    let card = vec(word(), 0..3).prop_map(|phones| {
        let phones: Vec<_> = phones.into_iter().map(|phone| json!({ "phone": phone })).collect();
        json!([{ "name": { "formatted_name": "Ana" }, "phones": phones }])
    });
    let mut kinds = vec![
        ("text", word().prop_map(|text| json!({ "body": text })).boxed()),
        ("interactive", choice.boxed()),
        ("location", place.boxed()),
        ("reaction", reaction.boxed()),
        ("contacts", card.boxed()),
        ("button", (word(), word()).prop_map(|(a, b)| json!({ "payload": a, "text": b })).boxed()),
        ("order", fixed(json!({ "catalog_id": "354", "product_items": [{ "quantity": 2 }] }))),
        ("revoke", fixed(json!({ "original_message_id": "wamid.ORIG" }))),
        ("system", fixed(json!({ "body": "changed", "wa_id": "1555", "type": "user_changed_number" }))),
        ("unsupported", fixed(Value::Null)),
        ("hologram", word().prop_map(|id| json!({ "id": id })).boxed()),
    ];
    kinds.extend(["image", "audio", "video", "document", "sticker"].map(|kind| (kind, file.clone())));
    one_of(kinds)
}

/// A message of WhatsApp without its id.
fn whatsapp_message() -> impl Strategy<Value = Fields> {
    let context = option::of(word().prop_map(|id| json!({ "from": "15550009999", "id": id })));
    let from = select(vec![(true, true), (true, false), (false, true)]);
    (whatsapp_content(), context, from, any::<bool>()).prop_map(
        |((kind, content), context, (phone, user), group)| {
            let mut fields = vec![("type", kind.into()), ("timestamp", "1795950000".into())];
            fields.extend((!content.is_null()).then_some((kind, content)));
            fields.extend(context.map(|context| ("context", context)));
            fields.extend(phone.then(|| ("from", "15551234567".into())));
            fields.extend(user.then(|| ("from_user_id", "US.13491208655302741918".into())));
            fields.extend(group.then(|| ("group_id", "G1".into())));
            fields
        },
    )
}

fn whatsapp_status() -> impl Strategy<Value = Fields> {
    let stage = select(vec!["sent", "delivered", "read", "played", "failed", "accepted"]);
    (stage, any::<bool>(), any::<bool>()).prop_map(|(stage, failed, user)| {
        let mut fields = vec![("status", stage.into()), ("timestamp", "1795950010".into())];
        fields.push(("recipient_id", "15551234567".into()));
        fields.extend(user.then(|| ("recipient_user_id", "US.1".into())));
        fields.extend(failed.then(|| ("errors", json!([{ "code": 131_049, "title": "Not delivered" }]))));
        fields
    })
}

/// An item of Messenger or Instagram without its id, and where the id belongs.
fn page_item() -> impl Strategy<Value = (&'static str, Value)> {
    let attachment = prop_oneof![
        select(vec!["image", "video", "audio", "file", "story_mention", "ig_reel", "hologram"])
            .prop_map(|kind| json!({ "type": kind, "payload": { "url": "https://lookaside.fbsbx.com/x" } })),
        (-90.0..90.0, -180.0..180.0).prop_map(|(lat, long)| {
            json!({ "type": "location", "payload": { "coordinates": { "lat": lat, "long": long } } })
        }),
        Just(json!({ "type": "fallback", "title": "t", "payload": null })),
    ];
    let message = (option::of(word()), vec(attachment, 0..4), select(vec![0, 1, 2, 3, 4])).prop_map(
        |(text, attachments, extra)| {
            let mut message = json!({ "text": text, "attachments": attachments });
            match extra {
                1 => message["quick_reply"] = json!({ "payload": "YES" }),
                2 => message["reply_to"] = json!({ "mid": "m_OTHER" }),
                3 => message["is_deleted"] = true.into(),
                4 => message["is_unsupported"] = true.into(),
                _ => {}
            }
            message
        },
    );
    let postback = word().prop_map(|title| json!({ "title": title, "payload": "GET_STARTED" }));
    let read = fixed(json!({ "watermark": 1_795_950_000_300_i64 }));
    one_of(vec![
        ("message", message.boxed()),
        ("postback", postback.boxed()),
        ("delivery", read.clone()),
        ("read", read),
    ])
}

fn object(fields: Fields, id: &str) -> Value {
    let named = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
    Value::Object(named.chain([("id".to_owned(), id.into())]).collect())
}

/// Whether a chat and, for what can be answered, words or a kind are known of the event.
fn is_whole(inbound: &Inbound) -> bool {
    let named = match &inbound.body {
        InboundBody::Unsupported { kind } => !kind.is_empty(),
        _ => true,
    };
    let stored = serde_json::to_string(inbound).expect("JSON");
    let read: Inbound = serde_json::from_str(&stored).expect("what was written");
    named && !inbound.chat.as_str().is_empty() && read == *inbound
}

fn posted(stage: &Stage, product: GraphProduct, body: &Value) -> Vec<Told> {
    let post = stage.graph.post(product, body);
    let status = block_in_place(|| Handle::current().block_on(post));
    assert_eq!(status, Some(200), "{body}");
    stage.diary.take()
}

/// The events, and the messages of which something became known; nothing else was told.
fn sorted(told: Vec<Told>) -> Result<(Vec<Inbound>, Vec<String>), TestCaseError> {
    let (mut events, mut receipts) = (Vec::new(), Vec::new());
    for told in told {
        match told {
            Told::Event(inbound) => {
                prop_assert!(is_whole(&inbound), "{:?}", inbound);
                events.push(*inbound);
            }
            Told::Notice(Notice::Receipt(receipt)) => receipts.push(match receipt.of {
                ReceiptOf::Message(message) => message.to_string(),
                of => format!("{of:?}"),
            }),
            // What the event after it says as well.
            Told::Moved(moved) => {
                prop_assert!(!moved.from.as_str().is_empty() && !moved.to.as_str().is_empty(), "{:?}", moved);
            }
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        }
    }
    Ok((events, receipts))
}

fn check<S: Strategy>(strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() };
    TestRunner::new(config).run(strategy, test).expect("each item reaches the bot");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_and_status_of_a_post_of_whatsapp_reaches_the_bot_under_its_wamid() {
    let (stage, _channel) = whatsapp().await;
    let post = std::cell::Cell::new(0);
    let change = (vec(whatsapp_message(), 0..4), vec(whatsapp_status(), 0..4));
    check(&vec(vec(change, 1..3), 1..4), |entries| {
        post.set(post.get() + 1);
        let (mut messages, mut statuses) = (Vec::new(), Vec::new());
        let item = |ids: &mut Vec<String>, fields: Fields| {
            let id = format!(
                "wamid.{}-{}{}",
                post.get(),
                if fields[0].0 == "type" { 'm' } else { 's' },
                ids.len()
            );
            ids.push(id);
            object(fields, &ids[ids.len() - 1])
        };
        let mut change = |(said, known): (Vec<Fields>, Vec<Fields>)| {
            let said: Vec<_> = said.into_iter().map(|fields| item(&mut messages, fields)).collect();
            let known: Vec<_> = known.into_iter().map(|fields| item(&mut statuses, fields)).collect();
            let metadata = json!({ "phone_number_id": FakeGraph::PHONE_NUMBER_ID });
            let contact = json!({ "profile": { "name": "Ana" }, "wa_id": "15551234567" });
            let value = json!({
                "messaging_product": "whatsapp", "metadata": metadata, "contacts": [contact], "messages": said,
                "statuses": known,
            });
            json!({ "field": "messages", "value": value })
        };
        let entry = |(number, changes): (usize, Vec<_>)| {
            let changes: Vec<_> = changes.into_iter().map(&mut change).collect();
            json!({ "id": number.to_string(), "changes": changes })
        };
        let entries: Vec<_> = entries.into_iter().enumerate().map(entry).collect();
        let body = json!({ "object": "whatsapp_business_account", "entry": entries });
        let (events, receipts) = sorted(posted(&stage, GraphProduct::WhatsApp, &body))?;
        let events: Vec<_> = events.iter().map(|inbound| inbound.event.to_string()).collect();
        prop_assert_eq!(events, messages);
        prop_assert_eq!(receipts, statuses);
        Ok(())
    });
}

fn check_page(stage: &Stage, product: GraphProduct, account: &str) {
    let (post, marks) = (std::cell::Cell::new(0), std::cell::Cell::new(0_i64));
    check(&vec(vec(page_item(), 1..4), 1..3), |entries| {
        post.set(post.get() + 1);
        let (mut mids, mut receipts) = (Vec::new(), 0);
        let mut item = |(kind, mut content): (&'static str, Value)| {
            match kind {
                "message" | "postback" => {
                    mids.push(format!("m_{}-{}", post.get(), mids.len()));
                    content["mid"] = json!(mids.last());
                }
                _ => {
                    receipts += 1;
                    // A watermark that was told is no news.
                    marks.set(marks.get() + 1);
                    content["watermark"] = json!(1_795_950_000_300_i64 + marks.get());
                }
            }
            json!({ "sender": { "id": "2001" }, "recipient": { "id": account }, "timestamp": 1_795_950_000_100_i64, kind: content })
        };
        let entries: Vec<_> = entries
            .into_iter()
            .map(|items| json!({ "id": account, "messaging": items.into_iter().map(&mut item).collect::<Vec<_>>() }))
            .collect();
        let body = json!({ "object": "page", "entry": entries });
        let (events, known) = sorted(posted(stage, product, &body))?;
        prop_assert_eq!(known.len(), receipts);
        // Each attachment after the first is an event of its own, `mid:1` and so on.
        let firsts: Vec<_> = events
            .iter()
            .map(|inbound| inbound.event.as_str())
            .filter(|event| !event.contains(':'))
            .collect();
        prop_assert_eq!(firsts, mids);
        Ok(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn each_item_of_a_post_of_messenger_reaches_the_bot_under_its_mid() {
    let (stage, _channel) = messenger().await;
    check_page(&stage, GraphProduct::Messenger, FakeGraph::PAGE_ID);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_item_of_a_post_of_instagram_reaches_the_bot_under_its_mid() {
    let (stage, _channel) = instagram().await;
    check_page(&stage, GraphProduct::Instagram, FakeGraph::ACCOUNT_ID);
}
