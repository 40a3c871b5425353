//! What an answer with an error means: its class, whether to try again, and how far the request came.

use std::time::Duration;

use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use serde::Deserialize;

/// How long to wait where the server does not say. It is what the server itself assumes for a flood.
const FLOOD: Duration = Duration::from_secs(60);

/// An answer with `ok: false`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Refusal {
    #[serde(default)]
    pub(crate) error_code: Option<i64>,
    #[serde(default)]
    pub(crate) description: Option<String>,
    #[serde(default)]
    pub(crate) parameters: Option<Parameters>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Parameters {
    #[serde(default)]
    pub(crate) retry_after: Option<u64>,
    #[serde(default)]
    pub(crate) migrate_to_chat_id: Option<i64>,
}

/// A failed call, and what the caller can do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: ChannelError,
    pub(crate) remedy: Option<Remedy>,
}

/// What only the caller can know how to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// The group has this id now.
    MovedTo(i64),
    /// The same without the message that it answers, which is gone.
    WithoutReply,
    /// The same without formatting.
    WithoutFormatting,
    /// The same words as the caption: the message has no text.
    AsCaption,
    /// Nothing: it is as it should be.
    Unchanged,
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Self {
        Self { error, remedy: None }
    }
}

impl From<Failure> for ChannelError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// Beginnings of descriptions, in lower case, after the name of the status.
const UNREACHABLE: &[&str] = &[
    "chat not found",
    "user not found",
    "peer_id_invalid",
    "group chat was deactivated",
    "group chat was upgraded",
    "not enough rights",
    "have no rights",
    "need administrator rights",
    "topic_closed",
    "topic_deleted",
    "message thread not found",
    "chat_write_forbidden",
    "user_is_blocked",
    "input_user_deactivated",
    "business connection not found",
    "business_peer_invalid",
];
const TOO_LARGE: &[&str] = &[
    "message is too long",
    "text is too long",
    "message caption is too long",
    "media_caption_too_long",
    "file is too big",
    "request entity too large",
];
const NOT_TAKEN: &[&str] = &[
    "message text is empty",
    "text must be non-empty",
    "wrong file",
    "wrong remote file",
    "wrong type of",
    "failed to get http url content",
    "button_data_invalid",
    "button_type_invalid",
    "reaction_invalid",
    "photo_invalid",
    "image_process_failed",
    "invalid file",
    "file must be non-empty",
    "sticker",
    "webpage_",
    "can't use file of type",
    "type of file mismatch",
    "http url specified",
];
const ENTITIES: &[&str] = &[
    "can't parse entities",
    "can't parse messageentity",
    "can't parse message text",
    "entity_",
    "entities_",
];
const GONE_REPLY: &[&str] =
    &["message to be replied not found", "message to reply not found", "reply message not found"];

/// Nothing is wrong with the album: too many came in a row, and nothing of this one was made.
const LATER: &[&str] = &["group send failed"];

/// Of an album; some of its messages may have been made.
const IN_PART: &[&str] = &["failed to send message #"];

