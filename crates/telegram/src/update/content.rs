//! What is in a message.

use botmesh_core::inbound::{InboundBody, InboundMedia};
use botmesh_core::media::MediaRef;
use serde_json::{Map, Value, json};

use super::json::Json;
use super::{text, whole};

/// What happened in a chat, as fields of a message.
const SERVICE: &[&str] = &[
    "migrate_to_chat_id",
    "migrate_from_chat_id",
    "new_chat_members",
    "left_chat_member",
    "chat_owner_left",
    "chat_owner_changed",
    "new_chat_title",
    "new_chat_photo",
    "delete_chat_photo",
    "group_chat_created",
    "supergroup_chat_created",
    "channel_chat_created",
    "message_auto_delete_timer_changed",
    "pinned_message",
    "successful_payment",
    "refunded_payment",
    "users_shared",
    "chat_shared",
    "gift",
    "unique_gift",
    "gift_upgrade_sent",
    "connected_website",
    "write_access_allowed",
    "passport_data",
    "proximity_alert_triggered",
    "boost_added",
    "chat_background_set",
    "checklist_tasks_done",
    "checklist_tasks_added",
    "direct_message_price_changed",
    "forum_topic_created",
    "forum_topic_edited",
    "forum_topic_closed",
    "forum_topic_reopened",
    "general_forum_topic_hidden",
    "general_forum_topic_unhidden",
    "giveaway_created",
    "giveaway_completed",
    "managed_bot_created",
    "paid_message_price_changed",
    "poll_option_added",
    "poll_option_deleted",
    "suggested_post_approved",
    "suggested_post_approval_failed",
    "suggested_post_declined",
    "suggested_post_paid",
    "suggested_post_refunded",
    "video_chat_scheduled",
    "video_chat_started",
    "video_chat_ended",
    "video_chat_participants_invited",
];

/// Fields that say how a message came, not what it is.
const ENVELOPE: &[&str] = &[
    "message_id",
    "message_thread_id",
    "direct_messages_topic",
    "from",
    "sender_chat",
    "sender_boost_count",
    "sender_business_bot",
    "sender_tag",
    "date",
    "business_connection_id",
    "guest_query_id",
    "guest_bot_caller_user",
    "guest_bot_caller_chat",
    "chat",
    "forward_origin",
    "forward_from",
    "forward_from_chat",
    "forward_from_message_id",
    "forward_signature",
    "forward_sender_name",
    "forward_date",
    "is_topic_message",
    "is_automatic_forward",
    "reply_to_message",
    "external_reply",
    "quote",
    "reply_to_story",
    "reply_to_checklist_task_id",
    "via_bot",
    "edit_date",
    "has_protected_content",
    "has_media_spoiler",
    "is_from_offline",
    "is_paid_post",
    "media_group_id",
    "author_signature",
    "paid_star_count",
    "entities",
    "link_preview_options",
    "suggested_post_info",
    "effect_id",
    "caption",
    "caption_entities",
    "show_caption_above_media",
    "reply_markup",
];

/// What else is said of a message, as Telegram has it.
const EXTRA: &[&str] = &["forward_origin", "quote", "via_bot", "author_signature", "link_preview_options"];

/// Formatting, mentions and links, each with the `text` that it is about, and what else is said of a message.
pub(super) fn extra(message: &Json<'_>) -> Value {
    let mut extra = Map::new();
    let words = words(message);
    for field in ["entities", "caption_entities"] {
        let entities: Vec<Value> = message[field]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entity| {
                let place = entity["offset"].as_u64().zip(entity["length"].as_u64())?;
                let mut of_text = entity.to_value();
                of_text["text"] = of_units(words, place)?.into();
                Some(of_text)
            })
            .collect();
        if !entities.is_empty() {
            extra.insert("entities".into(), entities.into());
        }
    }
    for field in EXTRA {
        if let Some(value) = message.get(field) {
            extra.insert((*field).to_owned(), value.to_value());
        }
    }
    if extra.is_empty() { Value::Null } else { Value::Object(extra) }
}

