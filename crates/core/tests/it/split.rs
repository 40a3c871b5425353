//! How texts over a channel's limit are cut.

use botmesh_core::provider::{TextLimit, TextUnit};
use botmesh_core::split::split;
use proptest::prelude::*;

const fn limit(max: usize, unit: TextUnit) -> TextLimit {
    TextLimit { max, unit }
}

const TEN: TextLimit = limit(10, TextUnit::CodePoints);

#[test]
fn a_text_within_the_limit_is_one_part() {
    assert_eq!(split("0123456789", TEN), ["0123456789"]);
    assert_eq!(split("  indented", TEN), ["  indented"]);
}

#[test]
fn cuts_are_where_a_reader_would_make_them() {
    for (text, parts) in [
        ("one two three", &["one two", "three"][..]),
        ("a b c. d e f", &["a b c.", "d e f"]),
        ("v1.2.3 four five", &["v1.2.3", "four five"]),
        ("Hola. ¿Qué? Ya", &["Hola.", "¿Qué? Ya"]),
        ("one two\nthree", &["one two", "three"]),
        ("one two\n\n\nthree four", &["one two", "three four"]),
        ("line one\n  - two", &["line one", "  - two"]),
        ("0123456789 next", &["0123456789", "next"]),
        ("0123456789abc", &["0123456789", "abc"]),
        // A word early in the part is no reason for a short part.
        ("a 23456789abc", &["a 23456789", "abc"]),
        ("你好。世界你好世界你好", &["你好。世界你好世界你", "好"]),
    ] {
        assert_eq!(split(text, TEN), parts, "{text:?}");
    }
}

#[test]
fn white_space_makes_no_part_of_its_own() {
    assert_eq!(split("word                    end", TEN), ["word", "end"]);
    assert_eq!(split("\n\n\n\n\n\n\n\n\n\n\n\nend", TEN), ["end"]);
    assert_eq!(split("              ", TEN), ["              "]);
}

#[test]
fn no_emoji_and_no_accent_falls_apart() {
    let family = "👨\u{200d}👩\u{200d}👧";
    assert_eq!(split(&family.repeat(3), TEN), [family.repeat(2), family.to_owned()]);
    assert_eq!(split(&"e\u{301}".repeat(6), TEN), ["e\u{301}".repeat(5), "e\u{301}".to_owned()]);
    assert_eq!(split("🇪🇸🇧🇷🇲🇽", limit(5, TextUnit::Utf16)), ["🇪🇸", "🇧🇷", "🇲🇽"]);
}

#[test]
fn the_limit_is_counted_in_the_unit_of_the_channel() {
    let text = "😀😀😀😀";
    assert_eq!(split(text, limit(4, TextUnit::CodePoints)), [text]);
    assert_eq!(split(text, limit(4, TextUnit::Utf16)), ["😀😀", "😀😀"]);
    assert_eq!(split(text, limit(4, TextUnit::Bytes)), ["😀", "😀", "😀", "😀"]);
}

#[test]
fn a_character_longer_than_the_limit_is_cut_between_code_points() {
    let zalgo = format!("a{}", "\u{301}".repeat(30));
    let parts = split(&zalgo, TEN);
    assert_eq!(parts.concat(), zalgo);
    assert!(parts.iter().all(|part| TEN.measure(part) <= 10), "{parts:?}");
    assert_eq!(split("😀😀", limit(1, TextUnit::Utf16)), ["😀", "😀"]);
    assert_eq!(split("ab", limit(0, TextUnit::Bytes)), ["a", "b"]);
}

fn any_unit() -> impl Strategy<Value = TextUnit> {
    prop_oneof![Just(TextUnit::Bytes), Just(TextUnit::CodePoints), Just(TextUnit::Utf16)]
}

proptest! {
    #[test]
    fn parts_fit_and_lose_nothing_but_white_space(
        text in "([a-z]{1,12}|[ \n.]{1,3}|[😀é你]|\\PC){0,60}",
        max in 4_usize..40,
        unit in any_unit(),
    ) {
        let limit = limit(max, unit);
        let parts = split(&text, limit);
        for part in &parts {
            prop_assert!(limit.measure(part) <= max || part.trim().is_empty(), "{part:?}");
        }
        let dense = |text: &str| text.split_whitespace().collect::<String>();
        prop_assert_eq!(dense(&parts.concat()), dense(&text));
    }

    #[test]
    fn the_same_text_is_always_cut_the_same_way(text in "\\PC{0,200}", max in 4_usize..40) {
        let limit = limit(max, TextUnit::Utf16);
        let same = text.clone();
        prop_assert_eq!(split(&text, limit), split(&same, limit));
        // A part is not cut again: a retry or a second pass finds nothing to do.
        for part in split(&text, limit) {
            prop_assert_eq!(split(part, limit), [part]);
        }
    }
}
