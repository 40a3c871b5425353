//! Messages: of users, of channels, of business accounts, and from chats that the bot is no member of.

use botmesh_core::id::MessageId;
use botmesh_core::inbound::{Inbound, InboundBody, Participant};

use super::json::Json;
use super::{OUTGOING, Update, content, inbound, is_group, participant, text, time, whole};
use crate::address::{Address, Topic};

pub(super) fn read(update: &mut Update, kind: &str, message: &Json<'_>) -> Result<Inbound, String> {
    let address = address(message)?;
    let id = message_id(&message["message_id"]).ok_or("it has no `message_id`")?;
    update.automatic_forward = message["is_automatic_forward"].as_bool() == Some(true);
    update.migrated = migrated(message);
    let body = match kind {
        _ if is_outgoing(message) => {
            InboundBody::System { event: OUTGOING.to_owned(), detail: message.to_value() }
        }
        "edited_message" | "edited_channel_post" | "edited_business_message" => {
            InboundBody::Edit { message: id.clone(), text: content::words(message).to_owned() }
        }
        _ => content::body(message),
    };
    let sender = match kind {
        "channel_post" | "edited_channel_post" => None,
        _ => sender(update, message),
    };
    Ok(Inbound {
        group: is_group(&message["chat"]),
        written_at: time(&message["date"]),
        message: Some(id),
        reply_to: reply_to(message),
        extra: content::extra(message),
        ..inbound(update, &address, sender, body)
    })
}

pub(super) fn message_id(value: &Json<'_>) -> Option<MessageId> {
    whole(value).map(MessageId::from)
}

/// Where a message was written.
pub(super) fn address(message: &Json<'_>) -> Result<Address, &'static str> {
    let chat = whole(&message["chat"]["id"]).ok_or("it has no `chat`")?;
    let thread = || match message["is_topic_message"].as_bool() {
        // Without it, the thread is a chain of answers, and no place of its own.
        Some(true) => whole(&message["message_thread_id"]).map(Topic::Thread),
        _ => None,
    };
    let direct = whole(&message["direct_messages_topic"]["topic_id"]).map(Topic::Direct);
    Ok(Address {
        topic: direct.or_else(thread),
        business: text(&message["business_connection_id"]),
        guest: text(&message["guest_query_id"]),
        ..Address::chat(chat)
    })
}

/// Who wrote: the chat in whose name it was written (an anonymous administrator, a channel), else the user.
fn sender(update: &Update, message: &Json<'_>) -> Option<Participant> {
    let chat = Some(&message["sender_chat"]).filter(|_| !update.automatic_forward);
    chat.and_then(participant).or_else(|| participant(&message["from"]))
}

/// Whether the account's owner, or a bot in their name, wrote to the customer whose chat it is.
fn is_outgoing(message: &Json<'_>) -> bool {
    let (chat, from) = (whole(&message["chat"]["id"]), whole(&message["from"]["id"]));
    text(&message["business_connection_id"]).is_some()
        && (message["sender_business_bot"].is_object() || from.is_some() && from != chat)
}

/// The message that it answers. In a topic, everything answers the message that opened it, which means nothing.
fn reply_to(message: &Json<'_>) -> Option<MessageId> {
    let to = &message["reply_to_message"];
    if to["forum_topic_created"].is_object() {
        return None;
    }
    message_id(&to["message_id"])
}

/// Both chats of a migration tell of it, in any order.
fn migrated(message: &Json<'_>) -> Option<(i64, i64)> {
    let here = whole(&message["chat"]["id"])?;
    let to = whole(&message["migrate_to_chat_id"]).map(|to| (here, to));
    to.or_else(|| whole(&message["migrate_from_chat_id"]).map(|from| (from, here)))
}
