//! What Messenger and Instagram post.

use botmesh_core::id::{ChatId, MessageId};
use botmesh_core::inbound::{Inbound, InboundBody, InboundMedia};
use botmesh_core::media::MediaRef;
use botmesh_core::notice::{Notice, Receipt, ReceiptOf, Stage};
use botmesh_core::webhook::WebhookError;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::event::{Event, Items, each, each_item, entries};
use crate::lenient::{degrees, id, is_set, list, millis, picked, text};
use crate::others::Others;

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    messaging: Items,
    #[serde(default)]
    standby: Items,
    #[serde(default)]
    changes: Items,
}

#[derive(Deserialize)]
struct Change {
    #[serde(default)]
    field: String,
    value: Box<RawValue>,
}

/// Whose posts they are.
pub(super) struct Account<'a> {
    /// The channel's id.
    pub(super) channel: &'static str,
    /// The page, or the account on Instagram.
    pub(super) id: &'a str,
    pub(super) app: Option<&'a str>,
    pub(super) others: &'a Others,
}

/// The items of a post that are about this account.
pub(super) fn parse(body: &[u8], account: &Account<'_>) -> Result<Vec<Event>, WebhookError> {
    let mut events = Vec::new();
    each(Some(entries(body)?), &mut events, |entry: Entry, events| {
        if let Some(of) = id(&json!({ "id": entry.id }), "id").filter(|of| of != account.id) {
            return account.others.left_out(&of, account.id);
        }
        each_item(entry.messaging, events, |item, events| read_item(item, account, events));
        each_item(entry.standby, events, |item, events| {
            let mut seen = Vec::new();
            read_item(item, account, &mut seen)?;
            events.extend(seen.into_iter().map(watched));
            Ok(())
        });
        each(entry.changes, events, |Change { field, value }: Change, events| {
            let detail = serde_json::from_str(value.get()).unwrap_or(Value::Null);
            events.push(Event::Notice(Notice::Account { event: field, detail }));
        });
    });
    Ok(events)
}

/// Another application has the thread: what is written there is not for this bot to answer.
fn watched(event: Event) -> Event {
    match event {
        Event::Inbound(inbound) => Event::Notice(Notice::Watched(inbound)),
        event => event,
    }
}

fn person(item: &Value, key: &str) -> Option<String> {
    item.get(key).and_then(|person| id(person, "id"))
}

fn read_item(item: &Value, account: &Account<'_>, events: &mut Vec<Event>) -> Result<(), String> {
    let sender =
        person(item, "sender").or_else(|| item.get("sender").and_then(|sender| id(sender, "user_ref")));
    let sender = sender.ok_or("an item of nobody")?;
    if let Some(message) = item.get("message") {
        if is_set(message, "is_echo") {
            return read_echo(item, message, account, events);
        }
        let parts = read_message(message, account)?;
        events.extend(parts.into_iter().map(|part| Event::inbound(addressed(part, &sender, item))));
        return Ok(());
    }
    for (key, stage) in [("delivery", Stage::Delivered), ("read", Stage::Read)] {
        if let Some(receipt) = item.get(key) {
            return read_receipts(receipt, stage, &sender, item, events);
        }
    }
    let inbound = read_event(item, &sender)?;
    events.push(Event::inbound(addressed(inbound, &sender, item)));
    Ok(())
}

fn addressed(mut inbound: Inbound, sender: &str, item: &Value) -> Inbound {
    inbound.chat = sender.into();
    inbound.sender = Some(botmesh_core::inbound::Participant::new(sender));
    inbound.written_at = millis(item, "timestamp");
    inbound
}

