//! What the WhatsApp Cloud API posts.

mod content;

use botmesh_core::id::{ChatId, ParticipantId};
use botmesh_core::inbound::{Inbound, InboundBody, Participant};
use botmesh_core::notice::{DeliveryFailure, Moved, Notice, Receipt, ReceiptOf, Stage};
use botmesh_core::webhook::WebhookError;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::address::{group_chat, is_number};
use crate::event::{Event, Items, each, each_item, entries};
use crate::graph::refusal::{Product, Refusal};
use crate::lenient::{id, list, seconds, text};
use crate::others::Others;

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    changes: Items,
}

#[derive(Deserialize)]
struct Change {
    #[serde(default)]
    field: String,
    value: Box<RawValue>,
}

#[derive(Deserialize)]
struct About {
    metadata: Option<Value>,
}

#[derive(Deserialize)]
struct Changed {
    #[serde(default)]
    contacts: Items,
    #[serde(default)]
    messages: Items,
    #[serde(default)]
    message_echoes: Items,
    #[serde(default)]
    statuses: Items,
    #[serde(default)]
    errors: Items,
    #[serde(default)]
    user_id_update: Items,
}

/// The items of a post that are about this phone number, and about no number at all.
pub(crate) fn parse(body: &[u8], number: &str, others: &Others) -> Result<Vec<Event>, WebhookError> {
    let mut events = Vec::new();
    each(Some(entries(body)?), &mut events, |entry: Entry, events| {
        each(entry.changes, events, |change: Change, events| read_change(change, number, others, events));
    });
    Ok(events)
}

fn read_change(change: Change, number: &str, others: &Others, events: &mut Vec<Event>) {
    let Change { field, value } = change;
    let of = serde_json::from_str::<About>(value.get())
        .ok()
        .and_then(|about| id(&about.metadata?, "phone_number_id"));
    if let Some(of) = of.filter(|of| of != number) {
        return others.left_out(&of, number);
    }
    if !matches!(&*field, "messages" | "smb_message_echoes" | "user_id_update") {
        let detail = serde_json::from_str(value.get()).unwrap_or(Value::Null);
        return events.push(Event::Notice(Notice::Account { event: field, detail }));
    }
    let changed: Changed = match serde_json::from_str(value.get()) {
        Ok(changed) => changed,
        Err(error) => return events.push(Event::unreadable(value.get(), error.to_string())),
    };
    let contacts = changed.contacts.unwrap_or_default();
    let contacts: Vec<Value> =
        contacts.iter().filter_map(|raw| serde_json::from_str(raw.get()).ok()).collect();
    each_item(changed.messages, events, |message, events| {
        push(read_message(message, &contacts)?, events);
        Ok(())
    });
    each_item(changed.message_echoes, events, |message, events| {
        events.push(Event::Notice(read_echo(message)?));
        Ok(())
    });
    each_item(changed.statuses, events, |status, events| read_status(status, &contacts, events));
    each_item(changed.errors, events, |error, events| {
        let problem = Refusal::of(error).ok_or("an error without a code")?;
        let (code, detail) = (Some(problem.code()), problem.message().to_owned());
        events.push(Event::Notice(Notice::Problem { code, detail }));
        Ok(())
    });
    each_item(changed.user_id_update, events, |update, events| {
        push(read_user_id_update(update)?, events);
        Ok(())
    });
}

/// The event, and before it what it says of a user who has another id now. That their number is another one comes after it: the
/// event tells whose the former number was.
fn push(inbound: Inbound, events: &mut Vec<Event>) {
    let (of_user, of_number) = moves(&inbound).unzip();
    events.extend(of_user.map(Event::Moved));
    events.push(Event::inbound(inbound));
    events.extend(of_number.flatten().map(Event::Moved));
}

/// From the id that the user had to the one that they have, and so with their number: a bot may write to either.
fn moves(inbound: &Inbound) -> Option<(Moved, Option<Moved>)> {
    const EVENTS: [&str; 3] = ["user_changed_number", "user_changed_user_id", "customer_changed_number"];
    let InboundBody::System { event, detail } = &inbound.body else { return None };
    let (from, to) = text(detail, "from").zip(text(detail, "to"))?;
    if !EVENTS.contains(&event.as_str()) {
        return None;
    }
    let aliases = inbound.sender.iter().flat_map(|sender| &sender.aliases);
    let before = aliases.map(ParticipantId::as_str).find(|alias| is_number(alias));
    let now = id(detail, "wa_id").filter(|now| is_number(now) && before.is_some_and(|before| before != now));
    let moved = |from: &str, to: &str| Moved { from: from.into(), to: to.into(), at: inbound.written_at };
    let numbers = before.zip(now).map(|(before, now)| moved(before, &now));
    Some((moved(from, to), numbers))
}

/// Somebody by all the ids that the post has for them. The id of the business's own scope is the canonical one: a user may
/// hide their phone number, and then it is the only one.
fn person(user: Option<String>, phone: Option<String>, parent: Option<String>) -> Option<Participant> {
    let mut ids = [user, phone, parent].into_iter().flatten();
    let mut person = Participant::new(ids.next()?);
    person.aliases = ids.map(ParticipantId::from).collect();
    Some(person)
}

