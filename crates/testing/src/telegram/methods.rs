//! What each method takes, and does.

use std::{fs, io};

use serde_json::{Map, Value, json};

use super::state::{BOT, Chat, Standing, State, TOKEN, TelegramCall};

/// Why a call is refused: code, description, parameters.
pub(super) type Refusal = (u16, String, Value);

const TO_CHAT: &[&str] = &[
    "chat_id",
    "message_thread_id",
    "direct_messages_topic_id",
    "business_connection_id",
    "disable_notification",
    "protect_content",
    "reply_parameters",
    "reply_markup",
];

/// The media that may have a caption.
const WITH_CAPTION: &[&str] = &["photo", "audio", "voice", "video", "document"];

const ACTIONS: &[&str] = &[
    "typing",
    "upload_photo",
    "record_video",
    "upload_video",
    "record_voice",
    "upload_voice",
    "upload_document",
    "choose_sticker",
    "find_location",
    "record_video_note",
    "upload_video_note",
];

/// The parameters of each method beside those of [`TO_CHAT`].
fn params_of(method: &str) -> Option<&'static [&'static str]> {
    Some(match method {
        "getMe" | "getWebhookInfo" => &[],
        "getUpdates" => &["offset", "limit", "timeout", "allowed_updates"],
        "setWebhook" => &[
            "url",
            "secret_token",
            "allowed_updates",
            "max_connections",
            "drop_pending_updates",
            "ip_address",
        ],
        "deleteWebhook" => &["drop_pending_updates"],
        "sendMessage" => &["text", "entities", "parse_mode", "link_preview_options"],
        "sendPhoto" => &["photo", "caption", "caption_entities", "parse_mode"],
        "sendAudio" => &["audio", "caption", "caption_entities", "parse_mode", "title", "duration"],
        "sendVoice" => &["voice", "caption", "caption_entities", "parse_mode", "duration"],
        "sendVideo" => &["video", "caption", "caption_entities", "parse_mode"],
        "sendDocument" => &["document", "caption", "caption_entities", "parse_mode"],
        "sendMediaGroup" => &["media"],
        "sendSticker" => &["sticker", "emoji"],
        "sendLocation" => &["latitude", "longitude"],
        "sendVenue" => &["latitude", "longitude", "title", "address"],
        "editMessageText" => &["message_id", "text", "entities", "parse_mode"],
        "editMessageCaption" => &["message_id", "caption", "caption_entities", "parse_mode"],
        "setMessageReaction" => &["message_id", "reaction", "is_big"],
        "sendChatAction" => &["action"],
        "answerCallbackQuery" => &["callback_query_id", "text", "show_alert", "url", "cache_time"],
        "answerPreCheckoutQuery" => &["pre_checkout_query_id", "ok", "error_message"],
        "answerGuestQuery" => &["guest_query_id", "result"],
        "getFile" => &["file_id"],
        _ => return None,
    })
}

pub(super) fn bad(description: &str) -> Refusal {
    (400, format!("Bad Request: {description}"), Value::Null)
}

/// Refuses unknown methods and parameters.
pub(super) fn check(call: &TelegramCall) -> Result<(), Refusal> {
    let Some(params) = params_of(&call.method) else {
        return Err((404, "Not Found: method not found".into(), Value::Null));
    };
    let to_chat: &[&str] = match &*call.method {
        "editMessageText" | "editMessageCaption" | "setMessageReaction" => TO_CHAT,
        method if method.starts_with("send") => TO_CHAT,
        _ => &[],
    };
    // The parts of an album are named by its media.
    let files =
        call.files.iter().filter(|_| call.method != "sendMediaGroup").map(|(field, ..)| field.as_str());
    let unknown = |name: &&str| !params.contains(name) && !to_chat.contains(name);
    if let Some(name) = call.params.keys().map(String::as_str).chain(files).find(unknown) {
        return Err(bad(&format!("{} has no parameter {name}", call.method)));
    }
    Ok(())
}

