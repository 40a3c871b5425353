use botmesh_core::markup::Formatted;

use super::*;

const CHAT: i64 = 5_025_045_066;

fn call(content: impl Into<Content>) -> Call {
    Call::of(&Address::chat(CHAT.to_string()), &content.into()).expect("a call")
}

fn shown(content: impl Into<Content>) -> (String, Value) {
    let call = call(content);
    (call.method.into_owned(), Value::Object(call.params))
}

fn media(source: MediaSource) -> OutboundMedia {
    OutboundMedia { source, caption: Some("look".into()), mime: None, file_name: None }
}

#[test]
fn every_kind_of_content_has_its_method() {
    let url = || media(MediaSource::Url("https://example.org/a".into()));
    let voice = OutboundMedia { mime: Some("audio/ogg; codecs=opus".into()), ..url() };
    for (content, expected) in [
        (Content::text("hi"), ("sendMessage", json!({ "text": "hi" }))),
        (
            ContentBody::Image(media(MediaSource::Id("AgAC".into()))).into(),
            ("sendPhoto", json!({ "photo": "AgAC", "caption": "look" })),
        ),
        (
            ContentBody::Audio(url()).into(),
            ("sendAudio", json!({ "audio": "https://example.org/a", "caption": "look" })),
        ),
        (
            ContentBody::Audio(voice).into(),
            ("sendVoice", json!({ "voice": "https://example.org/a", "caption": "look" })),
        ),
        (
            ContentBody::Video(url()).into(),
            ("sendVideo", json!({ "video": "https://example.org/a", "caption": "look" })),
        ),
        (
            ContentBody::Document(url()).into(),
            ("sendDocument", json!({ "document": "https://example.org/a", "caption": "look" })),
        ),
        (ContentBody::Sticker(url()).into(), ("sendSticker", json!({ "sticker": "https://example.org/a" }))),
        (
            ContentBody::Location { latitude: 1.5, longitude: -2.25, name: None }.into(),
            ("sendLocation", json!({ "latitude": 1.5, "longitude": -2.25 })),
        ),
        (
            ContentBody::Location { latitude: 1.5, longitude: -2.25, name: Some("Desk".into()) }.into(),
            (
                "sendVenue",
                json!({ "latitude": 1.5, "longitude": -2.25, "title": "Desk", "address": "1.5, -2.25" }),
            ),
        ),
        (
            ContentBody::Edit { message: "7".into(), text: "new".into() }.into(),
            (
                "editMessageText",
                json!({ "message_id": 7, "text": "new", "reply_markup": { "inline_keyboard": [] } }),
            ),
        ),
        (
            ContentBody::Reaction { message: "7".into(), emoji: Some("👍".into()) }.into(),
            (
                "setMessageReaction",
                json!({ "message_id": 7, "reaction": [{ "type": "emoji", "emoji": "👍" }] }),
            ),
        ),
        (
            ContentBody::Reaction { message: "7".into(), emoji: None }.into(),
            ("setMessageReaction", json!({ "message_id": 7, "reaction": [] })),
        ),
    ] {
        let (method, mut params) = expected;
        params["chat_id"] = CHAT.into();
        assert_eq!(shown(content), (method.to_owned(), params));
    }
}

/// Case D69.
#[test]
fn an_answer_to_a_message_goes_out_also_if_that_message_is_gone() {
    let (_, params) = shown(Content::text("hi").in_reply_to("105"));
    assert_eq!(params["reply_parameters"], json!({ "message_id": 105, "allow_sending_without_reply": true }));
}

#[test]
fn what_only_telegram_has_is_any_call_with_the_chat_added() {
    let native = |channel: &str, payload: Value| {
        Content::from(ContentBody::Native { channel: channel.into(), payload, text: "a poll".into() })
    };
    let poll = json!({ "method": "sendPoll", "question": "Tea?", "options": [{ "text": "Yes" }] });
    let params = json!({ "chat_id": CHAT, "question": "Tea?", "options": [{ "text": "Yes" }] });
    assert_eq!(shown(native("telegram", poll.clone())), ("sendPoll".to_owned(), params));
    for (channel, payload) in
        [("whatsapp", poll), ("telegram", json!({})), ("telegram", json!({ "method": "../x" }))]
    {
        let error = Call::of(&Address::chat("1"), &native(channel, payload)).expect_err("no call");
        assert_eq!((error.class, error.phase), (ErrorClass::UnsupportedContent, Phase::NotWritten));
    }
}

