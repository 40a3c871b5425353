//! Bodies that channels post, and what is made of texts that were cut within a character.

use botmesh_core::webhook::{MAX_BODY, WebhookError, parse};
use proptest::prelude::*;
use serde_json::{Value, json};

#[track_caller]
fn reads(body: &str, expected: &Value) {
    assert_eq!(&parse::<Value>(body.as_bytes()).expect("a readable body"), expected, "{body}");
}

/// Case J02.
#[test]
fn half_characters_are_replaced_and_nothing_else_is_touched() {
    reads(r#"{"id":"m1","text":"\ud83d"}"#, &json!({ "id": "m1", "text": "\u{fffd}" }));
    reads(r#"{"a\udc00":"\uDBFF\uDBFF\uDFFFx"}"#, &json!({ "a\u{fffd}": "\u{fffd}\u{10ffff}x" }));
    reads(
        r#"["\ude00\ud83d", "\ud83d\\ude00", "\ud83d\n"]"#,
        &json!(["\u{fffd}\u{fffd}", "\u{fffd}\\ude00", "\u{fffd}\n"]),
    );
    reads(
        r#"["\ud83d\ude00", "\\ud83d", "\\\ud83d", "\\\\ud83d"]"#,
        &json!(["😀", r"\ud83d", "\\\u{fffd}", r"\\ud83d"]),
    );
    reads(
        r#"[9223372036854775807, -1001234567890123, 0.1, "\u0000", "ü"]"#,
        &json!([i64::MAX, -1_001_234_567_890_123_i64, 0.1, "\0", "ü"]),
    );
}

#[test]
fn half_characters_written_as_bytes_are_replaced_too() {
    let body = [b"[\"a".as_slice(), &[0xED, 0xA0, 0xBD], b"b", "\u{d7ff}".as_bytes(), b"\"]"].concat();
    assert_eq!(parse::<Value>(&body).expect("a readable body"), json!(["a\u{fffd}b\u{d7ff}"]));
}

#[test]
fn what_is_no_json_or_too_much_of_it_is_an_error() {
    for body in [
        r#"{"text":"\ud83"#,
        r#""\ud83"#,
        r#""\ud83d"#,
        r#"{"a":\ud83d}"#,
        r#""\uxxxx""#,
        "\"\u{1}\"",
        "",
        r"\",
    ] {
        assert!(matches!(parse::<Value>(body.as_bytes()), Err(WebhookError::Json(_))), "{body}");
    }
    assert!(matches!(parse::<Value>(b"\"\xff\""), Err(WebhookError::Json(_))));
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert!(parse::<Value>(deep(127).as_bytes()).is_ok());
    assert!(matches!(parse::<Value>(deep(100_000).as_bytes()), Err(WebhookError::Json(_))));
    let text = |size: usize| format!("\"{}\"", "x".repeat(size - 2));
    assert!(parse::<String>(text(MAX_BODY).as_bytes()).is_ok());
    let error = parse::<String>(text(MAX_BODY + 1).as_bytes()).expect_err("too large");
    assert!(error.to_string().contains("16777217"), "{error}");
}

#[test]
fn the_place_of_an_error_is_that_of_the_body_as_posted() {
    let error = parse::<Value>(br#"["\ud83d", oops]"#).expect_err("no JSON");
    let WebhookError::Json(error) = error else { panic!("{error}") };
    assert_eq!((error.line(), error.column()), (1, 12));
}

/// One UTF-16 unit as a sender may write it.
fn written(unit: u16, escaped: bool) -> String {
    match char::from_u32(u32::from(unit)) {
        Some(c) if !escaped && c >= ' ' && c != '"' && c != '\\' => c.to_string(),
        _ => format!("\\u{unit:04x}"),
    }
}

proptest! {
    /// Rust's own lossy conversion is what a text must come to, however it was written.
    #[test]
    fn any_units_are_read_as_the_text_they_make(
        units in prop::collection::vec((prop_oneof![any::<u16>(), 0xD700_u16..0xE100, Just(0x5C)], any::<bool>()), 0..40),
    ) {
        let body: String = units.iter().map(|&(unit, escaped)| written(unit, escaped)).collect();
        let plain: Vec<u16> = units.iter().map(|&(unit, _)| unit).collect();
        let read: String = parse(format!("\"{body}\"").as_bytes()).expect("a readable body");
        prop_assert_eq!(read, String::from_utf16_lossy(&plain));
    }

    #[test]
    fn what_needs_no_mending_is_read_as_it_is(body in prop::collection::vec(any::<u8>(), 0..60)) {
        let (read, plain) = (parse::<Value>(&body), serde_json::from_slice::<Value>(&body));
        if let Ok(plain) = plain {
            prop_assert_eq!(read.expect("a readable body"), plain);
        }
    }

    #[test]
    fn well_formed_bodies_are_read_as_they_are(text in ".*", n in any::<i64>()) {
        let body = json!({ "n": n, "texts": [text] });
        prop_assert_eq!(parse::<Value>(body.to_string().as_bytes()).expect("a readable body"), body);
    }
}
