use botmesh_core::content::{Button, Content, ContentBody, MediaSource, OutboundMedia};

use super::{printable, text};

fn media(source: MediaSource, caption: Option<&str>, file_name: Option<&str>) -> OutboundMedia {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    OutboundMedia { source, caption: owned(caption), mime: None, file_name: owned(file_name) }
}

#[test]
fn each_kind_is_a_readable_line() {
    let url = || MediaSource::Url("https://example.org/a.png".into());
    let cases = [
        (ContentBody::Text { text: "two\nlines".into() }, "two\nlines"),
        (ContentBody::Image(media(url(), Some("a cat"), None)), "[image] https://example.org/a.png a cat"),
        (
            ContentBody::Document(media(MediaSource::Path("out/bill.pdf".into()), None, Some("bill.pdf"))),
            "[document] bill.pdf out/bill.pdf",
        ),
        (ContentBody::Sticker(media(MediaSource::Id("7".into()), None, None)), "[sticker] id 7"),
        (
            ContentBody::Location { latitude: 1.5, longitude: -2.0, name: Some("Home".into()) },
            "[location] 1.5, -2 Home",
        ),
        (ContentBody::Reaction { message: "1".into(), emoji: Some("👍".into()) }, "[reaction] 👍"),
        (ContentBody::Edit { message: "1".into(), text: "Booked.".into() }, "[edit] Booked."),
        (ContentBody::Reaction { message: "1".into(), emoji: None }, "[reaction taken back]"),
    ];
    for (body, expected) in cases {
        assert_eq!(text(&Content::from(body)), expected);
    }
}

#[test]
fn buttons_are_numbered_below_the_text() {
    let buttons = || [Button::new("y", "Yes"), Button::new("n", "No")];
    assert_eq!(text(&Content::text("Sure?").with_buttons(buttons())), "Sure?\n1) Yes\n2) No");
    assert_eq!(text(&Content::text("").with_buttons(buttons())), "1) Yes\n2) No");
}

#[test]
fn what_would_change_the_screen_is_shown_as_a_symbol() {
    assert_eq!(printable("plain ñ\tand\nlines"), "plain ñ\tand\nlines");
    assert_eq!(printable("a\r\nb\x1b[2J\0\x07\x7f\u{9b}c"), "a\nb␛[2J␀␇␡\u{fffd}c");
}