/// Case C39, in the other direction.
#[test]
fn formatting_is_counted_in_utf16_units() {
    let link = Style::Link { url: "https://example.org".into() };
    let text = Formatted::from("\u{1F600} ")
        + Formatted::styled("bold", Style::Bold)
        + " "
        + Formatted::styled("here", link);
    let entities = json!([
        { "type": "bold", "offset": 3, "length": 4 },
        { "type": "text_link", "offset": 8, "length": 4, "url": "https://example.org" },
    ]);
    let (_, params) = shown(Content::from(text.clone()));
    assert_eq!((&params["text"], &params["entities"]), (&json!("\u{1F600} bold here"), &entities));
    let (_, params) =
        shown(Content::from(ContentBody::Image(media(MediaSource::Id("A".into())))).with_text(text.clone()));
    assert_eq!((&params["caption"], &params["caption_entities"]), (&json!("\u{1F600} bold here"), &entities));
    let plain = call(Content::from(text)).without_formatting().expect("a plain text");
    assert_eq!(plain.params.get("entities"), None);
    assert_eq!(plain.params["text"], "\u{1F600} bold here (https://example.org)");
    assert!(call("plain").without_formatting().is_none());
}

#[test]
fn short_buttons_share_a_row_and_long_ones_do_not() {
    let buttons = |titles: &[&str]| {
        let all = titles.iter().enumerate().map(|(n, title)| Button::new(n.to_string(), *title));
        shown(Content::text("?").with_buttons(all)).1["reply_markup"]["inline_keyboard"].clone()
    };
    let rows = |shown: &Value| -> Vec<usize> {
        shown.as_array().expect("rows").iter().map(|row| row.as_array().expect("a row").len()).collect()
    };
    assert_eq!(
        buttons(&["Yes", "No"]),
        json!([[{ "text": "Yes", "callback_data": "0" }, { "text": "No", "callback_data": "1" }]])
    );
    assert_eq!(rows(&buttons(&["1", "2", "3", "4"])), [3, 1]);
    assert_eq!(rows(&buttons(&["Tomorrow in the morning", "Tomorrow in the evening"])), [1, 1]);
}

#[test]
fn a_button_id_that_telegram_would_refuse_is_refused_before_and_says_what_to_do() {
    for (id, fits) in [("é".repeat(32), true), ("é".repeat(32) + "x", false), (String::new(), false)] {
        let content = Content::text("?").with_buttons([Button::new(id, "Yes")]);
        let made = Call::of(&Address::chat("1"), &content);
        assert_eq!(made.is_ok(), fits);
        if let Err(error) = made {
            assert_eq!((error.class, error.phase), (ErrorClass::UnsupportedContent, Phase::NotWritten));
            assert!(error.detail.contains("short id"), "{}", error.detail);
        }
    }
}

#[test]
fn a_guest_gets_its_one_answer() {
    let address = Address { guest: Some("gq1".into()), ..Address::chat("-100") };
    let call = Call::of(&address, &"hi".into()).expect("a call");
    let result = json!({ "type": "article", "id": "1", "title": "hi", "input_message_content": { "message_text": "hi" } });
    assert_eq!(
        (&*call.method, Value::Object(call.params)),
        ("answerGuestQuery", json!({ "guest_query_id": "gq1", "result": result }))
    );
}

#[tokio::test]
async fn a_file_that_is_missing_or_too_large_is_refused_before_anything_is_sent() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.txt");
    std::fs::write(&path, b"hello").expect("a file");
    let content = |path: &Path| ContentBody::Document(media(MediaSource::Path(path.display().to_string())));

    let fits = call(content(&path));
    let read = &fits.uploads(5).await.expect("a file that fits")[0];
    assert_eq!((&*read.part, read.name.as_str(), read.size), ("document", "a.txt", 5));
    let error = fits.uploads(4).await.err().expect("a file that is too large");
    assert_eq!((error.class, error.phase), (ErrorClass::PayloadTooLarge, Phase::NotWritten));

    for path in [folder.path().join("none"), folder.path().to_owned()] {
        let error = call(content(&path)).uploads(5).await.err().expect("no file");
        assert_eq!((error.retryable, error.phase), (false, Phase::NotWritten));
    }
}