/// A message of the account itself: ours, if our app sent it, else somebody else's.
fn read_echo(
    item: &Value,
    message: &Value,
    account: &Account<'_>,
    events: &mut Vec<Event>,
) -> Result<(), String> {
    let mid: MessageId = id(message, "mid").ok_or("an echo without an id")?.into();
    let token = text(message, "metadata");
    let ours = match (account.app, id(message, "app_id")) {
        (Some(ours), Some(app)) => ours == app,
        _ => token.is_some(),
    };
    if ours {
        events.extend(token.map(|token| Event::Sent { token: token.into(), message: mid }));
        return Ok(());
    }
    if is_set(message, "is_deleted") {
        return Ok(());
    }
    let chat: ChatId = person(item, "recipient").ok_or("an echo to nobody")?.into();
    let said = text(message, "text").unwrap_or_default().to_owned();
    events.push(Event::Notice(Notice::FromMe { chat, message: mid, text: said }));
    Ok(())
}

/// A message, and as many more events as it has attachments beyond the first.
fn read_message(message: &Value, account: &Account<'_>) -> Result<Vec<Inbound>, String> {
    let mid = id(message, "mid").ok_or("a message without an id")?;
    let said = text(message, "text");
    let attachments = list(message, "attachments");
    let unsupported = |kind: &str| InboundBody::Unsupported { kind: kind.to_owned() };
    let pressed = message.get("quick_reply").and_then(|pressed| text(pressed, "payload"));
    let bodies = if is_set(message, "is_deleted") {
        let detail = json!({ "message": mid });
        vec![InboundBody::System { event: "message_deleted".to_owned(), detail }]
    } else if let Some(payload) = pressed {
        let title = said.unwrap_or_default().to_owned();
        vec![InboundBody::Interaction { id: payload.to_owned(), title }]
    } else if !attachments.is_empty() {
        let mut bodies: Vec<_> = attachments.iter().map(|attachment| attached(attachment, account)).collect();
        if let Some(text) = said {
            let only = bodies.len() == 1;
            let body = InboundBody::Text { text: text.to_owned() };
            match bodies.first_mut().and_then(InboundBody::media_mut) {
                Some(media) => media.caption = Some(text.to_owned()),
                // A link that was written has an attachment too.
                None if only => bodies = vec![body],
                None => bodies.insert(0, body),
            }
        }
        bodies
    } else if let Some(text) = said {
        vec![InboundBody::Text { text: text.to_owned() }]
    } else {
        vec![unsupported("message")]
    };
    let reply = message.get("reply_to");
    let album = (bodies.len() > 1).then(|| mid.clone());
    let event = |(number, mut body): (usize, InboundBody)| {
        let event = if number == 0 { mid.clone() } else { format!("{mid}:{number}") };
        if let Some(media) = body.media_mut() {
            media.album.clone_from(&album);
        }
        let mut inbound = Inbound::private(event, "", body);
        inbound.message = (number > 0).then(|| mid.as_str().into());
        inbound.reply_to = reply.and_then(|reply| id(reply, "mid")).map(Into::into);
        inbound.extra = extra(message);
        inbound
    };
    Ok(bodies.into_iter().enumerate().map(event).collect())
}

/// What has no place of its own: the story that was answered, the advertisement, what could not be read.
fn extra(message: &Value) -> Value {
    let mut extra = picked(message, &["referral", "is_unsupported"]);
    if let Some(story) = message.get("reply_to").and_then(|reply| reply.get("story")) {
        extra["story"] = story.clone();
    }
    let others: Vec<_> = list(message, "attachments")
        .iter()
        .filter(|attached| kind_of(attached) == Kind::Other)
        .cloned()
        .collect();
    if !others.is_empty() {
        extra["attachments"] = others.into();
    }
    extra
}

#[derive(PartialEq)]
enum Kind {
    Media,
    Location,
    Other,
}

fn kind_of(attachment: &Value) -> Kind {
    match text(attachment, "type") {
        Some("image" | "video" | "audio" | "file") => Kind::Media,
        Some("location") => Kind::Location,
        _ => Kind::Other,
    }
}

