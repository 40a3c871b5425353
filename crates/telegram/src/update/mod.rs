//! What Telegram sends, in botmesh's words.
//!
//! Everything is read leniently: what is not needed may be missing, or be of a type that nobody expected. Only what has no
//! chat or no id cannot be read.

mod content;
mod events;
mod json;
mod message;

use botmesh_core::hash::stable_hash;
use botmesh_core::id::EventId;
use botmesh_core::inbound::{Inbound, InboundBody, Participant};
use botmesh_core::time::Timestamp;
use botmesh_core::webhook::{self, WebhookError};
use serde::Deserialize;

use crate::address::Address;
use json::{Fields, Json};

/// The kinds of updates that are asked for: all that there are.
pub const KINDS: [&str; 27] = [
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "business_connection",
    "business_message",
    "edited_business_message",
    "deleted_business_messages",
    "guest_message",
    "message_reaction",
    "message_reaction_count",
    "inline_query",
    "chosen_inline_result",
    "callback_query",
    "shipping_query",
    "pre_checkout_query",
    "purchased_paid_media",
    "poll",
    "poll_answer",
    "my_chat_member",
    "chat_member",
    "chat_join_request",
    "chat_boost",
    "removed_chat_boost",
    "managed_bot",
    "stopped_message_generation",
    "subscription",
];

/// What the owner of a business account wrote.
pub(crate) const OUTGOING: &str = "outgoing_business_message";

/// One update.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Update {
    /// Its number, if it has one.
    pub id: Option<i64>,
    /// The event's id: the number, or else a hash of the update.
    pub event: EventId,
    /// What it says, or why it cannot be read.
    pub content: Result<Inbound, String>,
    /// The query that a pressed button opened; the button shows that it is busy until it is answered.
    pub callback_query: Option<String>,
    /// Whether it is a post of a channel that Telegram copied into the group that belongs to it.
    pub automatic_forward: bool,
    /// The ids that a group had before it became a supergroup, and has since.
    pub migrated: Option<(i64, i64)>,
}

/// Reads one update. Never fails as a whole: what cannot be read is still known by its id.
pub fn parse_update(raw: &[u8]) -> Update {
    let mended = webhook::mended(raw);
    let read: Result<Fields<'_>, _> = match &mended {
        Ok(body) => from_json(body).map_err(|error| WebhookError::from(error).to_string()),
        Err(error) => Err(error.to_string()),
    };
    let id = match &read {
        Ok(update) => update.get("update_id").and_then(whole),
        Err(_) => only_id(raw),
    };
    let event = match id {
        Some(id) => id.into(),
        None => format!("unreadable-{:016x}", stable_hash(raw.iter().copied())).into(),
    };
    let mut update = Update {
        id,
        event,
        content: Err(String::new()),
        callback_query: None,
        automatic_forward: false,
        migrated: None,
    };
    update.content = match read {
        Err(error) => Err(format!("the update is not the JSON that was expected: {error}")),
        Ok(_) if id.is_none() => Err("the update has no `update_id`".to_owned()),
        Ok(fields) => content_of(&mut update, &fields),
    };
    update
}

/// Whether the bytes are characters is asked once, and not for each text.
fn from_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> serde_json::Result<T> {
    match std::str::from_utf8(body) {
        Ok(body) => serde_json::from_str(body),
        Err(_) => serde_json::from_slice(body),
    }
}

/// The number of an update that is otherwise too deep or too strange.
fn only_id(raw: &[u8]) -> Option<i64> {
    #[derive(Deserialize)]
    struct Only {
        update_id: i64,
    }
    webhook::parse(raw).ok().map(|Only { update_id }| update_id)
}

fn content_of(update: &mut Update, fields: &Fields<'_>) -> Result<Inbound, String> {
    let known = KINDS.iter().find_map(|kind| Some((*kind, fields.get(kind)?)));
    let Some((kind, value)) = known else {
        let (kind, value) = fields.first(|field| field != "update_id").ok_or("the update says nothing")?;
        return Ok(events::unknown(update, kind, value));
    };
    let inbound = match kind {
        "message"
        | "channel_post"
        | "business_message"
        | "guest_message"
        | "edited_message"
        | "edited_channel_post"
        | "edited_business_message" => message::read(update, kind, value),
        "callback_query" => events::pressed(update, value),
        "message_reaction" => events::reaction(update, value),
        "poll_answer" => events::vote(update, value),
        _ => events::system(update, kind, value),
    };
    inbound.map_err(|problem| format!("`{kind}`: {problem}"))
}

/// A number, also where it is written as a text.
fn whole(value: &Json<'_>) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

fn words<'a>(value: &'a Json<'_>) -> Option<&'a str> {
    value.as_str().filter(|text| !text.is_empty())
}

fn text(value: &Json<'_>) -> Option<String> {
    words(value).map(str::to_owned)
}

/// Seconds since 1970, of which 0 says that the message cannot be seen any more.
fn time(value: &Json<'_>) -> Option<Timestamp> {
    let seconds = whole(value).filter(|seconds| *seconds > 0)?;
    Some(Timestamp::from_millis(seconds.saturating_mul(1000)))
}

/// A user, or a chat in whose name somebody writes.
fn participant(value: &Json<'_>) -> Option<Participant> {
    let id = whole(&value["id"])?;
    let name = match (words(&value["first_name"]), words(&value["last_name"])) {
        (Some(first), Some(last)) => Some([first, " ", last].concat()),
        (first, last) => first.or(last).map(str::to_owned).or_else(|| text(&value["title"])),
    };
    let language = text(&value["language_code"]);
    Some(Participant { name, language, ..Participant::new(id) })
}

fn is_group(chat: &Json<'_>) -> bool {
    matches!(chat["type"].as_str(), Some("group" | "supergroup"))
}

/// An event of a chat.
fn inbound(update: &Update, address: &Address, sender: Option<Participant>, body: InboundBody) -> Inbound {
    let (event, chat) = (update.event.clone(), address.id());
    let (written_at, message, reply_to, extra, origin) = Default::default();
    Inbound { event, chat, sender, group: false, written_at, message, reply_to, extra, origin, body }
}
