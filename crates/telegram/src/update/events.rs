//! Updates that are no messages.

use botmesh_core::id::ChatId;
use botmesh_core::inbound::{Inbound, InboundBody, Participant};
use serde_json::{Value, json};

use super::json::Json;
use super::message::{address, message_id};
use super::{Update, inbound, is_group, participant, text, time, whole};
use crate::address::Address;

/// A pressed button.
pub(super) fn pressed(update: &mut Update, query: &Json<'_>) -> Result<Inbound, String> {
    let sender = participant(&query["from"]).ok_or("it has no `from`")?;
    update.callback_query = text(&query["id"]);
    let extra = update.callback_query.as_ref().map_or(Value::Null, |id| json!({ "callback_query_id": id }));
    let message = &query["message"];
    // The button of a message that was sent through the bot by somebody else says nothing of the chat.
    let address = address(message).unwrap_or_else(|_| Address::chat(sender.id.as_str()));
    let body = match (query["data"].as_str(), text(&query["game_short_name"])) {
        (Some(data), _) => {
            InboundBody::Interaction { id: data.to_owned(), title: title(message, data).unwrap_or_default() }
        }
        (None, Some(game)) => InboundBody::System { event: "callback_game".to_owned(), detail: game.into() },
        (None, None) => InboundBody::Unsupported { kind: "callback_query".to_owned() },
    };
    Ok(Inbound {
        group: is_group(&message["chat"]),
        message: message_id(&message["message_id"]),
        extra,
        ..inbound(update, &address, Some(sender), body)
    })
}

/// What is written on the button with this data.
fn title(message: &Json<'_>, data: &str) -> Option<String> {
    let rows = message["reply_markup"]["inline_keyboard"].as_array()?;
    let mut buttons = rows.iter().filter_map(Json::as_array).flatten();
    text(&buttons.find(|button| button["callback_data"].as_str() == Some(data))?["text"])
}

pub(super) fn reaction(update: &Update, value: &Json<'_>) -> Result<Inbound, String> {
    let address = address(value)?;
    let message = message_id(&value["message_id"]).ok_or("it has no `message_id`")?;
    let sender = participant(&value["user"]).or_else(|| participant(&value["actor_chat"]));
    let reactions = |field: &str| -> Vec<String> {
        value[field].as_array().map(|all| all.iter().filter_map(emoji).collect()).unwrap_or_default()
    };
    let (before, now) = (reactions("old_reaction"), reactions("new_reaction"));
    let added = now.iter().find(|emoji| !before.contains(emoji)).or(now.last()).cloned();
    let body = InboundBody::Reaction { message: message.clone(), emoji: added };
    Ok(Inbound {
        group: is_group(&value["chat"]),
        written_at: time(&value["date"]),
        message: Some(message),
        ..inbound(update, &address, sender, body)
    })
}

/// A custom emoji has a number in place of a character, and a paid reaction is a star.
fn emoji(reaction: &Json<'_>) -> Option<String> {
    match reaction["type"].as_str()? {
        "emoji" => text(&reaction["emoji"]),
        "custom_emoji" => text(&reaction["custom_emoji_id"]),
        "paid" => Some("\u{2b50}".to_owned()),
        _ => None,
    }
}

pub(super) fn vote(update: &Update, value: &Json<'_>) -> Result<Inbound, String> {
    let poll = text(&value["poll_id"]).ok_or("it has no `poll_id`")?;
    let voter = participant(&value["voter_chat"]).or_else(|| participant(&value["user"]));
    let voter = voter.ok_or("it has no `user`")?;
    let options = value["option_ids"].as_array().into_iter().flatten().filter_map(whole);
    let body =
        InboundBody::PollVote { poll: poll.into(), options: options.map(|id| id.to_string()).collect() };
    let address = Address::chat(voter.id.as_str());
    Ok(inbound(update, &address, Some(voter), body))
}

/// Everything else that is known: told as it is.
pub(super) fn system(update: &Update, kind: &str, value: &Json<'_>) -> Result<Inbound, String> {
    let (address, sender) = place(value).ok_or("it has no `chat` and no user")?;
    let body = InboundBody::System { event: kind.to_owned(), detail: value.to_value() };
    Ok(Inbound {
        group: is_group(&value["chat"]),
        written_at: time(&value["date"]),
        ..inbound(update, &address, sender, body)
    })
}

/// A kind that this version does not know.
pub(super) fn unknown(update: &Update, kind: &str, value: &Json<'_>) -> Inbound {
    let (address, sender) = place(value).unwrap_or((Address::chat("unknown"), None));
    let body = InboundBody::Unsupported { kind: kind.to_owned() };
    Inbound { group: is_group(&value["chat"]), ..inbound(update, &address, sender, body) }
}

/// Whom an event is about: a chat, else the private chat of a user, else the poll itself.
fn place(value: &Json<'_>) -> Option<(Address, Option<Participant>)> {
    let users = [&value["from"], &value["user"], &value["boost"]["source"]["user"], &value["source"]["user"]];
    let user = users.into_iter().find_map(participant);
    let private = || {
        let chat = whole(&value["user_chat_id"]).map(ChatId::from);
        let chat = chat.or_else(|| Some(user.as_ref()?.id.as_str().into()))?;
        Some(Address { business: text(&value["business_connection_id"]), ..Address::chat(chat) })
    };
    let poll = || {
        Some(Address::chat(format!("poll {}", text(&value["id"])?)))
            .filter(|_| value.get("options").is_some())
    };
    let chat = address(value).ok().or_else(private).or_else(poll)?;
    Some((chat, user))
}
