use super::*;

fn refused(status: u16, body: &str) -> Failure {
    let refusal: Refusal = serde_json::from_str(body).expect("a refusal");
    understand(status, None, Some(&refusal))
}

fn said(code: u16, description: &str) -> Failure {
    refused(code, &format!(r#"{{"ok":false,"error_code":{code},"description":"{description}"}}"#))
}

/// Cases D57, D59, D69, D73 and the table of errors.
#[test]
fn each_refusal_has_its_class() {
    use ErrorClass::{
        Auth, PayloadTooLarge, RateLimited, RecipientUnreachable, Rejected, Transient, UnsupportedContent,
    };
    for (code, description, class) in [
        (400, "Bad Request: chat not found", RecipientUnreachable),
        (400, "Bad Request: PEER_ID_INVALID", RecipientUnreachable),
        (400, "Bad Request: group chat was deactivated", RecipientUnreachable),
        (400, "Bad Request: not enough rights to send text messages to the chat", RecipientUnreachable),
        (400, "Bad Request: have no rights to send a message", RecipientUnreachable),
        (400, "Bad Request: TOPIC_CLOSED", RecipientUnreachable),
        (400, "Bad Request: message is too long", PayloadTooLarge),
        (400, "Bad Request: text is too long", PayloadTooLarge),
        (400, "Bad Request: message caption is too long", PayloadTooLarge),
        (400, "Bad Request: can't parse entities: Unsupported start tag", UnsupportedContent),
        (400, "Bad Request: message text is empty", UnsupportedContent),
        (400, "Bad Request: wrong file identifier/HTTP URL specified", UnsupportedContent),
        (400, "Bad Request: BUTTON_DATA_INVALID", UnsupportedContent),
        (400, "Bad Request: group send failed", Transient),
        (400, "Bad Request: something new", Rejected),
        (401, "Unauthorized", Auth),
        (403, "Forbidden: bot was blocked by the user", RecipientUnreachable),
        (403, "Forbidden: user is deactivated", RecipientUnreachable),
        (403, "Forbidden: bot can't initiate conversation with a user", RecipientUnreachable),
        (404, "Not Found", Auth),
        (404, "Not Found: method not found", Rejected),
        (413, "Request Entity Too Large", PayloadTooLarge),
        (429, "Too Many Requests: retry after 7", RateLimited),
        (500, "Internal Server Error: restart", Transient),
    ] {
        let Failure { error, .. } = said(code, description);
        assert_eq!((error.class, error.phase), (class, Phase::Answered), "{description}");
        assert_eq!(error.retryable, class.retryable(), "{description}");
        assert_eq!(error.code, Some(code.to_string()));
        assert!(error.detail.contains(description), "{}", error.detail);
    }
}

/// Case D59.
#[test]
fn a_flood_says_how_long_to_wait_or_has_a_default() {
    let body =
        r#"{"ok":false,"error_code":429,"description":"Too Many Requests","parameters":{"retry_after":7}}"#;
    assert_eq!(refused(429, body).error.retry_after, Some(Duration::from_secs(7)));
    let refusal = Refusal { error_code: Some(429), ..Refusal::default() };
    let header = Some(Duration::from_secs(3));
    assert_eq!(understand(429, header, Some(&refusal)).error.retry_after, header, "as the header says");
    assert_eq!(understand(429, header, None).error.retry_after, header, "also without a body");
    assert_eq!(understand(429, None, Some(&refusal)).error.retry_after, Some(FLOOD));
}

#[test]
fn a_flood_counts_for_its_chat_unless_something_in_front_of_telegram_says_so() {
    assert!(!said(429, "Too Many Requests: retry after 7").error.all_chats);
    assert!(understand(429, None, None).error.all_chats);
}

#[test]
fn a_moved_group_says_where_it_is() {
    let body = include_str!("../../tests/payloads/errors/400_migrated.json");
    let payload: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let failure = refused(400, &payload["body"].to_string());
    assert_eq!(failure.remedy, Some(Remedy::MovedTo(-1_001_557_912_345)));
    assert_eq!(failure.error.class, ErrorClass::RecipientUnreachable);
}

#[test]
fn what_can_be_mended_is_told_apart() {
    for (code, description, remedy) in [
        (400, "Bad Request: message to be replied not found", Remedy::WithoutReply),
        (400, "Bad Request: can't parse entities: unexpected end", Remedy::WithoutFormatting),
        (400, "Bad Request: can't parse MessageEntity: Unsupported type", Remedy::WithoutFormatting),
        (400, "Bad Request: message is not modified: specified new message content", Remedy::Unchanged),
    ] {
        assert_eq!(said(code, description).remedy, Some(remedy), "{description}");
    }
}

/// Case D57.
#[test]
fn a_webhook_in_the_way_of_polls_is_a_mistake_of_configuration() {
    let description = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";
    let Failure { error, remedy } = said(409, description);
    assert_eq!((error.class, error.retryable, remedy), (ErrorClass::Rejected, false, None));
    assert!(error.detail.contains("deleting_webhook"), "it says what to do: {}", error.detail);
}

/// Case D71.
#[test]
fn an_answer_of_something_else_is_judged_by_its_status() {
    for (status, class, phase) in [
        (502, ErrorClass::Transient, Phase::Answered),
        (503, ErrorClass::Transient, Phase::Answered),
        (504, ErrorClass::Transient, Phase::Unknown),
        (200, ErrorClass::Transient, Phase::Unknown),
        (302, ErrorClass::Rejected, Phase::Answered),
        (413, ErrorClass::PayloadTooLarge, Phase::Answered),
        (429, ErrorClass::RateLimited, Phase::Answered),
    ] {
        let Failure { error, .. } = understand(status, None, None);
        assert_eq!((error.class, error.phase), (class, phase), "HTTP {status}");
    }
}

#[test]
fn every_error_of_the_corpus_has_the_class_that_its_name_says() {
    let expected = |name: &str| match name.split_once('_').expect("a name").1 {
        "chat_not_found" | "migrated" | "blocked" | "deactivated" | "not_member_channel" => {
            ErrorClass::RecipientUnreachable
        }
        "message_text_empty" => ErrorClass::UnsupportedContent,
        "query_too_old" | "reply_not_found" | "webhook_active" => ErrorClass::Rejected,
        "unauthorized" => ErrorClass::Auth,
        "other_getupdates" => ErrorClass::Conflict,
        "restart" => ErrorClass::Transient,
        other => panic!("say which class {other} has"),
    };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/payloads/errors");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a text");
        let payload: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let status = payload["http_status"].as_u64().and_then(|status| u16::try_from(status).ok());
        let failure = refused(status.expect("a status"), &payload["body"].to_string());
        assert_eq!(failure.error.class, expected(&name), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 12);
}
