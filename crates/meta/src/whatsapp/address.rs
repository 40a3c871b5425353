//! To whom a message goes.

use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::ChatId;
use serde_json::{Map, Value, json};

const GROUP: &str = "group:";

/// The chat of a group: sends need to know that it is one.
pub(crate) fn group_chat(group: &str) -> ChatId {
    format!("{GROUP}{group}").into()
}

/// The fields of a send that name its recipient. A user id under the name of a phone number is taken, and then dropped
/// without a word.
pub(crate) fn recipient(chat: &ChatId) -> Result<Map<String, Value>, ChannelError> {
    let chat = chat.as_str();
    let fields = match chat.strip_prefix(GROUP) {
        Some(group) => json!({ "recipient_type": "group", "to": group }),
        None if is_user_id(chat) => json!({ "recipient_type": "individual", "recipient": chat }),
        None => match phone(chat) {
            Some(phone) => json!({ "recipient_type": "individual", "to": phone }),
            None => {
                let problem = format!(
                    "`{chat}` is neither a phone number nor a user id nor `{GROUP}` and a group's id"
                );
                return Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, problem));
            }
        },
    };
    Ok(match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    })
}

/// Whether it is an id of somebody, as Meta writes it: a user id, or a phone number in digits alone.
pub(crate) fn is_person(id: &str) -> bool {
    is_user_id(id) || is_number(id)
}

/// Whether it is a phone number as Meta writes it.
pub(crate) fn is_number(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|c| c.is_ascii_digit())
}

/// `MX.5215550001111`, `US.ENT.11815799212886844830`: a country, and what must not be changed.
fn is_user_id(chat: &str) -> bool {
    let Some((country, rest)) = chat.split_once('.') else { return false };
    let id = rest.strip_prefix("ENT.").unwrap_or(rest);
    country.len() == 2
        && country.bytes().all(|c| c.is_ascii_uppercase())
        && (1..=128).contains(&id.len())
        && id.bytes().all(|c| c.is_ascii_alphanumeric())
}

/// The digits of a phone number, as an operator may have typed it.
fn phone(chat: &str) -> Option<String> {
    let separators = [' ', '-', '(', ')', '.'];
    let digits: String =
        chat.strip_prefix('+').unwrap_or(chat).chars().filter(|c| !separators.contains(c)).collect();
    let is_phone = (5..=20).contains(&digits.len()) && digits.bytes().all(|c| c.is_ascii_digit());
    is_phone.then_some(digits)
}