impl State {
    /// Does a call, and returns its result.
    pub(super) fn perform(&mut self, call: &mut TelegramCall) -> Result<Value, Refusal> {
        let params = call.params.clone();
        match call.method.as_str() {
            "getMe" => Ok(json!({
                "id": BOT, "is_bot": true, "first_name": "Demo", "username": "demo_bot", "can_join_groups": true,
            })),
            "getWebhookInfo" => {
                let url = self.webhook.as_ref().map_or("", |webhook| &webhook.url);
                Ok(json!({ "url": url, "pending_update_count": self.queue.len() }))
            }
            "setWebhook" => self.webhook_is_set(&params),
            "deleteWebhook" => {
                self.drop_pending(&params);
                self.set_webhook("", None, Vec::new());
                Ok(true.into())
            }
            "getFile" => self.file(text(&params, "file_id")),
            "answerCallbackQuery" => self.answer_query(text(&params, "callback_query_id")),
            "answerPreCheckoutQuery" => {
                let agrees = params
                    .get("ok")
                    .and_then(Value::as_bool)
                    .ok_or_else(|| bad("parameter \"ok\" is required"))?;
                if !agrees && text(&params, "error_message").is_empty() {
                    return Err(bad("error message must be non-empty"));
                }
                self.answer_query(text(&params, "pre_checkout_query_id"))
            }
            "answerGuestQuery" => Ok(json!({ "inline_message_id": text(&params, "guest_query_id") })),
            "sendChatAction" => {
                self.chat_of(&params)?;
                let is_known = ACTIONS.contains(&text(&params, "action"));
                if is_known { Ok(true.into()) } else { Err(bad("wrong parameter action in request")) }
            }
            "setMessageReaction" => {
                let chat = self.chat_of(&params)?;
                self.message_of(chat, &params, "message to react not found")?;
                Ok(true.into())
            }
            "editMessageText" => self.edit(&params, "text"),
            "editMessageCaption" => self.edit(&params, "caption"),
            "sendMediaGroup" => self.send_album(call, &params),
            _ => self.send(call, &params),
        }
    }

    fn file(&self, id: &str) -> Result<Value, Refusal> {
        let bytes = self.files.get(id).ok_or_else(|| bad("invalid file_id"))?;
        let path = match &self.local {
            None => format!("files/{id}"),
            Some(folder) => {
                let folder = folder.join(TOKEN).join("files");
                let path = folder.join(id);
                let unwritten =
                    |error: io::Error| (500, format!("Internal Server Error: {error}"), Value::Null);
                fs::create_dir_all(&folder).and_then(|()| fs::write(&path, bytes)).map_err(unwritten)?;
                path.display().to_string()
            }
        };
        Ok(json!({ "file_id": id, "file_size": bytes.len(), "file_path": path }))
    }

    fn answer_query(&mut self, id: &str) -> Result<Value, Refusal> {
        let old = "query is too old and response timeout expired or query ID is invalid";
        if self.queries.remove(id) { Ok(true.into()) } else { Err(bad(old)) }
    }

    fn webhook_is_set(&mut self, params: &Map<String, Value>) -> Result<Value, Refusal> {
        self.drop_pending(params);
        let secret = params.get("secret_token").and_then(Value::as_str).map(str::to_owned);
        let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if secret
            .as_ref()
            .is_some_and(|secret| secret.is_empty() || secret.len() > 256 || !secret.chars().all(is_fine))
        {
            return Err(bad("secret token contains unallowed characters"));
        }
        let allowed = strings(params.get("allowed_updates")).unwrap_or_else(|| self.allowed.clone());
        self.set_webhook(text(params, "url"), secret, allowed);
        Ok(true.into())
    }

    fn drop_pending(&mut self, params: &Map<String, Value>) {
        if params.get("drop_pending_updates").and_then(Value::as_bool) == Some(true) {
            self.queue.clear();
        }
    }

    /// The chat that a call is about, if the bot may write there.
    pub(super) fn chat_of(&self, params: &Map<String, Value>) -> Result<i64, Refusal> {
        let id = params.get("chat_id").and_then(Value::as_i64).ok_or_else(|| bad("chat not found"))?;
        let Chat { standing, .. } = self.chats.get(&id).ok_or_else(|| bad("chat not found"))?;
        match standing {
            Standing::Open => Ok(id),
            Standing::Refuses(why) => Err((403, format!("Forbidden: {why}"), Value::Null)),
            Standing::MovedTo(to) => Err((
                400,
                "Bad Request: group chat was upgraded to a supergroup chat".into(),
                json!({ "migrate_to_chat_id": to }),
            )),
        }
    }

    fn message_of(&self, chat: i64, params: &Map<String, Value>, otherwise: &str) -> Result<i64, Refusal> {
        let id = params.get("message_id").and_then(Value::as_i64);
        id.filter(|id| self.messages.contains_key(&(chat, *id))).ok_or_else(|| bad(otherwise))
    }

    /// Changes the text of a message, or the caption of media.
    fn edit(&mut self, params: &Map<String, Value>, what: &str) -> Result<Value, Refusal> {
        let chat = self.chat_of(params)?;
        let id = self.message_of(chat, params, "message to edit not found")?;
        match what {
            "text" => check_text(params, what, "entities", 4096)?,
            _ => check_text(params, what, "caption_entities", 1024)?,
        }
        check_buttons(params)?;
        let message = self.messages.entry((chat, id)).or_default();
        let has_it = match what {
            "text" => message["text"].is_string(),
            _ => WITH_CAPTION.iter().any(|media| message.get(media).is_some()),
        };
        if !has_it {
            return Err(bad(&format!("there is no {what} in the message to edit")));
        }
        let markup = params.get("reply_markup").cloned().unwrap_or_default();
        if message[what].as_str() == params.get(what).and_then(Value::as_str)
            && message["reply_markup"] == markup
        {
            return Err(bad(
                "message is not modified: specified new message content and reply markup are exactly the same",
            ));
        }
        message[what] = params.get(what).cloned().unwrap_or_default();
        message["reply_markup"] = markup;
        Ok(message.clone())
    }