/// What an answer means that is no result. `refusal` is absent where the body was not the API's.
pub(crate) fn understand(status: u16, retry_after: Option<Duration>, refusal: Option<&Refusal>) -> Failure {
    let Some(refusal) = refusal else { return unknown_answer(status, retry_after) };
    let code = refusal.error_code.and_then(|code| u16::try_from(code).ok()).unwrap_or(status);
    let description = refusal.description.as_deref().unwrap_or("no description");
    let parameters = refusal.parameters.as_ref();
    let lower = description.to_ascii_lowercase();
    let said = lower.split_once(": ").map_or(lower.as_str(), |(_, said)| said);
    let begins = |list: &[&str]| list.iter().any(|begin| said.starts_with(begin));
    let (class, remedy) = match code {
        429 => (ErrorClass::RateLimited, None),
        400 => match parameters.and_then(|parameters| parameters.migrate_to_chat_id) {
            Some(to) => (ErrorClass::RecipientUnreachable, Some(Remedy::MovedTo(to))),
            None if begins(GONE_REPLY) => (ErrorClass::Rejected, Some(Remedy::WithoutReply)),
            None if begins(ENTITIES) => (ErrorClass::UnsupportedContent, Some(Remedy::WithoutFormatting)),
            None if said.starts_with("message is not modified") => {
                (ErrorClass::Rejected, Some(Remedy::Unchanged))
            }
            None if said.starts_with("there is no text in the message") => {
                (ErrorClass::Rejected, Some(Remedy::AsCaption))
            }
            None if begins(LATER) => (ErrorClass::Transient, None),
            None if begins(UNREACHABLE) => (ErrorClass::RecipientUnreachable, None),
            None if begins(TOO_LARGE) => (ErrorClass::PayloadTooLarge, None),
            None if begins(NOT_TAKEN) => (ErrorClass::UnsupportedContent, None),
            None => (ErrorClass::Rejected, None),
        },
        403 => (ErrorClass::RecipientUnreachable, None),
        404 if said.starts_with("method") => (ErrorClass::Rejected, None),
        401 | 404 => (ErrorClass::Auth, None),
        409 if said.contains("webhook is active") => return webhook_active(description),
        409 => (ErrorClass::Conflict, None),
        413 => (ErrorClass::PayloadTooLarge, None),
        500.. => (ErrorClass::Transient, None),
        _ => (ErrorClass::Rejected, None),
    };
    let phase = if begins(IN_PART) { Phase::Unknown } else { Phase::Answered };
    let mut error = ChannelError::new(class, phase, advised(class, description));
    error.code = Some(code.to_string());
    let told = parameters.and_then(|parameters| parameters.retry_after).map(Duration::from_secs);
    error.retry_after = told.or(retry_after);
    if class == ErrorClass::RateLimited {
        // Telegram does not say whether the chat was too busy or the bot. The wait is the chat's: else anybody in a busy group
        // could silence the bot everywhere. If it was the bot, the next chat is told so too.
        error.retry_after = error.retry_after.or(Some(FLOOD));
    }
    Failure { error, remedy }
}

fn advised(class: ErrorClass, description: &str) -> String {
    match class {
        ErrorClass::Conflict => {
            format!(
                "{description}: another process polls with this token; stop it, or give each bot its own token"
            )
        }
        ErrorClass::Auth => {
            format!("{description}: the token is wrong or was revoked; get the current one from @BotFather")
        }
        _ => description.to_owned(),
    }
}

fn webhook_active(description: &str) -> Failure {
    let detail = format!(
        "{description}: a webhook is set for this bot, and then it cannot poll; if nothing uses the webhook any more, remove it \
         with `Telegram::deleting_webhook`"
    );
    ChannelError::new(ErrorClass::Rejected, Phase::Answered, detail).with_code("409").into()
}

/// The answer is not the API's: something between us and it answered, or the answer was cut.
fn unknown_answer(status: u16, retry_after: Option<Duration>) -> Failure {
    let (class, phase) = match status {
        429 => (ErrorClass::RateLimited, Phase::Answered),
        413 => (ErrorClass::PayloadTooLarge, Phase::Answered),
        // The gateway gave the request on and does not know what became of it.
        504 => (ErrorClass::Transient, Phase::Unknown),
        500.. => (ErrorClass::Transient, Phase::Answered),
        // It was done, but the answer does not say what it is.
        200..300 => (ErrorClass::Transient, Phase::Unknown),
        _ => (ErrorClass::Rejected, Phase::Answered),
    };
    let detail = match status {
        300..400 => format!("HTTP {status}, a redirect: check the URL of the API"),
        _ => format!("HTTP {status} with a body that is not the Bot API's"),
    };
    let mut error = ChannelError::new(class, phase, detail).with_code(status.to_string());
    error.retry_after = retry_after;
    if class == ErrorClass::RateLimited {
        // What is in front of the API knows no chats.
        error = error.with_retry_after(retry_after.unwrap_or(FLOOD)).for_all_chats();
    }
    error.into()
}

#[cfg(test)]
mod tests;