fn attached(attachment: &Value, account: &Account<'_>) -> InboundBody {
    let kind = text(attachment, "type").unwrap_or("attachment");
    let unsupported = || InboundBody::Unsupported { kind: kind.to_owned() };
    let payload = attachment.get("payload").unwrap_or(&Value::Null);
    match kind_of(attachment) {
        Kind::Media => {
            let Some(url) = text(payload, "url") else { return unsupported() };
            let token = json!({ "url": url });
            let media = InboundMedia::new(MediaRef { provider: account.channel.to_owned(), token });
            match kind {
                "image" if payload.get("sticker_id").is_some() => InboundBody::Sticker(media),
                "image" => InboundBody::Image(media),
                "video" => InboundBody::Video(media),
                "audio" => InboundBody::Audio(media),
                _ => InboundBody::Document(media),
            }
        }
        Kind::Location => {
            let place = payload.get("coordinates").unwrap_or(&Value::Null);
            match (degrees(place, "lat"), degrees(place, "long")) {
                (Some(latitude), Some(longitude)) => {
                    let name = text(attachment, "title").map(str::to_owned);
                    InboundBody::Location { latitude, longitude, name }
                }
                _ => unsupported(),
            }
        }
        Kind::Other => unsupported(),
    }
}

/// Messenger tells up to when, Instagram which one.
fn read_receipts(
    receipt: &Value,
    stage: Stage,
    chat: &str,
    item: &Value,
    events: &mut Vec<Event>,
) -> Result<(), String> {
    let named = list(receipt, "mids").iter().filter_map(|mid| mid.as_str().map(str::to_owned));
    let named: Vec<_> = named.chain(id(receipt, "mid")).map(|mid| ReceiptOf::Message(mid.into())).collect();
    let up_to = millis(receipt, "watermark").map(ReceiptOf::UpTo);
    if named.is_empty() && up_to.is_none() {
        return Err("a receipt of no message".to_owned());
    }
    let receipts = named.into_iter().chain(up_to).map(|of| {
        let at = millis(item, "timestamp");
        Event::Notice(Notice::Receipt(Receipt { chat: chat.into(), of, stage, at, failure: None }))
    });
    events.extend(receipts);
    Ok(())
}

/// Everything else that a user does.
fn read_event(item: &Value, sender: &str) -> Result<Inbound, String> {
    let at = item.get("timestamp").map_or_else(|| "0".to_owned(), Value::to_string);
    if let Some(postback) = item.get("postback") {
        let title = text(postback, "title").unwrap_or_default();
        let payload = text(postback, "payload").unwrap_or(title);
        let event = id(postback, "mid").unwrap_or_else(|| format!("postback:{sender}:{at}"));
        let body = InboundBody::Interaction { id: payload.to_owned(), title: title.to_owned() };
        let mut inbound = Inbound::private(event, "", body);
        inbound.extra = picked(postback, &["referral"]);
        return Ok(inbound);
    }
    if let Some(reaction) = item.get("reaction") {
        let message = id(reaction, "mid").ok_or("a reaction to nothing")?;
        let taken_back = text(reaction, "action") == Some("unreact");
        let emoji = text(reaction, "emoji").or_else(|| text(reaction, "reaction"));
        let emoji = emoji.filter(|_| !taken_back).map(str::to_owned);
        let event = format!("reaction:{message}:{at}");
        return Ok(Inbound::private(event, "", InboundBody::Reaction { message: message.into(), emoji }));
    }
    if let Some(edit) = item.get("message_edit") {
        let message = id(edit, "mid").ok_or("an edit of nothing")?;
        let event =
            format!("{message}:{}", edit.get("num_edit").map_or_else(|| at.clone(), Value::to_string));
        let text = text(edit, "text").unwrap_or_default().to_owned();
        return Ok(Inbound::private(event, "", InboundBody::Edit { message: message.into(), text }));
    }
    let about = ["sender", "recipient", "timestamp"];
    let others = || item.as_object().into_iter().flatten().filter(|(key, _)| !about.contains(&key.as_str()));
    // What happened is an object; beside it may be who had the thread (`hop_context`), or a flag.
    let what = others().find(|(_, value)| value.is_object()).or_else(|| others().next());
    let (event, detail) = what.ok_or("an item that says nothing")?;
    let body = InboundBody::System { event: event.clone(), detail: detail.clone() };
    Ok(Inbound::private(format!("{event}:{sender}:{at}"), "", body))
}
