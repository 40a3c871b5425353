//! What Meta takes.

use serde_json::Value;

use super::{Product, State};

/// A refusal: code, subcode and what is wrong.
pub(super) type Refused = (i64, i64, String);

fn wrong(problem: impl Into<String>) -> Refused {
    (100, 0, format!("(#100) {}", problem.into()))
}

fn length(value: Option<&Value>) -> usize {
    value.and_then(Value::as_str).map_or(0, |text| text.chars().count())
}

fn check_length(value: &Value, path: &str, max: usize) -> Result<(), Refused> {
    match length(value.pointer(path)) {
        0 => Err(wrong(format!("{path} is missing"))),
        length if length > max => {
            Err(wrong(format!("Param {path} must be at most {max} characters long, length {length}")))
        }
        _ => Ok(()),
    }
}

/// Checks a message of WhatsApp, and says to whom it goes and whether it arrives.
pub(super) fn whatsapp(state: &State, body: &Value) -> Result<(String, bool), Refused> {
    if body["messaging_product"] != "whatsapp" {
        return Err(wrong("The parameter messaging_product is required"));
    }
    let (to, arrives) = match (body["to"].as_str(), body["recipient"].as_str()) {
        // A user id is no phone number: it is taken, and never arrives.
        (Some(to), None) => (to, body["recipient_type"] == "group" || to.bytes().all(|c| c.is_ascii_digit())),
        (None, Some(user)) if user.contains('.') => (user, true),
        _ => return Err(wrong("one of to and recipient is required")),
    };
    if length(body.get("biz_opaque_callback_data")) > 512 {
        return Err(wrong("biz_opaque_callback_data is too long"));
    }
    let kind = body["type"].as_str().unwrap_or("text");
    match kind {
        "text" => check_length(body, "/text/body", 4096)?,
        "template" => check_length(body, "/template/name", 512)?,
        "interactive" => interactive(&body["interactive"])?,
        "reaction" => check_length(body, "/reaction/message_id", 512)?,
        "location" if body["location"]["latitude"].is_number() => {}
        "image" | "audio" | "video" | "document" | "sticker" => media(state, &body[kind])?,
        kind => return Err(wrong(format!("no message of type {kind}"))),
    }
    if state.blocked.contains(to) {
        return Err((131_026, 0, "Message undeliverable".to_owned()));
    }
    if state.out_of_window.contains(to) && kind != "template" {
        return Err((131_047, 0, "Re-engagement message".to_owned()));
    }
    Ok((to.to_owned(), arrives))
}

fn media(state: &State, media: &Value) -> Result<(), Refused> {
    let known = media["id"].as_str().is_some_and(|id| state.media.contains_key(id));
    let is_url = |link: &str| link.starts_with("https://") || link.starts_with("http://");
    let linked = media["link"].as_str().is_some_and(is_url);
    if known == linked {
        return Err((131_053, 0, "Media upload error: one of a known id and a link is required".to_owned()));
    }
    Ok(())
}

fn interactive(interactive: &Value) -> Result<(), Refused> {
    let action = &interactive["action"];
    if interactive["type"] == "list" {
        check_length(interactive, "/body/text", 4096)?;
        check_length(action, "/button", 20)?;
        let rows: Vec<_> = action["sections"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|section| section["rows"].as_array().cloned().unwrap_or_default())
            .collect();
        if rows.is_empty() || rows.len() > 10 {
            return Err(wrong("a list has 1 to 10 rows"));
        }
        for row in rows {
            check_length(&row, "/title", 24)?;
            check_length(&row, "/id", 200)?;
            if length(row.get("description")) > 72 {
                return Err(wrong("a description has at most 72 characters"));
            }
        }
        return Ok(());
    }
    check_length(interactive, "/body/text", 1024)?;
    let buttons = action["buttons"].as_array().map_or(&[][..], Vec::as_slice);
    if interactive["type"] != "button" || buttons.is_empty() || buttons.len() > 3 {
        return Err(wrong("1 to 3 buttons"));
    }
    for button in buttons {
        check_length(button, "/reply/title", 20)?;
        check_length(button, "/reply/id", 256)?;
    }
    Ok(())
}

/// Checks a message of Messenger or Instagram, and says to whom it goes.
pub(super) fn page(state: &State, product: Product, body: &Value) -> Result<String, Refused> {
    let to = body["recipient"]["id"].as_str().ok_or_else(|| wrong("recipient is required"))?;
    let message = &body["message"];
    if !message.is_object() {
        return Err(wrong("message is required"));
    }
    let (text, attachment) = (message.get("text"), message.get("attachment"));
    match (text.and_then(Value::as_str), attachment) {
        (Some(text), None) => {
            let (length, max) = match product {
                Product::Instagram => (text.len(), 1000),
                _ => (text.chars().count(), 2000),
            };
            if length == 0 || length > max {
                return Err(wrong(format!(
                    "Length of param message[text] must be at most {max}, length {length}"
                )));
            }
        }
        (None, Some(attachment)) if attachment["payload"].is_object() => {}
        _ => return Err(wrong("one of text and attachment is required")),
    }
    if length(message.get("metadata")) > 1000 {
        return Err(wrong("metadata is too long"));
    }
    let replies = message["quick_replies"].as_array().map_or(&[][..], Vec::as_slice);
    if replies.len() > 13 {
        return Err(wrong("at most 13 quick replies"));
    }
    for reply in replies {
        check_length(reply, "/title", 20)?;
        check_length(reply, "/payload", 1000)?;
    }
    if state.blocked.contains(to) {
        return Err((551, 1_545_041, "This person isn't available right now.".to_owned()));
    }
    if state.out_of_window.contains(to) {
        return Err(match product {
            Product::Instagram => (10, 2_534_022, "outside of allowed window".to_owned()),
            _ => (10, 2_018_278, "outside of allowed window".to_owned()),
        });
    }
    Ok(to.to_owned())
}
