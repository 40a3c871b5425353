//! What a message of WhatsApp says.

use botmesh_core::inbound::{InboundBody, InboundMedia, Participant};
use botmesh_core::media::MediaRef;
use serde_json::{Value, json};

use super::super::ID;
use crate::lenient::{degrees, id, list, picked, text};

pub(super) fn read(message: &Value, kind: &str, sender: &Participant) -> InboundBody {
    let unsupported = || InboundBody::Unsupported { kind: kind.to_owned() };
    let Some(content) = message.get(kind) else { return unsupported() };
    let body = match kind {
        "text" => text(content, "body").map(|text| InboundBody::Text { text: text.to_owned() }),
        "image" => media(content).map(InboundBody::Image),
        "audio" => media(content).map(InboundBody::Audio),
        "video" => media(content).map(InboundBody::Video),
        "document" => media(content).map(InboundBody::Document),
        "sticker" => media(content).map(InboundBody::Sticker),
        "location" => location(content),
        "contacts" => content.as_array().and_then(|cards| card(cards.first()?)),
        "reaction" => id(content, "message_id").map(|message| InboundBody::Reaction {
            message: message.into(),
            emoji: text(content, "emoji").map(str::to_owned),
        }),
        "interactive" => pressed(content),
        "button" => {
            let title = text(content, "text").unwrap_or_default();
            let id = text(content, "payload").unwrap_or(title);
            Some(InboundBody::Interaction { id: id.to_owned(), title: title.to_owned() })
        }
        "edit" => edited(content),
        "revoke" => id(content, "original_message_id").map(|message| InboundBody::System {
            event: "message_deleted".to_owned(),
            detail: json!({ "message": message }),
        }),
        "system" => Some(system(content, sender)),
        _ => None,
    };
    body.unwrap_or_else(unsupported)
}

/// What has no place of its own, such as all of a `body` that is not supported.
pub(super) fn extra(message: &Value, kind: &str, body: &InboundBody) -> Value {
    let mut extra = picked(message, &["referral", "errors"]);
    let context = message.get("context").map_or(Value::Null, |context| {
        picked(context, &["forwarded", "frequently_forwarded", "referred_product"])
    });
    let form = message.get("interactive").and_then(|pressed| pressed.get("nfm_reply"));
    let is_whole = kind == "contacts" || matches!(body, InboundBody::Unsupported { .. });
    let parts = [
        ("context", Some(context)),
        ("form", form.map(answers)),
        (kind, message.get(kind).filter(|_| is_whole).cloned()),
    ];
    for (name, part) in parts {
        if let Some(part) = part.filter(|part| !part.is_null()) {
            extra[name] = part;
        }
    }
    extra
}

/// The answers of a form, as JSON where they are.
fn answers(form: &Value) -> Value {
    let answers = form.get("response_json").cloned().unwrap_or(Value::Null);
    answers.as_str().and_then(|json| serde_json::from_str(json).ok()).unwrap_or(answers)
}

fn media(content: &Value) -> Option<InboundMedia> {
    let token = picked(content, &["id", "url"]);
    id(content, "id")?;
    let owned = |key| text(content, key).map(str::to_owned);
    let mut media = InboundMedia::new(MediaRef { provider: ID.to_owned(), token });
    (media.caption, media.mime, media.file_name) = (owned("caption"), owned("mime_type"), owned("filename"));
    Some(media)
}

fn location(content: &Value) -> Option<InboundBody> {
    let (latitude, longitude) = (degrees(content, "latitude")?, degrees(content, "longitude")?);
    let name = text(content, "name").or_else(|| text(content, "address")).map(str::to_owned);
    Some(InboundBody::Location { latitude, longitude, name })
}

fn card(card: &Value) -> Option<InboundBody> {
    let name = card.get("name").and_then(|name| text(name, "formatted_name")).unwrap_or_default();
    let phones = list(card, "phones").iter().filter_map(|phone| text(phone, "phone").map(str::to_owned));
    Some(InboundBody::Contact { name: name.to_owned(), phones: phones.collect() })
}

fn pressed(content: &Value) -> Option<InboundBody> {
    let reply = content.get("button_reply").or_else(|| content.get("list_reply"));
    let (id, title) = match (reply, content.get("nfm_reply")) {
        (Some(reply), _) => (id(reply, "id")?, text(reply, "title")),
        (None, Some(form)) => (id(form, "name").unwrap_or_else(|| "flow".to_owned()), text(form, "body")),
        (None, None) => return None,
    };
    Some(InboundBody::Interaction { id, title: title.unwrap_or_default().to_owned() })
}

fn edited(content: &Value) -> Option<InboundBody> {
    let said = content.get("message").and_then(|message| message.get("text")?.get("body")?.as_str());
    let message = id(content, "original_message_id")?;
    Some(InboundBody::Edit { message: message.into(), text: said.unwrap_or_default().to_owned() })
}

/// A change of who the user is tells both ids, `from` and `to`, as far as they are known.
fn system(content: &Value, sender: &Participant) -> InboundBody {
    let event = text(content, "type").unwrap_or("system").to_owned();
    let mut detail = content.clone();
    let to = id(content, "user_id").or_else(|| id(content, "wa_id")).or_else(|| id(content, "new_wa_id"));
    if let Some(to) = to
        && detail.is_object()
    {
        if sender.id.as_str() != to {
            detail["from"] = json!(sender.id);
        }
        detail["to"] = json!(to);
    }
    InboundBody::System { event, detail }
}
