//! Albums: what may be together, and that each file that the media name is there.

use serde_json::{Map, Value, json};

use super::methods::{Refusal, bad, check_text, me, media as media_of, text};
use super::state::{State, TelegramCall};

const OF_MEDIA: &[&str] = &["type", "media", "caption", "caption_entities", "parse_mode", "has_spoiler"];

impl State {
    pub(super) fn send_album(
        &mut self,
        call: &mut TelegramCall,
        params: &Map<String, Value>,
    ) -> Result<Value, Refusal> {
        let chat = self.chat_of(params)?;
        let album = check(call, params)?;
        self.check_reply(chat, params)?;
        let group = (self.messages.len() + 1).to_string();
        let mut made = Vec::with_capacity(album.len());
        for media in album {
            let kind = text(&media, "type");
            let mut fields = json!({ "media_group_id": group, kind: media_of(kind) });
            if let Some(caption) = media.get("caption") {
                fields["caption"] = caption.clone();
            }
            made.push(self.message(chat, &me(), &fields));
        }
        call.message = made[0]["message_id"].as_i64();
        Ok(made.into())
    }
}

fn check(call: &TelegramCall, params: &Map<String, Value>) -> Result<Vec<Map<String, Value>>, Refusal> {
    if params.contains_key("reply_markup") {
        return Err(bad("sendMediaGroup has no parameter reply_markup"));
    }
    let media =
        params.get("media").and_then(Value::as_array).ok_or_else(|| bad("can't parse media JSON object"))?;
    match media.len() {
        0 | 1 => return Err(bad("not enough messages to send as an album")),
        2..=10 => {}
        _ => return Err(bad("too much messages to send as an album")),
    }
    let mut album: Vec<Map<String, Value>> = Vec::with_capacity(media.len());
    for one in media {
        let one = one.as_object().ok_or_else(|| bad("can't parse InputMedia: expected an object"))?;
        if let Some(name) = one.keys().find(|name| !OF_MEDIA.contains(&name.as_str())) {
            return Err(bad(&format!("InputMedia has no field {name}")));
        }
        if one.contains_key("caption") {
            check_text(one, "caption", "caption_entities", 1024)?;
        }
        let source = text(one, "media");
        let is_there = match source.strip_prefix("attach://") {
            Some(part) => call.files.iter().filter(|(name, ..)| name == part).count() == 1,
            None => !source.is_empty(),
        };
        if !is_there {
            return Err(bad("wrong file identifier/HTTP URL specified"));
        }
        album.push(one.clone());
    }
    let kinds: Vec<Option<&str>> = album.iter().map(|one| together(text(one, "type"))).collect();
    if kinds.contains(&None) {
        return Err(bad("can't parse InputMedia: media of this type can't be in an album"));
    }
    if kinds.windows(2).any(|two| two[0] != two[1]) {
        return Err(bad("media of these types can't be mixed in an album"));
    }
    let is_named = |part: &str| album.iter().any(|one| text(one, "media") == format!("attach://{part}"));
    if let Some((part, ..)) = call.files.iter().find(|(part, ..)| !is_named(part)) {
        return Err(bad(&format!("no media is attach://{part}")));
    }
    Ok(album)
}

/// What a kind of media may be with.
fn together(kind: &str) -> Option<&str> {
    match kind {
        "photo" | "video" => Some("photo"),
        "document" | "audio" => Some(kind),
        _ => None,
    }
}