    fn send(&mut self, call: &mut TelegramCall, params: &Map<String, Value>) -> Result<Value, Refusal> {
        let chat = self.chat_of(params)?;
        let mut fields = json!({});
        match call.method.as_str() {
            "sendMessage" => check_text(params, "text", "entities", 4096)?,
            "sendLocation" | "sendVenue" => {}
            method => {
                let field = method.trim_start_matches("send").to_lowercase();
                let given =
                    !text(params, &field).is_empty() || call.files.iter().any(|(name, ..)| *name == field);
                if !given {
                    return Err(bad(&format!("there is no {field} in the request")));
                }
                if params.contains_key("caption") {
                    check_text(params, "caption", "caption_entities", 1024)?;
                }
                fields[field.as_str()] = media(&field);
            }
        }
        check_buttons(params)?;
        self.check_reply(chat, params)?;
        for name in ["text", "caption", "reply_markup"] {
            if let Some(value) = params.get(name) {
                fields[name] = value.clone();
            }
        }
        let message = self.message(chat, &me(), &fields);
        call.message = message["message_id"].as_i64();
        Ok(message)
    }

    pub(super) fn check_reply(&self, chat: i64, params: &Map<String, Value>) -> Result<(), Refusal> {
        let Some(reply) = params.get("reply_parameters") else { return Ok(()) };
        let to = reply["message_id"].as_i64().ok_or_else(|| bad("can't parse reply parameters"))?;
        let gone = !self.messages.contains_key(&(chat, to));
        match gone && reply["allow_sending_without_reply"].as_bool() != Some(true) {
            true => Err(bad("message to be replied not found")),
            false => Ok(()),
        }
    }
}

/// Media of a message, as it is named there.
pub(super) fn media(kind: &str) -> Value {
    let file = json!({ "file_id": format!("sent-{kind}"), "file_unique_id": format!("sent-{kind}") });
    if kind == "photo" { json!([file]) } else { file }
}

pub(super) fn me() -> Value {
    json!({ "id": BOT, "is_bot": true, "first_name": "Demo", "username": "demo_bot" })
}

pub(super) fn text<'a>(params: &'a Map<String, Value>, name: &str) -> &'a str {
    params.get(name).and_then(Value::as_str).unwrap_or("")
}

pub(super) fn strings(value: Option<&Value>) -> Option<Vec<String>> {
    let all = value?.as_array()?.iter().filter_map(Value::as_str);
    Some(all.map(str::to_owned).collect())
}

/// Counts code points, as the server does; entities count UTF-16 units.
pub(super) fn check_text(
    params: &Map<String, Value>,
    name: &str,
    entities: &str,
    max: usize,
) -> Result<(), Refusal> {
    let text = text(params, name);
    if text.trim().is_empty() {
        return Err(bad("message text is empty"));
    }
    if text.len() > 1 << 15 {
        return Err(bad("text is too long"));
    }
    if text.chars().count() > max {
        return Err(bad(if name == "text" { "message is too long" } else { "message caption is too long" }));
    }
    let units = text.encode_utf16().count() as u64;
    for entity in params.get(entities).and_then(Value::as_array).into_iter().flatten() {
        let end =
            entity["offset"].as_u64().zip(entity["length"].as_u64()).map(|(offset, length)| offset + length);
        if end.is_none_or(|end| end > units) || entity["type"].as_str().is_none() {
            return Err(bad(&format!("can't parse entities: {entity} is not within the text")));
        }
    }
    Ok(())
}

fn check_buttons(params: &Map<String, Value>) -> Result<(), Refusal> {
    let rows = params.get("reply_markup").and_then(|markup| markup["inline_keyboard"].as_array());
    for button in rows.into_iter().flatten().filter_map(Value::as_array).flatten() {
        if button["text"].as_str().is_none_or(str::is_empty) {
            return Err(bad("text buttons are not allowed to be empty"));
        }
        let data = button["callback_data"].as_str().map_or(0, str::len);
        let other =
            ["url", "web_app", "switch_inline_query"].iter().any(|field| button[*field] != Value::Null);
        if !other && !(1..=64).contains(&data) {
            return Err(bad("BUTTON_DATA_INVALID"));
        }
    }
    Ok(())
}