fn read_message(message: &Value, contacts: &[Value]) -> Result<Inbound, String> {
    let event = id(message, "id").ok_or("a message without an id")?;
    let (phone, user) = (id(message, "from"), id(message, "from_user_id"));
    let is_sender = |contact: &&Value| {
        let is = |key, ours: &Option<String>| ours.is_some() && id(contact, key) == *ours;
        is("wa_id", &phone) || is("user_id", &user)
    };
    let contact = contacts.iter().find(is_sender);
    let of_contact = |key| contact.and_then(|contact| id(contact, key));
    let user = user.or_else(|| of_contact("user_id"));
    let parent = id(message, "from_parent_user_id").or_else(|| of_contact("parent_user_id"));
    let system = message.get("system");
    // What is told of a change is told of whom the user was.
    let user = system.and_then(|system| id(system, "previous_user_id")).or(user);
    let of_system = || system.and_then(|system| person(id(system, "user_id"), id(system, "wa_id"), None));
    let mut sender = person(user, phone, parent)
        .or_else(of_system)
        .ok_or("a message of nobody: neither `from` nor `from_user_id`")?;
    let profile = contact.and_then(|contact| contact.get("profile"));
    sender.name = profile.and_then(|profile| text(profile, "name")).map(str::to_owned);
    let group = id(message, "group_id");
    let chat = group.as_deref().map_or_else(|| ChatId::from(sender.id.as_str()), group_chat);
    let context = message.get("context");
    let kind = text(message, "type").unwrap_or("unknown");
    let mut inbound = Inbound::private(event, chat, content::read(message, kind, &sender));
    inbound.sender = Some(sender);
    inbound.group = group.is_some();
    inbound.written_at = seconds(message, "timestamp");
    inbound.reply_to = context.and_then(|context| id(context, "id")).map(Into::into);
    inbound.extra = content::extra(message, kind, &inbound.body);
    Ok(inbound)
}

/// A message that a person wrote in the business's own app.
fn read_echo(message: &Value) -> Result<Notice, String> {
    let chat = id(message, "to_user_id").or_else(|| id(message, "to")).ok_or("an echo to nobody")?;
    let id = id(message, "id").ok_or("an echo without an id")?;
    let said = message.get("text").and_then(|said| text(said, "body")).unwrap_or_default();
    Ok(Notice::FromMe { chat: chat.into(), message: id.into(), text: said.to_owned() })
}

fn read_status(status: &Value, contacts: &[Value], events: &mut Vec<Event>) -> Result<(), String> {
    let message = id(status, "id").ok_or("a status without an id")?;
    if let Some(token) = text(status, "biz_opaque_callback_data") {
        events.push(Event::Sent { token: token.into(), message: message.as_str().into() });
    }
    let stage = match text(status, "status").ok_or("a status that says nothing")? {
        "accepted" | "held_for_quality_assessment" => Stage::Accepted,
        "sent" => Stage::Sent,
        "delivered" => Stage::Delivered,
        "read" => Stage::Read,
        "played" => Stage::Played,
        "failed" => Stage::Failed,
        // One that we do not know says nothing that matters.
        _ => return Ok(()),
    };
    let named = ["recipient_user_id", "recipient_id", "recipient_parent_user_id"];
    let of_contact = |contact| id(contact, "user_id").or_else(|| id(contact, "wa_id"));
    let to = named.iter().find_map(|key| id(status, key)).or_else(|| contacts.first().and_then(of_contact));
    let chat = match (text(status, "recipient_type"), id(status, "recipient_id"), to) {
        (Some("group"), Some(group), _) => group_chat(&group),
        (_, _, Some(to)) => to.into(),
        _ => return Err("a status of a message to nobody".to_owned()),
    };
    let failure = list(status, "errors").first().and_then(Refusal::of).map(|error| DeliveryFailure {
        class: error.class(Product::WhatsApp, 400),
        code: Some(error.code()),
        detail: error.message().to_owned(),
    });
    let (of, at) = (ReceiptOf::Message(message.into()), seconds(status, "timestamp"));
    events.push(Event::Notice(Notice::Receipt(Receipt { chat, of, stage, at, failure })));
    Ok(())
}

/// A user's id in the business's scope changed: told in the chat that they had.
fn read_user_id_update(update: &Value) -> Result<Inbound, String> {
    let ids = update.get("user_id").ok_or("an update of no id")?;
    let (before, now) = (id(ids, "previous"), id(ids, "current"));
    let (Some(before), Some(now)) = (before, now) else { return Err("an update of no id".to_owned()) };
    let detail = json!({ "from": before, "to": now, "wa_id": id(update, "wa_id") });
    let body = InboundBody::System { event: "user_changed_user_id".to_owned(), detail };
    let mut inbound = Inbound::private(format!("user_id_update:{now}"), before.as_str(), body);
    inbound.sender = person(Some(before), id(update, "wa_id"), None);
    inbound.written_at = seconds(update, "timestamp");
    Ok(inbound)
}
