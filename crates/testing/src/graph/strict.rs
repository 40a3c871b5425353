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
    one_of(body.get("recipient_type"), &["individual", "group"])?;
    if body.get("context").is_some_and(|context| !context["message_id"].is_string()) {
        return Err(wrong("context without message_id"));
    }
    if length(body.get("biz_opaque_callback_data")) > 512 {
        return Err(wrong("biz_opaque_callback_data is too long"));
    }
    let kind = body["type"].as_str().unwrap_or("text");
    match kind {
        "text" => check_length(body, "/text/body", 4096)?,
        "template" => template(&body["template"])?,
        "interactive" => interactive(&body["interactive"])?,
        "reaction" => check_length(body, "/reaction/message_id", 512)?,
        "location" => location(&body["location"])?,
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

/// Checks that a field, if it is there, is one of these.
fn one_of(value: Option<&Value>, allowed: &[&str]) -> Result<(), Refused> {
    let is_known = |value: &Value| value.as_str().is_some_and(|value| allowed.contains(&value));
    match value {
        Some(value) if !is_known(value) => Err(wrong(format!("{value} must be one of {allowed:?}"))),
        _ => Ok(()),
    }
}

/// Degrees are described as texts, and numbers are taken as well.
fn location(location: &Value) -> Result<(), Refused> {
    for (field, max) in [("latitude", 90.0), ("longitude", 180.0)] {
        let value = &location[field];
        let degrees = value.as_f64().or_else(|| value.as_str()?.parse().ok());
        if !degrees.is_some_and(|degrees| (-max..=max).contains(&degrees)) {
            return Err(wrong(format!("location {field} must be within {max} degrees")));
        }
    }
    Ok(())
}

fn template(template: &Value) -> Result<(), Refused> {
    check_length(template, "/name", 512)?;
    check_length(template, "/language/code", 20)?;
    one_of(template["language"].get("policy"), &["deterministic"])?;
    for component in template["components"].as_array().into_iter().flatten() {
        one_of(Some(&component["type"]), &["header", "body", "button"])?;
        let parameters = component["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        if component["type"] == "button" {
            one_of(Some(&component["sub_type"]), &["quick_reply", "url", "catalog", "flow", "copy_code"])?;
            let index = component["index"].as_str().and_then(|index| index.parse::<u8>().ok());
            if index.is_none_or(|index| index > 9) || parameters.is_empty() {
                return Err(wrong("a button of a template has an index from 0 to 9 and parameters"));
            }
        }
        for text in parameters.iter().filter(|parameter| parameter["type"] == "text") {
            check_length(text, "/text", 32_768)?;
            let text = text["text"].as_str().unwrap_or_default();
            if component["type"] == "body" && (text.contains(['\n', '\t']) || text.contains("     ")) {
                return Err((
                    132_018,
                    0,
                    "a parameter has line breaks, tabs or more than four spaces".to_owned(),
                ));
            }
        }
    }
    Ok(())
}

fn media(state: &State, media: &Value) -> Result<(), Refused> {
    let known = media["id"].as_str().is_some_and(|id| state.media.contains_key(id));
    let is_url = |link: &str| link.starts_with("https://") || link.starts_with("http://");
    let linked = media["link"].as_str().is_some_and(is_url);
    if length(media.get("caption")) > 1024 {
        return Err(wrong("a caption has at most 1024 characters"));
    }
    if known == linked {
        return Err((131_053, 0, "Media upload error: one of a known id and a link is required".to_owned()));
    }
    Ok(())
}

fn interactive(interactive: &Value) -> Result<(), Refused> {
    let action = &interactive["action"];
    if interactive["type"] == "flow" {
        check_length(interactive, "/body/text", 1024)?;
        flow(action)?;
        return header(interactive.get("header"));
    }
    if interactive["type"] == "list" {
        check_length(interactive, "/body/text", 4096)?;
        check_length(action, "/button", 20)?;
        let sections = action["sections"].as_array().map_or(&[][..], Vec::as_slice);
        for section in sections {
            match length(section.get("title")) {
                0 if sections.len() > 1 => return Err(wrong("each of several sections has a title")),
                25.. => return Err(wrong("a title of a section has at most 24 characters")),
                _ if section["rows"].as_array().is_none_or(Vec::is_empty) => {
                    return Err(wrong("a section has rows"));
                }
                _ => {}
            }
        }
        let rows: Vec<_> = sections
            .iter()
            .flat_map(|section| section["rows"].as_array().cloned().unwrap_or_default())
            .collect();
        if rows.is_empty() || rows.len() > 10 {
            return Err(wrong("a list has 1 to 10 rows"));
        }
        for (number, row) in rows.iter().enumerate() {
            if rows[..number].iter().any(|other| other["id"] == row["id"]) {
                return Err(wrong("ids of rows differ"));
            }
            check_length(row, "/title", 24)?;
            check_length(row, "/id", 200)?;
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
    for (number, button) in buttons.iter().enumerate() {
        one_of(Some(&button["type"]), &["reply"])?;
        check_length(button, "/reply/title", 20)?;
        check_length(button, "/reply/id", 256)?;
        let id = button["reply"]["id"].as_str().unwrap_or_default();
        let is_same = |other: &Value| {
            ["id", "title"].iter().any(|field| other["reply"][field] == button["reply"][field])
        };
        if id.trim() != id || buttons[..number].iter().any(is_same) {
            return Err(wrong("ids and titles of buttons differ, and ids have no spaces around them"));
        }
    }
    header(interactive.get("header"))
}

/// A form. Which there are is not known here.
fn flow(action: &Value) -> Result<(), Refused> {
    let parameters = &action["parameters"];
    one_of(Some(&action["name"]), &["flow"])?;
    one_of(Some(&parameters["flow_message_version"]), &["3"])?;
    one_of(parameters.get("mode"), &["draft", "published"])?;
    one_of(parameters.get("flow_action"), &["navigate", "data_exchange"])?;
    check_length(parameters, "/flow_cta", 20)?;
    let named =
        ["flow_id", "flow_name"].map(|key| parameters[key].as_str().is_some_and(|name| !name.is_empty()));
    if named[0] == named[1] {
        return Err(wrong("one of flow_id and flow_name is required"));
    }
    if parameters.get("flow_token").is_some_and(|token| length(Some(token)) == 0) {
        return Err(wrong("flow_token is empty"));
    }
    let Some(first) = parameters.get("flow_action_payload") else { return Ok(()) };
    if parameters["flow_action"] == "data_exchange" {
        return Err(wrong("flow_action_payload is for navigate alone"));
    }
    check_length(first, "/screen", 200)?;
    match first.get("data") {
        Some(data) if data.as_object().is_none_or(serde_json::Map::is_empty) => {
            Err(wrong("data is an object that is not empty"))
        }
        _ => Ok(()),
    }
}

fn header(header: Option<&Value>) -> Result<(), Refused> {
    let Some(header) = header else { return Ok(()) };
    one_of(Some(&header["type"]), &["text", "video", "image", "document"])?;
    let kind = header["type"].as_str().unwrap_or_default();
    match kind {
        "text" => check_length(header, "/text", 60),
        _ if header[kind].get("caption").is_some() => Err(wrong("a header has no caption")),
        _ if header[kind].is_object() => Ok(()),
        _ => Err(wrong(format!("a header of type {kind} without {kind}"))),
    }
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
    if state.elsewhere.contains(to) {
        let problem = "(#10) Message failed to send because another app is controlling this thread now.";
        return Err((10, 2_018_300, problem.to_owned()));
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