/// The part of a text that is given by offset and length in UTF-16 units; `None` if it cuts a character or is not in the text.
fn of_units(text: &str, (offset, length): (u64, u64)) -> Option<&str> {
    let mut units = 0;
    let mut starts = text.char_indices().map(|(at, c)| {
        let here = units;
        units += c.len_utf16() as u64;
        (here, at)
    });
    let end = offset.checked_add(length)?;
    let (_, from) = starts.find(|(here, _)| *here >= offset).filter(|(here, _)| *here == offset)?;
    let to = match starts.find(|(here, _)| *here >= end) {
        Some((here, to)) => (here == end).then_some(to)?,
        None => (units == end).then_some(text.len())?,
    };
    text.get(from..to).filter(|text| !text.is_empty())
}

/// The text or the caption.
pub(super) fn words<'a>(message: &'a Json<'_>) -> &'a str {
    let mut texts = ["text", "caption"].into_iter().filter_map(|field| message[field].as_str());
    texts.find(|text| !text.is_empty()).unwrap_or("")
}

pub(super) fn body(message: &Json<'_>) -> InboundBody {
    if let Some(text) = message["text"].as_str() {
        return InboundBody::Text { text: text.to_owned() };
    }
    media(message)
        .or_else(|| place(message))
        .or_else(|| contact(&message["contact"]))
        .or_else(|| web_app(&message["web_app_data"]))
        .or_else(|| service(message))
        .unwrap_or_else(|| InboundBody::Unsupported { kind: kind(message) })
}

fn media(message: &Json<'_>) -> Option<InboundBody> {
    // An animation is also given as a document, for those that know no animations.
    let of = |field: &str| file(message, &message[field]);
    let photo = || largest(&message["photo"]).and_then(|photo| file(message, photo));
    let video = || of("animation").or_else(|| of("video")).or_else(|| of("video_note"));
    let audio = || of("voice").or_else(|| of("audio"));
    None.or_else(|| photo().map(InboundBody::Image))
        .or_else(|| video().map(InboundBody::Video))
        .or_else(|| audio().map(InboundBody::Audio))
        .or_else(|| of("sticker").map(InboundBody::Sticker))
        .or_else(|| of("document").map(InboundBody::Document))
}

fn largest<'a>(photo: &'a Json<'a>) -> Option<&'a Json<'a>> {
    let area = |size: &&Json<'_>| {
        whole(&size["width"]).unwrap_or(0).saturating_mul(whole(&size["height"]).unwrap_or(0))
    };
    photo.as_array()?.iter().filter(|size| size["file_id"].is_string()).max_by_key(area)
}

fn file(message: &Json<'_>, file: &Json<'_>) -> Option<InboundMedia> {
    let mut token = json!({ "file_id": text(&file["file_id"])? });
    if let Some(size) = whole(&file["file_size"]) {
        token["size"] = size.into();
    }
    let media = InboundMedia::new(MediaRef { provider: crate::telegram::ID.to_owned(), token });
    Some(InboundMedia {
        caption: text(&message["caption"]),
        mime: text(&file["mime_type"]),
        file_name: text(&file["file_name"]),
        album: text(&message["media_group_id"]),
        ..media
    })
}

fn place(message: &Json<'_>) -> Option<InboundBody> {
    let venue = &message["venue"];
    let location = if venue.is_object() { &venue["location"] } else { &message["location"] };
    let (latitude, longitude) = (location["latitude"].as_f64()?, location["longitude"].as_f64()?);
    Some(InboundBody::Location { latitude, longitude, name: text(&venue["title"]) })
}

fn contact(contact: &Json<'_>) -> Option<InboundBody> {
    let phone = text(&contact["phone_number"])?;
    let names = [text(&contact["first_name"]), text(&contact["last_name"])];
    let name = names.into_iter().flatten().collect::<Vec<_>>().join(" ");
    Some(InboundBody::Contact { name, phones: vec![phone] })
}

/// What a page behind a button of the keyboard sent.
fn web_app(data: &Json<'_>) -> Option<InboundBody> {
    let id = data["data"].as_str()?.to_owned();
    Some(InboundBody::Interaction { id, title: text(&data["button_text"]).unwrap_or_default() })
}

fn service(message: &Json<'_>) -> Option<InboundBody> {
    let event = SERVICE.iter().find(|field| message.get(field).is_some())?;
    Some(InboundBody::System { event: (*event).to_owned(), detail: message[*event].to_value() })
}

/// What the message has that is no envelope.
fn kind(message: &Json<'_>) -> String {
    let other = message.as_object().and_then(|fields| fields.first(|field| !ENVELOPE.contains(&field)));
    other.map_or("message", |(name, _)| name).to_owned()
}
